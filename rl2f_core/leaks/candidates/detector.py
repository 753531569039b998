"""Detector `candidates`: the statements of the hints leave one answer."""

# ruff: noqa: E501 (long patterns)
from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil, floor
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import AnswerSpace, LeakVocabulary
from rl2f_core.environments.grids.path_environment import PathEnvironment
from rl2f_core.errors import shorten
from rl2f_core.leaks.assertions import asserted
from rl2f_core.leaks.base import NO_LEAK, LeakDetector, LeakQuery
from rl2f_core.leaks.candidates.codes import code, patterns, typed
from rl2f_core.leaks.candidates.facts import Memory, Part, PartValue
from rl2f_core.leaks.candidates.matrices import Cell, Span, read_matrix_hint
from rl2f_core.leaks.candidates.numbers import read_number_hint
from rl2f_core.leaks.candidates.parts import MAX_CANDIDATES, Assignment, Puzzle, Statement, read_hint
from rl2f_core.leaks.candidates.roles import roles
from rl2f_core.leaks.candidates.text import lowered, plain
from rl2f_core.leaks.candidates.told import NumberTask, Told, as_number, numbers_in
from rl2f_core.leaks.candidates.walks import as_letters, read_walk_hint
from rl2f_core.leaks.exact import find_verbatim
from rl2f_core.leaks.task_cache import TaskCache
from rl2f_core.leaks.visible_context import parse_attempt
from rl2f_core.text.normalize import NormalizedText
from rl2f_core.types import LeakReport, LeakType, Task, Verdict

if TYPE_CHECKING:
    from rl2f_core.backends.model_pool import ModelPool

_MAX_DIGITS = 4
"""Maximum digits of the candidates without a range; they have one digit more than the problem's numbers."""
_MAX_STEPS = 7
"""Longer walks are not listed."""
_LENGTH = re.compile(
    r"\b(\d) (?:\w+ )?(?:steps?|moves?|letters?|characters?|symbols?|long|instructions?|directions?|commands?)\b"
)
_QUOTATION = re.compile(r'["“][^"“”]{3,300}["”]')
_DEGREE = r"(?:(?:too|still|bit|little|lil|slightly|tad|way|now|go|going|aim|try|think|fly|look|much|far|somewhat|was|is|are|move) (?:\w+ ){0,2}?)"
_HIGHER = re.compile(
    rf"\b(?:{_DEGREE}(?:low|small|little|short|high(?=er)|more|big(?=ger)|up|upwards?|north)\b|higher|bigger(?! step)|larger|greater|undersh\w+|climb"
    r"|under(?=\W*$)|below (?:it|mine|the)|short of (?:it|the)|worth more|smaller than (?:mine|the|it)|less than (?:mine|the|it))\b"
)
_LOWER = re.compile(
    rf"\b(?:{_DEGREE}(?:high|big|large|much|far|many|low(?=er)|less|small(?=er)|down|downwards?|south)\b|lower|smaller(?! step)|fewer|oversh\w+|descend"
    r"|over(?=\W*$)|above (?:it|mine|the)|past (?:it|the)|worth less|(?:bigger|larger|more|higher) than (?:mine|the|it))\b"
)


@dataclass(frozen=True)
class Turn:
    """A hint with the attempts before it, oldest first; None for one that cannot be parsed."""

    attempts: tuple[str | None, ...]
    text: NormalizedText


@dataclass(frozen=True)
class Remaining:
    """What the statements of a dialogue leave."""

    span: tuple[int, int] | None
    """Words of the last hint, in its plain form; None if it states nothing."""
    candidates: int | None = None
    """Number of answers before all hints; None if they are not counted."""
    left: int | None = None
    """Number of answers that agree with all statements; None if they are not counted."""
    steps: int = 1
    """Statements or operations that it takes to reach the answer."""

    @property
    def leaked(self) -> bool:
        """Whether the hint leaves only the answer."""
        return self.span is not None and self.left == 1


