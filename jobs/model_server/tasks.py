"""Turns of interactive tasks: the hint is screened and the attempt verified as in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobs.model_server.protocol import TaskRequest
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.dialogue_builder import build_turn, stop_reason
from rl2f_core.dialogue.rollout.prompting import load_reprompt_template
from rl2f_core.dialogue.teachers import human
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest
from rl2f_core.dialogue.teachers.contentless import ContentlessTeacher
from rl2f_core.dialogue.teachers.scripted import ScriptedTeacher
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import ScriptedHints, missing_part
from rl2f_core.errors import RunError
from rl2f_core.models.backends.base import Backend, Generation
from rl2f_core.types import FinishReason, JsonObject, StopReason, Task, Turn


class TaskTurn:
    """The next turn of a dialogue on a task, optionally with a person as the teacher.

    Args:
        request: The request.
        emit: Called with results of the turn: `hint` and `hint_error`, then `turn` and `ended`.
    """

    def __init__(self, request: TaskRequest, emit: Callable[[JsonObject], object]) -> None:
        self.request, self.emit = request, emit
        self.config = with_text_actions(BaseRun.model_validate(request.config))
        self.turns = list(request.turns)
        self.prompts: list[tuple[int, ...]] = []
        """The prompt, once it is known."""

    def prepare(self, backend: Backend, adapter: str | None) -> tuple[int, ...] | None:
        """Screen the hint, and return the prompt of the next attempt; None if the dialogue ends without one."""
        request, config = self.request, self.config
        has_hints = not missing_part(config.environment, (ScriptedHints,))
        engine = build_engine(config, backend, (ScriptedTeacher if has_hints else ContentlessTeacher).Config())
        self.environment, renderer = engine.environment, engine.renderer
        if request.hint_by is not None:
            if not self.turns:
                raise RunError("There is no attempt to hint on.")
            wanted = FeedbackRequest(request.task, tuple(self.turns), request.seed, adapter=adapter)
            teacher, resample = engine.teacher.name, engine.request_feedback
            if request.hint_by == "person":  # cannot be resampled: the guard replaces a leak by the contentless hint
                feedback = Feedback(renderer.escape(request.hint))
                teacher, resample = human.NAME, lambda requests: [feedback] * len(requests)
            screened = engine.guard.screen([wanted], resample([wanted]), teacher, resample)[0]
            self.turns[-1] = self.turns[-1].model_copy(update={"hint": screened.hint})
            self.emit({"hint": screened.hint.model_dump(mode="json"), "hint_error": screened.error})
            if screened.drop:
                self.emit({"ended": StopReason.DROPPED})
                return None

        def response_tokens(turn: Turn) -> Sequence[int]:
            return turn.token_ids or backend.tokenizer.encode(renderer.escape(turn.attempt))

        prompt = tuple(engine.prompts.prompt(request.task, self.turns, response_tokens))
        if len(prompt) + request.max_tokens > min(config.rollout.max_seq_len, backend.max_model_len):
            self.emit({"ended": StopReason.CONTEXT_FULL})
            return None
        self.prompts.append(prompt)
        return prompt

    def verify(self, text: str, generation: Generation) -> None:
        """Verify the attempt, and emit the turn and why the dialogue ended."""
        turn = verify_attempt(self.config, self.environment, self.request.task, self.turns, text, generation)
        self.emit({"turn": turn.model_dump(mode="json"), "ended": stop_reason(turn, self.request.max_turns)})


def with_text_actions(config: BaseRun) -> BaseRun:
    """Return the settings of a chat: a student that chooses among labeled actions writes them as text instead."""
    if config.rollout.prompting != "enumerate":
        return config
    rollout = config.rollout.model_copy(update={"prompting": "append", "reflector": None})
    return config.model_copy(update={"rollout": rollout})


def verify_attempt(
    config: BaseRun,
    environment: Environment,
    task: Task,
    turns: Sequence[Turn],
    text: str,
    generation: Generation = Generation((), (), FinishReason.EOS),
) -> Turn:
    """Verify and reward the next turn of a dialogue as the rollout engine does; by default a person wrote it."""
    reprompt = load_reprompt_template(config.rollout) if turns else None
    sampled = generation.token_ids, generation.logprobs, generation.stop
    verdict = environment.verify_turn(task, [turn.verdict for turn in turns], text)
    return build_turn(turns, verdict, config.reward, text, *sampled, None if reprompt is None else reprompt.version)
