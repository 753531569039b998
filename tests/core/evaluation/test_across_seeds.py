"""Reports of several seeds, merged."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import report_data
from report_data import PLAYED, TURNS, made, tasks, with_effect
from scipy.special import nctdtr, stdtr, stdtrit

from rl2f_core.common.stats.contrast import contrast, paired_rates
from rl2f_core.errors import DataError
from rl2f_core.evaluation.across_seeds import (
    NO_PROBLEM_VALUES,
    Comparison,
    SeedRow,
    SeedSummary,
    compare_arms,
    join_runs,
    merge_seeds,
)
from rl2f_core.evaluation.report import EvaluatedTasks, EvaluationReport
from rl2f_core.types import Dialogue

WHOLE = functools.cache(report_data.built)


def built(*args: Any, **more: Any) -> EvaluationReport:
    """A report of constructed dialogues; those of the default ones are made once for each seed."""
    return report_data.built(*args, **more) if args or more.keys() - {"seed"} else WHOLE(**more)


def row_of(summary: SeedSummary, checkpoint: str, quantity: str, condition: str = "hints") -> SeedRow:
    key = (checkpoint, condition, quantity)
    return next(row for row in summary.rows if (row.checkpoint, row.condition, row.quantity) == key)


def solved(count: int, of: int = 20) -> list[Dialogue]:
    """The first `count` tasks are solved at the first turn, the others never."""
    return tasks(*[1] * count, *[0] * (of - count))


@functools.cache
def evaluated(hints: int, contentless: int, seed: int = 0, name: str = "rl2f@24") -> EvaluationReport:
    return built({name: {"hints": solved(hints), "contentless": solved(contentless)}}, seed)


def test_three_equal_seeds_have_an_interval_as_wide_as_that_of_the_problems() -> None:
    """Defect 6: a t interval over three equal seeds has zero width and was printed as fact."""
    one = built().effect("rl2f@24")
    row = row_of(merge_seeds({str(i): built(seed=i) for i in range(3)}), "rl2f@24", "hint_effect")
    assert row.values == (0.75, 0.75, 0.75) and row.mean.value == 0.75
    assert row.mean.high - row.mean.low > 0.5 * (one.high - one.low) > 0.3
    rate = row_of(merge_seeds({str(i): built(seed=i) for i in range(3)}), "base", "cum_acc/3").mean
    assert (rate.value, rate.low) == (0.0, 0.0) and rate.high > 0.2


def test_intervals_over_seeds_treat_problems_and_seeds_as_crossed() -> None:
    """20 problems; the hints solve 16, 8 and 12 of them, contentless none: effects .8, .4, .6.

    Three dialogues per problem: pseudo-problems ±1 / √3. Column means with them, of 22 rows: 16/22, 8/22, 12/22, with
    s² = (4/22)² = .033058, over 3 seeds .011019. Row means: 8 × 1, 4 × 2/3, 4 × 1/3, 4 × 0, ±.57735, with Σ = 12 and
    Σ² = 8 + 16/9 + 4/9 + 2/3 = 10.8889, so s² / 22 = (10.8889 − 144/22) / 21 / 22 = .0094015.
    df = .0204205² / (.0094015² / 19 + .011019² / 2) = 6.377; center 12/22.
    """
    summary = merge_seeds({"0": evaluated(16, 0), "1": evaluated(8, 0, 1), "2": evaluated(12, 0, 2)})
    row = row_of(summary, "rl2f@24", "hint_effect")
    assert row.values == pytest.approx((0.8, 0.4, 0.6)) and row.above_zero == 3
    half = stdtrit(6.377, 0.975) * math.sqrt(0.0204205)
    assert (row.mean.value, row.mean.n) == (pytest.approx(0.6), 20)
    assert (row.mean.low, row.mean.high) == pytest.approx((12 / 22 - half, 12 / 22 + half), abs=2e-4)
    text = summary.to_markdown()
    assert "| rl2f@24 | hints | hint_effect | +.80 | +.40 | +.60 | +.60 [.20, .89] | 3 of 3 |" in text
    assert "- The hint effect of rl2f@24: +.60 [.20, .89] over 3 seeds, above 0; 3 of 3 seeds are above 0" in text


def test_seeds_that_disagree_are_not_separated_from_zero() -> None:
    summary = merge_seeds({"0": evaluated(16, 0), "1": evaluated(0, 16, 1), "2": evaluated(14, 0, 2)})
    row = row_of(summary, "rl2f@24", "hint_effect")
    assert row.above_zero == 2 and row.mean.low < 0 < row.mean.high
    assert "over 3 seeds, 95 % CI includes 0; 2 of 3 seeds" in summary.to_markdown()


def test_one_seed_has_the_interval_over_problems() -> None:
    row = row_of(merge_seeds({"0": built()}), "rl2f@24", "hint_effect")
    own = built().effect("rl2f@24")
    assert (row.mean.value, row.mean.low, row.mean.high) == (own.value, own.low, own.high)


def test_problems_are_matched_by_their_key_and_not_by_their_task() -> None:
    """Seed 1 has the same problems in reverse: it solves C and D, the other A and B. By task they agree."""
    keys = dict(zip("ABCD", ("t0", "t1", "t2", "t3"), strict=True))
    sizes = [EvaluatedTasks(4, 1, "3 of ABC", keys={task: key for key, task in of.items()})
             for of in (keys, dict(zip("DCBA", keys.values(), strict=True)))]  # fmt: skip
    reports = [built({"b": {"hints": tasks(1, 1, 0, 0)}}, evaluated=size) for size in sizes]
    crossed = row_of(merge_seeds({"0": reports[0], "1": reports[1]}), "b", "cum_acc/3").mean
    same = row_of(merge_seeds({"0": reports[0], "1": reports[0]}), "b", "cum_acc/3").mean
    assert crossed.value == same.value == 0.5
    assert crossed.high - crossed.low < same.high - same.low  # each problem's mean is ½


def test_reports_without_values_by_problem_have_a_mean_but_no_interval() -> None:
    old = {str(i): with_effect(interval) for i, interval in enumerate((made(0.1, 0.3), made(0.2, 0.4)))}
    summary = merge_seeds(old)
    row = row_of(summary, "rl2f@24", "hint_effect")
    assert row.mean.low is None and row.mean.high is None
    assert row.mean.value == pytest.approx(0.25) and row.values == pytest.approx((0.2, 0.3))
    assert f"+.25 (no interval) over 2 seeds, {NO_PROBLEM_VALUES}; 2 of 2 seeds" in summary.to_markdown()


def test_checkpoints_of_different_runs_of_a_seed_are_compared() -> None:
    """rl2f solves 14, its control 4 of 20 with hints, both 2 without: difference of effects 12/20 − 2/20 = ½."""
    seeds = {
        str(seed): join_runs([evaluated(14, 2, seed), evaluated(4, 2, seed, "rlvr@24")]) for seed in range(3)
    }  # fmt: skip
    summary = merge_seeds(seeds)
    assert row_of(summary, "rlvr@24 − rl2f@24", "difference of hint_effect", "").mean.value == pytest.approx(-0.5)
    assert row_of(summary, "rlvr@24 − rl2f@24", "difference of cum_acc", "").mean.value == pytest.approx(-0.5)


@pytest.mark.slow
def test_findings_of_ten_checkpoints_over_seeds_are_corrected() -> None:
    by_method = {f"m{i}": {"hints": solved(6), "contentless": solved(0)} for i in range(10)}
    one = built(by_method)
    summary = merge_seeds({"0": one, "1": one.model_copy(update={"seed": 1})})
    rows = [row for row in summary.rows if row.quantity == "hint_effect"]
    assert len(rows) == 10 and all(row.mean.excludes_zero and row.mean.holm_p > 0.05 for row in rows)
    (line,) = (line for line in summary.findings() if line.startswith("The hint effect of m0: +.30"))
    assert "95 % CI excludes 0, but not after Holm's correction" in line


def test_seeds_are_compared_with_the_constant_baseline() -> None:
    dialogues = {"base": {"hints": solved(0)}, "rl2f@24": {"hints": solved(14)}}
    summary = merge_seeds({str(seed): built(dialogues, seed) for seed in (0, 1)})
    assert summary.constant_baseline == built().constant_baseline
    text = summary.to_markdown()
    assert "| best constant answer | any | cum_acc |" in text
    assert "Solve rate within 1 turn of base: .000 [.000, " in text
    assert "is indistinguishable from always answering" in text
    assert "Solve rate within 3 turns of rl2f@24: .70 [" in text and "is above it" in text


def test_intervals_of_fractions_over_seeds_stay_in_range() -> None:
    reports = {"0": built(), "1": built(), "2": built({**PLAYED, "rl2f@24": PLAYED["base"]})}
    row = row_of(merge_seeds(reports), "rl2f@24", f"cum_acc/{TURNS}")
    assert row.values == (7 / 8, 7 / 8, 0.0)
    assert 0.0 <= row.mean.low < 0.2 and 0.9 < row.mean.high <= 1.0
    assert row.above_zero is None


def test_missing_checkpoint_of_a_seed_gives_none() -> None:
    reports = {"0": built(), "1": built({"base": PLAYED["base"]})}
    row = row_of(merge_seeds(reports), "rl2f@24", "hint_effect")
    assert row.values == (0.75, None) and row.mean.value == 0.75


def test_reports_of_different_tasks_are_not_merged() -> None:
    other = with_effect(made(0.1, 0.2)).model_copy(update={"turns": 9})
    with pytest.raises(DataError, match="differ in environment"):
        merge_seeds({"0": with_effect(made(0.1, 0.2)), "1": other})
    with pytest.raises(DataError):
        merge_seeds({})
    few = built({"rl2f@24": {"hints": solved(3, of=8)}})
    with pytest.raises(DataError, match="different evaluation settings"):
        join_runs([few, built({"b": {"hints": solved(3, of=9)}})])


def test_seed_summary_round_trips_through_json() -> None:
    summary = merge_seeds({"0": built(), "1": built()})
    assert type(summary).model_validate_json(summary.model_dump_json()) == summary


# -- arms of a study -----------------------------------------------------------------------------------------------
def with_tokens(report: EvaluationReport, stage: str, tokens: str) -> EvaluationReport:
    note = f"Stage {stage}: {tokens} sampled student tokens in 24 steps. In its last 10 steps .20 were correct."
    return report.model_copy(update={"notes": ("Stage warmup: 90 demonstrated student tokens in 6 steps.", note)})


def test_the_content_effect_is_the_method_minus_its_contentless_twin_over_seeds_and_problems() -> None:
    """The method solves 16, 8 and 12 of 20 problems with hints, its twin none.

    The numbers are those of `test_intervals_over_seeds_treat_problems_and_seeds_as_crossed`. An effect d is found with
    a probability of 80 % if P(T > t) = .8 for the noncentral T with 20/22 · d / √.0204205 and 6.377 degrees of freedom.
    Tokens: 1,000 and 1,080 of the method, 1,000 and 1,000 of its twin; the third seeds do not tell.
    """
    method = {str(s): evaluated(solved, 0, s) for s, solved in enumerate((16, 8, 12))}
    twin = {str(s): evaluated(0, 0, s, "blank@24") for s in range(3)}
    for seed, ours in (("0", "1,000"), ("1", "1,080")):
        method[seed] = with_tokens(method[seed], "rl2f", ours)
        twin[seed] = with_tokens(twin[seed], "blank", "1,000")
    effect = compare_arms((method, twin), ("rl2f@24", "blank@24"))
    assert effect.values == pytest.approx((0.8, 0.4, 0.6))
    half = stdtrit(6.377, 0.975) * math.sqrt(0.0204205)
    assert (effect.difference.value, effect.difference.n) == (pytest.approx(0.6), 20)
    assert (effect.difference.low, effect.difference.high) == pytest.approx((12 / 22 - half, 12 / 22 + half), abs=2e-4)
    assert effect.detectable is not None
    missed = nctdtr(6.377, 20 / 22 * effect.detectable / math.sqrt(0.0204205), stdtrit(6.377, 0.975))
    assert missed == pytest.approx(0.2, abs=1e-3)
    assert effect.tokens == (1040, 1000) and effect.token_gap == pytest.approx(0.04)
    assert effect.tokens_text() == "equal: 1,040 and 1,000"


def test_the_detectable_effect_grows_with_the_number_of_hypotheses() -> None:
    method, twin = {"0": evaluated(16, 0)}, {"0": evaluated(8, 0)}
    one, six = (compare_arms((method, twin), ("rl2f@24", "rl2f@24"), tests=tests).detectable for tests in (1, 6))
    assert one is not None and six is not None and one < six


def test_no_effect_is_detectable_if_none_that_is_possible_would_be_found() -> None:
    method, twin = {"0": evaluated(16, 0), "1": evaluated(0, 0, 1)}, {"0": evaluated(0, 0), "1": evaluated(16, 0, 1)}
    found = compare_arms((method, twin), ("rl2f@24", "rl2f@24"), tests=6)
    assert found.is_crossed and found.detectable == math.inf
    assert compare_arms((method, twin), ("rl2f@24", "rl2f@24"), "attempt_tokens").is_crossed is False


def test_unequal_tokens_are_stated() -> None:
    effect = Comparison(values=(0.1,), difference=made(0.0, 0.2), tokens=(1060, 1000))
    assert effect.tokens_text() == "NOT equal (+6 %): 1,060 and 1,000"
    three = Comparison(values=(0.1,), difference=made(0.0, 0.2), tokens=(1500, 1000, 2000))  # the mean is equal
    assert three.tokens_text() == "NOT equal (+50 %): 1,500 and 1,000 and 2,000"
    unknown = Comparison(values=(0.1,), difference=made(0.0, 0.2), tokens=(1060, None))
    assert unknown.token_gap is None and unknown.tokens_text() == "unknown"


def test_the_difference_of_hint_effects_and_of_another_condition() -> None:
    """Hint effects 14 − 2 and 4 − 2 of 20: difference ½. Contentless: 2 − 2."""
    arms = ({"0": evaluated(14, 2)}, {"0": evaluated(4, 2)})
    names = ("rl2f@24", "rl2f@24")
    assert compare_arms(arms, names, "hint_effect").difference.value == pytest.approx(0.5)
    assert compare_arms(arms, names, condition="contentless").difference.value == pytest.approx(0)


def test_of_three_arms_the_mean_of_the_second_and_the_third_is_subtracted() -> None:
    """Solved are 14, 10 and 4 of 20: (14 − (10 + 4) / 2) / 20 = .35. Hint effects 12, 10 and 2 of 20: 6 / 20."""
    arms = [{"0": evaluated(*counts)} for counts in ((14, 2), (10, 0), (4, 2))]
    names = ("rl2f@24",) * 3
    found = compare_arms(arms, names)
    assert found.values == pytest.approx((0.35,)) and found.difference.value == pytest.approx(0.35)
    assert compare_arms(arms, names, "hint_effect").difference.value == pytest.approx(0.3)
    solved = np.array([[[float(i < count)] for i in range(20)] for count in (14, 10, 4)])
    assert found.difference == contrast(solved, np.ones_like(solved), (1, -0.5, -0.5))
    assert found.difference.low is not None and -1 <= found.difference.low < 0.35


def test_pooled_rates_are_linearized_by_problem() -> None:
    """Rates 2/4 and 1/2 with 4/3 and 2/3 observations per problem.

    First: .5 + (1 − .5) · .75 = .875, .5 + (0 − 1) · .75 = −.25, .875. Second: .5 − .5 · 1.5 = −.25, 1.25, and .5
    without an observation. With one observation each, the values are the observations.
    """
    sums, counts = np.array([[1.0, 0, 1], [0, 1, 0]]), np.array([[1.0, 2, 1], [1, 1, 0]])
    differences, present, samples = paired_rates(sums, counts, (1, -1), True)
    assert differences == pytest.approx([1.125, -1.5, 0.375]) and present.all() and samples == 1
    assert contrast(sums, counts, (1, -1), True).n == 2  # problems of the second rate
    ones = np.ones_like(sums)
    assert contrast(sums, ones, (1, -1), True) == contrast(sums, ones, (1, -1))


def test_a_rate_with_observations_of_one_problem_has_no_interval() -> None:
    found = contrast(np.array([[1.0, 1, 0], [1, 0, 0]]), np.array([[1.0, 1, 1], [2, 0, 0]]), (1, -1), True)
    assert (found.value, found.low, found.n) == (pytest.approx(2 / 3 - 1 / 2), None, 1)


def test_a_metric_without_values_by_problem_is_compared_over_seeds_alone() -> None:
    """Tokens per attempt are 2 in all dialogues; with differences 1, 2 and 3: mean 2, s = 1, t = 2 / (1 / √3), 2 df."""
    twin = {str(seed): evaluated(4, 0, seed) for seed in range(3)}
    method = {}
    for seed, shift in enumerate((1.0, 2.0, 3.0)):
        (hints, blank) = evaluated(4, 0, seed).rows
        values = dict(hints.metrics.values)
        values["attempt_tokens"] = values["attempt_tokens"].model_copy(update={"value": 2 + shift})
        moved = hints.model_copy(update={"metrics": hints.metrics.model_copy(update={"values": values})})
        method[str(seed)] = evaluated(4, 0, seed).model_copy(update={"rows": (moved, blank)})
    found = compare_arms((method, twin), ("rl2f@24", "rl2f@24"), "attempt_tokens")
    half = stdtrit(2, 0.975) / math.sqrt(3)
    assert found.values == pytest.approx((1, 2, 3)) and found.difference.n == 3
    assert (found.difference.low, found.difference.high) == pytest.approx((2 - half, 2 + half))
    assert found.difference.p_value == pytest.approx(2 * stdtr(2, -2 * math.sqrt(3)))


def test_arms_without_a_common_seed_or_with_other_problems_are_refused() -> None:
    with pytest.raises(DataError, match="no seed in common"):
        compare_arms(({"0": evaluated(1, 0)}, {"1": evaluated(1, 0, 1)}), ("rl2f@24", "rl2f@24"))
    other = evaluated(1, 0).model_copy(update={"problems": tuple(f"p{i}" for i in range(20))})
    with pytest.raises(DataError, match="different evaluation settings"):
        compare_arms(({"0": evaluated(1, 0)}, {"0": other}), ("rl2f@24", "rl2f@24"))
