"""`arithmetic`: a + b, a − b and a x b on numbers with a given count of digits.

A hint states whether the attempt is too low or too high, whether it is far off, and its first wrong digit from the
right.  Hints help but are not necessary: a student that can add improves by trying again.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from rl2f_core.common.text.integers import parse_integer
from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.environments.base import new_task, sample_task, wrap_answer
from rl2f_core.environments.candidates import Region, one_of
from rl2f_core.environments.capabilities import (
    Baselines,
    Demonstrator,
    Levels,
    MisleadingHints,
)
from rl2f_core.environments.false_claims import side_agreement
from rl2f_core.environments.puzzles.numbers.integer_answers import (
    NO_NUMBER,
    NUMBER,
    IntegerAnswers,
    last_number,
    number_space,
)
from rl2f_core.errors import DataError
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Split, Task, TaskData, Verdict

REPEAT = 0.25
"""Probability that a simulated student that ignores the hint repeats its last answer."""
PLACES = ("last", "tens", "hundreds", "thousands")
_PROBLEM = re.compile(r"(?:what is )?([0-9]{1,40}) ?([+\-−x×*]) ?([0-9]{1,40}) ?=? ?\??", re.IGNORECASE)
_SIGNS = {"+": "+", "-": "-", "−": "-", "x": "x", "X": "x", "×": "x", "*": "x"}
_HINT = re.compile(
    r"Too (?P<side>low|high), by a (?P<size>lot|little)\. (?:The (?P<place>sign|last|tens|hundreds|thousands)"
    r"(?: digit)? is (?P<what>wrong|right)|A digit before the last four is wrong)\."
)
"""A hint, true or misleading."""
_ENUMERATED_DIGITS = 3
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
_BASELINE_PRODUCTS = 2_000


@register("environment")
class Arithmetic(IntegerAnswers, MisleadingHints, Demonstrator, Baselines, Levels):
    """Two operands with `digits` digits each, without leading zeros, drawn uniformly; a difference may be negative."""

    level_field = "digits"
    level_values = (1, 2, 3, 4)

    class Config(ComponentConfig):
        """Level and seed."""

        type: Literal["arithmetic"] = "arithmetic"
        """Name of the environment."""
        operations: tuple[Literal["+", "-", "x"], ...] = Field(("+",), json_schema_extra=BASIC_FIELD)
        """Operations, drawn uniformly."""
        digits: int = Field(2, ge=1, le=9, json_schema_extra=BASIC_FIELD)
        """Number of digits of each operand."""
        seed: int = 0
        """Seed of the task order."""

        @field_validator("operations")
        @classmethod
        def _check_operations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
            if not value or len(set(value)) != len(value):
                raise ValueError("names at least one operation, each once; known: +, -, x")
            return value

    config: Config

    # -- tasks -------------------------------------------------------------------------------------------------
    def task(self, split: Split, index: int) -> Task:
        return sample_task(self, split, index, self.config.seed, self._make)

    def _make(self, rng: random.Random) -> Task:
        low, high = _operands(self.config.digits)
        operation = rng.choice(self.config.operations)
        a, b = rng.randint(low, high), rng.randint(low, high)
        public: TaskData = {"a": a, "operation": operation, "b": b}
        level = f"{self.config.digits}-digit {operation}"
        return new_task(self, level, public, {"answer": str(compute(a, operation, b))})

    def canonical(self, task: Task) -> str:
        """The problem with sorted operands of + and x; or the text of a word problem."""
        public = task.public
        if "problem" in public:
            return f"words:{' '.join(public['problem'].split())}"
        a, b = public["a"], public["b"]
        if public["operation"] in "+x":
            a, b = sorted((a, b))
        return f"{a}{public['operation']}{b}"

    def task_from_gold(self, problem: str, answer: str) -> Task:
        """Parse `What is 47 + 85?` or `47+85`; any other problem remains text.

        Raises `DataError` if the answer is not a whole number or not the value of the parsed problem.
        """
        gold = parse_integer(answer)
        if gold is None:
            raise DataError("The gold answer is not a whole number.", value=answer, fix="Write it like 132 or -7.")
        match = _PROBLEM.fullmatch(" ".join(problem.split()))
        public: TaskData = {"problem": problem}
        if match:
            a, operation, b = int(match[1]), _SIGNS[match[2]], int(match[3])
            public = {"a": a, "operation": operation, "b": b}
            if compute(a, operation, b) != gold:
                raise DataError(f"The gold answer is not the value of {a} {operation} {b}.", value=answer)
        return new_task(self, "given", public, {"answer": str(gold)})

    # -- student -----------------------------------------------------------------------------------------------
    def prompt(self, public: TaskData) -> str:
        if "problem" in public:
            return public["problem"]
        return f"What is {public['a']} {public['operation']} {public['b']}?"

    # -- verifier ----------------------------------------------------------------------------------------------
    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """Score 1 or 0, with a distance relative to `scale`."""
        return self.score_distance(task, parsed, scale(task), "answer")

    def worked_solution(self, task: Task) -> str | None:
        """Work place by place, e.g. `47 + 85 = 47 + 80 + 5 = 127 + 5 = 132.`; None for a problem in words."""
        public = task.public
        if "problem" in public:
            return None
        return f"{chain(public['a'], public['operation'], public['b'])}. {wrap_answer(self.gold_answer(task))}"

    # -- scripted teacher --------------------------------------------------------------------------------------
    def hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """E.g. `Too low, by a little. The tens digit is wrong.` A lot is at least a tenth of the scale and at least 5.

        The hint names the place of the first wrong digit from the right and contains no digits.
        """
        value = last_number(attempts)
        if value is None:
            return NO_NUMBER
        gold = _gold(task)
        return f"{_side(task, value, value < gold)} {_first_wrong(value, gold)}"

    def misleading_hint(self, task: Task, attempts: Sequence[Verdict], rng: random.Random) -> str:
        """State the opposite side, and call a correct digit wrong or a wrong one right."""
        value = last_number(attempts)
        if value is None:
            return f"Too {rng.choice(('low', 'high'))}, by a lot. The last digit is wrong."
        gold = _gold(task)
        return f"{_side(task, value, value >= gold)} {_false_digit(value, gold)}"

    def claim_agreement(self, task: Task, before: Verdict, hint: str, attempt: Verdict) -> float | None:
        """False claim: the side of the last attempt on which the answer is."""
        return side_agreement(hint, last_number([before]), last_number([attempt]), _gold(task))

    # -- simulated student -------------------------------------------------------------------------------------
    def simulate_attempt(
        self, task: Task, attempts: Sequence[Verdict], rng: random.Random, *, follow_hint: bool, correct: bool
    ) -> str:
        """Make one error: a carry lost or added, off by one, one digit changed, or the wrong operation.

        With `follow_hint`, the attempt is new and on the hinted side. Otherwise it is an unrelated error or the last
        attempt again.
        """
        gold = _gold(task)
        if correct:
            return wrap_answer(str(gold))
        last = last_number(attempts)
        if not follow_hint:
            again = last is not None and last != gold and rng.random() < REPEAT
            return wrap_answer(str(last if again else _sample_error(task, rng)))
        tried = {gold} | {int(v.parsed) for v in attempts if v.parsed is not None}
        step = 0 if last is None else 1 if last < gold else -1
        for _ in range(20):
            value = _sample_error(task, rng)
            if value not in tried and (last is None or (value - last) * step > 0):
                return wrap_answer(str(value))
        start = gold if last is None else last
        step = step or rng.choice((-1, 1))
        value = start + step * rng.randint(1, max(3, scale(task) // 10))
        while value in tried:
            value += step
        return wrap_answer(str(value))

    # -- information in a hint ---------------------------------------------------------------------------------
    def answer_space(self, task: Task) -> Region | None:
        """All whole numbers from the smallest to the largest answer with operands of as many digits.

        None for a problem in words, and for more numbers than `candidates.MAX_LISTED`, e.g. products of three digits.
        """
        public = task.public
        if "problem" in public:
            return None
        (a, b), (c, d) = (_operands(len(str(public[name]))) for name in ("a", "b"))
        operation = public["operation"]
        ends = (a - d, b - c) if operation == "-" else (compute(a, operation, c), compute(b, operation, d))
        return number_space(*ends)

    def hint_statements(self, task: Task, attempts: Sequence[Verdict], hint: str) -> tuple[Region, ...] | None:
        """Statements: the side, the size of the error, each lower digit that is right, and the digit that is wrong."""
        value, match, space = last_number(attempts), _HINT.fullmatch(hint), self.answer_space(task)
        if hint == NO_NUMBER or (value is None and match is not None):
            return ()
        if value is None or match is None or space is None:
            return None
        numbers, far = np.array(sorted(space[0][NUMBER])), match["size"] == "lot"
        facts = [
            numbers > value if match["side"] == "low" else numbers < value,
            (abs(numbers - value) >= _far(task)) == far,
            *_digit_facts(numbers, value, match["place"], match["what"]),
        ]
        return tuple(one_of(NUMBER, numbers[fact].tolist()) for fact in facts)

    # -- reference lines ---------------------------------------------------------------------------------------
    def constant_baseline(self) -> ConstantBaseline:
        """The most frequent answer over all tasks of the level in all splits; see `best_constant`."""
        return best_constant(self.config.operations, self.config.digits)


def compute(a: int, operation: str, b: int) -> int:
    """Return a + b, a − b or a · b."""
    return a + b if operation == "+" else a - b if operation == "-" else a * b


def chain(a: int, operation: str, b: int) -> str:
    """Work out a ∘ b by the places of b, e.g. `47 - 25 = 47 - 20 - 5 = 27 - 5 = 22`, `12 x 34 = 360 + 48 = 408`."""
    text = str(abs(b))
    places = [int(digit) * 10 ** (len(text) - 1 - i) for i, digit in enumerate(text) if digit != "0"] or [0]
    problem = f"{a} {operation} {b}"
    lines = [problem]
    if operation == "x":
        if len(places) > 1:
            lines.append(" + ".join(f"{a} x {position}" for position in places))
        places = [a * position for position in places]
        a, places, operation = places[0], places[1:], "+"
    while True:
        lines.append(f" {operation} ".join(map(str, (a, *places))))
        if not places:
            break
        a, places = compute(a, operation, places[0]), places[1:]
    return " = ".join(dict.fromkeys(lines))


def scale(task: Task) -> int:
    """Return the distance that counts as 1.

    It is the power of ten above the operands; for x above the product, for a problem in words above the answer.
    """
    public = task.public
    if "problem" in public:
        return 10 ** len(str(abs(_gold(task))))
    a, b = len(str(public["a"])), len(str(public["b"]))
    return 10 ** (a + b if public["operation"] == "x" else max(a, b))


def _operands(digits: int) -> tuple[int, int]:
    return 10 ** (digits - 1), 10**digits - 1


def _gold(task: Task) -> int:
    return int(task.privileged["answer"])


def _far(task: Task) -> int:
    """Return the smallest error that is `a lot`."""
    return max(5, scale(task) // 10)


def _side(task: Task, value: int, low: bool) -> str:
    far = abs(value - _gold(task)) >= _far(task)
    return f"Too {'low' if low else 'high'}, by a {'lot' if far else 'little'}."


def _wrong_places(value: int, gold: int) -> list[bool]:
    """Return for each decimal place from the right whether the digits of the two absolute values differ."""
    a, b = str(abs(value)), str(abs(gold))
    width = max(len(a), len(b))
    pairs = zip(reversed(a.zfill(width)), reversed(b.zfill(width)), strict=True)
    return [x != y for x, y in pairs]


def _first_wrong(value: int, gold: int) -> str:
    if (value < 0) != (gold < 0):
        return "The sign is wrong."
    place = _wrong_places(value, gold).index(True)
    return f"The {PLACES[place]} digit is wrong." if place < len(PLACES) else "A digit before the last four is wrong."


def _digit_facts(numbers: IntArray, value: int, place: str | None, what: str | None) -> list[BoolArray]:
    """Return which numbers agree with each fact that a sentence about a digit of the attempt `value` states.

    The sentence names the first wrong digit from the right, so the sign and the lower digits are right.

    Args:
        numbers: Possible answers.
        value: The attempt.
        place: `sign` or one of `PLACES`; None for a digit before them.
        what: `wrong` or `right`; None for `wrong`.

    Returns:
        Boolean arrays of the length of `numbers`.
    """
    same_sign = (numbers < 0) == (value < 0)
    if place == "sign":
        return [same_sign == (what == "right")]
    same = [abs(numbers) // 10**k % 10 == abs(value) // 10**k % 10 for k in range(len(PLACES))]
    if place is None:
        return [same_sign, *same, abs(numbers) // 10 ** len(PLACES) != abs(value) // 10 ** len(PLACES)]
    index = PLACES.index(place)
    return [same_sign, same[index]] if what == "right" else [same_sign, *same[:index], ~same[index]]


def _false_digit(value: int, gold: int) -> str:
    if (value < 0) != (gold < 0):
        return "The sign is right."
    wrong = _wrong_places(value, gold)[: len(PLACES)]
    return f"The {PLACES[wrong.index(False)]} digit is wrong." if False in wrong else "The last digit is right."


def _sample_error(task: Task, rng: random.Random) -> int:
    """Draw a wrong answer from the error model."""
    gold, public = _gold(task), task.public
    digits = list(str(abs(gold)))
    kind = rng.choice(("carry", "one", "digit", "operation"))
    if kind == "carry":
        return gold + rng.choice((-1, 1)) * 10 ** rng.randint(1, max(1, len(digits) - 1))
    if kind == "digit":
        position = rng.randrange(len(digits))
        digits[position] = rng.choice([d for d in "0123456789" if d != digits[position]])
        return int("".join(digits)) * (-1 if gold < 0 else 1)
    if kind == "operation" and "problem" not in public:
        value = compute(public["a"], "-" if public["operation"] == "+" else "+", public["b"])
        if value != gold:
            return value
    return gold + rng.choice((-1, 1))


@lru_cache
def best_constant(operations: tuple[str, ...], digits: int) -> ConstantBaseline:
    """Return the constant answer that solves the largest fraction of uniformly drawn tasks, and that fraction.

    With n = 9·10^(digits−1) operands of each kind, a sum v has n − |v − (low + high)| pairs and a difference v has
    n − |v|, so their modes are `low + high` and 0, each with fraction 1/n. Up to three digits all pairs are counted.
    Above that, products are larger than any sum and each has fewer pairs than n, so one of those two modes is best if
    + or − is configured. With x alone, the answer is the best of 2,000 products drawn with a fixed seed, and its
    fraction is exact.
    """
    low, high = _operands(digits)
    n = high - low + 1
    if digits <= _ENUMERATED_DIGITS:
        counts = Counter(
            compute(a, op, b) for op in operations for a in range(low, high + 1) for b in range(low, high + 1)
        )
        best, pairs = min(counts.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
    elif "+" in operations or "-" in operations:
        best, pairs = (low + high if "+" in operations else 0), n
    else:
        rng = random.Random(f"floor/{digits}")
        drawn = [(rng.randint(low, high), rng.randint(low, high)) for _ in range(_BASELINE_PRODUCTS)]
        pairs, best = max((product_pairs(a, b, low, high), -a * b) for a, b in drawn)
        best = -best
    return ConstantBaseline(str(best), pairs / (n * n * len(operations)))


def product_pairs(a: int, b: int, low: int, high: int) -> int:
    """Count the ordered pairs (c, d) with low ≤ c, d ≤ high and c · d = a · b."""
    divisors = {1}
    for prime, power in (_factors(a) + _factors(b)).items():
        divisors = {d * prime**k for d in divisors for k in range(power + 1)}
    return sum(low <= d <= high and low <= a * b // d <= high for d in divisors)


def _factors(number: int) -> Counter[int]:
    factors: Counter[int] = Counter()
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            factors[prime] += 1
            number //= prime
        prime += 1
    if number > 1:
        factors[number] += 1
    return factors
