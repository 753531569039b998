"""Report: values, findings, several seeds, and figures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from plotly.graph_objects import Figure

from rl2f_core import registry
from rl2f_core.errors import DataError
from rl2f_core.evaluation.across_seeds import SeedRow, SeedSummary, merge_seeds
from rl2f_core.evaluation.chart_data import accuracy_chart, effect_chart, training_chart
from rl2f_core.evaluation.figure_files import to_html, to_png, write_figures
from rl2f_core.evaluation.plotting import Plot, figure, resolve_colors
from rl2f_core.evaluation.report import (
    CheckpointDifference,
    CheckpointResult,
    Effect,
    EvaluatedTasks,
    EvaluationReport,
    Reference,
    baseline_findings,
    build_report,
    findings,
    interval_text,
    markdown_table,
    number,
    tables,
)
from rl2f_core.metrics.constant_baseline import compare_to_baseline, describe_comparison
from rl2f_core.metrics.dialogues import OUTCOMES, compute_metrics
from rl2f_core.stats.intervals import Bootstrap, Interval, wilson
from rl2f_core.types import ConstantBaseline, Dialogue, Hint, StopReason, Turn, Verdict

TURNS = 3


def played(task: str, solved_at: int, *, teacher: str = "scripted", parsable: bool = True) -> Dialogue:
    """A dialogue solved at a turn (0 for never), wrong answers 1, 2, 3 before."""
    turns = []
    for t in range(1, (solved_at or TURNS) + 1):
        right = t == solved_at
        verdict = Verdict(
            correct=right, score=float(right), parsed=str(t) if parsable else None, well_formed=parsable,
            distance=0.0 if right else 0.5 if parsable else None,
        )  # fmt: skip
        hint = None if right or t == TURNS else Hint(text="No.", teacher=teacher)
        turns.append(Turn(index=t - 1, attempt=str(t), token_ids=(5, 6), verdict=verdict, hint=hint))
    stop = StopReason.SOLVED if solved_at else StopReason.EXHAUSTED
    return Dialogue(id=task, task_id=task, group=task, index=0, turns=tuple(turns), stop_reason=stop)


def tasks(*solved_at: int, **more) -> list[Dialogue]:
    """One dialogue a task."""
    return [played(f"t{i}", at, **more) for i, at in enumerate(solved_at)]


PLAYED: dict[str, dict[str, list[Dialogue]]] = {
    "base": {"hints": tasks(*[0] * 8, parsable=False), "contentless": tasks(*[0] * 8)},
    "rl2f@24": {
        "hints": tasks(1, 2, 2, 2, 3, 3, 3, 0),
        "contentless": tasks(1, 0, 0, 0, 0, 0, 0, 0),
        "misleading": tasks(1, 0, 0, 0, 0, 0, 0, 0, teacher="misleading"),
    },
}
"""cum_acc of rl2f@24 with hints: 1/8, 4/8, 7/8; contentless 1/8 throughout; base 0 throughout."""


def built(
    dialogues: Mapping[str, Mapping[str, Sequence[Dialogue]]] = PLAYED, seed: int = 0, **more
) -> EvaluationReport:
    kind = registry.get("environment", "secret_code")
    environment = kind(kind.Config())  # type: ignore[attr-defined, call-arg]
    evaluated = EvaluatedTasks(tasks=8, samples=1, level="3 of ABC", seed=seed)
    settings = {"notes": ("rl2f@24 was trained on 1,000 tokens.",)}
    return build_report(environment, dialogues, TURNS, evaluated, **(settings | more))


def made(low: float, high: float, n: int = 20) -> Interval:
    return Interval(value=(low + high) / 2, low=low, high=high, n=n)


def with_effect(interval: Interval, condition: str = "hints") -> EvaluationReport:
    row = CheckpointResult(checkpoint="rl2f@24", condition=condition, metrics=compute_metrics(tasks(1, 0), TURNS))
    return EvaluationReport(
        environment="e", turns=TURNS, tasks=20, samples=1, rows=(row,),
        effects=(Effect(checkpoint="rl2f@24", condition=condition, difference=interval),),
        differences=(CheckpointDifference(quantity="hint_effect", checkpoint="b", against="a", difference=interval),),
    )  # fmt: skip


# -- the report ----------------------------------------------------------------------------------------------------
def test_report_contains_metrics_effects_and_differences():
    """Effects of rl2f@24: hints 7/8 − 1/8 = .75, misleading 0. It beats base by 7/8 in cum_acc, by .75 in effect."""
    report = built()
    assert report.checkpoints == ["base", "rl2f@24"]
    assert report.conditions == ["hints", "contentless", "misleading"]
    assert [i.value for i in report.metrics("rl2f@24", "hints").series("cum_acc")] == [1 / 8, 4 / 8, 7 / 8]
    assert report.effect("rl2f@24").value == 0.75
    assert report.effect("rl2f@24", "misleading") == Interval(value=0.0, low=0.0, high=0.0, n=8)
    assert report.effect("base").value == 0.0
    held = {d.quantity: (d.checkpoint, d.against, d.difference.value) for d in report.differences}
    assert held == {"cum_acc": ("rl2f@24", "base", 7 / 8), "hint_effect": ("rl2f@24", "base", 0.75)}


def test_report_contains_reference_policies():
    kind = registry.get("environment", "secret_code")
    environment = kind(kind.Config())
    report = built()
    assert [r.turn for r in report.references] == [1, 2, 3]
    for reference in report.references:
        bounds = environment.bounds(reference.turn)
        assert (reference.with_hints, reference.without_hints, reference.copying) == tuple(bounds)
    assert report.constant_baseline == environment.constant_baseline()


def test_scores_are_compared_with_the_best_constant_answer_and_flagged_if_not_above_it():
    """A floor of .05: rl2f@24 solves 1/8 at first, [.02, .47], and 7/8 in all, [.53, .98]; base nothing, [0, .32]."""
    report = built().model_copy(update={"constant_baseline": ConstantBaseline(answer="A A A", score=0.05)})
    table = next(t for t in tables(report) if t[0] == "Against the best constant answer")
    stands = {(row[0], row[1]): row[4] for row in table[2]}
    same = "indistinguishable from always answering A A A"
    assert stands == {
        ("base", "first attempt"): same, ("base", "within 3 turns (hints)"): same,
        ("rl2f@24", "first attempt"): same, ("rl2f@24", "within 3 turns (hints)"): "above it",
    }  # fmt: skip
    lines = baseline_findings(report)
    assert len(lines) == 4 and set(lines) <= set(findings(report))
    assert lines[0].startswith("The best constant answer (A A A) solves .05")
    by_turn = next(t for t in tables(report) if t[0].startswith("Solved within"))
    assert by_turn[2][-1][0] == "best constant answer" and len(set(by_turn[2][-1][2:])) == 1
    assert baseline_findings(report.model_copy(update={"constant_baseline": None})) == []
    html = to_html(report, [accuracy_chart(report)])
    assert "best constant answer" in html and "Against the best constant answer" in html


def test_a_score_is_above_or_below_the_constant_baseline_only_if_its_whole_interval_is():
    floor = ConstantBaseline(answer="infeasible", score=0.385)
    assert compare_to_baseline(wilson(39, 100), floor) == "not separated"  # [.30, .49]
    assert compare_to_baseline(wilson(60, 100), floor) == "above"  # [.50, .69]
    assert compare_to_baseline(wilson(10, 100), floor) == "below"  # [.06, .17]
    assert (
        compare_to_baseline(Interval(value=None, n=0), floor) is None
        and compare_to_baseline(wilson(1, 2), None) is None
    )
    assert describe_comparison(wilson(39, 100), floor) == "indistinguishable from always answering infeasible"


def test_seeds_are_compared_with_the_constant_baseline():
    summary = merge_seeds({"0": built(seed=0), "1": built(seed=1)})
    assert summary.constant_baseline == built().constant_baseline
    text = summary.to_markdown()
    assert "| best constant answer | any | cum_acc |" in text
    assert "cum_acc/1 of base: .00 [.00, .00] is worse than always answering" in text
    assert "cum_acc/3 of rl2f@24: .88 [.88, .88] is above it" in text


def test_attempt_outcomes_in_a_row_add_up_to_one():
    title, header, rows = next(t for t in tables(built()) if t[0].startswith("Attempt outcomes"))
    assert header[2:] == [name.replace("_", " ") for name in OUTCOMES] and title.endswith("(each row adds up to 1)")
    for row in rows:
        assert sum(float(text.split()[0]) for text in row[2:]) == pytest.approx(1, abs=0.02)


def test_report_round_trips_through_json():
    report = built()
    assert EvaluationReport.model_validate_json(report.model_dump_json()) == report
    assert "NaN" not in report.model_dump_json()


def test_the_same_dialogues_give_the_same_report():
    assert built(bootstrap=Bootstrap(seed=5)) == built(bootstrap=Bootstrap(seed=5))


def test_missing_condition_is_missing_in_the_report_only():
    report = built({"base": {"hints": tasks(1, 0)}})
    assert report.effects == () and report.differences == ()
    assert "the condition contentless is missing" in report.to_markdown()


# -- words ---------------------------------------------------------------------------------------------------------
def test_numbers_are_formatted_without_a_leading_zero():
    assert [number(x) for x in (0.314, 1.0, 0.0, -0.02, -0.001, None)] == [".31", "1.00", ".00", "−.02", ".00", "–"]
    assert [number(x, signed=True) for x in (0.5, -0.5, 0.0)] == ["+.50", "−.50", ".00"]


def test_intervals_are_formatted_in_brackets():
    assert interval_text(made(0.2, 0.42)) == ".31 [.20, .42]"
    assert interval_text(made(-0.08, 0.04), signed=True) == "−.02 [−.08, .04]"
    assert interval_text(Interval(value=0.5, n=1)) == ".50 (no interval)"
    assert interval_text(wilson(0, 0)) == interval_text(None) == "–"


def test_nonzero_interval_end_is_not_formatted_as_zero():
    assert interval_text(made(0.003, 0.4), signed=True) == "+.20 [.003, .40]"
    assert interval_text(made(-0.4, -0.0004), signed=True) == "−.20 [−.40, −.0004]"


@pytest.mark.parametrize("condition", ["hints", "shuffled", "misleading", "resample", "something else"])
@pytest.mark.parametrize(
    ("low", "high"), [(-0.1, 0.1), (0.0, 0.2), (-0.2, 0.0), (0.01, 0.2), (-0.3, -0.01), (0.0001, 0.5), (0.0, 0.0)]
)
def test_markdown_states_whether_the_interval_includes_zero(condition, low, high):
    text = with_effect(made(low, high), condition).to_markdown()
    holds_zero = low <= 0 <= high
    shown = interval_text(made(low, high), signed=True)
    about = [line for line in text.splitlines() if line.startswith("- ") and shown in line]
    table = [line for line in text.splitlines() if line.startswith("| hint_effect |")]
    assert len(about) == len(table) == 1
    assert ("95 % CI includes 0" in about[0]) == holds_zero
    assert ("95 % CI includes 0" in table[0]) == holds_zero


def test_the_direction_of_an_effect_that_excludes_zero_is_named():
    assert "hint_effect of rl2f@24 is +.31 [.20, .42]: hints help." in findings(with_effect(made(0.2, 0.42)))
    assert "hint_effect of rl2f@24 is −.31 [−.42, −.20]: hints hurt." in findings(with_effect(made(-0.42, -0.2)))
    assert "Under shuffled hints (rl2f@24): −.31 [−.42, −.20]: worse than contentless." in findings(
        with_effect(made(-0.42, -0.2), "shuffled")
    )


def test_single_task_gives_no_interval():
    text = with_effect(Interval(value=1.0, n=1)).to_markdown()
    assert "+1.00 (no interval): no interval, 1 task." in text
    assert "Only 1 tasks are paired" in text


def test_few_tasks_give_a_warning():
    assert any("Only 5 tasks are paired" in line for line in findings(with_effect(made(0.1, 0.2, n=5))))
    assert not any("are paired" in line for line in findings(with_effect(made(0.1, 0.2, n=6))))


def test_markdown_contains_baseline_reference_policies_and_limits():
    report = built()
    text, last = report.to_markdown(), report.references[-1]
    assert f"and {number(last.without_hints)} without hints" in text
    assert f"solves {number(last.with_hints)} with hints" in text
    assert (
        f"The best constant answer ({report.constant_baseline.answer}) solves {number(report.constant_baseline.score)}"
        in text
    )
    assert "Most attempts of base are unparsable: 1.00 (hints); its numbers mainly reflect the answer format." in text
    assert "rl2f@24 was trained on 1,000 tokens." in text
    assert "| rl2f@24 | contentless |" in text and "0 by definition" in text


def test_checkpoint_is_compared_with_the_optimal_policy_without_hints():
    """7 of 8 within [.53, .98] lies above .2, not above .6, and below .99."""
    for bound, place in ((0.2, "above"), (0.6, "indistinguishable from"), (0.99, "below")):
        reference = Reference(turn=TURNS, with_hints=1.0, without_hints=bound)
        report = built().model_copy(update={"references": (reference,)})
        sentence = f"rl2f@24 with hints solves .88 [.53, .98] within 3 turns: {place} the optimal policy without hints"
        assert sentence in report.to_markdown()


def test_misled_rate_is_reported_with_the_contentless_rate():
    """Wrong answers all lie at .5: no revision moves away. Misleading: 7 dialogues of 2 revisions, 0 of 14."""
    lines = [line for line in findings(built()) if "misled_rate" in line]
    assert len(lines) == 1
    assert lines[0].startswith("rl2f@24 moves away from the answer in .00 [.00, ")


def test_failed_dialogues_are_reported():
    broken = tasks(1, 0)[1].model_copy(update={"stop_reason": StopReason.FAILED})
    report = built({"base": {"hints": [tasks(1)[0], broken], "contentless": tasks(1, 0)}})
    assert "base under hints: .50 of the dialogues failed and are left out." in findings(report)


def test_unshuffled_hints_are_counted():
    lent = [d.model_copy(update={"turns": tuple(
        t if t.hint is None else t.model_copy(update={"hint": t.hint.model_copy(update={"source_task": "t9"})})
        for t in d.turns
    )}) for d in tasks(0, 2)]  # fmt: skip
    shuffled = {"hints": tasks(1, 2), "contentless": tasks(1, 0)}
    assert not any("shuffled hints for" in line for line in findings(built({"base": {**shuffled, "shuffled": lent}})))
    half = [lent[0], tasks(0, 2)[1]]  # three hints: two lent, one not
    said = "1 of 3 shuffled hints for base were contentless, because no other task had a hint."
    assert said in findings(built({"base": {**shuffled, "shuffled": half}}))


def test_long_evaluations_show_selected_turns():
    dialogues = {"base": {"hints": tasks(1, 0)}}
    kind = registry.get("environment", "secret_code")
    report = build_report(kind(kind.Config()), dialogues, 10, EvaluatedTasks(2, 1))
    assert "| checkpoint | condition | t = 1 | t = 2 | t = 3 | t = 5 | t = 10 |" in report.to_markdown()


def test_report_supports_a_single_turn():
    report = build_report(
        registry.get("environment", "secret_code")(registry.get("environment", "secret_code").Config()),
        {"base": {"hints": tasks(1, 0), "contentless": tasks(0, 0)}}, 1, EvaluatedTasks(2, 1),
    )  # fmt: skip
    assert "| checkpoint | condition | cum_acc/1 | gain |" in report.to_markdown()


def test_table_cells_are_escaped():
    text = markdown_table(("T", ["a", "b"], [["x|y\nz", "w"]]))
    assert text.splitlines()[-1] == "| x\\|y z | w |"


# -- several seeds -------------------------------------------------------------------------------------------------
def seeds(*intervals: Interval) -> dict[str, EvaluationReport]:
    return {str(i): with_effect(interval) for i, interval in enumerate(intervals)}


def row_of(summary: SeedSummary, checkpoint: str, quantity: str, condition: str = "hints") -> SeedRow:
    key = (checkpoint, condition, quantity)
    return next(row for row in summary.rows if (row.checkpoint, row.condition, row.quantity) == key)


def test_seeds_are_merged_with_a_t_interval():
    """.2, .3, .4: mean .3, half 4.3027 · .1 / √3 = .248; the first seed's own interval holds 0."""
    summary = merge_seeds(seeds(made(-0.05, 0.45), made(0.1, 0.5), made(0.2, 0.6)))
    row = row_of(summary, "rl2f@24", "hint_effect")
    assert row.values == pytest.approx((0.2, 0.3, 0.4))
    assert (row.mean.value, row.mean.low, row.mean.high) == pytest.approx((0.3, 0.0516, 0.5484), abs=1e-4)
    assert row.above_zero == 2
    text = summary.to_markdown()
    assert "| rl2f@24 | hints | hint_effect | +.20 | +.30 | +.40 | +.30 [.05, .55] | 2 of 3 |" in text
    assert (
        "- hint_effect of rl2f@24: +.30 [.05, .55] over 3 seeds, above 0; 2 of 3 seeds are above 0 on their own."
        in text
    )
    assert row_of(summary, "b − a", "difference of hint_effect", condition="").mean == row.mean


