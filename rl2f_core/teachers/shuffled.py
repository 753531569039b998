"""Control `shuffled`: the hint of another task's dialogue.

The hint has the form and length of a real one and is true for another task. The other dialogue depends only on the
request (seed, task, number of turns), not on the rest of the batch.

Of up to `CANDIDATES` tasks of the split, one with the same public data is preferred, then the one whose problem shares
the most words. If each task draws its own letters, names or operands, the hint may mention things that the student's
problem does not have.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config.components import Component, by_name
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import CONTENTLESS, Environment
from rl2f_core.environments.capabilities import Demonstrator, ScriptedHints
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.types import Hint, Split, Task, Turn

if TYPE_CHECKING:
    from rl2f_core.backends.model_pool import ModelPool

POOL = 256
"""Other tasks come from the first tasks of a split, which are cached."""
CANDIDATES = 50
"""Tasks to compare per request."""
MAX_WRONG_TRIES = 20
"""Attempts of the simulated student until one is wrong."""


_SOURCE = Component(
    "teacher",
    other_than="shuffled",
    reason="the source of a shuffled teacher cannot be shuffled; choose another teacher",
)


@registry.register("teacher")
class ShuffledTeacher(Teacher):
    """Returns the source teacher's hint on another task after as many wrong attempts."""

    requires = (ScriptedHints, Demonstrator)

    class Config(ComponentConfig):
        """Hints for another task."""

        type: Literal["shuffled"] = "shuffled"
        """Name of the teacher."""
        source: Annotated[ComponentConfig, _SOURCE] = Field(by_name("scripted"))
        """The teacher whose hints are shuffled."""
        hint_follow_rate: float = Field(0.5, ge=0, le=1)
        """Fraction of attempts in the other dialogue that follow the hint before them."""

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        self.source = registry.get("teacher", config.source.type)(config.source, environment, models)
        self.runs_async = self.source.runs_async
        self._pool: dict[tuple[str, Split, int], Task] = {}

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return the source teacher's hint on another task for each request, in one batch.

        `Feedback.source_task` names the other task. `Feedback.error` is set if no other task has a wrong attempt.
        """
        others = [self._other_dialogue(request) for request in requests]
        feedbacks = iter(self.source.feedback([other for other in others if other is not None]))
        answers = []
        for request, other in zip(requests, others, strict=True):
            if other is None:
                error = f"No other {request.task.split} task has a wrong attempt for {request.task.id}."
                answers.append(Feedback(CONTENTLESS, error=error))
            else:
                answers.append(replace(next(feedbacks), source_task=other.task.id))
        return answers

    def _other_dialogue(self, request: FeedbackRequest) -> FeedbackRequest | None:
        """Return the same turn in a dialogue on another task; each `retry` uses a new task."""
        rng = random.Random(f"shuffled/{request.seed}/{request.task.id}/{request.retry}")
        for task in self._other_tasks(request.task, rng)[:3]:
            other = self._wrong_turns(task, len(request.turns), rng.getrandbits(31), request.retry)
            if other is not None:
                return replace(other, adapter=request.adapter)
        return None

    def _other_tasks(self, task: Task, rng: random.Random) -> list[Task]:
        """Return other tasks, the most similar public data first; tasks with the same answer come last."""
        canonical, answer = self.environment.canonical(task), self.environment.gold_answer(task)
        words = self._words(task)
        others: list[tuple[tuple[bool, bool, float], Task]] = []
        for index in rng.sample(range(POOL), CANDIDATES):
            other = self._sibling(task, index)
            if self.environment.canonical(other) == canonical:
                continue
            other_words = self._words(other)
            shared = len(words & other_words) / max(1, len(words | other_words))
            rank = (self.environment.gold_answer(other) == answer, other.public != task.public, -shared)
            others.append((rank, other))
            if rank[:2] == (False, False):
                break
        return [other for _, other in sorted(others, key=lambda pair: pair[0])]

    def _words(self, task: Task) -> set[str]:
        return set(re.findall(r"\w+", self.environment.prompt(task.public)))

    def _sibling(self, task: Task, index: int) -> Task:
        """Return the cached task at a position, in a mixture from the same sub-environment."""
        key = self.environment.sub_environment_of(task), task.split, index
        if key not in self._pool:
            self._pool[key] = self.environment.similar_task(task, index)
        return self._pool[key]

    def _wrong_turns(self, task: Task, length: int, seed: int, retry: int) -> FeedbackRequest | None:
        """Simulate `length` wrong attempts with scripted hints between them.

        With the same seed, a dialogue of n attempts is a prefix of that of n + 1.
        """
        environment = self.environment
        assert isinstance(environment, ScriptedHints) and isinstance(environment, Demonstrator)
        rng = random.Random(seed)
        request = FeedbackRequest(task, (), seed=seed, retry=retry)
        while len(request.turns) < length:
            turns, verdicts = list(request.turns), request.verdicts
            if turns:
                hint = Hint(text=environment.hint(task, verdicts, request.rng()), teacher="scripted")
                turns[-1] = turns[-1].model_copy(update={"hint": hint})
            for _ in range(MAX_WRONG_TRIES):
                follow = bool(turns) and rng.random() < self.config.hint_follow_rate
                attempt = environment.simulate_attempt(task, verdicts, rng, follow_hint=follow, correct=False)
                verdict = environment.verify(task, attempt)
                if not verdict.correct:
                    break
            else:
                return None
            turns.append(Turn(index=len(turns), attempt=attempt, verdict=verdict))
            request = replace(request, turns=tuple(turns))
        return request
