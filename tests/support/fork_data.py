"""A run whose dialogues can be forked without a model: a scripted student on numbers from 1 to 4, two attempts of three
turns wrong, hints between them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutRequest
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, StatusEvent, read_events
from rl2f_core.types import Hint, LeakReport

CONFIG: dict[str, Any] = {
    "name": "numbers",
    "backend": {"type": "fake", "replies": ["<answer>1</answer>", "<answer>2</answer>"]},
    "environment": {"type": "guess_number", "size": 4, "low": 1},
    "rollout": {"max_turns": 3, "max_new_tokens": 64, "max_seq_len": 4096, "max_concurrent": 16},
    "stages": [{"name": "rl", "method": "rl2f", "steps": 1}],
}
NUMBERS = (3, 4, 3, 4)
"""What is to be guessed in each dialogue; the first attempt is always 2."""


def obedient(prompt: str, rng: random.Random) -> str:
    """A student that begins with 2, goes up where it is told so, and guesses where it is told nothing."""
    said = prompt.split("<|im_start|>user\n")[-1].split("<|im_end|>")[0]
    tried = prompt.count("<answer>") - 1  # the system message shows how to answer
    guess = 2 if tried < 1 else 2 + tried if "low" in said else 1 if "high" in said else rng.choice((1, 2, 3, 4))
    return f"<answer>{guess}</answer>"


def config(**changes: Any) -> BaseRun:
    """The run's configuration."""
    return parse_config({**CONFIG, **changes})


def make_run(folder: Path, script: Any = obedient, **changes: Any) -> RunDir:
    """The run's folder, with four dialogues of an evaluation under hints, played by the base."""
    made = config(**changes)
    run_dir = RunDir.create(folder, made)
    engine = build_engine(made, FakeBackend(script=script) if script else FakeBackend(made.backend))
    requests = []
    for index, number in enumerate(NUMBERS):
        task = engine.environment.task("test", 0)
        task = task.model_copy(update={"id": f"number/{index}", "privileged": {"number": str(number)}})
        requests.append(RolloutRequest(task, f"number/{index}/0", f"number/{index}", 0, 7 + index))
    events: list[Any] = [StatusEvent(id="status:1", time=1.0, status="running")]
    for request, rollout in zip(requests, engine.run(requests), strict=True):
        events.append(
            DialogueEvent.of("evaluation", "evaluation", 0, request.task, rollout.dialogue, checkpoint="base",
                             condition="hints")
        )  # fmt: skip
    JsonlSink(run_dir.events_path).emit([*events, StatusEvent(id="status:2", time=2.0, status="succeeded")])
    return run_dir


def event_of(index: int) -> str:
    """The event id of a dialogue."""
    return f"dialogue:evaluation:base:hints:number/{index}/0"


def served(queue: Any, run_dir: RunDir) -> Iterator[int]:
    """Yield the id of the run in the workspace of a shared server; the run and its forks are deleted afterwards."""
    from jobs.db.queries import outcomes, runs
    from jobs.ingest.ingester import reindex

    folder = run_dir.path.name
    reindex(queue.db, queue.workspace, [folder])
    run = runs.find(queue.db, folder=folder)
    assert run is not None and run.id is not None
    yield run.id
    for child in [*outcomes.child_runs(queue.db, run.id), run]:
        queue.delete(child.id)


LEAKED = "event:leaked"
"""Event id of the dialogue of `add_leak`."""


def add_leak(run_dir: RunDir, text: str = "Too low, it is 3. Really 3.", span: tuple[int, int] = (4, 16)) -> None:
    """Add a dialogue whose first hint states the number, and which `exact` flagged in its first mention."""
    event = next(e for e in read_events(run_dir.events_path) if isinstance(e, DialogueEvent) and e.id == event_of(0))
    report = LeakReport(leaked=True, detector="exact", span=span, evidence=text[slice(*span)], action="flag")
    first, *later = event.dialogue.turns
    turns = (first.model_copy(update={"hint": Hint(text=text, teacher="scripted", leak=report)}), *later)
    dialogue = event.dialogue.model_copy(update={"id": "leaked", "turns": turns})
    JsonlSink(run_dir.events_path).emit([event.model_copy(update={"id": LEAKED, "dialogue": dialogue})])
