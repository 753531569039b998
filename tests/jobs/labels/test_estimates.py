"""What labels on a draw say of all hints, against numbers worked out by hand and against the truth of made draws."""

from __future__ import annotations

import numpy as np
import pytest

from jobs.labels.estimation import (
    SUFFICIENT_LABELS,
    Draw,
    Stratum,
    estimate,
    labels_needed,
    precision_and_recall,
)
from rl2f_core.common.stats.intervals import wilson


def cell(size: int, flagged: bool, leaks: int, labelled: int, first: int = 0) -> Stratum:
    """Each label on a task of its own."""
    return Stratum(size, flagged, [(first + i, i < leaks) for i in range(labelled)])


def test_recall_weights_labels_by_stratum_size() -> None:
    # 100 flagged, 30 of 40 leak: 75 leaks found; 900 others, 2 of 100 leak: 18 missed
    found = estimate([cell(100, True, 30, 40), cell(900, False, 2, 100, 1000)])
    assert (
        found.size,
        found.flagged,
        found.n_flagged,
        found.n_unflagged,
        found.true_positives,
        found.false_negatives,
    ) == (
        1000,
        100,
        40,
        100,
        30,
        2,
    )
    assert found.precision.value == pytest.approx(0.75)
    assert (found.precision.low, found.precision.high) == (wilson(30, 40).low, wilson(30, 40).high)
    assert found.recall.value == pytest.approx(75 / 93)
    assert found.f1.value == pytest.approx(2 * 75 / (2 * 75 + 25 + 18))
    # p_o = (75 + 882) / 1000; people 93 leaks, detector 100: p_e = (.093 · .1 + .907 · .9)
    assert found.kappa.value == pytest.approx((0.957 - 0.8256) / (1 - 0.8256))
    assert found.prevalence.value == pytest.approx(0.093)
    assert found.missed_leaks.value == pytest.approx(18)
    # unweighted it would be 30 / 32
    assert found.recall.high is not None and found.recall.high < 0.97
    # missed: 900 times the ends of the Beta(2.5, 98.5) distribution, .0042 and .0626
    assert (found.missed_leaks.low, found.missed_leaks.high) == pytest.approx((900 * 0.0042, 900 * 0.0626), rel=0.08)


def test_without_labels_on_unflagged_hints_there_is_a_precision_and_no_recall() -> None:
    found = estimate([cell(50, True, 9, 10), cell(500, False, 0, 0)])
    assert found.precision.value == pytest.approx(0.9)
    for name in ("recall", "f1", "kappa", "prevalence", "missed_leaks"):
        assert getattr(found, name).value is None and getattr(found, name).low is None


def test_without_labels_on_flagged_hints_there_is_no_precision() -> None:
    found = estimate([cell(50, True, 0, 0), cell(500, False, 1, 100)])
    assert (found.precision.value, found.recall.value) == (None, None)
    assert found.missed_leaks.value == pytest.approx(5)


def test_an_audit_without_a_leak_bounds_what_is_missed_and_does_not_prove_a_recall_of_one() -> None:
    found = estimate([cell(100, True, 20, 20), cell(10_000, False, 0, 100)])
    assert (found.recall.value, found.recall.high) == (1.0, 1.0)
    # the 97.5 % quantile of Beta(½, 100.5) is .0247: 247 of 10,000 may leak, beside 100
    assert found.missed_leaks.value == 0.0 and found.missed_leaks.high == pytest.approx(247, rel=0.08)
    assert found.recall.low == pytest.approx(100 / 347, rel=0.08)


def test_where_nothing_is_flagged_recall_is_zero_once_a_leak_was_found() -> None:
    found = estimate([cell(500, False, 5, 100)])
    assert (found.precision.value, found.recall.value, found.kappa.value) == (None, 0.0, 0.0)
    none = estimate([cell(500, False, 0, 100)])
    assert (none.recall.value, none.prevalence.value) == (None, 0.0)
    assert estimate([]).recall.value is None
    assert estimate([cell(0, True, 0, 0), cell(500, False, 5, 100)]).recall.value == 0.0, "an empty cell says nothing"


def test_two_labels_of_hints_with_one_verdict_give_a_wide_interval_of_recall_and_none_of_width_zero() -> None:
    # Wilson with z = 1.96 for 2 of 2 and for 0 of 2: 1 / (1 + z² / 2) = .342 is the lower end, 1 − .342 the upper one
    all_flagged, none_flagged = estimate([cell(50, True, 2, 2)]), estimate([cell(50, False, 2, 2)])
    recall, missed = all_flagged.recall, none_flagged.recall
    assert (recall.value, recall.low, recall.high) == pytest.approx((1, 0.3424, 1), abs=1e-4) and recall.n == 2
    assert (missed.value, missed.low, missed.high) == pytest.approx((0, 0, 0.6576), abs=1e-4)
    kappa = estimate([cell(50, True, 1, 2)]).kappa  # agreement equals chance whatever the labels are
    assert kappa.value == pytest.approx(0) and kappa.low is None
    assert (all_flagged.missed_leaks.value, all_flagged.missed_leaks.low) == (0, None)


