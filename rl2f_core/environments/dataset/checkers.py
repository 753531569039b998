"""Checkers: decide whether an answer to a question of a file is correct.

A checker reads the gold answer of a row, parses and scores attempts, and supplies wrong answers for the simulated
student and candidates for leak detection.
"""

from __future__ import annotations

import functools
import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import ClassVar, NoReturn

import regex

from rl2f_core.common.file_io import unique_keys
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.code.environment import Code
from rl2f_core.environments.code.mutations import constant, mutants
from rl2f_core.environments.code.problems import normalize_code, read_examples, stub_name
from rl2f_core.environments.code.sources import given_cases
from rl2f_core.environments.dataset.choices import chosen_letter, listed_choices, read_choices
from rl2f_core.environments.dataset.config import Config
from rl2f_core.environments.dataset.row_text import (
    MAX_ANSWER,
    RowError,
    as_text,
    plain_text,
    same_text,
    unboxed,
)
from rl2f_core.environments.math.answer_text import (
    normal,
    number_text,
    read_quantity,
    read_value,
)
from rl2f_core.environments.math.base import normalize_gold, scale
from rl2f_core.environments.math.environment import Math
from rl2f_core.environments.math.equivalence import check_units
from rl2f_core.errors import shorten
from rl2f_core.types import JsonObject, Task, TaskData, Verdict

MAX_SCANNED = 10_000
"""Characters of a hint that are searched for answers."""
MAX_PATTERN_SIZE = 1_000_000
"""Characters of a pattern times the product of its repeat counts; `regex` expands nested counts without a limit."""
_MAX_OBJECTS = 20
_BRACES = re.compile(r"\{([^{}]*)")
_ANY_LETTER = re.compile(r"(?<![\w'’])([A-Z])(?![\w'’])")
_CHOSEN_LETTER = re.compile(
    r"\b(?:(?i:answer|choice|letter) (?:is|should be)|(?<!not )(?i:choose|pick|select|take|go with))"
    r"(?: (?:option|choice|letter))? [(\[]?([A-Z])(?![\w'’])"
)
_SMALL_LETTER = re.compile(
    r"(?<![\w'’])[(\[]([a-z])[)\]]|\b(?i:option|choice|letter) [(\[]?([a-z])(?![\w'’])"
    r"|\b(?i:answer (?:is|should be)|choose|pick|select|take|go with) ([a-z])(?=[.,;:!?)]|$)"
)
"""A small letter that is marked or named as a choice; `a` alone is an article."""
_OTHER_NUMBER = re.compile(
    r"(?<![\w.,/])[+\-−]?(?:\d+ \d{1,20} ?/ ?\d{1,20}|\.\d+|\d* ?[¼-¾⅐-⅞]|\d+(?:\.\d+)?[eE][+\-]?\d{1,2}"
    r"|\d[\d,]*(?:\.\d+)? (?:hundred|thousand|million|billion|trillion))(?![\w/])"
)
"""Mixed numbers, decimals without a digit before the point, fractions of one character, powers and scale words."""


