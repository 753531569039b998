"""Every metric on dialogues small enough to count by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from report_data import series

from rl2f_core.common.stats.intervals import Interval, wilson
from rl2f_core.dialogue.metrics.dialogues import (
    OUTCOMES,
    classify_attempt,
    compute_metrics,
    effect_difference,
    effects,
    hint_effect,
    normalized_answer,
    reflection_words,
    revisions,
)
from rl2f_core.dialogue.metrics.groups import group_outcomes
from rl2f_core.types import Dialogue, FinishReason, Hint, LeakReport, RewardTerm, StopReason, Turn, Verdict


def attempt(
    parsed: str | None,
    *,
    right: bool = False,
    distance: float | None = None,
    parts: dict[str, str] | None = None,
    correct_parts: tuple[str, ...] = (),
    text: str | None = None,
    tokens: int = 2,
    stop: FinishReason = FinishReason.EOS,
    teacher: str | None = "scripted",
    leaked: bool | None = None,
    reward: float = 0.0,
) -> Turn:
    leak = None if leaked is None else LeakReport(leaked=leaked)
    return Turn(
        index=0,
        attempt=text if text is not None else f"<answer>{parsed}</answer>",
        token_ids=(5,) * tokens,
        finish_reason=stop,
        verdict=Verdict(
            correct=right, score=float(right), parsed=parsed, well_formed=parsed is not None, distance=distance,
            parts=parts or {}, correct_parts=correct_parts,
        ),
        rewards=(RewardTerm(name="correct", score=reward),),
        hint=None if right or teacher is None else Hint(text="No.", teacher=teacher, leak=leak),
    )  # fmt: skip


def dialogue(task: str, *turns: Turn, stop: StopReason | None = None, index: int = 0) -> Dialogue:
    placed = tuple(turn.model_copy(update={"index": i}) for i, turn in enumerate(turns))
    if stop is None:
        stop = StopReason.SOLVED if placed and placed[-1].verdict.correct else StopReason.EXHAUSTED
    return Dialogue(id=f"{task}.{index}", task_id=task, group=task, index=index, turns=placed, stop_reason=stop)


def right(answer: str = "42", **more) -> Turn:
    return attempt(answer, right=True, distance=0.0, **more)


FOUR = [
    dialogue("a", right()),
    dialogue("b", attempt("3", distance=0.5), right("5")),
    dialogue("c", attempt("7", distance=0.2), attempt("7", distance=0.2), attempt("9", distance=0.4)),
    dialogue("d", attempt("1", distance=0.9), stop=StopReason.CONTEXT_FULL),
]
"""Solved at 1, solved at 2, never in 3, cut off after 1."""


def values(dialogues: Sequence[Dialogue], turns: int = 3) -> dict[str, float]:
    return compute_metrics(dialogues, turns).flat()


def test_cumulative_accuracy_counts_those_solved_so_far():
    """a at 1; a and b at 2; nobody else at 3: 1/4, 2/4, 2/4, each with its Wilson interval."""
    found = compute_metrics(FOUR, 3)
    assert [i.value for i in series(found, "cum_acc")] == [0.25, 0.5, 0.5]
    assert found["cum_acc/1"] == wilson(1, 4)
    assert found.final() == found["cum_acc/3"] == wilson(2, 4)


def test_gain_and_correction_rate_are_shares_of_all_and_of_the_wrong():
    """b alone is solved late: gain 2/4 − 1/4 = 1/4; correction rate 1 of the 3 wrong at first, (1/4) / (3/4)."""
    found = compute_metrics(FOUR, 3)
    assert found["gain"] == wilson(1, 4)
    assert found["correction_rate"].value == pytest.approx(1 / 3)
    assert found["correction_rate"].n == 3


def test_hazard_counts_attempts_that_were_made():
    """Turn 1: 1 of 4. Turn 2: of b and c, b. Turn 3: of c, none. d was cut off before turn 2 and is not at risk.

    Turns 2 and 3 together: 1 of 3.
    """
    found = compute_metrics(FOUR, 3)
    assert [(i.value, i.n) for i in series(found, "conditional_solve_rate")] == [(0.25, 4), (0.5, 2), (0.0, 1)]
    assert (found["conditional_solve_rate"].value, found["conditional_solve_rate"].n) == (pytest.approx(1 / 3), 3)


def test_revisions_are_wrong_attempts_with_a_next_one():
    assert [len(revisions(d, 3)) for d in FOUR] == [0, 1, 2, 0]


def test_plasticity_repeat_rate_and_useful_change():
    """Revisions 3→5, 7→7, 7→9: changed 2 of 3, repeated 1 of 3; of the changed, 5 is right, 9 is farther: 1 of 2."""
    found = values(FOUR)
    assert found["plasticity"] == pytest.approx(2 / 3)
    assert found["repeated_answer_rate"] == pytest.approx(1 / 3)
    assert found["improving_change_rate"] == 0.5


def test_going_round_in_circles_is_plastic_and_repeats():
    """A B A B: three changes; the third and fourth answers had been given before: repeat rate 2/3."""
    found = values([dialogue("a", *(attempt(x) for x in "ABAB"))], turns=4)
    assert found["plasticity"] == 1.0
    assert found["repeated_answer_rate"] == pytest.approx(2 / 3)


def test_unparsable_attempts_are_compared_by_their_text():
    """`um` → ` um ` is no change; `um` → `er` is one; `er` → 7 is one; 7 → `7` unparsable is one: 3 of 4."""
    turns = [attempt(None, text="um"), attempt(None, text=" um "), attempt(None, text="er"), attempt("7"),
             attempt(None, text="7")]  # fmt: skip
    found = values([dialogue("a", *turns)], turns=5)
    assert found["plasticity"] == pytest.approx(3 / 4)
    assert found["repeated_answer_rate"] == pytest.approx(1 / 4)
    assert normalized_answer(attempt("7")) != normalized_answer(attempt(None, text="7"))


def test_the_same_answer_in_other_words_is_no_change():
    found = values([dialogue("a", attempt("7", text="I say <answer>7</answer>"), attempt("7"))])
    assert (found["plasticity"], found["repeated_answer_rate"]) == (0.0, 1.0)


def test_an_unparsable_attempt_is_the_farthest_where_there_are_distances():
    """unparsable → .5 is closer; .5 → unparsable is farther; um → er stays at 1: useful 1 of 3; away 1 of 3."""
    turns = [attempt(None, text="um"), attempt("8", distance=0.5), attempt(None, text="um"), attempt(None, text="er")]
    found = values([dialogue("a", *turns)], turns=4)
    assert found["improving_change_rate"] == pytest.approx(1 / 3)
    assert found["regression_rate"] == pytest.approx(1 / 3)


def test_without_distances_and_parts_nothing_is_said_of_usefulness():
    found = compute_metrics([dialogue("a", attempt("1"), attempt("2"))], 2)
    for name in ("improving_change_rate", "regression_rate", "misled_rate", "retention"):
        assert found[name] == Interval(value=None, low=0.0, high=1.0, n=0)


def test_retention_counts_confirmed_parts_that_stay():
    """B?A: 1 and 3 are right. The next attempt keeps 1 and loses 3: 1 of 2.

    Its own right part 1 is lost by an unparsable attempt: 0 of 1. Together 1 of 3. Part 2 was never right.
    """
    turns = [
        attempt("BCA", parts={"1": "B", "2": "C", "3": "A"}, correct_parts=("1", "3")),
        attempt("BCC", parts={"1": "B", "2": "C", "3": "C"}, correct_parts=("1",)),
        attempt(None),
    ]
    found = compute_metrics([dialogue("a", *turns)], 3)
    assert found["retention"].value == pytest.approx(1 / 3)
    assert found["retention"].n == 3


def test_the_misled_rate_counts_moves_toward_the_misleading_hint_and_no_other_regression():
    """Toward, not, undefined, not: 1 of 3. The distance grew twice without a move toward the hint."""
    turns = [
        attempt("1", distance=0.2, teacher="misleading"),
        attempt("2", distance=0.6, teacher="misleading").model_copy(update={"misled": True}),
        attempt("3", distance=0.7, teacher="misleading").model_copy(update={"misled": False}),
        attempt("4", distance=0.1, teacher="misleading"),
        attempt("5", distance=0.9).model_copy(update={"misled": False}),
    ]
    found = compute_metrics([dialogue("a", *turns)], 5)
    assert found["misled_rate"].value == pytest.approx(1 / 3) and found["misled_rate"].n == 3
    assert found["regression_rate"].value == pytest.approx(3 / 4)
    assert values([dialogue("a", *turns)], turns=2)["misled_rate"] == 1


def test_counts_of_attempts_overall_and_by_turn():
    """Lengths 4, 6 | 8: mean 6; turn 1: 4 and 8, mean 6; turn 2: 6. One of three cut off, one unparsable."""
    dialogues = [
        dialogue("a", attempt("1", tokens=4), attempt("2", tokens=6)),
        dialogue("b", attempt(None, text="…", tokens=8, stop=FinishReason.LENGTH), stop=StopReason.CONTEXT_FULL),
    ]
    found = values(dialogues, turns=2)
    assert (found["attempt_tokens"], found["attempt_tokens/1"], found["attempt_tokens/2"]) == (6, 6, 6)
    for name in ("truncated_rate", "parse_failure_rate", "format_error_rate"):
        assert found[name] == pytest.approx(1 / 3)
        assert (found[f"{name}/1"], found[f"{name}/2"]) == (0.5, 0.0)


def test_an_attempt_can_be_parsable_and_ill_formed():
    turn = attempt("7")
    loose = turn.model_copy(update={"verdict": turn.verdict.model_copy(update={"well_formed": False})})
    found = values([dialogue("a", loose)], turns=1)
    assert (found["parse_failure_rate"], found["format_error_rate"]) == (0.0, 1.0)


def test_lengths_leave_out_attempts_stored_without_tokens():
    found = compute_metrics([dialogue("a", attempt("1", tokens=0), attempt("2", tokens=3))], 2)
    assert (found["attempt_tokens"].value, found["attempt_tokens"].n) == (3.0, 1)
    assert found["attempt_tokens/1"] == Interval(value=None, n=0)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Wait, let me check: however …", 4),
        ("WAIT. Re-evaluate, reevaluating, verified.", 4),
        ("re-check it, then recheck", 2),
        ("waiter, checkers, letme, unchecked", 0),
        ("", 0),
    ],
)
def test_reflection_words_are_whole_words(text, count):
    assert reflection_words(text) == count


ALL_OUTCOMES = [
    dialogue("a", attempt("1", tokens=4), right(tokens=8)),
    dialogue(
        "b", attempt(None, tokens=5), attempt(None, stop=FinishReason.LENGTH, tokens=20), stop=StopReason.CONTEXT_FULL
    ),
    dialogue("c", right(stop=FinishReason.LENGTH, tokens=20)),
    dialogue(
        "d",
        attempt("2", tokens=6).model_copy(update={"verdict": Verdict(correct=False, score=0, parsed="2")}),
        right(tokens=10).model_copy(update={"verdict": Verdict(correct=True, score=1, parsed="4")}),
    ),
]
"""Seven attempts: wrong, right; unparsable, cut off; right and cut off after it; wrong and right, both ill-formed."""


def test_every_attempt_comes_to_exactly_one_outcome_and_the_shares_add_up():
    found = values(ALL_OUTCOMES)
    shares = {name: found[f"outcome/{name}"] * 7 for name in OUTCOMES}
    assert {name: round(n) for name, n in shares.items()} == {
        "correct": 2, "correct_format_error": 1, "incorrect": 1, "incorrect_format_error": 1, "unparsable": 1,
        "truncated": 1
    }  # fmt: skip
    assert sum(shares.values()) == pytest.approx(7)
    assert found["parse_failure_rate"] == pytest.approx(found["outcome/unparsable"] + found["outcome/truncated"])
    broken = ("unparsable", "truncated", "correct_format_error", "incorrect_format_error")
    assert found["format_error_rate"] == pytest.approx(sum(found[f"outcome/{name}"] for name in broken))
    assert found["truncated_rate"] == pytest.approx(2 / 7)  # overlaps: one of the two was right all the same
    assert compute_metrics(ALL_OUTCOMES, 3)["outcome/correct"].n == 7


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("parsed", ["1", None])
@pytest.mark.parametrize("formed", [True, False])
@pytest.mark.parametrize("stop", list(FinishReason))
def test_an_outcome_has_a_name_whatever_the_verdict_says(correct, parsed, formed, stop):
    verdict = Verdict(correct=correct, score=float(correct), parsed=parsed, well_formed=formed)
    assert classify_attempt(attempt("1", stop=stop).model_copy(update={"verdict": verdict})) in OUTCOMES


def test_lengths_by_right_and_wrong_are_means_over_their_own_attempts():
    """Right: 8, 20 and 10 tokens; the others: 4, 5, 20 and 6."""
    found = values(ALL_OUTCOMES)
    assert found["attempt_tokens/correct"] == pytest.approx(38 / 3)
    assert found["attempt_tokens/incorrect"] == 35 / 4
    assert found["attempt_tokens"] == pytest.approx(73 / 7)
    assert "attempt_tokens/correct" not in values([dialogue("a", attempt("1"))])


def test_reflection_words_per_thousand_tokens_by_right_and_wrong():
    """Wrong: 1 word in 50 tokens = 20 per 1,000. Right: 3 in 100 = 30. All: 4 in 150 = 26.67."""
    dialogues = [
        dialogue("a", attempt("1", text="wait", tokens=50), right(text="check, verify, wait", tokens=100)),
    ]
    found = values(dialogues, turns=2)
    assert found["reflection_words/incorrect"] == 20
    assert found["reflection_words/correct"] == 30
    assert found["reflection_words"] == pytest.approx(4000 / 150)
    assert (found["reflection_words/1"], found["reflection_words/2"]) == (20, 30)


def test_reward_is_the_mean_sum_of_a_dialogue():
    """Sums .5 + 1 = 1.5, and 0, and 0: mean .5; deviations 1, −.5, −.5: variance 1.5 / 2, std √.75."""
    dialogues = [
        dialogue("a", attempt("1", reward=0.5), right(reward=1.0)),
        dialogue("b", attempt("1")),
        dialogue("c", attempt("2")),
    ]
    found = values(dialogues, turns=2)
    assert found["reward"] == pytest.approx(0.5)
    assert found["reward_std"] == pytest.approx(0.75**0.5)


def test_leak_rate_counts_hints_that_a_detector_read():
    """Two of three read hints leaked; the fourth was read by nobody."""
    turns = [attempt("1", leaked=True), attempt("2", leaked=False), attempt("3", leaked=True), attempt("4")]
    found = compute_metrics([dialogue("a", *turns)], 4)
    assert found["leak_rate"].value == pytest.approx(2 / 3)
    assert found["leak_rate"].n == 3


def test_leaks_that_the_student_read_and_prevented_leaks_are_counted_separately():
    """Four checked hints: one leak was read, two were replaced."""
    turns = [attempt(str(k), leaked=k < 3) for k in range(4)]
    for k in (1, 2):
        hint = turns[k].hint.model_copy(update={"feedback": "It is 7."})  # type: ignore[union-attr]
        turns[k] = turns[k].model_copy(update={"hint": hint})
    found = compute_metrics([dialogue("a", *turns)], 4)
    assert (found["leak_rate"].value, found["prevented_leak_rate"].value) == (1 / 4, 2 / 4)
    assert found["leak_rate"].n == found["prevented_leak_rate"].n == 4


def test_failed_dialogues_count_only_among_the_stop_reasons():
    broken = dialogue("e", attempt(None), stop=StopReason.FAILED)
    found, without = compute_metrics([*FOUR, broken], 3), compute_metrics(FOUR, 3)
    assert found["stop/failed"] == wilson(1, 5)
    assert found["stop/solved"] == wilson(2, 5)
    assert (found.dialogues, found.tasks) == (4, 4)
    assert found["cum_acc/3"] == without["cum_acc/3"]
    assert found["parse_failure_rate"] == without["parse_failure_rate"]


def test_dropped_and_truncated_dialogues_count_as_unsolved():
    dropped = dialogue("e", attempt("1"), stop=StopReason.DROPPED)
    never_began = dialogue("f", stop=StopReason.CONTEXT_FULL)
    assert values([*FOUR, dropped, never_began])["cum_acc/3"] == pytest.approx(2 / 6)


def test_later_turns_than_allowed_are_not_seen():
    """Cut to one turn, b and c are wrong: 1 of 4, and there are no revisions."""
    found = compute_metrics(FOUR, 1)
    assert found["cum_acc/1"] == wilson(1, 4)
    assert found["plasticity"].n == 0
    assert "cum_acc/2" not in found.values


def test_one_turn_gains_nothing_by_definition():
    found = compute_metrics(FOUR, 1)
    assert found["gain"] == Interval(value=0.0, low=0.0, high=0.0, n=4)
    assert found["correction_rate"].value is None
    assert found["conditional_solve_rate"].value is None


def test_all_solved_at_once_leaves_nothing_to_correct():
    found = compute_metrics([dialogue("a", right()), dialogue("b", right())], 3)
    assert [i.value for i in series(found, "cum_acc")] == [1, 1, 1]
    assert found["gain"].value == 0
    for name in (
        "correction_rate",
        "conditional_solve_rate/2",
        "plasticity",
        "repeated_answer_rate",
        "attempt_tokens/2",
    ):
        assert found[name].value is None
    assert found["reflection_words/incorrect"].value is None


def test_nothing_parsable_is_told_apart_from_nothing_right():
    mute = compute_metrics([dialogue("a", attempt(None, text="")), dialogue("b", attempt(None, text="…"))], 1)
    wrong = compute_metrics([dialogue("a", attempt("1")), dialogue("b", attempt("2"))], 1)
    assert (mute["cum_acc/1"].value, mute["parse_failure_rate"].value) == (0.0, 1.0)
    assert (wrong["cum_acc/1"].value, wrong["parse_failure_rate"].value) == (0.0, 0.0)


def test_no_dialogues_give_no_values_and_no_nan():
    found = compute_metrics([], 2)
    assert found.flat() == {}
    assert (found.tasks, found.dialogues) == (0, 0)
    assert "NaN" not in found.model_dump_json()


def test_several_samples_of_a_task_widen_the_interval():
    """Ten tasks, four like dialogues each, half solved: 40 dialogues count as about ten."""
    dialogues = [
        dialogue(f"t{task}", right() if task < 5 else attempt("1"), index=i) for task in range(10) for i in range(4)
    ]
    found, few, many = compute_metrics(dialogues, 1)["cum_acc/1"], wilson(5, 10), wilson(20, 40)
    assert (found.value, found.n) == (0.5, 40)
    assert found.high - found.low >= few.high - few.low > many.high - many.low


def test_hint_effect_is_paired_by_task():
    """Tasks a and b are in both: hints solve 1 and ½ (of two samples), contentless 0 and ½. Mean of 1 and 0: ½.

    Task c was played with hints only and does not count.
    """
    hints = [
        dialogue("a", right()), dialogue("b", right()), dialogue("b", attempt("1"), index=1), dialogue("c", right()),
    ]  # fmt: skip
    contentless = [dialogue("b", attempt("1")), dialogue("b", right(), index=1), dialogue("a", attempt("1"))]
    found = hint_effect(hints, contentless, 3)
    assert (found.value, found.n) == (0.5, 2) and not found.excludes_zero


def test_hint_effect_sees_only_the_turns_allowed():
    late = [dialogue("a", attempt("1"), right())]
    never = [dialogue("a", attempt("1"), attempt("2"))]
    assert hint_effect(late, never, 2).value == 1.0
    assert hint_effect(late, never, 1).value == 0.0


def test_effects_hold_every_control_but_contentless():
    solved, unsolved = [dialogue("a", right())], [dialogue("a", attempt("1"))]
    played = {"hints": solved, "contentless": unsolved, "shuffled": unsolved}
    assert {name: i.value for name, i in effects(played, 2).items()} == {"hints": 1.0, "shuffled": 0.0}
    assert effects({"hints": solved}, 2) == {}


def test_effect_difference_subtracts_effect_from_effect():
    """Later: hints solve a and b, contentless none: effects 1, 1. Earlier: hints solve a, as contentless does: 0, 0."""
    none = [dialogue("a", attempt("1")), dialogue("b", attempt("1"))]
    both = [dialogue("a", right()), dialogue("b", right())]
    one = [dialogue("a", right()), dialogue("b", attempt("1"))]
    found = effect_difference({"hints": both, "contentless": none}, {"hints": one, "contentless": one}, 2)
    assert (found.value, found.n) == (1.0, 2) and not found.excludes_zero  # two problems


def test_independent_draws_give_pass_at_t():
    """The resample control's dialogues are first answers in a row: right at the second draw is pass@2, not pass@1."""
    drawn = [dialogue("a", attempt("1", teacher=None), right()), dialogue("b", right())]
    assert [i.value for i in series(compute_metrics(drawn, 2), "cum_acc")] == [0.5, 1.0]