def test_the_interval_of_seeds_that_disagree_includes_zero():
    summary = merge_seeds(seeds(made(0.1, 0.3), made(-0.3, -0.1)))
    assert "hint_effect of rl2f@24: .00 [−2.54, 2.54] over 2 seeds, 95 % CI includes 0" in summary.to_markdown()


def test_one_seed_has_no_interval_over_seeds():
    summary = merge_seeds(seeds(made(0.1, 0.3)))
    assert row_of(summary, "rl2f@24", "hint_effect").mean == Interval(value=0.2, n=1)
    assert "+.20 (no interval) over 1 seeds, no interval, 1 seed;" in summary.to_markdown()


def test_intervals_of_fractions_over_seeds_stay_in_range():
    reports = {"0": built(), "1": built(), "2": built({**PLAYED, "rl2f@24": PLAYED["base"]})}
    row = row_of(merge_seeds(reports), "rl2f@24", "cum_acc/3")
    assert row.values == (7 / 8, 7 / 8, 0.0)
    assert (row.mean.low, row.mean.high) == (0.0, 1.0)
    assert row.above_zero is None


def test_missing_checkpoint_of_a_seed_gives_none():
    reports = {"0": built(), "1": built({"base": PLAYED["base"]})}
    row = row_of(merge_seeds(reports), "rl2f@24", "hint_effect")
    assert row.values == (0.75, None)
    assert row.mean == Interval(value=0.75, n=1)


