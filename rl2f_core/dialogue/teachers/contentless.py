"""Control `contentless`: a message that only states that the attempt is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.environments.base import CONTENTLESS


@registry.register("teacher")
class ContentlessTeacher(Teacher):
    """Returns the same text after every wrong attempt."""

    class Config(ComponentConfig):
        """A message without information."""

        type: Literal["contentless"] = "contentless"
        """Name of the teacher."""
        text: str = Field(CONTENTLESS, min_length=1, max_length=2000)
        """The message. The default one is left out in stateful environments, where the student reads an observation."""

    config: Config

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return `text` for each request; by default nothing after an observation, which says no verdict."""
        default = self.config.text == CONTENTLESS
        return [Feedback(r.fallback_hint if default and r.observed else self.config.text) for r in requests]
