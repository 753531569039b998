"""The model teacher: a language model that holds what it is shown of the privileged half, and answers in its own words.

What it sees is chosen, field by field; the student reads its message alone. How it is asked stands in a template under
`data/prompts/`, one a style; the styles are the judge kinds of RLTF (arXiv 2602.02482, released code), whose judges
held the answer in four of five environments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from rl2f_core import prompts, registry
from rl2f_core.components import component
from rl2f_core.environments.base import Environment
from rl2f_core.fields import BASIC, KNOWN_PROMPT, BaseConfig
from rl2f_core.llms.base import ChatModel, ChatRequest
from rl2f_core.teachers._speech import OnError, Truncated, spoken
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.types import Message

if TYPE_CHECKING:
    from rl2f_core.backends.pool import Models

Style = Literal["socratic", "first_error", "next_step", "verdict_only", "without_answer"]


class Sees(BaseConfig):
    """What the teacher is shown beside the problem."""

    answer: bool = True
    """The right answer."""
    solution: bool = False
    """The full solution, where the environment has one."""
    detail: bool = True
    """The verifier's words on the attempt; they may name the answer."""
    attempt: Literal["whole", "answer"] = "whole"
    """The student's whole attempt, or only the answer that was parsed from it."""
    dialogue: Literal["last", "whole"] = "last"
    """The last attempt, or all of them with the hints between."""

    @property
    def privileged(self) -> bool:
        """Anything that the student may not know."""
        return self.answer or self.solution or self.detail


BLIND = Sees(answer=False, solution=False, detail=False)
OWN: dict[str, Sees] = {"verdict_only": BLIND, "without_answer": BLIND}
"""What a style shows where nothing is chosen; the others show answer and verifier's detail."""


@registry.register("teacher")
class LLMTeacher(Teacher):
    """Asks a language model for every hint, all of a batch at once."""

    waits = True

    class Config(BaseConfig):
        """Hints of a language model: the student's own base, another local one, an adapter, or an endpoint."""

        type: Literal["llm"] = "llm"
        """Name of the teacher."""
        llm: component("llm") = Field("local", json_schema_extra=BASIC)  # type: ignore[valid-type, assignment]
        """Who speaks."""
        style: Style = Field("socratic", json_schema_extra=BASIC)
        """A question, the first error, the next step, the verdict alone, or a hint without knowing the answer."""
        prompt: str | None = Field(None, json_schema_extra=KNOWN_PROMPT)
        """Another template than the style's: a shipped name, or the path of a `.txt` file."""
        sees: Sees | None = None
        """What it is shown; None is the style's own: answer and verifier's detail, or nothing of them."""
        temperature: float = Field(0.7, ge=0, le=10)
        """Sampling temperature of its messages; 0 takes the most probable words."""
        max_new_tokens: int = Field(64, ge=1)
        """Tokens allowed in one message."""
        max_chars: int = Field(500, ge=1)
        """Characters allowed in one message."""
        truncated: Truncated = "sentence"
        """A message that was cut off: keep its whole sentences, keep all of it, or count it as failed."""
        on_error: OnError = "contentless"
        """A failed hint: the student reads a contentless one, or the dialogue ends as failed."""

        @model_validator(mode="after")
        def _style_and_sight_agree(self) -> LLMTeacher.Config:
            if self.style == "without_answer" and self.sees is not None and self.sees.privileged:
                raise ValueError("style without_answer does not fit sees.answer, sees.solution or sees.detail: "
                                 "set all three to false, or choose another style")  # fmt: skip
            return self

        @property
        def sight(self) -> Sees:
            """What is shown in effect."""
            return self.sees if self.sees is not None else OWN.get(self.style, Sees())

    def __init__(self, config: Any, environment: Environment, models: Models | None = None) -> None:
        super().__init__(config, environment, models)
        self.llm: ChatModel = registry.get("llm", config.llm.type)(config.llm, models)
        self.prompt = prompts.load(config.prompt or config.style)
        told = {"number": 1, "text": "x", "hint": "x"}
        for text in ("x", None):  # a broken template ends the run before it begins, not its dialogues one by one
            self.prompt.render(
                {**dict.fromkeys(("answer", "solution", "detail"), text), "problem": "x", "attempts": [told]}
            )

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """One message for each request; what could not be had has an `error` and no words."""
        config = self.config
        asked = [ChatRequest(self.messages(request), chance(request)) for request in requests]
        told = self.llm.complete(asked, max_new_tokens=config.max_new_tokens, temperature=config.temperature)
        return [
            spoken(said, self.prompt.version, max_chars=config.max_chars, truncated=config.truncated,
                   on_error=config.on_error) for said in told
        ]  # fmt: skip

    def messages(self, request: FeedbackRequest) -> tuple[Message, ...]:
        """What the model is asked; nothing stands in it that was not chosen. Raises `ConfigError`."""
        sees: Sees = self.config.sight
        environment, task = self.environment, request.task
        values = {
            "problem": environment.prompt(task.public),
            "answer": environment.answer(task) if sees.answer else None,
            "solution": environment.solution(task) if sees.solution else None,
            "detail": request.turns[-1].verdict.detail if sees.detail else None,
            "attempts": attempts(request, whole=sees.attempt == "whole", all_of_them=sees.dialogue == "whole"),
        }
        return self.prompt.render(values)


def attempts(request: FeedbackRequest, *, whole: bool = True, all_of_them: bool = True) -> list[dict[str, Any]]:
    """The student's attempts for a template: `number`, `text`, and the `hint` that was read after it (None at last).

    Args:
        request: Of the last attempt.
        whole: The whole text, or the parsed answer alone.
        all_of_them: All attempts, or the last.
    """
    turns = request.turns if all_of_them else request.turns[-1:]
    return [
        {
            "number": turn.index + 1,
            "text": turn.attempt.strip() if whole else turn.verdict.parsed or "(no answer)",
            "hint": turn.hint.text if turn.hint is not None else None,
        }
        for turn in turns
    ]


def chance(request: FeedbackRequest) -> int:
    """The seed of one message: it follows from the dialogue's seed, the turn and the number of refused messages."""
    path = f"{request.seed}/{request.task.id}/{len(request.turns)}/{request.retry}"
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big") >> 1
