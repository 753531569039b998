"""Checkers of own questions: what each accepts, refuses, and finds in hints; hostile texts in all of them."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from adversarial_answers import ODD_PIECES, REFUSED, SHAPES, filled
from openai_server import Say, serving

from rl2f_core.config.loading import validate_config
from rl2f_core.environments.base import MAX_ATTEMPT_CHARS, wrap_answer
from rl2f_core.environments.dataset.environment import CHECKERS, Dataset
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.mentions.detector import MentionsDetector
from rl2f_core.types import Task

PROGRAM = "def solve(n):\n    return n * 2"
STUB = "Write solve(n), which doubles a number.\n\ndef solve(n: int) -> int:"
TESTS = [{"input": "3", "output": "6"}, {"input": "-1", "output": "-2"}]
ROWS: dict[str, dict[str, Any]] = {
    "exact": {"problem": "Which city is the capital of France?", "answer": "Paris"},
    "numeric": {"problem": "How many kilometers are 2.5 miles?", "answer": "4.0234"},
    "multiple_choice": {"problem": "Which is a prime? A) 4 B) 9 C) 7 D) 8", "answer": "(c)"},
    "regex": {"problem": "Write a date of 2024.", "answer": "2024-02-29", "pattern": r"2024-\d{2}-\d{2}"},
    "math_verify": {"problem": "Expand (x+1)^2 - 2x.", "answer": "x^2+1"},
    "json_fields": {"problem": "Describe Ada Lovelace.", "answer": '{"name": "Ada", "born": 1815}'},
    "unit_tests": {"problem": STUB, "answer": PROGRAM, "tests": TESTS},
}
"""One row for each checker that needs no model."""
TESTED = ("math_verify", "numeric")
"""Checkers whose hostile answers are those of `test_adversarial_math` and of the default in `test_adversarial`."""
pytestmark = pytest.mark.xdist_group("workers")


def environment(folder: Path, checker: str, row: dict[str, Any] | None = None, **settings: Any) -> tuple[Dataset, Task]:
    """The environment on a file of this row, and the row's task."""
    path = folder / f"{checker}.jsonl"
    path.write_text(json.dumps(row or ROWS[checker]) + "\n")
    held = Dataset(validate_config(Dataset.Config, {"path": str(path), "checker": checker, **settings}))
    (split,) = [split for split, questions in held.loaded.questions.items() if questions]
    return held, held.task(split, 0)


@pytest.mark.parametrize(
    ("checker", "settings", "right", "wrong"),
    [
        ("exact", {}, ["Paris", " pArIs\n", "Ｐaris"], ["Paris, France", "Pari", "not Paris", "Paris Paris"]),
        ("numeric", {}, ["4.0234", "4.02340", "40234/10000", "4.0234e0"], ["4.02", "4.02341", "-4.0234"]),
        ("numeric", {"tolerance": 0.01}, ["4.03", "4.02"], ["4.04", "4.01"]),
        ("numeric", {"relative_tolerance": 0.1}, ["4.4", "3.7"], ["4.5", "3.6"]),
        ("multiple_choice", {}, ["C", "c", "(C)", "C.", "C)", "Choice C", "C) 7"], ["B", "A"]),
        ("regex", {}, ["2024-12-31"], ["2023-12-31", "2024-12-31 or so", "on 2024-12-31"]),
        ("math_verify", {}, ["x^2+1", "1 + x^2"], ["x^2-1", "x^2"]),
        (
            "json_fields", {}, ['{"born": 1815.0, "name": "Ada"}'],
            ['{"name": "Ada"}', '{"name": "Ada", "born": "1815"}', '{"name": "Ada", "born": 1815, "died": 1852}', "{}"],
        ),
        ("json_fields", {"json_fields": ["born"]}, ['{"born": 1815, "name": "?"}'], ['{"born": 1}', '{"name": "Ada"}']),
        ("unit_tests", {}, ["def solve(n): return n + n"], ["def solve(n): return n + 3", "def solve(n): 1 / 0"]),
    ],
)  # fmt: skip
def test_a_checker_accepts_what_means_the_answer_and_refuses_the_rest(
    checker: str, settings: dict[str, Any], right: list[str], wrong: list[str], tmp_path: Path
) -> None:
    held, task = environment(tmp_path, checker, **settings)
    for answer in right:
        verdict = held.verify(task, wrap_answer(answer))
        assert verdict.correct and verdict.score == 1 and verdict.distance in (None, 0), answer
    for answer in wrong:
        verdict = held.verify(task, wrap_answer(answer))
        assert not verdict.correct and verdict.parsed is not None and verdict.distance != 0, answer


