"""The equivalent tier: something in the hint that the environment's verifier accepts as the answer (methods.md §9)."""

from __future__ import annotations

from functools import cache
from typing import Literal

from rl2f_core import registry
from rl2f_core.config import BaseConfig
from rl2f_core.environments.base import wrap
from rl2f_core.errors import shorten
from rl2f_core.leaks._assertion import asserted
from rl2f_core.leaks._text import NUMBER, literals, normalise, stands_in, whole
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.types import LeakReport


@registry.register("leak")
class EquivalentLeak(LeakDetector):
    """Convicts a hint in which `Environment.candidates` reads an answer that `Environment.verify` accepts.

    The exclusions are those of the exact tier, decided by form and not by worth: a candidate is shown where its words
    or its normal form stand in the problem or in an attempt. An expression of the same numbers as one that stands in
    the problem and is worth the answer ("38 + 47" for "47 + 38") restates the problem; it is no leak, asserted or not.
    As in the exact tier, a candidate that is cut out of a longer word or number (1024 of 1024.5) is not counted.
    """

    class Config(BaseConfig):
        """The answer in other words."""

        type: Literal["equivalent"] = "equivalent"
        """Name of the tier."""

    def check(self, query: LeakQuery) -> LeakReport:
        """The first span of the hint that reads as the answer."""
        problem = self.environment.prompt(query.task.public)
        accepts = cache(lambda normal: self.environment.verify(query.task, wrap(normal)).correct)
        shown = cache(lambda words, normal: self._shown(query, problem, words, normal))
        candidates = self.environment.candidates
        visible = normalise(query.hint, fold=False, lines=True)
        numbers = literals(visible.text)
        found = []
        for start, end, normal in candidates(query.task, visible.text):
            if start < end and accepts(normal) and whole(visible.text, start, end, numbers):
                found.append((*visible.original(start, end), normal))
        if not found:
            return LeakReport(leaked=False)
        hint = normalise(query.hint)
        posed = [_numbers(problem[a:b]) for a, b, normal in candidates(query.task, problem) if accepts(normal)]
        for start, end, normal in found:
            words = query.hint[start:end]
            operands = _numbers(words)
            if len(operands) > 1 and operands in posed:
                continue
            evidence = f"“{shorten(words, 80)}” reads as {shorten(normal, 80)}, which the verifier accepts"
            if shown(words, normal):
                phrase = asserted(hint, *hint.locate(start, end), problem)
                if phrase is None:
                    continue
                evidence = f"asserted as the answer: “{phrase}”"
            return LeakReport(leaked=True, tier=self.name, span=(start, end), evidence=evidence, share=1.0)
        return LeakReport(leaked=False)

    def _shown(self, query: LeakQuery, problem: str, words: str, normal: str) -> bool:
        """Do its words, its normal form, or the same number in another notation stand in what the student has?"""
        for text in (problem, *query.attempts):
            if stands_in(words, text) or stands_in(normal, text):
                return True
            for start, end, other in self.environment.candidates(query.task, text):
                if other == normal and len(_numbers(text[start:end])) == 1:
                    return True
        return False


def _numbers(words: str) -> list[str]:
    """The numeric literals without their signs, sorted."""
    return sorted(match[0].lstrip("+-") for match in NUMBER.finditer(normalise(words).text))
