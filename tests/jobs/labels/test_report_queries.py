"""The board over a database: strata and halves counted, draws told from picks, later sources, breakdowns, openings."""

from __future__ import annotations

import time

import pytest
from detector_report_data import CODES, Truth, add_truth, in_test, label_draw, rescore
from pydantic import ValidationError
from replay_data import add_run, event, hint, turn
from sqlalchemy import update
from workspace_copies import opened

from jobs.db.engine import Database
from jobs.db.errors import NotFoundError
from jobs.db.models import LeakLabel, Run
from jobs.db.queries import rescores, runs
from jobs.ingest.ingester import reindex
from jobs.labels import annotation_queue, hint_counts, label_queries, opened_hints, report_queries
from jobs.labels.annotation_queue import QueueFilter
from jobs.labels.estimation import Estimates
from jobs.labels.hint_counts import Scope
from jobs.labels.label_queries import LabelAnswer
from jobs.labels.sampling import SamplingFrame
from jobs.workspace import Workspace
from rl2f_core.errors import RL2FError
from rl2f_core.run.events import LeakEvent, LeakRescoreEvent
from rl2f_core.types import LeakReport


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, empty_database: bytes) -> tuple[Workspace, Truth]:
    """400 hints, about 80 flagged."""
    workspace = Workspace(tmp_path_factory.mktemp("prepared") / "workspace").create()
    with opened(workspace, empty_database) as db:
        made = add_truth(db, workspace)
    return workspace, made


@pytest.fixture
def truth(workspace: Workspace, prepared: tuple[Workspace, Truth]) -> Truth:
    """The run in the copy, and which of its hints leak; to be read only."""
    return prepared[1]


def total(db: Database, scope: Scope = Scope()) -> Estimates:
    return report_queries.read(db, scope).total.estimates


def half(db: Database, truth: Truth, *, test: bool) -> dict[tuple[str, int], tuple[bool, bool]]:
    """Of every hint of a half: is it flagged, does it leak."""
    flagged = {tuple(i.key[1:]) for i in annotation_queue.queue(db, "", QueueFilter(selection="flagged"), 5000)}
    codes = {key: CODES[int(key[0].rsplit("/", 1)[1]) % len(CODES)] for key in truth.leaks}
    return {key: (key in flagged, leak) for key, leak in truth.leaks.items() if in_test(codes[key]) == test}


# -- strata ----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_hints_are_counted_by_what_divides_them_as_they_come_and_when_they_are_read_again(
    db: Database, workspace: Workspace, truth: Truth
) -> None:
    def tally() -> dict[object, int]:
        return {key: n for test in (False, True) for key, n in hint_counts.count_runtime(db, Scope(test=test)).items()}

    found = tally()
    assert sum(found.values()) == 400
    assert sum(n for (sort, _), n in found.items() if sort.teacher == "llm") == 200  # type: ignore[misc]
    assert sum(n for (sort, _), n in found.items() if sort.checkpoint == "rl2f@40") == 40  # type: ignore[misc]
    assert sum(n for (_, said), n in found.items() if said.flagged and said.detector == "exact") == len(  # type: ignore[misc]
        annotation_queue.queue(db, "", QueueFilter(selection="flagged"), 5000)
    )
    for test in (False, True):
        assert sum(hint_counts.count_runtime(db, Scope(test=test)).values()) == len(half(db, truth, test=test))
    reindex(db, workspace)
    assert tally() == found
    runs.remove(db, truth.run.id or 0)
    assert tally() == {}


