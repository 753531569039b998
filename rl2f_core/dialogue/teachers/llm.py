"""Teacher `llm`: a language model that sees a configurable part of the privileged data.

Each style has a prompt template in `data/prompts/`. The styles `judge…` are the judge types of RLTF (arXiv 2602.02482,
released code) in our own words. A judge first writes its reasoning, and the student reads only what follows
`Critique:` or `Guide:`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from rl2f_core import registry
from rl2f_core.common import prompt_templates
from rl2f_core.config.components import LLMConfig, by_name
from rl2f_core.config.fields import BASIC_FIELD, PROMPT_REF, BaseConfig, ComponentConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.dialogue.teachers.message_cleanup import OnError, Truncated, after_marker, to_feedback
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import ScriptedHints, check_parts
from rl2f_core.errors import FieldValueError
from rl2f_core.models.llms.base import ChatModel, ChatRequest
from rl2f_core.types import JsonObject, Message

if TYPE_CHECKING:
    from rl2f_core.config.run import BaseRun
    from rl2f_core.models.backends.model_pool import ModelPool

Style = Literal[
    "socratic", "first_error", "next_step", "facts", "verdict_only", "without_answer", "judge", "judge_full",
    "judge_with_correctness_only", "judge_with_ground_truth", "judge_hint", "judge_hint_x", "judge_guide",
]  # fmt: skip


class Visibility(BaseConfig):
    """Content of the teacher's prompt besides the problem."""

    answer: bool = True
    """The gold answer."""
    solution: bool = False
    """The full solution, if the environment has one."""
    detail: bool = True
    """The verifier's detail on the attempt; it may contain the answer."""
    facts: bool = False
    """The environment's scripted hint on the attempt."""
    attempt: Literal["whole", "answer"] = "whole"
    """The whole attempt, or only its parsed answer."""
    dialogue: Literal["last", "whole"] = "last"
    """The last attempt, or all attempts and hints."""

    @property
    def privileged(self) -> bool:
        """Whether privileged data is visible."""
        return self.answer or self.solution or self.detail or self.facts


NO_PRIVILEGED = Visibility(answer=False, solution=False, detail=False)
STYLE_VISIBILITY: dict[str, Visibility] = {
    "facts": Visibility(answer=False, detail=False, facts=True),
    **dict.fromkeys(("verdict_only", "without_answer"), NO_PRIVILEGED),
    **dict.fromkeys(("judge", "judge_full", "judge_with_correctness_only"), NO_PRIVILEGED),
    **dict.fromkeys(("judge_with_ground_truth", "judge_hint", "judge_hint_x", "judge_guide"), Visibility(detail=False)),
}
"""Default visibility by style; other styles show the answer and the verifier's detail."""