def test_reports_of_different_tasks_are_not_merged():
    other = with_effect(made(0.1, 0.2)).model_copy(update={"turns": 9})
    with pytest.raises(DataError, match="differ in environment"):
        merge_seeds({"0": with_effect(made(0.1, 0.2)), "1": other})
    with pytest.raises(DataError):
        merge_seeds({})


def test_seed_summary_round_trips_through_json():
    summary = merge_seeds({"0": built(), "1": built()})
    assert type(summary).model_validate_json(summary.model_dump_json()) == summary


# -- figures -------------------------------------------------------------------------------------------------------
def drawn(plot: Plot, kind: str = "line") -> dict[str, dict[str, Any]]:
    """Traces of one plot by name, checked by Plotly."""
    made = figure(plot)
    Figure(resolve_colors(made))
    return {trace["name"]: trace for trace in made["data"] if trace["meta"] == kind}


def test_accuracy_figure_shows_the_values_of_the_report():
    report = built()
    chart = accuracy_chart(report)
    assert [plot.title for plot in chart.plots] == ["base", "rl2f@24"]
    before, after = (drawn(plot) for plot in chart.plots)
    assert (before["hints"]["y"], after["hints"]["y"]) == ([0.0, 0.0, 0.0], [1 / 8, 4 / 8, 7 / 8])
    assert after["hints"]["x"] == [1, 2, 3]
    assert after["hints"]["line"]["dash"] == "solid" and after["contentless"]["line"]["dash"] != "solid"
    assert after["optimal without hints"]["y"] == [r.without_hints for r in report.references]


