"""Teacher `human`: a person who writes hints in the Chat; it names the teacher in stored dialogues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.registry import register

NAME = "human"
"""`Hint.teacher` of a person's hint."""


@register("teacher")
class HumanTeacher(Teacher):
    """Placeholder for a person; only the Chat creates such hints, screened and stored like any other."""

    unavailable_reason: ClassVar[str] = (
        "a person cannot hint in a run that nobody watches: open page Chat, choose Play a task, and hint there; "
        "such dialogues are kept, labelled and exported like those of a run"
    )

    class Config(ComponentConfig):
        """A person; only in the Chat."""

        type: Literal["human"] = "human"
        """Name of the teacher."""

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return an error for each request."""
        return [Feedback("", error="No person is available to write a hint.") for _ in requests]
