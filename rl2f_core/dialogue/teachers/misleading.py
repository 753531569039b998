"""Control `misleading`: scripted wording that points away from the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import MisleadingHints
from rl2f_core.types import Verdict


@registry.register("teacher")
class MisleadingTeacher(Teacher):
    """Returns `MisleadingHints.misleading_hint`."""

    requires = (MisleadingHints,)
    environment: MisleadingHints

    class Config(ComponentConfig):
        """False hints from the environment; needs no model."""

        type: Literal["misleading"] = "misleading"
        """Name of the teacher."""

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return the environment's misleading hint for each request."""
        return [Feedback(self.environment.misleading_hint(r.task, r.verdicts, r.rng())) for r in requests]


def is_misled(environment: Environment, before: FeedbackRequest, after: Verdict) -> bool | None:
    """Return whether an attempt moves toward the misleading hint on the attempt before it.

    After a contentless hint, the misleading hint is the one that the teacher `misleading` gives at this turn;
    the fraction of such moves is the chance level. None if the environment cannot tell, or after any other hint.

    Args:
        environment: Environment of the task.
        before: The dialogue up to the hint.
        after: Verdict on the next attempt.
    """
    last = before.turns[-1] if before.turns else None
    if last is None or last.hint is None or last.hint.error is not None or last.verdict.correct:
        return None
    if not isinstance(environment, MisleadingHints) or last.hint.teacher not in ("misleading", "contentless"):
        return None
    text = last.hint.text
    if last.hint.teacher == "contentless":
        text = environment.misleading_hint(before.task, before.verdicts, before.rng())
    return environment.is_misled(before.task, last.verdict, text, after)
