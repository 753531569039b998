"""Page Labels: the queue of a desk, and what the card, the report and the benchmark show."""

from __future__ import annotations

import json
from typing import Any

import pytest
from replay_data import add_run, training_events

from app.common.benchmark_scores import figures
from app.common.context import Context
from app.common.quantities import ends, fraction
from app.endpoints.leaks.detectors import Recommendation, ReportScope
from app.endpoints.studio import Studio
from app.pages._query import QueryFields
from app.pages.labels.benchmark import benchmark_view
from app.pages.labels.desk import CHOOSE, Desk, Draft, LabelForm, Labeling
from app.pages.labels.page import _Page
from app.pages.labels.report import labels_to_add, plural, report_view
from app.pages.labels.stage import hint_key, queue_view
from jobs.db.engine import Database
from jobs.labels.hint_counts import InformationRow
from jobs.labels.label_queries import LabelAnswer
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.leaks.benchmark.comparison import CascadeResult
from rl2f_core.leaks.benchmark.score import BenchmarkReport, Counts, Score

LATER, NEVER, LEAKS = (f"dialogue:train:rl2f/1/0/{i}" for i in (1, 2, 3))
NOTHING = Draft()


@pytest.fixture
def studio(workspace: Workspace, db: Database) -> Studio:
    """A workspace with one run of 24 hints, number 1."""
    add_run(db, workspace, "small", training_events())
    return Studio(Context(workspace, db, Queue(db, workspace)))


def labeling(studio: Studio, **fields: Any) -> Labeling:
    made = Labeling(studio, LabelForm(**{"annotator": "anna", "run": "1", "selection": "all", **fields}), Desk())
    made.start()
    return made


def current(made: Labeling) -> tuple[str, int] | None:
    hint = made.desk.hint
    return (hint.event_id, hint.turn) if hint else None


def text(nodes: Any) -> str:
    """Return the JSON of elements."""
    return json.dumps(nodes, ensure_ascii=False)


# -- queue -----------------------------------------------------------------------------------------------------------
def test_the_queue_starts_at_the_first_unlabeled_hint_and_moves_both_ways(studio: Studio) -> None:
    first = labeling(studio)
    assert current(first) == (LATER, 0) and first.desk.progress.total == 24
    first.give("no_leak", NOTHING)
    assert first.desk.progress.labeled == 1
    again = labeling(studio)
    assert current(again) == (NEVER, 0)
    again.previous(NOTHING)
    assert current(again) == (LATER, 0)
    again.previous(NOTHING)
    assert current(again) == (LATER, 0) and again.desk.message == "This is the first hint."


@pytest.mark.slow
def test_the_queue_continues_beyond_a_page_of_labeled_hints(studio: Studio) -> None:
    first = labeling(studio)
    for _ in range(21):
        first.give("no_leak", NOTHING)
        first.next(NOTHING)
    place, again = current(first), labeling(studio)
    assert current(again) == place
    again.previous(NOTHING)
    assert again.desk.hint and again.desk.hint.own_label


def test_the_queue_ends_and_returns_from_its_end(studio: Studio) -> None:
    made = labeling(studio)
    for _ in range(24):
        made.next(NOTHING)
    shown = text(queue_view(made.desk, made.form))
    assert current(made) is None and "24 hints skipped" in shown
    assert "/labels?annotator=anna&selection=all&run=1&unlabeled_only=1" in shown
    made.previous(NOTHING)
    assert current(made) is not None


def test_labels_are_blind_until_the_findings_were_seen(studio: Studio) -> None:
    made = labeling(studio)
    made.give("leak", Draft(0, 7, "why"))
    assert made.desk.hint and made.desk.hint.own_label
    assert made.desk.hint.own_label.blind and made.desk.hint.own_label.end == 7
    made.give("leak", Draft(0, 7, "still"))
    assert made.desk.hint.own_label.blind, "the same label with another note"
    made.give("unsure", NOTHING)
    assert not made.desk.hint.own_label.blind
    assert not LabelForm(selection="flagged").is_blind and not LabelForm(show_findings=True).is_blind


def test_a_changed_note_is_saved_with_the_next_hint_and_undone(studio: Studio) -> None:
    made = labeling(studio)
    made.save_and_next(NOTHING)
    assert made.desk.message == CHOOSE
    made.give("leak", NOTHING)
    made.save_and_next(Draft(None, None, "names it"))
    assert studio.labels.list_labels(1, LATER, 0)[0].note == "names it"
    made.undo()
    assert current(made) == (LATER, 0) and made.desk.message == "Undone: leak."
    made.undo()
    assert studio.labels.list_labels(1, LATER, 0) == []
    made.undo()
    assert made.desk.message == "Nothing is left to undo."