@registry.register("teacher")
class LLMTeacher(Teacher):
    """Generates all hints of a batch with a language model."""

    runs_async = True

    class Config(ComponentConfig):
        """Hints of a language model: the student's base, another local model, an adapter, or an endpoint."""

        type: Literal["llm"] = "llm"
        """Name of the teacher."""
        llm: LLMConfig = Field(by_name("local"), json_schema_extra=BASIC_FIELD)
        """The model."""
        style: Style = Field("socratic", json_schema_extra=BASIC_FIELD)
        """A question, the first error, the next step, the scripted hint in other words (facts), the verdict alone, or a
        hint without knowing the answer. judge…: the judge types of RLTF; those with ground_truth, hint or guide see the
        answer. judge_guide does not mention the attempt and fits the reprompt template revise_guide."""
        prompt: str | None = Field(None, json_schema_extra=PROMPT_REF)
        """Template instead of the style's: a shipped name, or the path of a `.txt` file."""
        sees: Visibility | None = None
        """Content of the prompt; None is the style's default."""
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

        @model_validator(mode="after")
        def _check_visibility(self) -> LLMTeacher.Config:
            if self.style == "without_answer" and self.sees is not None and self.sees.privileged:
                raise FieldValueError(
                    "style without_answer does not fit sees.answer, sees.solution, sees.detail or sees.facts: "
                    "set all of them to false, or choose another style",
                    "style",
                )
            return self

        def check_run(self, run: BaseRun) -> None:
            """Refuse `sees.facts` without scripted hints. Raises `ValueError`."""
            if self.visibility.facts:
                fix = "set teacher.sees.facts to false"
                check_parts(run.environment, (ScriptedHints,), "teacher 'llm' with sees.facts", fix)

        @property
        def visibility(self) -> Visibility:
            """Effective content of the prompt."""
            return self.sees if self.sees is not None else STYLE_VISIBILITY.get(self.style, Visibility())

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        self.llm: ChatModel = registry.get("llm", config.llm.type)(config.llm, models)
        self.prompt = prompt_templates.load(config.prompt or config.style)
        attempt = {"number": 1, "text": "x", "hint": "x"}
        for text in ("x", None):  # fail on a broken template before the run starts
            self.prompt.render(
                {
                    **dict.fromkeys(("answer", "solution", "detail", "facts"), text),
                    "problem": "x",
                    "attempts": [attempt],
                }
            )

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return one message per request; failures have an `error` and an empty text."""
        config = self.config
        chats = [ChatRequest(self.messages(request), request_seed(request)) for request in requests]
        completions = self.llm.complete(chats, max_new_tokens=config.max_new_tokens, temperature=config.temperature)
        if config.style.startswith("judge"):
            marker = "Guide:" if config.style == "judge_guide" else "Critique:"
            completions = [after_marker(completion, marker) for completion in completions]
        cleanup = (self.prompt.version, config.max_chars, config.truncated, config.on_error)
        return [to_feedback(completion, *cleanup) for completion in completions]

    def messages(self, request: FeedbackRequest) -> tuple[Message, ...]:
        """Return `prompt_messages` with this teacher's template."""
        return prompt_messages(self.config, self.environment, self.prompt, request)

    @classmethod
    def build_prompt(
        cls, config: ComponentConfig, environment: Environment, request: FeedbackRequest
    ) -> tuple[str, tuple[Message, ...]] | None:
        """Return the prompt as in `Teacher.build_prompt`."""
        assert isinstance(config, cls.Config)
        template = prompt_templates.load(config.prompt or config.style)
        return template.version, prompt_messages(config, environment, template, request)


def prompt_messages(
    config: LLMTeacher.Config,
    environment: Environment,
    template: prompt_templates.PromptTemplate,
    request: FeedbackRequest,
) -> tuple[Message, ...]:
    """Return the prompt with only the visible fields. Raises `ConfigError` if the template is invalid."""
    sees, task = config.visibility, request.task
    values = {
        "problem": environment.prompt(task.public),
        "answer": environment.gold_answer(task) if sees.answer else None,
        "solution": environment.solution(task) if sees.solution else None,
        "detail": request.turns[-1].verdict.detail if sees.detail else None,
        "facts": environment.hint(task, request.verdicts, request.rng())
        if sees.facts and isinstance(environment, ScriptedHints)
        else None,
        "attempts": attempts(request, whole=sees.attempt == "whole", full_dialogue=sees.dialogue == "whole"),
    }
    return template.render(values)


def attempts(request: FeedbackRequest, *, whole: bool = True, full_dialogue: bool = True) -> list[JsonObject]:
    """Return the student's attempts for a template: `number`, `text`, and the `hint` after it or None.

    In a stateful environment, `hint` begins with the observation.

    Args:
        request: Request with the dialogue.
        whole: The whole text, or only the parsed answer.
        full_dialogue: All attempts, or only the last.
    """
    turns = request.turns if full_dialogue else request.turns[-1:]
    return [
        {
            "number": turn.index + 1,
            "text": turn.attempt.strip() if whole else turn.verdict.parsed or "(no answer)",
            "hint": turn.reply if turn.hint is not None else turn.verdict.observation,
        }
        for turn in turns
    ]


def request_seed(request: FeedbackRequest) -> int:
    """Derive a message's seed from the dialogue's seed, the task, the turn and the number of rejected messages."""
    path = f"{request.seed}/{request.task.id}/{len(request.turns)}/{request.retry}"
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big") >> 1
