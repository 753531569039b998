"""The shuffled control: the hint of another task's dialogue (methods.md §8).

It has the form and the length of a real hint and is true of some task, but not of this one.  The other dialogue is
derived from the request alone (its seed, task and number of turns), so that the same seed gives the same words
whatever else is in the batch.

Which task: up to `CANDIDATES` of the same split are looked at, and one with the same public half is preferred, then
one whose problem text shares the most words.  A hidden number in the same range is found at once.  Where each task
draws its own letters, names or operands, the nearest may still differ, and the hint may speak of things that the
student's problem does not have, which tells an attentive student that it is foreign.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from rl2f_core import registry
from rl2f_core.components import Component
from rl2f_core.config import BaseConfig
from rl2f_core.environments.base import CONTENTLESS, Environment
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.types import Hint, Split, Task, Turn

if TYPE_CHECKING:
    from rl2f_core.backends.pool import Models

POOL = 256
"""Other tasks are drawn from the first tasks of a split, so that each is made once and kept."""
CANDIDATES = 50
"""How many of them one request looks at."""
WRONG_TRIES = 20
"""How often the imperfect student is asked for an attempt that is wrong."""


class _Source(Component):
    """A teacher other than this one: a shuffled source would have no bottom, nor would its form."""

    def narrow(self, value: Any) -> Any:
        held = value.get("type") if isinstance(value, dict) else getattr(value, "type", value)
        if held == "shuffled":
            raise ValueError("the source of a shuffled teacher cannot be shuffled; choose another teacher")
        return super().narrow(value)

    def names(self) -> list[str]:
        return [name for name in super().names() if name != "shuffled"]


_source = _Source("teacher")


@registry.register("teacher")
class ShuffledTeacher(Teacher):
    """Gives the hint that the source teacher gives on another task, after as many wrong attempts."""

    class Config(BaseConfig):
        """Hints that belong to another task."""

        type: Literal["shuffled"] = "shuffled"
        """Name of the teacher."""
        source: Annotated[SerializeAsAny[BaseConfig], _source, BeforeValidator(_source.narrow)] = Field("scripted")  # type: ignore[assignment]
        """The teacher whose hints are shuffled."""
        follow: float = Field(0.5, ge=0, le=1)
        """Share of the attempts in the other dialogue that respect the hint before them."""

    def __init__(self, config: Any, environment: Environment, models: Models | None = None) -> None:
        super().__init__(config, environment, models)
        self.source: Teacher = registry.get("teacher", config.source.type)(config.source, environment, models)
        self.waits = self.source.waits
        self._pool: dict[tuple[str, Split, int], Task] = {}

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """The source teacher's hint on another task for each request; one call of the source for the whole batch.

        `Feedback.source_task` names the other task. Where the split holds no other task, or its student cannot be
        wrong, `Feedback.error` says so.
        """
        others = [self._other_dialogue(request) for request in requests]
        told = iter(self.source.feedback([other for other in others if other is not None]))
        answers = []
        for request, other in zip(requests, others, strict=True):
            if other is None:
                error = f"No other {request.task.split} task with a wrong attempt was found for {request.task.id}."
                answers.append(Feedback(CONTENTLESS, error=error))
            else:
                feedback = next(told)
                answers.append(replace(feedback, source_task=other.task.id))
        return answers

    def _other_dialogue(self, request: FeedbackRequest) -> FeedbackRequest | None:
        """The same place in a dialogue on another task; a refused hint (`retry`) moves on to yet another task."""
        rng = random.Random(f"shuffled/{request.seed}/{request.task.id}/{request.retry}")
        for task in self._other_tasks(request.task, rng)[:3]:
            other = self._wrong_turns(task, len(request.turns), rng.getrandbits(31), request.retry)
            if other is not None:
                return replace(other, adapter=request.adapter)
        return None

    def _other_tasks(self, task: Task, rng: random.Random) -> list[Task]:
        """Tasks that are not this one, the most similar public half first; one with the same answer comes last."""
        own, answer = self.environment.canonical(task), self.environment.answer(task)
        words = self._words(task)
        others: list[tuple[tuple[bool, bool, float], Task]] = []
        for index in rng.sample(range(POOL), CANDIDATES):
            other = self._sibling(task, index)
            if self.environment.canonical(other) == own:
                continue
            theirs = self._words(other)
            shared = len(words & theirs) / max(1, len(words | theirs))
            rank = (self.environment.answer(other) == answer, other.public != task.public, -shared)
            others.append((rank, other))
            if rank[:2] == (False, False):
                break
        return [other for _, other in sorted(others, key=lambda pair: pair[0])]

    def _words(self, task: Task) -> set[str]:
        return set(re.findall(r"\w+", self.environment.prompt(task.public)))

    def _sibling(self, task: Task, index: int) -> Task:
        """A task at a position; in a mixture of the same part, since another environment's hint is no fair control."""
        key = self.environment.part_of(task), task.split, index
        if key not in self._pool:
            self._pool[key] = self.environment.sibling(task, index)
        return self._pool[key]

    def _wrong_turns(self, task: Task, length: int, seed: int, retry: int) -> FeedbackRequest | None:
        """`length` wrong attempts of the environment's imperfect student, with the scripted hints between them.

        With the same seed, the dialogue of n attempts is the beginning of that of n + 1.
        """
        rng = random.Random(seed)
        request = FeedbackRequest(task, (), seed=seed, retry=retry)
        while len(request.turns) < length:
            turns, verdicts = list(request.turns), request.verdicts
            if turns:
                said = Hint(text=self.environment.hint(task, verdicts, request.rng()), teacher="scripted")
                turns[-1] = turns[-1].model_copy(update={"hint": said})
            for _ in range(WRONG_TRIES):
                follow = bool(turns) and rng.random() < self.config.follow
                attempt = self.environment.imitate(task, verdicts, rng, follow=follow, right=False)
                verdict = self.environment.verify(task, attempt)
                if not verdict.correct:
                    break
            else:
                return None
            turns.append(Turn(index=len(turns), attempt=attempt, verdict=verdict))
            request = replace(request, turns=tuple(turns))
        return request
