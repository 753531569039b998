"""Answers made of parts: letters of a code, roles of people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from rl2f_core.leaks.candidates.facts import Fact, Memory, Part, PartValue, Vocabulary
from rl2f_core.leaks.candidates.scan import read_sentence
from rl2f_core.leaks.candidates.text import sentences

Assignment = Mapping[Part, PartValue]
MAX_CANDIDATES = 20_000
"""Larger sets of candidates are not listed."""


@dataclass(frozen=True)
class Statement:
    """A true statement of a hint, as a test of candidates."""

    holds: Callable[[Assignment], bool]
    start: int
    end: int
    whole: bool = False
    """It is an operation that yields the whole answer."""


@dataclass(frozen=True)
class Operation:
    """A change of an attempt that a hint names."""

    start: int
    end: int
    apply: Callable[[dict[Part, PartValue]], dict[Part, PartValue]]
    """Returns the changed attempt; the given one if the operation does not fit it."""


@dataclass(frozen=True)
class Puzzle:
    """A task whose answer has parts, with the vocabulary of its hints."""

    order: tuple[Part, ...]
    values: Mapping[Part, tuple[PartValue, ...]]
    gold: Assignment
    vocabulary: Callable[[Sequence[Assignment | None]], Vocabulary]
    """Returns the words of the task, given the attempts."""
    operations: Callable[[str, int], Iterable[Operation]] = lambda sentence, offset: ()
    """Returns the operations that a sentence names; its offset shifts their spans."""
    spelled: Callable[[str, frozenset[Part]], Iterable[Statement]] = lambda text, known: ()
    """Returns statements of a whole hint, given the parts that are known."""
    is_flipped: bool = False
    """Each part has two values, so that a wrong one is known."""

    @property
    def size(self) -> int:
        """Number of candidates."""
        return prod(len(values) for values in self.values.values())

    def candidates(self) -> Iterator[Assignment]:
        """Yield all answers."""
        for values in product(*(self.values[part] for part in self.order)):
            yield dict(zip(self.order, values, strict=True))


def read_hint(text: str, puzzle: Puzzle, attempts: Sequence[Assignment | None], memory: Memory) -> list[Statement]:
    """Return the true statements of a hint on `attempts`.

    A sentence may have several readings, e.g. about another attempt; the first that is true counts. What is false for
    the gold answer is a wrong reading or a false claim, and contributes nothing.
    """
    vocabulary = puzzle.vocabulary(attempts)
    statements: list[Statement] = []
    placed: dict[Part, PartValue] = {}
    operations: list[Operation] = []
    memory.mentioned, memory.recent = set(), ()
    for start, end in sentences(text):
        sentence = text[start:end]
        for fact in read_sentence(sentence, start, vocabulary, memory):
            statement = _true(fact, puzzle, attempts)
            if statement is not None:
                statements.append(statement)
                if fact.positive and fact.relation == "right":
                    memory.known |= fact.parts
                elif fact.positive and fact.relation == "is":
                    placed.update({part: puzzle.gold[part] for part in fact.parts})
            if fact.command:
                operations.append(Operation(fact.start, fact.end, partial(_apply, fact, puzzle)))
        operations += puzzle.operations(sentence, start)
    statements += puzzle.spelled(text, frozenset(memory.known))
    memory.known |= set(placed)
    whole = _changed(operations, placed, puzzle, attempts)
    return [*statements, whole] if whole else statements


def _changed(
    operations: Sequence[Operation],
    placed: Mapping[Part, PartValue],
    puzzle: Puzzle,
    attempts: Sequence[Assignment | None],
) -> Statement | None:
    """Return the statement that operations lead from an attempt to the answer; None if they do not."""
    gold = dict(puzzle.gold)
    chains = [list(operations)] if puzzle.is_flipped else [list(operations), *([each] for each in operations)]
    for attempt in dict.fromkeys(
        tuple(a.items()) for a in reversed(attempts[-1:] if puzzle.is_flipped else attempts) if a
    ):
        for chain in chains if operations else ():
            changed = dict(attempt)
            for operation in sorted(chain, key=lambda each: each.start):
                changed = operation.apply(changed)
            if changed == dict(attempt):
                continue
            if gold in (changed, {**changed, **placed}):
                return Statement(equals(gold), min(o.start for o in chain), max(o.end for o in chain), whole=True)
    return None


def equals(answer: Assignment) -> Callable[[Assignment], bool]:
    """Return the test whether a candidate is an answer."""
    return lambda c: dict(c) == dict(answer)


def _true(fact: Fact, puzzle: Puzzle, attempts: Sequence[Assignment | None]) -> Statement | None:
    for attempt in reversed(attempts) if attempts else [None]:
        for test in _tests(fact, attempt, puzzle):
            if test(puzzle.gold):
                return Statement(test, fact.start, fact.end)
    return None


def _tests(fact: Fact, attempt: Assignment | None, puzzle: Puzzle) -> Iterator[Callable[[Assignment], bool]]:
    """Yield the meanings of a fact, the strongest first; none if it needs an attempt that there is not."""
    parts, value = fact.parts, fact.value
    match fact.relation:
        case "is":
            yield lambda c: all((c.get(p) == value) == fact.positive for p in parts)
        case "count":
            yield lambda c: sum(v == value for v in c.values()) == fact.count
        case "same":
            yield lambda c: len({c.get(p) for p in parts}) == 1
        case "different":
            yield lambda c: len({c.get(p) for p in parts}) > 1
    if attempt is None:
        return
    a = attempt
    match fact.relation:
        case "right":
            yield lambda c: all((c.get(p) == a.get(p)) == fact.positive for p in parts)
        case "count_right":
            yield lambda c: sum((c.get(p) == v) == fact.positive for p, v in a.items()) == fact.count
        case "exchange":
            exchanged = _apply(fact, puzzle, dict(a))
            if exchanged != dict(a):
                yield lambda c: dict(c) == exchanged
                yield lambda c: all(c.get(p) == exchanged[p] for p in parts)


def _apply(fact: Fact, puzzle: Puzzle, answer: dict[Part, PartValue]) -> dict[Part, PartValue]:
    """Return an attempt after the change that a fact commands."""
    if fact.relation == "exchange":
        one, two = fact.parts
        return {**answer, one: answer[two], two: answer[one]}
    if fact.relation == "right" and not fact.positive and all(len(puzzle.values[p]) == 2 for p in fact.parts):
        other = {p: next(v for v in puzzle.values[p] if v != answer[p]) for p in fact.parts}
        return {**answer, **other}
    return answer
