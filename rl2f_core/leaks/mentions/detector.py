"""Detector `mentions`: the probability that a mention of the answer reveals it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config.fields import DETECTOR_REF, ComponentConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import shorten
from rl2f_core.leaks.base import NO_LEAK, LeakDetector, LeakQuery
from rl2f_core.leaks.mentions.features import FEATURES, Dialogue, MentionContext, cue_of, vectors
from rl2f_core.leaks.mentions.finder import Mention, MentionFinder
from rl2f_core.leaks.mentions.model import MentionWeights, read_weights
from rl2f_core.types import LeakReport, LeakType

if TYPE_CHECKING:
    from rl2f_core.models.backends.model_pool import ModelPool


@registry.register("leak_detector")
class MentionsDetector(LeakDetector):
    """Flag a hint whose mentions of the answer reveal it with a probability of at least the threshold.

    A hint that mentions neither the answer nor one of its forms is never flagged. Stated parts of the answer, such as
    one of three roles, count as `Config.partial` says; parts that the student has written never count.
    """

    gives_probability = True
    requires_answer = True

    class Config(ComponentConfig):
        """The answer in any form, asserted."""

        type: Literal["mentions"] = "mentions"
        """Name of the detector."""
        version: Literal[1] = 1
        """Version of the weights of the package and of the features."""
        path: str | None = Field(None, json_schema_extra=DETECTOR_REF)
        """File of weights that `rl2f leaks fit` or the page Labels wrote; None takes the weights of the package."""
        threshold: float | None = Field(None, ge=0, le=1)
        """Probability from which a hint is flagged; None takes the threshold of the weights."""
        partial: float = Field(1.0, ge=0, le=1)
        """Fraction of the answer from which stated parts are flagged: 0 flags any new part, 1 only the whole answer."""

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        self._finder = MentionFinder(environment)
        self.weights = read_weights(config.path)
        self.threshold = self.weights.threshold if config.threshold is None else config.threshold

    def check(self, query: LeakQuery) -> LeakReport:
        """Return a report with the mention that decides and the reasons."""
        found = self._finder.mentions(query)
        if not found:
            return NO_LEAK
        whole = [mention for mention in found if mention.fraction >= 1]
        if whole:
            report = self._report(query, whole)
            if report.leaked or len(whole) == len(found):
                return report
        return self._report_part(query, found[-1])

    def _report(self, query: LeakQuery, found: Sequence[Mention]) -> LeakReport:
        """Report the mentions of the whole answer; the one with the greatest score decides."""
        dialogue = Dialogue(self.environment, query)
        values = vectors(dialogue, found)
        scores = [self.weights.score(value) for value in values]
        probability = self.weights.probability(scores)
        best = max(range(len(found)), key=scores.__getitem__)
        mention, leaked = found[best], probability >= self.threshold
        reasons = self._reasons(MentionContext(dialogue, mention), values[best], leaked)
        kind = LeakType.EXACT if mention.literal else LeakType.EQUIVALENT
        return LeakReport(
            leaked=leaked,
            detector=self.name if leaked else None,
            leak_type=kind if leaked else None,
            span=(mention.start, mention.end) if leaked else None,
            evidence=f"“{shorten(query.hint[mention.start : mention.end], 80)}”: {'; '.join(reasons)}",
            answer_fraction=1.0 if leaked else 0.0,
            leak_probability=round(probability, 4),
            leak_threshold=self.threshold,
        )

    def _reasons(self, context: MentionContext, values: Sequence[float], leaked: bool) -> list[str]:
        """Return the two features that decided, in words."""
        cue = cue_of(context)
        chosen = self.weights.deciding(values, leaked)
        words = [(FEATURES[i].true if values[i] else FEATURES[i].false).format(cue=cue) for i in chosen]
        mention = context.mention
        form = f"states {mention.value}" if mention.is_part else "" if mention.literal else f"reads as {mention.value}"
        return [shorten(form, 80), *words] if form else words

    def _report_part(self, query: LeakQuery, mention: Mention) -> LeakReport:
        """Report stated parts of the answer."""
        leaked = mention.fraction >= self.config.partial
        span = mention.start, mention.end
        return LeakReport(
            leaked=leaked,
            detector=self.name if leaked else None,
            leak_type=LeakType.PARTIAL if leaked else None,
            span=span if leaked else None,
            evidence=f"“{shorten(query.hint[slice(*span)], 80)}” reveals: {shorten(mention.value, 80)}",
            answer_fraction=mention.fraction,
        )


def describe_weights(weights: MentionWeights) -> str:
    """Summarize weights in a sentence."""
    parts = (
        f"{source} {_format(q.precision.value)} / {_format(q.recall.value)} ({q.hints:,} hints)"
        for source, q in weights.report.items()
        if not source.startswith("tutor ")
    )
    return f"{weights.name}: threshold {weights.threshold:.2f}; cross-validated precision / recall: {', '.join(parts)}"


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