def test_groups_with_equal_returns_are_counted_by_their_verdicts():
    """Of four groups: unequal; all right; all wrong; all right at different turns, which is unequal too."""
    solved = [[True, False], [True, True], [False, False], [True, True]]
    assert group_outcomes([True, False, False, True], solved) == {
        "groups/frac_mixed": 0.5,
        "groups/frac_all_correct": 0.25,
        "groups/frac_all_incorrect": 0.25,
        "frac_reward_zero_std": 0.5,
    }


def test_equal_returns_above_zero_can_be_all_wrong():
    """Two wrong dialogues with the same progress reward."""
    found = group_outcomes([False], [[False, False]])
    assert (found["groups/frac_all_correct"], found["groups/frac_all_incorrect"]) == (0.0, 1.0)


def test_empty_groups_do_not_count():
    assert group_outcomes([], []) == {}
    assert group_outcomes([False, True], [[], [True, False]])["groups/frac_mixed"] == 1.0


def informed(task: str, *bits: tuple[float | None, float | None, float | None], determined: int = -1) -> Dialogue:
    """Wrong attempts with (hint_bits, bits_left, bits_used); the hint of turn `determined` determines the answer."""
    turns = [
        attempt(str(k)).model_copy(
            update={
                "hint_bits": b,
                "bits_left": left,
                "bits_used": used,
                "determines_answer": k == determined,
                "chance_bits": None if b is None else b / 4,
            }
        )
        for k, (b, left, used) in enumerate(bits)
    ]
    return dialogue(task, *turns)


