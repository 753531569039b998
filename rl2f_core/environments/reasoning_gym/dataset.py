"""Data sets of the package reasoning-gym, generated and scored in worker processes.

The package's generators and scorers can raise or hang, and five of them evaluate the answer as Python.
"""

from __future__ import annotations

import functools
import json
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from rl2f_core.environments.sandbox import pool
from rl2f_core.errors import DataError
from rl2f_core.types import JsonObject

SIZES = {"acre": 1_000, "word_ladder": 500}
"""Sizes of data sets that generate all entries at once, or have few."""
SIZE = 1_000_000
GENERATION_SECONDS = 60.0
"""Time limit of one entry, long enough for a search."""
_MAX_DRAWS = 20


class Entry(NamedTuple):
    """One problem of a data set."""

    position: int
    question: str
    answer: str
    solution: str | None


class ScoringJob(NamedTuple):
    """An answer to the entry at a position, or to a problem given as text."""

    text: str
    position: int | None
    question: str
    answer: str


class LostReplyError(Exception):
    """A worker that hung or crashed, which must not be cached."""


class GymDataset:
    """One data set with its settings.

    Args:
        name: Name of the data set.
        settings: Its settings, and optionally the `level` of its curriculum.
        seed: Seed of its entries.
        limit: Time limit in seconds for scoring one answer.
    """

    def __init__(self, name: str, settings: JsonObject, seed: int, limit: float) -> None:
        self.name, self.settings, self.limit = name, settings, limit
        self.size = SIZES.get(name, SIZE)
        self._spec: JsonObject = {"name": name, "settings": settings, "seed": seed, "size": self.size}
        self._entry = functools.lru_cache(4096)(self._create)
        self._scores: dict[ScoringJob, pool.Reply] = {}
        self._generation_seconds = 0.0

    def entry(self, rng: random.Random) -> Entry:
        """Draw an entry, skipping positions where the generator fails.

        Raises `DataError` with the last error if it fails repeatedly.
        """
        error = ""
        for _ in range(_MAX_DRAWS):
            try:
                result = self._entry(rng.randrange(self.size))
            except LostReplyError as lost:
                result = str(lost)
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
        reply = pool.pool().ask("gym", GENERATION_SECONDS, **self._spec, indices=[position])
        self._generation_seconds = min(GENERATION_SECONDS, max(self._generation_seconds, time.monotonic() - start))
        if reply.lost:
            raise LostReplyError(reply.error)
        if reply.error:
            return reply.error
        item = reply.value[0]
        if not item["answer"] or not item["question"].strip():
            return "an entry has no answer"
        return Entry(position, item["question"].strip(), item["answer"], item["solution"])

    def scores(self, answers: Sequence[ScoringJob]) -> list[tuple[float, str]]:
        """Return the score of each answer by the data set's scorer, 0…1, and the error if there is none."""
        jobs = {
            answer: pool.Job(
                "score",
                self._spec
                | {
                    "answer": answer.text,
                    "index": answer.position,
                    "question": answer.question,
                    "gold": answer.answer,
                },
            )
            for answer in answers
        }
        limit = self.limit + self._generation_seconds  # a worker without the entry in its cache generates it first
        replies = pool.pool().run_cached(jobs, limit, self._scores)
        return [(0.0 if replies[a].error else float(replies[a].value), replies[a].error) for a in answers]


@functools.lru_cache(64)
def open_dataset(name: str, settings: str, seed: int, limit: float) -> GymDataset:
    """Return the data set with these settings (a JSON object), shared by all environments that use it."""
    return GymDataset(name, json.loads(settings), seed, limit)
