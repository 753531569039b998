"""Runs with leaking hints to read again: groups whose rewards and advantages are worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from event_data import config, dialogue, turn

from rl2f_core.config.loading import dump_yaml
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, Event, JsonlSink, encode
from rl2f_core.types import Hint, LeakReport, RewardTerm, Task, Turn

GOLD = 8
LEAKS, CLEAN = "The number is 8.", "Too low."
BOX = Task(
    id="guess_number/train/0", environment="guess_number", split="train", level="1 to 16",
    public={"low": 1, "high": 16}, privileged={"number": str(GOLD)},
)  # fmt: skip


def said(k: int, reward: float, words: str | None, was: bool | None = False, **changes: Any) -> Turn:
    """Turn k with one reward term, and a hint that the run's own detectors convicted, cleared, or never read."""
    report = None if was is None else LeakReport(leaked=was, detector="exact" if was else None)
    told = None if words is None else Hint(text=words, teacher="scripted", leak=report)
    rewards = (RewardTerm(name="correct", score=reward),)
    return turn(k, right=reward > 0, **{"rewards": rewards, "hint": told, "advantage": None, **changes})


def pair(step: int = 1, group: int = 0, was: bool | None = False, hint: str = LEAKS, **first: Any) -> list[Event]:
    """Two dialogues of a group: one is told and then right, the other is not and stays wrong.

    With γ = 0.5 and credit by turn the returns are 0.5, 1 and 0, 0, so the advantages 0.25, 0.5 and −0.25, −0.5.
    """
    return [
        dialogue(step, group, 0, [said(0, 0.0, hint, was, **first), said(1, 1.0, None)], task=BOX),
        dialogue(step, group, 1, [said(0, 0.0, CLEAN), said(1, 0.0, None)], task=BOX),
    ]


def run_config(**changes: Any) -> Any:
    """A run of one rl2f stage with γ = 0.5."""
    method = {"type": "rl2f", "gamma": 0.5, "advantage_level": "turn"}
    stage = {"name": "rl2f", "method": method, "steps": 9, "tasks_per_step": 1, "group_size": 2}
    return config(**{"stages": [stage], "environment": {"type": "guess_number", "low": 1, "size": 16}, **changes})


def run_folder(path: Path, events: list[Event], **changes: Any) -> Path:
    """A run's folder with these events."""
    RunDir.create(path, run_config(**changes))
    JsonlSink(path / "events.jsonl").emit(events)
    return path


def bare(path: Path, lines: list[bytes | DialogueEvent], **changes: Any) -> Path:
    """A run's folder of which only configuration and raw event lines are there."""
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(dump_yaml(run_config(**changes)))
    (path / "events.jsonl").write_bytes(b"".join(x if isinstance(x, bytes) else encode(x) for x in lines))
    return path


def found(path: Path) -> list[dict[str, Any]]:
    """The changes that a rescoring wrote."""
    return [json.loads(line) for line in (path / "changes.jsonl").read_text().splitlines()]
