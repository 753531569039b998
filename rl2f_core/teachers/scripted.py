"""The scripted teacher: the environment's own hint, made from the privileged half and the wrong attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rl2f_core import registry
from rl2f_core.config import BaseConfig
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher


@registry.register("teacher")
class ScriptedTeacher(Teacher):
    """Says what `Environment.hint` says."""

    class Config(BaseConfig):
        """True hints from the environment; needs no model."""

        type: Literal["scripted"] = "scripted"
        """Name of the teacher."""

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """The environment's hint for each request, its chance drawn from the request alone."""
        return [Feedback(self.environment.hint(r.task, r.verdicts, r.rng())) for r in requests]
