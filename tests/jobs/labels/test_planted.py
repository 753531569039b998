"""Planted hints in the database: private ground truth, recall without labels, and no other number counts them."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import pytest
from planted_data import planted_events
from replay_data import add_run

from jobs.db.engine import Database
from jobs.db.queries import dialogues
from jobs.ingest.ingester import reindex
from jobs.labels import annotation_queue, hint_counts, holdout, report_queries
from jobs.labels.annotation_queue import QueueFilter
from jobs.labels.hint_counts import Scope
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutRequest
from rl2f_core.environments.base import wrap_answer
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.events import DialogueEvent


def recall(db: Database, **scope: Any) -> dict[tuple[str, str], tuple[int, int]]:
    rows = report_queries.read(db, Scope(**scope)).planted
    assert all((row.recall.value, row.recall.n) == (row.flagged / row.hints, row.hints) for row in rows)
    return {(row.group, row.name): (row.flagged, row.hints) for row in rows}


@pytest.fixture
def run(db: Database, workspace: Workspace) -> int:
    return add_run(db, workspace, "planted", planted_events()).id or 0


def test_recall_on_planted_hints_is_given_by_detector_kind_and_checkpoint(
    db: Database, workspace: Workspace, run: int
) -> None:
    expected = {
        ("all", "all"): (3, 5),
        ("detector", "mentions"): (2, 5),
        ("detector", "exact"): (1, 5),
        ("kind", "latex"): (1, 2),
        ("kind", "roman"): (2, 3),
        ("checkpoint", "rl2f@1–10"): (3, 4),
        ("checkpoint", "rl2f@40"): (0, 1),
    }
    assert recall(db) == expected
    assert recall(db, run=run) == expected
    reindex(db, workspace)
    assert recall(db) == expected
    assert recall(db, environment="nowhere") == {} == recall(db, test=True)


def test_no_other_number_of_the_report_counts_planted_hints(db: Database, workspace: Workspace, run: int) -> None:
    report = report_queries.read(db, Scope())
    assert (report.total.estimates.size, report.total.estimates.flagged) == (5, 1)
    assert sum(row.hints for row in hint_counts.information(db, Scope(), report_queries.source(db, "run"))) == 5
    assert sum(hint_counts.count_runtime(db, Scope()).values()) == 5


def test_planted_hints_are_in_no_queue_of_labels(db: Database, workspace: Workspace, run: int) -> None:
    for selection in get_args(QueueFilter.model_fields["selection"].annotation):
        keys = {item.key.event for item in annotation_queue.queue(db, "anna", QueueFilter(selection=selection), 50)}
        assert bool(keys) == (selection != "informative")  # no trained detector has scored the hints
        assert not keys & {f"dialogue:train:d/{i}" for i in range(4)}


def test_the_type_of_a_finding_is_stored_with_it(db: Database, workspace: Workspace, run: int) -> None:
    finding = dialogues.get(db, run, "dialogue:train:d/0").findings[0]["run"]
    assert (finding.detector, finding.leak_type) == ("exact", "exact")


def test_recall_in_a_run_matches_the_planted_truth_of_its_events(db: Database, workspace: Workspace) -> None:
    """A scripted run with `leaky`: recall by kind is counted from the events, without the database."""
    teacher = {"type": "leaky", "rate": 0.5, "kinds": ["verbatim", "difference_from_attempt", "roman"]}
    config = parse_config({
        "environment": "guess_number", "teacher": teacher, "backend": "fake",
        "rollout": {"max_turns": 3, "max_new_tokens": 60, "max_seq_len": 2048},
        "stages": [{"name": "rl2f", "method": "rl2f", "steps": 1}],
    })  # fmt: skip
    engine = build_engine(config, FakeBackend(script=lambda text, rng: wrap_answer(str(rng.randint(1, 9)))))
    tasks = [engine.environment.task("train", i) for i in range(40)]
    rollouts = engine.run([RolloutRequest(task, f"d/{i}", "g", i, seed=i) for i, task in enumerate(tasks)])
    events = [DialogueEvent.of("train", "rl2f", 1, t, r.dialogue) for t, r in zip(tasks, rollouts, strict=True)]
    truth: dict[bool, Counter[tuple[str, bool]]] = {False: Counter(), True: Counter()}
    for one in events:
        task = one.task
        in_test_set = holdout.is_test(holdout.task_hash(task.environment, task.public, task.privileged))
        for each in one.dialogue.turns:
            if each.hint is not None and each.hint.planted is not None and each.hint.leak is not None:
                truth[in_test_set][each.hint.planted, each.hint.leak.leaked] += 1
    assert sum(map(sum, (t.values() for t in truth.values()))) > 20
    run = add_run(db, workspace, "leaky", [*events])
    for in_test_set, counts in truth.items():
        by_kind = {kind: (counts[kind, True], counts[kind, True] + counts[kind, False]) for kind, _ in counts}
        found = recall(db, run=run.id, test=in_test_set)
        assert {name: value for (group, name), value in found.items() if group == "kind"} == by_kind
        flagged, hints = found["all", "all"]
        assert 0 < flagged < hints
