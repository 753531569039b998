"""Write a run as a folder of static pages that opens from disk and on any static host.

index.html       curves, evaluation, configuration and provenance, with plotly.js inside
dialogues.html   chosen dialogues, turn by turn

The pages make no external request, which their content security policy also forbids. They contain no path of the
machine and no secret: the alerts are left out of the configuration, absolute paths are shortened to their last part,
dialogues with a path of the machine are left out, and any other path, value of a secret environment variable or token
is an error.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path, PurePath, PureWindowsPath

import jinja2
import yaml

from app.plots.run_charts import overview
from app.plots.run_folder import plot_options, step_metrics
from app.static_pages.selection import chosen_dialogues
from jobs.export.private_paths import check_private, machine_paths, write_folder
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.dialogue.rollout.build import build_environment
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError, RunError
from rl2f_core.evaluation.chart_data import accuracy_chart, effect_chart
from rl2f_core.evaluation.plotting import figure, resolve_colors
from rl2f_core.evaluation.report import findings, tables
from rl2f_core.evaluation.report_file import read_report
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, StatusEvent, read_events
from rl2f_core.types import JsonObject

SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|WEBHOOK")
"""Names of environment variables with secrets."""
MIN_SECRET = 8
"""Shorter values of such variables are not searched."""
TOKENS = (
    rb"\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[A-Z0-9]{16}\b"
    rb"|\bxox[abprs]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/\w+|https?://[^\s/:@]+:[^\s/@]+@"
)
"""Tokens of well-known services, and URLs with a password."""


def write_pages(run: str | Path, out: str | Path, *, limit: int = 40, ids: Sequence[str] = ()) -> JsonObject:
    """Write the pages of a run to the new folder `out`; return the number of dialogues `shared` and `left_out`.

    Args:
        run: The run directory.
        out: A folder that does not exist.
        limit: Maximum number of dialogues, if `ids` is empty.
        ids: Ids of dialogues or of their events.

    Raises `RunError` if `out` exists, and `DataError` if an id is unknown, if a secret or a path of this machine would
    remain, or if the run is not an experiment.
    """
    run_dir, target = RunDir.open(run), Path(out)
    if target.exists():
        raise RunError("The folder to share exists.", value=str(target), fix="Remove it, or name another.")
    private = machine_paths(run_dir.path)
    chosen = chosen_dialogues(run_dir, limit, ids)
    kept = [event for event in chosen if not private.search(event.model_dump_json().encode())]
    config = run_dir.config()
    if not isinstance(config, BaseRun):
        raise DataError("Only a run with dialogues can be shared.", value=getattr(config, "kind", None))
    shared: JsonObject = {"title": config.name, "status": _last_status(run_dir, private)}
    shared["dialogues"] = [_dialogue(event, build_environment(config.environment)) for event in kept]
    shared |= _run_page(run_dir, config)
    pages = {name: _render(name, shared) for name in ("index.html", "dialogues.html")}
    for name, page in pages.items():
        _check(name, page.encode(), private)
    from plotly.offline import get_plotlyjs

    pages["index.html"] = pages["index.html"].replace("/*plotly.js*/", get_plotlyjs(), 1)
    write_folder(target, {name: page.encode() for name, page in pages.items()})
    return {"shared": len(kept), "left_out": len(chosen) - len(kept)}


def _render(name: str, values: JsonObject) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(f"{name}.j2").render(values)


def _check(name: str, page: bytes, private: re.Pattern[bytes]) -> None:
    """Raise `DataError` if a page contains a path of this machine, a secret of the environment, or a token."""
    check_private(name, page, private)
    for variable, value in os.environ.items():
        if SECRET_NAME.search(variable.upper()) and len(value) >= MIN_SECRET and value.encode() in page:
            raise DataError("The value of a secret environment variable would remain.", value=f"{name}: ${variable}")
    if match := re.search(TOKENS, page):
        raise DataError("A secret would remain.", value=f"{name}: {match[0][:6].decode(errors='replace')}…")


# -- the run's page ------------------------------------------------------------------------------------------------
def _run_page(run_dir: RunDir, config: BaseRun) -> JsonObject:
    stages = config.stages if isinstance(config, RunConfig) else ()
    curves = overview(step_metrics(run_dir), plot_options(config))
    report = run_dir.path / "counterfactual" / "report.md"
    meta = run_dir.meta()
    return {
        "environment": config.environment.type,
        "model": PurePath(config.model.name).name,
        "stages": [f"{stage.name} ({stage.method.type}, {stage.steps} steps)" for stage in stages],
        "curves": [{"title": c.title, "unit": c.unit, "note": c.note, **_plot(c.figure)} for c in curves],
        "evaluation": _evaluation(run_dir),
        "report": report.read_text(encoding="utf-8") if report.is_file() else "",
        "config": yaml.safe_dump(
            _shortened(config.model_dump(mode="json", exclude={"alerts"})), sort_keys=False, allow_unicode=True
        ),
        "facts": {
            "created": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(meta["created"])) if "created" in meta else "",
            "seed": config.seed,
            "commit": meta.get("git") or "",
            "python": meta.get("python") or "",
            **(meta.get("packages") or {}),
            **{key: value for key, value in (meta.get("hardware") or {}).items() if value is not None},
        },
    }


def _evaluation(run_dir: RunDir) -> list[JsonObject]:
    """Return the sections of the evaluation, one per sub-environment after the first."""
    report = read_report(run_dir.path)
    if report is None:
        return []
    charts = [chart for chart in (accuracy_chart(report), effect_chart(report)) if chart.plots]
    figures = [
        {"title": f"{chart.title}: {plot.title}" if plot.title else chart.title, "unit": plot.unit,
         "note": chart.subtitle, **_plot(figure(plot))}
        for chart in charts
        for plot in chart.plots
    ]  # fmt: skip
    return [
        {"title": part.title, "findings": findings(part), "tables": tables(part),
         "figures": figures if part is report else []}
        for part in (report, *report.parts)
    ]  # fmt: skip


def _plot(plotted: JsonObject) -> JsonObject:
    """Return the JSON and the height of a figure; `<` is escaped, so that it cannot end a script."""
    plotted = resolve_colors(plotted)
    return {"figure": json.dumps(plotted).replace("<", "\\u003c"), "height": plotted["layout"].get("height", 190)}


def _shortened(node: object) -> object:
    """Return configuration data with the last part of absolute paths."""
    if isinstance(node, dict):
        return {key: _shortened(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_shortened(value) for value in node]
    if isinstance(node, str) and (Path(node).is_absolute() or PureWindowsPath(node).is_absolute()):
        return f"…/{PureWindowsPath(node).name}"
    return node


def _last_status(run_dir: RunDir, private: re.Pattern[bytes]) -> str:
    """Return the last status with its reason, in which paths of this machine are replaced."""
    status = "queued"
    for event in read_events(run_dir.events_path, having=b'"status"'):
        if isinstance(event, StatusEvent):
            status = f"{event.status}: {event.detail}" if event.detail else event.status
    return private.sub("…".encode(), status.encode()).decode()


# -- dialogues -----------------------------------------------------------------------------------------------------
def _dialogue(event: DialogueEvent, environment: Environment) -> JsonObject:
    dialogue = event.dialogue
    place = [event.phase, event.checkpoint, event.setting, f"{event.stage} step {event.step}" if event.step else ""]
    return {
        "id": event.id,
        "place": " · ".join(filter(None, place)),
        "task": event.task.id,
        "prompt": environment.prompt(event.task.public),
        "answer": environment.gold_answer(event.task),
        "outcome": f"solved in turn {dialogue.solved_at}" if dialogue.solved else dialogue.stop_reason.value,
        "outcome_sign": {True: "1", False: "0", None: "-"}[dialogue.solved],
        "reward": dialogue.reward,
        "turns": dialogue.turns,
    }
