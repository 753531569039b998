"""Self-critique: the student's own weights read the attempt without the privileged half, and the student revises.

`critique` makes the one prompt for all of it: what is asked at test time (methods.md §5), and the context of a stored
hint where the model learns to be its own teacher (`rl2f_self`, arXiv 2602.16066 §4, and `rltf_fm`). The verdict is not
in it either, so that it can be asked after a right attempt as well, where no oracle stops the dialogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from rl2f_core import prompts, registry
from rl2f_core.backends.base import Sampling
from rl2f_core.environments.base import Environment
from rl2f_core.errors import ConfigError
from rl2f_core.fields import KNOWN_PROMPT, BaseConfig
from rl2f_core.llms.base import ChatRequest, Completion
from rl2f_core.llms.local import COLDEST, speak
from rl2f_core.teachers._speech import OnError, Truncated, spoken
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.teachers.llm import attempts, chance
from rl2f_core.types import Message

if TYPE_CHECKING:
    from rl2f_core.backends.pool import Models

TEMPLATE = "self_critique"


def critique(
    environment: Environment, request: FeedbackRequest, prompt: prompts.Prompt | None = None
) -> tuple[Message, ...]:
    """What the model is asked for a critique of the last attempt: problem, attempts and critiques so far, no verdict.

    Args:
        environment: Words the problem, from its public half.
        request: The dialogue up to the attempt; the privileged half of its task is not looked at.
        prompt: The template; None is the shipped one.

    Raises `ConfigError` where the template is broken.
    """
    values = {"problem": environment.prompt(request.task.public), "attempts": attempts(request)}
    return (prompt or prompts.load(TEMPLATE)).render(values)


@registry.register("teacher")
class SelfCritiqueTeacher(Teacher):
    """The student criticises itself, with the weights it answers with."""

    after_right: ClassVar[bool] = True
    waits = True

    class Config(BaseConfig):
        """The student's own model, without the answer."""

        type: Literal["self_critique"] = "self_critique"
        """Name of the teacher."""
        prompt: str | None = Field(None, json_schema_extra=KNOWN_PROMPT)
        """Another template than the shipped one, which training shares: a shipped name or the path of a `.txt` file."""
        temperature: float = Field(0.7, ge=0, le=10)
        """Sampling temperature of its messages; 0 takes the most probable words."""
        max_new_tokens: int = Field(64, ge=1)
        """Tokens allowed in one message."""
        max_chars: int = Field(500, ge=1)
        """Characters allowed in one message."""
        truncated: Truncated = "sentence"
        """A message that was cut off: keep its whole sentences, keep all of it, or count it as failed."""
        on_error: OnError = "contentless"
        """A failed critique: the student reads a contentless one, or the dialogue ends as failed."""

    def __init__(self, config: Any, environment: Environment, models: Models | None = None) -> None:
        super().__init__(config, environment, models)
        if models is None:
            raise ConfigError("A student that criticises itself needs its model, which is not at hand here.")
        self.prompt = prompts.load(config.prompt or TEMPLATE)
        self.prompt.render({"problem": "x", "attempts": [{"number": 1, "text": "x", "hint": "x"}]})
        self.backend = models.student

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """One critique for each request, by the adapter that made the attempt."""
        config = self.config
        sampling = Sampling(config.max_new_tokens, max(config.temperature, COLDEST))
        told: dict[int, Completion] = {}
        for adapter in dict.fromkeys(request.adapter for request in requests):
            own = [i for i, request in enumerate(requests) if request.adapter == adapter]
            asked = [
                ChatRequest(critique(self.environment, requests[i], self.prompt), chance(requests[i])) for i in own
            ]
            told.update(zip(own, speak(self.backend, adapter, asked, sampling), strict=True))
        return [
            spoken(told[i], self.prompt.version, max_chars=config.max_chars, truncated=config.truncated,
                   on_error=config.on_error) for i in range(len(requests))
        ]  # fmt: skip
