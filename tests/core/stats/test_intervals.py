"""Intervals against published values, table values and numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

import numpy as np
import pytest

from rl2f_core.errors import DataError
from rl2f_core.stats.intervals import (
    Interval,
    auc,
    paired_bootstrap,
    ratio_bootstrap,
    t_interval,
    wilson,
    wilson_clustered,
)


def mean_bootstrap(clusters: Sequence[Sequence[float]], resamples: int = 2000, seed: int = 0) -> Interval:
    """Return the mean over all values of all clusters, as a ratio."""
    return ratio_bootstrap([float(sum(c)) for c in clusters], [float(len(c)) for c in clusters], resamples, seed)


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
    So the four count as 4/3 observations.
    """
    found, expected = wilson_clustered([2, 0], [2, 2]), wilson(2 / 3, 4 / 3)
    assert (found.value, found.n) == (0.5, 4)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_evenly_spread_observations_never_count_as_more_than_they_are():
    """Every task half right: the between-task variance is 0, but the interval stays that of six observations."""
    assert wilson_clustered([1, 1, 1], [2, 2, 2]) == wilson(3, 6)


def test_a_share_of_zero_counts_each_cluster_once():
    found = wilson_clustered([0, 0, 0], [5, 5, 5])
    assert (found.value, found.n) == (0.0, 15)
    assert found.high == pytest.approx(wilson(0, 3).high)


def test_one_cluster_counts_as_one_observation():
    assert wilson_clustered([1], [4]).high == pytest.approx(wilson(0.25, 1).high)


def test_clusters_without_observations_do_not_count():
    assert wilson_clustered([1, 0, 0], [1, 1, 0]) == wilson(1, 2)
    assert wilson_clustered([], []) == wilson(0, 0)


def test_bootstrap_of_two_tasks_ranges_over_their_means():
    """Differences 1 and 0: a resample has mean 0, ½ or 1 with chance ¼, ½, ¼, so the 2.5 % points are 0 and 1."""
    found = paired_bootstrap([1.0, 0.5], [0.0, 0.5])
    assert found == Interval(value=0.5, low=0.0, high=1.0, n=2)


def test_bootstrap_of_a_share_agrees_with_the_binomial():
    """50 of 100: the 2.5 % points of Binomial(100, ½) / 100 are .40 and .60."""
    found = mean_bootstrap([[1.0]] * 50 + [[0.0]] * 50, resamples=4000, seed=3)
    assert found.value == 0.5
    assert (found.low, found.high) == pytest.approx((0.40, 0.60), abs=0.0101)


def test_bootstrap_is_the_same_under_a_seed_and_another_under_another():
    values = [[float(v)] for v in np.random.default_rng(0).normal(size=30)]
    assert mean_bootstrap(values, 300, seed=1) == mean_bootstrap(values, 300, seed=1)
    assert mean_bootstrap(values, 300, seed=1) != mean_bootstrap(values, 300, seed=2)


def test_bootstrap_is_the_same_in_one_piece_and_in_many(monkeypatch):
    values = [[float(v)] for v in range(20)]
    whole = mean_bootstrap(values, 500, seed=4)
    monkeypatch.setattr("rl2f_core.stats.intervals._CHUNK", 100)
    assert mean_bootstrap(values, 500, seed=4) == whole


def test_bootstrap_covers_the_truth_about_nineteen_times_in_twenty():
    """300 experiments of 40 paired tasks with a true difference of .3; the percentile interval is a little narrow."""
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(300):
        base = rng.normal(size=40)
        found = paired_bootstrap((base + rng.normal(0.3, 1, 40)).tolist(), base.tolist(), 400, seed=trial)
        hits += found.low <= 0.3 <= found.high
    assert 0.90 <= hits / 300 <= 0.98


def test_samples_of_one_task_are_resampled_together():
    """Two tasks of 50 equal values each: resampling tasks gives 0, ½ or 1; resampling values gives about ½ ± .1."""
    found = mean_bootstrap([[1.0] * 50, [0.0] * 50])
    assert (found.value, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 100)


def test_a_ratio_weights_tasks_by_their_denominators():
    """(1 + 3) / (2 + 6) = ½, not the mean of the ratios."""
    assert ratio_bootstrap([1, 3], [2, 6]).value == 0.5


def test_pairing_removes_what_tasks_have_in_common():
    """Each task is .25 better whatever its difficulty: the difference is .25 without doubt."""
    b = [0.0, 0.25, 0.5, 0.75]
    assert paired_bootstrap([v + 0.25 for v in b], b) == Interval(value=0.25, low=0.25, high=0.25, n=4)


def test_thirds_that_cancel_are_not_separated_from_zero():
    a, b = [0.1 + 0.2, 1 / 3], [0.3, 1 - 2 / 3]
    assert not paired_bootstrap(a, b).excludes_zero


def test_no_task_and_one_task_give_no_interval():
    assert paired_bootstrap([], []) == Interval(value=None, n=0)
    assert paired_bootstrap([1.0], [0.0]) == Interval(value=1.0, n=1)
    assert mean_bootstrap([]) == Interval(value=None, n=0)
    assert mean_bootstrap([[2.0, 4.0]]) == Interval(value=3.0, n=2)


def test_no_resamples_give_the_value_alone():
    assert mean_bootstrap([[1.0], [3.0]], resamples=0) == Interval(value=2.0, n=2)


def test_pairs_of_different_length_are_refused():
    with pytest.raises(DataError, match="same tasks"):
        paired_bootstrap([1.0], [1.0, 0.0])


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
