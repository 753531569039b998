"""Training control `neutral_text`: text without information, with as many tokens as the hint that it replaces.

`contentless` is short, so a student that reads it has other contexts in more ways than in their content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle
from typing import Annotated, Literal

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config.components import by_name, wrapped_by
from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.environments.base import Environment
from rl2f_core.models.backends.model_pool import ModelPool

_WORDS = (
    "Please read the question again and take the time that you need before you write the next answer in the same "
    "form as before."
).split()
_PADS = (" .", ".", " the", "e")


@registry.register("teacher")
class NeutralTextTeacher(Teacher):
    """Replaces each hint of `base` by neutral text of the same number of tokens of the student's tokenizer."""

    class Config(ComponentConfig):
        """Text without information, as long as the hints of another teacher."""

        type: Literal["neutral_text"] = "neutral_text"
        """Name of the teacher."""
        base: Annotated[ComponentConfig, wrapped_by("neutral_text")] = Field(
            by_name("scripted"), json_schema_extra=BASIC_FIELD
        )
        """The teacher whose hints are replaced."""

    config: Config

    def __init__(self, config: Config, environment: Environment, models: ModelPool | None = None) -> None:
        super().__init__(config, environment, models)
        self.base: Teacher = registry.get("teacher", config.base.type)(config.base, environment, models)
        self.runs_async = self.base.runs_async
        self._text = lru_cache(maxsize=512)(lambda tokens: neutral_text(self._count, tokens))

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return a neutral text for each hint of the base; its errors and costs remain."""
        hints = self.base.feedback(requests)
        return [hint if hint.error else replace(hint, text=self._text(self._count(hint.text))) for hint in hints]

    def _count(self, text: str) -> int:
        assert self.models is not None
        return len(self.models.student.tokenizer.encode(text))


def neutral_text(count: Callable[[str], int], tokens: int) -> str:
    """Return a text of `tokens` tokens without information; `count` returns the number of tokens of a text.

    The text is shorter if the tokenizer has none of this length.
    """
    text = ""
    for word in cycle(_WORDS):
        longer = f"{text} {word}".strip()
        if count(longer) > tokens:
            break
        text = longer
    while (size := count(text)) < tokens:
        padded = next((text + pad for pad in _PADS if size < count(text + pad) <= tokens), None)
        if padded is None:
            break
        text = padded
    return text
