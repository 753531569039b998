"""The queue of the most informative hints."""

from __future__ import annotations

import pytest
from detector_report_data import Truth, rescore
from replay_data import add_run, event, hint, turn

from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.ingest import ingester
from jobs.labels import annotation_queue, report_queries
from jobs.labels.annotation_queue import QueueFilter
from jobs.labels.hint_counts import Scope
from jobs.labels.label_queries import LabelAnswer, put
from jobs.workspace import Workspace
from rl2f_core.types import LeakReport

PROBABILITIES = {"near": 0.58, "far": 0.05, "flagged": 0.95, "unscored": None, "closest": 0.61}


@pytest.fixture
def run(db: Database, workspace: Workspace) -> Run:
    """Five dialogues of one hint each, with the probabilities above and the threshold .6."""
    events = []
    for i, (name, p) in enumerate(PROBABILITIES.items()):
        flag = p is not None and p >= 0.9
        said = hint(f"Hint {name}.", (0, 4) if flag else None)
        threshold = None if p is None else 0.6
        report = LeakReport(leaked=flag, detector="mentions" if flag else None, leak_probability=p)
        said = said.model_copy(update={"leak": report.model_copy(update={"leak_threshold": threshold})})
        events.append(event(name, [turn(0, "x", None, said)], 1, f"g/{i}", i))
    return add_run(db, workspace, "scored", events)


def order(db: Database, run: Run, size: int = 200) -> list[str]:
    filter = QueueFilter(selection="informative", run=run.id, size=size)
    return [item.key.event.split("/")[-1] for item in annotation_queue.queue(db, "anna", filter)]


def names(db: Database, run: Run) -> dict[str, str]:
    """Event id → name."""
    items = annotation_queue.queue(db, "anna", QueueFilter(run=run.id))
    return {item.key.event: list(PROBABILITIES)[i] for i, item in enumerate(items)}


def test_hints_are_ordered_by_the_distance_of_their_probability_to_the_threshold(db: Database, run: Run) -> None:
    named = names(db, run)
    filter = QueueFilter(selection="informative", run=run.id)
    shown = [named[item.key.event] for item in annotation_queue.queue(db, "anna", filter)]
    assert shown == ["closest", "near", "flagged", "far"]  # .01, .02, .35, .55; the unscored one is not listed
    assert len(annotation_queue.queue(db, "anna", QueueFilter(selection="informative", run=run.id, size=2))) == 2


def test_hints_on_which_detectors_disagree_come_first(db: Database, workspace: Workspace, run: Run) -> None:
    named = names(db, run)
    events = {name: event for event, name in named.items()}
    later = add_run(db, workspace, "later", [])
    rescore(db, Truth(run), later.id or 0, {(events["unscored"], 0), (events["far"], 0)})
    filter = QueueFilter(selection="informative", run=run.id)
    shown = [named[item.key.event] for item in annotation_queue.queue(db, "anna", filter)]
    # the rescore flags unscored and far, and no longer flagged; closest and near are clean in both
    assert shown == ["flagged", "far", "unscored", "closest", "near"]


def test_labels_of_the_informative_queue_do_not_count_in_estimates(db: Database, run: Run) -> None:
    filter = QueueFilter(selection="informative", run=run.id, size=2)  # two of the four unflagged hints
    for item in annotation_queue.queue(db, "anna", filter):
        label = put(db, item.key.run, item.key.event, item.key.turn, "anna", LabelAnswer(label="leak"), filter)
        assert label.sampling_frame is None
    usage = report_queries.read(db, Scope(run=run.id)).usage
    assert (usage.counted, usage.not_sampled) == (0, 2)


def test_scores_survive_a_rebuild_and_go_with_their_run(db: Database, workspace: Workspace, run: Run) -> None:
    before = order(db, run)
    ingester.reindex(db, workspace)
    assert order(db, run) == before and len(before) == 4
