"""Experiments from Python: run or queue one, read its dialogues as a data frame, evaluate, plot and export it.

    from app.experiment import Experiment, run_experiment

    experiment = run_experiment("quickstart", {"stages.1.steps": 2})
    experiment.dialogues().groupby("phase").solved.mean()
    experiment.evaluate("rl2f@2").evaluation()
    experiment.plot("reward").show()

An experiment is a run directory; no server or database is needed, except for the queue. The names in `__all__` and
their parameters are stable.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

import pandas as pd
from plotly import graph_objects as go

from app.commands.options import migrated
from app.commands.train import folder_for
from app.common.terminal_progress import TerminalProgress
from app.plots.run_charts import overview, series
from app.plots.run_folder import plot_options, step_metrics
from app.static_pages.folder import write_pages
from jobs.export.datasets import exporter
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource
from jobs.export.model.exporter import export_model
from jobs.queue.queue import Queue
from rl2f_core.config.evaluation import EvaluationConfig
from rl2f_core.config.loading import load_config, parse_config, validate_config
from rl2f_core.config.overrides import set_nested
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.evaluation.chart_data import accuracy_chart, effect_chart
from rl2f_core.evaluation.plotting import figure, resolve_colors
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.evaluation.report_file import read_report
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, read_dialogues
from rl2f_core.run.execute import execute, removed_if_not_started
from rl2f_core.run.kinds.eval import eval_config
from rl2f_core.run.signals import InterruptHandler
from rl2f_core.types import DEMONSTRATION, JsonObject

__all__ = ["Experiment", "queue_experiment", "run_experiment"]
Source = str | Path | Mapping[str, object] | BaseRun
"""A configuration: name of a preset, YAML file (or FILE:CELL of a matrix), mapping, or configuration object."""
Overrides = Mapping[str, object]
"""Dotted path → value, e.g. `{"stages.0.steps": 5}`."""


class Experiment:
    """A finished or running experiment.

    Args:
        folder: Its run directory. Raises `RunError` if there is none.
    """

    def __init__(self, folder: str | Path) -> None:
        self._run = RunDir.open(folder)

    def __repr__(self) -> str:
        return f"Experiment({str(self.folder)!r})"

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self._run.path

    @property
    def config(self) -> BaseRun:
        """The configuration with all defaults."""
        return self._run.config()

    @property
    def status(self) -> str:
        """queued, running, succeeded, stopped, failed or interrupted, as the run wrote it last."""
        return self._run.last_status() or "queued"

    @property
    def checkpoints(self) -> list[str]:
        """Names of the saved checkpoints in order, e.g. `rl2f@24`."""
        return self._run.checkpoint_names()

    # -- data ------------------------------------------------------------------------------------------------------
    def metrics(self) -> pd.DataFrame:
        """Return one row per training step: stage, step, time (seconds since 1970), and every metric."""
        rows = [{"stage": m.stage, "step": m.step, "time": m.time, **m.values} for m in step_metrics(self._run)]
        return pd.DataFrame(rows)

    def dialogues(self, *, demonstrations: bool = False) -> pd.DataFrame:
        """Return one row per dialogue; `id` is unique. Rewards are sums over turns, advantages means.

        Args:
            demonstrations: Include demonstrations, which no model sampled.
        """
        return pd.DataFrame([_dialogue_row(event) for event in self._dialogues(demonstrations)])

    def turns(self, *, demonstrations: bool = False) -> pd.DataFrame:
        """Return one row per turn; `dialogue` is the id in `dialogues()`, and `turn` counts from 1."""
        return pd.DataFrame([row for event in self._dialogues(demonstrations) for row in _turn_rows(event)])

    def _dialogues(self, demonstrations: bool) -> Iterator[DialogueEvent]:
        path = self._run.events_path
        events = read_dialogues(path) if path.is_file() else iter(())
        return (event for event in events if demonstrations or event.dialogue.policy != DEMONSTRATION)

    # -- evaluation ------------------------------------------------------------------------------------------------
    def evaluate(
        self,
        checkpoint: str | None = None,
        overrides: Overrides | None = None,
        *,
        folder: str | Path | None = None,
        progress: bool = True,
    ) -> Experiment:
        """Evaluate a checkpoint and the base model, and return the evaluation as an experiment.

        The conditions are `hints` and the default controls, unless the overrides change them.

        Args:
            checkpoint: E.g. `rl2f@24`; by default the last checkpoint of every stage.
            overrides: Changes of the settings, e.g. `{"evaluation.num_tasks": 200}`.
            folder: New folder of the evaluation; by default one below `runs/`.
            progress: Print the progress.
        """
        conditions = {"evaluation.conditions": EvaluationConfig().conditions}
        config = _resolve(eval_config([(self.folder, checkpoint)]), {**conditions, **(overrides or {})})
        return _execute(config, folder, progress)

    def evaluation(self) -> pd.DataFrame:
        """Return the evaluation's values with 95 % intervals: one row per checkpoint, condition and metric.

        The metric `effect` is the solve rate within all turns minus that under contentless hints; of a condition that
        replaces reflections, minus that under `hints`. Raises `DataError` if the experiment has no evaluation.
        """
        report = self._report()
        values = [(r.checkpoint, r.condition, name, i) for r in report.rows for name, i in r.metrics.values.items()]
        values += [(e.checkpoint, e.condition, "effect", e.difference) for e in report.effects]
        columns = ["checkpoint", "condition", "metric", "value", "low", "high", "n"]
        return pd.DataFrame([(*place, i.value, i.low, i.high, i.n) for *place, i in values], columns=columns)

    def report(self) -> str:
        """Return the evaluation's tables and findings as Markdown. Raises `DataError` if there is none."""
        return self._report().to_markdown()

    def _report(self) -> EvaluationReport:
        if (report := read_report(self.folder)) is None:
            raise DataError("The experiment has no evaluation.", value=str(self.folder), fix="Call evaluate().")
        return report

    # -- figures ---------------------------------------------------------------------------------------------------
    def plots(self) -> dict[str, go.Figure]:
        """Return the curves of the run page and the figures of the evaluation, if any, by name."""
        return {name: _figure(*chart) for name, chart in self._charts().items()}

    def plot(self, name: str) -> go.Figure:
        """Return a figure of `plots()`, or the curve of any metric in `metrics()`, by name."""
        charts = self._charts()
        if name not in charts:
            curves = series(step_metrics(self._run), [name], plot_options(self.config))
            charts |= {curve.key: (curve.figure, curve.title) for curve in curves}
        if name not in charts:
            known = list(dict.fromkeys([*charts, *self.metrics().columns[3:]]))
            raise ConfigError("There is no such figure or metric.", value=name, known=known)
        return _figure(*charts[name])

    def _charts(self) -> dict[str, tuple[JsonObject, str]]:
        """Return figure data and title by name."""
        curves = overview(step_metrics(self._run), plot_options(self.config))
        charts = {curve.key.rstrip("/"): (curve.figure, curve.title) for curve in curves}
        if report := read_report(self.folder):
            for chart in (accuracy_chart(report), effect_chart(report)):
                for plot in chart.plots:
                    charts[f"{chart.name} {plot.title}"] = figure(plot), f"{chart.title}: {plot.title}"
        return charts

    # -- exports ---------------------------------------------------------------------------------------------------
    def export(self, folder: str | Path, **settings: object) -> JsonObject:
        """Write datasets of the dialogues in TRL's types to a new folder; return the manifest.

        Args:
            folder: The new folder.
            settings: Fields of `jobs.export.datasets.settings.ExportSettings`, e.g. `formats=["messages"]`.
        """
        source, target = FolderSource(self.folder), Path(folder)
        manifest = exporter.export([source], validate_config(ExportSettings, settings), target, name=target.name)
        assert manifest is not None
        return manifest

    def export_model(self, checkpoint: str, folder: str | Path, format: str = "safetensors") -> JsonObject:
        """Write a checkpoint as a model with a model card; see `jobs.export.model.exporter.export_model`."""
        return export_model(self.folder, checkpoint, folder, format=format)

    def write_pages(self, folder: str | Path, dialogues: int = 40) -> None:
        """Write static pages with curves, evaluation and at most `dialogues` dialogues to a new folder."""
        write_pages(self.folder, folder, limit=dialogues)


