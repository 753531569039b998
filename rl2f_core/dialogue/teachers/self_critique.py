"""Teacher `self_critique`: the student criticizes its own attempt without privileged data.

`critique` builds the prompt at test time and in training (`rl2f_self`, arXiv 2602.16066 §4, and `rltf_fm`). It omits
the verdict, so it also works after a correct attempt if no oracle stops the dialogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rl2f_core import registry
from rl2f_core.common import prompt_templates
from rl2f_core.config.fields import PROMPT_REF, ComponentConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.dialogue.teachers.llm import attempts, request_seed
from rl2f_core.dialogue.teachers.message_cleanup import OnError, Truncated, to_feedback
from rl2f_core.environments.base import Environment
from rl2f_core.errors import ConfigError
from rl2f_core.models.backends.base import SamplingParams
from rl2f_core.models.llms.base import ChatRequest, Completion
from rl2f_core.models.llms.local import complete_local
from rl2f_core.types import Message

if TYPE_CHECKING:
    from rl2f_core.models.backends.model_pool import ModelPool

TEMPLATE = "self_critique"


def critique(
    environment: Environment, request: FeedbackRequest, prompt: prompt_templates.PromptTemplate | None = None
) -> tuple[Message, ...]:
    """Build the prompt for a critique of the last attempt: problem, attempts and critiques so far, no verdict.

    Only the task's public data is used. Raises `ConfigError` if the template (default: the shipped one) is invalid.
    """
    values = {"problem": environment.prompt(request.task.public), "attempts": attempts(request)}
    return (prompt or prompt_templates.load(TEMPLATE)).render(values)


@registry.register("teacher")
class SelfCritiqueTeacher(Teacher):
    """Generates critiques with the adapter of the attempts."""

    handles_correct_attempts: ClassVar[bool] = True
    runs_async = True

    class Config(ComponentConfig):
        """The student's own model, without the answer."""

        type: Literal["self_critique"] = "self_critique"
        """Name of the teacher."""
        prompt: str | None = Field(None, json_schema_extra=PROMPT_REF)
        """Template instead of the one that training uses: a shipped name or the path of a `.txt` file."""
        temperature: float = Field(0.7, ge=0, le=10)
        """Sampling temperature; 0 is greedy."""
        max_new_tokens: int = Field(64, ge=1)
        """Maximum number of tokens of one message."""
        max_chars: int = Field(500, ge=1)
        """Maximum number of characters of one message."""
        truncated: Truncated = "sentence"
        """Truncated messages: keep whole sentences, keep all, or count as an error."""
        on_error: OnError = "contentless"
        """After an error: the student reads a contentless hint, or the dialogue ends as failed."""

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        if models is None:
            raise ConfigError("Teacher self_critique needs the student's model, and no model is loaded here.")
        self.prompt = prompt_templates.load(config.prompt or TEMPLATE)
        self.prompt.render({"problem": "x", "attempts": [{"number": 1, "text": "x", "hint": "x"}]})
        self.backend = models.student

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return one critique per request, by the adapter of its attempt."""
        config = self.config
        sampling = SamplingParams(config.max_new_tokens, config.temperature)
        completions: dict[int, Completion] = {}
        for adapter in dict.fromkeys(request.adapter for request in requests):
            indices = [i for i, request in enumerate(requests) if request.adapter == adapter]
            chats = [
                ChatRequest(critique(self.environment, requests[i], self.prompt), request_seed(requests[i]))
                for i in indices
            ]
            completions.update(zip(indices, complete_local(self.backend, adapter, chats, sampling), strict=True))
        cleanup = (self.prompt.version, config.max_chars, config.truncated, config.on_error)
        return [to_feedback(completions[i], *cleanup) for i in range(len(requests))]

    @classmethod
    def build_prompt(
        cls, config: ComponentConfig, environment: Environment, request: FeedbackRequest
    ) -> tuple[str, tuple[Message, ...]] | None:
        """Return the prompt as in `Teacher.build_prompt`."""
        assert isinstance(config, cls.Config)
        template = prompt_templates.load(config.prompt or TEMPLATE)
        return template.version, critique(environment, request, template)