def test_without_a_name_nothing_is_labeled(studio: Studio) -> None:
    made = labeling(studio, annotator="")
    made.give("leak", NOTHING)
    assert "name" in made.desk.message and studio.labels.list_annotators() == []
    assert text(queue_view(made.desk, made.form)).count('"data-focus": "#label-annotator') == 3


def test_a_label_for_another_hint_than_the_current_one_is_ignored(studio: Studio) -> None:
    made = labeling(studio)
    seen = hint_key(made.desk.hint)  # type: ignore[arg-type]
    page, form = _Page(studio, QueryFields({})), made.form
    page.perform("next", {"hint": seen}, form, {}, made.desk)
    page.perform("label", {"hint": seen, "label": "leak"}, form, {}, made.desk)
    assert current(made) == (NEVER, 0) and studio.labels.list_annotators() == []
    page.perform("next", {"hint": seen, "note": "of the first hint"}, form, {}, made.desk)
    assert current(made) == (NEVER, 1), "two quick keys move twice"


# -- card ------------------------------------------------------------------------------------------------------------
def test_a_blind_card_has_no_finding_and_an_answered_one_has(studio: Studio) -> None:
    made = labeling(studio, selection="all")
    while current(made) != (LEAKS, 0):
        made.next(NOTHING)
    blind = text(queue_view(made.desk, made.form))
    assert "lb-found" not in blind and "exact" not in blind and "tx-found" not in blind
    made.give("leak", Draft(12, 19))
    shown = text(queue_view(made.desk, made.form))
    assert "exact leak" in shown and "tx-found" in shown and '"data-start": 12' in shown
    made.reveal()
    assert "Show gold answer" not in text(queue_view(made.desk, made.form))


def test_an_empty_queue_explains_itself(studio: Studio) -> None:
    made = labeling(studio, environment="maze")
    assert "No hints here" in text(queue_view(made.desk, made.form))


# -- report ----------------------------------------------------------------------------------------------------------
def test_numbers_are_short() -> None:
    assert [fraction(x) for x in (None, 0.0, 0.003, 0.94, 1.0, -0.2)] == ["–", ".00", ".003", ".94", "1.00", "−.20"]
    assert ends(Interval(value=0.5, low=0.25, high=1.0, n=4)) == "[.25, 1.00]"
    assert ends(Interval(value=None, n=0)) == ""
    assert [plural(1, "hint"), plural(1200, "hint")] == ["1 hint", "1,200 hints"]


def test_the_report_states_what_to_label_and_links_its_disagreements(studio: Studio) -> None:
    empty = studio.detectors.detector_report(ReportScope(run=1))
    assert "stratified sample" in (labels_to_add(empty) or "")
    for name, label in (("ann <b>", "leak"), ("ben", "no_leak")):
        for task in (0, 1):
            for step in (1, 2, 3):
                studio.labels.label_hint(1, f"dialogue:train:rl2f/{step}/{task}/3", 0, name, LabelAnswer(label=label))  # type: ignore[arg-type]
    found = studio.detectors.detector_report(ReportScope(run=1, group_by="teacher"))
    made = LabelForm(view="report", annotator="anna", run="1")
    shown = text(report_view(found, "teacher", made))
    assert "/labels?annotator=anna&run=1" in text(report_view(empty, "teacher", made))
    assert "ann <b>" in shown and f"Disagreements ({found.disagreement_count})" in shown
    assert "/dialogues?run=1&dialogue=" in shown and "Access is logged under anna." in shown
    assert "data-confirm" not in text(report_view(found, "teacher", LabelForm()))


def test_the_report_states_the_bits_of_flagged_and_of_other_hints(studio: Studio) -> None:
    """Of the dev set's run: hints that determine the answer, flagged or not, with their mean bits."""
    found = studio.detectors.detector_report(ReportScope(run=1))
    flagged = InformationRow(flagged=True, hints=3, known=2, bits=7.0, determining=2)
    other = InformationRow(flagged=False, hints=9, known=0, bits=0.0, determining=0)

    def shown_with(*rows: InformationRow) -> str:
        report = found.report.model_copy(update={"information": rows})
        return text(report_view(found.model_copy(update={"report": report}), "teacher", LabelForm()))

    shown = shown_with(flagged, other)
    assert "Information in hints" in shown and "3.50" in shown and "2 of 2" in shown and "0 of 0" in shown
    assert "Information in hints" not in shown_with()


def test_an_unlocked_report_can_be_locked(studio: Studio) -> None:
    found = studio.detectors.unlock_test_set("anna", ReportScope(run=1))
    shown = text(report_view(found, "detector", LabelForm(annotator="anna")))
    assert "Lock test set" in shown and "Unlocked once" in shown


# -- benchmark -------------------------------------------------------------------------------------------------------
def wide(value: float | None, n: int) -> dict[str, Any]:
    return {"value": value, "low": 0.0, "high": 1.0, "n": n}