@pytest.mark.parametrize(
    ("checker", "unreadable"),
    [
        ("exact", ["", "\x00", "x" * 5000]),
        ("numeric", ["four", "4.0 or 4.1", "nan", "inf", "1e9999", "0x4"]),
        ("multiple_choice", ["C and B", "Z", "C) 8", "7", "CC"]),
        ("math_verify", ["it is x squared plus one, as I believe"]),
        ("json_fields", ["[1]", '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', "{'a': 1}", "[" * 9000]),
        ("unit_tests", ["n * 2", "def other(n): return n * 2"]),
    ],
)
def test_an_answer_of_another_form_is_not_parsed(checker: str, unreadable: list[str], tmp_path: Path) -> None:
    held, task = environment(tmp_path, checker)
    assert [held.verify(task, wrap_answer(text)).parsed for text in unreadable] == [None] * len(unreadable)


def test_json_fields_are_parts_of_the_answer_with_a_distance(tmp_path: Path) -> None:
    held, task = environment(tmp_path, "json_fields")
    verdict = held.verify(task, wrap_answer('{"name": "Eva", "born": 1815}'))
    assert verdict.parts == {"name": '"Eva"', "born": "1815"} and verdict.correct_parts == ("born",)
    assert verdict.distance == 0.5  # one of two keys


def test_a_regular_expression_that_backtracks_without_end_is_stopped(tmp_path: Path) -> None:
    row = {"problem": "Write letters.", "answer": "aab", "pattern": r"(?:a|aa|a?a)*b"}
    held, task = environment(tmp_path, "regex", row, time_limit=1)
    began = time.process_time()
    verdict = held.verify(task, wrap_answer("a" * 60 + "c"))
    assert not verdict.correct and time.process_time() - began < 2
    with pytest.raises(DataError, match=r"Row 1, pattern: is not a regular expression: missing \)"):
        environment(tmp_path, "regex", {**row, "pattern": "(a"})


@pytest.mark.slow
def test_a_pattern_neither_grows_without_limit_nor_ends_the_check(tmp_path: Path):
    row = {"problem": "Write letters.", "answer": "aab"}
    for pattern in (r"(?:a{4000}){4000}", "(?x)(?:a{1#,\n0000}){1 0 0 0}", "a" * 2_000_000):
        with pytest.raises(DataError, match="Row 1, pattern: is too long or repeats too much"):
            environment(tmp_path, "regex", {**row, "pattern": pattern})
    code = {"problem": "Write a code.", "answer": "12345678-1234-1234-1234-123456789abc"}
    held, task = environment(tmp_path, "regex", {**code, "pattern": r"\d{8}-\d{4}-\d{4}-\d{4}-[\da-f]{12}"})
    assert held.verify(task, wrap_answer(code["answer"])).correct
    held, task = environment(tmp_path, "regex", {**row, "pattern": "aab|x(?R)"})
    endless = task.model_copy(update={"privileged": {**task.privileged, "pattern": "(?R)"}})
    assert "no verdict" in held.verify(endless, wrap_answer("b")).detail


@pytest.mark.parametrize(
    ("checker", "clean", "leaks"),
    [
        ("exact", "Think of a large city.", ["It is  PARIS, of course."]),
        ("numeric", "Multiply by 1.609.", ["The answer is 4.0234.", "Write 4.02340."]),
        ("multiple_choice", "Compare option B with option C.", ["The answer is C.", "Take option (C)."]),
        ("regex", "Mind the order of month and day.", ["Write 2024-05-01."]),
        ("math_verify", "Expand the square first.", ["You get $1+x^2$."]),
        ("json_fields", "She was born in the 19th century.", ["Her name is Ada.", "born: 1815"]),
        ("unit_tests", "Use one operator.", ["Use `n + n`."]),
    ],
)
def test_the_leak_vocabulary_follows_the_checker(checker: str, clean: str, leaks: list[str], tmp_path: Path) -> None:
    held, task = environment(tmp_path, checker)
    detector = MentionsDetector(MentionsDetector.Config(partial=0.0), held)
    assert not detector.check(LeakQuery(task, clean)).leaked
    for hint in leaks:
        report = detector.check(LeakQuery(task, hint, ("<answer>?</answer>",)))
        assert report.leaked and report.span is not None, hint


