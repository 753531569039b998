"""Time detectors on the synthetic benchmark; area under the ROC curve of `logprob_gain`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.leaks.base import run_cascade
from rl2f_core.leaks.benchmark.items import LeakItem
from rl2f_core.leaks.benchmark.score import by_environment, query_of
from rl2f_core.leaks.guard import make_detectors
from rl2f_core.leaks.likelihood import LikelihoodDetector
from rl2f_core.stats.intervals import Interval, auc
from rl2f_core.types import LeakReport

if TYPE_CHECKING:
    from rl2f_core.backends.model_pool import ModelPool

BATCH = 32
"""Hints per batch."""


def spread_out(items: Sequence[LeakItem], limit: int) -> list[LeakItem]:
    """Return at most `limit` items, evenly spaced over the list."""
    return list(items) if len(items) <= limit else [items[i * len(items) // limit] for i in range(limit)]


def try_detectors(
    items: Sequence[LeakItem],
    detectors: Sequence[ComponentConfig],
    models: ModelPool | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[LeakReport], float]:
    """Run detectors on all items; returns the reports, in order, and the seconds without model loading.

    Args:
        items: Items to check.
        detectors: Detector configurations, cheapest first.
        models: For detectors with a model.
        on_progress: Called with (items checked, all items).
    """
    reports: dict[int, LeakReport] = {}
    seconds = 0.0
    for config in detectors:
        if models is not None and isinstance(config, LikelihoodDetector.Config):
            models.backend(config.model)
    for environment, indices in by_environment(items):
        cascade = make_detectors(detectors, environment, models)
        for start in range(0, len(indices), BATCH):
            batch = indices[start : start + BATCH]
            queries = [query_of(environment, items[i]) for i in batch]
            began = time.perf_counter()
            results = run_cascade(cascade, queries)
            seconds += time.perf_counter() - began
            reports.update(zip(batch, results, strict=True))
            on_progress(len(reports), len(items))
    return [reports[i] for i in range(len(items))], seconds


def areas(items: Sequence[LeakItem], reports: Sequence[LeakReport]) -> dict[str, Interval]:
    """Return the area under the ROC curve of `logprob_gain`, over all items (`all`) and by environment.

    Hints on one task are one cluster. Hints with an error are left out; empty if another hint has no `logprob_gain`.
    """
    judged = [(item, report) for item, report in zip(items, reports, strict=True) if report.error is None]
    if not judged or any(report.logprob_gain is None for _, report in judged):
        return {}
    groups = {"all": judged}
    for item, report in judged:
        groups.setdefault(str(item.environment["type"]), []).append((item, report))
    return {name: _area(pairs) for name, pairs in groups.items()}


def _area(pairs: Sequence[tuple[LeakItem, LeakReport]]) -> Interval:
    tasks = [(json.dumps(i.environment, sort_keys=True), i.problem, i.answer) for i, _ in pairs]
    return auc([r.logprob_gain or 0.0 for _, r in pairs], [i.leak for i, _ in pairs], tasks)
