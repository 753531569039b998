"""The contentless control: says that the attempt is wrong and nothing else (methods.md §8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config import BaseConfig
from rl2f_core.environments.base import CONTENTLESS
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher


@registry.register("teacher")
class ContentlessTeacher(Teacher):
    """The same words after every wrong attempt."""

    class Config(BaseConfig):
        """A message without information."""

        type: Literal["contentless"] = "contentless"
        """Name of the teacher."""
        text: str = Field(CONTENTLESS, min_length=1, max_length=2000)
        """What it says."""

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """`text` for each request."""
        return [Feedback(self.config.text) for _ in requests]
