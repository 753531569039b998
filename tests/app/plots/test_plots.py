"""Plots from plain rows: numbers worked out by hand go in, traces come out."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest

from app.plots.metric_info import CHARTS, METRIC_GROUPS, METRICS, metric_info
from app.plots.run_charts import PlotOptions, catalogue, overview, series, sizes_of
from app.plots.series import axis, line, share_band, smooth, thin
from app.web.page_registry import STATIC
from jobs.db.models import Metric
from rl2f_core.common.stats.intervals import effective_number, wilson, wilson_clustered
from rl2f_core.evaluation.plotting import Line, Mark, Plot, figure, place_labels, value_text

T0 = 1_000_000.0


def rows(*steps: tuple[str, int, dict[str, float]], seconds: float = 30.0, tokens: float = 100.0) -> list[Metric]:
    """Metric rows in order: (stage, step, values)."""
    made = []
    for i, (stage, step, values) in enumerate(steps):
        at, sampled = T0 + seconds * (i + 1), tokens * (i + 1)
        made.append(Metric(run_id=1, stage=stage, step=step, number=i, time=at, tokens=sampled, values=values))
    return made


def lines_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The traces that are lines, by name."""
    return {trace["name"]: trace for trace in found["data"] if trace["meta"] == "line"}


def validated(found: dict[str, Any]) -> Any:
    """The figure as Plotly's own classes check it, with one colour for all names of colours."""
    from plotly.graph_objects import Figure

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(held) for key, held in value.items()}
        if isinstance(value, list | tuple):
            return [plain(held) for held in value]
        return "#123456" if isinstance(value, str) and re.match(r"--rl-|fade\(|mix\(", value) else value

    return Figure(plain(found))


# -- smoothing -----------------------------------------------------------------------------------------------------
def test_a_smoothed_value_is_the_weighted_mean_of_all_before_it() -> None:
    found = smooth([1.0, 0.0, 1.0], 0.5)
    assert found == pytest.approx([1.0, 0.5 / 1.5, (0.25 + 0 + 1) / 1.75])


def test_no_smoothing_leaves_values_as_they_are_and_gaps_stay_gaps() -> None:
    assert smooth([3.0, None, 5.0], 0.0) == [3.0, None, 5.0]
    assert smooth([2.0, None, 4.0], 0.5) == [2.0, None, pytest.approx((0.5 * 2 + 4) / 1.5)]


def test_smoothing_begins_anew_with_a_stage() -> None:
    assert smooth([8.0, 8.0, 2.0, 2.0], 0.9, [True, False, True, False]) == pytest.approx([8.0, 8.0, 2.0, 2.0])


def test_the_band_of_an_unsmoothed_share_is_wilsons_interval() -> None:
    low, high = share_band([0.25], [32.0], 0.0)
    expected = wilson(8, 32)
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high))


def test_a_smoothed_share_is_worth_more_observations_than_its_last_step() -> None:
    low, high = share_band([0.5, 0.5], [10.0, 10.0], 0.5)
    worth = (1 + 0.5) ** 2 / (0.25 / 10 + 1 / 10)  # 18
    expected = wilson(9, 18)
    assert worth == pytest.approx(18)
    assert (low[1], high[1]) == pytest.approx((expected.low, expected.high))
    assert high[1] - low[1] < high[0] - low[0]  # type: ignore[operator]


def test_a_share_whose_count_is_not_known_has_no_band() -> None:
    assert share_band([0.5, 0.5], [None, 0.0], 0.5) == ([None, None], [None, None])


def test_dialogues_of_one_task_count_as_the_clustered_interval_counts_them() -> None:
    hits, counts = [8.0, 0.0, 4.0, 0.0], [8.0, 8.0, 8.0, 8.0]
    size = effective_number(hits, counts)[1]
    clustered, own = wilson_clustered(hits, counts), wilson(12 / 32 * size, size)
    assert size < 32
    assert (own.low, own.high) == pytest.approx((clustered.low, clustered.high))
    assert effective_number([1.0, 1.0], [1.0, 1.0])[1] == 2.0  # all hit: each group counts once
    assert effective_number([], [])[1] == 0.0


# -- x -------------------------------------------------------------------------------------------------------------
def test_steps_are_those_of_the_stage_where_there_is_one_and_counted_over_all_else() -> None:
    both = rows(("sft", 1, {}), ("sft", 2, {}), ("rl", 1, {}))
    assert axis(both).values == [1.0, 2.0, 3.0]
    assert axis(both).marks() == [Mark(3.0, "rl")]
    assert axis(both[2:]).values == [1.0] and axis(both[2:]).title == "step of rl"


