"""Credit: from rewards to advantages, with every number worked out by hand."""

from __future__ import annotations

from math import sqrt

import pytest

from rl2f_core.learning.methods.advantages import (
    EPSILON,
    dialogue_advantages,
    dialogue_return,
    has_gradient,
    returns_to_go,
    subtract_baseline,
    turn_advantages,
)


def close(value: object) -> object:
    return pytest.approx(value, rel=1e-12, abs=1e-12)


# -- returns ---------------------------------------------------------------------------------------------------
def test_the_return_to_go_of_a_turn_is_its_reward_and_the_discounted_rest():
    # R_2 = 4, R_1 = 2 + 0.5·4 = 4, R_0 = 1 + 0.5·4 = 3
    assert returns_to_go([1, 2, 4], 0.5) == close([3, 4, 4])


def test_the_return_of_a_dialogue_discounts_from_its_first_turn():
    # 1 + 0.5·2 + 0.25·4 = 3, which is also the return-to-go of turn 0
    assert dialogue_return([1, 2, 4], 0.5) == close(3)
    assert returns_to_go([1, 2, 4], 0.5)[0] == dialogue_return([1, 2, 4], 0.5)


@pytest.mark.parametrize(("turn", "expected"), [(0, 1.0), (1, 0.7), (2, 0.49), (3, 0.343)])
def test_one_solving_turn_is_worth_gamma_to_its_number(turn: int, expected: float):
    assert dialogue_return([0] * turn + [1], 0.7) == close(expected)


def test_gamma_zero_looks_at_a_turn_alone_and_gamma_one_sums():
    assert returns_to_go([1, 2, 4], 0) == close([1, 2, 4])
    assert returns_to_go([1, 2, 4], 1) == close([7, 6, 4])
    assert dialogue_return([1, 2, 4], 0) == 1 and dialogue_return([1, 2, 4], 1) == 7


def test_a_dialogue_without_turns_returns_nothing():
    assert returns_to_go([], 0.7) == [] and dialogue_return([], 0.7) == 0


# -- one set of returns ----------------------------------------------------------------------------------------
def test_the_mean_is_the_baseline():
    # mean of 1, 2, 6 is 3
    assert subtract_baseline([1, 2, 6], std=False, baseline="mean") == close([-2, -1, 3])


def test_leave_one_out_compares_with_the_mean_of_the_others():
    # 1 − (2+6)/2 = −3, 2 − (1+6)/2 = −1.5, 6 − (1+2)/2 = 4.5: 3/2 of the distances to the mean of all
    assert subtract_baseline([1, 2, 6], std=False, baseline="leave_one_out") == close([-3, -1.5, 4.5])


def test_std_divides_by_the_sample_standard_deviation_plus_epsilon():
    # squares 4 + 1 + 9 = 14 over n − 1 = 2: s = √7, and not √(14/3)
    scale = 1 / (sqrt(7) + 1e-6)
    assert EPSILON == 1e-6
    assert subtract_baseline([1, 2, 6], std=True, baseline="mean") == close([-2 * scale, -scale, 3 * scale])


def test_std_divides_leave_one_out_by_the_same_standard_deviation():
    scale = 1 / (sqrt(7) + 1e-6)
    assert subtract_baseline([1, 2, 6], std=True, baseline="leave_one_out") == close(
        [-3 * scale, -1.5 * scale, 4.5 * scale]
    )


def test_epsilon_keeps_tiny_differences_small():
    # mean 1e-9; s = √(2·1e-18 / 1) = √2·1e-9, far below ε, so the advantages are about ±1e-9 / 1e-6, not ±0.7
    low, high = subtract_baseline([0.0, 2e-9], std=True, baseline="mean")
    assert high == close(1e-9 / (sqrt(2) * 1e-9 + 1e-6)) and low == -high
    assert high == pytest.approx(0.001, rel=0.01)


@pytest.mark.parametrize("std", [False, True])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_equal_returns_and_single_members_get_exactly_zero(std: bool, baseline: str):
    assert subtract_baseline([0.5, 0.5, 0.5], std=std, baseline=baseline) == [0, 0, 0]
    assert subtract_baseline([7.0], std=std, baseline=baseline) == [0]
    assert subtract_baseline([], std=std, baseline=baseline) == []


# -- dialogue credit -------------------------------------------------------------------------------------------
def test_dialogue_credit_gives_all_turns_of_a_dialogue_the_same_advantage():
    # returns 1, 0.7·1 = 0.7, 0 (three turns); mean 1.7/3
    mean = 1.7 / 3
    assert dialogue_advantages([[1], [0, 1], [0, 0, 0]], 0.7) == [
        close([1 - mean]),
        close([0.7 - mean, 0.7 - mean]),
        close([-mean, -mean, -mean]),
    ]


def test_dialogue_credit_divides_by_the_standard_deviation_of_returns():
    # returns 1 and 0.5; mean 0.75; s = √((0.0625 + 0.0625) / 1) = 0.25·√2
    a = 0.25 / (0.25 * sqrt(2) + 1e-6)
    assert dialogue_advantages([[1], [0, 1]], 0.5, std=True) == [close([a]), close([-a, -a])]


