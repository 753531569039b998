"""The misleading control: a hint in the scripted teacher's words that points away from the answer (methods.md §8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rl2f_core import registry
from rl2f_core.config import BaseConfig
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher


@registry.register("teacher")
class MisleadingTeacher(Teacher):
    """Says what `Environment.misleading_hint` says."""

    class Config(BaseConfig):
        """False hints from the environment; needs no model."""

        type: Literal["misleading"] = "misleading"
        """Name of the teacher."""

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """The environment's misleading hint for each request, its chance drawn from the request alone."""
        return [Feedback(self.environment.misleading_hint(r.task, r.verdicts, r.rng())) for r in requests]