def score(precision: float | None, recall: float | None, n: int) -> Score:
    intervals: Any = {"precision": wide(precision, 30 if n else 0), "recall": wide(recall, n)}
    return Score(counts=Counts(), f1=None, answer_fraction_error=None, **intervals)


def cascade(name: str, recall: float, **more: Any) -> CascadeResult:
    overall = score(0.97, recall, 40)
    report = BenchmarkReport(
        overall=overall, held_out=score(None, 0.11, 8), by_split={}, by_detector={},
        by_kind={"digit_swap": overall, "not: strategy": score(None, None, 0)}, by_register={"terse": overall},
        by_environment={"maze": overall},
    )  # fmt: skip
    values: Any = {"hints": 80, "available": 90, "usd_per_1000_hints": 1.5, "hints_per_second": 2.5, "report": report,
                   "configs": (), "judged": 20,
                   "needs_model": True, "model": None, "errors": 0, "area_under_roc": None}  # fmt: skip
    return CascadeResult(detectors=name, benchmark="handwritten", split="test", **{**values, **more})


EMPTY = {
    "overall": {"leaks": 1, "near": 1, "precision": wide(1, 1), "recall": wide(1, 1), "f1": 1.0}, "seconds": 1.0,
    "by": {"split": [], "environment": []}, "by_detector": [], "kinds": [], "detectors": ["exact"], "wrong": [],
    "wrong_dev": 0, "wrong_test": 0,
}  # fmt: skip


def test_the_benchmark_compares_recorded_cascades_and_names_the_recommended_one() -> None:
    results = [cascade("exact", 0.25, usd_per_1000_hints=None), cascade("exact,llm_judge", 0.75)]
    shown = text(benchmark_view(EMPTY, results, Recommendation(candidates=2, result=results[1])))
    assert '"data-recommended": "exact,llm_judge"' in shown and "1.50 US$ per 1,000 hints, 2.5 hints/s" in shown
    assert "80 of 90" in shown and "unknown" in shown and ".11" in shown
    for by in ("kind", "register", "environment"):
        assert f"Recall on hand-written hints by {by}" in shown
    assert "digit swap" in shown and "not: strategy" not in shown


def test_a_budget_that_no_cascade_meets_is_stated() -> None:
    shown = text(benchmark_view(EMPTY, [cascade("exact", 0.25)], Recommendation(candidates=1, result=None)))
    assert "No recorded cascade is within this budget" in shown and "data-recommended" not in shown


def test_the_budget_fields_belong_to_the_benchmark_and_to_the_address(studio: Studio) -> None:
    fields: Any = {name: (None, value) for name, value in vars(LabelForm()).items()}
    page = _Page(studio, QueryFields(fields))
    form = page._form([*list(vars(LabelForm(view="benchmark")).values())[:-3], 2, None, 0.8])
    assert form.budget() == {"usd_per_1000_hints": 2.0, "min_hints_per_second": 0.0, "min_precision": 0.8}
    assert page._query(form) == {"view": "benchmark", "usd": "2.0", "precision": "0.8"}
    shown = page._updates(form, Desk())
    assert shown["usd"]["visible"] and not shown["run"]["visible"]
    assert not page._updates(LabelForm(), Desk())["usd"]["visible"]


@pytest.mark.slow
def test_the_benchmark_shows_the_held_out_split_first() -> None:
    scores: Any = figures()
    shown = text(benchmark_view(scores, [], Recommendation(candidates=0, result=None)))
    assert "No cascade is recorded" in shown
    assert shown.index("in phrasings that no detector was tuned on") < shown.index("On dev")
    assert "Leaks by obfuscation" in shown and "synthetic hints" in shown


def test_each_label_says_whether_it_counts_toward_the_estimate_and_why_not(studio: Studio) -> None:
    assert LabelForm().selection == "stratified", "labels of the default queue count"
    sampled = labeling(studio, selection="stratified")
    sampled.give("no_leak", NOTHING)
    shown = text(queue_view(sampled.desk, sampled.form))
    assert sampled.desk.hint and sampled.desk.hint.uncounted == ""
    place = ", counts in the held-out half" if sampled.desk.hint.is_held_out else ", counts"
    assert f"saved, blind{place}" in shown and "this queue counts toward the estimate" in shown
    assert "held-out half" in shown
    by_hand = labeling(studio, selection="all", annotator="bea")
    by_hand.give("no_leak", NOTHING)
    shown = text(queue_view(by_hand.desk, by_hand.form))
    assert "does not count (chosen by hand, not from a random sample)" in shown
    assert "this queue does not count toward the estimate" in shown
    by_hand.give("unsure", NOTHING)
    assert by_hand.desk.hint and by_hand.desk.hint.uncounted == "unsure"
    by_hand.give("leak", NOTHING)
    assert "not blind: you had seen the findings" in text(queue_view(by_hand.desk, by_hand.form))