class Checker(ABC):
    """Base class of the checkers.

    The defaults read the gold answer as plain text in `privileged["answer"]`.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    """Columns that the checker needs, besides problem and answer."""
    system: ClassVar[str] = "Think, then end with <answer>answer</answer>."
    """System message: how to answer."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def read(self, problem: str, answer: object, more: Mapping[str, object]) -> tuple[TaskData, TaskData]:
        """Return public data, besides the problem, and privileged data of a row.

        Args:
            problem: The problem text.
            answer: Value of the answer column.
            more: Values of `columns` by name.

        Raises `RowError`.
        """
        text = self._gold(as_text(answer))
        if text is None:
            raise RowError(f"is not an answer that the checker {self.config.checker} can read")
        return {}, {"answer": text}

    def _gold(self, answer: str) -> str | None:
        """Return the gold answer in normal form; None if it cannot be read."""
        return plain_text(answer)

    def parse(self, task: Task, text: str) -> str | None:
        """Return the normal form of an answer, or None. Never raises, never evaluates."""
        return plain_text(text)

    @abstractmethod
    def score(self, task: Task, parsed: str) -> Verdict:
        """Return the verdict on a parsed answer."""

    def prefetch(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Prepare the verdicts on parsed answers, if a batch is cheaper. The default does nothing."""
        return

    def wrong_answers(self, task: Task, rng: random.Random) -> Iterator[str]:
        """Yield answers of the right form that are likely wrong."""
        gold = str(task.privileged["answer"])
        yield from (f"{gold} {word}" for word in ("again", "too"))

    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Return the spans of a hint that could be the answer; see `LeakVocabulary.find_answers`."""
        words = str(task.privileged["answer"]).split()
        pattern = re.compile(r"(?<!\w)" + r"\s+".join(map(re.escape, words)) + r"(?!\w)", re.IGNORECASE)
        found = ((m.start(), m.end(), plain_text(m[0])) for m in pattern.finditer(text[:MAX_SCANNED]))
        return [(start, end, form) for start, end, form in found if form is not None]

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        """Return the statements of a hint about parts of the answer; see `LeakVocabulary.stated_parts`."""
        return []


class Exact(Checker):
    """The same text, up to case, Unicode form and white space. A box around it is removed."""

    def _gold(self, answer: str) -> str | None:
        return plain_text(unboxed(answer))

    def parse(self, task: Task, text: str) -> str | None:
        return plain_text(unboxed(text))

    def score(self, task: Task, parsed: str) -> Verdict:
        return verdict(task, parsed, same_text(parsed, task.privileged["answer"]))


class Numeric(Checker):
    """A number within `tolerance`, or within `relative_tolerance` times the gold answer, and in no other unit."""

    def _gold(self, answer: str) -> str | None:
        return _number_form(answer)

    def parse(self, task: Task, text: str) -> str | None:
        return _number_form(text)

    def _allowed(self, gold: Fraction) -> Fraction:
        """Return the largest allowed distance; the settings are decimals, not their binary approximations."""
        absolute, relative = (Fraction(str(x)) for x in (self.config.tolerance, self.config.relative_tolerance))
        return max(absolute, relative * abs(gold))

    def score(self, task: Task, parsed: str) -> Verdict:
        right, answer = read_quantity(str(task.privileged["answer"])), read_quantity(parsed)
        assert right is not None and answer is not None
        gold = right.value
        allowed = self._allowed(gold)
        off = abs(answer.value - gold)
        far = max(float(min(off / scale(gold), Fraction(1))), 1e-9)
        wrong = check_units(right.unit, answer.unit)
        correct = off <= allowed and wrong is None
        return verdict(task, parsed, correct, wrong.reason if wrong else "", distance=0.0 if correct else far)

    def wrong_answers(self, task: Task, rng: random.Random) -> Iterator[str]:
        gold = read_value(str(task.privileged["answer"]))
        assert gold is not None
        step = 1 + 2 * self._allowed(gold)
        yield from (number_text(gold + rng.choice((-1, 1)) * rng.randint(1, 9) * step) for _ in range(20))

    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        others = ((*m.span(), _number_form(m[0])) for m in _OTHER_NUMBER.finditer(text[:MAX_SCANNED]))
        known = [(start, end, form) for start, end, form in others if form is not None]
        return sorted({*_math().find_answers(task, text), *known})


class MultipleChoice(Checker):
    """The letter of a choice; the problem lists the choices. The text of the choice may follow the letter."""

    system = "Think, then end with the letter of the answer, e.g. <answer>B</answer>."

    def read(self, problem: str, answer: object, more: Mapping[str, object]) -> tuple[TaskData, TaskData]:
        """The gold answer is a letter or the text of a choice, or with a column of choices the position from 0."""
        letter, listed = chosen_letter(as_text(answer), {}), listed_choices(problem)
        if letter is None:
            letter = next((key for key, text in listed.items() if same_text(text, as_text(answer))), None)
        if more.get("choices") not in (None, ""):
            letter = read_choices(more["choices"]).letter(answer)
        if letter is None:
            raise RowError(f"is not an answer that the checker {self.config.checker} can read")
        if listed and letter not in listed:
            raise RowError(f"is {letter}, which the problem does not list: {', '.join(listed)}")
        return {}, {"answer": letter}

    def parse(self, task: Task, text: str) -> str | None:
        return chosen_letter(text, listed_choices(task.public["problem"]))

    def score(self, task: Task, parsed: str) -> Verdict:
        correct = parsed == task.privileged["answer"]
        parts = {"parts": {"letter": parsed}, "correct_parts": ("letter",) if correct else ()}
        return verdict(task, parsed, correct).model_copy(update=parts)

    def wrong_answers(self, task: Task, rng: random.Random) -> Iterator[str]:
        letters = list(listed_choices(task.public["problem"])) or list("ABCD")
        yield from rng.sample(letters, len(letters))

    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        """Letters, and texts of the problem's choices."""
        found = [(m.start(1), m.end(1), m[1]) for m in _ANY_LETTER.finditer(text[:MAX_SCANNED])]
        small = _SMALL_LETTER.finditer(text[:MAX_SCANNED])
        found += [(*m.span(m.lastindex or 0), m[m.lastindex or 0].upper()) for m in small]
        for letter, choice in listed_choices(task.public["problem"]).items():
            pattern = r"\s+".join(map(re.escape, choice.strip(" .;,").split()))
            spans = re.finditer(rf"(?<!\w){pattern}(?!\w)", text[:MAX_SCANNED], re.IGNORECASE) if pattern else ()
            found += [(m.start(), m.end(), letter) for m in spans]
        return sorted(found)

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        """Find `choose B`, `the answer is (B)` and the like; the problem itself names all letters."""
        return [(*m.span(), "letter", m[1]) for m in _CHOSEN_LETTER.finditer(text[:MAX_SCANNED])]


class Pattern(Checker):
    """A text that a regular expression of the row matches as a whole; the gold answer is an example of it."""

    columns = ("pattern",)

    def read(self, problem: str, answer: object, more: Mapping[str, object]) -> tuple[TaskData, TaskData]:
        public, privileged = super().read(problem, answer, more)
        pattern = as_text(more["pattern"])
        if _expanded_size(pattern) > MAX_PATTERN_SIZE:
            raise RowError("is too long or repeats too much", "pattern")
        try:
            regex.compile(pattern)
        except (regex.error, OverflowError, RecursionError, MemoryError) as error:
            raise RowError(f"is not a regular expression: {error}", "pattern") from None
        return public, {**privileged, "pattern": pattern}

    def score(self, task: Task, parsed: str) -> Verdict:
        try:
            match = regex.fullmatch(task.privileged["pattern"], parsed, timeout=self.config.time_limit)
        except TimeoutError:
            return verdict(task, parsed, False, f"no verdict within {self.config.time_limit:g} s")
        except MemoryError:  # e.g. a pattern that calls itself
            return verdict(task, parsed, False, "no verdict: the pattern needs too much memory")
        return verdict(task, parsed, match is not None)

    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        pattern = rf"(?<!\w)(?:{task.privileged['pattern']})(?!\w)"
        try:
            spans = [m.span() for m in regex.finditer(pattern, text[:MAX_SCANNED], timeout=self.config.time_limit)]
        except (TimeoutError, MemoryError, regex.error):
            return super().find_answers(task, text)
        forms = ((start, end, plain_text(text[start:end])) for start, end in spans if start < end)
        return [(start, end, form) for start, end, form in forms if form is not None]


def _expanded_size(pattern: str) -> int:
    """Return an upper bound of the number of nodes of a compiled pattern: its length times all minimum counts."""
    size = max(len(pattern), 1)
    for inside in _BRACES.findall(pattern):
        # a verbose pattern may have a comment inside of the braces
        digits = re.sub(r"\D", "", inside if "#" in inside else inside.partition(",")[0])
        size *= max(int(digits[:9] or 1), 1)
    return size


class MathVerify(Checker):
    """An equal number or expression, by form or by math-verify; see `rl2f_core.environments.math`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.math = Math(Math.Config(answers="all", time_limit=config.time_limit))

    def _gold(self, answer: str) -> str | None:
        return normalize_gold(answer)

    def parse(self, task: Task, text: str) -> str | None:
        return self.math.parse(task, text)

    def score(self, task: Task, parsed: str) -> Verdict:
        return self.math.score_parsed(task, parsed)

    def prefetch(self, attempts: Sequence[tuple[Task, str]]) -> None:
        self.math.prefetch_verdicts([(task, wrap_answer(parsed)) for task, parsed in attempts])

    def wrong_answers(self, task: Task, rng: random.Random) -> Iterator[str]:
        for _ in range(5):
            attempt = self.math.simulate_attempt(task, [], rng, follow_hint=False, correct=False)
            yield attempt.removeprefix("<answer>").removesuffix("</answer>")

    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        return self.math.find_answers(task, text)


class JsonFields(Checker):
    """A JSON object with the values of the gold answer; `json_fields` selects the keys to compare.

    Without `json_fields`, the keys must be the same. Distance: the fraction of keys with another value.
    """

    system = "Think, then end with a JSON object as the answer: <answer>{…}</answer>."

    def _gold(self, answer: str) -> str | None:
        value = _json_object(answer)
        if value is None or not value or any(key not in value for key in self.config.json_fields or ()):
            return None
        return _json_text(self._compared(value))

    def _compared(self, value: JsonObject) -> JsonObject:
        """Return the keys to compare."""
        keys = self.config.json_fields
        return {key: item for key, item in value.items() if keys is None or key in keys}

    def parse(self, task: Task, text: str) -> str | None:
        value = _json_object(text)
        return None if value is None else _json_text(self._compared(value))

    def score(self, task: Task, parsed: str) -> Verdict:
        gold, value = json.loads(task.privileged["answer"]), json.loads(parsed)
        parts = {key: _json_text(item) for key, item in value.items()}
        right = tuple(key for key in gold if key in value and _json_text(gold[key]) == parts[key])
        wrong = len(gold.keys() | value.keys()) - len(right)
        far = wrong / max(len(gold.keys() | value.keys()), 1)
        return verdict(task, parsed, not wrong, distance=far).model_copy(
            update={"parts": parts, "correct_parts": right}
        )

    def wrong_answers(self, task: Task, rng: random.Random) -> Iterator[str]:
        gold = json.loads(task.privileged["answer"])
        for key in rng.sample(sorted(gold), len(gold)):
            value = gold[key]
            other = value + 1 if isinstance(value, int | float) and not isinstance(value, bool) else f"not {value}"
            yield _json_text({**gold, key: other})

    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        text, found, decoder = text[:MAX_SCANNED], [], json.JSONDecoder()
        for match in list(re.finditer(r"\{", text))[:_MAX_OBJECTS]:
            try:
                _, end = decoder.raw_decode(text, match.start())
            except (ValueError, RecursionError):
                continue
            form = self.parse(task, text[match.start() : end])
            if form is not None:
                found.append((match.start(), end, form))
        return found

    def stated_parts(self, task: Task, text: str) -> list[tuple[int, int, str, str]]:
        """Find `key is value`, `key: value` and the like."""
        found = []
        for key, value in json.loads(task.privileged["answer"]).items():
            shown = re.escape(value if isinstance(value, str) else json.dumps(value))
            verb = r"[\s\"'`]*(?:(?:is|=|:|equals|should be)[\s\"'`]*)?"
            said = rf"(?<!\w){re.escape(key)}{verb}(?P<value>{shown}(?!\w)|[\w.+-]+)"
            for match in re.finditer(said, text[:MAX_SCANNED], re.IGNORECASE):
                correct = same_text(match["value"], value if isinstance(value, str) else json.dumps(value))
                found.append((*match.span(), key, _json_text(value if correct else match["value"])))
        return sorted(found)


class UnitTests(Checker):
    """A Python function that passes the tests of the row, in the sandbox of the environment `code`.

    `tests` is a list of `{"input": "3, [1]", "output": "14"}` in Python literals; the gold answer is a reference
    solution.
    """

    columns = ("tests",)
    system = "Write the whole Python function inside <answer>…</answer>."

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        limits = {"time_limit": max(1, round(config.time_limit)), "memory_limit": config.memory_limit}
        self.code = Code(Code.Config(allow_weaker_sandbox=config.allow_weaker_sandbox, **limits))

    def read(self, problem: str, answer: object, more: Mapping[str, object]) -> tuple[TaskData, TaskData]:
        program = as_text(answer)
        function = stub_name(problem) or stub_name(program)
        code = None if function is None else normalize_code(program, function)
        if function is None or code is None:
            raise RowError("defines no Python function, or not that of the problem")
        public = read_examples(problem, function)
        try:
            given = given_cases(json.loads(more["tests"]) if isinstance(more["tests"], str) else more["tests"])
        except (ValueError, RecursionError) as error:
            raise RowError(str(error), "tests") from None
        cases = [*public, *(case for case in given if case not in public)]
        data = {"answer": code, "tests": json.dumps(cases), "behavior": ""}
        return {"function": function, "examples": len(public)}, data

    def parse(self, task: Task, text: str) -> str | None:
        return self.code.parse(task, text)

    def score(self, task: Task, parsed: str) -> Verdict:
        return self.code.score_parsed(task, parsed)

    def prefetch(self, attempts: Sequence[tuple[Task, str]]) -> None:
        self.code.prefetch_verdicts([(task, wrap_answer(parsed)) for task, parsed in attempts])

    def wrong_answers(self, task: Task, rng: random.Random) -> Iterator[str]:
        gold = task.privileged["answer"]
        yield from mutants(gold, rng, 6)
        yield constant(gold, task.public["function"])

    def find_answers(self, task: Task, text: str) -> list[tuple[int, int, str]]:
        return self.code.find_answers(task, text)


@functools.cache
def _math() -> Math:
    """Return the environment that finds numbers in hints."""
    return Math(Math.Config())


# -- texts and values ----------------------------------------------------------------------------------------------
def verdict(task: Task, parsed: str, correct: bool, reason: str = "", distance: float | None = None) -> Verdict:
    """Return the verdict on a parsed answer, with the gold answer in its detail if it is wrong."""
    why = f" ({reason})" if reason else ""
    wrong = f"{shorten(parsed, 80)} is wrong{why}: the answer is {shorten(str(task.privileged['answer']), 200)}"
    return Verdict(
        correct=correct,
        score=float(correct),
        parsed=parsed,
        well_formed=True,
        distance=distance,
        detail="right" if correct else wrong,
    )


def _number_form(text: str) -> str | None:
    form = normal(text)
    return form if form is not None and read_value(form) is not None else None


def _json_object(text: str) -> JsonObject | None:
    """Parse a JSON object without repeated keys and without NaN; None otherwise."""
    if len(text) > MAX_ANSWER:
        return None
    try:
        value = json.loads(text, object_pairs_hook=unique_keys, parse_constant=_refuse)
        _json_text(value).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _json_text(value: object) -> str:
    """Return a value as JSON in normal form; equal numbers have equal texts."""
    return json.dumps(_integral(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def _integral(value: object) -> object:
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_integral(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