def test_dialogue_credit_with_leave_one_out():
    # returns 1, 0.5, 0: 1 − 0.25, 0.5 − 0.5, 0 − 0.75
    assert dialogue_advantages([[1], [0, 1], [0, 0]], 0.5, baseline="leave_one_out") == [
        close([0.75]),
        close([0, 0]),
        close([-0.75, -0.75]),
    ]


# -- turn credit -----------------------------------------------------------------------------------------------
def test_turn_credit_compares_a_turn_with_the_members_that_reached_it():
    # γ 0.5            turn 0              turn 1        turn 2
    # [1]              1                   –             –
    # [0, 1]           0 + 0.5·1 = 0.5     1             –
    # [0, 0, 1]        0 + 0.5·0.5 = 0.25  0.5·1 = 0.5   1
    # [0, 0, 0]        0                   0             0
    # means            1.75/4 = 0.4375     1.5/3 = 0.5   1/2 = 0.5
    assert turn_advantages([[1], [0, 1], [0, 0, 1], [0, 0, 0]], 0.5) == [
        close([0.5625]),
        close([0.0625, 0.5]),
        close([-0.1875, 0.0, 0.5]),
        close([-0.4375, -0.5, -0.5]),
    ]


def test_turn_credit_is_zero_where_only_one_member_came_so_far():
    # turn 0: returns 1 and 0 + 1·(0 + 1·1) = 1, equal; turns 1 and 2 were reached by one member alone
    assert turn_advantages([[1], [0, 0, 1]], 1.0) == [[0], [0, 0, 0]]
    # γ 0.5: 1 against 0.25, mean 0.625; nothing to compare turns 1 and 2 with
    assert turn_advantages([[1], [0, 0, 1]], 0.5) == [close([0.375]), close([-0.375, 0, 0])]


def test_turn_credit_divides_each_turn_by_its_own_standard_deviation():
    # γ 1, turn 0: returns 3, 1, 2; mean 2; s = √((1 + 1 + 0) / 2) = 1
    #      turn 1: returns 1 (second), 2 (third); mean 1.5; s = √((0.25 + 0.25) / 1) = √0.5
    one, half = 1 / (1 + 1e-6), 0.5 / (sqrt(0.5) + 1e-6)
    assert turn_advantages([[3], [0, 1], [0, 2]], 1.0, std=True) == [
        close([one]),
        close([-one, -half]),
        close([0, half]),
    ]


def test_turn_credit_with_leave_one_out_uses_the_members_of_that_turn():
    # γ 1, turn 0: 3, 1, 2 → 3 − 1.5, 1 − 2.5, 2 − 2; turn 1: 1, 2 → 1 − 2, 2 − 1
    assert turn_advantages([[3], [0, 1], [0, 2]], 1.0, baseline="leave_one_out") == [
        close([1.5]),
        close([-1.5, -1]),
        close([0, 1]),
    ]


def test_turn_credit_in_trees_compares_later_turns_with_the_same_first_attempt():
    # γ 1              turn 0     turn 1 (tree 0: mean 1.5, tree 1: mean 4; tree 2 has one member)
    # tree 0: [0, 1]   1          1 − 1.5
    # tree 0: [0, 2]   2          2 − 1.5
    # tree 1: [0, 3]   3          3 − 4
    # tree 1: [0, 5]   5          5 − 4
    # tree 2: [0, 4]   4          nothing to compare with
    rewards = [[0, 1], [0, 2], [0, 3], [0, 5], [0, 4]]
    assert turn_advantages(rewards, 1.0, trees=[0, 0, 1, 1, 2]) == [
        close([-2, -0.5]),
        close([-1, 0.5]),
        close([0, -1]),
        close([2, 1]),
        close([1, 0]),
    ]


def test_with_one_turn_both_credits_are_the_same():
    rewards = [[1.0], [0.0], [0.0], [-0.1]]
    # mean 0.9/4 = 0.225
    assert turn_advantages(rewards, 0.3) == dialogue_advantages(rewards, 0.9)
    assert turn_advantages(rewards, 1.0) == [close([0.775]), close([-0.225]), close([-0.225]), close([-0.325])]


@pytest.mark.parametrize("credit", [turn_advantages, dialogue_advantages])
def test_a_group_of_one_and_an_empty_group_have_no_advantage(credit):
    assert credit([[0, 1]], 0.7) == [[0, 0]]
    assert credit([], 0.7) == []


@pytest.mark.parametrize("credit", [turn_advantages, dialogue_advantages])
@pytest.mark.parametrize("std", [False, True])
def test_a_group_whose_dialogues_all_went_alike_has_no_gradient(credit, std: bool):
    assert not has_gradient(credit([[1]] * 4, 0.7, std=std))
    assert not has_gradient(credit([[0, 0.1, 0.3]] * 3, 0.7, std=std))
    assert has_gradient(credit([[0, 0.1, 0.3], [0, 0.1, 0.2]], 0.7, std=std))


def test_gradient_starts_above_the_tolerance():
    assert not has_gradient([]) and not has_gradient([[], [0.0, 1e-9]])
    assert has_gradient([[0.0], [0.0, -2e-9]])
