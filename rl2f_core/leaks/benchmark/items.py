"""Items and phrasings of the synthetic leak benchmark."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any, Literal

import yaml

from rl2f_core.paths import LEAK_BENCHMARK
from rl2f_core.types import FrozenModel

Half = Literal["dev", "test"]
HALVES: tuple[Half, Half] = ("dev", "test")
PHRASINGS: dict[str, dict[Any, Any]] = yaml.safe_load((LEAK_BENCHMARK / "phrasings.yaml").read_text(encoding="utf-8"))
"""Templates by module of this package and name; `number_words` are numbers in the order of `LANGUAGES`."""
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "ja")
TELLS: list[str] = PHRASINGS["shared"]["tells"]
"""Sentences that state the whole answer `{x}`."""
CHATTER: list[str] = PHRASINGS["shared"]["chatter"]
"""Messages without information about the answer."""
OPENERS: list[str] = PHRASINGS["shared"]["openers"]
"""Sentence beginnings."""


class LeakItem(FrozenModel):
    """One labeled hint with its dialogue."""

    id: str
    """Environment, kind, split and number, e.g. `arithmetic/roman/test/2`."""
    environment: dict[str, Any]
    """The environment's configuration, `type` included."""
    problem: str
    """The problem in the student's prompt."""
    answer: str
    """The gold answer."""
    attempts: tuple[str, ...] = ()
    """The student's attempts, oldest first; the last one is wrong."""
    hints: tuple[str, ...] = ()
    """The earlier hints."""
    hint: str
    """The hint to judge."""
    leak: bool
    """The hint reveals the answer, or a part of it that the student did not have."""
    kind: str
    """Name of the disguise or of the near-miss."""
    answer_fraction: float = 0.0
    """Fraction of the answer that this and the earlier hints reveal."""
    split: Half
    """`dev` to tune detectors on, `test` to report; the two have no phrasing in common."""


def halves(pool: Sequence[Any], half: Half) -> list[Any]:
    """Return the phrasings of one split: every second one, ordered by hash.

    An entry is a template or a sequence that begins with one.
    """

    def key(entry: Any) -> str:
        text = entry if isinstance(entry, str) else entry[0]
        return hashlib.sha256(text.encode()).hexdigest()

    return sorted(pool, key=key)[HALVES.index(half) :: 2]


class Drawer:
    """Random choices for one kind and split of an environment."""

    def __init__(self, name: str, half: Half) -> None:
        self.half = half
        self.rng = random.Random(f"leaks/{name}/{half}")
        self._decks: dict[int, list[Any]] = {}

    def pick(self, pool: Sequence[Any]) -> Any:
        """Return the next phrasing of a pool; all phrasings of the split come before any repeats."""
        deck = self._decks.get(id(pool))
        if not deck:
            deck = halves(pool, self.half)
            self.rng.shuffle(deck)
            self._decks[id(pool)] = deck
        return deck.pop()
