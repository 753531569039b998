"""Run folders with known hints, leaking and clean, for tests of exports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_environment
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, StatusEvent
from rl2f_core.types import Dialogue, Hint, LeakReport, RewardTerm, StopReason, Task, Turn

CONFIG: dict[str, Any] = {
    "name": "leaky",
    "model": {"name": "tiny-random", "device": "cpu", "dtype": "float32"},
    "environment": {"type": "secret_code", "length": 2, "letters": 3},
    "rollout": {"max_turns": 3, "max_new_tokens": 8, "max_seq_len": 512},
    "stages": [{"name": "rl", "method": "rl2f", "steps": 2, "tasks_per_step": 2, "group_size": 2}],
}
ENVIRONMENT = build_environment(parse_config(CONFIG).environment)


def answer(task: Task) -> str:
    return ENVIRONMENT.gold_answer(task)


def wrong(task: Task, number: int = 0) -> str:
    """The `number`th wrong attempt on a task."""
    letters = task.public["letters"]
    codes = [f"{a} {b}" for a in letters for b in letters if f"{a} {b}" != answer(task)]
    return f"<answer>{codes[number]}</answer>"


def turn(task: Task, index: int, attempt: str, hint: str | None, leaked: bool | None = False, **more: Any) -> Turn:
    """An attempt and its hint; `leaked` None means that no detector read the hint."""
    verdict = ENVIRONMENT.verify(task, attempt)
    report = None if leaked is None else LeakReport(leaked=leaked, detector="exact" if leaked else None)
    said = None if hint is None else Hint(text=hint, teacher="scripted", leak=report, **more)
    return Turn(
        index=index,
        attempt=attempt,
        token_ids=(5, 6, 2),
        logprobs=(-0.5, -0.25, -0.125),
        verdict=verdict,
        rewards=(RewardTerm(name="correct", score=float(verdict.correct)),),
        hint=said,
    )


def event(
    task: Task,
    turns: Sequence[Turn],
    *,
    name: str,
    index: int = 0,
    step: int = 1,
    phase: str = "train",
    stop: StopReason | None = None,
    **more: Any,
) -> DialogueEvent:
    solved = bool(turns) and turns[-1].verdict.correct
    dialogue = Dialogue(
        id=name,
        task_id=task.id,
        group=f"g/{task.id}",
        index=index,
        turns=tuple(turns),
        stop_reason=stop or (StopReason.SOLVED if solved else StopReason.EXHAUSTED),
        policy="rl@1",
    )
    return DialogueEvent.of(phase, "rl", step, task, dialogue, **more)  # type: ignore[arg-type]


def leaky_events(tasks: int = 4, siblings: int = 2) -> list[DialogueEvent]:
    """On each task: dialogues that hint cleanly and then leak, and others whose hints are all clean; all solved."""
    events = []
    for number in range(tasks):
        task = ENVIRONMENT.task("train", number)
        first, second, right = wrong(task, 0), wrong(task, 1), f"<answer>{answer(task)}</answer>"
        for index in range(siblings):
            if index % 2 == 0:
                turns = [
                    turn(task, 0, first, "Look at the first letter."),
                    turn(task, 1, second, f"It is {answer(task)}.", True),
                    turn(task, 2, right, None),
                ]
            else:
                turns = [
                    turn(task, 0, first, "Look at the second letter."),
                    turn(task, 1, wrong(task, 2), "Not yet."),
                    turn(task, 2, right, None),
                ]
            events.append(event(task, turns, name=f"rl/{number}/{index}", index=index, step=1 + number // 2))
    return events


def write_run(folder: Path, events: Sequence[DialogueEvent], **config: Any) -> Path:
    """A finished run's folder with these dialogues."""
    run_dir = RunDir.create(folder, parse_config({**CONFIG, **config}))
    sink = JsonlSink(run_dir.events_path)
    sink.emit([StatusEvent(id="status:1:running", status="running")])
    sink.emit(list(events))
    sink.emit([StatusEvent(id="status:1:succeeded", status="succeeded")])
    run_dir.heartbeat(status="succeeded", detail="")
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
