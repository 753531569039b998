"""Report: values, findings, several seeds, and figures."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import pytest
import report_data
from plotly.graph_objects import Figure
from report_data import TURNS, made, series, tasks, with_effect

from rl2f_core import registry
from rl2f_core.common.stats.intervals import MIN_PROBLEMS, Interval, wilson
from rl2f_core.dialogue.metrics.constant_baseline import compare_to_baseline, describe_comparison
from rl2f_core.dialogue.metrics.dialogues import OUTCOMES
from rl2f_core.evaluation.chart_data import accuracy_chart, effect_chart, training_chart
from rl2f_core.evaluation.figure_files import to_html, to_png, write_figures
from rl2f_core.evaluation.formatting import (
    interval_beside,
    interval_text,
    markdown_table,
    number,
    p_text,
    verdict_text,
)
from rl2f_core.evaluation.plotting import PALETTE, Plot, figure, resolve_colors
from rl2f_core.evaluation.report import (
    EvaluatedTasks,
    EvaluationReport,
    Reference,
    baseline_findings,
    build_report,
    findings,
    tables,
)
from rl2f_core.types import ConstantBaseline, Dialogue, StopReason

WHOLE = functools.cache(report_data.built)


def built(*args: Any, **more: Any) -> EvaluationReport:
    """A report of constructed dialogues; that of the default ones is made once."""
    return report_data.built(*args, **more) if args or more else WHOLE()


# -- the report ----------------------------------------------------------------------------------------------------
def test_report_contains_metrics_effects_and_differences():
    """Effects of rl2f@24: hints 7/8 − 1/8 = .75, misleading 0. It beats base by 7/8 in cum_acc, by .75 in effect."""
    report = built()
    assert report.checkpoints == ["base", "rl2f@24"]
    assert report.conditions == ["hints", "contentless", "misleading"]
    assert [i.value for i in series(report.metrics("rl2f@24", "hints"), "cum_acc")] == [1 / 8, 4 / 8, 7 / 8]
    assert report.effect("rl2f@24").value == 0.75
    misleading = report.effect("rl2f@24", "misleading")
    assert (misleading.value, misleading.n, misleading.p_value) == (
        0.0,
        8,
        1.0,
    ) and misleading.low < 0 < misleading.high
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
    few = built().model_copy(update={"constant_baseline": ConstantBaseline(answer="A A A", score=0.05)})
    report = few.model_copy(update={"tasks": MIN_PROBLEMS})
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


def test_attempt_outcomes_in_a_row_add_up_to_one():
    title, header, rows = next(t for t in tables(built()) if t[0].startswith("Attempt outcomes"))
    assert header[2:] == [name.replace("_", " ") for name in OUTCOMES] and title.endswith("(each row adds up to 1)")
    for row in rows:
        assert sum(float(text.split()[0]) for text in row[2:]) == pytest.approx(1, abs=0.02)


def test_report_round_trips_through_json():
    report = built()
    assert EvaluationReport.model_validate_json(report.to_json()) == report
    assert "NaN" not in report.to_json()


def test_values_by_problem_are_stored_compactly():
    """cum_acc/3 of rl2f@24 with hints: 7 of 8 tasks; of the base nothing, and its revisions retain no parts."""
    report = built(evaluated=EvaluatedTasks(8, 1, keys={f"t{i}": f"key{i}" for i in range(8)}))
    assert report.problems == tuple(f"key{i}" for i in range(8))
    row = next(r for r in report.rows if (r.checkpoint, r.condition) == ("rl2f@24", "hints"))
    assert row.by_problem["cum_acc/3"].sums == (1, 1, 1, 1, 1, 1, 1, 0)
    assert row.by_problem["retention"].counts == (0,) * 8
    control = next(r for r in report.rows if r.condition == "contentless")
    assert set(control.by_problem) == {"cum_acc/1", "cum_acc/3"}
    assert '"sums": [1,1,1,1,1,1,1,0],' in report.to_json()


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


def test_an_end_that_differs_from_what_it_is_compared_with_is_shown_as_different():
    assert interval_beside(made(-0.02, 0.0972), 0.1, signed=True) == ("+.039 [−.020, .097]", ".100")
    assert interval_beside(made(0.1, 0.4), 0.1) == (".25 [.10, .40]", ".10")
    rejected = Interval(value=0.3, low=0.1, high=0.5, n=20, holm_p=0.0503)
    assert verdict_text(rejected, "above", "below").endswith("(p = .0503)")
    assert p_text(0.05) == ".05"


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
    assert "The hint effect of rl2f@24 is +.31 [.20, .42]: hints help." in findings(with_effect(made(0.2, 0.42)))
    assert "The hint effect of rl2f@24 is −.31 [−.42, −.20]: hints hurt." in findings(with_effect(made(-0.42, -0.2)))
    assert "Under shuffled hints (rl2f@24): −.31 [−.42, −.20]: worse than contentless." in findings(
        with_effect(made(-0.42, -0.2), "shuffled")
    )


def test_single_task_gives_no_interval():
    text = with_effect(Interval(value=1.0, n=1)).to_markdown()
    assert "+1.00 (no interval): no interval, 1 problem." in text
    assert "Only 1 problems are paired" in text


def test_fewer_than_ten_problems_are_too_few_to_tell():
    """Defect 6: two tasks produced "+1.00 [1.00, 1.00]: hints help"."""
    few, enough = findings(with_effect(made(0.1, 0.2, n=9))), findings(with_effect(made(0.1, 0.2, n=10)))
    assert few[0].endswith("+.15 [.10, .20]: too few to tell (n = 9, at least 10 are needed).")
    assert any("Only 9 problems are paired; fewer than 10 are too few to tell." == line for line in few)
    assert enough[0].endswith("+.15 [.10, .20]: hints help.") and not any("are paired" in line for line in enough)
    two = built({"base": {"hints": tasks(1, 1), "contentless": tasks(0, 0)}})
    assert (
        "The hint effect of base is +1.00 [−1.00, 1.00]: too few to tell (n = 2, at least 10 are needed)."
        in findings(two)
    )


def test_findings_of_a_family_are_corrected():
    """Ten methods: each is better in 6 and worse in no problem of 20, p = 2 · ½⁶ = .031, ten times .31."""
    methods = {f"m{i}": {"hints": tasks(*[1] * 6, *[0] * 14), "contentless": tasks(*[0] * 20)} for i in range(10)}
    one, ten = (findings(built(dict(list(methods.items())[:n]))) for n in (1, 10))
    assert any(line.startswith("The hint effect of m0 is +.30") and line.endswith("hints help.") for line in one)
    corrected = [line for line in ten if line.startswith("The hint effect of m")]
    assert len(corrected) == 10
    assert all("95 % CI excludes 0, but not after Holm's correction (p = .3" in line for line in corrected)


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
        report = built().model_copy(update={"references": (reference,), "tasks": MIN_PROBLEMS})
        sentence = f"rl2f@24 with hints solves .88 [.53, .98] within 3 turns: {place} the optimal policy without hints"
        assert sentence in report.to_markdown()


def test_misled_rate_is_reported_with_its_chance_level():
    """Misleading: 7 dialogues of 2 revisions, all toward the hint. Contentless: none of the revisions."""
    assert not [line for line in findings(built()) if "toward the misleading hint" in line]

    def moved(dialogues: list[Dialogue], toward: bool) -> list[Dialogue]:
        return [
            d.model_copy(update={"turns": tuple(
                t.model_copy(update={"misled": toward}) if t.index else t for t in d.turns
            )}) for d in dialogues
        ]  # fmt: skip

    played = {
        "hints": tasks(1, 0),
        "contentless": moved(tasks(1, *[0] * 7), False),
        "misleading": moved(tasks(1, *[0] * 7), True),
    }
    (line,) = [line for line in findings(built({"rl2f@24": played})) if "toward the misleading hint" in line]
    assert line.startswith("rl2f@24 moves toward the misleading hint in 1.00 [")
    assert "without reading it, after contentless feedback, in .00 [" in line


def test_failed_dialogues_are_reported():
    broken = tasks(1, 0)[1].model_copy(update={"stop_reason": StopReason.FAILED})
    report = built({"base": {"hints": [tasks(1)[0], broken], "contentless": tasks(1, 0)}})
    assert "base under hints: .50 of the dialogues failed and are left out." in findings(report)


def test_shuffled_hints_without_a_match_are_counted():
    lent = [d.model_copy(update={"turns": tuple(
        t if t.hint is None else t.model_copy(update={"hint": t.hint.model_copy(update={"source_task": "t9"})})
        for t in d.turns
    )}) for d in tasks(0, 2)]  # fmt: skip
    shuffled = {"hints": tasks(1, 2), "contentless": tasks(1, 0)}
    said = "Shuffled hints without a match, replaced by contentless ones: base {}."
    assert not any("without a match" in line for line in findings(built({"base": shuffled})))
    assert said.format("0 of 3") in findings(built({"base": {**shuffled, "shuffled": lent}}))
    half = [lent[0], tasks(0, 2)[1]]  # three hints: two matched, one not
    assert said.format("1 of 3") in findings(built({"base": {**shuffled, "shuffled": half}}))


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
    found = series(report.metrics("rl2f@24", "hints"), "cum_acc")
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


@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("accuracy", "effect")), "training"]
)
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


@pytest.mark.slow
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
    assert page.index("The hint effect of rl2f@24") < page.index("Findings")


@pytest.mark.slow
def test_importing_the_evaluation_loads_no_drawing_library_and_no_torch():
    code = (
        "import sys, rl2f_core.evaluation.figure_files, rl2f_core.evaluation.across_seeds;"
        "print([m for m in ('torch', 'plotly', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_nested_mixtures_of_colors_are_resolved() -> None:
    palette = {"--rl-surface": "#ffffff", "--rl-student": "#2f7fd6"}
    assert {name: PALETTE[name] for name in palette} == palette
    assert resolve_colors("mix(--rl-surface,--rl-student,0.50)") == "#97bfea"  # (0xff + 0x2f) / 2 = 151 = 0x97
    assert resolve_colors("mix(mix(--rl-surface,--rl-student,1.00),--rl-surface,0.5)") == "#97bfea"
    assert resolve_colors("fade(--rl-student,1.0)") == "#2f7fd6ff"
