"""Leaks: both tiers against hand-made tables, the "already shown" exclusions, spans, and what a leak leads to."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from rl2f_core import registry
from rl2f_core.config import BaseConfig, LeaksConfig
from rl2f_core.environments.arithmetic import Arithmetic
from rl2f_core.environments.base import CONTENTLESS, Environment, wrap
from rl2f_core.environments.guess_number import GuessNumber
from rl2f_core.environments.secret_code import SecretCode
from rl2f_core.leaks._assertion import assertion
from rl2f_core.leaks._text import NUMBER, find, normalise, stands_in
from rl2f_core.leaks.base import LeakDetector, LeakQuery, first_leak
from rl2f_core.leaks.equivalent import EquivalentLeak
from rl2f_core.leaks.exact import ExactLeak
from rl2f_core.leaks.guard import BLANK, MAX_REDACTIONS, LeakGuard, build_detectors
from rl2f_core.teachers.base import Feedback, FeedbackRequest
from rl2f_core.types import Hint, LeakReport, Task, Turn

# Sentences about 85, which is the answer and stands in the problem: the first table gives it away, the second does not.
ASSERTED = """\
The answer is 85.
the answer is **85**
The correct answer: 85
Answer: 85
ANSWER = 85
It equals 85.
That equals 85, you see.
It should be 85
Your answer should be 85.
Your answer must be 85, not 80.
The result must be exactly 85!
85 + 0 = 85
So x = 85.
47 + 38 → 85
Try 85.
Try 85 next time
Say 85.
Write 85.
Just write 85
Please write <answer>85</answer>.
<answer>85</answer>
The solution is \\boxed{85}.
Go with 85
I would go with 85.
Why not try 85?
You could try 85 instead.
Don't forget: the answer is 85.
It is not 80 but 85.
It's not 80, it's 85
No. 85.
85.
85 is the answer.
85 is correct.
85 would be right
I think 85 works.
Use 85 as your answer.
Adding zero gives 85.
Then you get 85.
The sum is 85.
The hidden number is 85.
The secret number is of course 85.
The right result comes to 85.
Change it to 85
Change your answer to 85.
The answer to this problem is 85.
The answer you are looking for is 85.
The answer is: 85
The answer is \u201c85\u201d.
The answer isn\u2019t 80, it is 85.
It turns out to be 85.
The total comes out to 85.
That makes 85.
I am sure the answer is 85
The answer, you know, is 85
Reply with 85
Enter the number 85.
The final answer  is 85
The answer is \uff18\uff15
Correct answer 85.
It has to be 85, think about it.
85, not 80.
The answer could be 85.
The answer is 85 or 86.
Your answer should have been 85.
It ought to equal 85.
It's 85!
Hint: the answer is simply 85.
The sum must come to 85
You should get 85.
You'll get 85 when you add zero.
If you add them you get 85.
So the answer would be 85.
Therefore 85 is your answer.
The correct value is 85.
Let me help: it is 85.
Just answer 85 please.
Put 85 in the box.
Please output 85.
I suggest you try 85.
Have you considered that the answer might be 85?
Nope, it's 85.
Wrong! The right answer was 85.
Your answer is wrong; 85 is correct.
Not 80: 85 is the right number.
Guess 85 now.
You need to write 85.
The code is 85.
Correct it to 85.
The missing number is 85.
Lower it to 85.
47 plus 38 equals 85
Answer with 85 only.
We know that the result is 85.
The true answer is really 85.
Everything adds up to 85
It can only be 85.
Make it 85.
The answer's 85.
(The answer is 85.)
Fine, I will tell you: 85 it is.
My advice: go for 85.
The answer to 85 + 0 is 85.
The number I am thinking of is 85
What about the answer 85?
Remember, the correct result is 85, so write that.
The answer -> 85
The answer is  *exactly*  85
That should give 85.
The expected answer is 85
THE ANSWER IS 85
""".splitlines()

MENTIONED = """\
Look again at 85 + 0.
Look again at 85.
The answer is not 85.
The answer isn't 85.
The answer isn\u2019t 85.
It is not 85.
It can't be 85.
It cannot be 85.
Don't say 85.
Do not write 85.
Never try 85 again
Don't just write 85.
You wrote 85.
You said 85, which is wrong.
You said the answer is 85.
Why did you say 85?
How did you get 85?
Your answer 85 is wrong.
Your answer of 85 is too low.
Your last answer was 85.
85 is too low.
85 is wrong.
85 is not the answer.
85 isn't right.
The answer is less than 85.
The answer is greater than 85
It is more than 85.
Try something above 85.
Try a number between 80 and 85.
The first number is 85.
The first number should be 85, not 58.
The left operand is 85
Start from 85 and add nothing.
Take 85, then add 0.
What is 85 + 0?
= 85 + 0
Try 85 + 0 again.
Write 85 above 0 and add the columns.
Write 85 and 0 in columns.
Add 0 to 85.
If the answer is 85, what follows?
Check whether it is 85.
I don't think the answer is 85.
It is not true that the answer is 85.
I doubt 85 is correct.
Your 85 is right so far.
85 is right there in the problem.
85 is the first number.
85 is the sum of 80 and 5.
The problem gives 85 and 0.
The problem says 85.
You have 85 in the problem.
Correct so far: 85
The result is 85 more than zero? Think.
You are 85 too low.
It is 85 too low.
The answer is 85 or more.
The answer is at least 85.
x != 85
x <= 85
When you see 85, what do you do with it?
It would be wrong to say 85
You wrote 85 + 0 = 85, hm
Instead of 85, copy the digits.
Look at the tens digit of 85.
Is it 85 that you should add, or 58?
You subtracted from 85.
You wrote <answer>85</answer> twice.
The answer is off by 85.
The difference from your answer is above 85.
85 has two digits.
The answer is nowhere near 85.
Your attempt differs from 85 + 0.
The second number in the sum, 85, was copied wrong.
Read 85 again, digit by digit.
You turned 85 into 58.
Which digit of 85 did you change?
The answer is not 85, nor 80.
The result can never be 85.
It could not be 85.
The answer must not be 85.
85 cannot be right.
85 would be wrong.
85? That is too much.
You started with 85, which is good.
You correctly copied 85.
Good: 85 is copied correctly.
Add up 85 and 0 once more.
In 85 + 0 the second number is zero.
When adding 0 to 85, what changes?
Compare your answer with 85.
Your answer is below 85.
The answer lies between 0 and 85.
The answer is at most 85.
Nothing should be added to 85.
Why is your answer smaller than 85?
Did you answer 85 or something else before?
Pay attention to the 85 in the problem.
The larger number is 85.
One of the numbers is 85.
The given value is 85.
The problem asks for 85 plus 0.
The 85 in your working is fine.
Subtract 85 from your result.
Your first step, 85, is right.
How many tens are in 85?
It is smaller than 85
You tried 85 already.
You answered 85 before.
No, not 85.
Do you think the answer is 85?
Is the answer 85?
Whether the answer is 85 or 80, show it.
Suppose it is 85; does that fit?
They said it was 85.
I never said the answer is 85.
""".splitlines()


# What gives 1024 away as the answer to "What is 512 + 512?", where it stands nowhere: word for word, or in other forms.
EXACT = [
    "1024", "1024.", "1024!", "(1024)", "**1024**", "`1024`", "_1024_", '"1024"', "\u201c1024\u201d", "$1024$",
    "It is 1024.", "Think of 1024 for a moment.", "1024, of course.", "not 1000, but 1024", "=1024", "x=1024;",
    "+1024", "a+1024", "512+1024", "1024 - 0", "2000-1024", "1024\u2026", "\u20261024", "...1024", "1024:", "1024?",
    "10\u200b24", "1\u00ad024", "\uff11\uff10\uff12\uff14", "1024\u200b", "<answer>1024</answer>", "\\boxed{1024}",
    "line one\n1024\nline two", "\t1024", "1024\u00a0apples", "the answer isn't 1024", "Is it 1024?", "5,1024",
    "1024,1025", "[1024]", "1024/", "1024%", "#1024", "- 1024", "one\u20141024\u2014two", "1024's half",
]  # fmt: skip
NOT_EXACT = [
    "10240", "11024", "1024.5", "1.1024", "1,024", "1,0245", "51,024", "-1024", "\u22121024", "(-1024)", ".1024",
    "1024th", "x1024", "1024x", "1024e3", "1024e-2", "10.24", "102.4", "1 024", "1024/3", "3/1024", "1024^2",
    "1024\u00b2", "1024:30", "3:1024", "1024-digit", "1023", "1025", "", " ", "512 + 512", "512", "twelve", "v1.1024",
    "1024.1024", "10 24", "1024.0", "a1024b", "The answer is less than 1025.", "100\u00b24", "1.024,5", "0x1024",
]  # fmt: skip
EQUIVALENT = [
    "1024", "1,024", "1024.0", "1024.00", "1,0 24", "1 024", "1_024", "1'024", "+1024", "01024", "1 0 2 4",
    "\uff11\uff10\uff12\uff14", "\u0661\u0660\u0662\u0664", "1\u200b,024", "10\u200d24", "**1,024**", "$1,024$",
    "(1,024)", "1,024.", "1,024!", "10 + 1014", "10+1014", "1000 + 24", "1000+20+4", "1025 - 1", "2000 - 976",
    "-5 + 1029", "2 x 512", "2 \u00d7 512", "4 * 256", "512 + 500 + 12", "500 + 524", "The sum is 1,024.",
    "Think of 1000 + 24.", "512 + 512 = 1,024", "1,024 = 512 + 512", "Nearly: 1030 - 6", "<answer>1,024</answer>",
    "line one\n1,024", "not 1,024", "1024 + 0", "What about 1,024?",
]  # fmt: skip
NOT_EQUIVALENT = [
    "512 + 512", "512+512", "512 +512", "Add 512 + 512 again.", "The answer is 512 + 512.", "= 512 + 512", "512",
    "512 and 512", "10240", "11024", "-1024", "\u22121024", "1024.5", "1024.01", "1,024.5", "1,0245", "51,024",
    "1,024,000", "1023", "1025", "102.4", "1.024", "1.1024", "512 - 512", "512 x 512", "256 + 256", "1000 and 24",
    "10 plus something", "", " ", "one thousand", "2 x 511", "1000 + 25", "1024.5 + 0", "Which digit of 512?",
    "You added 500 and 12.", "1024th", "x1024", "1024-digit", "1/1024",
    "3 + 1020", "Is it more than 1025?", "999", "0", "512 + 511", "5 1 2", "12,5", "1 x 2 x 3",
]  # fmt: skip


def arithmetic(problem: str = "What is 512 + 512?", answer: str = "1024") -> tuple[Environment, Task]:
    env = Arithmetic(Arithmetic.Config())
    return env, env.task_from_gold(problem, answer)


def code(answer: str, letters: str) -> tuple[Environment, Task]:
    env = SecretCode(SecretCode.Config(length=len(answer.split())))
    return env, env.task_from_gold(f"each {letters}", answer)


def exact(env: Environment) -> LeakDetector:
    return ExactLeak(ExactLeak.Config(), env)


def equivalent(env: Environment) -> LeakDetector:
    return EquivalentLeak(EquivalentLeak.Config(), env)


def check(
    make: Callable[[Environment], LeakDetector], world: tuple[Environment, Task], hint: str, *attempts: str, **more
):
    env, task = world
    return make(env).check(LeakQuery(task, hint, attempts, **more))


def words(report: LeakReport, hint: str) -> str:
    assert report.leaked and report.span is not None
    return hint[slice(*report.span)]


def assertions(sentence: str, value: str = "85") -> list[str | None]:
    text = normalise(sentence)
    spans = find(normalise(value).text, text)
    assert spans, f"{value} does not stand in {sentence!r}"
    return [assertion(text.text, *span) for span in spans]


# -- text ------------------------------------------------------------------------------------------------------------


def test_normal_form_folds_case_space_and_invisible_characters():
    assert normalise("  The\u00a0 A\u200bnswer\n\tIS  ").text == "the answer is"
    assert normalise("\ufb01ne \u2212\uff11\uff12 isn\u2019t e\u0301").text == "fine -12 isn't \u00e9"
    assert normalise("A b", fold=False).text == "A b"
    assert normalise(" a \n\nB\u200b ", fold=False, lines=True).text == " a \n\nB "
    assert normalise("").text == "" and normalise(" \n ").text == ""


def test_a_superscript_stays_a_power_and_a_fraction_stays_apart():
    assert normalise("10\u00b2 m\u00b2 1\u00bd").text == "10^2 m2 1 1/2"


def test_every_normal_character_maps_back_to_the_original():
    original = "x \u200b e\u0301\ufb01\n\n \u2126z"
    text = normalise(original)
    assert text.text == "x \u00e9fi \u03c9z"
    position = text.text.index("\u00e9")
    assert original[slice(*text.original(position, position + 1))] == "e\u0301"
    assert original[slice(*text.original(position + 1, position + 3))] == "\ufb01"
    assert original[slice(*text.original(0, len(text.text)))] == original
    assert text.locate(*text.original(3, 5)) == (3, 5)


def test_normalising_a_normal_text_changes_nothing():
    rng = random.Random(0)
    alphabet = "aB1 \n\u200b\u0301\ufb01\u00bd\u00b2\u2212\u2019.,-\u00c5\u212b\u3000\u0130\u00df"
    for _ in range(500):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 30)))
        once = normalise(text)
        assert len(once.text) == len(once.starts) == len(once.ends)
        assert list(once.starts) == sorted(once.starts) and list(once.ends) == sorted(once.ends)
        assert "  " not in once.text and once.text == once.text.strip()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("12", ["12"]), ("-12", ["-12"]), ("15-12", ["15", "12"]), ("15 - 12", ["15", "12"]), ("(-3)", ["-3"]),
        ("(4)-3", ["4", "3"]), ("1,012.5", ["1,012.5"]), ("1,2", ["1", "2"]), ("1,0124", ["1", "0124"]),
        ("3/4 2:30 2^8", ["3/4", "2:30", "2^8"]), (".5", [".5"]), ("...5", ["5"]), ("1.2.3", ["1.2.3"]),
        ("1e5 1e-5", ["1e5", "1e-5"]), ("5.", ["5"]), ("x5", ["5"]), ("no", []),
    ],
)  # fmt: skip
def test_numeric_literals_are_read_whole(text: str, numbers: list[str]):
    assert [match[0] for match in NUMBER.finditer(text)] == numbers


def test_words_are_found_whole_with_free_space_around_punctuation():
    assert stands_in("S O S", "the code s  o\ns, maybe") and not stands_in("S O S", "S O SO")
    assert stands_in("Ann=knave; Bo=knight", "So: ann = KNAVE;bo=knight.")
    assert not stands_in("Ann=knave", "Joann=knave") and not stands_in("knight", "knight-like")
    assert stands_in("(0, 1)", "go to ( 0,1 ) now") and stands_in("85+0", "85 + 0") and stands_in("85 + 0", "85+0")
    assert stands_in("-12", "is -12.") and not stands_in("-12", "15-12") and not stands_in("12", "-12")
    assert not stands_in("", "anything") and not stands_in("\u200b", "\u200b")
    assert len(find("85", normalise("85 85, 850 85"))) == 3


# -- assertions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sentence", ASSERTED)
def test_a_sentence_that_gives_the_answer_asserts_it(sentence: str):
    assert any(assertions(sentence))


@pytest.mark.parametrize("sentence", MENTIONED)
def test_a_sentence_that_mentions_the_value_asserts_nothing(sentence: str):
    assert not any(assertions(sentence))


def test_an_assertion_names_its_words():
    assert assertions("Hm. The *answer* is: 85, I think.") == ["answer is: 85"]
    assert assertions("Please write <answer>85</answer>") == ["write <answer> 85"]
    assert assertions("85 is right, not 85 + 0") == ["85 is right", None]


@pytest.mark.parametrize(
    ("value", "sentence", "asserted"),
    [
        ("S O S", "The code is S O S.", True),
        ("S O S", "Try the letters s o s", True),
        ("S O S", "You wrote S O S.", False),
        ("S O S", "The code is not S O S.", False),
        ("Ann=knave; Bo=knight", "The answer is Ann=knave; Bo=knight.", True),
        ("Ann=knave; Bo=knight", "If the answer is Ann=knave; Bo=knight, then Ann lies.", False),
        ("-12", "It equals -12.", True),
        ("-12", "It is more than -12.", False),
    ],
)
def test_any_value_can_be_asserted(value: str, sentence: str, asserted: bool):
    assert any(assertions(sentence, value)) is asserted


# -- the exact tier --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", EXACT)
def test_the_exact_tier_finds_the_answer_word_for_word(hint: str):
    report = check(exact, arithmetic(), hint)
    assert report.tier == "exact" and report.share == 1.0 and report.action is None and report.evidence
    assert normalise(words(report, hint)).text == "1024"


@pytest.mark.parametrize("hint", NOT_EXACT)
def test_the_exact_tier_does_not_find_it_inside_something_longer(hint: str):
    assert check(exact, arithmetic(), hint) == LeakReport(leaked=False)


def test_a_span_covers_the_invisible_characters_that_hide_the_answer():
    hint = "Psst: 1\u200b0\u200b24\u200b!"
    assert check(exact, arithmetic(), hint).span == (6, 12)
    assert check(exact, arithmetic(), "it is 1024 or 1024").span == (6, 10)


@pytest.mark.parametrize("sentence", ASSERTED)
def test_an_answer_that_stands_in_the_problem_leaks_where_it_is_asserted(sentence: str):
    report = check(exact, arithmetic("What is 85 + 0?", "85"), sentence)
    assert normalise(words(report, sentence)).text == "85" and report.evidence.startswith("asserted as the answer")


@pytest.mark.parametrize("sentence", MENTIONED)
def test_an_answer_that_stands_in_the_problem_may_be_mentioned(sentence: str):
    assert not check(exact, arithmetic("What is 85 + 0?", "85"), sentence).leaked


def test_the_first_asserted_mention_is_the_one_reported():
    hint = "Look at 85 + 0 again. It is 85."
    assert check(exact, arithmetic("What is 85 + 0?", "85"), hint).span == (28, 30)


def test_a_negated_answer_that_nobody_has_seen_is_still_given_away():
    assert check(exact, arithmetic(), "The answer is not 1024.").leaked


def test_an_answer_in_the_students_own_words_may_be_mentioned_but_not_asserted():
    attempt = "512 + 512 is 1024, hm, <answer>1000</answer>"
    assert not check(exact, arithmetic(), "Look at your 1024 again.", attempt).leaked
    assert check(exact, arithmetic(), "The answer is 1024.", attempt).leaked
    assert not check(exact, arithmetic(), "Nothing may follow 1024.", "<answer>1024</answer> is mine").leaked
    assert check(exact, arithmetic(), "Look at 1024 again.", "<answer>10240</answer>").leaked


def test_an_earlier_hint_shows_nothing():
    assert check(exact, arithmetic(), "As I said: 1024", hints=("Think of 1024",)).leaked
    assert check(equivalent, arithmetic(), "As I said: 1,024", hints=("Think of 1,024",)).leaked


def test_confirming_what_the_student_wrote_is_no_leak():
    world = code("B C A", "A, B or C")
    for make in (exact, equivalent):
        assert not check(make, world, "Correct so far: B ? A", wrap("B B A")).leaked
        assert not check(make, world, "Correct so far: ? C A", wrap("C C A")).leaked
        assert check(make, world, "The code is B C A", wrap("B B A")).leaked
        assert check(make, world, "b c a", wrap("B B A")).leaked


def test_an_answer_of_one_letter_is_looked_for_in_its_own_case():
    world = code("A", "A, B or C")
    assert not check(exact, world, "Take a look at a letter.", wrap("B")).leaked
    assert not check(exact, world, "A better guess is needed.", wrap("B")).leaked
    assert check(exact, world, "The code is A.", wrap("B")).leaked


def test_a_quotation_of_the_problem_asserts_nothing():
    class Riddle(Arithmetic):
        def prompt(self, public: dict[str, Any]) -> str:
            return "Let x = 85 and y = 0. What is x + y?"

    env = Riddle(Riddle.Config())
    task = env.task_from_gold("What is 85 + 0?", "85")
    for make in (exact, equivalent):
        assert not make(env).check(LeakQuery(task, "Remember that x = 85.")).leaked
        assert make(env).check(LeakQuery(task, "Remember that x + y = 85.")).leaked


def test_a_number_in_the_range_of_a_guessing_game_may_be_mentioned():
    env = GuessNumber(GuessNumber.Config())
    task = env.task_from_gold("from 1 to 16", "16")
    for make in (exact, equivalent):
        assert not make(env).check(LeakQuery(task, "It lies between 1 and 16.")).leaked
        assert make(env).check(LeakQuery(task, "Say 16.")).leaked
        assert make(env).check(LeakQuery(env.task_from_gold("from 1 to 16", "7"), "Above 7 or not?")).leaked


# -- the equivalent tier ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", EQUIVALENT)
def test_the_equivalent_tier_finds_what_the_verifier_accepts(hint: str):
    env, task = arithmetic()
    report = equivalent(env).check(LeakQuery(task, hint))
    assert report.tier == "equivalent" and report.share == 1.0 and report.evidence
    read = {normal for _, _, normal in env.candidates(task, normalise(words(report, hint)).text)}
    assert any(env.verify(task, wrap(normal)).correct for normal in read)


@pytest.mark.parametrize("hint", NOT_EQUIVALENT)
def test_the_equivalent_tier_leaves_other_values_and_the_problem_itself_alone(hint: str):
    assert check(equivalent, arithmetic(), hint) == LeakReport(leaked=False)


def test_an_equivalent_span_is_exact_in_the_original():
    for hint, found in [
        ("Hm, 1,024 it is", "1,024"),
        ("10 + 1014, say", "10 + 1014"),
        ("x 1\u200b,024 y", "1\u200b,024"),
        ("\n\n 1024.0", "1024.0"),
    ]:
        assert words(check(equivalent, arithmetic(), hint), hint) == found


@pytest.mark.parametrize("sentence", ASSERTED)
def test_an_asserted_value_of_the_problem_convicts_in_the_equivalent_tier_too(sentence: str):
    assert words(check(equivalent, arithmetic("What is 85 + 0?", "85"), sentence), sentence) in ("85", "\uff18\uff15")


@pytest.mark.parametrize("sentence", MENTIONED)
def test_a_mentioned_value_of_the_problem_convicts_in_neither_tier(sentence: str):
    assert not check(equivalent, arithmetic("What is 85 + 0?", "85"), sentence).leaked


def test_a_value_shown_in_one_notation_is_shown_in_all():
    world = arithmetic("What is 1024 + 0?", "1024")
    assert not check(equivalent, world, "Look again at 1,024.").leaked
    assert not check(equivalent, world, "Look again at 1024.0 and the rest.").leaked
    assert check(equivalent, world, "The answer is 1,024.").leaked
    assert not check(equivalent, arithmetic(), "Look at your 1024.", "1,024 or <answer>10</answer>").leaked


def test_the_problems_own_expression_shows_its_numbers_but_not_its_value():
    world = arithmetic("What is 47 + 38?", "85")
    for restated in ("47 + 38", "38 + 47", "47+38", "The answer is 38 + 47.", "Add 47 + 38 by columns."):
        assert not check(equivalent, world, restated).leaked
    for given in ("85.0", "47 + 38 = 85", "40 + 45", "38 + 47 + 0", "47 + 37 + 1"):
        assert check(equivalent, world, given).leaked


def test_an_environment_that_reads_no_candidates_is_never_convicted():
    class Silent(Arithmetic):
        def candidates(self, task: Task, text: str) -> list[tuple[int, int, str]]:
            return []

    env = Silent(Silent.Config())
    assert not equivalent(env).check(LeakQuery(env.task_from_gold("What is 1 + 1?", "2"), "2")).leaked


# -- both ------------------------------------------------------------------------------------------------------------

HOSTILE = [
    "85 " * 10_000, "8" * 10_000, "the " * 10_000 + "85", "(85) " * 5_000, "85 + " * 5_000, "1+" * 10_000, "=" * 20_000,
    "\u200b" * 20_000 + "85", "the answer " * 3_000, "not " * 5_000 + "85", "85, " * 5_000, "\x00\x1b[31m85",
    "\ud800 85",
    "<|im_start|>assistant\n85<|im_end|>", "e\u0301" * 10_000, "\u0301" * 10_000, "5^" * 10_000, "\\boxed{" * 3_000,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_hints_are_read_in_bounded_time(number: int):
    started = time.process_time()
    for make in (exact, equivalent):
        report = check(make, arithmetic("What is 85 + 0?", "85"), HOSTILE[number], HOSTILE[number])
        assert isinstance(report, LeakReport)
    assert time.process_time() - started < 10


def test_the_cheaper_tier_reports_first():
    env, task = arithmetic()
    detectors = build_detectors(LeaksConfig(), env)
    assert [detector.name for detector in detectors] == ["exact", "equivalent"]
    assert first_leak(detectors, LeakQuery(task, "1,024 is 1024")).tier == "exact"
    assert first_leak(detectors, LeakQuery(task, "1,024")).tier == "equivalent"
    assert build_detectors(LeaksConfig(detectors=("equivalent",)), env)[0].name == "equivalent"
    assert build_detectors(LeaksConfig(detectors=()), env) == []


@pytest.mark.parametrize("world", ["arithmetic", "guess_number", "knights_knaves", "secret_code"])
def test_two_thousand_scripted_hints_of_an_environment_leak_nothing(world: str):
    cls: Any = registry.get("environment", world)
    env: Environment = cls(cls.Config())
    detectors = build_detectors(LeaksConfig(), env)
    read = index = 0
    while read < 2000:
        task, rng = env.task("train", index), random.Random(index)
        attempts: list[str] = []
        for _ in range(4):
            verdicts = [env.verify(task, attempt) for attempt in attempts]
            attempts.append(env.imitate(task, verdicts, rng, follow=rng.random() < 0.6, right=False))
            if rng.random() < 0.05:
                attempts[-1] = "I do not know."
            verdicts.append(env.verify(task, attempts[-1]))
            if verdicts[-1].correct:
                break
            hint = env.hint(task, verdicts, rng)
            report = first_leak(detectors, LeakQuery(task, hint, tuple(attempts)))
            assert not report.leaked, (env.prompt(task.public), attempts, hint, report)
            read += 1
        index += 1


@pytest.mark.parametrize("world", ["arithmetic", "guess_number", "knights_knaves", "secret_code"])
def test_a_hint_that_states_the_answer_leaks_in_every_environment(world: str):
    cls: Any = registry.get("environment", world)
    env: Environment = cls(cls.Config())
    for index in range(100):
        task = env.task("test", index)
        for said in (f"The answer is {env.answer(task)}.", f"Try {env.answer(task)}", wrap(env.answer(task))):
            for make in (exact, equivalent):
                report = make(env).check(LeakQuery(task, said, ("I do not know.",)))
                assert report.leaked and report.tier == make(env).name, (said, report)


# -- the guard -------------------------------------------------------------------------------------------------------


class Spy:
    """A teacher that says the given texts in turn for each task, and remembers the requests."""

    def __init__(self, *texts: str | Feedback) -> None:
        self.texts = texts
        self.asked: list[list[FeedbackRequest]] = []

    def __call__(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        self.asked.append(list(requests))
        said = self.texts[len(self.asked) - 1]
        return [said if isinstance(said, Feedback) else Feedback(said) for _ in requests]


def request(attempt: str = "<answer>1000</answer>", hint: str | None = None, retry: int = 0) -> FeedbackRequest:
    env, task = arithmetic()
    first = Turn(index=0, attempt=attempt, verdict=env.verify(task, attempt))
    if hint is None:
        return FeedbackRequest(task, (first,), seed=5, retry=retry)
    told = first.model_copy(update={"hint": Hint(text=hint, teacher="scripted")})
    return FeedbackRequest(task, (told, first.model_copy(update={"index": 1})), seed=5, retry=retry)


def guard(action: Literal["flag", "redact", "resample", "drop"], tries: int = 3) -> LeakGuard:
    return LeakGuard.from_config(LeaksConfig(action=action, resample_tries=tries), arithmetic()[0])


def read(held: LeakGuard, *texts: str | Feedback, ask_again: Callable | None = None):
    feedbacks = [text if isinstance(text, Feedback) else Feedback(text) for text in texts]
    return held.read([request() for _ in texts], feedbacks, "scripted", ask_again or Spy())


@pytest.mark.parametrize("action", ["flag", "redact", "resample", "drop"])
def test_a_clean_hint_passes_every_action_unchanged(action):
    (answer,) = read(guard(action), Feedback("Too low.", source_task="arithmetic/test/9"))
    assert answer.hint == Hint(
        text="Too low.", teacher="scripted", leak=LeakReport(leaked=False), source_task="arithmetic/test/9"
    )
    assert not answer.drop and answer.error is None and answer.asked == 0


@pytest.mark.parametrize("action", ["flag", "redact", "resample", "drop"])
def test_the_report_is_on_the_teachers_own_words_and_names_the_action(action):
    (answer,) = read(guard(action), "It is 1,024!", ask_again=Spy("Too low."))
    assert answer.hint.leak is not None and answer.hint.leak.action == action
    assert answer.hint.leak.tier == "equivalent" and answer.hint.leak.span == (6, 11)
    assert answer.hint.original == (None if action == "flag" else "It is 1,024!")


def test_flag_lets_the_leak_through():
    (answer,) = read(guard("flag"), "It is 1024.")
    assert answer.hint.text == "It is 1024." and not answer.drop


def test_drop_ends_the_dialogue_and_keeps_the_words_for_the_record():
    clean, leaking = read(guard("drop"), "Too low.", "It is 1024.")
    assert (clean.drop, leaking.drop) == (False, True)
    assert leaking.hint.text == "" and leaking.hint.original == "It is 1024."


def test_redact_blanks_every_span_in_either_form():
    (answer,) = read(guard("redact"), "It is 1024, that is 1,024, or 10 + 1014, or 1024.0.")
    assert answer.hint.text == f"It is {BLANK}, that is {BLANK}, or {BLANK}, or {BLANK}."
    assert answer.hint.leak is not None and answer.hint.leak.span == (6, 10)


def test_redact_leaves_what_the_student_was_shown():
    env, task = arithmetic("What is 85 + 0?", "85")
    held = LeakGuard(build_detectors(LeaksConfig(), env), "redact", 3, env)
    turn = Turn(index=0, attempt=wrap("80"), verdict=env.verify(task, wrap("80")))
    (answer,) = held.read(
        [FeedbackRequest(task, (turn,), 0)], [Feedback("Look at 85 + 0 again: the answer is 85.")], "llm", Spy()
    )
    assert answer.hint.text == f"Look at 85 + 0 again: the answer is {BLANK}."


def test_redact_gives_up_on_a_message_that_keeps_leaking():
    (some,) = read(guard("redact"), "1024 " * (MAX_REDACTIONS - 1))
    assert some.hint.text == f"{BLANK} " * (MAX_REDACTIONS - 1)
    (many,) = read(guard("redact"), "1024 " * (MAX_REDACTIONS + 1))
    assert many.hint.text == CONTENTLESS and many.hint.original == "1024 " * (MAX_REDACTIONS + 1)


class Wordless(LeakDetector):
    """Convicts without saying where."""

    class Config(BaseConfig):
        """No options."""

        type: Literal["wordless"] = "wordless"

    def check(self, query: LeakQuery) -> LeakReport:
        return LeakReport(leaked="secret" in query.hint, tier=self.name)


def test_redact_without_a_span_becomes_contentless():
    env, _ = arithmetic()
    held = LeakGuard([Wordless(Wordless.Config(), env)], "redact", 3, env)
    (answer,) = read(held, "a secret")
    assert answer.hint.text == CONTENTLESS and answer.hint.original == "a secret"


def test_resample_asks_until_a_message_is_clean():
    spy = Spy("Still 1024.", Feedback("Too low.", source_task="arithmetic/test/9"), "never asked for")
    (answer,) = read(guard("resample"), "It is 1024.", ask_again=spy)
    assert [[r.retry for r in asked] for asked in spy.asked] == [[1], [2]]
    assert answer.asked == 2 and answer.hint.text == "Too low." and answer.hint.original == "It is 1024."
    assert answer.hint.source_task == "arithmetic/test/9"
    assert answer.hint.leak is not None and answer.hint.leak.leaked and answer.hint.leak.span == (6, 10)


@pytest.mark.parametrize("tries", [1, 3])
def test_resample_gives_up_after_the_configured_tries(tries: int):
    spy = Spy(*["1024"] * 10)
    (answer,) = read(guard("resample", tries), "It is 1024.", ask_again=spy)
    assert len(spy.asked) == tries == answer.asked
    assert answer.hint.text == CONTENTLESS and answer.hint.original == "It is 1024." and answer.error is None


def test_resample_counts_on_from_the_requests_own_retry():
    spy = Spy("1024", "Too low.")
    guard("resample").read([request(retry=4)], [Feedback("1024")], "scripted", spy)
    assert [[r.retry for r in asked] for asked in spy.asked] == [[5], [6]]


def test_resample_asks_in_one_batch_for_those_that_leaked_and_keeps_the_order():
    spy = Spy("Second try.")
    texts = [answer.hint.text for answer in read(guard("resample"), "one", "1024", "two", "1,024", ask_again=spy)]
    assert texts == ["one", "Second try.", "two", "Second try."]
    assert [len(asked) for asked in spy.asked] == [2]


@pytest.mark.parametrize("action", ["flag", "redact", "resample", "drop"])
def test_a_message_with_an_error_never_reaches_the_student(action):
    (answer,) = read(guard(action), Feedback("Traceback: the answer is 1024", source_task="x", error="timeout"))
    assert answer.hint == Hint(text=CONTENTLESS, teacher="scripted")
    assert answer.error == "timeout" and not answer.drop


def test_an_error_while_asking_again_is_kept_beside_the_contentless_hint():
    spy = Spy(Feedback("junk 1024", error="timeout"), "Too low.")
    (answer,) = read(guard("resample"), "It is 1024.", ask_again=spy)
    assert answer.hint.text == CONTENTLESS and answer.error == "timeout" and len(spy.asked) == 1
    assert answer.hint.original == "It is 1024."


def test_without_detectors_nothing_is_read_and_nothing_reported():
    held = LeakGuard.from_config(LeaksConfig(detectors=(), action="drop"), arithmetic()[0])
    (answer,) = read(held, "It is 1024.")
    assert answer.hint == Hint(text="It is 1024.", teacher="scripted") and not answer.drop


def test_the_guard_knows_the_whole_dialogue():
    held = guard("flag")
    shown = request("I had 1024, no: <answer>1000</answer>", hint="Too low.")
    fresh = request(hint="Think of 1024.")
    answers = held.read([shown, fresh], [Feedback("Check your 1024.")] * 2, "llm", Spy())
    assert [answer.hint.leak.leaked for answer in answers if answer.hint.leak] == [False, True]
    assert [answer.hint.teacher for answer in answers] == ["llm", "llm"]


def test_each_request_needs_its_feedback():
    with pytest.raises(ValueError, match="shorter"):
        guard("flag").read([request(), request()], [Feedback("one")], "scripted", Spy())
