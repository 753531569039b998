"""Events as a run writes them, and run folders made of them, for tests of the store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.ingest.ingester import ingest
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import BaseRun
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import (
    CheckpointEvent,
    DialogueEvent,
    Event,
    JsonlSink,
    LogEvent,
    MetricEvent,
    StatusEvent,
    encode,
)
from rl2f_core.types import Dialogue, Hint, LeakReport, RewardTerm, StopReason, Task, Turn, Verdict

CONFIG = {
    "name": "small",
    "model": {"name": "tiny"},
    "environment": "guess_number",
    "stages": [
        {"name": "warmup", "method": "sft", "steps": 2},
        {"name": "rl2f", "method": "rl2f", "steps": 3},
    ],
}


def config(**changes: Any) -> BaseRun:
    """A small training run's configuration."""
    return parse_config({**CONFIG, **changes})


def turn(k: int, right: bool = False, **changes: Any) -> Turn:
    """Attempt k: a wrong one is hinted at, a right one is not."""
    values: dict[str, Any] = {
        "index": k,
        "attempt": f"<answer>{7 + k}</answer>",
        "token_ids": (5, 6, 7 + k),
        "logprobs": (-0.5, -0.25, -1.0),
        "verdict": Verdict(correct=right, score=float(right), parsed=str(7 + k), well_formed=True, parts={"1": "x"}),
        "rewards": (RewardTerm(name="correct", score=float(right)), RewardTerm(name="format", score=-1.0, weight=0.1)),
        "hint": None if right else Hint(text="Too low.", teacher="scripted", leak=LeakReport(leaked=False)),
        "advantage": 0.5,
    }
    return Turn(**{**values, **changes})


def dialogue(
    step: int = 1, group: int = 0, index: int = 0, turns: Iterable[Turn] | None = None, **changes: Any
) -> DialogueEvent:
    """A dialogue of a training step, solved at its last turn unless `turns` says otherwise."""
    stage = changes.pop("stage", "rl2f")
    played = tuple(turns) if turns is not None else (turn(0), turn(1, right=True))
    task = changes.pop("task", None) or Task(
        id=f"guess_number/train/{step}-{group}", environment="guess_number", split="train", level="1 to 16",
        public={"text": f"Guess the number of the {['red', 'green', 'blue'][group % 3]} box."},
        privileged={"answer": 8},
    )  # fmt: skip
    solved = bool(played) and played[-1].verdict.correct
    key = changes.pop("key", f"{stage}/{step}/{group}/{index}")
    of_dialogue = {name: changes.pop(name) for name in ("error", "policy", "seed", "stop_reason") if name in changes}
    said = Dialogue(
        id=key, task_id=task.id, group=f"{stage}/{step}/{group}", index=index, turns=played,
        **{"stop_reason": StopReason.SOLVED if solved else StopReason.EXHAUSTED, "policy": f"{stage}@{step}",
           **of_dialogue},
    )  # fmt: skip
    values = {"id": f"dialogue:train:{key}", "time": 1000.0 + step, "phase": "train", "stage": stage, "step": step}
    return DialogueEvent(**{**values, **changes}, task=task, dialogue=said)


def metric(step: int, stage: str = "rl2f", **values: float) -> MetricEvent:
    """Numbers of a step that took 10 seconds."""
    shown = {"reward": step / 10, "tokens/sampled": 100.0, "time/rollout": 6.0, "time/update": 4.0, **values}
    return MetricEvent(id=f"metric:{stage}:{step}", time=1000.0 + 10 * step, stage=stage, step=step, values=shown)


def status(value: Any, time: float = 990.0, detail: str = "") -> StatusEvent:
    """A change of state."""
    return StatusEvent(id=f"status:{time}:{value}", time=time, status=value, detail=detail)


def checkpoint(step: int, stage: str = "rl2f") -> CheckpointEvent:
    """Saved weights."""
    name = f"{stage}@{step}"
    return CheckpointEvent(
        id=f"checkpoint:{name}", time=1000.0 + 10 * step, name=name, stage=stage, step=step,
        path=f"checkpoints/{name}", sha256="ab" * 32,
    )  # fmt: skip


def small_run() -> list[Event]:
    """Two warm-up steps, then three steps of two groups of two; 12 dialogues of 2 turns."""
    events: list[Event] = [status("running")]
    for step in (1, 2):
        events += [metric(step, "warmup"), *([checkpoint(step, "warmup")] if step == 2 else [])]
    for step in (1, 2, 3):
        events += [dialogue(step, group, index) for group in (0, 1) for index in (0, 1)]
        events += [metric(step)]
    return [
        *events,
        checkpoint(3),
        LogEvent(id="note", time=1040.0, text="All went well."),
        status("succeeded", 1050.0),
    ]


def folder(workspace: Workspace, name: str, events: Iterable[Event] = (), **changes: Any) -> Path:
    """A run's folder with its configuration and its events."""
    made = workspace.folder(name)
    RunDir.create(made, config(**changes))
    JsonlSink(made / "events.jsonl").emit(list(events))
    return made


def append(path: Path, *lines: bytes | Event) -> None:
    """Write on in an event file, whole events or raw bytes."""
    with open(path, "ab") as file:
        for line in lines:
            file.write(line if isinstance(line, bytes) else encode(line))


def stored_run(db: Database, workspace: Workspace, events: Iterable[Event] = (), name: str = "1-small") -> Run:
    """A run with row and folder, all its events read."""
    made = folder(workspace, name, events)
    row = runs.of_config(config(), (made / "config.yaml").read_text(), name, status="succeeded")
    run = runs.add(db, row)
    read_all(db, workspace, run)
    assert run.id is not None
    return runs.get(db, run.id)


def read_all(db: Database, workspace: Workspace, run: Run, limit_bytes: int = 4_000_000) -> int:
    """Ingest to the end of the file; returns the number of lines."""
    lines = 0
    while read := ingest(db, workspace, run, limit_bytes):
        lines += read
    return lines