def test_x_may_be_sampled_tokens_or_time_since_the_start() -> None:
    held = rows(("rl", 1, {}), ("rl", 2, {}), seconds=120)
    assert axis(held, "tokens").values == [100.0, 200.0]
    along = axis(held, "time", began=T0)
    assert along.values == [2.0, 4.0] and along.title == "minutes since the start"
    assert axis(held, "time", began=T0 + 10_000).values == [0.0, 120.0]  # a later session began after the first step
    assert axis(held, "time", longest=7200).values == [0.0, 2.0]


def test_long_lines_are_thinned_and_keep_their_last_point_and_their_stages() -> None:
    kept = thin(10_000, keep=[5_001], limit=1_000)
    assert len(kept) <= 1_002 and kept[-1] == 9_999 and 5_001 in kept
    assert thin(5, limit=1_000) == [0, 1, 2, 3, 4]


def test_a_line_breaks_where_a_stage_begins_and_says_which_step_a_click_means() -> None:
    held = rows(("a", 1, {"m": 1.0}), ("a", 2, {"m": 2.0}), ("b", 1, {"m": 3.0}))
    found = line("m", [1.0, 2.0, 3.0], axis(held))
    assert list(found.y) == [1.0, 2.0, None, 3.0]
    assert list(found.at) == [["a", 1, "a step 1"], ["a", 2, "a step 2"], None, ["b", 1, "b step 1"]]


# -- figures -------------------------------------------------------------------------------------------------------
def test_a_figure_has_the_numbers_their_intervals_and_what_was_smoothed() -> None:
    made = figure(
        Plot([Line("share", [1, 2], [0.25, 0.5], low=[0.1, 0.3], high=[0.4, 0.7], raw=[0.25, 0.75])], format="share")
    )
    trace = lines_of(made)["share"]
    assert trace["x"] == [1, 2] and trace["y"] == [0.25, 0.5]
    assert trace["text"] == [".25 [.10, .40], this step .25", ".50 [.30, .70], this step .75"]
    band = next(t for t in made["data"] if t["meta"] == "band")
    assert band["x"] == [1, 2, 2, 1] and band["y"] == [0.4, 0.7, 0.3, 0.1]
    assert next(t for t in made["data"] if t["meta"] == "raw")["y"] == [0.25, 0.75]
    assert made["layout"]["yaxis"]["range"][0] == 0.0
    assert validated(made).data


def test_a_band_with_a_gap_is_two_outlines() -> None:
    made = figure(Plot([Line("s", [1, 2, 3], [0.1, None, 0.2], low=[0.0, None, 0.1], high=[0.2, None, 0.3])]))
    band = next(t for t in made["data"] if t["meta"] == "band")
    assert band["x"] == [1, 1, None, 3, 3] and band["y"] == [0.2, 0.0, None, 0.3, 0.1]


def test_names_stand_at_the_ends_of_lines_apart_and_nothing_else_names_them() -> None:
    made = figure(Plot([Line("one", [1, 2], [0.50, 0.50]), Line("two", [1, 2], [0.51, 0.51])], format="share"))
    notes = {note["text"]: note for note in made["layout"]["annotations"]}
    room = made["layout"]["height"] - 16 - 38
    low, high = made["layout"]["yaxis"]["range"]
    at = {name: (notes[name]["y"] - low) / (high - low) * room + notes[name]["yshift"] for name in ("one", "two")}
    assert at["two"] - at["one"] >= 12.9
    assert made["layout"]["showlegend"] is False
    assert figure(Plot([Line("alone", [1], [1.0])]))["layout"]["annotations"] == []


def test_names_are_text_and_never_markup() -> None:
    made = figure(Plot([Line("<b>x</b>", [1], [1.0]), Line("<a href='javascript:alert(1)'>", [1], [2.0])]))
    said = [t["name"] for t in made["data"]] + [n["text"] for n in made["layout"]["annotations"]]
    assert said and not any("<" in text for text in said)


def test_labels_keep_their_order_and_stay_inside() -> None:
    assert place_labels([10.0, 11.0], 12.0, 0.0, 100.0) == pytest.approx([4.5, 16.5])
    assert place_labels([0.0, 0.0], 12.0, 0.0, 100.0) == pytest.approx([0.0, 12.0])
    assert place_labels([50.0, 5.0], 10.0, 0.0, 100.0) == pytest.approx([50.0, 5.0])
    crowded = place_labels([5.0] * 30, 12.0, 0.0, 100.0)
    assert min(crowded) >= 0 and max(crowded) <= 100 + 1e-9


