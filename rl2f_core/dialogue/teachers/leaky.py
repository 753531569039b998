"""Teacher `leaky`: another teacher, a fraction of whose hints are replaced by leaks of known kind.

The kind is stored with the hint (`Hint.planted`) as ground truth: recall of a detector is measured inside a run, and
planted hints never count as leaks of the other teacher.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from rl2f_core import registry
from rl2f_core.config.components import by_name, wrapped_by
from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.environments.base import Environment
from rl2f_core.errors import FieldValueError
from rl2f_core.types import Message

if TYPE_CHECKING:
    from rl2f_core.config.run import BaseRun
    from rl2f_core.leaks.synthetic.planting import PlantedLeak
    from rl2f_core.models.backends.model_pool import ModelPool


@registry.register("teacher")
class LeakyTeacher(Teacher):
    """Replaces hints of `base` by leaks (`leaks.synthetic.planting.plant`), at random by seed, task and turn.

    The base writes the hint if no kind fits the task and the attempts, after a correct attempt, and after a leak action
    rejected a message (`FeedbackRequest.retry`).
    """

    class Config(ComponentConfig):
        """Leaks of known kind in a fraction of another teacher's hints."""

        type: Literal["leaky"] = "leaky"
        """Name of the teacher."""
        base: Annotated[ComponentConfig, wrapped_by("leaky")] = Field(
            by_name("scripted"), json_schema_extra=BASIC_FIELD
        )
        """The teacher that writes all other hints."""
        rate: float = Field(0.1, ge=0, le=1, json_schema_extra=BASIC_FIELD)
        """Fraction of the hints that are replaced."""
        kinds: tuple[str, ...] = ()
        """Allowed kinds of leaks, e.g. `verbatim` or `roman`; empty for all that fit the task."""

        @field_validator("kinds")
        @classmethod
        def _check_kinds(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
            if not kinds:
                return kinds
            from rl2f_core.leaks.synthetic.planting import KINDS

            unknown = next((kind for kind in kinds if kind not in KINDS), None)
            if unknown is not None:
                raise ValueError(f"unknown kind of leak {unknown!r}; known: {', '.join(KINDS)}")
            return tuple(dict.fromkeys(kinds))

        def check_run(self, run: BaseRun) -> None:
            """Refuse kinds of leaks that no task of the environment can have. Raises `FieldValueError`."""
            if not self.kinds:
                return
            from rl2f_core.leaks.synthetic.planting import VERBATIM, kinds_of

            members = registry.get("environment", run.environment.type).members(run.environment)
            known = {VERBATIM}.union(*(kinds_of(config.type, environment) for environment, config in members))
            if other := [kind for kind in self.kinds if kind not in known]:
                raise FieldValueError(
                    f"teacher.kinds has {', '.join(other)}, which environment {run.environment.type!r} has not; "
                    f"known: {', '.join(sorted(known))}",
                    *("teacher", "kinds"),
                )

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        self.base: Teacher = registry.get("teacher", config.base.type)(config.base, environment, models)
        self.runs_async = self.base.runs_async

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return a planted leak or the base's message for each request."""
        planted = [self._plant(request) for request in requests]
        others = [request for request, leak in zip(requests, planted, strict=True) if leak is None]
        messages = iter(self.base.feedback(others) if others else ())
        return [next(messages) if leak is None else Feedback(leak.text, planted=leak.kind) for leak in planted]

    @classmethod
    def build_prompt(
        cls, config: ComponentConfig, environment: Environment, request: FeedbackRequest
    ) -> tuple[str, tuple[Message, ...]] | None:
        """Return the prompt of the base."""
        assert isinstance(config, cls.Config)
        return registry.get("teacher", config.base.type).build_prompt(config.base, environment, request)

    def _plant(self, request: FeedbackRequest) -> PlantedLeak | None:
        if request.retry or (request.turns and request.turns[-1].verdict.correct):
            return None
        seed = f"leaky/{request.seed}/{request.task.id}/{len(request.turns)}"
        if random.Random(seed).random() >= self.config.rate:
            return None
        from rl2f_core.leaks.synthetic.planting import plant

        return plant(self.environment, request.task, request.verdicts, f"{seed}/leak", self.config.kinds)
