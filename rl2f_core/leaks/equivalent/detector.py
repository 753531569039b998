"""Detector `equivalent`: the hint contains something that the environment's verifier accepts as the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import LeakVocabulary
from rl2f_core.errors import shorten
from rl2f_core.leaks.assertions import asserted, in_score
from rl2f_core.leaks.base import NO_LEAK, LeakDetector, LeakQuery
from rl2f_core.leaks.equivalent import letters, views
from rl2f_core.leaks.equivalent.views import AnswerType, TextView
from rl2f_core.leaks.task_cache import TaskCache
from rl2f_core.leaks.visible_context import already_visible, listed_in, numerals, own_texts, parse_attempt
from rl2f_core.text.normalize import NormalizedText, is_whole, literals, normalize
from rl2f_core.text.tokens import cached
from rl2f_core.types import LeakReport, LeakType, Task

if TYPE_CHECKING:
    from rl2f_core.backends.model_pool import ModelPool

_MAX_CACHED_ATTEMPTS = 64
_MAX_CACHED_ANSWERS = 10_000
_MAX_CACHED_CHARS = 4_000
"""Longest hint whose views are cached."""


class _Match(NamedTuple):
    """A reading that the verifier accepts."""

    start: int
    end: int
    value: str
    loose: bool
    operands: list[str]
    """The numbers that the reading combines."""
    source: str
    """The text of the reading."""


class _Part(NamedTuple):
    """A correct part of the answer that a text states."""

    start: int
    end: int
    name: str
    value: str


class _TaskContext:
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
    def problem_operands(self) -> list[list[str]]:
        """Numbers of each expression in the problem that equals the answer."""
        problem = self.environment.prompt(self.task.public)
        found = self.environment.find_answers(self.task, problem)
        return [numerals(problem[start:end]) for start, end, normal in found if self.is_accepted(normal)]

    def parse_all(self, attempts: Sequence[str]) -> list[str]:
        """Return the attempts that can be parsed, in normal form."""
        return [parsed for attempt in attempts if (parsed := self.parse(attempt)[1]) is not None]

    def integers(self, attempts: Sequence[str]) -> Iterator[int]:
        """Yield the answers of the attempts that are integers."""
        yield from (int(answer) for answer in self.parse_all(attempts) if answer.lstrip("+-").isdecimal())


@registry.register("leak_detector")
class EquivalentDetector(LeakDetector):
    """Flag a hint with an obfuscated answer that the verifier accepts, or with a part of the answer.

    Candidates come from `LeakVocabulary.find_answers` on decoded views of the hint, and from the readers of this
    folder. A reading may begin in the earlier hints; it is then a leak of the new hint.

    Exclusions are those of `exact` and depend on the form: a candidate is visible if the problem or an attempt
    contains its source or normal form. An expression of the problem's own numbers ("38 + 47" for "47 + 38") is never a
    leak. A candidate inside a longer word or number (1024 of 1024.5) does not count. Ambiguous words ("one", Spanish
    "once") count only if the text asserts them.

    Parts of the answer are those of `LeakVocabulary.answer_parts`, found by `stated_parts`. Parts of the student's own
    attempts (`student_parts`) may be confirmed. `answer_fraction` is the fraction of parts that all hints supplied.
    """

    requires = (LeakVocabulary,)
    environment: LeakVocabulary

    class Config(ComponentConfig):
        """The answer in another form."""

        type: Literal["equivalent"] = "equivalent"
        """Name of the detector."""
        partial: float = Field(0.0, ge=0, le=1)
        """Answer fraction from which a hint is a leak: 0 flags any new part, 1 only the whole answer."""

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        self._context = TaskCache(partial(_TaskContext, self.environment))
        """Returns cached facts about a task."""

    def check(self, query: LeakQuery) -> LeakReport:
        """Return a report with the first reading of the whole answer, otherwise with the stated parts."""
        context = self._context(query.task)
        views_ = self._views(context, query.hint)
        matches = [*self._whole(context, query, views_), *self._completed(context, query)]
        return self._report_first(context, query, matches) or self._report_parts(context, query, views_)

    def _whole(self, context: _TaskContext, query: LeakQuery, seen: Sequence[TextView]) -> list[_Match]:
        """Return every accepted reading of the hint."""
        matches: list[_Match] = []
        for view in seen:
            matches += self._candidates(context, view)
            matches += self._numbers(context, query, view) if context.type.integer else self._spelled(context, view)
        return sorted(matches, key=lambda match: match[:2])

    def _numbers(self, context: _TaskContext, query: LeakQuery, view: TextView) -> Iterator[_Match]:
        """Read numbers in other notations, described by other numbers, or implied by bounds."""
        text = view.text
        earlier = partial(self._earlier, context, query)
        for reading, operands in (
            *((reading, []) for reading in views.numbers(view)),
            *views.described(view, context.integers(query.attempts[-1:]), earlier()),
            *((reading, []) for reading in views.bounded(view, earlier(), context.integers(query.attempts))),
        ):
            if reading.start < reading.end and context.is_accepted(reading.value):
                span = text.original(reading.start, reading.end)
                names = sorted(str(abs(n)) for n in operands)
                source = text.text[reading.start : reading.end]
                yield _Match(*span, reading.value, reading.loose or span in view.loose, names, source)

    def _candidates(self, context: _TaskContext, view: TextView) -> Iterator[_Match]:
        """Read the environment's candidates in one view, also reversed if the view mentions reversal."""
        text, letter_count = view.text.text, context.type.letters
        backwards = view.mentions_reversal
        candidates = self.environment.find_answers(context.task, text)
        if backwards and letter_count:
            candidates = [*candidates, *((r.start, r.end, r.value) for r in letters.rows(text, letter_count))]
        numbers: list[tuple[int, int]] | None = None
        for start, end, normal in candidates:
            if start >= end:
                continue
            mirrored = _reversed(normal) if backwards else normal
            correct = context.is_accepted(normal)
            if not correct and not (backwards and context.is_accepted(mirrored)):
                continue
            numbers = literals(text) if numbers is None else numbers
            if is_whole(text, start, end, numbers):
                span = view.text.original(start, end)
                source = text[start:end] if correct else mirrored
                yield _Match(*span, normal if correct else mirrored, span in view.loose, numerals(source), source)

    def _spelled(self, context: _TaskContext, view: TextView, initials: bool = True) -> Iterator[_Match]:
        """Read sequences of letters and, with `initials`, initials."""
        length, text = context.type.letters, view.text.text
        if not length:
            return
        readings = view.cached(("rows", length), lambda: list(letters.rows(text, length)))
        if initials:
            readings = readings + view.cached(("initials", length), lambda: list(letters.initials(text, length)))
        for reading in readings:
            if context.is_accepted(reading.value):
                source = text[reading.start : reading.end]
                yield _Match(*view.text.original(*reading[:2]), reading.value, reading.loose, [], source)

    def _completed(self, context: _TaskContext, query: LeakQuery) -> Iterator[_Match]:
        """Return readings that begin in the earlier hints and end in this one."""
        if not query.hints or not (context.type.digits or context.type.letters):
            return
        hint = normalize(query.hint, fold=False, lines=True)
        joined = views.join_hints(query.hints, hint, context.type)
        if joined is None:
            return
        begin = next((start for char, start in zip(hint.text, hint.starts, strict=True) if char.isalnum()), 0)
        for view in views.views(joined, context.type):
            matches = [*self._candidates(context, view), *self._spelled(context, view, initials=False)]
            yield from (match._replace(start=begin) for match in matches if match.start < 0 and match.end > begin)

    def _report_first(self, context: _TaskContext, query: LeakQuery, matches: Sequence[_Match]) -> LeakReport | None:
        """Report the first match that is not excluded."""
        if not matches:
            return None
        env, problem = self.environment, self.environment.prompt(query.task.public)
        hint: NormalizedText | None = None
        visible: dict[tuple[str, str], bool] = {}
        for start, end, value, loose, operands, source in matches:
            if (len(operands) > 1 and operands in context.problem_operands) or in_score(query.hint, start, end):
                continue
            text = shorten(query.hint[start:end], 80)
            evidence = f"“{text}” reads as {shorten(value, 80)}, which the verifier accepts"
            key = source, value
            if key not in visible:
                texts = (problem, *own_texts(env, query.task, value, query.attempts, query.hint))
                visible[key] = already_visible(env, query.task, source, value, texts) or listed_in(value, problem)
            if loose or visible[key]:
                hint = hint or normalize(query.hint)
                phrase = asserted(hint, *hint.locate(start, end), problem)
                if phrase is None:
                    continue
                evidence = f"asserted as the answer: “{phrase}”"
            return LeakReport(
                leaked=True,
                detector=self.name,
                leak_type=LeakType.EQUIVALENT,
                span=(start, end),
                evidence=evidence,
                answer_fraction=1.0,
            )
        return None

    def _report_parts(self, context: _TaskContext, query: LeakQuery, seen: Sequence[TextView]) -> LeakReport:
        """Report the parts of the answer that this and the earlier hints reveal."""
        correct = self._correct_parts(context, seen)
        if not correct:
            return NO_LEAK
        confirmed = self.environment.student_parts(context.task, context.parse_all(query.attempts))
        new = [part for part in correct if (part.name, part.value) not in confirmed]
        if not new:
            return NO_LEAK
        hints = [seen, *(self._views(context, hint) for hint in query.hints)]
        known = {(part.name, part.value) for hint in hints for part in self._correct_parts(context, hint)}
        num_parts = len(context.parts)
        fraction = 1.0 if len(known) == num_parts else len(known - confirmed) / num_parts
        span = new[0].start, new[0].end
        stated = ", ".join(dict.fromkeys(f"{part.name} is {part.value}" for part in new))
        evidence = f"“{shorten(query.hint[slice(*span)], 80)}” reveals: {shorten(stated, 80)}"
        if fraction < self.config.partial:
            return LeakReport(leaked=False, evidence=evidence, answer_fraction=fraction)
        return LeakReport(
            leaked=True,
            detector=self.name,
            leak_type=LeakType.EQUIVALENT if fraction == 1 else LeakType.PARTIAL,
            span=span,
            evidence=evidence,
            answer_fraction=fraction,
        )

    def _correct_parts(self, context: _TaskContext, seen: Sequence[TextView]) -> list[_Part]:
        """Return the correct parts that a text states, in order; the last statement about a part counts."""
        stated: dict[str, _Part] = {}
        for view in seen:
            for start, end, name, value in self.environment.stated_parts(context.task, view.text.text):
                if start < end:
                    stated[name] = _Part(*view.text.original(start, end), name, value)
        return sorted(part for part in stated.values() if context.parts.get(part.name) == part.value)

    def _views(self, context: _TaskContext, hint: str) -> list[TextView]:
        """Return the decoded views of a hint."""
        if len(hint) > _MAX_CACHED_CHARS:
            return views.views(normalize(hint, fold=False, lines=True), context.type)
        return views.views_of(hint, context.type)

    def _earlier(self, context: _TaskContext, query: LeakQuery) -> Iterator[TextView]:
        """Return the earlier hints with number words as digits."""
        return (self._views(context, hint)[0] for hint in query.hints)


@lru_cache(256)
def _answer_type(answer: str) -> AnswerType:
    tokens = answer.split()
    letters = len(tokens) if all(len(t) == 1 and t.isascii() and t.isalpha() for t in tokens) else 0
    digits = any(c.isdigit() for c in answer)
    return AnswerType(digits, digits and answer.lstrip("+-").isdecimal(), letters)


def _reversed(normal: str) -> str:
    """Reverse a number's digits, or an answer's words."""
    if " " in normal:
        return " ".join(reversed(normal.split()))
    return normal[0] + normal[:0:-1] if normal[:1] in ("+", "-") else normal[::-1]