def test_a_detector_is_judged_on_strata_that_another_one_made() -> None:
    # of 100 flagged at first it flags 60 (30 of 30 leak) and not 40 (10 of 20); of 900 others 90 (9 of 10) and not 810
    cells = [cell(60, True, 30, 30), cell(40, False, 10, 20), cell(90, True, 9, 10), cell(810, False, 0, 80)]
    found = estimate(cells)
    assert found.precision.value == pytest.approx((60 + 81) / 150)
    assert found.recall.value == pytest.approx((60 + 81) / (60 + 81 + 20))


def test_labels_on_one_task_count_as_one_cluster() -> None:
    alone = estimate([cell(100, True, 20, 40), cell(900, False, 2, 100, 1000)])
    four = Stratum(100, True, [(i // 10, i // 10 % 2 == 0) for i in range(40)])
    together = estimate([four, cell(900, False, 2, 100, 1000)])
    assert alone.precision.value == together.precision.value == 0.5
    width = [e.precision.high - e.precision.low for e in (alone, together)]  # type: ignore[operator]
    assert width[1] > 2 * width[0]


@pytest.mark.slow
def test_the_intervals_cover_the_truth_of_made_draws() -> None:
    precise, missed = 0.8, 0.01
    rng, held, draws = (
        np.random.default_rng(1),
        dict.fromkeys(("precision", "recall", "f1", "kappa", "prevalence"), 0),
        300,
    )
    flagged, others = 400, 9600
    true = estimate([cell(flagged, True, round(flagged * precise), flagged),
                     cell(others, False, round(others * missed), others, 10**6)])  # fmt: skip
    for _ in range(draws):
        leaks = rng.hypergeometric(round(flagged * precise), round(flagged * (1 - precise)), 80)
        misses = rng.hypergeometric(round(others * missed), round(others * (1 - missed)), 300)
        found = estimate([cell(flagged, True, leaks, 80), cell(others, False, misses, 300, 10**6)])
        for name in held:
            interval, value = getattr(found, name), getattr(true, name).value
            held[name] += interval.low <= value <= interval.high
    assert min(held.values()) / draws >= 0.9, held


def test_how_many_labels_are_missing_follows_from_the_width() -> None:
    enough, fewer = (wilson(n / 2, n) for n in (SUFFICIENT_LABELS, SUFFICIENT_LABELS - 1))
    assert SUFFICIENT_LABELS == 381
    assert enough.high - enough.low <= 0.1 < fewer.high - fewer.low  # type: ignore[operator]
    wide = wilson(20, 40).model_copy(update={"low": 0.4, "high": 0.6})
    assert labels_needed(wide, 40) == 120, "half the width takes four times the labels"
    narrow = wilson(200, 400)
    assert labels_needed(narrow, 400) == 0
    assert labels_needed(wilson(0, 0), 0) is None


# -- verdicts that are known on the draws only -----------------------------------------------------------------------
def draws(*cells: tuple[bool, bool]) -> list[Draw]:
    return [Draw(i, flagged, leak) for i, (flagged, leak) in enumerate(cells)]


def test_each_draw_counts_as_the_hints_of_its_stratum_that_it_represents() -> None:
    flagged = (30, draws((True, True), (True, False), (False, True)))  # each represents 10 hints
    others = (60, draws((False, False), (False, True)))  # each represents 30 hints
    precision, recall = precision_and_recall([flagged, others])
    assert precision.value == pytest.approx(10 / 20) and precision.n == 2
    assert recall.value == pytest.approx(10 / (10 + 10 + 30)) and recall.n == 3


def test_without_a_flag_precision_is_unknown_and_without_a_leak_recall() -> None:
    precision, recall = precision_and_recall([(10, draws((False, True)))])
    assert precision.value is None and recall.value == 0
    precision, recall = precision_and_recall([(10, draws((True, False)))])
    assert precision.value == 0 and recall.value is None


def test_draws_on_one_task_widen_the_intervals() -> None:
    cells = [(True, i % 4 < 3) for i in range(40)]
    apart, _ = precision_and_recall([(400, draws(*cells))])
    together, _ = precision_and_recall([(400, [Draw(i // 8, *cell) for i, cell in enumerate(sorted(cells))])])
    assert apart.value == together.value == 0.75
    assert together.high - together.low > 1.3 * (apart.high - apart.low)  # type: ignore[operator]


def test_the_intervals_of_rare_false_alarms_cover_the_truth() -> None:
    """200 hints of which 80 % leak, and 2,000 of which 4 % leak; flagged are 90 % of the leaks, 2 % of the others."""
    rng, covered, trials = np.random.default_rng(0), np.zeros(2), 60
    truth = 216 / (216 + 0.02 * 1960), 0.9
    for _ in range(trials):
        strata = []
        for size, leaking in ((200, 0.8), (2_000, 0.04)):
            leaks = [bool(each) for each in rng.random(50) < leaking]
            strata.append((size, draws(*((bool(rng.random() < (0.9 if leak else 0.02)), leak) for leak in leaks))))
        covered += [e.low <= t <= e.high for e, t in zip(precision_and_recall(strata), truth, strict=True)]  # type: ignore[operator]
    assert (covered >= 0.9 * trials).all()