# -- draws -----------------------------------------------------------------------------------------------------------
def test_a_mixed_draw_holds_flagged_and_unflagged_hints_in_random_order_and_says_not_which(
    db: Database, truth: Truth
) -> None:
    flagged = {item.key for item in annotation_queue.queue(db, "", QueueFilter(selection="flagged"), 5000)}
    drawn = [item.key for item in annotation_queue.queue(db, "", QueueFilter(selection="stratified", size=60), 5000)]
    assert len(drawn) == len(set(drawn)) == 60 and sum(key in flagged for key in drawn) == 30
    assert 5 <= sum(key in flagged for key in drawn[:30]) <= 25, "mixed, not one after the other"
    assert [i.key for i in annotation_queue.queue(db, "", QueueFilter(selection="stratified", size=60), 5000)] == drawn
    every = annotation_queue.queue(db, "", QueueFilter(selection="stratified", size=5000), 5000)
    assert len(every) == 400, "where few are flagged, the rest is not"


def test_a_label_says_that_it_was_drawn_only_where_the_sample_holds_its_hint(db: Database, truth: Truth) -> None:
    audit = QueueFilter(selection="random_unflagged", run=truth.run.id, size=20, include_controls=True)
    sample = [item.key for item in annotation_queue.queue(db, "", audit, 50)]
    other = next(
        i.key
        for i in annotation_queue.queue(db, "", QueueFilter(selection="random_unflagged", size=400), 500)
        if i.key not in sample
    )
    run = truth.run.id
    assert (
        label_queries.put(db, *sample[0], "anna", LabelAnswer(label="leak"), queue_filter=audit).sampling_frame
        == f"run/{run}/"
    )
    assert label_queries.put(db, *other, "anna", LabelAnswer(label="leak"), queue_filter=audit).sampling_frame is None
    assert (
        label_queries.put(
            db, *sample[1], "anna", LabelAnswer(label="leak"), queue_filter=QueueFilter(run=run)
        ).sampling_frame
        is None
    )
    assert label_queries.put(db, *sample[0], "anna", LabelAnswer(label="unsure")).sampling_frame == f"run/{run}/", (
        "a changed answer stays drawn"
    )
    label_queries.undo(db, "anna")
    assert label_queries.of_hint(db, *sample[0])[0].sampling_frame == f"run/{run}/"


def test_a_draw_is_kept_as_text_and_covers_what_it_could_have_drawn() -> None:
    for draw in (SamplingFrame(), SamplingFrame("17", 3, "a/b"), SamplingFrame(environment="arithmetic")):
        assert SamplingFrame.parse(draw.text()) == draw
    assert SamplingFrame().covers([(1, "a"), (2, "b")]) and SamplingFrame(run=1).covers([(1, "a")])
    assert not SamplingFrame(run=1).covers([(1, "a"), (2, "a")]) and not SamplingFrame(environment="a").covers(
        [(1, "b")]
    )
    for wrong in ("", "run", "run/x/", "//a"):
        with pytest.raises(RL2FError, match="Invalid sampling frame"):
            SamplingFrame.parse(wrong)


# -- estimates -------------------------------------------------------------------------------------------------------
def test_a_labelled_draw_estimates_recall_for_all_hints_of_the_half(db: Database, truth: Truth) -> None:
    label_draw(db, truth, QueueFilter(selection="stratified", size=120))
    mine = half(db, truth, test=False)
    drawn = {
        a.key[1:] for a in annotation_queue.queue(db, "", QueueFilter(selection="stratified", size=120), 500)
    } & set(mine)
    found = total(db)
    assert (found.size, found.flagged) == (len(mine), sum(flag for flag, _ in mine.values()))
    by_hand = {s: [mine[k][1] for k in drawn if mine[k][0] is s] for s in (True, False)}  # type: ignore[index]
    assert (found.n_flagged, found.n_unflagged) == (len(by_hand[True]), len(by_hand[False]))
    p, q = (sum(by_hand[s]) / len(by_hand[s]) for s in (True, False))
    hits, misses = found.flagged * p, (found.size - found.flagged) * q
    assert found.precision.value == pytest.approx(p)
    assert found.recall.value == pytest.approx(hits / (hits + misses))
    flags = sum(flag and leak for flag, leak in mine.values())
    true = flags / sum(leak for _, leak in mine.values())
    assert found.recall.low is not None and found.recall.low <= true <= found.recall.high  # type: ignore[operator]


