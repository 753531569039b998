"""Control `misleading`: scripted wording that points away from the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.capabilities import MisleadingHints
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher


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
