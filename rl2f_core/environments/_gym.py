"""Data sets of the package reasoning-gym, made and scored in worker processes.

The package's generators and scorers can raise, hang, and (five of them) evaluate the answer as Python: none of it runs
in this process.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl2f_core.environments import _worker_pool
from rl2f_core.errors import DataError

SIZES = {"acre": 1_000, "word_ladder": 500}
"""Data sets that make all their entries at once, or have few."""
SIZE = 1_000_000
MAKING_SECONDS = 60.0
"""Allowed for one entry: some puzzles are searched for."""
_TRIES = 20
_KEPT = 20_000


class Entry(NamedTuple):
    """One problem of a data set."""

    position: int
    question: str
    answer: str
    solution: str | None


class Said(NamedTuple):
    """An answer to score: to the entry at a position, or to a problem given in words."""

    text: str
    position: int | None
    question: str
    answer: str


class GymSource:
    """One data set with its settings.

    Args:
        name: Of the data set.
        settings: Its own, and `level` for those of a level of its curriculum.
        seed: Fixes its entries.
        limit: Seconds for scoring one answer.
    """

    def __init__(self, name: str, settings: dict[str, Any], seed: int, limit: float) -> None:
        self.name, self.settings, self.seed, self.limit = name, settings, seed, limit
        self.size = SIZES.get(name, SIZE)
        self._entry = functools.lru_cache(4096)(self._made)
        self._scores: dict[Said, tuple[float, str]] = {}
        self._making = 0.0

    def entry(self, rng: random.Random) -> Entry:
        """An entry at a position drawn from `rng`; positions that the generator fails at are passed over.

        Raises `DataError` where it fails at one after the other, with its own words.
        """
        said = ""
        for _ in range(_TRIES):
            position = rng.randrange(self.size)
            found = self._entry(position)
            if isinstance(found, Entry):
                return found
            said = found
        raise DataError(f"reasoning-gym makes no entries of {self.name}: {said}.", value=self.settings,
                        fix="Correct `level` or `settings`.")  # fmt: skip

    def _made(self, position: int) -> Entry | str:
        start = time.monotonic()
        reply = _worker_pool.pool().ask("gym", MAKING_SECONDS, name=self.name, settings=self.settings, seed=self.seed,
                                        size=self.size, indices=[position])  # fmt: skip
        self._making = min(MAKING_SECONDS, max(self._making, time.monotonic() - start))
        if reply.error:
            return reply.error
        made = reply.value[0]
        if not made["answer"] or not made["question"].strip():
            return "an entry has no answer"
        return Entry(position, made["question"].strip(), made["answer"], made["solution"])

    def scores(self, said: Sequence[Said]) -> list[tuple[float, str]]:
        """What the data set's scorer gives each answer, 0…1, and why there is no score where there is none."""
        new = [each for each in dict.fromkeys(said) if each not in self._scores]
        if len(self._scores) > _KEPT:
            self._scores.clear()
            new = list(dict.fromkeys(said))
        if new:
            limit = self.limit + self._making  # a worker that has not made the entry makes it first
            common = {"name": self.name, "settings": self.settings, "seed": self.seed, "size": self.size}
            jobs = [
                _worker_pool.Job("score", {**common, "said": each.text, "index": each.position,
                                           "question": each.question, "answer": each.answer})
                for each in new
            ]  # fmt: skip
            for each, reply in zip(new, _worker_pool.pool().run(jobs, limit), strict=True):
                self._scores[each] = (0.0, reply.error) if reply.error else (float(reply.value), "")
        return [self._scores[each] for each in said]
