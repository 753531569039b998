"""Data sets of the package reasoning-gym, created and scored in worker processes.

The package's generators and scorers can raise, hang, and (five of them) evaluate the answer as Python: none of it runs
in this process.
"""

from __future__ import annotations

import functools
import json
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl2f_core.environments.sandbox import pool
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


class ScoringJob(NamedTuple):
    """An answer to score: to the entry at a position, or to a problem given in words."""

    text: str
    position: int | None
    question: str
    answer: str


class GymDataset:
    """One data set with its settings.

    Args:
        name: Of the data set.
        settings: Its own, and `level` for those of a level of its curriculum.
        seed: Fixes its entries.
        limit: Seconds for scoring one answer.
    """

    def __init__(self, name: str, settings: dict[str, Any], seed: int, limit: float) -> None:
        self.name, self.settings, self.limit = name, settings, limit
        self.size = SIZES.get(name, SIZE)
        self._spec: dict[str, Any] = {"name": name, "settings": settings, "seed": seed, "size": self.size}
        self._entry = functools.lru_cache(4096)(self._create)
        self._scores: dict[ScoringJob, tuple[float, str]] = {}
        self._making = 0.0

    def entry(self, rng: random.Random) -> Entry:
        """An entry at a random position, skipping positions where the generator fails.

        Raises `DataError` with the last error if it fails repeatedly.
        """
        error = ""
        for _ in range(_TRIES):
            position = rng.randrange(self.size)
            result = self._entry(position)
            if isinstance(result, Entry):
                return result
            error = result
        raise DataError(
            f"reasoning-gym makes no entries of {self.name}: {error}.",
            value=self.settings,
            fix="Correct `level` or `settings`.",
        )

    def _create(self, position: int) -> Entry | str:
        start = time.monotonic()
        reply = pool.pool().ask("gym", MAKING_SECONDS, **self._spec, indices=[position])
        self._making = min(MAKING_SECONDS, max(self._making, time.monotonic() - start))
        if reply.error:
            return reply.error
        item = reply.value[0]
        if not item["answer"] or not item["question"].strip():
            return "an entry has no answer"
        return Entry(position, item["question"].strip(), item["answer"], item["solution"])

    def scores(self, answers: Sequence[ScoringJob]) -> list[tuple[float, str]]:
        """The score of each answer by the data set's scorer, 0…1, and the error if there is none."""
        new = [each for each in dict.fromkeys(answers) if each not in self._scores]
        if len(self._scores) > _KEPT:
            self._scores.clear()
            new = list(dict.fromkeys(answers))
        if new:
            limit = self.limit + self._making  # a worker without the entry in its cache creates it first
            jobs = [
                pool.Job(
                    "score",
                    self._spec
                    | {"answer": job.text, "index": job.position, "question": job.question, "gold": job.answer},
                )
                for job in new
            ]
            for each, reply in zip(new, pool.pool().run(jobs, limit), strict=True):
                self._scores[each] = (0.0, reply.error) if reply.error else (float(reply.value), "")
        return [self._scores[each] for each in answers]


@functools.lru_cache(64)
def open_dataset(name: str, settings: str, seed: int, limit: float) -> GymDataset:
    """The data set with these settings (a JSON object), shared by all environments that use it."""
    return GymDataset(name, json.loads(settings), seed, limit)
