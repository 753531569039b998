"""The contract of a leak detector: does a hint give the answer away beyond what the dialogue already shows?

A value that already stands in the problem or in the student's own attempts is no leak by its mere presence; it is one
where the hint asserts it as the answer.  Confirming a part that the student wrote is no leak; supplying a part that
nobody wrote is a partial one (methods.md §9).
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rl2f_core.config import BaseConfig
from rl2f_core.environments.base import Environment
from rl2f_core.types import LeakReport, Task

if TYPE_CHECKING:
    from rl2f_core.backends.pool import Models

CLEAN = LeakReport(leaked=False)
"""What is said of a hint that gives nothing away."""


@dataclass(frozen=True, slots=True)
class LeakQuery:
    """A hint, and what the student had seen and written before it."""

    task: Task
    hint: str
    attempts: tuple[str, ...] = ()
    """The student's texts so far."""
    hints: tuple[str, ...] = ()
    """The earlier hints of the dialogue."""


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's search for cycles: readings are many small objects and no cycle; the search costs a tenth."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class LeakDetector(ABC):
    """One tier of detection.

    Args:
        config: The detector's own.
        environment: Whose hints it reads.
        models: The models of the run, for tiers that ask one; None where no model is at hand.
    """

    Config: ClassVar[type[BaseConfig]]
    asks_model: ClassVar[bool] = False
    """Whether it asks a model, so that it is worth a batch and needs `models`."""
    waits: ClassVar[bool] = False
    """Its verdicts take a model's words: see `Teacher.waits`."""

    def __init__(self, config: Any, environment: Environment, models: Models | None = None) -> None:
        self.config = config
        self.environment = environment
        self.models = models

    @property
    def name(self) -> str:
        """The registered name, which is also the tier in its reports."""
        return self.config.type

    @abstractmethod
    def check(self, query: LeakQuery) -> LeakReport:
        """The verdict on one hint. Spans are character offsets into `query.hint`."""

    def check_all(self, queries: Sequence[LeakQuery]) -> list[LeakReport]:
        """The verdicts on many hints, in order; a tier that asks a model asks it in one batch."""
        with _no_collection():
            return [self.check(query) for query in queries]


def first_leaks(detectors: Sequence[LeakDetector], queries: Sequence[LeakQuery]) -> list[LeakReport]:
    """For each hint the report of the first detector that convicts, cheapest first.

    A dearer tier reads only what the cheaper ones found clean. `nats` and `error` of the tiers before stay in
    the report.
    """
    reports = [CLEAN] * len(queries)
    for detector in detectors:
        clean = [i for i, report in enumerate(reports) if not report.leaked]
        for i, report in zip(clean, detector.check_all([queries[i] for i in clean]), strict=True):
            if reports[i] is CLEAN:
                reports[i] = report
                continue
            read = {name: getattr(reports[i], name) for name in ("nats", "error") if getattr(report, name) is None}
            before = {name: value for name, value in read.items() if value is not None}
            reports[i] = report.model_copy(update=before) if before else report
    return reports


def first_leak(detectors: Sequence[LeakDetector], query: LeakQuery) -> LeakReport:
    """`first_leaks` of one hint."""
    return first_leaks(detectors, [query])[0]
