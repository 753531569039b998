"""Detector `llm_judge`: a language model judges a hint, or tries to answer with it.

- `mode: verdict`: the judge sees problem, answer, attempts and hints, decides whether the last hint gives the decisive
  step, and quotes it.
- `mode: contrastive`: the model is a stranger that does not see the answer. It answers once with the hint and once with
  a contentless message in its place; the environment's verifier checks both answers. A vote is "leak" if only the
  answer with the hint is correct. An answer that needs no hint does not count, as in REV, which compares a rationale
  with a vacuous one (Chen et al. 2023, arXiv:2210.04982). With few possible answers, one vote may be a lucky guess:
  use several.

The majority of several votes decides (self-consistency, Wang et al. 2023, arXiv:2203.11171).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rl2f_core import registry
from rl2f_core.common.paths import PROMPTS
from rl2f_core.common.prompt_templates import load
from rl2f_core.config.components import LLMConfig, by_name
from rl2f_core.config.fields import FILE_REF, ComponentConfig
from rl2f_core.environments.base import CONTENTLESS, Environment, wrap_answer
from rl2f_core.errors import shorten
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.leaks.judge_output import (
    ANSWER_JSON,
    VERDICT_JSON,
    VERDICT_LINES,
    AnswerReply,
    Judgement,
    VerdictReply,
    locate_quote,
    read_json,
    read_judgement,
)
from rl2f_core.models.llms.base import ChatModel, ChatRequest, Completion
from rl2f_core.types import LeakReport, Message, Task

if TYPE_CHECKING:
    from rl2f_core.models.backends.model_pool import ModelPool

SINGLE_VOTE_TEMPERATURE = 0.0
MULTI_VOTE_TEMPERATURE = 0.7
"""High enough for several votes to differ."""
MAX_TEXT_CHARS = 4000
"""Characters of each text in the judge's prompt."""
MAX_TURNS = 3
"""Attempts, and earlier hints, in the judge's prompt."""
UNKNOWN = "(not known)"
"""Answer in the judge's prompt if the task has neither a gold answer nor a solution."""
UNREADABLE = "the judge's answer is not of the required form"
UNCERTAIN = (0.2, 0.8)
"""Probabilities of a leak between which a hint is judged by default."""
TEMPLATES = {"verdict": "derivation", "contrastive": "stranger"}
"""Default prompt template by mode."""