def test_hints_that_came_after_the_labels_are_counted(db: Database, workspace: Workspace, truth: Truth) -> None:
    assert report_queries.read(db, Scope()).newer_hints == 0
    label_draw(db, truth, QueueFilter(selection="stratified", size=120))
    with db.write() as session:
        session.execute(update(LeakLabel).values(time=time.time() + 1))
    assert report_queries.read(db, Scope()).newer_hints == 0
    new = [event(f"later/{i}", [turn(0, "x", None, hint("Look."))]) for i in range(3)]
    later = [each.model_copy(update={"time": time.time() + 60}) for each in new]
    number = add_run(db, workspace, "later", later).id
    assert report_queries.read(db, Scope()).newer_hints + report_queries.read(db, Scope(test=True)).newer_hints == 3
    assert report_queries.read(db, Scope(run=truth.run.id)).newer_hints == 0 and number is not None


def test_uncounted_labels_are_reported_by_reason(db: Database, truth: Truth) -> None:
    run = truth.run.id or 0
    mine = set(half(db, truth, test=False))
    audit = QueueFilter(selection="random_unflagged", size=400)
    keys = [i.key for i in annotation_queue.queue(db, "", audit, 500) if i.key[1:] in mine][:6]
    label_queries.put(db, *keys[0], "anna", LabelAnswer(label="no_leak"), queue_filter=audit)
    label_queries.put(db, *keys[1], "anna", LabelAnswer(label="no_leak"))  # picked by hand
    opened_hints.record(db, [keys[2]], "anna")
    label_queries.put(db, *keys[2], "anna", LabelAnswer(label="no_leak"), queue_filter=audit)
    label_queries.put(db, *keys[3], "anna", LabelAnswer(label="unsure"), queue_filter=audit)
    label_queries.put(db, *keys[4], "anna", LabelAnswer(label="leak"), queue_filter=audit)
    label_queries.put(db, *keys[4], "ben", LabelAnswer(label="no_leak"), queue_filter=audit)  # a tie
    label_queries.put(
        db,
        *keys[5],
        "anna",
        LabelAnswer(label="no_leak"),
        queue_filter=QueueFilter(selection="random_unflagged", run=run, size=400),
    )
    used = report_queries.read(db, Scope()).usage
    assert (used.hints, used.counted, used.not_sampled, used.not_blind, used.undecided, used.partial_sample) == (
        6,
        2,
        1,
        1,
        2,
        0,
    )


def test_a_draw_from_one_run_counts_for_that_run_and_not_for_all(
    db: Database, workspace: Workspace, truth: Truth
) -> None:
    other = add_truth(db, workspace, "other", 100)
    label_draw(db, other, QueueFilter(selection="stratified", run=other.run.id, size=40))
    every = report_queries.read(db, Scope(), group_by="run")
    assert every.total.estimates.n_flagged == 0 and every.usage.partial_sample > 0
    row = {row.name: row.estimates for row in every.rows}[str(other.run.id)]
    alone = report_queries.read(db, Scope(run=other.run.id))
    assert row == alone.total.estimates and alone.usage.partial_sample == 0
    assert row.n_flagged + row.n_unflagged == every.usage.partial_sample


def test_a_stratum_that_is_labelled_to_the_last_hint_counts_without_a_draw(db: Database, truth: Truth) -> None:
    flagged = [key for key, (flag, _) in half(db, truth, test=False).items() if flag]
    for key in flagged[1:]:
        label_queries.put(db, truth.run.id or 0, *key, "anna", LabelAnswer(label="leak"))
    assert total(db).precision.value is None
    label_queries.put(db, truth.run.id or 0, *flagged[0], "anna", LabelAnswer(label="no_leak"))
    assert total(db).precision.value == pytest.approx(1 - 1 / len(flagged))


