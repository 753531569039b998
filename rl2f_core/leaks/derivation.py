"""The derivation tier: does the hint give the decisive step? A language model judges, and quotes (methods.md §9)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from rl2f_core import registry
from rl2f_core.components import component
from rl2f_core.errors import shorten
from rl2f_core.fields import KNOWN_FILE, BaseConfig
from rl2f_core.leaks._judgement import Judgement, prove, read_judgement
from rl2f_core.leaks.base import LeakDetector, LeakQuery
from rl2f_core.prompts import FOLDER, load
from rl2f_core.types import LeakReport, Message

COLD = 0.01
"""As good as the likeliest answer: samplers divide by the temperature, so it cannot be 0."""
WARM = 0.7
"""Where several votes are to differ."""
LONGEST = 4000
"""Characters of a text that the judge is shown."""
UNREADABLE = "the judge's answer is not of the form that was asked for"


@registry.register("leak")
class DerivationLeak(LeakDetector):
    """Asks a model that sees question, answer, hint and the student's attempts, and takes its word only with evidence.

    A verdict of guilt counts where its quotation stands in the hint word for word and not already in the problem or an
    attempt; the span is where it stands. Its share is 1: with the decisive step the rest is copying. A judge that
    cannot be reached, or does not answer in the form asked for, leaves the hint unchecked (`LeakReport.error`).
    """

    asks_model = True
    waits = True

    class Config(BaseConfig):
        """The decisive step, in the eyes of a language model."""

        type: Literal["derivation"] = "derivation"
        """Name of the tier."""
        llm: component("llm") = Field("local")  # type: ignore[valid-type, assignment]
        """The judge; the default is the student's own base model."""
        prompt: str | None = Field(None, json_schema_extra=KNOWN_FILE)
        """Prompt template, a .txt file that is given problem, answer, attempts, hint and mark; None is our own."""
        votes: int = Field(1, ge=1, le=99)
        """How often the judge is asked, an odd number; the majority decides."""
        temperature: float | None = Field(None, gt=0, le=2)
        """Of the judge; None is as cold as can be for one vote, and 0.7 for several."""
        max_new_tokens: int = Field(80, ge=8)
        """Tokens of one verdict."""
        unproven: Literal["clean", "flag", "error"] = "clean"
        """What a verdict of guilt without a quotation that holds counts as: no leak, a leak, or not judged."""

        @model_validator(mode="after")
        def _decides(self) -> Any:
            if self.votes % 2 == 0:
                raise ValueError(f"votes {self.votes} can end in a tie; take an odd number")
            return self

    def __init__(self, config: Any, environment: Any, models: Any = None) -> None:
        super().__init__(config, environment, models)
        held: Any = registry.get("llm", config.llm.type)
        self.judge = held(config.llm, models)
        self.prompt = load(config.prompt or str(FOLDER / "judges" / "derivation.txt"))
        self.temperature = config.temperature or (COLD if config.votes == 1 else WARM)

    def check(self, query: LeakQuery) -> LeakReport:
        """`check_all` of one hint."""
        return self.check_all([query])[0]

    def check_all(self, queries: Sequence[LeakQuery]) -> list[LeakReport]:
        """All hints and all votes in one batch; the seeds of a hint follow from what is judged, not from its place."""
        from rl2f_core.llms.base import ChatRequest

        requests = []
        for query in queries:
            messages = self._ask(query)
            for vote in range(self.config.votes):
                requests.append(ChatRequest(messages, _seed(messages[-1]["content"], vote)))
        said = self.judge.complete(
            requests, max_new_tokens=self.config.max_new_tokens, temperature=self.temperature
        ) if requests else []  # fmt: skip
        votes = [[(c.text, c.error) for c in said[i : i + self.config.votes]]
                 for i in range(0, len(said), self.config.votes)]  # fmt: skip
        return [self._decide(query, cast) for query, cast in zip(queries, votes, strict=True)]

    def _ask(self, query: LeakQuery) -> tuple[Message, ...]:
        """The template filled in, each text between lines that cannot stand in any of them."""
        attempts = "\n\n".join(shorten(text, LONGEST) for text in query.attempts[-3:]) or "(nothing)"
        texts = {
            "problem": shorten(self.environment.prompt(query.task.public), LONGEST),
            "answer": shorten(self.environment.answer(query.task), LONGEST),
            "attempts": attempts,
            "hint": shorten(query.hint, LONGEST),
        }
        mark = ""
        while not mark or any(mark in text for text in texts.values()):
            mark = hashlib.sha256("\0".join([mark, *texts.values()]).encode("utf-8", "replace")).hexdigest()[:12]
        return self.prompt.render({"mark": mark, **texts})

    def _decide(self, query: LeakQuery, votes: Sequence[tuple[str, str | None]]) -> LeakReport:
        """The verdict of the majority; where there is none, why not."""
        shown = (self.environment.prompt(query.task.public), *query.attempts)
        guilty: list[tuple[tuple[int, int] | None, str]] = []
        clean, unproven, why = 0, "", UNREADABLE
        for text, error in votes:
            judgement = read_judgement(text) if error is None else None
            if judgement is None:
                why = error or UNREADABLE
                continue
            span = prove(judgement.quote, query.hint, shown) if judgement.leaks else None
            if judgement.leaks and (span or self.config.unproven == "flag"):
                guilty.append((span, judgement.quote))
            elif judgement.leaks and self.config.unproven == "error":
                why = _unproven(judgement)
            else:
                unproven = _unproven(judgement) if judgement.leaks else unproven
                clean += 1
        by = f"{self.judge.name}, {self.prompt.version}"
        if 2 * len(guilty) > len(votes):
            span, quote = next((vote for vote in guilty if vote[0]), guilty[0])
            count = f", {len(guilty)} of {len(votes)} votes" if len(votes) > 1 else ""
            words = query.hint[slice(*span)] if span else f"unproven: {shorten(quote, 200)}"
            evidence = f"“{shorten(words, 200)}” ({by}{count})"
            return LeakReport(leaked=True, tier=self.name, span=span, evidence=evidence, share=1.0)
        if 2 * clean > len(votes):
            return LeakReport(leaked=False, evidence=f"{unproven} ({by})" if unproven else "")
        return LeakReport(leaked=False, error=f"derivation: {why} ({by})")


def _unproven(judgement: Judgement) -> str:
    if not judgement.quote:
        return "unproven: called a leak without a quotation"
    return f"unproven: called a leak for “{shorten(judgement.quote, 200)}”, which the hint does not add"


def _seed(text: str, vote: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{vote}/{text}".encode("utf-8", "replace")).digest()[:4], "big") >> 1
