"""The human teacher: a person who plays a task in the Chat. Dialogues of theirs are kept as data under this name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from rl2f_core.config import BaseConfig
from rl2f_core.registry import register
from rl2f_core.teachers.base import Feedback, FeedbackRequest, Teacher

NAME = "human"
"""`Hint.teacher` of a person's hint."""


@register("teacher")
class HumanTeacher(Teacher):
    """Cannot be asked by a program: its hints are written in the Chat, read by the guard, and stored like any other."""

    not_configurable: ClassVar[str] = (
        "a person cannot hint in a run that nobody watches: open page Chat, choose Play a task, and hint there; "
        "such dialogues are kept, labelled and exported like those of a run"
    )

    class Config(BaseConfig):
        """A person, in the Chat alone."""

        type: Literal["human"] = "human"
        """Name of the teacher."""

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """No message: nobody is there."""
        return [Feedback("", error="Nobody is there to hint.") for _ in requests]