def test_each_breakdown_shares_the_hints_out_and_names_its_rows(db: Database, truth: Truth) -> None:
    label_draw(db, truth, QueueFilter(selection="stratified", size=200))
    for by, names in {
        "teacher": {"llm", "scripted"},
        "environment": {"secret_code"},
        "condition": {"training", "hints"},
        "run": {str(truth.run.id)},
        "checkpoint": {"rl2f@1–10", "rl2f@11–20", "rl2f@21–30", "rl2f@31–40", "rl2f@40"},
    }.items():
        found = report_queries.read(db, Scope(), by)
        assert {row.name for row in found.rows} == names
        sizes = [row.estimates for row in found.rows]
        assert sum(e.size for e in sizes) == found.total.estimates.size
        assert sum(e.n_flagged + e.n_unflagged for e in sizes) == found.usage.counted
        assert all(
            row.too_few_labels == (row.estimates.n_flagged + row.estimates.n_unflagged < 20) for row in found.rows
        )
    [detector] = report_queries.read(db, Scope(), "detector").rows
    assert detector.name == "exact" and detector.estimates == total(db)


# -- which hints -----------------------------------------------------------------------------------------------------
def test_hints_of_forks_and_words_that_stand_in_for_none_count_nowhere_but_where_a_fork_is_named(
    db: Database, workspace: Workspace
) -> None:
    failed = hint("Wrong. Try again.", teacher="llm").model_copy(update={"error": "It is down.", "leak": None})
    refused = hint("Wrong. Try again.", (0, 5), teacher="llm").model_copy(
        update={"error": "It is down.", "feedback": "It is A B."}
    )
    told = [event(f"d/{i}", [turn(0, "x", None, said)], 1, "g", i) for i, said in enumerate((failed, refused))]
    run = add_run(db, workspace, "told", told)
    fork = add_truth(db, workspace, "branches", 40)
    with db.write() as session:
        held = session.get(Run, fork.run.id)
        assert held is not None
        held.kind = "fork"
    again, later = (runs.add(db, runs.of_config(*config_of(name))).id or 0 for name in ("again", "later"))
    for read, number in ((fork, again), (Truth(run), later)):
        rescore(db, read, number, set())
    written = [(run.id, told[1].id, 0)]
    for which in ("all", "flagged", "stratified", "random_unflagged"):
        kept = [tuple(item.key) for item in annotation_queue.queue(db, "anna", QueueFilter(selection=which), 50)]
        assert kept == ([] if which == "random_unflagged" else written)
        named = annotation_queue.queue(db, "anna", QueueFilter(selection=which, run=fork.run.id), 50)
        assert named and {item.key.run for item in named} == {fork.run.id}
    label_queries.put(db, run.id or 0, told[0].id, 0, "anna", LabelAnswer(label="leak"))
    label_draw(db, fork, QueueFilter(selection="stratified", run=fork.run.id))
    for source, source_of_fork in (("run", "run"), (str(later), str(again))):
        sizes = [total(db, Scope(source=source, test=test)).size for test in (False, True)]
        assert sum(sizes) == 1 and not any(
            report_queries.read(db, Scope(test=test)).usage.hints for test in (False, True)
        )
        of_fork = [total(db, Scope(run=fork.run.id, source=source_of_fork, test=test)) for test in (False, True)]
        assert sum(each.size for each in of_fork) == 40
    assert sum(e.n_flagged + e.n_unflagged for e in of_fork) == 40


