"""kind: rescore. The stored dialogues of another run read again by any detectors, without its policy."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from rl2f_core.components import component
from rl2f_core.config import BaseRun, ModelConfig, write_atomically
from rl2f_core.errors import ConfigError
from rl2f_core.events import Event, LeakEvent, LeakScanEvent, LogEvent
from rl2f_core.fields import BASIC, KNOWN_RUN, BaseConfig
from rl2f_core.leaks.repricing import Change
from rl2f_core.leaks.rescore import Rescore, Scored
from rl2f_core.registry import register
from rl2f_core.run import Journal, Progress, RunDir, Stop

CHANGES = "changes.jsonl"
"""Every turn whose reward or advantage changes, one JSON object a line."""
SUMMARY = "rescore.json"


class RescoreRun(BaseConfig):
    """Leak detectors over the stored dialogues of a run."""

    kind: Literal["rescore"] = "rescore"
    """Kind of run."""
    name: str = Field("rescore", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$", json_schema_extra=BASIC)
    """For people."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Detectors leave nothing to chance; kept so that every run has one."""
    run: str = Field(min_length=1, json_schema_extra={**BASIC, **KNOWN_RUN})
    """Folder of the run to read; a bare name is the folder beside this run's own."""
    detectors: tuple[component("leak"), ...] = Field(  # type: ignore[valid-type, assignment]
        ("exact", "equivalent"), min_length=1, json_schema_extra=BASIC
    )
    """Tiers, cheapest first."""
    penalty: float | None = Field(None, ge=0, json_schema_extra=BASIC)
    """Leak penalty to reckon rewards and advantages with; None is the run's own."""
    model: ModelConfig | None = None
    """Model of tiers that ask the student's base; None is the base model of the run that is read."""
    workers: int | None = Field(None, ge=1, le=256)
    """Processes for detectors without a model; None is one a core."""


@register("kind")
class RescoreKind:
    """Detectors asked again."""

    class Config(BaseConfig):
        """The name of the kind."""

        type: Literal["rescore"] = "rescore"

    config_type = RescoreRun

    def execute(self, config: RescoreRun, run_dir: RunDir, journal: Journal, stop: Stop, progress: Progress) -> bool:
        """Read, and keep findings as events; False where `stop` ended it early, and then nothing was kept."""
        target, name = find_target(config.run, run_dir)
        held = target.config()
        if not isinstance(held, BaseRun):
            raise ConfigError("This run has no dialogues.", value=str(target.path), fix="Name a run that played some.")
        work = Rescore(target.events_path, held, config.detectors, config.penalty, _models(config, held),
                       config.workers)  # fmt: skip

        def advanced(done: int, total: int) -> None:
            note = f"{work.tally.hints:,} hints, {work.tally.flagged:,} flagged"
            progress.update("rescoring, %", round(100 * done / max(total, 1)), 100, note)

        began = time.perf_counter()
        fresh = run_dir.path / f".{CHANGES}.tmp"
        with open(fresh, "w", encoding="utf-8") as file:
            for items, changes in work.run(stop, advanced):
                journal.emit(_events(name, items))
                file.writelines(json.dumps(change_json(change)) + "\n" for change in changes)
        if work.stopped:
            fresh.unlink()
            return False
        fresh.replace(run_dir.path / CHANGES)
        seconds = time.perf_counter() - began
        own = held.reward.leak_penalty
        penalty = own if config.penalty is None else config.penalty
        tally = work.tally.as_json()
        detectors = [part.model_dump(mode="json") for part in work.detectors]
        summary = {
            "run": str(target.path), "name": held.name, "detectors": detectors, "penalty": penalty,
            "run_penalty": own, **tally, "bad_lines": work.bad, "seconds": round(seconds, 3),
        }  # fmt: skip
        write_atomically(run_dir.path / SUMMARY, json.dumps(summary, indent=2))
        scan = LeakScanEvent(
            id="leak_scan", run=name, detectors=tuple(detectors), hints=tally["hints"],
            flagged=tally["flagged"], errors=tally["errors"],
        )  # fmt: skip
        level: Any = "warning" if tally["errors"] else "info"
        journal.emit([scan, LogEvent(id="rescore", level=level, text=sentence(summary))])
        journal.commit({"done": True})
        return True


def find_target(run: str, run_dir: RunDir) -> tuple[RunDir, str]:
    """The run to read, and how events name it: by its folder's name where that lies beside the rescoring run's own.

    Raises `RunError` where there is none.
    """
    target = run_dir.named(run)
    whole = target.path.resolve()
    return target, whole.name if whole.parent == run_dir.path.resolve().parent else str(whole)


def _models(config: RescoreRun, held: BaseRun) -> Any:
    """Models that are loaded when a detector first asks for one."""
    from rl2f_core.backends.pool import Models

    return Models(config.model or held.model, held.backend)


def _events(run: str, items: Sequence[Scored]) -> list[Event]:
    """One event for each hint of which there is anything to say."""
    return [
        LeakEvent(id=f"leak:{item.event}:{turn}", run=run, dialogue=item.event, turn=turn, report=report)
        for item in items
        for turn, report in item.reports.items()
        if report.leaked or report.nats is not None or report.error is not None or report.evidence
    ]


def change_json(change: Change) -> dict[str, Any]:
    """A change as JSON."""
    return {**asdict(change), "reward_sign": change.reward_sign, "advantage_sign": change.advantage_sign}


def sentence(summary: dict[str, Any]) -> str:
    """What came of it, in words."""
    names = ", ".join(d["type"] for d in summary["detectors"])
    rewards, advantages = (sum(summary[f"{what}_signs"].values()) for what in ("reward", "advantage"))
    text = (
        f"{names}: {summary['flagged']:,} of {summary['hints']:,} hints leak; the run's own detectors flagged "
        f"{summary['was_flagged']:,} of {summary['was_checked']:,}. With a penalty of {summary['penalty']:g} instead "
        f"of {summary['run_penalty']:g}, the reward changes its sign in {rewards:,} turns and the advantage in "
        f"{advantages:,}."
    )
    if summary["errors"]:
        text += f" {summary['errors']:,} hints could not be judged by every tier."
    return text
