"""The rollout engine: what plays dialogues, and in `play.py` how.

The student answers, the verifier judges, the teacher hints on what was wrong, the leak guard reads the hint, the
student goes on.  A bad dialogue is data, not a crash: what does not fit the context ends as `truncated`, what a
component could not handle ends as `failed` and is never trained on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rl2f_core.backends.base import Backend, Sampling
from rl2f_core.config import RewardConfig, RolloutConfig
from rl2f_core.environments.base import Environment
from rl2f_core.leaks.guard import Guarded, LeakGuard
from rl2f_core.rollout.history import History, template
from rl2f_core.rollout.play import Play
from rl2f_core.rollout.render import Renderer
from rl2f_core.rollout.requests import Request as Request
from rl2f_core.rollout.requests import Student as Student
from rl2f_core.rollout.requests import derive_seed as derive_seed
from rl2f_core.rollout.requests import turn_seed as turn_seed
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.types import Rollout


@dataclass(frozen=True)
class RolloutEngine:
    """Plays dialogues between a backend's student and a teacher."""

    environment: Environment
    teacher: Teacher
    guard: LeakGuard
    backend: Backend
    renderer: Renderer
    config: RolloutConfig
    reward: RewardConfig
    oracle_stop: bool = True
    """A right answer ends the dialogue. Without it the dialogue goes on to its last turn, and its last answer counts:
    for teachers that do not know whether an attempt is right (`Teacher.after_right`)."""

    @functools.cached_property
    def history(self) -> History:
        """How the student is asked. Raises `ConfigError` where the template of fresh prompts does not fit."""
        return History(self.environment, self.renderer, template(self.config))

    def play(
        self,
        requests: Sequence[Request],
        *,
        adapter: str | None = None,
        policy: str = "base",
        max_turns: int | None = None,
        temperature: float | None = None,
        advanced: Callable[[int, int], None] | None = None,
    ) -> list[Rollout]:
        """Play every request to its end, up to `config.batch_size` of them at a time; the results are in order.

        Args:
            requests: What to play. Results depend on each request alone, not on its company.
            adapter: The student's weights, by the backend's name for them, where a request names no student; None is
                the base.
            policy: How to name them in the dialogues.
            max_turns: Turns allowed; None is the configuration's.
            temperature: Sampling temperature; None is the configuration's.
            advanced: Called with (dialogues ended, dialogues in all) whenever turns were judged or hints have come.
        """
        sampling = Sampling(self.config.max_new_tokens, temperature or self.config.temperature, self.config.top_p)
        turns = max_turns or self.config.max_turns
        student = Student(adapter, policy)
        played = Play(self, requests, sampling, student=student, turns=turns, advanced=advanced).run()
        self.backend.forget()
        return [dialogue.rollout(dialogue.student.policy) for dialogue in played]

    @property
    def waits(self) -> bool:
        """An answer to an attempt takes a model's words, so that others had better not wait for it."""
        return self.teacher.waits or any(detector.waits for detector in self.guard.detectors)

    def ask(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """The teacher's messages made safe for the template, so that the guard reads what the student would read."""
        return [replace(said, text=self.renderer.clean(said.text)) for said in self.teacher.feedback(requests)]

    def hints(self, requests: Sequence[FeedbackRequest]) -> list[Guarded | Exception]:
        """What each wrong attempt is answered with, asked for in one batch and read by the guard.

        A request that breaks teacher or guard has its exception in place of an answer: its company is asked one by one.
        """
        try:
            return [*self.guard.read(requests, self.ask(requests), self.teacher.name, self.ask)]
        except Exception as error:  # a teacher that breaks ends the dialogue it breaks on, not the run or its company
            return [error] if len(requests) == 1 else [self.hints([request])[0] for request in requests]