# -- later sources ---------------------------------------------------------------------------------------------------
def test_a_later_source_is_judged_by_labels_that_were_drawn_by_the_first(db: Database, truth: Truth) -> None:
    label_draw(db, truth, QueueFilter(selection="stratified", size=5000))
    other = runs.add(db, runs.of_config(*config_of("later")))
    mine = half(db, truth, test=False)
    perfect = {key for key, leak in truth.leaks.items() if leak}
    rescore(db, truth, other.id or 0, perfect)
    found = report_queries.read(db, Scope(source=str(other.id)))
    e = found.total.estimates
    assert (e.size, e.flagged) == (len(mine), sum(leak for _, leak in mine.values()))
    assert (e.precision.value, e.recall.value, e.kappa.value) == (1.0, 1.0, 1.0)
    assert [row.name for row in found.rows] == ["llm_judge"] and not found.disagreements
    assert total(db).precision.value != 1.0
    assert [s.name for s in report_queries.sources(db)] == ["run", str(other.id)]


@pytest.mark.slow
def test_a_draw_can_be_made_by_a_later_sources_flags(db: Database, workspace: Workspace, truth: Truth) -> None:
    unread = add_truth(db, workspace, "unread", 50)
    later = runs.add(db, runs.of_config(*config_of("later"))).id or 0
    flags = set(list(truth.leaks)[:40])
    rescore(db, truth, later, flags)
    mixed = QueueFilter(selection="stratified", size=60, source=str(later))
    drawn = [item.key for item in annotation_queue.queue(db, "", mixed, 100)]
    assert sum((key.event, key.turn) in flags for key in drawn) == 30
    assert {key.run for key in drawn} == {truth.run.id} and unread.run.id != truth.run.id
    label_draw(db, truth, mixed)
    e = total(db, Scope(source=str(later)))
    assert e.n_flagged + e.n_unflagged == sum(key[1:] in half(db, truth, test=False) for key in drawn)
    assert total(db).n_flagged == 0, "it was not drawn by what was found at run time"


def test_one_label_of_another_draw_leaves_the_other_labels_counted(db: Database, truth: Truth) -> None:
    later = runs.add(db, runs.of_config(*config_of("later"))).id or 0
    rescore(db, truth, later, set(list(truth.leaks)[:40]))
    scope = Scope(source=str(later))
    label_draw(db, truth, QueueFilter(selection="stratified", size=60))
    before = total(db, scope)
    other = QueueFilter(selection="stratified", size=2, source=str(later))
    label_draw(db, truth, other, who="ben")
    after = total(db, scope)
    assert after.n_flagged + after.n_unflagged >= before.n_flagged + before.n_unflagged - 1 > 10


def config_of(name: str) -> tuple[object, str, str]:
    from replay_data import config

    from rl2f_core.config.loading import dump_yaml

    made = config(name=name)
    return made, dump_yaml(made), name


# -- halves ----------------------------------------------------------------------------------------------------------
def test_the_halves_share_no_hint_and_the_openings_of_one_are_kept(db: Database, truth: Truth) -> None:
    label_draw(db, truth, QueueFilter(selection="stratified", size=5000))
    dev, test = (report_queries.read(db, Scope(test=test)) for test in (False, True))
    assert dev.total.estimates.size + test.total.estimates.size == 400
    assert 120 < dev.total.estimates.size < 280
    assert not {(d.event, d.turn) for d in dev.disagreements} & {(d.event, d.turn) for d in test.disagreements}
    assert dev.usage.hints + test.usage.hints == 400 and test.disagreements
    assert report_queries.list_accesses(db) == []
    report_queries.unlock_test_set(db, Scope(test=True), "  anna ")
    report_queries.unlock_test_set(db, Scope(run=truth.run.id, environment="secret_code", test=True), "ben")
    assert [(o.annotator, o.source, o.run_id, o.environment) for o in report_queries.list_accesses(db)] == [
        ("ben", "run", truth.run.id, "secret_code"), ("anna", "run", None, "")
    ]  # fmt: skip
    with pytest.raises(RL2FError, match="annotator's name"):
        report_queries.unlock_test_set(db, Scope(), " ")


