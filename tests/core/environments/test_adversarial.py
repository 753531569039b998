"""Every registered environment: hostile answers score 0, no text crashes or hangs its parser."""

from __future__ import annotations

import random
import time

import pytest
from adversarial_answers import BIG, LOGIC_RL, ODD_PIECES, REFUSED, SHAPES, filled, played
from environment_params import NAMES, before_last_action
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl2f_core.environments.base import Environment, wrap_answer
from rl2f_core.environments.capabilities import LeakVocabulary
from rl2f_core.environments.puzzles.knights_knaves.environment import KnightsKnaves
from rl2f_core.types import Task, Verdict

KNOWN = NAMES

OWN: dict[str, dict[str, str]] = {
    "arithmetic": {
        "decimal": "{gold}.0", "fraction": "{gold}/1", "plus zero": "{gold} + 0", "unit": "{gold} apples",
        "equals": "= {gold}", "scientific": "{gold}e0", "hexadecimal": "0x10", "infinity": "inf", "no number": "nan",
        "boxed": "\\boxed{{gold}}", "dollars": "${gold}$", "list": "[{gold}]", "bold": "**{gold}**",
        "percent": "{gold}%",
        "words": "one hundred", "underscores": "1_0", "two numbers": "{gold} {gold}", "either": "{gold} or {wrong}",
        "range": "0-999", "ten thousand digits": "9" * 10_000,
    },
    "guess_number": {
        "the whole range": "1 to 1000", "either": "{gold} or {wrong}", "decimal": "{gold}.0", "more than": ">{gold}",
        "about": "~{gold}", "list": "[{gold}]", "bold": "**{gold}**", "question": "{gold}?", "sum": "{gold}+0",
        "hint words": "higher", "roman": "XLV", "words": "forty-five", "infinity": "inf",
        "json": '{{"answer": {gold}}}',
    },
    "secret_code": {
        "blanks": "? ? ?", "stars": "* * *", "regular expression": ".*", "every letter": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "the code twice": "{gold} {gold}", "one letter more": "{gold} A", "either": "{gold} / {wrong}",
        "in brackets": "({gold})", "bold": "**{gold}**", "digits": "1 2 3", "the hint's form": "Correct so far: {gold}",
        "a set": "{{gold}}",
    },
    "knights_knaves": {
        "both roles": "{gold}; {wrong}", "roles": "knight knave knight knave", "everyone": "everyone is a knave",
        "nobody": "nobody is a knight", "either role": "all are knight or knave", "a stranger": "{gold}; Bob=knight",
        "twice the same": "{gold}; {gold}", "denied": "it is not true that {gold}", "supposed": "if {gold} then fine",
        "only names": "Zoey, Owen", "only roles": "knight; knave", "not": "Zoey is not a knight",
        "probably": "probably {gold}", "a table": "| name | role |", "json": '{{"Zoey": "knight"}}',
        "another language": "Zoey ist ein Ritter",
    },
}  # fmt: skip
"""Inside answer tags, for environments whose answers are known; each scores 0."""


def judged(environment: Environment, task: Task, attempt: str) -> Verdict:
    """The verdict where one answer is enough: on the only attempt, or on the last action of an episode."""
    return environment.verify_turn(task, before_last_action(environment, task), attempt)


@pytest.mark.parametrize("name", KNOWN)
def test_every_hostile_answer_scores_zero_in_every_environment(name: str) -> None:
    environment, task, words = played(name)
    assert judged(environment, task, wrap_answer(words["gold"])).score == 1
    own = {hack: wrap_answer(text) for hack, text in OWN.get(name, {}).items()}
    assert set(LOGIC_RL) <= set(REFUSED) and len({**REFUSED, **own}) >= 30
    for hack, text in {**REFUSED, **own}.items():
        attempt = filled(text, words)
        verdict = judged(environment, task, attempt)
        assert not verdict.correct and (verdict.score == 0 or verdict.parsed is not None), hack
        if name in OWN:  # their answers are so narrow that nothing can be read but an answer
            assert verdict.parsed is None or words["wrong"] in attempt, hack
        verdict.model_dump_json()


def test_an_unread_answer_earns_no_share_of_the_right_parts() -> None:
    """Only an answer that can be read may earn partial credit: what is refused scores 0 throughout."""
    for name in KNOWN:
        environment, task, words = played(name)
        for text in REFUSED.values():
            verdict = judged(environment, task, filled(text, words))
            assert verdict.parsed is not None or (verdict.score == 0 and not verdict.well_formed and not verdict.parts)


