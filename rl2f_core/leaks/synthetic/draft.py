"""What the kinds of planted leaks share: the task and its attempts, phrasings, and seeded choices."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import yaml
from jinja2 import Environment as JinjaEnvironment
from jinja2 import StrictUndefined

from rl2f_core.common.paths import LEAK_BENCHMARK
from rl2f_core.environments.base import Environment
from rl2f_core.types import Task

T = TypeVar("T")
PHRASINGS: dict[str, dict[Any, Any]] = yaml.safe_load((LEAK_BENCHMARK / "phrasings.yaml").read_text(encoding="utf-8"))
TABLES: dict[str, list[str]] = PHRASINGS["tables"]
ORDINALS = TABLES["ordinals"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A task with its attempts, and the random choices of one leak about it."""

    environment: Environment
    """Environment of the task, not the mixture that contains it."""
    task: Task
    answer: str
    attempts: Sequence[str]
    """The student's parsed answers, oldest first; empty if the last attempt has none."""
    rng: random.Random
    variant: int
    """Selects among the variants of a kind that has some."""

    @property
    def last(self) -> str:
        """The last attempt; empty if there is none."""
        return self.attempts[-1] if self.attempts else ""

    def pick(self, pool: Sequence[T]) -> T:
        """Return a random entry of a pool."""
        deck = list(pool)
        self.rng.shuffle(deck)
        return deck[-1]

    def write(self, pool: Sequence[str], **fields: object) -> str:
        """Fill the fields of a random phrasing."""
        return _compile(self.pick(pool)).render(fields, draw=self.rng.randint)

    def opener(self) -> str:
        """Return a sentence beginning, possibly empty."""
        return self.pick(PHRASINGS["shared"]["openers"])

    def state(self, answer: str) -> str:
        """Return a sentence that states an answer."""
        return self.write(PHRASINGS["shared"]["statements"], x=answer)


Leak = Callable[[Draft], str | None]
"""Writes a leak of one kind; None if the kind does not fit the task or the attempts."""


def to_base64(text: str) -> str:
    """Encode UTF-8 text."""
    return base64.b64encode(text.encode()).decode()


def shift(text: str, offset: int) -> str:
    """Add `offset` to the code points of ASCII letters and digits."""
    return "".join(chr(ord(char) + offset) if char.isascii() and char.isalnum() else char for char in text)


def _swap(text: str, old: str, new: str) -> str:
    return text.translate(str.maketrans(old, new))


_JINJA = JinjaEnvironment(
    variable_start_string="<<", variable_end_string=">>", undefined=StrictUndefined, keep_trailing_newline=True
)
_JINJA.filters |= {"b64": to_base64, "shift": shift, "swap": _swap}
_compile = lru_cache(_JINJA.from_string)