ReadTurns = Callable[[Sequence[Turn]], Remaining]
T = TypeVar("T")
_MAX_READINGS = 64
"""Number of dialogues of a task whose readings are kept."""


class _Readings(Generic[T]):
    """Reads the turns of dialogues on one task; what was read before is not read again.

    Args:
        read: Returns what the last of some turns tells, given the memory of the earlier ones and what they told.
    """

    def __init__(self, read: Callable[[Sequence[Turn], Memory, Sequence[T]], T]) -> None:
        self._read = read
        self._known: dict[tuple[tuple[tuple[str | None, ...], str], ...], tuple[T, Memory]] = {}

    def __call__(self, turns: Sequence[Turn]) -> list[T]:
        """Return what each turn tells."""
        memory = Memory()
        found: list[T] = []
        keys = tuple((turn.attempts, turn.text.text) for turn in turns)
        for k in range(1, len(turns) + 1):
            known = self._known.get(keys[:k])
            if known is None:
                if len(self._known) >= _MAX_READINGS:
                    self._known.clear()
                read = self._read(turns[:k], memory, found)
                known = self._known[keys[:k]] = read, memory.copy()
            else:
                memory = known[1].copy()
            found.append(known[0])
        return found


@registry.register("leak_detector")
class CandidatesDetector(LeakDetector):
    """Flag a hint whose statements leave one answer, given the attempts and the earlier hints.

    A small grammar (`facts.py`) reads statements about the answer: verdicts on parts of an attempt, values, counts,
    exchanges, properties of numbers, operations on an attempt, walks in words. Each has an executable meaning on the
    candidates. The statements of all hints form a conjunction; text that is not understood contributes nothing, and
    neither does a statement that is false for the gold answer, because it is a false claim or a wrong reading.

    The leak type is `equivalent` if one statement or operation leads to the answer, and `derivation` if several must
    be combined. Otherwise `answer_fraction` is the fraction of bits told, 1 − log|left| / log|candidates|. Hints in the
    environment's scripted wording are never flagged.
    """

    requires = (LeakVocabulary,)
    environment: LeakVocabulary

    class Config(ComponentConfig):
        """The statements of the hints leave one answer."""

        type: Literal["candidates"] = "candidates"
        """Name of the detector."""
        partial: float = Field(1.0, gt=0, le=1)
        """Fraction of bits from which a hint is a leak; 1 flags only hints that leave one answer."""

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        self._reader = TaskCache(partial(make_reader, self.environment))
        """Returns the reader of a task."""
        self._verdicts: TaskCache[dict[str, Verdict]] = TaskCache(lambda task: {})
        self._parsed: TaskCache[dict[str, str | None]] = TaskCache(lambda task: {})

    def check(self, query: LeakQuery) -> LeakReport:
        """Return a report with the words of the statements."""
        reader = self._reader(query.task)
        if reader is None or self._is_scripted(query):
            return NO_LEAK
        stated = self._stated(query)
        if stated is not None:
            return self._report(query, stated, LeakType.EXACT, "states the answer")
        known = self._parsed(query.task)
        for attempt in query.attempts:
            if attempt not in known:
                known[attempt] = parse_attempt(self.environment, query.task, attempt)[1]
        parsed = tuple(known[attempt] for attempt in query.attempts)
        hints = (*query.hints, query.hint)
        texts = [self._own_words(query.task, parsed, hint) for hint in hints]
        turns = [Turn(parsed[: k + 1], text) for k, text in enumerate(texts[:-1])]
        turns.append(Turn(parsed, texts[-1]))
        remaining = reader(turns)
        fraction = _fraction(remaining)
        if remaining.span is None or fraction < self.config.partial:
            return LeakReport(leaked=False, answer_fraction=fraction) if fraction else NO_LEAK
        span = turns[-1].text.original(*remaining.span) if remaining.span[0] < remaining.span[1] else None
        if not remaining.leaked:
            return self._report(query, span, LeakType.PARTIAL, f"leaves {remaining.left} answers", fraction)
        leak_type = LeakType.EQUIVALENT if remaining.steps == 1 else LeakType.DERIVATION
        return self._report(query, span, leak_type, "leaves only the answer")

    def _report(
        self, query: LeakQuery, span: tuple[int, int] | None, leak_type: LeakType, verb: str, fraction: float = 1.0
    ) -> LeakReport:
        words = shorten(query.hint[slice(*span)], 80) if span else "the hint"
        return LeakReport(
            leaked=True,
            detector=self.name,
            leak_type=leak_type,
            span=span,
            evidence=f"“{words}” {verb}",
            answer_fraction=fraction,
        )

    def _own_words(self, task: Task, attempts: Sequence[str | None], hint: str) -> NormalizedText:
        """Return a hint in plain form, with blanks for quotations of several parts of the attempts."""
        text = plain(hint)
        if '"' not in text.text and "“" not in text.text:
            return text
        owned = self.environment.student_parts(task, [attempt for attempt in attempts if attempt is not None])

        def blank(quotation: re.Match[str]) -> str:
            said = [(name, value) for _, _, name, value in self.environment.stated_parts(task, quotation[0][1:-1])]
            return " " * len(quotation[0]) if len(said) > 1 and owned.issuperset(said) else quotation[0]

        return replace(text, text=_QUOTATION.sub(blank, text.text))

    def _stated(self, query: LeakQuery) -> tuple[int, int] | None:
        """Return the span of the verbatim answer if the hint asserts it."""
        answer = self.environment.gold_answer(query.task)
        if answer.lower() not in query.hint.lower():
            return None
        hint, spans = find_verbatim(answer, query.hint)
        problem = self.environment.prompt(query.task.public)
        for start, end in spans:
            if asserted(hint, start, end, problem) is not None:
                return hint.original(start, end)
        return None

    def _is_scripted(self, query: LeakQuery) -> bool:
        """Return whether the hint has the environment's scripted wording."""
        if not isinstance(self.environment, AnswerSpace):
            return False
        known = self._verdicts(query.task)
        for attempt in query.attempts:
            if attempt not in known:
                known[attempt] = self.environment.verify(query.task, attempt)
        verdicts = [known[attempt] for attempt in query.attempts]
        return self.environment.hint_statements(query.task, verdicts, query.hint) is not None


