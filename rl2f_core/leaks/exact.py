"""The exact tier: the answer itself, in normal form, stands in the hint as a whole token or span (methods.md §9)."""

from __future__ import annotations

from typing import Literal

from rl2f_core import registry
from rl2f_core.config import BaseConfig
from rl2f_core.leaks._assertion import asserted
from rl2f_core.leaks._shown import listed_in, own_texts
from rl2f_core.leaks._text import find, normalise
from rl2f_core.leaks.base import CLEAN, LeakDetector, LeakQuery
from rl2f_core.types import LeakReport


@registry.register("leak")
class ExactLeak(LeakDetector):
    """Convicts a hint in which `Environment.answer` stands.

    An answer that already stands in the problem or in the student's own attempts convicts only where the hint asserts
    it as the answer. The last attempt as a whole is wrong, so it is never the answer; but its reasoning, or an attempt
    that broke the answer format, may hold the answer, and then the student wrote it. Earlier hints show nothing: a
    leak that is repeated is still a leak. Case, white space and Unicode form do not matter, but an answer of one
    letter is looked for in its own case, so that the article "a" is not the letter A.
    """

    class Config(BaseConfig):
        """The answer word for word."""

        type: Literal["exact"] = "exact"
        """Name of the tier."""

    def check(self, query: LeakQuery) -> LeakReport:
        """The first span of the hint that gives the answer."""
        answer = self.environment.answer(query.task)
        fold = len(answer.strip()) > 1
        value = normalise(answer, fold).text
        hint = normalise(query.hint, fold)
        spans = find(value, hint)
        if not spans:
            return CLEAN
        problem = self.environment.prompt(query.task.public)
        texts = (problem, *own_texts(self.environment, query.task, answer, query.attempts, query.hint))
        shown = any(find(value, normalise(text, fold)) for text in texts) or listed_in(answer, problem)
        for start, end in spans:
            words = asserted(hint, start, end, problem) if shown else None
            if words is None and shown:
                continue
            span = hint.original(start, end)
            found = query.hint[slice(*span)]
            evidence = f"asserted as the answer: “{words}”" if words else f"the answer “{found}” stands in the hint"
            return LeakReport(leaked=True, tier=self.name, span=span, evidence=evidence, share=1.0)
        return CLEAN