def test_bands_show_the_intervals():
    """There and back: the upper ends, then the lower ends in reverse."""
    report = built()
    band = drawn(accuracy_chart(report).plots[1], "band")["hints"]
    found = report.metrics("rl2f@24", "hints").series("cum_acc")
    assert band["y"] == [i.high for i in found] + [i.low for i in reversed(found)]


def test_effect_figure_shows_values_and_bounds():
    report = with_effect(made(-0.25, 0.75))
    (trace,) = drawn(effect_chart(report).plots[0]).values()
    assert (trace["x"], trace["y"], trace["text"]) == ([0.25], ["hints"], ["+.25 [−.25, +.75]"])
    assert (trace["error_x"]["array"], trace["error_x"]["arrayminus"]) == ([0.5], [0.5])


def test_effect_without_interval_is_a_point():
    (trace,) = drawn(effect_chart(with_effect(Interval(value=1.0, n=1))).plots[0]).values()
    assert trace["x"] == [1.0] and "error_x" not in trace


def test_report_files_contain_no_css_variable():
    for chart in (accuracy_chart(built()), effect_chart(built()), training_chart(ROWS, "Training")):
        for plot in chart.plots:
            assert "--rl-" not in json.dumps(resolve_colors(figure(plot)))
    assert resolve_colors(["fade(--rl-muted,0.5)", "mix(--rl-surface,--rl-muted,0.5)"]) == ["#7b7b7b80", "#bdbdbd"]