def run_experiment(
    config: Source, overrides: Overrides | None = None, *, folder: str | Path | None = None, progress: bool = True
) -> Experiment:
    """Execute an experiment in this process and return it.

    An interrupt (Ctrl-C, or *Interrupt the kernel*) saves and stops after the step; `rl2f train --resume` continues it.

    Args:
        config: Preset, YAML file, mapping or configuration, of any run kind.
        overrides: Changes of the configuration, e.g. `{"stages.0.steps": 5}`.
        folder: New folder of the run; by default one below `runs/`.
        progress: Print the progress.

    Raises `ConfigError` for an invalid configuration, `RunError` if the folder has a run, and any error of the run.
    """
    return _execute(_resolve(config, overrides), folder, progress)


def queue_experiment(
    config: Source, overrides: Overrides | None = None, *, workspace: str | Path | None = None
) -> Experiment:
    """Queue an experiment in a workspace and return it; `rl2f serve` on the same workspace executes it.

    Args:
        config: Preset, YAML file, mapping or configuration, of any run kind.
        overrides: Changes of the configuration.
        workspace: The workspace's folder; by default `RL2F_WORKSPACE`, or `./workspace`.
    """
    resolved = _resolve(config, overrides)
    with migrated(workspace) as (opened, db):
        run = Queue(db, opened).add(resolved, origin="cli")
    return Experiment(opened.folder(run.folder))