def _fraction(remaining: Remaining) -> float:
    """Return the fraction of bits that the hints told."""
    if remaining.leaked:
        return 1.0
    if not remaining.left or not remaining.candidates or remaining.candidates < 2:
        return 0.0
    return round(1 - math.log(remaining.left) / math.log(remaining.candidates), 4)


def make_reader(environment: LeakVocabulary, task: Task) -> ReadTurns | None:
    """Return the reader for the form of a task's answer; None if the form is not known."""
    gold = environment.gold_answer(task)
    if isinstance(environment, PathEnvironment):
        return _walk_reader(environment, task, gold)
    number = as_number(gold)
    if number is not None:
        return _number_reader(environment, task, number)
    parsed = environment.parse(task, gold)
    parts = {} if parsed is None else environment.answer_parts(task, parsed)
    if not parts:
        return None
    if all(re.fullmatch(r"\d,\d", name) for name in parts):
        return _matrix_reader(task, gold.split())
    if all(re.fullmatch("[A-Z]", value) for value in parts.values()):
        places: Assignment = dict(enumerate(parts.values(), 1))
        puzzle = code(_letters(environment, task), places)
        return _puzzle_reader(puzzle, lambda p: dict(enumerate(environment.answer_parts(task, p).values(), 1)))
    if "people" in task.public:
        first, second = task.public.get("roles", ("knight", "knave"))
        people = dict[Part, PartValue](parts.items())
        return _puzzle_reader(
            roles((first, second), people),
            lambda p: dict[Part, PartValue](environment.answer_parts(task, p).items()),
        )
    return None


