"""Intervals against published values, table values and numbers worked out by hand."""

from __future__ import annotations

import math
from statistics import stdev

import numpy as np
import pytest
from scipy.special import stdtrit

from rl2f_core.common.stats.intervals import (
    Interval,
    auc,
    correct_family,
    mean_interval,
    paired_difference,
    t_interval,
    wilson,
    wilson_clustered,
)
from rl2f_core.common.stats.significance import holm, sign_flip_p
from rl2f_core.errors import DataError


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(successes, n, low, high):
    """Newcombe (1998), Statistics in Medicine 17, table I, method 3."""
    found = wilson(successes, n)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    assert found.value == pytest.approx(successes / n)
    assert found.n == n


def test_wilson_is_symmetric_in_success_and_failure():
    found, mirrored = wilson(3, 17), wilson(14, 17)
    assert found.low == pytest.approx(1 - mirrored.high)
    assert found.high == pytest.approx(1 - mirrored.low)


def test_wilson_of_nothing_is_everything():
    assert wilson(0, 0) == Interval(value=None, low=0.0, high=1.0, n=0)


def test_wilson_at_the_edges_reaches_them_and_stays_inside():
    assert (wilson(0, 5).low, wilson(5, 5).high) == (0.0, 1.0)
    assert 0 < wilson(0, 5).high < 1 and 0 < wilson(5, 5).low < 1


def test_more_successes_than_trials_are_refused():
    with pytest.raises(DataError, match="successes"):
        wilson(3, 2)


def test_one_observation_a_cluster_is_the_plain_wilson_interval():
    assert wilson_clustered([1, 0, 0, 1, 0], [1] * 5) == wilson(2, 5)


def test_agreeing_observations_count_as_fewer():
    """Two tasks with two dialogues each, one all right and one all wrong: share ½, n = 4.

    Σ (y − p·m)² = 1 + 1 = 2; over n·p·(1 − p) = 1 gives 2; times 2·3 / (1·4) = 1.5 gives a design effect of 3.
    So the four count as 4/3 observations, times (t(3) / t(1))² = (3.1824 / 12.7062)² for the degrees of freedom.
    """
    size = 4 / 3 * (3.182446 / 12.706205) ** 2
    found, expected = wilson_clustered([2, 0], [2, 2]), wilson(size / 2, size)
    assert (found.value, found.n) == (0.5, 4)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-5)


def test_evenly_spread_observations_never_count_as_more_than_they_are():
    """Every task half right: the between-task variance is 0, but the design effect stays 1: 6 · (t(5) / t(2))²."""
    size = 6 * (2.570582 / 4.302653) ** 2
    found, expected = wilson_clustered([1, 1, 1], [2, 2, 2]), wilson(size / 2, size)
    assert (found.value, found.n) == (0.5, 6)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_a_share_of_zero_counts_each_cluster_once():
    found = wilson_clustered([0, 0, 0], [5, 5, 5])
    assert (found.value, found.n) == (0.0, 15)
    assert found.high == pytest.approx(wilson(0, 3).high)


def test_one_cluster_counts_as_one_observation():
    assert wilson_clustered([1], [4]).high == pytest.approx(wilson(0.25, 1).high)


def test_clusters_without_observations_do_not_count():
    assert wilson_clustered([1, 0, 0], [1, 1, 0]) == wilson(1, 2)
    assert wilson_clustered([], []) == wilson(0, 0)


def test_samples_of_one_problem_count_together():
    """Two problems of 50 equal values: the means 1 and −1 have s = 1.4142, so half = 12.706 · 1.4142 / √2 = 12.706."""
    found = mean_interval([50.0, -50.0], [50, 50])
    assert (found.value, found.n) == (0.0, 100)
    assert (found.low, found.high) == pytest.approx((-12.706, 12.706), abs=1e-3)


def test_a_ratio_weights_problems_by_their_denominators():
    """(1 + 3) / (2 + 6) = ½, not the mean of the ratios."""
    assert mean_interval([1, 3], [2, 6]).value == 0.5


def test_the_interval_of_a_positive_mean_is_wider_above():
    """10, 20, 30: mean 20, s = 10, half = 4.3027 · 10 / √3 = 24.84; high = 20 · exp(24.84 / 20), low at least 0."""
    found = mean_interval([10, 20, 30], [1, 1, 1])
    assert (found.low, found.high) == pytest.approx((0.0, 20 * math.exp(24.8414 / 20)), abs=1e-2)


def test_no_data_one_problem_and_equal_values_give_no_interval():
    assert mean_interval([], []) == Interval(value=None, n=0)
    assert mean_interval([6.0], [2]) == Interval(value=3.0, n=2)
    assert mean_interval([6.0, 6.0, 6.0], [1, 1, 1]) == Interval(value=6.0, n=3)