def test_efficiency_is_bits_used_of_the_bits_in_hints_with_a_next_attempt():
    """Hints: 3 bits (2 left), 1 bit (1 left) | 2 bits (0 left), and 4 bits of which no attempt can make use.

    Used: 1.5 of 3, 1 of 1, 0 of 2: efficiency 2.5 / 6. Means over 4 hints: 10 / 4 bits, 6 / 4 left. After attempt 1:
    5 / 2 bits. One of 4 determines the answer. The turn without bits counts nowhere.
    """
    dialogues = [
        informed("a", (3.0, 2.0, None), (1.0, 1.0, 1.5), (None, None, 1.0)),
        informed("b", (2.0, 0.0, None), (4.0, 3.0, 0.0), determined=0),
        informed("c", (None, None, None), (None, None, None)),
    ]
    found = compute_metrics(dialogues, 3)
    assert found["efficiency"].value == pytest.approx(2.5 / 6)
    assert found["efficiency_chance"].value == pytest.approx(0.25)
    assert (found["hint_bits"].value, found["bits_left"].value) == (2.5, 1.5)
    assert (found["hint_bits/1"].value, found["bits_left/1"].value, found["hint_bits/2"].value) == (2.5, 1.0, 2.5)
    assert (found["determined_rate"].value, found["determined_rate"].n) == (0.25, 4)


def test_the_interval_of_efficiency_stays_in_0_to_1_and_bits_are_no_observations():
    """Nine problems use .3 of .3 bits and one uses none: .9; `n` counts hints, not bits."""
    found = compute_metrics([informed(f"t{i}", (0.3, 1.0, None), (None, None, 0.3 * (i > 0))) for i in range(10)], 2)
    interval = found["efficiency"]
    assert (interval.value, interval.high, interval.n) == (pytest.approx(0.9), 1.0, 10)
    assert 0.5 < interval.low < 0.9


def test_efficiency_is_unknown_without_bits_in_hints():
    found = compute_metrics([informed("a", (0.0, 2.0, None), (None, None, 0.0)), informed("b", (None, None, None))], 2)
    assert found["efficiency"].value is None
    assert compute_metrics(FOUR, 3)["hint_bits"].value is None
