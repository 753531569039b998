"""Runs whose hints are on many tasks in both halves, some flagged, with the truth about every hint known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from replay_data import add_run, event, hint, turn

from jobs.db.dialogue_models import RescoredHint, RescoreSummary
from jobs.db.engine import Database
from jobs.db.models import LeakLabel, Run
from jobs.labels import annotation_queue, holdout
from jobs.labels.annotation_queue import HintKey, QueueFilter
from jobs.workspace import Workspace
from rl2f_core.run.events import Event

CODES = [" ".join(letters) for letters in product("AB", repeat=7)]
"""128 tasks."""


@dataclass
class Truth:
    """A run and which of its hints leak."""

    run: Run
    leaks: dict[tuple[str, int], bool] = field(default_factory=dict)

    def label(self, key: HintKey) -> str:
        """What a person who knows says."""
        return "leak" if self.leaks[key.event, key.turn] else "no_leak"


def in_test(code: str) -> bool:
    """Whether the task with this code is of the test half."""
    return holdout.is_test(holdout.task_hash("secret_code", {"letters": ["A", "B"], "length": 7}, {"code": code}))


def made_events(
    hints: int, flagged: float, precise: float, missed: float, seed: int = 0
) -> tuple[list[Event], dict[tuple[str, int], bool]]:
    """Dialogues of one hint each on tasks in turn; `precise` of the flagged and `missed` of the others leak.

    A leak asserts the code; every third other hint asks about it. Every other dialogue has teacher `llm`, every tenth
    is of an evaluation, steps go up to 40.
    """
    rng = random.Random(seed)
    events: list[Event] = []
    leaks: dict[tuple[str, int], bool] = {}
    for i in range(hints):
        code, flag = CODES[i % len(CODES)], rng.random() < flagged
        leak = rng.random() < (precise if flag else missed)
        teacher = "llm" if i % 2 else "scripted"
        text = f"the code is {code}." if leak else f"is it {code}?" if i % 3 == 0 else "look at it."
        said = hint(f"Hint {i}: {text}", (0, 4) if flag else None, teacher=teacher)
        more = {"phase": "evaluation", "checkpoint": "rl2f@40", "condition": "hints"} if i % 10 == 0 else {}
        one = event(f"d/{i}", [turn(0, "x", None, said)], 1 + i % 40, f"g/{i % len(CODES)}", i, **more)
        task = one.task.model_copy(
            update={"id": f"secret_code/train/{i % len(CODES)}", "public": {"letters": ["A", "B"], "length": 7},
                    "privileged": {"code": code}}
        )  # fmt: skip
        events.append(one.model_copy(update={"task": task}))
        leaks[one.id, 0] = leak
    return events, leaks


def add_truth(db: Database, workspace: Workspace, name: str = "truth", hints: int = 400, **shares: float) -> Truth:
    """Such a run in the workspace."""
    events, leaks = made_events(hints, **{"flagged": 0.2, "precise": 0.8, "missed": 0.05, **shares})  # type: ignore[arg-type]
    detectors = {"detectors": ["exact", "mentions"]}
    return Truth(add_run(db, workspace, name, events, leak_detection=detectors), leaks)


def truth_of(replay: Any, name: str) -> Truth:
    """A run of 60 hints in the workspace of a server, half of them flagged, half of them leaks."""
    workspace = Workspace(replay.workspace)
    db = Database(workspace.database_url())
    made = add_truth(db, workspace, name, 60, flagged=0.5, precise=0.5, missed=0.5)
    db.close()
    return made


def label_draw(db: Database, truth: Truth, filter: QueueFilter, who: str = "anna", limit: int = 5_000) -> int:
    """Label a whole random draw truly, in one transaction; how many hints that were."""
    items = annotation_queue.queue(db, who, filter, limit)
    assert filter.frame is not None
    with db.write() as session:
        for item in items:
            key = {"run_id": item.key.run, "event_id": item.key.event, "turn": item.key.turn}
            said = {"annotator": who, "label": truth.label(item.key), "sampling_frame": filter.frame.text()}
            session.add(LeakLabel(**key, **said, time=1.0))
    return len(items)


def rescore(db: Database, truth: Truth, number: int, flags: set[tuple[str, int]]) -> None:
    """A later run `number` that read the whole run and flagged these hints, under the tier `derivation`."""
    with db.write() as session:
        for event_id, index in flags:
            session.add(
                RescoredHint(run_id=number, event_id=event_id, turn=index, target=truth.run.folder, leak_found=True,
                             detector="llm_judge", report='{"leaked": true, "detector": "llm_judge"}')
            )  # fmt: skip
        session.add(
            RescoreSummary(run_id=number, target=truth.run.folder, detectors="llm_judge", checked=len(truth.leaks),
                           flagged=len(flags), time=1.0)
        )  # fmt: skip