def test_numbers_read_as_in_the_report() -> None:
    assert [value_text(0.314, "share"), value_text(1.0, "share"), value_text(None)] == [".31", "1.00", "–"]
    assert value_text(0.0004, "share") == ".0004"
    assert [value_text(12345.0), value_text(-0.5), value_text(math.nan)] == ["12,345", "−.5", "–"]


# -- a run's plots -------------------------------------------------------------------------------------------------
def test_the_overview_shows_what_the_issue_asks_for_under_the_names_the_field_knows() -> None:
    values = {
        "reward": 0.5,
        "cum_acc/1": 0.25,
        "cum_acc/2": 0.5,
        "plasticity": 0.9,
        "repeated_answer_rate": 0.1,
        "leak_rate": 0.0,
        "groups/frac_mixed": 0.5,
        "groups/frac_all_correct": 0.25,
        "groups/frac_all_incorrect": 0.25,
        "attempt_tokens": 11.0,
        "approx_kl": 1e-4,
        "entropy": 0.3,
        "time/rollout": 2.0,
        "time/update": 3.0,
    }
    charts = {
        chart.key: chart
        for chart in overview(rows(("rl", 1, values), ("rl", 2, values)), PlotOptions(max_new_tokens=14))
    }
    assert list(charts) == [
        "reward",
        "cum_acc/",
        "revisions",
        "groups",
        "leak_rate",
        "attempt_tokens",
        "approx_kl",
        "entropy",
        "time/",
    ]
    assert list(lines_of(charts["cum_acc/"].figure)) == ["t = 1", "t = 2"]
    assert set(lines_of(charts["revisions"].figure)) == {"changed", "repeated"}
    stacked = lines_of(charts["groups"].figure)
    assert {name: trace["y"][0] for name, trace in stacked.items()} == {
        "all incorrect ✗": 0.25,
        "mixed": 0.5,
        "all correct ✓": 0.25,
    }
    assert (
        "frac_mixed | all_good | all_bad" in charts["groups"].note and "frac_reward_zero_std" in charts["groups"].note
    )
    assert [t["name"] for t in charts["time/"].figure["data"]] == ["update", "rollout"]  # the longest at the bottom
    assert charts["time/"].note == "update takes 60%"
    assert any(n["text"] == "limit 14" for n in charts["attempt_tokens"].figure["layout"]["annotations"])
    for chart in charts.values():
        assert validated(chart.figure).data and chart.unit and chart.as_json()["words"]


def test_what_attempts_came_to_is_stacked_and_lengths_and_words_are_split_by_right_and_wrong() -> None:
    values = {"outcome/correct": 0.25, "outcome/incorrect": 0.5, "outcome/unparsable": 0.25, "outcome/truncated": 0.0,
              "attempt_tokens": 9.0, "attempt_tokens/correct": 8.0, "attempt_tokens/incorrect": 10.0,
              "cum_acc/1": 0.25, "constant_baseline": 0.2,
              "reflection_words": 2.0, "reflection_words/incorrect": 3.0}  # fmt: skip
    found = {c.key: lines_of(c.figure) for c in overview(rows(("rl", 1, values), ("rl", 2, values)), PlotOptions())}
    assert list(found["outcome/"]) == ["unparsable", "incorrect", "correct"]
    assert sum(trace["y"][-1] for trace in found["outcome/"].values()) == 1
    assert {name: trace["y"][-1] for name, trace in found["attempt_tokens"].items()} == {
        "all": 9,
        "correct": 8,
        "incorrect": 10,
    }
    assert list(found["reflection_words"]) == ["all", "incorrect"]
    assert found["cum_acc/"]["constant answer"]["y"] == [0.2, 0.2]
    silent = overview(rows(("rl", 1, {"reflection_words": 0.0, "attempt_tokens": 3.0})), PlotOptions())
    assert [c.key for c in silent] == ["attempt_tokens"] and list(lines_of(silent[0].figure)) == ["attempt_tokens"]


def test_parts_levels_and_value_heads_have_plots_of_their_own() -> None:
    held = {"solved/codes": 0.5, "solved/numbers": 0.25, "curriculum/level": 1.0, "curriculum/solve_rate": 0.5,
            "curriculum/replay_solve_rate": 0.75, "value/explained_variance": -0.5,
            "off_context/masked_frac": 1.0}  # fmt: skip
    charts = {
        c.key: c for c in overview(rows(("rl", 1, held), ("rl", 2, held | {"curriculum/level": 2.0})), PlotOptions())
    }
    assert list(lines_of(charts["solved/"].figure)) == ["codes", "numbers"]
    assert list(lines_of(charts["curriculum/solve_rate"].figure)) == ["this level", "earlier levels"]
    smoothed = overview(rows(("rl", 1, held), ("rl", 2, held | {"curriculum/level": 2.0})), PlotOptions(weight=0.9))
    (level,) = [c for c in smoothed if c.key == "curriculum/level"]
    assert lines_of(level.figure)["level"]["y"] == [1, 2]  # no run is between two levels
    assert {"value/explained_variance", "off_context/masked_frac"} <= charts.keys()


