"""Leaks: both tiers against hand-made tables, the "already shown" exclusions, spans, and what a leak leads to."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from leak_helpers import arithmetic, assertions, check, code, exact, mentions, words
from leak_tables import ASSERTED, EQUIVALENT, EXACT, MENTIONED, NOT_EQUIVALENT, NOT_EXACT

from rl2f_core import registry
from rl2f_core.common.text.normalize import NUMBER, contains_tokens, find, normalize
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.config.leaks import LeaksConfig
from rl2f_core.config.loading import parse_config
from rl2f_core.environments.base import Environment, new_task, wrap_answer
from rl2f_core.environments.puzzles.numbers.arithmetic import Arithmetic
from rl2f_core.environments.puzzles.numbers.guess_number import GuessNumber
from rl2f_core.leaks.base import LeakQuery, make_detectors, run_cascade
from rl2f_core.types import LeakReport, Task

# -- text ------------------------------------------------------------------------------------------------------------


def test_normal_form_folds_case_space_and_invisible_characters():
    assert normalize("  The\u00a0 A\u200bnswer\n\tIS  ").text == "the answer is"
    assert normalize("\ufb01ne \u2212\uff11\uff12 isn\u2019t e\u0301").text == "fine -12 isn't \u00e9"
    assert normalize("A b", fold=False).text == "A b"
    assert normalize(" a \n\nB\u200b ", fold=False, lines=True).text == " a \n\nB "
    assert normalize("").text == "" and normalize(" \n ").text == ""


def test_superscripts_become_powers_and_fractions_stay_separate():
    assert normalize("10\u00b2 m\u00b2 1\u00bd").text == "10^2 m2 1 1/2"


def test_normal_characters_map_to_original_spans():
    original = "x \u200b e\u0301\ufb01\n\n \u2126z"
    text = normalize(original)
    assert text.text == "x \u00e9fi \u03c9z"
    position = text.text.index("\u00e9")
    assert original[slice(*text.original(position, position + 1))] == "e\u0301"
    assert original[slice(*text.original(position + 1, position + 3))] == "\ufb01"
    assert original[slice(*text.original(0, len(text.text)))] == original
    assert text.locate(*text.original(3, 5)) == (3, 5)


def test_normalization_is_idempotent():
    rng = random.Random(0)
    alphabet = "aB1 \n\u200b\u0301\ufb01\u00bd\u00b2\u2212\u2019.,-\u00c5\u212b\u3000\u0130\u00df"
    for _ in range(500):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 30)))
        once = normalize(text)
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
def test_numeric_literals_are_matched_whole(text: str, numbers: list[str]):
    assert [match[0] for match in NUMBER.finditer(text)] == numbers


def test_words_match_whole_with_optional_space_around_punctuation():
    assert contains_tokens("S O S", "the code s  o\ns, maybe") and not contains_tokens("S O S", "S O SO")
    assert contains_tokens("Ann=knave; Bo=knight", "So: ann = KNAVE;bo=knight.")
    assert not contains_tokens("Ann=knave", "Joann=knave") and not contains_tokens("knight", "knight-like")
    assert (
        contains_tokens("(0, 1)", "go to ( 0,1 ) now")
        and contains_tokens("85+0", "85 + 0")
        and contains_tokens("85 + 0", "85+0")
    )
    assert (
        contains_tokens("-12", "is -12.") and not contains_tokens("-12", "15-12") and not contains_tokens("12", "-12")
    )
    assert not contains_tokens("", "anything") and not contains_tokens("\u200b", "\u200b")
    assert len(find("85", normalize("85 85, 850 85"))) == 3


# -- assertions ------------------------------------------------------------------------------------------------------


def test_asserting_sentences():
    assert [sentence for sentence in ASSERTED if not any(assertions(sentence))] == []


def test_mentioning_sentences_are_not_assertions():
    assert [sentence for sentence in MENTIONED if any(assertions(sentence))] == []


def test_scores_are_no_answers() -> None:
    env = registry.get("environment", "arithmetic")
    numbers = env(env.Config())
    for detector in ("exact", "mentions"):
        cls = registry.get("leak_detector", detector)
        for hint in ("It scores 0.50 of 1.", "Your score is 1 out of 3.", "That makes 1 of 2 points."):
            query = LeakQuery(numbers.task_from_gold("What is 5 - 4?", "1"), hint, ("<answer>11</answer>",))
            assert not cls(cls.Config(), numbers).check(query).leaked, hint


def test_assertion_returns_phrase():
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
        ("S O S", "Why did you write O S O instead of S O S?", True),
        ("S O S", "You should write O S O instead of S O S.", False),
        ("S O S", "Write O S O instead of S O S.", False),
        ("Ann=knave; Bo=knight", "The answer is Ann=knave; Bo=knight.", True),
        ("Ann=knave; Bo=knight", "If the answer is Ann=knave; Bo=knight, then Ann lies.", False),
        ("-12", "It equals -12.", True),
        ("-12", "It is more than -12.", False),
    ],
)
def test_assertion_of_any_value(value: str, sentence: str, asserted: bool):
    assert any(assertions(sentence, value)) is asserted


# -- the exact tier --------------------------------------------------------------------------------------------------


def test_exact_flags_verbatim_answer():
    for hint in EXACT:
        report = check(exact, arithmetic(), hint)
        assert (
            report.detector == "exact" and report.answer_fraction == 1.0 and report.action is None and report.evidence
        ), hint
        assert normalize(words(report, hint)).text == "1024", hint


def test_exact_ignores_answer_inside_longer_token():
    assert [hint for hint in NOT_EXACT if check(exact, arithmetic(), hint) != LeakReport(leaked=False)] == []


def test_span_includes_invisible_characters():
    hint = "Psst: 1\u200b0\u200b24\u200b!"
    assert check(exact, arithmetic(), hint).span == (6, 12)
    assert check(exact, arithmetic(), "it is 1024 or 1024").span == (6, 10)


def test_visible_answer_leaks_if_asserted():
    for sentence in ASSERTED:
        report = check(exact, arithmetic("What is 85 + 0?", "85"), sentence)
        assert normalize(words(report, sentence)).text == "85", sentence
        assert report.evidence.startswith("asserted as the answer"), sentence


def test_visible_answer_may_be_mentioned():
    world = arithmetic("What is 85 + 0?", "85")
    assert [sentence for sentence in MENTIONED if check(exact, world, sentence).leaked] == []


def test_first_assertion_is_reported():
    hint = "Look at 85 + 0 again. It is 85."
    assert check(exact, arithmetic("What is 85 + 0?", "85"), hint).span == (28, 30)


def test_negated_unseen_answer_leaks():
    assert check(exact, arithmetic(), "The answer is not 1024.").leaked


def test_answer_in_attempt_leaks_only_if_asserted():
    attempt = "512 + 512 is 1024, hm, <answer>1000</answer>"
    assert not check(exact, arithmetic(), "Look at your 1024 again.", attempt).leaked
    assert check(exact, arithmetic(), "The answer is 1024.", attempt).leaked
    assert not check(exact, arithmetic(), "Nothing may follow 1024.", "<answer>1024</answer> is mine").leaked
    assert check(exact, arithmetic(), "Look at 1024 again.", "<answer>10240</answer>").leaked


def test_earlier_hints_do_not_make_answer_visible():
    assert check(exact, arithmetic(), "As I said: 1024", hints=("Think of 1024",)).leaked
    assert check(mentions, arithmetic(), "As I said: 1,024", hints=("Think of 1,024",)).leaked


def test_confirming_what_the_student_wrote_is_no_leak():
    world = code("B C A", "A, B or C")
    for make in (exact, mentions):
        assert not check(make, world, "Correct so far: B ? A", wrap_answer("B B A")).leaked
        assert not check(make, world, "Correct so far: ? C A", wrap_answer("C C A")).leaked
        assert check(make, world, "The code is B C A", wrap_answer("B B A")).leaked
        assert check(make, world, "b c a", wrap_answer("B B A")).leaked


def test_single_letter_answers_are_case_sensitive():
    world = code("A", "A, B or C")
    assert not check(exact, world, "Take a look at a letter.", wrap_answer("B")).leaked
    assert not check(exact, world, "A better guess is needed.", wrap_answer("B")).leaked
    assert check(exact, world, "The code is A.", wrap_answer("B")).leaked


def test_quoting_the_problem_is_no_assertion():
    class Riddle(Arithmetic):
        def prompt(self, public: dict[str, Any]) -> str:
            return "Let x = 85 and y = 0. What is x + y?"

    env = Riddle(Riddle.Config())
    task = env.task_from_gold("What is 85 + 0?", "85")
    for make in (exact, mentions):
        assert not make(env).check(LeakQuery(task, "Remember that x = 85.")).leaked
        assert make(env).check(LeakQuery(task, "Remember that x + y = 85.")).leaked


def test_range_bounds_of_guess_number_may_be_mentioned():
    env = GuessNumber(GuessNumber.Config())
    task = env.task_from_gold("from 1 to 16", "16")
    for make in (exact, mentions):
        assert not make(env).check(LeakQuery(task, "It lies between 1 and 16.")).leaked
        assert make(env).check(LeakQuery(task, "Say 16.")).leaked
        assert make(env).check(LeakQuery(env.task_from_gold("from 1 to 16", "7"), "Above 7 or not?")).leaked


# -- mentions ---------------------------------------------------------------------------------------------


def test_accepted_readings_are_flagged():
    env, task = arithmetic()
    for hint in EQUIVALENT:
        report = mentions(env).check(LeakQuery(task, hint))
        assert report.detector == "mentions" and report.answer_fraction == 1.0 and report.evidence, hint
        read = {normal for _, _, normal in env.find_answers(task, normalize(words(report, hint)).text)}
        assert any(env.verify(task, wrap_answer(normal)).correct for normal in read), hint


def test_other_values_and_expressions_of_the_problem_are_no_mentions():
    untouched = LeakReport(leaked=False)
    assert [hint for hint in NOT_EQUIVALENT if check(mentions, arithmetic(), hint) != untouched] == []


def test_the_span_is_in_the_original_text():
    for hint, found in [
        ("Hm, 1,024 it is", "1,024"),
        ("10 + 1014, say", "10 + 1014"),
        ("x 1\u200b,024 y", "1\u200b,024"),
        ("\n\n 1024.0", "1024.0"),
    ]:
        assert words(check(mentions, arithmetic(), hint), hint) == found


def test_a_visible_value_is_flagged_where_most_sentences_assert_it():
    world = arithmetic("What is 85 + 0?", "85")
    flagged = [sentence for sentence in ASSERTED if check(mentions, world, sentence).leaked]
    assert len(flagged) > 0.9 * len(ASSERTED)
    assert {words(check(mentions, world, sentence), sentence) for sentence in flagged} <= {"85", "\uff18\uff15"}


def test_a_visible_value_that_is_only_repeated_is_not_flagged():
    world = arithmetic("What is 85 + 0?", "85")
    repeated = ("Look again at 85.", "Start from 85 and the rest.", "Where does the 85 come from?", "Check the 85.")
    assert [sentence for sentence in repeated if check(mentions, world, sentence).leaked] == []


def test_visible_value_is_visible_in_every_notation():
    world = arithmetic("What is 1024 + 0?", "1024")
    assert not check(mentions, world, "Look again at 1,024.").leaked
    assert not check(mentions, world, "Look again at 1024.0 and the rest.").leaked
    assert check(mentions, world, "The answer is 1,024.").leaked
    assert not check(mentions, arithmetic(), "Look at your 1024.", "1,024 or <answer>10</answer>").leaked


def test_expression_of_the_problem_is_no_leak():
    world = arithmetic("What is 47 + 38?", "85")
    for restated in ("47 + 38", "38 + 47", "47+38", "The answer is 38 + 47.", "Add 47 + 38 by columns."):
        assert not check(mentions, world, restated).leaked
    for given in ("85.0", "47 + 38 = 85", "40 + 45", "38 + 47 + 0", "47 + 37 + 1"):
        assert check(mentions, world, given).leaked


def test_without_a_leak_vocabulary_only_the_literal_answer_is_a_mention():
    class Plain(Environment):
        def task(self, split: Any, index: int) -> Task:
            return new_task(self, "given", {}, {"answer": "Paris"})

        def prompt(self, public: Any) -> str:
            return "What is the capital of France?"

    env = Plain(ComponentConfig(type="plain"))
    task = env.task("test", 0)
    assert mentions(env).check(LeakQuery(task, "It is Paris.")).leaked
    assert mentions(env).check(LeakQuery(task, "It begins with a P.")) == LeakReport(leaked=False)


# -- both ------------------------------------------------------------------------------------------------------------

HOSTILE = [
    "85 " * 10_000, "8" * 10_000, "the " * 10_000 + "85", "(85) " * 5_000, "85 + " * 5_000, "1+" * 10_000, "=" * 20_000,
    "\u200b" * 20_000 + "85", "the answer " * 3_000, "not " * 5_000 + "85", "85, " * 5_000, "\x00\x1b[31m85",
    "\ud800 85",
    "<|im_start|>assistant\n85<|im_end|>", "e\u0301" * 10_000, "\u0301" * 10_000, "5^" * 10_000, "\\boxed{" * 3_000,
]  # fmt: skip


@pytest.mark.parametrize(
    "number", [pytest.param(i, marks=[pytest.mark.slow] if i in (0, 3, 4, 10) else []) for i in range(len(HOSTILE))]
)
def test_adversarial_hints_take_bounded_time(number: int):
    started = time.process_time()
    for make in (exact, mentions):
        report = check(make, arithmetic("What is 85 + 0?", "85"), HOSTILE[number], HOSTILE[number])
        assert isinstance(report, LeakReport)
    assert time.process_time() - started < 10


def test_cheaper_detector_reports_first():
    env, task = arithmetic()
    assert [detector.type for detector in LeaksConfig().detectors] == ["mentions"]
    detectors = make_detectors(LeaksConfig(detectors=("exact", "mentions")).detectors, env)
    assert run_cascade(detectors, [LeakQuery(task, "1,024 is 1024")])[0].detector == "exact"
    assert run_cascade(detectors, [LeakQuery(task, "1,024")])[0].detector == "mentions"
    old = ("exact", {"type": "equivalent", "partial": 0.5}, {"type": "classifier", "path": "v1", "threshold": 0.97})
    replaced = [part.model_dump() for part in LeaksConfig(detectors=old).detectors]
    default = {"type": "mentions", "version": 1, "path": None, "threshold": None, "partial": 1.0}
    assert replaced == [{"type": "exact"}, {**default, "partial": 0.5}, default], "paths and thresholds mean others"
    rescore = parse_config({"kind": "rescore", "run": "r", "detectors": ["exact", "candidates", "classifier"]})
    assert [part.type for part in rescore.detectors] == ["exact", "mentions"]  # type: ignore[attr-defined]
    assert make_detectors(LeaksConfig(detectors=()).detectors, env) == []


@pytest.mark.slow
@pytest.mark.parametrize("world", ["arithmetic", "guess_number", "knights_knaves", "secret_code"])
def test_two_thousand_scripted_hints_do_not_leak(world: str):
    cls: Any = registry.get("environment", world)
    env: Environment = cls(cls.Config())
    detectors = make_detectors(LeaksConfig().detectors, env)
    read = index = 0
    while read < 2000:
        task, rng = env.task("train", index), random.Random(index)
        attempts: list[str] = []
        for _ in range(4):
            verdicts = [env.verify(task, attempt) for attempt in attempts]
            attempts.append(env.simulate_attempt(task, verdicts, rng, follow_hint=rng.random() < 0.6, correct=False))
            if rng.random() < 0.05:
                attempts[-1] = "I do not know."
            verdicts.append(env.verify(task, attempts[-1]))
            if verdicts[-1].correct:
                break
            hint = env.hint(task, verdicts, rng)
            report = run_cascade(detectors, [LeakQuery(task, hint, tuple(attempts))])[0]
            assert not report.leaked, (env.prompt(task.public), attempts, hint, report)
            read += 1
        index += 1


@pytest.mark.parametrize("world", ["arithmetic", "guess_number", "knights_knaves", "secret_code"])
def test_a_hint_that_states_the_answer_leaks_in_every_environment(world: str):
    cls: Any = registry.get("environment", world)
    env: Environment = cls(cls.Config())
    for index in range(40):
        task = env.task("test", index)
        for said in (
            f"The answer is {env.gold_answer(task)}.",
            f"Try {env.gold_answer(task)}",
            wrap_answer(env.gold_answer(task)),
        ):
            for make in (exact, mentions):
                report = make(env).check(LeakQuery(task, said, ("I do not know.",)))
                assert report.leaked and report.detector == make(env).name, (said, report)


@pytest.mark.parametrize("world", ["arithmetic", "guess_number", "knights_knaves", "secret_code"])
def test_is_correct_answer_agrees_with_verify(world: str):
    cls: Any = registry.get("environment", world)
    env: Environment = cls(cls.Config())
    tasks = [env.task("test", index) for index in range(20)]
    said = [env.gold_answer(task) for task in tasks]
    said += [answer.lower() for answer in said] + [f" {answer}" for answer in said] + ["", "0", "x", "</answer>", "1,0"]
    for task in tasks:
        for answer in said:
            assert env.is_correct_answer(task, answer) == env.verify(task, wrap_answer(answer)).correct, (task, answer)