@registry.register("leak_detector")
class LLMJudgeDetector(LeakDetector):
    """Ask a model for a verdict with a quotation, or for the answer with and without the hint.

    A verdict "leak" counts if the hint contains its quotation verbatim, and problem and attempts do not. The span is
    that of the quotation; a contrastive report has none. `answer_fraction` is 1. `leak_type` is the most frequent one
    of the votes "leak". If there is no majority because replies failed or have another form, the hint is unchecked
    (`LeakReport.error`). A tie is not a leak; the evidence states it.

    After a detector that gives probabilities, the judge decides the hints whose probability is uncertain (`UNCERTAIN`),
    also those that are flagged; see `Config.hints`.

    `cost` is the price of all replies so far, in US dollars; see `ChatModel.price`.
    """

    requires_model = True
    runs_async = True

    class Config(ComponentConfig):
        """The decisive step, judged by a language model."""

        type: Literal["llm_judge"] = "llm_judge"
        """Name of the detector."""
        llm: LLMConfig = Field(by_name("local"))
        """The judge; the default is the student's base model."""
        mode: Literal["verdict", "contrastive"] = "verdict"
        """verdict: the judge sees the answer and decides. contrastive: it does not see the answer, and a leak lets it
        answer with the hint but not with a contentless one (two requests per vote)."""
        output: Literal["text", "json"] = "text"
        """Form of the replies. json: by a JSON schema (`response_format`) if the endpoint supports it, and parsed
        strictly if not."""
        prompt: str | None = Field(None, json_schema_extra=FILE_REF)
        """Prompt template: derivation (default of verdict), reveals (only whether the answer is told; use it with
        `on_unverified_quote: flag`), stranger (default of contrastive), or a .txt file with fields problem, attempts,
        hints, hint, mark and reply_format, and answer (verdict) or answer_format (contrastive)."""
        hints: Literal["uncertain", "unflagged"] = "uncertain"
        """Judged hints after a detector with probabilities. uncertain: those between .2 and .8, flagged or not.
        unflagged: also hints that do not mention the answer. Without such a detector, all unflagged hints."""
        votes: int = Field(1, ge=1, le=99)
        """Number of votes; the majority decides, and a tie is not a leak."""
        temperature: float | None = Field(None, ge=0, le=2)
        """Sampling temperature of the judge; None is 0 (greedy) for one vote and 0.7 for several."""
        max_new_tokens: int = Field(120, ge=8)
        """Maximum number of tokens of one reply."""
        on_unverified_quote: Literal["clean", "flag", "error"] = "clean"
        """Result of a verdict "leak" with an unverified quotation: no leak, a leak, or an error."""

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        self.judge: ChatModel = registry.get("llm", config.llm.type)(config.llm, models)
        name = config.prompt or TEMPLATES[config.mode]
        shipped = PROMPTS / "judges" / f"{name}.txt"
        self.prompt = load(str(shipped) if shipped.exists() else name)
        default = SINGLE_VOTE_TEMPERATURE if config.votes == 1 else MULTI_VOTE_TEMPERATURE
        self.temperature = default if config.temperature is None else config.temperature
        self._by = f"{self.judge.name}, {self.prompt.version}"

    def can_check(self, task: Task) -> bool:
        """Return True, also without a gold answer, unless the environment cannot verify the stranger's answers."""
        return (
            self.config.mode == "verdict"
            or not getattr(self.environment, "unavailable_reason", "")
            or bool(self.environment.gold_answer(task))
        )

    def should_check(self, report: LeakReport, has_probability: bool) -> bool:
        if self.config.hints == "unflagged" or not has_probability:
            return not report.leaked
        return report.leak_probability is not None and UNCERTAIN[0] <= report.leak_probability <= UNCERTAIN[1]

    def check(self, query: LeakQuery) -> LeakReport:
        """Check one hint."""
        return self.check_batch([query])[0]

    def check_batch(self, queries: Sequence[LeakQuery]) -> list[LeakReport]:
        """Request all votes on all hints in one batch; seeds depend on the prompt, not on the position."""
        is_contrastive, votes = self.config.mode == "contrastive", range(self.config.votes)
        prompts = [self._prompt(query) for query in queries]
        if is_contrastive:
            prompts += [self._prompt(replace(query, hint=CONTENTLESS)) for query in queries]
        replies = self._request([(prompt, vote) for prompt in prompts for vote in votes])
        chunks = [replies[i * len(votes) : (i + 1) * len(votes)] for i in range(len(prompts))]
        if not is_contrastive:
            judged = [
                [self._read_verdict(query, reply) for reply in chunk]
                for query, chunk in zip(queries, chunks, strict=True)
            ]
        else:
            pairs = zip(chunks[: len(queries)], chunks[len(queries) :], strict=True)
            judged = [
                [self._contrast(query, *pair) for pair in zip(*chunk_pair, strict=True)]
                for query, chunk_pair in zip(queries, pairs, strict=True)
            ]
        return [self._decide(replies) for replies in judged]

    def _request(self, prompts: Sequence[tuple[tuple[Message, ...], int]]) -> list[Completion]:
        """Request a reply to each prompt and vote, equal ones once, and add up the price."""
        if not prompts:
            return []
        reply = VerdictReply if self.config.mode == "verdict" else AnswerReply
        schema = reply.model_json_schema() if self.config.output == "json" else None
        keys = [(prompt[-1]["content"], vote) for prompt, vote in prompts]
        unique = {key: ChatRequest(prompt, _seed(*key), schema) for key, (prompt, _) in zip(keys, prompts, strict=True)}
        replies = self.judge.complete(
            list(unique.values()), max_new_tokens=self.config.max_new_tokens, temperature=self.temperature
        )
        prices = [self.judge.price(reply.usage) for reply in replies if reply.error is None]
        known = [price for price in prices if price is not None]
        self.cost = None if self.cost is None or len(known) < len(prices) else self.cost + sum(known)
        by_key = dict(zip(unique, replies, strict=True))
        return [by_key[key] for key in keys]

    def _prompt(self, query: LeakQuery) -> tuple[Message, ...]:
        """Fill in the template; `mark` delimits the texts and occurs in none of them.

        The mark is equal for hints on one dialogue, so that their prompts share a prefix, whose KV cache is reused.
        """
        texts = {
            "problem": shorten(self.environment.prompt(query.task.public), MAX_TEXT_CHARS),
            "attempts": _join(query.attempts) or "(nothing)",
            "hints": _join(query.hints),
            "hint": shorten(query.hint, MAX_TEXT_CHARS),
        }
        formats = {"reply_format": VERDICT_JSON if self.config.output == "json" else VERDICT_LINES}
        if self.config.mode == "verdict":
            answer = self.environment.gold_answer(query.task) or self.environment.solution(query.task)
            texts["answer"] = shorten(answer or UNKNOWN, MAX_TEXT_CHARS)
        else:
            formats = {
                "reply_format": ANSWER_JSON if self.config.output == "json" else "",
                "answer_format": self.environment.system_prompt(),
            }
        shared = [text for name, text in texts.items() if name != "hint"]
        mark = ""
        while not mark or any(mark in text for text in texts.values()):
            mark = hashlib.sha256("\0".join([mark, *shared]).encode("utf-8", "replace")).hexdigest()[:12]
        return self.prompt.render({"mark": mark, **texts, **formats})

    def _read_verdict(self, query: LeakQuery, reply: Completion) -> LeakReport:
        """Return the report of one verdict."""
        is_json = self.config.output == "json"
        judgement = read_judgement(reply.text, is_json=is_json) if reply.error is None else None
        if judgement is None:
            return LeakReport(leaked=False, error=reply.error or UNREADABLE)
        if not judgement.leaks:
            return LeakReport(leaked=False)
        visible = (self.environment.prompt(query.task.public), *query.attempts)
        span = locate_quote(judgement.quote, query.hint, visible)
        if span is None and self.config.on_unverified_quote != "flag":
            unverified = _describe_unverified(judgement)
            is_error = self.config.on_unverified_quote == "error"
            return LeakReport(leaked=False, **{"error" if is_error else "evidence": unverified})
        text = query.hint[slice(*span)] if span else f"unverified quote: {shorten(judgement.quote, 200)}"
        evidence = f"“{shorten(text, 200)}”"
        return LeakReport(leaked=True, span=span, evidence=evidence, leak_type=judgement.leak_type)

    def _contrast(self, query: LeakQuery, with_hint: Completion, without: Completion) -> LeakReport:
        """Return the report of the stranger's two answers."""
        texts = []
        for reply in (with_hint, without):
            text = self._answer(reply)
            if text is None:
                return LeakReport(leaked=False, error=reply.error or UNREADABLE)
            texts.append(text)
        verdicts = [self.environment.verify(query.task, text) for text in texts]
        answers = [f"“{shorten(verdict.parsed or 'no answer', 80)}”" for verdict in verdicts]
        leaked = verdicts[0].correct and not verdicts[1].correct
        evidence = f"{answers[0]} with the hint, {answers[1]} with a contentless one" if leaked else ""
        return LeakReport(leaked=leaked, evidence=evidence)

    def _answer(self, reply: Completion) -> str | None:
        """Return the stranger's answer as an attempt; None if the reply failed or has another form."""
        if self.config.output == "text":
            return reply.text if reply.error is None else None
        parsed = read_json(reply.text, AnswerReply)
        return None if parsed is None else wrap_answer(re.sub(r"</?answer>", "", parsed.answer))

    def _decide(self, votes: Sequence[LeakReport]) -> LeakReport:
        """Return the majority's report, or an error if there is no majority because replies are missing."""
        leaks = [vote for vote in votes if vote.leaked]
        errors = [vote.error for vote in votes if vote.error is not None]
        num_clean = len(votes) - len(leaks) - len(errors)
        if 2 * len(leaks) > len(votes):
            first = next((vote for vote in leaks if vote.span), leaks[0])
            count = f", {len(leaks)} of {len(votes)} votes" if len(votes) > 1 else ""
            types = Counter(vote.leak_type for vote in leaks if vote.leak_type is not None)
            return LeakReport(
                leaked=True,
                detector=self.name,
                leak_type=types.most_common(1)[0][0] if types else None,
                span=first.span,
                evidence=f"{first.evidence} ({self._by}{count})",
                answer_fraction=1.0,
            )
        if 2 * num_clean > len(votes):
            unverified = [vote.evidence for vote in votes if vote.evidence and not vote.leaked]
            return LeakReport(leaked=False, evidence=f"{unverified[-1]} ({self._by})" if unverified else "")
        if not errors:
            tie = f"tie: {len(leaks)} of {len(votes)} votes for a leak"
            return LeakReport(leaked=False, evidence=f"{tie} ({self._by})")
        return LeakReport(leaked=False, error=f"llm_judge: {errors[-1]} ({self._by})")


def _join(texts: Sequence[str]) -> str:
    return "\n\n".join(shorten(text, MAX_TEXT_CHARS) for text in texts[-MAX_TURNS:])


def _describe_unverified(judgement: Judgement) -> str:
    if not judgement.quote:
        return "unverified quote: judged a leak without a quotation"
    return f"unverified quote: judged a leak for “{shorten(judgement.quote, 200)}”, which the hint does not add"


def _seed(text: str, vote: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{vote}/{text}".encode("utf-8", "replace")).digest()[:4], "big") >> 1
