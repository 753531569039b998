"""Parts of an answer: what counts as told, what the student held itself, and which share is reported."""

# ruff: noqa: E501 (tables of sentences)
from __future__ import annotations

import pytest
from leak_helpers import arithmetic, check, code, mentions, words

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.puzzles.knights_knaves.environment import KnightsKnaves
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.decoding.number_words import han_numbers, number_words
from rl2f_core.leaks.mentions.detector import MentionsDetector


def puzzle():
    env = KnightsKnaves(KnightsKnaves.Config(people=3))
    return env, env.task_from_gold("Ada, Ben and Cid meet.", "Ada=knight; Ben=knave; Cid=knight")


LAST = wrap_answer("Ada is a knight, Ben is a knight, Cid is a knave")


@pytest.mark.parametrize(
    ("hint", "span"),
    [
        ("The last digit is 2.", "last digit is 2"),
        ("Put a 3 in the tens place.", "3 in the tens place"),
        ("It starts with a one.", "It starts with a one"),
        ("The first digit is one!", "first digit is one"),
    ],
)
def test_stated_digit_is_a_partial_leak(hint: str, span: str):
    report = check(mentions, arithmetic("What is 47 + 85?", "132"), hint, wrap_answer("999"))
    assert report.answer_fraction == pytest.approx(1 / 3) and words(report, hint) == span


@pytest.mark.parametrize(
    "hint",
    [
        "The tens digit is wrong.", "Your last digit is 2.", "The tens digit of 47 is 4.", "Is the last digit 2?", "The last digit is not 2.",
        "If the last digit is 2, what then?", "The last digit is 5.", "The last digit is 2 too low.",
    ],
)  # fmt: skip
def test_unstated_digits_do_not_leak(hint: str):
    assert not check(mentions, arithmetic("What is 47 + 85?", "132"), hint, wrap_answer("999")).leaked


def test_confirmed_parts_do_not_leak():
    world = code("K Q Z", "K, Q, T or Z")
    assert not check(mentions, world, "The first letter is K.", wrap_answer("K T T")).leaked
    assert not check(mentions, world, "Correct so far: K ? ?", wrap_answer("K T T")).leaked
    report = check(mentions, world, "Correct so far: K ? Z", wrap_answer("K T T"))
    assert report.leaked and report.answer_fraction == pytest.approx(1 / 3) and "3 is Z" in report.evidence
    assert not check(mentions, world, "The first letter is K.", wrap_answer("K T T"), wrap_answer("T T T")).leaked


def test_role_known_from_earlier_attempt_leaks():
    flipped = wrap_answer("Ada is a knave, Ben is a knave, Cid is a knave")
    assert check(mentions, puzzle(), "Ben is a knave.", flipped, LAST).answer_fraction == pytest.approx(1 / 3)
    assert not check(mentions, puzzle(), "Ada is a knight.", LAST).leaked


def test_answer_fraction_accumulates_over_hints():
    world = code("K Q Z", "K, Q, T or Z")
    first, second = "The second letter is Q.", "It ends in Z."
    assert check(mentions, world, second, wrap_answer("T T T"), hints=(first,)).answer_fraction == pytest.approx(2 / 3)
    assert (
        check(mentions, world, "It starts with K.", wrap_answer("T T T"), hints=(first, second)).answer_fraction == 1.0
    )
    assert not check(mentions, world, "Try again.", wrap_answer("T T T"), hints=(first, second)).leaked


def test_partial_threshold():
    env, task = code("K Q Z", "K, Q, T or Z")
    query = LeakQuery(task, "The second letter is Q.", (wrap_answer("T T T"),))
    for least, leaked in ((0.0, True), (1 / 3, True), (0.5, False), (1.0, False)):
        report = MentionsDetector(MentionsDetector.Config(partial=least), env).check(query)
        assert report.leaked is leaked and report.answer_fraction == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "hint",
    [
        "If Ben is a knave, then Cid is a knight.", "Ada says that Ben is a knave.", "Suppose Ben is a knave.", "Is Ben a knave?",
        'Ada says: "Ben is a knave."', "Either Ben is a knave or Cid is.", "You said Cid is a knight.", "I do not think that Cid is a knight.",
    ],
)  # fmt: skip
def test_supposed_or_quoted_roles_do_not_leak(hint: str):
    assert not check(mentions, puzzle(), hint, LAST).leaked


@pytest.mark.parametrize(
    "hint",
    ["Only Ben is lying.", "Everyone but Ben tells the truth.", "Ben is the only knave.", "Nobody except Ben lies."],
)
def test_naming_the_only_knave_reveals_all_roles(hint: str):
    assert check(mentions, puzzle(), hint, LAST).answer_fraction == 1.0


@pytest.mark.parametrize(
    ("earlier", "hint"),
    [
        ("It is greater than 131.", "And it is less than 133."),
        ("Take one hundred", "and thirty-two."),
        ("Remember the number 100.", "Add 32 to the number I told you."),
        ("The digits are 1 3", "2, that is all"),
    ],
)
def test_answer_split_over_two_hints_leaks_in_the_second(earlier: str, hint: str):
    world = arithmetic("What is 47 + 85?", "132")
    assert not check(mentions, world, hint, wrap_answer("999")).leaked
    report = check(mentions, world, hint, wrap_answer("999"), hints=(earlier,))
    assert report.leaked and report.answer_fraction == 1.0 and report.span is not None and report.span[1] <= len(hint)


def test_bounds_from_attempts_do_not_leak():
    world = arithmetic("What is 47 + 85?", "132")
    said = "It lies between 131 and 133."
    assert check(mentions, world, said, wrap_answer("131")).leaked
    assert not check(mentions, world, said, wrap_answer("131"), wrap_answer("133")).leaked


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one hundred and thirty-two", ["132"]), ("a hundred thirty two", ["132"]), ("hundertzweiunddreißig", ["132"]),
        ("quatre-vingt-dix-sept", ["97"]), ("treinta y dos", ["32"]), ("ventotto", ["28"]), ("cento e trinta e dois", ["132"]),
        ("tweeëndertig", ["32"]), ("one three two", ["132"]), ("two thousand twenty-four", ["2024"]), ("minus five", ["-5"]),
        ("zweitausendvierundzwanzig", ["2024"]), ("forty-two apples", ["42"]), ("no number here", []),
    ],
)  # fmt: skip
def test_number_words(text: str, said: list[str]):
    assert [reading.value for reading in number_words(text)] == said


def test_han_numerals():
    assert [reading.value for text in ("一百三十二", "百三十二", "一三二", "二千二十四") for reading in han_numbers(text)] == [
        "132", "132", "132", "2024",
    ]  # fmt: skip
