"""The three answers about the hints, with verdicts worked out by hand."""

from __future__ import annotations

from report_data import PLAYED, built, made, tasks, with_effect

from rl2f_core.evaluation.conclusions import BELIEVED, COMPARED, HELPED, answers
from rl2f_core.types import ConstantBaseline


def test_the_first_answer_says_yes_no_or_not_shown():
    start = "with hints, the solve rate of rl2f@24 within 3 turns changes by"
    assert answers(with_effect(made(0.2, 0.42)))[HELPED] == f"Yes: {start} +.31 [.20, .42]."
    assert answers(with_effect(made(-0.42, -0.2)))[HELPED] == f"No, they hurt: {start} −.31 [−.42, −.20]."
    includes = answers(with_effect(made(-0.1, 0.3)))[HELPED]
    assert includes.startswith(f"Not shown: {start} +.10 [−.10, .30], and this is not a clear difference: 95 % CI")
    few = answers(with_effect(made(0.2, 0.42, n=9)))
    assert few[HELPED].startswith("Not shown") and "9 problems are too few to tell" in few[BELIEVED]


def test_the_second_answer_names_the_comparison_and_the_change_by_training():
    """rl2f@24 solves 7 of 8 with hints and 1 of 8 without, warmup@9 nothing; base cannot be parsed."""
    compared = answers(built())[COMPARED]
    assert compared.startswith("The same checkpoint with contentless feedback on the same 8 problems: .12 [")
    assert "and .88 [" in compared and compared.endswith("unparsable, so hints could not help them.")
    nothing = tasks(*[0] * 8)
    middle = {"warmup@9": {"hints": nothing, "contentless": nothing}}
    compared = answers(built({"base": PLAYED["base"], **middle, "rl2f@24": PLAYED["rl2f@24"]}))[COMPARED]
    assert "Its hint effect minus that of warmup@9 is +.75 [" in compared


def test_the_third_answer_lists_doubts_and_otherwise_what_the_answer_holds_for():
    enough = {"rl2f@24": {"hints": tasks(*[1] * 12), "contentless": tasks(*[0] * 12)}}
    without = built(enough).model_copy(update={"constant_baseline": None})
    assert answers(without)[BELIEVED].startswith("For other test problems of this kind: 12 are paired")
    known = {"tasks": 12, "constant_baseline": ConstantBaseline(answer="A", score=0.99)}
    same = built(enough).model_copy(update=known)
    assert "the solve rate is indistinguishable from always answering A" in answers(same)[BELIEVED]
    unread = built({"base": {"hints": tasks(*[0] * 12, parsable=False), "contentless": tasks(*[0] * 12)}})
    assert answers(unread)[BELIEVED].startswith("Only with care: 1.00 of the attempts are unparsable")


def test_without_contentless_feedback_or_hints_the_answer_is_unknown():
    assert answers(built({"base": {"hints": tasks(1, 0)}})) == {
        HELPED: "Unknown for base: the condition contentless, which replaces the hints, is missing."
    }
    assert answers(built({"base": {"contentless": PLAYED["base"]["contentless"]}})) == {}
