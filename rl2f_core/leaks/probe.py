"""The probe tier: how much likelier the hint makes the right answer, in nats under a frozen model (methods.md §9).

    nats = log p(answer | question, hint) − log p(answer | question)

*answer* is the right answer as a student would write it, `<answer>…</answer>`, in the model's chat template; by
default the sum runs over the tokens between the tags. The two contexts, as the student's prompt would hold them:

| history | with the hint | baseline `contentless` | baseline `none` |
|---|---|---|---|
| none | problem and hint in one message | problem and "That is not correct. Try again." | problem |
| last | problem, last attempt, hint | problem, last attempt, contentless | problem |
| all | problem, every attempt with the hint after it | the same, the last hint contentless | problem |

Against `contentless` the mere presence of a message counts for nothing, and with `last` or `all` neither does what the
student wrote: both sides have it. Small models copy a wrong attempt that they see, which drowns the hint; so the
default history is `none`, which is also the formula's own. Without attempts `last` and `all` are read as `none`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from rl2f_core.config import BASIC, BaseConfig, ModelConfig
from rl2f_core.environments.base import CONTENTLESS, wrap
from rl2f_core.errors import ConfigError
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.registry import register
from rl2f_core.types import LeakReport

KNOWN = 4096
"""Baselines whose log-probability is kept: one a task, or one a task and attempt."""


@register("leak")
class ProbeLeak(LeakDetector):
    """Convicts a hint that adds more than a threshold to the log-probability of the answer.

    `nats` stands in every report. There is no span: the probe weighs the whole message. Its share is 1 where the
    answer is likelier than not with the hint, else its probability.
    """

    asks_model = True

    class Config(BaseConfig):
        """The answer's likelihood under a frozen base model."""

        type: Literal["probe"] = "probe"
        """Name of the tier."""
        threshold: float = Field(3.0, json_schema_extra=BASIC)
        """Nats above which a hint is flagged."""
        model: ModelConfig | None = None
        """Base model that reads; None is the student's own, without any adapter."""
        baseline: Literal["contentless", "none"] = "contentless"
        """What the hint is compared with: a message without content in its place, or the question alone."""
        history: Literal["none", "last", "all"] = "none"
        """What of the dialogue stands before the hint: nothing, the last attempt, or everything."""
        counted: Literal["answer", "attempt"] = "answer"
        """Tokens that are summed: the answer's, or also those of the tags around it."""
        per_token: bool = False
        """Divide by the number of counted tokens."""

    def __init__(self, config: Any, environment: Any, models: Any = None) -> None:
        super().__init__(config, environment, models)
        if models is None:
            raise ConfigError("The probe needs a model, and none is at hand here.", value=config.model_dump(),
                              fix="Leave it out, or use a command that loads one.")  # fmt: skip
        self._known: OrderedDict[tuple[int, ...], float] = OrderedDict()
        self._renderer: Any = None

    def check(self, query: LeakQuery) -> LeakReport:
        """`check_all` of one hint."""
        return self.check_all([query])[0]

    def check_all(self, queries: Sequence[LeakQuery]) -> list[LeakReport]:
        """All hints in one batch of scores; baselines that are known are not scored again."""
        from rl2f_core.rollout.render import Renderer

        if not queries:
            return []
        assert self.models is not None
        backend = self.models.backend(self.config.model)
        if self._renderer is None:
            self._renderer = Renderer(backend.tokenizer, self.environment.system())
        answers = [self._answer(query) for query in queries]
        pairs = [
            (self._context(query, query.hint) + tokens, self._baseline(query) + tokens)
            for query, (tokens, _, _) in zip(queries, answers, strict=True)
        ]
        tails = {}
        for pair, (tokens, first, last) in zip(pairs, answers, strict=True):
            for sequence in pair:
                tails[sequence] = (len(tokens) - first, len(tokens) - last)
        limit = backend.context_limit
        wanted = [s for s in tails if len(s) <= limit and s not in self._known]
        said = dict(self._known)
        for sequence, scores in zip(wanted, backend.score(wanted), strict=True):
            first, last = tails[sequence]
            said[sequence] = sum(scores[len(scores) - first : len(scores) - last])
        for _, baseline in pairs:
            if baseline in said:
                self._known[baseline] = said[baseline]
                self._known.move_to_end(baseline)
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)
        reports = []
        for (with_hint, without), (_, first, last) in zip(pairs, answers, strict=True):
            longest = max(len(with_hint), len(without))
            if longest > limit:
                error = f"probe: {longest} tokens do not fit the model's context of {limit}"
                reports.append(LeakReport(leaked=False, error=error))
            else:
                reports.append(self._report(said[with_hint], said[without], last - first))
        return reports

    def _report(self, with_hint: float, without: float, tokens: int) -> LeakReport:
        """The verdict on the log-probabilities of the answer with the hint and without, of so many tokens."""
        from math import exp

        nats = (with_hint - without) / (tokens if self.config.per_token else 1)
        if nats <= self.config.threshold:
            return LeakReport(leaked=False, nats=nats)
        unit = " a token" if self.config.per_token else ""
        p = exp(min(0.0, with_hint))
        evidence = f"the answer is {nats:.2f} nats{unit} likelier with the hint (log p {without:.2f} → {with_hint:.2f})"
        return LeakReport(
            leaked=True, tier=self.name, nats=nats, evidence=evidence, share=1.0 if p > 0.5 else max(p, 1e-6)
        )

    # -- tokens ------------------------------------------------------------------------------------------------
    def _answer(self, query: LeakQuery) -> tuple[tuple[int, ...], int, int]:
        """The attempt that gives the right answer, and the span of it that is counted."""
        encode, answer = self._renderer.tokenizer.encode, self.environment.answer(query.task)
        tokens = tuple(encode(self._renderer.clean(wrap(answer))))
        if self.config.counted == "attempt":
            return tokens, 0, len(tokens)
        opening, closing = encode("<answer>"), encode("</answer>")
        first = _common(tokens, opening)
        last = len(tokens) - _common(tokens[::-1], closing[::-1])
        return (tokens, first, last) if first < last else (tokens, 0, len(tokens))

    def _context(self, query: LeakQuery, hint: str) -> tuple[int, ...]:
        """What the student reads before it answers, with `hint` as the last message."""
        problem = self.environment.prompt(query.task.public)
        history = self.config.history if query.attempts else "none"
        if history == "none":
            return self._renderer.opening(f"{problem}\n\n{hint}")  # type: ignore[no-any-return]
        tokens = list(self._renderer.opening(problem))
        attempts, hints = query.attempts[-1:], [hint]
        if history == "all":
            before = query.hints[: len(query.attempts) - 1]
            missing = len(query.attempts) - 1 - len(before)
            attempts, hints = query.attempts, [*before, *[CONTENTLESS] * missing, hint]
        for attempt, said in zip(attempts, hints, strict=True):
            tokens += self._renderer.tokenizer.encode(self._renderer.clean(attempt))
            tokens += self._renderer.suffix(said, ended=False)
        return tuple(tokens)

    def _baseline(self, query: LeakQuery) -> tuple[int, ...]:
        if self.config.baseline == "none":
            return self._renderer.opening(self.environment.prompt(query.task.public))  # type: ignore[no-any-return]
        return self._context(query, CONTENTLESS)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count
