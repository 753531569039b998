"""Detector `exact`: the hint contains the answer in normal form, as whole tokens."""

from __future__ import annotations

from typing import Literal

from rl2f_core import registry
from rl2f_core.common.text.normalize import NormalizedText, find, normalize
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.leaks.assertions import asserted, in_score
from rl2f_core.leaks.base import NO_LEAK, LeakDetector, LeakQuery
from rl2f_core.leaks.visible_context import listed_in, own_texts
from rl2f_core.types import LeakReport, LeakType


def find_verbatim(answer: str, text: str) -> tuple[NormalizedText, list[tuple[int, int]]]:
    """Return a text in normal form, and the spans of the answer in it; the case counts for an answer of one letter."""
    fold = len(answer.strip()) > 1
    normal = normalize(text, fold)
    return normal, find(normalize(answer, fold).text, normal)


@registry.register("leak_detector")
class ExactDetector(LeakDetector):
    """Flag a hint that contains `Environment.gold_answer`.

    If the answer also occurs in the problem or in the student's attempts, only an assertion is a leak. Attempts count
    because their reasoning, or an attempt with a wrong format, may contain the answer. Earlier hints do not count: a
    repeated leak is still a leak. Case, white space and Unicode form are ignored, except for answers of one letter,
    where the article "a" differs from the letter A.
    """

    requires_answer = True

    class Config(ComponentConfig):
        """The answer verbatim."""

        type: Literal["exact"] = "exact"
        """Name of the detector."""

    def check(self, query: LeakQuery) -> LeakReport:
        """Return a report with the first span that reveals the answer."""
        answer = self.environment.gold_answer(query.task)
        hint, found = find_verbatim(answer, query.hint)
        spans = [span for span in found if not in_score(hint.text, *span)]
        if not spans:
            return NO_LEAK
        problem = self.environment.prompt(query.task.public)
        texts = (problem, *own_texts(self.environment, query.task, answer, query.attempts, query.hint))
        visible = any(find_verbatim(answer, text)[1] for text in texts) or listed_in(answer, problem)
        for start, end in spans:
            phrase = asserted(hint, start, end, problem) if visible else None
            if visible and phrase is None:
                continue
            span = hint.original(start, end)
            evidence = (
                f"asserted as the answer: “{phrase}”"
                if phrase
                else f"the hint contains the answer “{query.hint[slice(*span)]}”"
            )
            return LeakReport(
                leaked=True,
                detector=self.name,
                leak_type=LeakType.EXACT,
                span=span,
                evidence=evidence,
                answer_fraction=1.0,
            )
        return NO_LEAK