def test_the_use_of_the_machine_has_a_chart_per_unit_over_all_stages() -> None:
    cpu = {"system/cpu_cores": 1.5, "system/memory_gb": 2.0}
    gpu = {"system/gpu_memory_gb": 8.0, "system/gpu_utilization": 0.75}
    held = rows(("warm", 1, cpu), ("rl", 1, cpu | gpu))
    charts = {c.key: c for c in overview(held, PlotOptions(off_policy=frozenset({"warm"})))}
    assert [(c.title, c.unit) for c in charts.values()] == [
        ("System: CPU", "cores in use"),
        ("System: memory", "GB"),
        ("System: GPU utilization", "fraction of time"),
    ]
    assert lines_of(charts["system/cpu_cores"].figure)["CPU"]["y"] == [1.5, None, 1.5]
    assert {name: trace["y"][-1] for name, trace in lines_of(charts["system/memory_gb"].figure).items()} == {
        "processes": 2.0,
        "GPU": 8.0,
    }
    assert charts["system/cpu_cores"].figure["layout"]["xaxis"]["tickvals"] == [1, 2]  # no fractions of steps
    without_gpu = overview(rows(("rl", 1, cpu)), PlotOptions())
    assert [c.key for c in without_gpu] == ["system/cpu_cores", "system/memory_gb"]


def test_every_metric_and_chart_has_an_explanation_with_a_formula() -> None:
    infos = {**METRICS, **METRIC_GROUPS, **CHARTS}
    assert [name for name, info in infos.items() if not (info.help and info.formula)] == []


def test_a_stack_of_one_step_is_a_bar_and_a_stack_of_one_part_has_its_name() -> None:
    (one,) = [c for c in overview(rows(("rl", 1, {"outcome/incorrect": 1.0})), PlotOptions()) if c.key == "outcome/"]
    (bar,) = validated(one.figure).data
    assert bar.type == "bar" and [note["text"] for note in one.figure["layout"]["annotations"]] == ["incorrect"]


def test_what_was_only_shown_to_the_student_is_not_shown_as_its_own() -> None:
    held = rows(
        ("warm", 1, {"reward": 1.0, "entropy": 2.0, "loss/ce": 1.5, "time/update": 1.0}),
        ("rl", 1, {"reward": 0.1, "entropy": 0.5, "time/update": 2.0}),
    )
    charts = {chart.key: chart for chart in overview(held, PlotOptions(off_policy=frozenset({"warm"})))}
    assert lines_of(charts["reward"].figure)["reward"]["y"] == [0.1]
    assert lines_of(charts["entropy"].figure)["entropy"]["y"] == [2.0, None, 0.5]
    assert lines_of(charts["loss/ce"].figure)["loss/ce"]["y"] == [1.5]


def test_intervals_are_shown_for_steps_with_known_counts_also_with_resampled_groups() -> None:
    held = rows(("rl", 1, {"cum_acc/1": 0.5, "groups/resampled": 1.0}), ("rl", 2, {"cum_acc/1": 0.5}))
    sizes = sizes_of([("rl", 1, "a", 1, 1), ("rl", 1, "b", None, 1)], turns=1)
    assert sizes == {("rl", 1): {1: 2.0}}
    chart = next(c for c in overview(held, PlotOptions(sizes=sizes)) if c.key == "cum_acc/")
    expected = wilson(1, 2)
    assert lines_of(chart.figure)["t = 1"]["text"] == [
        f".50 [{expected.low:.2f}, {expected.high:.2f}]".replace("0.", "."),
        ".50 (dialogues not stored)",
    ]


def test_the_intervals_of_the_solve_rate_belong_to_the_steps_that_have_one() -> None:
    held = rows(("warm", 1, {"entropy": 2.0}), ("rl", 1, {"cum_acc/1": 0.5}))
    chart = next(c for c in overview(held, PlotOptions(sizes={("rl", 1): {1: 2.0}})) if c.key == "cum_acc/")
    assert lines_of(chart.figure)["t = 1"]["text"] == [".50 [.09, .91]"]


