"""Find the mentions of the answer in a hint: its literal text, other forms of it, and its parts.

A mention says nothing about whether the hint reveals the answer: "look again at 85" and "the answer is 85" both mention
85. `features.py` describes how a hint mentions the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

from rl2f_core.common.text.normalize import is_whole, literals, normalize
from rl2f_core.common.text.tokens import cached
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import LeakVocabulary
from rl2f_core.leaks.assertions import in_score
from rl2f_core.leaks.base import LeakQuery
from rl2f_core.leaks.decoding import letters, views
from rl2f_core.leaks.decoding.views import AnswerType, TextView
from rl2f_core.leaks.exact import find_verbatim
from rl2f_core.leaks.visible_context import numerals, parse_attempt
from rl2f_core.types import Task

MAX_MENTIONS = 50
"""Mentions of a hint that are read; the others repeat the answer."""
_MAX_CACHED_TASKS = 512
_MAX_CACHED_ATTEMPTS = 64
_MAX_CACHED_ANSWERS = 10_000
_MAX_CACHED_CHARS = 4_000
"""Longest hint whose views are cached."""


@dataclass(frozen=True, slots=True)
class Mention:
    """A span of a hint that the verifier accepts as the answer, or that states parts of it."""

    start: int
    end: int
    """Characters [start, end) of the hint."""
    value: str
    """The answer in normal form that the span stands for, or the stated parts."""
    literal: bool = False
    """The span is the text of the gold answer."""
    loose: bool = False
    """The reading is unlikely, such as "one" for 1."""
    operands: tuple[str, ...] = ()
    """The numbers that the reading combines, such as 38 and 47 for "38 + 47"."""
    source: str = ""
    """The decoded text of the span."""
    fraction: float = 1.0
    """Fraction of the answer that this and the earlier hints state; below 1 for parts."""

    @property
    def is_part(self) -> bool:
        """Whether the mention states parts of the answer and not the whole."""
        return not self.source


class _Part(NamedTuple):
    """A correct part of the answer that a text states."""

    start: int
    end: int
    name: str
    value: str


class _TaskFacts:
    """Cached facts about a task."""

    def __init__(self, environment: LeakVocabulary, task: Task) -> None:
        self.environment = environment
        self.task = task
        self.answer = environment.gold_answer(task)
        self.type = _answer_type(self.answer)
        self.is_accepted = cached(_MAX_CACHED_ANSWERS)(partial(environment.is_correct_answer, task))
        """Returns whether the verifier accepts an answer."""
        self.parse = cached(_MAX_CACHED_ATTEMPTS)(partial(parse_attempt, environment, task))

    @cached_property
    def parts(self) -> dict[str, str]:
        """The parts of the gold answer."""
        parsed = self.environment.parse(self.task, self.answer)
        return {} if parsed is None else self.environment.answer_parts(self.task, parsed)

    @cached_property
    def problem_operands(self) -> list[tuple[str, ...]]:
        """Numbers of each expression in the problem that equals the answer."""
        problem = self.environment.prompt(self.task.public)
        found = self.environment.find_answers(self.task, problem)
        return [tuple(numerals(problem[start:end])) for start, end, normal in found if self.is_accepted(normal)]

    def parse_all(self, attempts: Sequence[str]) -> list[str]:
        """Return the attempts that can be parsed, in normal form."""
        return [parsed for attempt in attempts if (parsed := self.parse(attempt)[1]) is not None]

    def integers(self, attempts: Sequence[str]) -> Iterator[int]:
        """Yield the answers of the attempts that are integers."""
        yield from (int(answer) for answer in self.parse_all(attempts) if answer.lstrip("+-").isdecimal())


class MentionFinder:
    """Finds mentions with `LeakVocabulary.find_answers` and `stated_parts` on decoded views of a hint.

    An expression of the problem's own numbers, such as "38 + 47" for "47 + 38", is not a mention. In an environment
    without a leak vocabulary, only the literal answer is one.

    Args:
        environment: Environment of all queries.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._facts: dict[int, _TaskFacts] = {}
        """By identity of the task, the last used one at the end."""

    def mentions(self, query: LeakQuery) -> list[Mention]:
        """Return the mentions of the whole answer in order of their start, then one of all new parts."""
        found: dict[tuple[int, int], Mention] = {}
        answer = self.environment.gold_answer(query.task)
        hint, spans = find_verbatim(answer, query.hint)
        for start, end in spans:
            span = hint.original(start, end)
            found[span] = Mention(*span, answer, True, source=hint.text[start:end])
        if not isinstance(self.environment, LeakVocabulary):
            return _outermost(list(found.values()))[:MAX_MENTIONS]
        facts = self._task_facts(self.environment, query.task)
        seen = self._views(facts, query.hint)
        for mention in [*self._whole(facts, query, seen), *self._completed(facts, query)]:
            if len(mention.operands) > 1 and mention.operands in facts.problem_operands:
                continue
            known = found.get((mention.start, mention.end))
            if known is None or (known.loose and not mention.loose):
                found[mention.start, mention.end] = mention
        whole = [mention for mention in found.values() if not in_score(query.hint, mention.start, mention.end)]
        return [*_outermost(whole)[:MAX_MENTIONS], *self._parts(facts, query, seen)]

    def _task_facts(self, environment: LeakVocabulary, task: Task) -> _TaskFacts:
        """Return the facts about a task, from the cache if possible."""
        facts = self._facts.pop(id(task), None)
        if facts is None or facts.task is not task:
            facts = _TaskFacts(environment, task)
        self._facts[id(task)] = facts
        if len(self._facts) > _MAX_CACHED_TASKS:
            del self._facts[next(iter(self._facts))]
        return facts

    def _whole(self, facts: _TaskFacts, query: LeakQuery, seen: Sequence[TextView]) -> Iterator[Mention]:
        """Yield every accepted reading of the hint."""
        for view in seen:
            yield from self._candidates(facts, view)
            yield from self._numbers(facts, query, view) if facts.type.integer else self._spelled(facts, view)

    def _numbers(self, facts: _TaskFacts, query: LeakQuery, view: TextView) -> Iterator[Mention]:
        """Read numbers in other notations, described by other numbers, or implied by bounds."""
        text = view.text
        earlier = partial(self._earlier, facts, query)
        for reading, operands in (
            *((reading, []) for reading in views.numbers(view)),
            *views.described(view, facts.integers(query.attempts[-1:]), earlier()),
            *((reading, []) for reading in views.bounded(view, earlier(), facts.integers(query.attempts))),
        ):
            if reading.start < reading.end and facts.is_accepted(reading.value):
                span = text.original(reading.start, reading.end)
                names = tuple(sorted(str(abs(n)) for n in operands))
                source = text.text[reading.start : reading.end]
                yield Mention(*span, reading.value, False, reading.loose or span in view.loose, names, source)

    def _candidates(self, facts: _TaskFacts, view: TextView) -> Iterator[Mention]:
        """Read the environment's candidates in one view, also reversed if the view mentions reversal."""
        text, letter_count = view.text.text, facts.type.letters
        backwards = view.mentions_reversal
        candidates = facts.environment.find_answers(facts.task, text)
        if backwards and letter_count:
            candidates = [*candidates, *((r.start, r.end, r.value) for r in letters.rows(text, letter_count))]
        numbers: list[tuple[int, int]] | None = None
        for start, end, normal in candidates:
            if start >= end:
                continue
            mirrored = _reversed(normal) if backwards else normal
            correct = facts.is_accepted(normal)
            if not correct and not (backwards and facts.is_accepted(mirrored)):
                continue
            numbers = literals(text) if numbers is None else numbers
            if is_whole(text, start, end, numbers):
                span = view.text.original(start, end)
                source = text[start:end] if correct else mirrored
                value = normal if correct else mirrored
                yield Mention(*span, value, False, span in view.loose, tuple(numerals(source)), source)

    def _spelled(self, facts: _TaskFacts, view: TextView, initials: bool = True) -> Iterator[Mention]:
        """Read sequences of letters and, with `initials`, initials."""
        length, text = facts.type.letters, view.text.text
        if not length:
            return
        readings = view.cached(("rows", length), lambda: list(letters.rows(text, length)))
        if initials:
            readings = readings + view.cached(("initials", length), lambda: list(letters.initials(text, length)))
        for reading in readings:
            if facts.is_accepted(reading.value):
                span = view.text.original(*reading[:2])
                yield Mention(*span, reading.value, False, reading.loose, (), text[reading.start : reading.end])

    def _completed(self, facts: _TaskFacts, query: LeakQuery) -> Iterator[Mention]:
        """Yield readings that begin in the earlier hints and end in this one."""
        if not query.hints or not (facts.type.digits or facts.type.letters):
            return
        hint = normalize(query.hint, fold=False, lines=True)
        joined = views.join_hints(query.hints, hint, facts.type)
        if joined is None:
            return
        begin = next((start for char, start in zip(hint.text, hint.starts, strict=True) if char.isalnum()), 0)
        for view in views.views(joined, facts.type):
            for mention in [*self._candidates(facts, view), *self._spelled(facts, view, initials=False)]:
                if mention.start < 0 and mention.end > begin:
                    yield Mention(begin, mention.end, mention.value, False, mention.loose, (), mention.source)

    def _parts(self, facts: _TaskFacts, query: LeakQuery, seen: Sequence[TextView]) -> Iterator[Mention]:
        """Yield one mention of the correct parts that the hint states and the student has not written."""
        correct = self._correct_parts(facts, seen)
        if not correct:
            return
        confirmed = facts.environment.student_parts(facts.task, facts.parse_all(query.attempts))
        new = [part for part in correct if (part.name, part.value) not in confirmed]
        if not new:
            return
        hints = [seen, *(self._views(facts, hint) for hint in query.hints)]
        known = {(part.name, part.value) for hint in hints for part in self._correct_parts(facts, hint)}
        fraction = 1.0 if len(known) == len(facts.parts) else len(known - confirmed) / len(facts.parts)
        stated = ", ".join(dict.fromkeys(f"{part.name} is {part.value}" for part in new))
        yield Mention(new[0].start, new[0].end, stated, fraction=fraction)

    def _correct_parts(self, facts: _TaskFacts, seen: Sequence[TextView]) -> list[_Part]:
        """Return the correct parts that a text states, in order; the last statement about a part counts."""
        stated: dict[str, _Part] = {}
        for view in seen:
            for start, end, name, value in facts.environment.stated_parts(facts.task, view.text.text):
                if start < end:
                    stated[name] = _Part(*view.text.original(start, end), name, value)
        return sorted(part for part in stated.values() if facts.parts.get(part.name) == part.value)

    def _views(self, facts: _TaskFacts, hint: str) -> list[TextView]:
        """Return the decoded views of a hint."""
        if len(hint) > _MAX_CACHED_CHARS:
            return views.views(normalize(hint, fold=False, lines=True), facts.type)
        return views.views_of(hint, facts.type)

    def _earlier(self, facts: _TaskFacts, query: LeakQuery) -> Iterator[TextView]:
        """Yield the earlier hints with number words as digits."""
        return (self._views(facts, hint)[0] for hint in query.hints)


def _outermost(mentions: Sequence[Mention]) -> list[Mention]:
    """Return the mentions in order, without those inside a longer one of the same answer."""
    kept: list[Mention] = []
    for mention in sorted(mentions, key=lambda item: (item.start, -item.end)):
        if not kept or mention.end > kept[-1].end:
            kept.append(mention)
    return kept


@lru_cache(256)
def _answer_type(answer: str) -> AnswerType:
    tokens = answer.split()
    letter_count = len(tokens) if all(len(t) == 1 and t.isascii() and t.isalpha() for t in tokens) else 0
    digits = any(c.isdigit() for c in answer)
    return AnswerType(digits, digits and answer.lstrip("+-").isdecimal(), letter_count)


def _reversed(normal: str) -> str:
    """Reverse a number's digits, or an answer's words."""
    if " " in normal:
        return " ".join(reversed(normal.split()))
    return normal[0] + normal[:0:-1] if normal[:1] in ("+", "-") else normal[::-1]
