"""Run kind `rescore`: apply leak detectors to the stored dialogues of another run, without its policy."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from pydantic import Field

from rl2f_core.common.file_io import write_atomically
from rl2f_core.config.components import by_name
from rl2f_core.config.fields import BASIC_FIELD, RUN_REF, BaseConfig
from rl2f_core.config.leaks import Cascade
from rl2f_core.config.model import ModelConfig
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.rescoring.rescore import Rescore, Scored
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run.events import Event, LeakEvent, LeakRescoreEvent, LogEvent
from rl2f_core.run.kinds.base import Kind
from rl2f_core.types import JsonObject

CHANGES = "changes.jsonl"
"""Turns with a changed reward or advantage, one JSON object per line."""
SUMMARY = "rescore.json"


class RescoreRun(BaseConfig):
    """Leak detectors over the stored dialogues of a run."""

    kind: Literal["rescore"] = "rescore"
    """Run kind."""
    name: str = Field("rescore", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$", json_schema_extra=BASIC_FIELD)
    """Display name."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Unused by detectors; every run has a seed."""
    run: str = Field(min_length=1, json_schema_extra={**BASIC_FIELD, **RUN_REF})
    """Run directory to rescore; a bare name is a sibling of this run's directory."""
    detectors: Cascade = Field(by_name(("mentions",)), min_length=1, json_schema_extra=BASIC_FIELD)
    """Detectors, cheapest first."""
    penalty: float | None = Field(None, ge=0, json_schema_extra=BASIC_FIELD)
    """Leak penalty used to recompute rewards (default: the run's)."""
    model: ModelConfig | None = None
    """Model of detectors that need one; None for the base model of the source run."""
    workers: int | None = Field(None, ge=1, le=256)
    """Processes for detectors without a model; by default one per core."""


@register("run_kind")
class RescoreKind(Kind[RescoreRun]):
    """Rescoring of a run."""

    config_class = RescoreRun

    def execute(self, config: RescoreRun, context: RunContext) -> bool:
        """Emit the new leak reports as events; False if `context.stop` ended it early."""
        from rl2f_core.models.backends.model_pool import ModelPool

        run_dir, journal = context.run_dir, context.journal
        source = run_dir.resolve_run(config.run)
        source_config = source.config()
        if not isinstance(source_config, BaseRun):
            raise ConfigError("This run has no dialogues.", value=str(source.path), fix="Pass a run with dialogues.")
        path = source.path.resolve()
        name = path.name if path.parent == run_dir.path.resolve().parent else str(path)
        models = ModelPool(config.model or source_config.model, source_config.backend)
        rescore = Rescore(source.events_path, source_config, config.detectors, config.penalty, models, config.workers)

        def on_progress(done: int, total: int) -> None:
            note = f"{rescore.tally.hints:,} hints, {rescore.tally.flagged:,} flagged"
            context.progress.update("rescoring, %", round(100 * done / max(total, 1)), 100, note)

        start = time.perf_counter()
        temporary = run_dir.path / f".{CHANGES}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            for items, changes in rescore.run(context.stop, on_progress):
                journal.emit(_events(name, items))
                for change in changes:
                    signs = {"reward_sign": change.reward_sign, "advantage_sign": change.advantage_sign}
                    file.write(json.dumps({**asdict(change), **signs}) + "\n")
        if rescore.stopped:
            temporary.unlink()
            return False
        temporary.replace(run_dir.path / CHANGES)
        tally, run_penalty = rescore.tally.as_json(), source_config.reward.leak_penalty
        detectors = [detector.model_dump(mode="json") for detector in rescore.detectors]
        summary = {
            "run": str(source.path),
            "name": source_config.name,
            "detectors": detectors,
            "penalty": run_penalty if config.penalty is None else config.penalty,
            "run_penalty": run_penalty,
            **tally,
            "bad_lines": rescore.bad,
            "seconds": round(time.perf_counter() - start, 3),
        }
        write_atomically(run_dir.path / SUMMARY, json.dumps(summary, indent=2))
        counts = {key: tally[key] for key in ("hints", "flagged", "errors")}
        level: Literal["warning", "info"] = "warning" if tally["errors"] else "info"
        journal.emit(
            [
                LeakRescoreEvent(id="leak_rescore", run=name, detectors=tuple(detectors), **counts),
                LogEvent(id="rescore", level=level, text=sentence(summary)),
            ]
        )
        journal.commit({"done": True})
        return True


def _events(run: str, items: Sequence[Scored]) -> list[Event]:
    """Return one event per hint with a leak, score or error, and per checked hint on a task without a gold answer."""
    return [
        LeakEvent(id=f"leak:{item.event}:{turn}", run=run, dialogue=item.event, turn=turn, report=report)
        for item in items
        for turn, report in item.reports.items()
        if not item.has_answer
        or report.leaked
        or report.evidence
        or {report.logprob_gain, report.leak_probability, report.error} != {None}
    ]


def sentence(summary: JsonObject) -> str:
    """Summarize the result in a sentence."""
    names = ", ".join(d["type"] for d in summary["detectors"])
    rewards, advantages = (sum(summary[f"{what}_signs"].values()) for what in ("reward", "advantage"))
    checked = summary["hints"] - summary["errors"]
    text = (
        f"{names}: {summary['flagged']:,} of {checked:,} hints leak; the run's own detectors flagged "
        f"{summary['was_flagged']:,} of {summary['was_checked']:,}. With a penalty of {summary['penalty']:g} instead "
        f"of {summary['run_penalty']:g}, the reward changes its sign in {rewards:,} turns and the advantage in "
        f"{advantages:,}."
    )
    if summary.get("unchecked"):
        text += (
            f" {summary['unchecked']:,} hints cannot be checked by these detectors, because their tasks have no "
            "answer; `llm_judge` in mode verdict can."
        )
    if summary["errors"]:
        text += f" {summary['errors']:,} further hints could not be checked by every detector."
    return text
