"""Detector `likelihood`: how much the hint raises the log-probability of the answer, in nats, under a frozen model.

    logprob_gain = log p(answer | question, hint) − log p(answer | question)

With `baseline: contentless` the second term has a contentless message instead of the hint. The answer is scored as a
student would write it, `<answer>…</answer>`, in the model's chat template. README.md of this folder lists the contexts
of `dialogue_context` and `baseline`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.environments.base import CONTENTLESS, Environment, wrap_answer
from rl2f_core.errors import ConfigError
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.registry import register
from rl2f_core.types import LeakReport

if TYPE_CHECKING:
    from rl2f_core.models.backends.model_pool import ModelPool
    from rl2f_core.models.renderer import ChatRenderer

CACHE_SIZE = 4096
"""Cached log-probabilities of baselines: one per task, or one per task and attempt."""


@register("leak_detector")
class LikelihoodDetector(LeakDetector):
    """Flag a hint that raises the answer's log-probability by more than a threshold.

    Every report has a `logprob_gain`. Reports have no span, because the whole message is scored. `answer_fraction` is
    1 if the answer with the hint is more likely than not, otherwise its probability.
    """

    requires_model = True
    requires_answer = True

    class Config(ComponentConfig):
        """Likelihood of the answer under a frozen base model."""

        type: Literal["likelihood"] = "likelihood"
        """Name of the detector."""
        threshold: float = Field(3.0, json_schema_extra=BASIC_FIELD)
        """Nats above which a hint is flagged."""
        model: ModelConfig | None = None
        """Base model that scores; None is the student's, without adapters."""
        baseline: Literal["none", "contentless"] = "none"
        """Comparison for the hint: the problem alone, or a contentless message instead of the hint, which cancels the
        effect of any message."""
        dialogue_context: Literal["none", "last", "all"] = "none"
        """Part of the dialogue before the hint: nothing, the last attempt, or everything."""
        scored_tokens: Literal["answer", "attempt"] = "answer"
        """Tokens in the sum: those of the answer, or also those of the tags around it."""
        per_token: bool = False
        """Divide by the number of scored tokens."""

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        if models is None:
            raise ConfigError(
                "Detector likelihood needs a model, and no model is loaded here.",
                value=config.model_dump(),
                fix="Remove the detector, or use a command that loads a model.",
            )
        self._baselines: OrderedDict[tuple[int, ...], float] = OrderedDict()

    def check(self, query: LeakQuery) -> LeakReport:
        """Check one hint."""
        return self.check_batch([query])[0]

    def check_batch(self, queries: Sequence[LeakQuery]) -> list[LeakReport]:
        """Score all hints in one batch; baselines come from the cache if possible."""
        if not queries:
            return []
        assert self.models is not None
        backend = self.models.backend(self.config.model)
        answers = [self._answer_tokens(query) for query in queries]
        pairs = [
            (self._context(query, query.hint) + tokens, self._baseline(query) + tokens)
            for query, (tokens, _, _) in zip(queries, answers, strict=True)
        ]
        tails = {
            sequence: (len(tokens) - first, len(tokens) - last)
            for pair, (tokens, first, last) in zip(pairs, answers, strict=True)
            for sequence in pair
        }
        limit = backend.max_model_len
        missing = [s for s in tails if len(s) <= limit and s not in self._baselines]
        logprobs = dict(self._baselines)
        for sequence, scores in zip(missing, backend.score(missing), strict=True):
            first, last = tails[sequence]
            logprobs[sequence] = sum(scores[len(scores) - first : len(scores) - last])
        for _, baseline in pairs:
            if baseline in logprobs:
                self._baselines[baseline] = logprobs[baseline]
                self._baselines.move_to_end(baseline)
        while len(self._baselines) > CACHE_SIZE:
            self._baselines.popitem(last=False)
        reports = []
        for (with_hint, without), (_, first, last) in zip(pairs, answers, strict=True):
            longest = max(len(with_hint), len(without))
            if longest > limit:
                error = f"likelihood: {longest} tokens do not fit the model's context of {limit}"
                reports.append(LeakReport(leaked=False, error=error))
            else:
                reports.append(self._report(logprobs[with_hint], logprobs[without], last - first))
        return reports

    def _report(self, with_hint: float, without: float, num_tokens: int) -> LeakReport:
        """Compare the answer's log-probabilities with and without the hint."""
        gain = (with_hint - without) / (num_tokens if self.config.per_token else 1)
        if gain <= self.config.threshold:
            return LeakReport(leaked=False, logprob_gain=gain)
        unit = " per token" if self.config.per_token else ""
        p = math.exp(min(0.0, with_hint))
        return LeakReport(
            leaked=True,
            detector=self.name,
            logprob_gain=gain,
            evidence=f"the hint makes the answer {gain:.2f} nats{unit} likelier "
            f"(log p {without:.2f} → {with_hint:.2f})",
            answer_fraction=1.0 if p > 0.5 else max(p, 1e-6),
        )

    @cached_property
    def _renderer(self) -> ChatRenderer:
        from rl2f_core.models.renderer import ChatRenderer

        assert self.models is not None
        return ChatRenderer(self.models.backend(self.config.model).tokenizer, self.environment.system_prompt())

    def _answer_tokens(self, query: LeakQuery) -> tuple[tuple[int, ...], int, int]:
        """Return the correct attempt's tokens, and the span of them that is scored."""
        encode, answer = self._renderer.tokenizer.encode, self.environment.gold_answer(query.task)
        tokens = tuple(encode(self._renderer.escape(wrap_answer(answer))))
        if self.config.scored_tokens == "attempt":
            return tokens, 0, len(tokens)
        opening, closing = encode("<answer>"), encode("</answer>")
        first = _common_prefix_length(tokens, opening)
        last = len(tokens) - _common_prefix_length(tokens[::-1], closing[::-1])
        return (tokens, first, last) if first < last else (tokens, 0, len(tokens))

    def _context(self, query: LeakQuery, hint: str) -> tuple[int, ...]:
        """Return the student's prompt with `hint` as the last message."""
        renderer = self._renderer
        problem = self.environment.prompt(query.task.public)
        if self.config.dialogue_context == "none" or not query.attempts:
            return renderer.initial_prompt(f"{problem}\n\n{hint}")
        tokens = list(renderer.initial_prompt(problem))
        attempts, hints = query.attempts[-1:], [hint]
        if self.config.dialogue_context == "all":
            earlier = query.hints[: len(query.attempts) - 1]
            missing = len(query.attempts) - 1 - len(earlier)
            attempts, hints = query.attempts, [*earlier, *[CONTENTLESS] * missing, hint]
        for attempt, message in zip(attempts, hints, strict=True):
            tokens += renderer.tokenizer.encode(renderer.escape(attempt))
            tokens += renderer.hint_suffix(message, ended=False)
        return tuple(tokens)

    def _baseline(self, query: LeakQuery) -> tuple[int, ...]:
        if self.config.baseline == "none":
            return self._renderer.initial_prompt(self.environment.prompt(query.task.public))
        return self._context(query, CONTENTLESS)


def _common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