def test_any_series_is_found_by_name_and_a_family_by_its_beginning() -> None:
    held = rows(("rl", 1, {"stop/solved": 0.5, "stop/failed": 0.1, "clip_ratio": 0.2}))
    one, family = series(held, ["clip_ratio", "stop/", "no such"], PlotOptions())
    assert lines_of(one.figure)["clip_ratio"]["y"] == [0.2]
    assert set(lines_of(family.figure)) == {"solved", "failed"}
    names = [entry["name"] for entry in catalogue(["clip_ratio", "stop/failed", "stop/solved"])]
    assert names == ["clip_ratio", "stop/failed", "stop/solved", "stop/"]
    assert (
        metric_info("something/new").title == "something/new"
        and metric_info("conditional_solve_rate/2").title == "Conditional solve rate: turn 2"
    )


def test_along_sampled_tokens_stand_only_the_stages_that_sample() -> None:
    held = rows(("warm", 1, {"entropy": 2.0, "loss/ce": 1.5}), ("rl", 1, {"entropy": 0.5}), tokens=50)
    charts = overview(held, PlotOptions(x="tokens", off_policy=frozenset({"warm"})))
    assert [chart.key for chart in charts] == ["entropy"]
    assert lines_of(charts[0].figure)["entropy"]["x"] == [100.0]
    alone = overview(held[:1], PlotOptions(x="tokens", off_policy=frozenset({"warm"})))
    assert [chart.key for chart in alone] == ["entropy", "loss/ce"]
    assert alone[0].figure["layout"]["xaxis"]["title"]["text"] == "step of warm"


def test_a_run_without_steps_has_no_plots() -> None:
    assert overview([], PlotOptions()) == [] and series([], ["reward"], PlotOptions()) == []


# -- colours -------------------------------------------------------------------------------------------------------
VISION = {  # Machado, Oliveira and Fernandes 2009, full severity; on linear RGB, by rows
    "usual": (1, 0, 0, 0, 1, 0, 0, 0, 1),
    "protanopia": (0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998),
    "deuteranopia": (0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881),
    "tritanopia": (1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900),
}


def linear(color: str) -> np.ndarray:
    """Linear RGB of `#rrggbb`."""
    c = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ np.clip(rgb, 0, 1)
    f = np.cbrt(xyz / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize(("theme", "ground"), [(0, "#ffffff"), (1, "#15181d")], ids=["light", "dark"])
def test_series_are_told_apart_with_any_colour_vision_and_stand_out_from_the_ground(theme: int, ground: str) -> None:
    rules = re.findall(r":root[^{]*\{([^}]*)\}", (STATIC / "theme.css").read_text())
    blocks = [rule for rule in rules if "--rl-plot-1" in rule]
    colors = re.findall(r"--rl-plot-\d: (#[0-9a-f]{6})", blocks[theme])
    assert len(colors) == 8
    for numbers in VISION.values():
        matrix = np.array(numbers, dtype=float).reshape(3, 3)
        for a, b in itertools.combinations(colors, 2):
            assert np.linalg.norm(lab(matrix @ linear(a)) - lab(matrix @ linear(b))) > 15, (a, b)
    weights = np.array([0.2126, 0.7152, 0.0722])
    for color in colors:
        bright, dim = sorted([float(weights @ linear(color)), float(weights @ linear(ground))], reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 3, color


def test_long_names_are_whole_in_a_legend_and_short_ones_stand_at_the_ends() -> None:
    short = figure(Plot([Line("optimal without hints", [1], [1.0]), Line("b", [1], [2.0])]))
    assert [note["text"] for note in short["layout"]["annotations"]] == ["optimal without hints", "b"]
    name = "a name of more than twenty-four characters"
    for lines in ([Line(name, [1], [1.0]), Line("b", [1], [2.0])], [Line(f"{i}", [1], [1.0]) for i in range(12)]):
        made = figure(Plot(lines))
        assert made["layout"]["showlegend"] and made["layout"]["annotations"] == []
        assert made["layout"]["height"] > short["layout"]["height"]
        assert [trace["name"] for trace in made["data"] if trace["showlegend"]] == [line.name for line in lines]


def test_a_constant_is_a_flat_line_in_a_range_of_its_own_size() -> None:
    def limits(*values: float) -> tuple[float, float]:
        low, high = figure(Plot([Line("m", [*range(len(values))], values)]))["layout"]["yaxis"]["range"]
        return low, high

    low, high = limits(3e-9, 1e-9, 2e-9)
    assert low == 0.0 and high > 1.0, "rounding errors are no curve"
    low, high = limits(250.0, 250.0)
    assert low < 230.0 and high > 270.0
    low, high = limits(1e-6, 3e-6)
    assert high < 1e-5, "a small learning rate is one"
