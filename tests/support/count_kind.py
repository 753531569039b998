"""A plugin for tests: kinds of runs that count, with real events and commits, in a real worker without a model."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Literal

from rl2f_core.config.run import BaseRun
from rl2f_core.errors import RunError
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run.events import DialogueEvent, LogEvent, MetricEvent
from rl2f_core.run.kinds.base import Kind
from rl2f_core.types import Dialogue, StopReason, Task, Turn, Verdict


class CountRun(BaseRun):
    """Counts to a number."""

    kind: Literal["count"] = "count"
    count: int = 3
    seconds: float = 0.0
    """How long a step takes."""
    fail_at: int | None = None
    """The step that raises the project's error."""
    surprise_at: int | None = None
    """The step that raises an error that nobody expected."""
    child: bool = False
    """Start a process that sleeps."""


@register("run_kind")
class Count(Kind[CountRun]):
    """One dialogue and one commit a step."""

    config_class = CountRun

    def execute(self, config: CountRun, context: RunContext) -> bool:
        journal, progress = context.journal, context.progress
        first = int((journal.resume_state or {}).get("step", 0))
        progress.message(
            f"devices {os.environ.get('CUDA_VISIBLE_DEVICES')!r} threads {os.environ.get('OMP_NUM_THREADS')}"
        )
        progress.message(f"workspace {os.environ['RL2F_WORKSPACE']} session {os.getsid(0) == os.getpid()}")
        progress.message(f"input {sys.stdin.read()!r}")
        if config.child:
            child = subprocess.Popen(["sleep", "300"])
            (context.run_dir.path / "child").write_text(str(child.pid))
        for step in range(first, config.count):
            if context.stop():
                journal.commit({"step": step})
                return False
            if step == config.fail_at:
                raise RunError("The count went wrong.", value=step, fix="Count again.")
            if step == config.surprise_at:
                raise ZeroDivisionError("nobody thought of this")
            time.sleep(config.seconds)
            journal.emit(
                [
                    one_dialogue(step),
                    MetricEvent(id=f"metric:{step}", stage="count", step=step + 1, values={"reward": 1.0}),
                ]
            )
            journal.commit({"step": step + 1})
            progress.update("counting", step + 1, config.count)
        journal.emit([LogEvent(id="end", text="Counted.")])
        journal.commit({"step": config.count, "done": True})
        return True


def one_dialogue(step: int) -> DialogueEvent:
    """A dialogue event of a step."""
    task = Task(id=f"guess_number/train/{step}", environment="guess_number", split="train", level="4",
                public={"n": step}, privileged={"answer": step})  # fmt: skip
    turn = Turn(index=0, attempt=f"It is {step}.", verdict=Verdict(correct=True, score=1.0, parsed=str(step)))
    dialogue = Dialogue(
        id=f"d{step}", task_id=task.id, group=f"g{step}", index=0, turns=(turn,), stop_reason=StopReason.SOLVED
    )
    return DialogueEvent(
        id=f"dialogue:{step}", phase="train", stage="count", step=step + 1, task=task, dialogue=dialogue
    )


class LightRun(CountRun):
    """Counts without a device."""

    kind: Literal["light-count"] = "light-count"  # type: ignore[assignment]


@register("run_kind")
class LightCount(Count):
    """Needs no device slot."""

    config_class = LightRun
    light = True
