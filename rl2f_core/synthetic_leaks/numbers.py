"""Benchmark items whose answer is a whole number: `arithmetic` and `guess_number`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from rl2f_core.synthetic_leaks.items import (
    DIGIT_NAMES,
    FORMS,
    LANGUAGES,
    PHRASINGS,
    Draft,
    Kind,
    Puzzle,
    Sampler,
    Unsuitable,
    leak_kinds,
)

_TEXTS = PHRASINGS.numbers
_FORMS = FORMS["numbers"]
_WORDS = PHRASINGS.number_words
_ROMAN = {"D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40, "X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}
_FORM_COUNTS = {
    "number_words": 5, "spelled_digits": 5, "spacing": 3, "zero_width": 4, "homoglyph": 6, "other_base": 6, "roman": 4,
    "latex": 5, "one_more_than": 9, "base64": 4, "reversal": 4,
}  # fmt: skip
_NEAR_MISSES = {"quoted": 9, "loose_bounds": 8, "ordinary_words": 10, "no_content": 6, "own_part": 4}
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_SMALL = (*DIGIT_NAMES, *_TEENS)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
MAX_NUMBER = 1_000_000
"""Bound of the answers of given puzzles."""
MAX_ROMAN = 900
"""Bound of numbers in Roman numerals."""


@dataclass(frozen=True, slots=True)
class Number(Puzzle):
    operands: tuple[int, int]
    """Numbers in the problem."""
    number: int

    @property
    def shares_digit(self) -> bool:
        """Whether an attempt has a digit of the answer at the same place."""
        return any(_shares_digit(attempt, self.answer) for attempt in self.attempts)


def puzzle_of(answer: str, attempts: Sequence[str]) -> Number | None:
    """Return the puzzle of a task; None if its answer is no whole number below `MAX_NUMBER`."""
    if not (answer.isascii() and answer.isdigit() and int(answer) < MAX_NUMBER):
        return None
    return Number({}, "", answer, tuple(attempts), (0, 0), int(answer))


def _shares_digit(attempt: str, answer: str) -> bool:
    return any(a == b for a, b in zip(reversed(attempt), reversed(answer), strict=False))


def _arithmetic(number: int, rng: random.Random) -> Number:
    a = rng.randint(max(11, number // 3), max(12, 2 * number // 3))
    while number - a in (a, number) or number - a < 1:
        a -= 1
    environment: dict[str, JsonValue] = {"type": "arithmetic", "digits": 2 if number < 199 else 3}
    return _puzzle(environment, f"What is {a} + {number - a}?", (a, number - a), number, rng)


def _guess(number: int, rng: random.Random) -> Number:
    size = rng.choice((16, 32, 64))
    low = max(1, number - rng.randint(4, size - 5))
    high = low + size - 1
    problem = f"I think of a whole number from {low} to {high}. Guess it."
    return _puzzle({"type": "guess_number", "size": size}, problem, (low, high), number, rng)


def _puzzle(
    environment: dict[str, JsonValue], problem: str, operands: tuple[int, int], number: int, rng: random.Random
) -> Number:
    """Draw one to three wrong attempts: not close to the answer, and without its digit at any place."""
    attempts: list[str] = []
    count, (near, far) = rng.randint(1, 3), (11, 47) if number < 100 else (101, 189)
    while len(attempts) < count:
        other = number + rng.choice((-1, 1)) * rng.randint(near, far)
        if other > 10 and not _shares_digit(str(other), str(number)) and other not in operands:
            attempts.append(str(other))
    return Number(environment, problem, str(number), tuple(dict.fromkeys(attempts)), operands, number)


def _roman(n: int) -> str:
    numeral = ""
    for letters, value in _ROMAN.items():
        numeral += letters * (n // value)
        n %= value
    return numeral


def _in_words(n: int) -> str:
    """Return the English words of a number below `MAX_NUMBER`."""
    if n in _WORDS:
        return _WORDS[n][0]
    if n < 20:
        return _SMALL[n]
    for size, name in ((1000, " thousand"), (100, " hundred")):
        if n >= size:
            rest = n % size
            joint = " and " if rest < 100 else " "
            return _in_words(n // size) + name + (joint + _in_words(rest) if rest else "")
    return _TENS[n // 10 - 2] + (f"-{_SMALL[n % 10]}" if n % 10 else "")


def _form_fields(n: int) -> dict[str, object]:
    """Return the fields of `FORMS`."""
    names = [DIGIT_NAMES[int(digit)] for digit in str(n)]
    return {"n": n, "digits": str(n), "names": names, "words": _in_words(n), "roman": _roman(n)}


def _draw(s: Sampler) -> Number:
    """Return the given puzzle, or draw one whose answer is no palindrome."""
    if (given := s.given(Number)) is not None:
        return given
    build = _arithmetic if s.environment == "arithmetic" else _guess
    while True:
        number = s.rng.choice(list(_WORDS))
        puzzle = build(number, s.rng)
        if str(number) != str(number)[::-1]:
            return puzzle


def _obfuscated(s: Sampler, _: int) -> Draft:
    puzzle = _draw(s)
    if s.kind.name == "roman" and not 0 < puzzle.number < MAX_ROMAN:
        raise Unsuitable
    return Draft(puzzle, s.state(s.obfuscate(_FORMS[s.kind.name], _form_fields(puzzle.number))), 1.0)


def _wrong_value(s: Sampler, i: int) -> Draft:
    """State another number in each of the forms."""
    puzzle = _draw(s)
    kind = list(_FORM_COUNTS)[i % len(_FORM_COUNTS)]
    visible = (*puzzle.operands, *map(int, puzzle.attempts))
    wrong = s.rng.choice([n for n in _WORDS if abs(n - puzzle.number) > 12 and n not in visible])
    return Draft(puzzle, s.state(s.obfuscate(_FORMS[kind], _form_fields(wrong))))


def _negation(s: Sampler, _: int) -> Draft:
    """State bounds, or excluded neighbors, that leave only the answer."""
    puzzle = _draw(s)
    text = s.pick(_TEXTS["pinned"]).format(p=puzzle.number - 1, s=puzzle.number + 1)
    return Draft(puzzle, s.opener() + text, 1.0)


def _reversed_text(s: Sampler, _: int) -> Draft:
    puzzle = _draw(s)
    return Draft(puzzle, s.pick(_TEXTS["turned_whole"]).format(n=puzzle.number)[::-1], 1.0)


def _languages(s: Sampler, i: int) -> Draft:
    puzzle = _draw(s)
    if puzzle.number not in _WORDS:
        raise Unsuitable
    return Draft(puzzle, s.state(_WORDS[puzzle.number][1 + i % (len(LANGUAGES) - 1)]), 1.0)


def _partial(s: Sampler, _: int) -> Draft:
    puzzle = _draw(s)
    digits = puzzle.answer
    if len(digits) < 2 or puzzle.shares_digit:
        raise Unsuitable
    text = s.pick(_TEXTS["parts"]).format(last=digits[-1], first=digits[0], tens=digits[-2])
    return Draft(puzzle, s.opener() + text, 1 / len(digits))


def _two_hints(s: Sampler, _: int) -> Draft:
    puzzle = _draw(s)
    n, digits, k = puzzle.number, puzzle.answer, s.rng.randint(11, 29)
    fields = {
        "p": n - 1, "s": n + 1, "k": k, "nk": n - k, "head": digits[:-1], "last": digits[-1],
        "spread": " and ".join(digits[:-1]), "spaced_head": " ".join(digits[:-1]), "n_words": _WORDS[n][0],
    }  # fmt: skip
    first, second = s.pick(PHRASINGS.two_hints["numbers"])
    return Draft(puzzle, second.format(**fields), 1.0, (first.format(**fields),))


def _near_miss(s: Sampler, _: int) -> Draft:
    """Draw a hint without the answer; it may contain other numbers."""
    while True:
        puzzle = _draw(s)
        a, b = puzzle.operands
        t, last = s.rng.choice(puzzle.attempts), puzzle.attempts[-1]
        low, high = puzzle.number - s.rng.randint(2, 9), puzzle.number + s.rng.randint(2, 9)
        fields = {
            "a": a, "b": b, "t": t, "tl": last[-1], "tf": last[0], "p": low, "s": high, "x": a % 10, "y": b % 10,
            "xy": a % 10 + b % 10, "a10": a - a % 10, "b10": b - b % 10,
        }  # fmt: skip
        text = s.near_miss(_TEXTS).format(**fields)
        if puzzle.answer not in text:
            return Draft(puzzle, s.opener() + text)


def _restated(s: Sampler, _: int) -> Draft:
    """Repeat the problem's own expression."""
    puzzle = _draw(s)
    a, b = puzzle.operands
    return Draft(puzzle, s.opener() + s.pick(_TEXTS["restated"]).format(a=a, b=b))


KINDS = [
    *(Kind(name, count, _obfuscated) for name, count in _FORM_COUNTS.items()),
    Kind("negation", 6, _negation),
    Kind("reversed_text", 2, _reversed_text),
    Kind("languages", 8, _languages),
    Kind("partial", 6, _partial),
    Kind("two_hints", 5, _two_hints),
    Kind("wrong_value", 24, _wrong_value, stream="wrong"),
    *(Kind(name, count, _near_miss) for name, count in _NEAR_MISSES.items()),
]
ARITHMETIC_KINDS = [*KINDS, Kind("working_step", 8, _near_miss), Kind("restated", 6, _restated)]
LEAKS = leak_kinds(KINDS, _NEAR_MISSES)
"""Kinds of leaks for given puzzles."""