# -- paired differences --------------------------------------------------------------------------------------------
def test_a_difference_has_two_pseudo_problems():
    """20 of 40 problems differ by +1. With +1 and −1 more: mean 20 / 42 = .4762, Σ d² = 22, s² = (22 − 20² / 42) / 41
    = .3043, half = t(39) · √(.3043 / 42) = 2.0227 · .08512 = .1722."""
    found = paired_difference([1] * 20 + [0] * 20, [1] * 40)
    assert (found.value, found.n) == (0.5, 40)
    assert (found.low, found.high) == pytest.approx((0.4762 - 0.1722, 0.4762 + 0.1722), abs=2e-4)
    assert found.p_value < 0.001


def test_equal_differences_have_an_interval_with_a_width():
    """12 times +1: mean 12 / 14 = .857, s² = (14 − 12² / 14) / 13 = .2857, half = t(11) · √(.2857 / 14) = .3144."""
    found = paired_difference([1] * 12, [1] * 12)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.8571 - 0.3144, abs=2e-4)


def test_two_problems_that_agree_are_no_evidence():
    """Defect 6: two tasks produced "+1.00 [1.00, 1.00]: hints help"."""
    found = paired_difference([1, 1], [1, 1])
    assert (found.value, found.low, found.high, found.n) == (1.0, -1.0, 1.0, 2)
    assert found.p_value == pytest.approx(0.5)


def test_few_differing_pairs_need_a_significant_exact_test():
    """Of 64 problems five get better and none worse: 2 · ½⁵ = .0625; with six, 2 · ½⁶ = .03125."""
    five, six = (paired_difference([1] * k + [0] * (64 - k), [1] * 64) for k in (5, 6))
    assert five.p_value == pytest.approx(0.0625) and not five.excludes_zero
    assert six.p_value < 0.05 and six.excludes_zero


def test_thirds_that_cancel_are_not_separated_from_zero():
    found = paired_difference([0.1 + 0.2 - 0.3, 1 / 3 + 2 / 3 - 1], [1, 1])
    assert found.value == 0.0 and not found.excludes_zero


def test_differences_without_data_and_of_one_problem_have_no_interval():
    assert paired_difference([], []) == Interval(value=None, n=0)
    assert paired_difference([0.0], [0]) == Interval(value=None, n=0)
    assert paired_difference([1.0], [1]) == Interval(value=1.0, n=1)


def test_sums_and_counts_of_different_length_are_refused():
    with pytest.raises(DataError, match="one count for each sum"):
        paired_difference([1.0], [1.0, 0.0])


# -- seeds and problems --------------------------------------------------------------------------------------------
def test_three_equal_seeds_do_not_give_an_interval_of_width_zero():
    """Defect 6: seeds add nothing here, so the interval is that of the problems, with one seed."""
    one = mean_interval([1, -2, 3, 6], [1] * 4)
    three = mean_interval(np.repeat([[1.0], [-2.0], [3.0], [6.0]], 3, axis=1), np.ones((4, 3)))
    assert (three.value, three.low, three.high) == pytest.approx((one.value, one.low, one.high))
    assert t_interval([0.5, 0.5, 0.5]) == Interval(value=0.5, n=3)
    solved = wilson_clustered(np.ones((20, 3)), np.ones((20, 3)))
    assert (solved.value, solved.high) == (1.0, 1.0) and solved.low == wilson(20, 20).low


def test_the_variances_over_problems_and_seeds_add_up():
    """Rows 1, −1, s²(rows) / 2 = 1, and columns 2, 0, −2, s²(columns) / 3 = 4 / 3; df = (7/3)² / (1 + (4/3)² / 2)."""
    found = mean_interval([[3.0, 1.0, -1.0], [1.0, -1.0, -3.0]], np.ones((2, 3)))
    assert found.value == 0.0
    assert found.high == pytest.approx(math.sqrt(7 / 3) * stdtrit(49 / 17, 0.975))


def test_two_seeds_have_fewer_degrees_of_freedom():
    """Rows 1, 0, −1, s² / 3 = 1 / 3, and columns 2, −2, s²(columns) / 2 = 4; df = (13/3) / (1/3 / 2 + 4), not 1.17."""
    found = mean_interval([[3.0, -1.0], [2.0, -2.0], [1.0, -3.0]], np.ones((3, 2)))
    assert found.high == pytest.approx(math.sqrt(13 / 3) * stdtrit(26 / 25, 0.975))


def test_a_problem_that_one_seed_lacks_counts_for_the_others():
    """Seed 2 has no third problem: means 2 and 1.5."""
    found = mean_interval([[1.0, 1.0], [2.0, 2.0], [3.0, 0.0]], [[1, 1], [1, 1], [1, 0]])
    assert (found.value, found.n) == (1.75, 5)