@pytest.mark.parametrize(
    ("checker", "answer", "telling", "kept"),
    [
        ("multiple_choice", "B", "option b is right. So we choose b. It is (b)", "The answer is a number"),
        ("numeric", "1.5", "So we get 1 1/2. Then 1½. That is 3 / 2", "Add the parts"),
        ("numeric", "5000", "It is 5 thousand. In short 5e3", "Think of thousands"),
        ("numeric", "0.5", "This leaves .5. So ½ is left", "Divide the rest"),
    ],
)
def test_a_scripted_hint_withholds_the_answer_in_every_notation_that_the_checker_accepts(
    checker: str, answer: str, telling: str, kept: str, tmp_path: Path
) -> None:
    problem = "Which one? A) one B) two" if checker == "multiple_choice" else "How many?"
    row = {"problem": problem, "answer": answer, "solution": f"{telling}. {kept}."}
    held, task = environment(tmp_path, checker, row, columns={"solution": "solution"})
    wrong = held.verify(task, wrap_answer("A" if checker == "multiple_choice" else "7"))
    assert held.hint(task, [wrong], random.Random(0)) == f"{kept}."


@pytest.mark.parametrize("checker", [name for name in ROWS if name not in TESTED])
def test_hostile_answers_score_zero_with_every_checker(checker: str, tmp_path: Path) -> None:
    held, task = environment(tmp_path, checker)
    rng = random.Random(0)
    wrong = held.simulate_attempt(task, [], rng, follow_hint=False, correct=False)
    words = {
        "gold": held.gold_answer(task), "wrong": wrong.removeprefix("<answer>").removesuffix("</answer>"),
        "problem": held.prompt(task.public), "system": held.system_prompt(), "hint": held.hint(task, [], rng),
    }  # fmt: skip
    assert held.verify(task, wrap_answer(words["gold"])).correct
    for hack, text in REFUSED.items():
        verdict = held.verify(task, filled(text, words))
        assert not verdict.correct and (verdict.score == 0 or verdict.parsed is not None), hack
        verdict.model_dump_json()
    for piece in (*ODD_PIECES, *(unit * (MAX_ATTEMPT_CHARS // len(unit) - 9) for unit in SHAPES.values())):
        began = time.process_time()
        held.verify(task, wrap_answer(piece)).model_dump_json()
        assert all(0 <= start < end <= len(piece) for start, end, _ in held.find_answers(task, piece))
        held.stated_parts(task, piece)
        assert time.process_time() - began < 1, piece[:20]


def test_a_judge_decides_by_its_reply_and_an_equal_answer_needs_none(tmp_path: Path) -> None:
    def reply(number: int, body: dict[str, Any]) -> Say:
        return Say("CORRECT" if "light amber" in body["messages"][-1]["content"] else "WRONG.")

    with serving(reply) as server:
        settings = {"llm": {"type": "openai_api", "base_url": server.url, "cache": False}}
        row = {"problem": "Which color has honey?", "answer": "Amber"}
        held, task = environment(tmp_path, "judge", row, **settings)
        assert held.verify(task, "<answer>amber</answer>").correct and not server.requests
        attempts = [(task, wrap_answer(text)) for text in ("light amber", "blue", "x" * 2000)]
        held.prefetch_verdicts(attempts)
        assert len(server.requests) == 2
        assert [held.verify(*attempt).correct for attempt in attempts] == [True, False, False]
        assert len(server.requests) == 2  # the replies are kept


def test_a_judge_without_a_reply_fails_the_run_when_it_starts(tmp_path: Path) -> None:
    settings = {"llm": {"type": "openai_api", "base_url": "http://127.0.0.1:9/v1", "cache": False, "retries": 0}}
    held, task = environment(tmp_path, "judge", ROWS["exact"], **settings)
    with pytest.raises(ConfigError, match="does not reply CORRECT or WRONG"):
        held.describe_data()
    verdict = held.verify(task, wrap_answer("the city of light"))
    assert not verdict.correct and "the judge did not reply" in verdict.detail


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"checker": "judge"}, "checker judge and llm need each other"),
        ({"checker": "exact", "llm": {"type": "openai_api"}}, "checker judge and llm need each other"),
        ({"checker": "judge", "llm": {"type": "local"}}, "the judge of answers is an endpoint"),
        ({"columns": {"question": "q"}}, "unknown keys question; known: problem, answer"),
        ({"checker": "fuzzy"}, "exact"),
    ],
)
def test_settings_that_conflict_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        validate_config(Dataset.Config, settings)


def test_every_checker_is_tested_here() -> None:
    assert {*ROWS, "judge"} == set(CHECKERS)