# -- internals -----------------------------------------------------------------------------------------------------
def _resolve(config: Source, overrides: Overrides | None) -> BaseRun:
    """Return a configuration with the overrides."""
    if isinstance(config, str | Path):
        config = load_config(config)
    data = config.model_dump(mode="json") if isinstance(config, BaseRun) else dict(config)
    for path, value in (overrides or {}).items():
        data = set_nested(data, path, value)
    return parse_config(data)


def _execute(config: BaseRun, folder: str | Path | None, progress: bool) -> Experiment:
    run_dir = RunDir.create(folder or folder_for(config.name), config)
    stop = InterruptHandler()
    with removed_if_not_started(run_dir), ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # only this thread receives signals
            stack.enter_context(stop)
        shown = stack.enter_context(TerminalProgress()) if progress else None
        execute(config, run_dir, JsonlSink(run_dir.events_path), stop, shown)
    return Experiment(run_dir.path)


def _dialogue_row(event: DialogueEvent) -> JsonObject:
    dialogue = event.dialogue
    advantages = [turn.advantage for turn in dialogue.turns if turn.advantage is not None]
    return {
        **{name: getattr(event, name) for name in ("id", "phase", "stage", "step", "checkpoint")},
        "condition": event.setting,
        "policy": dialogue.policy,
        "task": event.task.id,
        "level": event.task.level,
        "group": dialogue.group,
        "turns": len(dialogue.turns),
        "solved": dialogue.solved,
        "solved_at": dialogue.solved_at,
        "reward": dialogue.reward,
        "advantage": fmean(advantages) if advantages else None,
        "leaks": sum(turn.hint is not None and turn.hint.read_leak for turn in dialogue.turns),
        "stop_reason": dialogue.stop_reason.value,
    }


def _turn_rows(event: DialogueEvent) -> Sequence[JsonObject]:
    return [
        {
            "dialogue": event.id,
            "turn": turn.index + 1,
            "attempt": turn.attempt,
            **{name: getattr(turn.verdict, name) for name in ("parsed", "correct", "score")},
            "reward": turn.known_reward,
            "advantage": turn.advantage,
            "hint": turn.hint.text if turn.hint else None,
            "teacher": turn.hint.teacher if turn.hint else None,
            "leaked": turn.hint.read_leak if turn.hint and turn.hint.leak and turn.hint.leak.is_complete else None,
            "tokens": len(turn.token_ids),
        }
        for turn in event.dialogue.turns
    ]


def _figure(plot: JsonObject, title: str) -> go.Figure:
    """Return a Plotly figure with real colors, a title and space for it."""
    made = go.Figure(resolve_colors(plot))
    return made.update_layout(title=title, margin_t=48, height=320, paper_bgcolor="white")