# -- tests and families --------------------------------------------------------------------------------------------
def test_the_exact_test_counts_sign_assignments():
    """|±1 ±2 ±3| ≥ 4: 6 (twice) and 4 (twice) of 8. Zeros do not count. Without values, nothing is unusual."""
    assert sign_flip_p([-1.0, 2.0, 3.0]) == pytest.approx(4 / 8)
    assert sign_flip_p([1.0] * 7 + [-1.0, 0.0]) == pytest.approx(2 * (1 + 8) / 2**8)  # McNemar, 7 against 1
    assert sign_flip_p([]) == sign_flip_p([0.0, 0.0]) == 1.0
    with pytest.raises(ValueError, match="at most"):
        sign_flip_p([1.0] * 26)


def test_holm_multiplies_the_smallest_p_value_by_the_number_of_tests():
    """.01 · 3 = .03; .03 · 2 = .06; .04 · 1 is raised to .06."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


def test_a_family_is_corrected_without_differences_that_have_no_p_value():
    missing = Interval(value=1.0, n=1)
    found = correct_family([Interval(value=0.1, n=20, p_value=0.03), missing, Interval(value=0.2, n=20, p_value=0.02)])
    assert [d.holm_p for d in found] == [pytest.approx(0.04), None, pytest.approx(0.04)]
    assert missing.model_dump() == {"value": 1.0, "low": None, "high": None, "n": 1}


@pytest.mark.parametrize(
    ("df", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_t_intervals_agree_with_the_table_of_quantiles_at_95_percent(df, t):
    values = list(range(df + 1))
    found = t_interval(values)
    assert round((found.high - found.value) * math.sqrt(df + 1) / stdev(values), 3) == pytest.approx(t)


def test_t_interval_of_three_values_uses_the_closed_form_of_two_degrees():
    """F(t) = ½ + t / (2√(2 + t²)), so t = a·√2 / √(1 − a²) with a = 2p − 1 = .95. The deviation of −1, 0, 1 is 1."""
    t = 0.95 * math.sqrt(2) / math.sqrt(1 - 0.95**2)
    assert t_interval([-1.0, 0.0, 1.0]).high == pytest.approx(t / math.sqrt(3), rel=1e-12)


def test_t_interval_of_three_seeds():
    """.2, .3, .4: mean .3, s = .1, half = 4.3027 · .1 / √3 = .2484."""
    found = t_interval([0.2, 0.3, 0.4])
    assert found.value == pytest.approx(0.3)
    assert (found.low, found.high) == pytest.approx((0.3 - 0.2484, 0.3 + 0.2484), abs=1e-4)
    assert found.n == 3


def test_t_interval_is_cut_to_the_support():
    found = t_interval([0.0, 0.1, 0.5], support=(0.0, 1.0))
    assert found.low == 0.0 and 0.5 < found.high <= 1.0


def test_t_interval_of_no_and_of_one_seed():
    assert t_interval([]) == Interval(value=None, n=0)
    assert t_interval([0.5]) == Interval(value=0.5, n=1)


def test_separated_means_that_zero_lies_outside():
    def made(low: float, high: float) -> Interval:
        return Interval(value=(low + high) / 2, low=low, high=high, n=9)

    assert made(0.01, 0.2).excludes_zero and made(-0.2, -0.01).excludes_zero
    assert not made(0.0, 0.2).excludes_zero and not made(-0.2, 0.0).excludes_zero and not made(-0.1, 0.1).excludes_zero
    assert not Interval(value=1.0, n=1).excludes_zero


def test_the_area_under_the_curve_counts_pairs_and_halves_ties() -> None:
    # positives 3, 1; negatives 2, 1: 3>2, 3>1, 1<2, 1=1 → 2.5 of 4
    found = auc([3.0, 1.0, 2.0, 1.0], [True, True, False, False], "abcd", resamples=0)
    assert (found.value, found.low, found.n) == (0.625, None, 4)
    assert auc([1.0, 2.0], [True, True], "ab").value is None
    assert auc([], [], []).value is None
    assert auc([3.0, 2.0, 1.0, 0.0], [True, True, False, False], "abcd").low is None, "no width of zero"


def test_the_areas_interval_resamples_clusters_and_not_items() -> None:
    scores = [i / 40 + (0.6 if i % 2 else 0.0) for i in range(40)]
    positive = [i % 2 == 1 for i in range(40)]
    apart = auc(scores, positive, range(40), seed=1)
    doubled = auc(scores * 4, positive * 4, list(range(40)) * 4, seed=1)  # every item four times adds nothing
    assert apart.value == doubled.value and apart.low is not None and apart.high is not None
    assert apart.low < apart.value < apart.high <= 1
    assert (apart.low, apart.high) == (doubled.low, doubled.high)
    with pytest.raises(DataError, match="a class and a cluster"):
        auc([1.0], [True], [])
