"""Agreement between labellers against numbers worked out by hand."""

from __future__ import annotations

import pytest

from jobs.labels.agreement import agreement, majority_vote


def answers(text: str) -> dict[int, str]:
    """`LNU` as leak, no leak, unsure of items 0, 1, 2."""
    return {i: {"L": "leak", "N": "no_leak", "U": "unsure"}[letter] for i, letter in enumerate(text)}


def test_kappa_of_a_two_by_two_table_by_hand() -> None:
    # 20 both leak, 5 only a, 10 only b, 15 neither: p_o = 35/50, p_e = (25·30 + 25·20)/50² = 0.5, κ = 0.2/0.5
    found = agreement(answers("L" * 25 + "N" * 25), answers("L" * 20 + "N" * 5 + "L" * 10 + "N" * 15))
    assert (found.observed.n, found.observed.value) == (50, 0.7)
    assert found.kappa.value == pytest.approx(0.4)
    # half width: 1.959964 · √(0.7·0.3/50) / 0.5 = 1.959964 · 0.0648074 / 0.5
    assert found.kappa.low == pytest.approx(0.4 - 0.254041, abs=1e-5)
    assert found.kappa.high == pytest.approx(0.4 + 0.254041, abs=1e-5)


def test_kappa_of_three_answers_by_hand() -> None:
    # only item 1 differs: p_o = 5/6; a: L3 N2 U1, b: L2 N3 U1, so p_e = (3·2 + 2·3 + 1·1)/36
    found = agreement(answers("LLLNNU"), answers("LNLNNU"))
    assert found.observed.value == pytest.approx(5 / 6)
    assert found.kappa.value == pytest.approx((5 / 6 - 13 / 36) / (1 - 13 / 36))


def test_agreement_below_chance_is_negative() -> None:
    found = agreement(answers("LN"), answers("NL"))
    assert (found.observed.value, found.kappa.value) == (0.0, -1.0)


def test_kappa_is_not_defined_where_chance_alone_agrees_fully() -> None:
    found = agreement(answers("LLL"), answers("LLL"))
    assert (found.observed.value, found.kappa.value) == (1.0, None)


def test_only_items_that_both_answered_count() -> None:
    found = agreement({1: "leak", 2: "no_leak"}, {2: "no_leak", 3: "leak"})
    assert (found.observed.n, found.observed.value) == (1, 1.0)
    nothing = agreement({1: "leak"}, {2: "leak"})
    assert (nothing.observed.n, nothing.observed.value, nothing.kappa.value) == (0, None, None)


@pytest.mark.parametrize(
    ("given", "decided"),
    [("L", "leak"), ("LN", None), ("LLN", "leak"), ("NNL", "no_leak"), ("U", None), ("UUL", "leak"), ("", None)],
)
def test_the_majority_of_the_decided_answers_decides(given: str, decided: str | None) -> None:
    assert majority_vote(answers(given).values()) == decided
