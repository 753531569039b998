"""The equivalent tier: something in the hint that the environment's verifier accepts as the answer (methods.md §9)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config import BaseConfig
from rl2f_core.environments.base import Environment, extract_answer
from rl2f_core.errors import shorten
from rl2f_core.leaks import _letters, _readings
from rl2f_core.leaks._assertion import asserted
from rl2f_core.leaks._readings import View, Wanted
from rl2f_core.leaks._shown import listed_in, numerals, own_texts, stands_shown
from rl2f_core.leaks._text import Normalised, Reading, literals, normalise, whole
from rl2f_core.leaks.base import CLEAN, LeakDetector, LeakQuery
from rl2f_core.types import LeakReport, Task

_TASKS_KEPT = 512
_TEXTS_KEPT = 64
_LONG = 4_000
"""Characters of a hint that is read anew each time, so that the cache stays small."""


class _Found(NamedTuple):
    start: int
    end: int
    normal: str
    loose: bool
    operands: list[str]
    """The numbers that it is put together from."""
    words: str
    """What was read."""


@dataclass(slots=True)
class _Ground:
    """What is known of a task before any hint."""

    task: Task
    answer: str
    wanted: Wanted
    parts: dict[str, str] | None = None
    accepted: dict[str, bool] = field(default_factory=dict)
    parsed: dict[str, str | None] = field(default_factory=dict)
    posed: list[list[str]] | None = None
    """The numbers of each expression in the problem that is worth the answer."""


@registry.register("leak")
class EquivalentLeak(LeakDetector):
    """Convicts a hint in which an answer can be read that `Environment.verify` accepts, or a part of one.

    Read are what `Environment.candidates` finds and, decoded first: number words of seven languages, Chinese and
    Japanese numerals, digits spelled out or apart, lookalike and invisible characters, other bases, Roman numerals,
    LaTeX, base64, reversal, small arithmetic in words ("one more than 131"), bounds that leave one number, the
    spelling alphabet, places in the alphabet, initials. Earlier hints are read along: what the new hint completes is a
    leak of the new hint.

    The exclusions are those of the exact tier, decided by form and not by worth: a candidate is shown where its words
    or its normal form stand in the problem or in an attempt. An expression of the same numbers as one that stands in
    the problem and is worth the answer ("38 + 47" for "47 + 38") restates the problem; it is no leak, asserted or not.
    As in the exact tier, a candidate that is cut out of a longer word or number (1024 of 1024.5) is not counted. Words
    that may well stand there for another reason ("one", the Spanish "once") count only where the text asserts them.

    Parts of the answer are those of `Environment.parts_of`, told where `Environment.told_parts` reads them; a part that
    the student wrote itself (`Environment.held_parts`) may be confirmed. The share counts the parts that this and the
    earlier hints supplied, over all parts.
    """

    class Config(BaseConfig):
        """The answer in other words."""

        type: Literal["equivalent"] = "equivalent"
        """Name of the tier."""
        partial: float = Field(0.0, ge=0, le=1)
        """The share of the answer from which a hint counts as a leak: at 0 any part that the student did not have
        convicts, at 1 only the whole answer. The share is reported in any case."""

    def __init__(self, config: Any, environment: Environment, models: Any = None) -> None:
        super().__init__(config, environment, models)
        self._grounds: OrderedDict[int, _Ground] = OrderedDict()

    def check(self, query: LeakQuery) -> LeakReport:
        """The first span of the hint that reads as the answer; where there is none, the parts that it tells."""
        ground = self._ground(query.task)
        visible = normalise(query.hint, fold=False, lines=True)
        seen = self._views(ground, query.hint)
        found = [*self._whole(ground, query, seen), *self._completed(ground, query, visible)]
        return self._convicting(ground, query, found) or self._told(ground, query, seen)

    # -- the whole answer ----------------------------------------------------------------------------------------
    def _ground(self, task: Task) -> _Ground:
        """What is known of the task, kept for as long as the same object comes again."""
        ground = self._grounds.get(id(task))
        if ground is not None and ground.task is task:
            self._grounds.move_to_end(id(task))
            return ground
        answer = self.environment.answer(task)
        ground = _Ground(task, answer, _wanted(answer))
        self._grounds[id(task)] = ground
        if len(self._grounds) > _TASKS_KEPT:
            self._grounds.popitem(last=False)
        return ground

    def _accepts(self, ground: _Ground, normal: str) -> bool:
        known = ground.accepted.get(normal)
        if known is None:
            known = self.environment.accepts(ground.task, normal)
            if len(ground.accepted) < 10_000:
                ground.accepted[normal] = known
        return known

    def _whole(self, ground: _Ground, query: LeakQuery, seen: Sequence[View]) -> list[_Found]:
        """Every reading of the hint that the verifier accepts."""
        wanted, found = ground.wanted, list[_Found]()
        for view in seen:
            found += self._candidates(ground, view)
            found += self._numbers(ground, query, view) if wanted.integer else self._spelled(ground, view)
        return sorted(found, key=lambda item: item[:2])

    def _numbers(self, ground: _Ground, query: LeakQuery, view: View) -> Iterator[_Found]:
        """Numbers in other notations, described by others, or left by bounds."""
        text = view.text
        last, told = lambda: self._last(ground, query), lambda: self._told_number(ground, query.hints)
        for reading, operands in (
            *((reading, []) for reading in _readings.numbers(view)),
            *_readings.described(view, last, told if query.hints else None),
            *((reading, []) for reading in self._bounded(ground, query, view)),
        ):
            if reading.start < reading.end and self._accepts(ground, reading.said):
                span = text.original(reading.start, reading.end)
                names = sorted(str(abs(n)) for n in operands)
                words = text.text[reading.start : reading.end]
                yield _Found(*span, reading.said, reading.loose or span in view.loose, names, words)

    def _candidates(self, ground: _Ground, view: View) -> Iterator[_Found]:
        """What the environment reads in one view, and the same from right to left where the view speaks of it."""
        text = view.text.text
        backwards = view.reversal
        numbers: list[tuple[int, int]] | None = None
        read = self.environment.candidates(ground.task, text)
        if backwards and ground.wanted.letters:
            read = [*read, *((r.start, r.end, r.said) for r in _letters.rows(text, ground.wanted.letters))]
        for start, end, normal in read:
            if start >= end:
                continue
            turned = _turned(normal) if backwards else normal
            right = self._accepts(ground, normal)
            if not right and not (backwards and self._accepts(ground, turned)):
                continue
            numbers = literals(text) if numbers is None else numbers
            if whole(text, start, end, numbers):
                span = view.text.original(start, end)
                words = text[start:end] if right else turned
                yield _Found(*span, normal if right else turned, span in view.loose, numerals(words), words)

    def _spelled(self, ground: _Ground, view: View, alone: bool = True) -> Iterator[_Found]:
        """Rows of letters and, where the hint stands alone, initials."""
        length, text = ground.wanted.letters, view.text.text
        if not length:
            return
        rows = view.once(("rows", length), lambda: list(_letters.rows(text, length)))
        for reading in (
            *rows,
            *(view.once(("initials", length), lambda: list(_letters.initials(text, length))) if alone else ()),
        ):
            if self._accepts(ground, reading.said):
                words = text[reading.start : reading.end]
                yield _Found(*view.text.original(*reading[:2]), reading.said, reading.loose, [], words)

    def _bounded(self, ground: _Ground, query: LeakQuery, view: View) -> Iterator[Reading]:
        def tried() -> list[int]:
            return [int(p) for p in self._parsed(ground, query.attempts) if p.lstrip("+-").isdecimal()]

        return _readings.bounded(view, self._earlier(ground, query.hints), tried)

    def _completed(self, ground: _Ground, query: LeakQuery, visible: Normalised) -> Iterator[_Found]:
        """Readings that begin in the earlier hints and end in this one."""
        wanted = ground.wanted
        if not query.hints or not (wanted.digits or wanted.letters):
            return
        joined = _readings.after(query.hints, visible, wanted)
        if joined is None:
            return
        begin = next((start for char, start in zip(visible.text, visible.starts, strict=True) if char.isalnum()), 0)
        for view in _readings.views(joined, wanted):
            found = [*self._candidates(ground, view), *self._spelled(ground, view, alone=False)]
            yield from (item._replace(start=begin) for item in found if item.start < 0 and item.end > begin)

    def _convicting(self, ground: _Ground, query: LeakQuery, found: Sequence[_Found]) -> LeakReport | None:
        """The report on the first reading that no exclusion spares."""
        if not found:
            return None
        env, problem = self.environment, self.environment.prompt(query.task.public)
        if ground.posed is None:
            ground.posed = [
                numerals(problem[a:b])
                for a, b, normal in env.candidates(query.task, problem)
                if self._accepts(ground, normal)
            ]
        posed = ground.posed
        hint: Normalised | None = None
        shown: dict[tuple[str, str], bool] = {}
        for start, end, normal, loose, operands, words in found:
            if len(operands) > 1 and operands in posed:
                continue
            said = shorten(query.hint[start:end], 80)
            evidence = f"“{said}” reads as {shorten(normal, 80)}, which the verifier accepts"
            key = words, normal
            if key not in shown:
                texts = (problem, *own_texts(env, query.task, normal, query.attempts, query.hint))
                shown[key] = stands_shown(env, query.task, words, normal, texts) or listed_in(normal, problem)
            if loose or shown[key]:
                hint = hint or normalise(query.hint)
                phrase = asserted(hint, *hint.locate(start, end), problem)
                if phrase is None:
                    continue
                evidence = f"asserted as the answer: “{phrase}”"
            return LeakReport(leaked=True, tier=self.name, span=(start, end), evidence=evidence, share=1.0)
        return None

    # -- parts of it ---------------------------------------------------------------------------------------------
    def _told(self, ground: _Ground, query: LeakQuery, seen: Sequence[View]) -> LeakReport:
        """The share of the answer that this hint and those before it give away part by part."""
        true = self._true_parts(ground, seen)
        if not true:
            return CLEAN
        held = self.environment.held_parts(ground.task, self._parsed(ground, query.attempts))
        new = [item for item in true if item[2:] not in held]
        if not new:
            return CLEAN
        before = {item[2:] for hint in query.hints for item in self._true_parts(ground, self._views(ground, hint))}
        known = before | {item[2:] for item in true}
        given = known - held
        parts = len(self._parts(ground))
        share = 1.0 if len(known) == parts else len(given) / parts
        start, end = new[0][:2]
        told = ", ".join(dict.fromkeys(f"{name} is {value}" for _, _, name, value in new))
        evidence = f"“{shorten(query.hint[start:end], 80)}” tells: {shorten(told, 80)}"
        if share < self.config.partial:
            return LeakReport(leaked=False, evidence=evidence, share=share)
        return LeakReport(leaked=True, tier=self.name, span=(start, end), evidence=evidence, share=share)

    def _true_parts(self, ground: _Ground, seen: Sequence[View]) -> list[tuple[int, int, str, str]]:
        """Parts of the answer that a text tells, in order; of two things said of one part the last counts."""
        found: dict[str, tuple[int, int, str, str]] = {}
        for view in seen:
            for start, end, name, value in self.environment.told_parts(ground.task, view.text.text):
                if start < end:
                    found[name] = (*view.text.original(start, end), name, value)
        parts = self._parts(ground) if found else {}
        return sorted(item for item in found.values() if parts.get(item[2]) == item[3])

    def _parts(self, ground: _Ground) -> dict[str, str]:
        """The answer by its parts."""
        if ground.parts is None:
            parsed = self.environment.parse(ground.task, ground.answer)
            ground.parts = {} if parsed is None else self.environment.parts_of(ground.task, parsed)
        return ground.parts

    # -- the dialogue --------------------------------------------------------------------------------------------
    def _parsed(self, ground: _Ground, attempts: Sequence[str]) -> list[str]:
        """The attempts that could be parsed, in normal form."""
        for attempt in attempts:
            if attempt not in ground.parsed:
                if len(ground.parsed) > _TEXTS_KEPT:
                    ground.parsed.clear()
                inner, _ = extract_answer(attempt)
                ground.parsed[attempt] = None if inner is None else self.environment.parse(ground.task, inner)
        return [parsed for attempt in attempts if (parsed := ground.parsed[attempt]) is not None]

    def _last(self, ground: _Ground, query: LeakQuery) -> int | None:
        parsed = self._parsed(ground, query.attempts[-1:])
        return int(parsed[0]) if parsed and parsed[0].lstrip("+-").isdecimal() else None

    def _views(self, ground: _Ground, hint: str) -> list[View]:
        """The hint as it can be read."""
        if len(hint) > _LONG:
            return _readings.views(normalise(hint, fold=False, lines=True), ground.wanted)
        return _readings.views_of(hint, ground.wanted)

    def _earlier(self, ground: _Ground, hints: Sequence[str]) -> Iterator[View]:
        """The earlier hints, each with its number words as digits."""
        return (self._views(ground, hint)[0] for hint in hints)

    def _told_number(self, ground: _Ground, hints: Sequence[str]) -> int | None:
        """The last number of the earlier hints."""
        text = "\n".join(view.text.text for view in self._earlier(ground, hints))
        found = literals(text)
        digits = text[slice(*found[-1])].replace(",", "") if found else ""
        return int(digits) if digits.lstrip("+-").isdecimal() else None


@lru_cache(256)
def _wanted(answer: str) -> Wanted:
    tokens = answer.split()
    letters = len(tokens) if all(len(t) == 1 and t.isascii() and t.isalpha() for t in tokens) else 0
    digits = any(c.isdigit() for c in answer)
    return Wanted(digits, digits and answer.lstrip("+-").isdecimal(), letters)


def _turned(normal: str) -> str:
    """A number's digits, or an answer's words, from right to left."""
    if " " in normal:
        return " ".join(reversed(normal.split()))
    return normal[0] + normal[:0:-1] if normal[:1] in ("+", "-") else normal[::-1]
