"""Base class of leak detectors: does a hint reveal the answer beyond what the dialogue already shows?

README.md of this folder defines what counts as a leak.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import missing_part
from rl2f_core.types import LeakReport, Task

if TYPE_CHECKING:
    from rl2f_core.models.backends.model_pool import ModelPool

SCORES = ("logprob_gain", "leak_probability", "leak_threshold", "error")
"""Fields of a report that stay in the reports of later detectors."""
NO_LEAK = LeakReport(leaked=False)
"""Report on a hint without a leak."""


@dataclass(frozen=True, slots=True)
class LeakQuery:
    """A hint with the dialogue before it."""

    task: Task
    hint: str
    attempts: tuple[str, ...] = ()
    """The student's attempts so far."""
    hints: tuple[str, ...] = ()
    """The earlier hints of the dialogue."""


class LeakDetector(ABC):
    """One detector of the cascade.

    Args:
        config: The detector's configuration.
        environment: Environment of all queries.
        models: Models of the run, for detectors with a model.
    """

    Config: ClassVar[type[ComponentConfig]]
    requires: ClassVar[tuple[type[Environment], ...]] = ()
    """Capabilities that the environment must have; without one of them the detector is skipped."""
    requires_model: ClassVar[bool] = False
    """The detector needs `models` and benefits from batches."""
    requires_answer: ClassVar[bool] = False
    """The detector compares hints with the gold answer, so it checks none on a task without one."""
    runs_async: ClassVar[bool] = False
    """The detector waits for generated text; see `Teacher.runs_async`."""
    gives_probability: ClassVar[bool] = False
    """The detector reports `leak_probability` for each hint that mentions the answer."""

    def __init__(self, config: ComponentConfig, environment: Environment, models: ModelPool | None = None) -> None:
        self.config = config
        self.environment = environment
        self.models = models
        self.cost: float | None = 0.0
        """Price of all checks so far in US dollars; None if an endpoint's price or token counts are unknown."""
        self.num_checked = 0
        """Hints that cascades passed to the detector."""

    @property
    def name(self) -> str:
        """The registered name, also `LeakReport.detector`."""
        return self.config.type

    def should_check(self, report: LeakReport, has_probability: bool) -> bool:
        """Return whether to check a hint with this report of the detectors before; `has_probability`: one gives it."""
        return not report.leaked

    def can_check(self, task: Task) -> bool:
        """Return whether the detector can check the hints on a task."""
        return not self.requires_answer or bool(self.environment.gold_answer(task))

    @abstractmethod
    def check(self, query: LeakQuery) -> LeakReport:
        """Check one hint. Spans are character offsets into `query.hint`."""

    def check_batch(self, queries: Sequence[LeakQuery]) -> list[LeakReport]:
        """Check many hints, in order; a detector with a model overrides this with one batch."""
        return [self.check(query) for query in queries]


def run_cascade(detectors: Sequence[LeakDetector], queries: Sequence[LeakQuery]) -> list[LeakReport]:
    """Return for each hint the report of the last detector that checked it.

    A detector checks the hints that it can check and that those before it did not flag; a judge checks those with an
    uncertain probability. The `SCORES` of earlier reports stay in the report. A flag stays if the judge fails.
    """
    reports = [NO_LEAK] * len(queries)
    has_probability = [False] * len(queries)
    for detector in detectors:
        can_check = [detector.can_check(query.task) for query in queries]
        chosen = [
            i for i, report in enumerate(reports) if can_check[i] and detector.should_check(report, has_probability[i])
        ]
        detector.num_checked += len(chosen)
        for i, report in zip(chosen, detector.check_batch([queries[i] for i in chosen]), strict=True):
            if reports[i].leaked and report.error is not None:
                reports[i] = reports[i].model_copy(update={"error": report.error})
                continue
            earlier = {name: getattr(reports[i], name) for name in SCORES}
            kept = {k: v for k, v in earlier.items() if v is not None and getattr(report, k) is None}
            reports[i] = report.model_copy(update=kept) if kept else report
        if detector.gives_probability:
            has_probability = [earlier or now for earlier, now in zip(has_probability, can_check, strict=True)]
    return reports


def can_check_hints(detectors: Sequence[LeakDetector], environment: Environment, task: Task) -> bool:
    """Return whether a cascade can check the hints on a task; those on a task without a secret have no leak."""
    return not detectors or not environment.has_secret(task) or any(detector.can_check(task) for detector in detectors)


def make_detectors(
    configs: Iterable[ComponentConfig], environment: Environment, models: ModelPool | None = None
) -> list[LeakDetector]:
    """Build the configured detectors, in order, without those that the environment does not support."""
    classes = [(registry.get("leak_detector", config.type), config) for config in configs]
    return [
        cls(config, environment, models)
        for cls, config in classes
        if all(isinstance(environment, capability) for capability in cls.requires)
    ]


def skipped_detectors(configs: Iterable[ComponentConfig], environment: ComponentConfig) -> list[str]:
    """Return one sentence per detector that the configured environment does not support."""
    missing = {
        config.type: missing_part(environment, registry.get("leak_detector", config.type).requires)
        for config in configs
    }
    return [f"leak detector {name}: no {part}: this detector is skipped" for name, part in missing.items() if part]