ROWS = [
    {"step": 2, "reward": 0.3, "retention": 0.9, "groups/frac_mixed": 0.5, "groups/frac_all_correct": 0.1,
     "groups/frac_all_incorrect": 0.4, "time/rollout": 9.0, "time/update": 4.0, "cum_acc/1": 0.1, "cum_acc/3": 0.4},
    {"step": 1, "reward": 0.1, "retention": 0.5, "time/rollout": 8.0, "cum_acc/1": 0.1, "cum_acc/3": 0.2},
]  # fmt: skip


def test_training_curves_are_ordered_by_step():
    chart = training_chart(ROWS, "Training")
    series = {(p.title, s.name): (s.x, s.y) for p in chart.plots for s in p.lines}
    assert series[("Reward", "mean")] == ((1, 2), (0.1, 0.3))
    assert series[("Revisions after feedback", "retention")] == ((1, 2), (0.5, 0.9))
    assert series[("Groups", "all correct ✓")] == ((2,), (0.1,))
    assert series[("Time", "update")] == ((2,), (4.0,))
    assert series[("Solved", "within t = 3")] == ((1, 2), (0.2, 0.4))
    assert drawn(chart.plots[-1])["rollout"]["y"] == [8.0, 9.0]


def test_plots_without_data_are_left_out():
    assert [p.title for p in training_chart([{"step": 1, "reward": 1.0}], "T").plots] == ["Reward"]
    assert training_chart([], "T").plots == ()
    assert effect_chart(built({"base": {"hints": tasks(1)}})).plots == ()