def test_unknown_source_run_or_grouping_raises(db: Database, truth: Truth) -> None:
    with pytest.raises(NotFoundError, match="Unknown source of findings"):
        report_queries.read(db, Scope(source="99"))
    with pytest.raises(RL2FError, match="no run 99"):
        report_queries.read(db, Scope(run=99))
    with pytest.raises(RL2FError, match="Unknown grouping"):
        report_queries.read(db, Scope(), group_by="moon")
    with pytest.raises(ValidationError, match="source"):
        QueueFilter(source="'; DROP")
    with db.read() as session:
        assert session.get(LeakLabel, 1) is None


# -- information in hints --------------------------------------------------------------------------------------------
def test_the_report_counts_bits_of_flagged_and_of_other_hints(db: Database, workspace: Workspace) -> None:
    """16 codes of 4 letters A or B; the attempt is unparsable. `A ? ? ?` leaves 8 of them, `A B A B` leaves one.

    The flagged hint states the code; of the other two, one has unknown words.
    """
    words = [hint("Correct so far: A B A B", (16, 23)), hint("Correct so far: A ? ? ?"), hint("Look again.")]
    told = [event(f"d/{i}", [turn(0, "x", None, said)], 1, "g", i) for i, said in enumerate(words)]
    run = add_run(db, workspace, "bits", told)
    test = in_test_set(db, run)
    flagged, other = report_queries.read(db, Scope(run=run.id, test=test)).information
    assert (flagged.hints, flagged.known, flagged.determining) == (1, 1, 1)
    assert flagged.bits == 4.0
    assert (other.hints, other.known, other.determining) == (2, 1, 0)
    assert other.bits == 1.0

    later = runs.add(db, runs.of_config(*config_of("later"))).id or 0
    rescore(db, Truth(run), later, {(told[1].id, 0)})
    flagged, other = report_queries.read(db, Scope(run=run.id, source=str(later), test=test)).information
    assert (flagged.hints, flagged.known, flagged.determining) == (1, 1, 0)
    assert (other.hints, other.known, other.determining) == (2, 1, 1)
    assert other.bits == 4.0


def test_a_hint_on_which_a_detector_of_a_rescoring_failed_is_unchecked_and_not_clean(
    db: Database, workspace: Workspace
) -> None:
    """Of four hints, one is flagged, one is clean, and the check of two failed, one of them with a probability."""
    told = [event(f"d/{i}", [turn(0, "x", None, hint("Correct so far: A ? ? ?"))], 1, "g", i) for i in range(4)]
    run = add_run(db, workspace, "failed", told)
    later = runs.add(db, runs.of_config(*config_of("later")))
    down = "The endpoint is down."
    reports = [
        LeakReport(leaked=True, detector="llm_judge"),
        LeakReport(leaked=False, error=down),
        LeakReport(leaked=False, error=down, leak_probability=0.4, leak_threshold=0.5),
    ]
    found = [
        LeakEvent(id=f"leak:{i}", run=run.folder, dialogue=told[i].id, turn=0, report=report)
        for i, report in enumerate(reports)
    ]
    summary = LeakRescoreEvent(id="leak_rescore", run=run.folder, detectors=(), hints=4, flagged=1, errors=2)
    with db.write() as session:
        rescores.insert(session, later, [*found, summary])
    for item in told:
        label_queries.put(db, run.id or 0, item.id, 0, "anna", LabelAnswer(label="no_leak"))
    read = report_queries.read(
        db, Scope(run=run.id, source=str(later.id), test=in_test_set(db, run)), group_by="teacher"
    )
    e = read.total.estimates
    assert (e.size, e.flagged) == (2, 1)
    assert read.usage.unchecked == 2
    assert [row.hints for row in read.information] == [1, 1]


def in_test_set(db: Database, run: Run) -> bool:
    """Whether the hints of a run on one task are in the test set."""
    return bool(hint_counts.count_runtime(db, Scope(run=run.id, test=True)))


def test_a_report_on_hints_without_bits_has_no_information(db: Database, truth: Truth) -> None:
    assert report_queries.read(db, Scope()).information == ()
