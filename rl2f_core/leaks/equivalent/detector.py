"""Detector `equivalent`: the hint contains something that the environment's verifier accepts as the answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import Environment, extract_answer
from rl2f_core.environments.capabilities import LeakVocabulary
from rl2f_core.errors import shorten
from rl2f_core.leaks.assertions import asserted
from rl2f_core.leaks.base import NO_LEAK, LeakDetector, LeakQuery
from rl2f_core.leaks.equivalent import letters, views
from rl2f_core.leaks.equivalent.views import AnswerType, TextView
from rl2f_core.leaks.visible_context import already_visible, listed_in, numerals, own_texts
from rl2f_core.text.normalize import NormalizedText, Reading, literals, normalize, whole
from rl2f_core.types import LeakReport, Task

if TYPE_CHECKING:
    from rl2f_core.backends.model_pool import ModelPool

_MAX_CACHED_TASKS = 512
_MAX_CACHED_ATTEMPTS = 64
_MAX_CACHED_CHARS = 4_000
"""Longest hint whose views are cached."""


class _Match(NamedTuple):
    """A reading that the verifier accepts."""

    start: int
    end: int
    normal: str
    loose: bool
    operands: list[str]
    """The numbers that the reading combines."""
    source: str
    """The text of the reading."""


@dataclass(slots=True)
class _TaskContext:
    """Cached facts about a task."""

    task: Task
    answer: str
    wanted: AnswerType
    parts: dict[str, str] | None = None
    accepted: dict[str, bool] = field(default_factory=dict)
    parsed: dict[str, str | None] = field(default_factory=dict)
    posed: list[list[str]] | None = None
    """Numbers of each expression in the problem that equals the answer."""


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
        self._contexts: OrderedDict[int, _TaskContext] = OrderedDict()

    def check(self, query: LeakQuery) -> LeakReport:
        """Return a report with the first reading of the whole answer, otherwise with the stated parts."""
        context = self._context(query.task)
        visible = normalize(query.hint, fold=False, lines=True)
        seen = self._views(context, query.hint)
        matches = [*self._whole(context, query, seen), *self._completed(context, query, visible)]
        return self._report_first(context, query, matches) or self._stated(context, query, seen)

    def _context(self, task: Task) -> _TaskContext:
        """Return the cached context of a task object."""
        context = self._contexts.get(id(task))
        if context is not None and context.task is task:
            self._contexts.move_to_end(id(task))
            return context
        answer = self.environment.gold_answer(task)
        context = _TaskContext(task, answer, _wanted(answer))
        self._contexts[id(task)] = context
        if len(self._contexts) > _MAX_CACHED_TASKS:
            self._contexts.popitem(last=False)
        return context

    def _accepts(self, context: _TaskContext, normal: str) -> bool:
        known = context.accepted.get(normal)
        if known is None:
            known = self.environment.is_correct_answer(context.task, normal)
            if len(context.accepted) < 10_000:
                context.accepted[normal] = known
        return known

    def _whole(self, context: _TaskContext, query: LeakQuery, seen: Sequence[TextView]) -> list[_Match]:
        """Return every accepted reading of the hint."""
        matches: list[_Match] = []
        for view in seen:
            matches += self._candidates(context, view)
            matches += self._numbers(context, query, view) if context.wanted.integer else self._spelled(context, view)
        return sorted(matches, key=lambda match: match[:2])

    def _numbers(self, context: _TaskContext, query: LeakQuery, view: TextView) -> Iterator[_Match]:
        """Read numbers in other notations, described by other numbers, or implied by bounds."""
        text = view.text
        last, earlier = lambda: self._last(context, query), lambda: self._earlier_number(context, query.hints)
        for reading, operands in (
            *((reading, []) for reading in views.numbers(view)),
            *views.described(view, last, earlier if query.hints else None),
            *((reading, []) for reading in self._bounded(context, query, view)),
        ):
            if reading.start < reading.end and self._accepts(context, reading.said):
                span = text.original(reading.start, reading.end)
                names = sorted(str(abs(n)) for n in operands)
                source = text.text[reading.start : reading.end]
                yield _Match(*span, reading.said, reading.loose or span in view.loose, names, source)

    def _candidates(self, context: _TaskContext, view: TextView) -> Iterator[_Match]:
        """Read the environment's candidates in one view, also reversed if the view mentions reversal."""
        text = view.text.text
        backwards = view.mentions_reversal
        numbers: list[tuple[int, int]] | None = None
        candidates = self.environment.find_answers(context.task, text)
        if backwards and context.wanted.letters:
            candidates = [*candidates, *((r.start, r.end, r.said) for r in letters.rows(text, context.wanted.letters))]
        for start, end, normal in candidates:
            if start >= end:
                continue
            mirrored = _reversed(normal) if backwards else normal
            correct = self._accepts(context, normal)
            if not correct and not (backwards and self._accepts(context, mirrored)):
                continue
            numbers = literals(text) if numbers is None else numbers
            if whole(text, start, end, numbers):
                span = view.text.original(start, end)
                source = text[start:end] if correct else mirrored
                yield _Match(*span, normal if correct else mirrored, span in view.loose, numerals(source), source)

    def _spelled(self, context: _TaskContext, view: TextView, alone: bool = True) -> Iterator[_Match]:
        """Read sequences of letters and, with `alone`, initials."""
        length, text = context.wanted.letters, view.text.text
        if not length:
            return
        rows = view.cached(("rows", length), lambda: list(letters.rows(text, length)))
        for reading in (
            *rows,
            *(view.cached(("initials", length), lambda: list(letters.initials(text, length))) if alone else ()),
        ):
            if self._accepts(context, reading.said):
                source = text[reading.start : reading.end]
                yield _Match(*view.text.original(*reading[:2]), reading.said, reading.loose, [], source)

    def _bounded(self, context: _TaskContext, query: LeakQuery, view: TextView) -> Iterator[Reading]:
        def tried() -> list[int]:
            return [int(p) for p in self._parsed(context, query.attempts) if p.lstrip("+-").isdecimal()]

        return views.bounded(view, self._earlier(context, query.hints), tried)

    def _completed(self, context: _TaskContext, query: LeakQuery, visible: NormalizedText) -> Iterator[_Match]:
        """Return readings that begin in the earlier hints and end in this one."""
        wanted = context.wanted
        if not query.hints or not (wanted.digits or wanted.letters):
            return
        joined = views.join_hints(query.hints, visible, wanted)
        if joined is None:
            return
        begin = next((start for char, start in zip(visible.text, visible.starts, strict=True) if char.isalnum()), 0)
        for view in views.views(joined, wanted):
            matches = [*self._candidates(context, view), *self._spelled(context, view, alone=False)]
            yield from (match._replace(start=begin) for match in matches if match.start < 0 and match.end > begin)

    def _report_first(self, context: _TaskContext, query: LeakQuery, matches: Sequence[_Match]) -> LeakReport | None:
        """Report the first match that is not excluded."""
        if not matches:
            return None
        env, problem = self.environment, self.environment.prompt(query.task.public)
        if context.posed is None:
            context.posed = [
                numerals(problem[a:b])
                for a, b, normal in env.find_answers(query.task, problem)
                if self._accepts(context, normal)
            ]
        hint: NormalizedText | None = None
        visible: dict[tuple[str, str], bool] = {}
        for start, end, normal, loose, operands, source in matches:
            if len(operands) > 1 and operands in context.posed:
                continue
            evidence = (
                f"“{shorten(query.hint[start:end], 80)}” reads as {shorten(normal, 80)}, which the verifier accepts"
            )
            key = source, normal
            if key not in visible:
                texts = (problem, *own_texts(env, query.task, normal, query.attempts, query.hint))
                visible[key] = already_visible(env, query.task, source, normal, texts) or listed_in(normal, problem)
            if loose or visible[key]:
                hint = hint or normalize(query.hint)
                phrase = asserted(hint, *hint.locate(start, end), problem)
                if phrase is None:
                    continue
                evidence = f"asserted as the answer: “{phrase}”"
            return LeakReport(
                leaked=True, detector=self.name, span=(start, end), evidence=evidence, answer_fraction=1.0
            )
        return None

    def _stated(self, context: _TaskContext, query: LeakQuery, seen: Sequence[TextView]) -> LeakReport:
        """Report the parts of the answer that this and the earlier hints reveal."""
        true = self._true_parts(context, seen)
        if not true:
            return NO_LEAK
        confirmed = self.environment.student_parts(context.task, self._parsed(context, query.attempts))
        new = [item for item in true if item[2:] not in confirmed]
        if not new:
            return NO_LEAK
        before = {item[2:] for hint in query.hints for item in self._true_parts(context, self._views(context, hint))}
        known = before | {item[2:] for item in true}
        num_parts = len(self._parts(context))
        fraction = 1.0 if len(known) == num_parts else len(known - confirmed) / num_parts
        start, end = new[0][:2]
        stated = ", ".join(dict.fromkeys(f"{name} is {value}" for _, _, name, value in new))
        evidence = f"“{shorten(query.hint[start:end], 80)}” reveals: {shorten(stated, 80)}"
        if fraction < self.config.partial:
            return LeakReport(leaked=False, evidence=evidence, answer_fraction=fraction)
        return LeakReport(
            leaked=True, detector=self.name, span=(start, end), evidence=evidence, answer_fraction=fraction
        )

    def _true_parts(self, context: _TaskContext, seen: Sequence[TextView]) -> list[tuple[int, int, str, str]]:
        """Return the correct parts that a text states, in order; the last statement about a part counts."""
        stated: dict[str, tuple[int, int, str, str]] = {}
        for view in seen:
            for start, end, name, value in self.environment.stated_parts(context.task, view.text.text):
                if start < end:
                    stated[name] = (*view.text.original(start, end), name, value)
        parts = self._parts(context) if stated else {}
        return sorted(item for item in stated.values() if parts.get(item[2]) == item[3])

    def _parts(self, context: _TaskContext) -> dict[str, str]:
        """Return the parts of the gold answer."""
        if context.parts is None:
            parsed = self.environment.parse(context.task, context.answer)
            context.parts = {} if parsed is None else self.environment.answer_parts(context.task, parsed)
        return context.parts

    def _parsed(self, context: _TaskContext, attempts: Sequence[str]) -> list[str]:
        """Return the attempts that could be parsed, in normal form."""
        for attempt in attempts:
            if attempt not in context.parsed:
                if len(context.parsed) > _MAX_CACHED_ATTEMPTS:
                    context.parsed.clear()
                inner, _ = extract_answer(attempt)
                context.parsed[attempt] = None if inner is None else self.environment.parse(context.task, inner)
        return [parsed for attempt in attempts if (parsed := context.parsed[attempt]) is not None]

    def _last(self, context: _TaskContext, query: LeakQuery) -> int | None:
        parsed = self._parsed(context, query.attempts[-1:])
        return int(parsed[0]) if parsed and parsed[0].lstrip("+-").isdecimal() else None

    def _views(self, context: _TaskContext, hint: str) -> list[TextView]:
        """Return the decoded views of a hint."""
        if len(hint) > _MAX_CACHED_CHARS:
            return views.views(normalize(hint, fold=False, lines=True), context.wanted)
        return views.views_of(hint, context.wanted)

    def _earlier(self, context: _TaskContext, hints: Sequence[str]) -> Iterator[TextView]:
        """Return the earlier hints with number words as digits."""
        return (self._views(context, hint)[0] for hint in hints)

    def _earlier_number(self, context: _TaskContext, hints: Sequence[str]) -> int | None:
        """Return the last number of the earlier hints."""
        text = "\n".join(view.text.text for view in self._earlier(context, hints))
        spans = literals(text)
        digits = text[slice(*spans[-1])].replace(",", "") if spans else ""
        return int(digits) if digits.lstrip("+-").isdecimal() else None


@lru_cache(256)
def _wanted(answer: str) -> AnswerType:
    tokens = answer.split()
    letters = len(tokens) if all(len(t) == 1 and t.isascii() and t.isalpha() for t in tokens) else 0
    digits = any(c.isdigit() for c in answer)
    return AnswerType(digits, digits and answer.lstrip("+-").isdecimal(), letters)


def _reversed(normal: str) -> str:
    """Reverse a number's digits, or an answer's words."""
    if " " in normal:
        return " ".join(reversed(normal.split()))
    return normal[0] + normal[:0:-1] if normal[:1] in ("+", "-") else normal[::-1]
