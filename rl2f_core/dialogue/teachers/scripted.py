"""Teacher `scripted`: the environment's hint from the privileged data and the wrong attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.environments.capabilities import ScriptedHints


@registry.register("teacher")
class ScriptedTeacher(Teacher):
    """Returns `ScriptedHints.hint`."""

    requires = (ScriptedHints,)
    environment: ScriptedHints

    class Config(ComponentConfig):
        """True hints from the environment; needs no model."""

        type: Literal["scripted"] = "scripted"
        """Name of the teacher."""

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return the environment's hint for each request."""
        return [Feedback(self.environment.hint(r.task, r.verdicts, r.rng())) for r in requests]
