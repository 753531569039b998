"""The rollout engine: student, verifier, teacher and leak guard; `loop` runs the dialogues.

A failing dialogue is data and does not end the run: a full context ends it as `context_full`, an error of a component
as `failed`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rl2f_core.dialogue.rollout.engine import RolloutLoop

from rl2f_core.config.rollout import RewardConfig, RolloutConfig
from rl2f_core.dialogue.rollout.prompting import PromptBuilder, load_reprompt_template
from rl2f_core.dialogue.rollout.request import RolloutRequest as RolloutRequest
from rl2f_core.dialogue.rollout.request import StudentPolicy as StudentPolicy
from rl2f_core.dialogue.rollout.request import derive_seed as derive_seed
from rl2f_core.dialogue.rollout.request import turn_seed as turn_seed
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.environments.base import Environment
from rl2f_core.leaks.guard import LeakGuard, ScreenedHint
from rl2f_core.models.backends.base import Backend, SamplingParams
from rl2f_core.models.process_group import current_group
from rl2f_core.models.renderer import ChatRenderer
from rl2f_core.types import Rollout

REFLECTOR = "reflector"
"""Name of the reflector's adapter in the backend (`build.load_reflector`)."""


@dataclass(frozen=True)
class RolloutEngine:
    """Runs dialogues between a backend's student and a teacher."""

    environment: Environment
    teacher: Teacher
    guard: LeakGuard
    backend: Backend
    renderer: ChatRenderer
    config: RolloutConfig
    reward: RewardConfig
    stop_on_correct: bool = True
    """End a dialogue at a correct attempt. If False, it uses all turns and its last attempt counts; for teachers that
    do not know the verdict (`Teacher.handles_correct_attempts`)."""

    @functools.cached_property
    def prompts(self) -> PromptBuilder:
        """Builder of the student's prompts. Raises `ConfigError` if the reprompt template is invalid."""
        enumerates = self.config.prompting == "enumerate"
        return PromptBuilder(self.environment, self.renderer, load_reprompt_template(self.config), enumerates)

    @property
    def reflector_adapter(self) -> str | None:
        """Backend's name of the reflector; None is the base."""
        config = self.config.reflector
        return REFLECTOR if config is not None and (config.stage or config.checkpoint) else None

    def run(
        self,
        requests: Sequence[RolloutRequest],
        *,
        adapter: str | None = None,
        policy: str = "base",
        max_turns: int | None = None,
        temperature: float | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[Rollout]:
        """Run all requests, at most `config.max_concurrent` at a time, in order.

        Each process of a distributed run works on a contiguous shard, so that the dialogues of a group, which share
        their prompt, mostly run in one process.

        Args:
            requests: Dialogues to run, the same in all processes. A rollout depends only on its own request.
            adapter: Backend's name of the student's adapter, for requests without a student; None is the base.
            policy: Name of that checkpoint in the dialogues.
            max_turns: Maximum number of turns; None is the configuration's.
            temperature: Sampling temperature; None is the configuration's.
            on_progress: Called with (finished dialogues, all dialogues) of this process after verdicts or hints.
        """
        temperature = self.config.temperature if temperature is None else temperature
        sampling = SamplingParams(self.config.max_new_tokens, temperature, self.config.top_p)
        turns = max_turns or self.config.max_turns
        student = StudentPolicy(adapter, policy)

        def run_shard(shard: Sequence[RolloutRequest]) -> list[Rollout]:
            dialogues = RolloutLoop(self, shard, sampling, student=student, turns=turns, on_progress=on_progress).run()
            self.backend.reset_prefix_cache()
            shown = self.stop_on_correct
            return [dialogue.rollout(dialogue.student.policy, verdicts_shown=shown) for dialogue in dialogues]

        return current_group().map_sharded(requests, run_shard)

    @property
    def runs_async(self) -> bool:
        """Whether a hint needs a model, so that other dialogues should continue meanwhile."""
        return self.teacher.runs_async or any(detector.runs_async for detector in self.guard.detectors)

    def request_feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Request feedback; escape it before the guard screens what the student reads."""
        return [
            replace(feedback, text=self.renderer.escape(feedback.text)) for feedback in self.teacher.feedback(requests)
        ]

    def get_hints(self, requests: Sequence[FeedbackRequest]) -> list[ScreenedHint | Exception]:
        """Request and screen hints in a batch, or one by one to isolate errors."""
        try:
            return [
                *self.guard.screen(requests, self.request_feedback(requests), self.teacher.name, self.request_feedback)
            ]
        except Exception as error:  # ends only the dialogue of the failed request
            return [error] if len(requests) == 1 else [self.get_hints([request])[0] for request in requests]