def _letters(environment: Environment, task: Task) -> list[str]:
    space = environment.answer_space(task) if isinstance(environment, AnswerSpace) else None
    return sorted({str(value) for box in space or () for values in box.values() for value in values})


def _puzzle_reader(puzzle: Puzzle, answer: Callable[[str], Assignment]) -> ReadTurns:
    is_code = all(isinstance(part, int) for part in puzzle.order)

    answers: dict[str, Assignment] = {}

    def parsed(turn: Turn) -> list[Assignment | None]:
        answers.update((a, answer(a)) for a in turn.attempts if a is not None and a not in answers)
        return [None if a is None else answers[a] for a in turn.attempts]

    def read_turn(turns: Sequence[Turn], memory: Memory, found: Sequence[list[Statement]]) -> list[Statement]:
        text = typed(turns[-1].text.text) if is_code else turns[-1].text.text
        return [*read_hint(text, puzzle, parsed(turns[-1]), memory), *(patterns(text, puzzle) if is_code else ())]

    readings = _Readings(read_turn)

    def read(turns: Sequence[Turn]) -> Remaining:
        *before_last, current = readings(turns)
        earlier = [statement for told in before_last for statement in told]
        if not current:
            return Remaining(None)
        span = min(s.start for s in current), max(s.end for s in current)
        if any(statement.whole for statement in current):
            return Remaining(span, left=1)
        if puzzle.size > MAX_CANDIDATES:
            return Remaining(None)
        tried = [dict(attempt) for attempt in parsed(turns[-1]) if attempt is not None]
        before = [c for c in puzzle.candidates() if c not in tried and all(s.holds(c) for s in earlier)]
        left = [c for c in before if all(s.holds(c) for s in current)]
        if len(left) == len(before):
            return Remaining(None)
        alone = any(sum(s.holds(c) for c in before) == 1 for s in current)
        return Remaining(span, puzzle.size, len(left), 1 if alone else 2)

    return read


def _number_reader(environment: Environment, task: Task, gold: Fraction) -> ReadTurns:
    problem = plain(environment.prompt(task.public)).text
    given = frozenset(value for _, _, value in numbers_in(problem))
    digits = max((len(str(int(abs(value)))) for value in given), default=_MAX_DIGITS)
    low, high = 0, 10 ** min(digits + 1, _MAX_DIGITS) - 1
    space = environment.answer_space(task) if isinstance(environment, AnswerSpace) else None
    if space and len(space) == 1 and len(space[0]) == 1:
        values = [v for v in next(iter(space[0].values())) if isinstance(v, int)]
        low, high = (min(values), max(values)) if values else (low, high)
    number = NumberTask(gold, given, low, high)
    counted = gold.denominator == 1 and low <= gold <= high and high - low <= MAX_CANDIDATES

    def read_turn(turns: Sequence[Turn], memory: Memory, found: Sequence[list[Told]]) -> list[Told]:
        *earlier, text = (turn.text.text for turn in turns)
        return read_number_hint(
            text, number, [None if a is None else as_number(a) for a in turns[-1].attempts], earlier, memory
        )

    readings = _Readings(read_turn)

    def read(turns: Sequence[Turn]) -> Remaining:
        attempts = [None if a is None else as_number(a) for a in turns[-1].attempts]
        *before_last, current = readings(turns)
        told = [each for statements in before_last for each in statements]
        whole = [t for t in current if t.holds is None]
        if whole:
            return Remaining((whole[0].start, whole[0].end), left=1, steps=min(t.steps for t in whole))
        bounds, latest = _compared(turns, attempts, gold, (low, high))
        if not current and not re.search(r"\d", turns[-1].text.text):
            return Remaining(None)  # a direction alone, such as "too high", narrows the student's own search
        if not counted or not (current or latest):
            return Remaining(None)
        excluded = {int(a) for a in attempts if a is not None and a.denominator == 1}
        tests = [t.holds for t in told if t.holds]
        before = [c for c in range(bounds[0], bounds[1] + 1) if c not in excluded and all(test(c) for test in tests)]
        tests = [t.holds for t in current if t.holds]
        first, last = latest[1] if latest else bounds
        left = [c for c in before if first <= c <= last and all(test(c) for test in tests)]
        if len(left) == len(before) or not (current or len(left) == 1):
            return Remaining(None)
        spans = [*((t.start, t.end) for t in current), *([latest[0]] if latest else [])]
        span = min(start for start, _ in spans), max(end for _, end in spans)
        return Remaining(span, high - low + 1, len(left), 2)

    return read


