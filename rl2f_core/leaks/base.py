"""The contract of a leak detector: does a hint give the answer away beyond what the dialogue already shows?

A value that already stands in the problem or in the student's own attempts is no leak by its mere presence; it is one
where the hint asserts it as the answer.  Confirming a part that the student wrote is no leak; supplying a part that
nobody wrote is a partial one (methods.md §9).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rl2f_core.config import BaseConfig
from rl2f_core.environments.base import Environment
from rl2f_core.types import LeakReport, Task


@dataclass(frozen=True, slots=True)
class LeakQuery:
    """A hint, and what the student had seen and written before it."""

    task: Task
    hint: str
    attempts: tuple[str, ...] = ()
    """The student's texts so far."""
    hints: tuple[str, ...] = ()
    """The earlier hints of the dialogue."""


class LeakDetector(ABC):
    """One tier of detection."""

    Config: ClassVar[type[BaseConfig]]

    def __init__(self, config: Any, environment: Environment) -> None:
        self.config = config
        self.environment = environment

    @property
    def name(self) -> str:
        """The registered name, which is also the tier in its reports."""
        return self.config.type

    @abstractmethod
    def check(self, query: LeakQuery) -> LeakReport:
        """The verdict on one hint. Spans are character offsets into `query.hint`."""


def first_leak(detectors: Sequence[LeakDetector], query: LeakQuery) -> LeakReport:
    """Run the detectors cheapest first and return the first that convicts, else a clean report."""
    for detector in detectors:
        report = detector.check(query)
        if report.leaked:
            return report
    return LeakReport(leaked=False)
