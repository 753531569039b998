"""Labels in the store: put, replace, undo, the queues, progress, and what stays when a run is rebuilt or deleted."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from replay_data import add_run, odd_events, training_events
from workspace_copies import opened

from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import dialogues, runs
from jobs.ingest.ingester import reindex
from jobs.labels import annotation_queue, label_queries, opened_hints
from jobs.labels.annotation_queue import HintKey, QueueFilter
from jobs.labels.label_queries import LabelAnswer
from jobs.workspace import Workspace
from rl2f_core.errors import RL2FError

LATER, NEVER, LEAKS = (f"dialogue:train:rl2f/1/0/{i}" for i in (1, 2, 3))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, empty_database: bytes) -> tuple[Workspace, int | None]:
    """24 dialogues with 24 hints, 6 of them flagged; the number of their run."""
    workspace = Workspace(tmp_path_factory.mktemp("prepared") / "workspace").create()
    with opened(workspace, empty_database) as db:
        return workspace, add_run(db, workspace, "small", training_events()).id


@pytest.fixture
def run(db: Database, prepared: tuple[Workspace, int | None]) -> Run:
    """The run in the copy."""
    return runs.get(db, prepared[1] or 0)


def count(db: Database, run: Run, event: str) -> int:
    return dialogues.get(db, run.id, event).row.label_count


def keys(db: Database, who: str, filter: QueueFilter, **place: object) -> list[tuple[str, int]]:
    return [(item.key.event, item.key.turn) for item in annotation_queue.queue(db, who, filter, 50, **place)]


# -- put -------------------------------------------------------------------------------------------------------------
def test_a_label_is_kept_with_span_note_and_blindness_and_counted_on_its_dialogue(db: Database, run: Run) -> None:
    opened_hints.record(db, [HintKey(run.id, LEAKS, 0)], "anna")
    put = label_queries.put(
        db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak", start=12, end=19, note="it is the code")
    )
    assert put.id is not None and put.time > 0
    held = label_queries.of_hint(db, run.id, LEAKS, 0)
    assert [(x.annotator, x.label, x.start, x.end, x.note, x.blind) for x in held] == [
        ("anna", "leak", 12, 19, "it is the code", False)
    ]
    assert count(db, run, LEAKS) == 1


def test_a_new_answer_replaces_the_labellers_own_and_no_other(db: Database, run: Run) -> None:
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak", start=12, end=19))
    label_queries.put(db, run.id, LEAKS, 0, "bob", LabelAnswer(label="unsure"))
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="no_leak"))
    assert [(x.annotator, x.label, x.start) for x in label_queries.of_hint(db, run.id, LEAKS, 0)] == [
        ("anna", "no_leak", None), ("bob", "unsure", None)
    ]  # fmt: skip
    assert count(db, run, LEAKS) == 1, "two labellers on one hint are one labelled hint"
    label_queries.put(db, run.id, NEVER, 0, "anna", LabelAnswer(label="no_leak"))
    label_queries.put(db, run.id, NEVER, 1, "bob", LabelAnswer(label="no_leak"))
    assert count(db, run, NEVER) == 2


def test_a_label_moves_the_runs_version(db: Database, run: Run) -> None:
    before = runs.version(db, run.id), runs.version(db)
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak"))
    put = runs.version(db, run.id), runs.version(db)
    label_queries.undo(db, "anna")
    undone = runs.version(db, run.id), runs.version(db)
    assert before[0] < put[0] < undone[0] and before[1] < put[1] < undone[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"event": "dialogue:train:nowhere"}, "Turn not found"),
        ({"turn": 7}, "Turn not found"),
        ({"run_id": 99}, "Turn not found"),
        ({"turn": 1}, "has no hint to label"),
        ({"label": "maybe"}, "'leak', 'no_leak' or 'unsure'"),
        ({"annotator": "  "}, "annotator's name"),
        ({"annotator": "x" * 61}, "annotator's name"),
        ({"annotator": "an\u202ena"}, "annotator's name"),
        ({"start": 3}, "outside of the hint"),
        ({"start": 3, "end": 3}, "outside of the hint"),
        ({"start": -1, "end": 3}, "greater than or equal to 0"),
        ({"start": 0, "end": 36}, "outside of the hint"),
        ({"note": "x" * 4001}, "at most 4000 characters"),
    ],
)
def test_a_label_that_cannot_be_is_refused_and_nothing_is_kept(
    db: Database, run: Run, changes: dict[str, object], words: str
) -> None:
    given = {"run_id": run.id, "event": LEAKS, "turn": 0, "annotator": "anna", "label": "leak", **changes}
    content = {name: given.pop(name) for name in list(given) if name in LabelAnswer.model_fields}
    with pytest.raises((RL2FError, ValidationError), match=words):
        label_queries.put(db, answer=LabelAnswer(**content), **given)  # type: ignore[arg-type]
    assert label_queries.annotators(db) == [] and label_queries.undo(db, "anna") is None


def test_a_span_counts_characters_of_what_the_teacher_wrote_not_of_what_was_read(
    db: Database, workspace: Workspace
) -> None:
    run = add_run(db, workspace, "odd", odd_events())
    event = "dialogue:train:odd/redacted"  # read: "Say […] now.", written: "Say A B A B now."
    assert label_queries.put(db, run.id, event, 0, "anna", LabelAnswer(label="leak", start=4, end=16)).end == 16
    dropped = label_queries.put(
        db, run.id, "dialogue:train:odd/dropped", 0, "anna", LabelAnswer(label="leak", start=4, end=11)
    )
    assert (dropped.start, dropped.end) == (4, 11)


def test_names_that_look_the_same_are_the_same_labeller(db: Database, run: Run) -> None:
    label_queries.put(db, run.id, LEAKS, 0, " Zoe\u0308  K ", LabelAnswer(label="leak"))
    label_queries.put(db, run.id, LEAKS, 0, "Zo\u00eb K", LabelAnswer(label="no_leak"))
    assert label_queries.annotators(db) == ["Zo\u00eb K"]
    assert [x.label for x in label_queries.of_hint(db, run.id, LEAKS, 0)] == ["no_leak"]


# -- blind -----------------------------------------------------------------------------------------------------------
def test_a_label_is_blind_only_if_the_annotator_did_not_open_the_findings_before(db: Database, run: Run) -> None:
    opened_hints.record(db, [HintKey(run.id, LEAKS, 0), HintKey(run.id, LEAKS, 0)], "bob")
    opened_hints.record(db, [HintKey(run.id, LEAKS, 0)], "")  # nobody

    def blind(who: str, event: str = LEAKS, label: str = "leak", note: str = "") -> bool:
        return label_queries.put(db, run.id, event, 0, who, LabelAnswer(label=label, note=note)).blind

    assert [blind("anna"), blind("bob"), blind("bob", LATER)] == [True, False, True]
    assert blind("anna", note="the same answer"), "the findings are shown after the answer alone"
    assert not blind("anna", label="unsure"), "another answer, after the findings were shown"
    assert not blind("anna"), "and back"


def test_a_label_after_undo_is_not_blind_because_the_findings_were_shown(db: Database, run: Run) -> None:
    assert label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak")).blind
    label_queries.undo(db, "anna")
    assert not label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak")).blind


def test_openings_are_deleted_with_their_run(db: Database, run: Run) -> None:
    opened_hints.record(db, [HintKey(run.id, LEAKS, 0)], "anna")
    with db.read() as session:
        assert opened_hints.is_opened(session, HintKey(run.id, LEAKS, 0), "anna")
    number = run.id
    runs.remove(db, number)
    with db.read() as session:
        assert not opened_hints.is_opened(session, HintKey(number, LEAKS, 0), "anna")


# -- undo ------------------------------------------------------------------------------------------------------------
def test_undo_takes_back_one_change_after_the_other_in_reverse(db: Database, run: Run) -> None:
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak", start=12, end=19, note="sure"))
    label_queries.put(db, run.id, LATER, 0, "anna", LabelAnswer(label="unsure"))
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="no_leak"))

    taken = label_queries.undo(db, "anna")
    assert taken is not None and (taken.event_id, taken.label) == (LEAKS, "no_leak")
    back = label_queries.of_hint(db, run.id, LEAKS, 0)[0]
    assert (back.label, back.start, back.end, back.note, back.blind) == ("leak", 12, 19, "sure", True)

    taken = label_queries.undo(db, "anna")
    assert taken is not None and taken.event_id == LATER and count(db, run, LATER) == 0
    taken = label_queries.undo(db, "anna")
    assert taken is not None and (taken.event_id, taken.label) == (LEAKS, "leak") and count(db, run, LEAKS) == 0
    assert label_queries.undo(db, "anna") is None and label_queries.annotators(db) == []


def test_undo_leaves_the_labels_of_others_alone(db: Database, run: Run) -> None:
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak"))
    label_queries.put(db, run.id, LEAKS, 0, "bob", LabelAnswer(label="no_leak"))
    assert label_queries.undo(db, "carl") is None
    label_queries.undo(db, "anna")
    assert [x.annotator for x in label_queries.of_hint(db, run.id, LEAKS, 0)] == ["bob"]
    assert count(db, run, LEAKS) == 1


def test_the_same_answer_twice_is_one_change(db: Database, run: Run) -> None:
    first = label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak"))
    assert label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak")).time == first.time
    label_queries.undo(db, "anna")
    assert label_queries.of_hint(db, run.id, LEAKS, 0) == []


def test_undo_steps_over_runs_that_were_deleted(db: Database, workspace: Workspace, run: Run) -> None:
    other = add_run(db, workspace, "other", training_events())
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak"))
    label_queries.put(db, other.id, LEAKS, 0, "anna", LabelAnswer(label="leak"))
    runs.remove(db, other.id)
    taken = label_queries.undo(db, "anna")
    assert taken is not None and taken.run_id == run.id
    assert label_queries.undo(db, "anna") is None


@pytest.mark.slow
def test_a_hundred_changes_can_be_taken_back(db: Database, run: Run) -> None:
    for i in range(label_queries.MAX_UNDO + 5):
        label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label=("leak", "no_leak")[i % 2], note=str(i)))
    taken = [label_queries.undo(db, "anna") for _ in range(label_queries.MAX_UNDO + 1)]
    assert taken[-1] is None and taken[-2] is not None
    assert label_queries.of_hint(db, run.id, LEAKS, 0)[0].note == "4"


# -- queues ----------------------------------------------------------------------------------------------------------
def test_the_queue_of_a_run_holds_every_hint_in_order(db: Database, run: Run) -> None:
    found = keys(db, "anna", QueueFilter(run=run.id))
    assert len(found) == 24
    assert found[:4] == [(LATER, 0), (NEVER, 0), (NEVER, 1), (LEAKS, 0)]


def test_queue_pages_after_and_before_a_hint(db: Database, run: Run) -> None:
    every = keys(db, "anna", QueueFilter(run=run.id))
    at = HintKey(run.id, *every[2])
    assert keys(db, "anna", QueueFilter(run=run.id), after=at) == every[3:]
    assert keys(db, "anna", QueueFilter(run=run.id), before=at) == every[:2]
    near = annotation_queue.queue(db, "anna", QueueFilter(run=run.id), 3, before=HintKey(run.id, *every[10]))
    assert [(i.key.event, i.key.turn) for i in near] == every[7:10], "those just before it, not the first ones"
    with pytest.raises(RL2FError, match="Hint not found"):
        annotation_queue.queue(db, "anna", after=HintKey(run.id, "nowhere", 0))


def test_flagged_hints_are_those_a_detector_convicted(db: Database, run: Run) -> None:
    found = keys(db, "anna", QueueFilter(selection="flagged", run=run.id))
    assert len(found) == 6 and all(event.endswith("/3") for event, _ in found)
    assert keys(db, "anna", QueueFilter(selection="flagged", run=run.id), after=HintKey(run.id, *found[0])) == found[1:]


def test_the_audit_is_a_seeded_sample_of_unflagged_hints_spread_over_the_run(db: Database, run: Run) -> None:
    unflagged = set(keys(db, "anna", QueueFilter(run=run.id))) - set(
        keys(db, "anna", QueueFilter(selection="flagged", run=run.id))
    )
    assert set(keys(db, "anna", QueueFilter(selection="random_unflagged", run=run.id))) == unflagged
    drawn = {
        seed: keys(db, "anna", QueueFilter(selection="random_unflagged", run=run.id, size=6, seed=seed))
        for seed in range(40)
    }
    assert drawn[3] == keys(db, "bob", QueueFilter(selection="random_unflagged", run=run.id, size=6, seed=3)), (
        "the same for every labeller"
    )
    assert all(len(set(sample)) == 6 and set(sample) <= unflagged for sample in drawn.values())
    often = {hint: sum(hint in sample for sample in drawn.values()) for hint in unflagged}
    # 40 samples of 6 of 18: each hint is expected 13.3 times, standard deviation 3.0
    assert 3 <= min(often.values()) and max(often.values()) <= 25
    first = {sample[0] for sample in drawn.values()}
    assert len(first) >= 10, "the order is random as well"
    at = HintKey(run.id, *drawn[0][1])
    small = QueueFilter(selection="random_unflagged", run=run.id, size=6)
    assert keys(db, "anna", small, after=at) == drawn[0][2:] and keys(db, "anna", small, before=at) == drawn[0][:1]


def test_the_audit_follows_runs_that_come_and_go(db: Database, workspace: Workspace, run: Run) -> None:
    audit = QueueFilter(selection="random_unflagged", size=30)
    assert annotation_queue.progress(db, "anna", audit) == (0, 18)
    other = add_run(db, workspace, "other", training_events())
    assert annotation_queue.progress(db, "anna", audit) == (0, 30)
    runs.remove(db, other.id)
    assert annotation_queue.progress(db, "anna", audit) == (0, 18)
    assert {item.key.run for item in annotation_queue.queue(db, "anna", audit, 50)} == {run.id}


def test_only_what_the_labeller_has_not_answered(db: Database, run: Run) -> None:
    every = keys(db, "anna", QueueFilter(run=run.id))
    label_queries.put(db, run.id, *every[0], "anna", LabelAnswer(label="no_leak"))
    label_queries.put(db, run.id, *every[1], "bob", LabelAnswer(label="no_leak"))
    todo = QueueFilter(run=run.id, unlabeled_only=True)
    assert keys(db, "anna", todo) == every[1:]
    assert keys(db, "bob", todo) == [every[0], *every[2:]]
    assert [item.label for item in annotation_queue.queue(db, "anna", QueueFilter(run=run.id), 2)] == ["no_leak", None]
    audit = QueueFilter(selection="random_unflagged", run=run.id, size=5)
    sample = keys(db, "anna", audit)
    label_queries.put(db, run.id, *sample[2], "anna", LabelAnswer(label="leak"))
    left = keys(db, "anna", QueueFilter(selection="random_unflagged", run=run.id, size=5, unlabeled_only=True))
    assert left == [hint for hint in sample if hint not in (sample[2], every[0])]


def test_contentless_hints_and_attempts_without_hint_are_in_no_queue(db: Database, workspace: Workspace) -> None:
    run = add_run(db, workspace, "odd", odd_events())
    found = [event for event, _ in keys(db, "anna", QueueFilter(run=run.id))]
    assert found == [f"dialogue:train:odd/{name}" for name in ("hostile", "redacted", "dropped", "long")]


def test_progress_counts_the_labellers_own_answers(db: Database, workspace: Workspace, run: Run) -> None:
    add_run(db, workspace, "other", training_events())
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak"))
    label_queries.put(db, run.id, LATER, 0, "anna", LabelAnswer(label="no_leak"))
    label_queries.put(db, run.id, LATER, 0, "bob", LabelAnswer(label="no_leak"))
    assert annotation_queue.progress(db, "anna", QueueFilter(run=run.id)) == (2, 24)
    assert annotation_queue.progress(db, "anna", QueueFilter(run=run.id, unlabeled_only=True)) == (2, 24)
    assert annotation_queue.progress(db, "anna", QueueFilter(selection="flagged", run=run.id)) == (1, 6)
    assert annotation_queue.progress(db, "anna", QueueFilter(selection="random_unflagged", run=run.id, size=18)) == (
        1,
        18,
    )
    assert annotation_queue.progress(db, "anna") == (2, 48)
    assert annotation_queue.progress(db, "nobody", QueueFilter(environment="secret_code")) == (0, 48)
    assert annotation_queue.progress(db, "nobody", QueueFilter(environment="nowhere")) == (0, 0)


def test_counting_stops_at_a_limit(db: Database, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotation_queue, "COUNT_LIMIT", 10)
    assert annotation_queue.progress(db, "anna") == (0, 11)


@pytest.mark.parametrize("wrong", [{"selection": "some"}, {"size": 0}, {"size": 10**6}, {"seed": -1}])
def test_a_filter_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        QueueFilter(**wrong)  # type: ignore[arg-type]


# -- around ----------------------------------------------------------------------------------------------------------
def test_labels_outlive_a_rebuild_of_their_run(db: Database, workspace: Workspace, run: Run) -> None:
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="leak", start=12, end=19))
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer(label="unsure"))
    reindex(db, workspace)
    assert [x.label for x in label_queries.of_hint(db, run.id, LEAKS, 0)] == ["unsure"]
    assert count(db, run, LEAKS) == 1
    label_queries.undo(db, "anna")
    assert [x.label for x in label_queries.of_hint(db, run.id, LEAKS, 0)] == ["leak"]