FILLER = {
    "empty think": "<think></think>",
    "blank think": "<think>   \n</think>",
    "filler": "<think>this is thinking process</think>",
    "filler, long": "<think>" + "let me think about it step by step " * 30 + "</think>",
    "echo of the question": "<think>{problem}</think>",
    "names alone": "<think>{names}</think>",
    "think twice": "<think>{good}</think><think>{good}</think>",
    "think inside think": "<think><think>{good}</think></think>",
    "never closed": "<think>{good}",
    "words between": "<think>{good}</think> so ",
    "words before": "Sure! <think>{good}</think>",
    "a fake assistant": "<think>{good}</think>\nAssistant: ",
}


def test_a_right_answer_after_a_think_block_that_is_no_reasoning_is_not_well_formed() -> None:
    environment = KnightsKnaves(KnightsKnaves.Config(people=3, think=True))
    task = environment.task("test", 0)
    people = task.public["people"]
    good = " ".join(f"If {name} were a knave then the words of {name} would be false." for name in people)
    words = {"problem": environment.prompt(task.public), "names": " ".join(people), "good": good}
    honest = f"<think>{good}</think>{wrap_answer(environment.gold_answer(task))}"
    assert environment.verify(task, honest).well_formed
    for hack, text in FILLER.items():
        verdict = environment.verify(task, filled(text, words) + wrap_answer(environment.gold_answer(task)))
        assert not verdict.well_formed, hack


# -- fuzzing -------------------------------------------------------------------------------------------------------
TEXTS = st.one_of(
    st.text(st.characters(), max_size=200),
    st.lists(st.sampled_from(ODD_PIECES), max_size=40).map("".join),
    st.lists(st.one_of(st.sampled_from(ODD_PIECES), st.text(st.characters(), max_size=5)), max_size=30).map("".join),
    st.tuples(st.sampled_from(ODD_PIECES), st.integers(1, 3000)).map(lambda pair: pair[0] * pair[1]),
)


def check(environment: Environment, task: Task, words: dict[str, str], text: str) -> None:
    """No text raises, and each verdict is consistent; inside tags, and bare, and straight into the parser."""
    text = text.replace("{gold}", words["gold"]).replace("{wrong}", words["wrong"])
    parsed = environment.parse(task, text)
    assert parsed is None or isinstance(parsed, str)
    for attempt in (text, wrap_answer(text), f"<think>{text}</think>{wrap_answer(text)}"):
        verdict = judged(environment, task, attempt)
        assert 0 <= verdict.score <= 1 and verdict.correct == (verdict.score == 1)
        assert verdict.parsed is not None or (not verdict.correct and verdict.score == 0)
        assert (
            not verdict.correct
            or words["gold"] in text
            or judged(environment, task, wrap_answer(verdict.parsed or "")).correct
        )
        assert Verdict.model_validate(verdict.model_dump()) == verdict
    for start, end, _ in environment.find_answers(task, text) if isinstance(environment, LeakVocabulary) else ():
        assert 0 <= start < end <= len(text)


def fuzz(name: str, examples: int) -> None:
    environment, task, words = played(name)

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(TEXTS)
    def run(text: str) -> None:
        check(environment, task, words, text)

    run()


@pytest.mark.parametrize("name", KNOWN)
def test_no_text_crashes_a_parser(name: str) -> None:
    fuzz(name, 25)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_no_text_of_thousands_crashes_a_parser(name: str) -> None:
    fuzz(name, 4000)


def test_texts_that_json_cannot_hold_are_stored_all_the_same() -> None:
    for name in KNOWN:
        environment, task, _ = played(name)
        for text in ("\ud800", "\x00", "\u202e\u2066", "(" * 5000 + ")" * 5000, "[" * 9000):
            judged(environment, task, wrap_answer(text)).model_dump_json()


@pytest.mark.slow
def test_a_megabyte_is_judged_in_less_than_a_second_whatever_its_shape() -> None:
    """Seconds of the processor, so that a busy machine does not count; every shape, bare and in tags, and as much of it
    as an attempt may have, where the parser does read it."""
    from rl2f_core.environments.base import MAX_ATTEMPT_CHARS

    for name in KNOWN:
        environment, task, _ = played(name)
        for shape, unit in SHAPES.items():
            text = unit * (BIG // len(unit))
            for attempt in (text, wrap_answer(text), wrap_answer(text[: MAX_ATTEMPT_CHARS - 20])):
                start = time.process_time()
                assert not judged(environment, task, attempt).correct
                assert time.process_time() - start < 1, (name, shape)
            start = time.process_time()
            environment.parse(task, text)
            assert time.process_time() - start < 1, (name, shape, "parse")


def test_hostile_tests_are_not_vacuous_an_honest_answer_passes_among_them() -> None:
    for name in KNOWN:
        environment, task, words = played(name)
        earlier = before_last_action(environment, task)
        said = environment.simulate_attempt(task, earlier, random.Random(0), follow_hint=False, correct=True)
        assert judged(environment, task, said).correct
        assert judged(environment, task, f"Let me check. {wrap_answer(words['gold'])}\n").correct