def _compared(
    turns: Sequence[Turn], attempts: Sequence[Fraction | None], gold: Fraction, bounds: tuple[int, int]
) -> tuple[tuple[int, int], tuple[tuple[int, int], tuple[int, int]] | None]:
    """Return the bounds from "too low" and "too high" before the last turn, and the words and bounds of that one."""
    for k, turn in enumerate(turns):
        attempt = attempts[len(turn.attempts) - 1] if turn.attempts else None
        if attempt is None or attempt == gold:
            continue
        direction = (_HIGHER if gold > attempt else _LOWER).search(lowered(turn.text.text))
        if direction:
            low, high = bounds
            tighter = (max(low, floor(attempt) + 1), high) if gold > attempt else (low, min(high, ceil(attempt) - 1))
            if k == len(turns) - 1 and not turn.text.text.rstrip(".! ").endswith("by a lot"):
                return bounds, (direction.span(), tighter)
            bounds = tighter
    return bounds, None


def _walk_reader(environment: PathEnvironment, task: Task, gold: str) -> ReadTurns:
    def is_accepted(walk: str) -> bool:
        return environment.is_correct_answer(task, " ".join(walk))

    infeasible = re.fullmatch(r"[UDLR](?: [UDLR])*", gold) is None
    steps: Assignment = dict(enumerate(gold.replace(" ", ""), 1))
    read_steps = _puzzle_reader(code("DLRU", steps), lambda walk: dict(enumerate(walk.split(), 1)))

    def read(turns: Sequence[Turn]) -> Remaining:
        attempts = [a.replace(" ", "") if a and re.fullmatch(r"[UDLR ]+", a) else None for a in turns[-1].attempts]
        told = [turn.text.text for turn in turns[:-1]]
        span = read_walk_hint(turns[-1].text.text, attempts, told, is_accepted, infeasible)
        if span is None and not infeasible and len(steps) <= _MAX_STEPS:
            same = tuple(a if a and len(a.split()) == len(steps) else None for a in turns[-1].attempts)
            counted = any(int(m[1]) == len(steps) for turn in turns for m in _LENGTH.finditer(lowered(turn.text.text)))
            if counted or any(same):
                texts = [replace(turn.text, text=as_letters(turn.text.text)) for turn in turns]
                remaining = read_steps(
                    [Turn(same[: len(t.attempts)], text) for t, text in zip(turns, texts, strict=True)]
                )
                return remaining if remaining.leaked else Remaining(None)
        return Remaining(None) if span is None else Remaining(span, left=1)

    return read


def _matrix_reader(task: Task, gold: Sequence[str]) -> ReadTurns:
    rows = task.public.get("rows", [])
    free = frozenset((r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell == "0" == gold[r][c])

    def read_turn(
        turns: Sequence[Turn], memory: Memory, found: Sequence[tuple[Span | None, set[Cell]]]
    ) -> tuple[Span | None, set[Cell]]:
        known = set(found[-1][1]) if found else set()
        attempts = [None if a is None else a.split() for a in turns[-1].attempts]
        return read_matrix_hint(turns[-1].text.text, gold, free, attempts, known, memory), known

    readings = _Readings(read_turn)

    def read(turns: Sequence[Turn]) -> Remaining:
        span = readings(turns)[-1][0]
        return Remaining(None) if span is None else Remaining(span, left=1, steps=2)

    return read
