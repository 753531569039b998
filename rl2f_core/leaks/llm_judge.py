"""Detector `llm_judge`: a language model judges whether the hint gives the decisive step, and quotes it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from rl2f_core import registry
from rl2f_core.config.components import LLMConfig, by_name
from rl2f_core.config.fields import FILE_REF, ComponentConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import FieldValueError, shorten
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.leaks.judge_output import Judgement, locate_quote, read_judgement
from rl2f_core.llms.base import ChatRequest, Completion
from rl2f_core.paths import PROMPTS
from rl2f_core.teachers.prompt_templates import load
from rl2f_core.types import LeakReport, Message

if TYPE_CHECKING:
    from rl2f_core.backends.model_pool import ModelPool

SINGLE_VOTE_TEMPERATURE = 0.01
"""Practically greedy; samplers divide by the temperature, so it cannot be 0."""
MULTI_VOTE_TEMPERATURE = 0.7
"""High enough for several votes to differ."""
MAX_TEXT_CHARS = 4000
"""Characters of each text in the judge's prompt."""
UNREADABLE = "the judge's answer is not of the required form"


@registry.register("leak_detector")
class LLMJudgeDetector(LeakDetector):
    """Ask a model with question, answer, attempts and hint for a verdict with a quotation.

    A verdict "leak" counts if the hint contains its quotation verbatim, and problem and attempts do not. The span is
    that of the quotation; `answer_fraction` is 1. If the judge fails or answers in another form, the hint is unchecked
    (`LeakReport.error`).
    """

    requires_model = True
    runs_async = True

    class Config(ComponentConfig):
        """The decisive step, judged by a language model."""

        type: Literal["llm_judge"] = "llm_judge"
        """Name of the detector."""
        llm: LLMConfig = Field(by_name("local"))
        """The judge; the default is the student's base model."""
        prompt: str | None = Field(None, json_schema_extra=FILE_REF)
        """Prompt template, a .txt file with fields problem, answer, attempts, hint and mark; None is the default."""
        votes: int = Field(1, ge=1, le=99)
        """Number of votes, odd; the majority decides."""
        temperature: float | None = Field(None, gt=0, le=2)
        """Sampling temperature of the judge; None is 0.01 for one vote and 0.7 for several."""
        max_new_tokens: int = Field(80, ge=8)
        """Maximum number of tokens of one verdict."""
        on_unverified_quote: Literal["clean", "flag", "error"] = "clean"
        """Result of a verdict "leak" with an unverified quotation: no leak, a leak, or an error."""

        @model_validator(mode="after")
        def _check_votes(self) -> LLMJudgeDetector.Config:
            if self.votes % 2 == 0:
                raise FieldValueError(f"votes {self.votes} can end in a tie; take an odd number", "votes")
            return self

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        self.judge = registry.get("llm", config.llm.type)(config.llm, models)
        self.prompt = load(config.prompt or str(PROMPTS / "judges" / "derivation.txt"))
        self.temperature = config.temperature or (
            SINGLE_VOTE_TEMPERATURE if config.votes == 1 else MULTI_VOTE_TEMPERATURE
        )

    def check(self, query: LeakQuery) -> LeakReport:
        """Check one hint."""
        return self.check_batch([query])[0]

    def check_batch(self, queries: Sequence[LeakQuery]) -> list[LeakReport]:
        """Request all votes on all hints in one batch; seeds depend on the prompt, not on the position."""
        votes = self.config.votes
        prompts = [self._prompt(query) for query in queries]
        requests = [
            ChatRequest(messages, _seed(messages[-1]["content"], vote)) for messages in prompts for vote in range(votes)
        ]
        if not requests:
            return []
        completions = self.judge.complete(
            requests, max_new_tokens=self.config.max_new_tokens, temperature=self.temperature
        )
        return [self._decide(query, completions[i * votes : (i + 1) * votes]) for i, query in enumerate(queries)]

    def _prompt(self, query: LeakQuery) -> tuple[Message, ...]:
        """Fill in the template; `mark` delimits the texts and occurs in none of them."""
        attempts = "\n\n".join(shorten(text, MAX_TEXT_CHARS) for text in query.attempts[-3:]) or "(nothing)"
        texts = {
            "problem": shorten(self.environment.prompt(query.task.public), MAX_TEXT_CHARS),
            "answer": shorten(self.environment.gold_answer(query.task), MAX_TEXT_CHARS),
            "attempts": attempts,
            "hint": shorten(query.hint, MAX_TEXT_CHARS),
        }
        mark = ""
        while not mark or any(mark in text for text in texts.values()):
            mark = hashlib.sha256("\0".join([mark, *texts.values()]).encode("utf-8", "replace")).hexdigest()[:12]
        return self.prompt.render({"mark": mark, **texts})

    def _decide(self, query: LeakQuery, votes: Sequence[Completion]) -> LeakReport:
        """Return the majority's verdict, or an error if there is no majority."""
        visible = (self.environment.prompt(query.task.public), *query.attempts)
        leaks: list[tuple[tuple[int, int] | None, str]] = []
        num_clean, unverified, error = 0, "", UNREADABLE
        for vote in votes:
            judgement = read_judgement(vote.text) if vote.error is None else None
            if judgement is None:
                error = vote.error or UNREADABLE
                continue
            span = locate_quote(judgement.quote, query.hint, visible) if judgement.leaks else None
            if judgement.leaks and (span or self.config.on_unverified_quote == "flag"):
                leaks.append((span, judgement.quote))
            elif judgement.leaks and self.config.on_unverified_quote == "error":
                error = _describe_unverified(judgement)
            else:
                unverified = _describe_unverified(judgement) if judgement.leaks else unverified
                num_clean += 1
        by = f"{self.judge.name}, {self.prompt.version}"
        if 2 * len(leaks) > len(votes):
            span, quote = next((leak for leak in leaks if leak[0]), leaks[0])
            count = f", {len(leaks)} of {len(votes)} votes" if len(votes) > 1 else ""
            text = query.hint[slice(*span)] if span else f"unverified quote: {shorten(quote, 200)}"
            evidence = f"“{shorten(text, 200)}” ({by}{count})"
            return LeakReport(leaked=True, detector=self.name, span=span, evidence=evidence, answer_fraction=1.0)
        if 2 * num_clean > len(votes):
            return LeakReport(leaked=False, evidence=f"{unverified} ({by})" if unverified else "")
        return LeakReport(leaked=False, error=f"llm_judge: {error} ({by})")


def _describe_unverified(judgement: Judgement) -> str:
    if not judgement.quote:
        return "unverified quote: judged a leak without a quotation"
    return f"unverified quote: judged a leak for “{shorten(judgement.quote, 200)}”, which the hint does not add"


def _seed(text: str, vote: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{vote}/{text}".encode("utf-8", "replace")).digest()[:4], "big") >> 1