@pytest.mark.parametrize("kind", ["accuracy", "effect", "training"])
def test_png_is_rendered_without_a_browser(kind):
    chart = {
        "accuracy": lambda: accuracy_chart(built()),
        "effect": lambda: effect_chart(built()),
        "training": lambda: training_chart(ROWS, "Training $x$ of $y_"),
    }[kind]()
    data = to_png(chart, dpi=80)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    assert width == 416 and height > 150
    assert data[25] == 6  # colour type: with an alpha channel


def test_report_without_hints_plots_its_other_conditions():
    report = built({"base": {"contentless": tasks(1, 0)}})
    assert "contentless" in drawn(accuracy_chart(report).plots[0])
    assert to_png(accuracy_chart(report), dpi=50)


def test_html_has_one_script_and_escaped_text(tmp_path):
    report = built().model_copy(update={"level": "<script>alert(1)</script>", "notes": ("<b>bold</b>",)})
    written = write_figures(report, tmp_path / "figures", {"rl2f": ROWS})
    assert [p.name for p in written] == ["report.html", "solved_by_turn.png", "hint_effect.png", "training_rl2f.png"]
    assert all(p.stat().st_size > 1000 for p in written)
    page = written[0].read_text(encoding="utf-8")
    assert page.count("plotly.js v") == 1
    assert page.count('class="plotly-graph-div"') == 9  # shares and effects of two checkpoints, five of training
    assert "<script>alert(1)" not in page and "<b>bold</b>" not in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert 'src="http' not in page


def test_html_begins_with_the_hint_effect():
    page = to_html(built(), [])
    assert page.index("hint_effect of rl2f@24") < page.index("Findings")


def test_importing_the_evaluation_loads_no_drawing_library_and_no_torch():
    code = (
        "import sys, rl2f_core.evaluation.figure_files, rl2f_core.evaluation.across_seeds;"
        "print([m for m in ('torch', 'plotly', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
