"""Detectors timed on the synthetic benchmark, those that ask a model included, and the ROC of the probe's nats."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rl2f_core import registry
from rl2f_core.config import BaseConfig
from rl2f_core.evaluation.statistics import Interval, auc
from rl2f_core.leaks._bench_cases import LeakItem
from rl2f_core.leaks.base import first_leaks
from rl2f_core.leaks.benchmark import environment_of, query_of
from rl2f_core.types import LeakReport

if TYPE_CHECKING:
    from rl2f_core.backends.pool import Models

BATCH = 32
"""Hints of one environment that detectors read at once."""


def spread_out(items: Sequence[LeakItem], limit: int) -> list[LeakItem]:
    """At most `limit` items, the same every time, evenly over the list."""
    return list(items) if len(items) <= limit else [items[i * len(items) // limit] for i in range(limit)]


def try_detectors(
    items: Sequence[LeakItem],
    detectors: Sequence[BaseConfig],
    models: Models | None = None,
    advanced: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[LeakReport], float]:
    """What detectors say of each item, in order, and the seconds that they took.

    Args:
        items: What they judge.
        detectors: Their configs, cheapest first.
        models: For detectors that ask one; loading the probe's is not in the seconds.
        advanced: Called with (items judged, items in all).
    """
    reports: dict[int, LeakReport] = {}
    seconds = 0.0
    for part in detectors:
        if models is not None and part.type == "probe":  # type: ignore[attr-defined]
            models.backend(part.model)  # type: ignore[attr-defined]
    places: dict[str, list[int]] = {}
    for i, item in enumerate(items):
        places.setdefault(json.dumps(item.environment, sort_keys=True), []).append(i)
    for key, where in places.items():
        environment = environment_of(json.loads(key))
        made = [registry.get("leak", part.type)(part, environment, models) for part in detectors]  # type: ignore[attr-defined]
        for start in range(0, len(where), BATCH):
            batch = where[start : start + BATCH]
            queries = [query_of(environment, items[i]) for i in batch]
            began = time.perf_counter()
            found = first_leaks(made, queries)
            seconds += time.perf_counter() - began
            reports.update(zip(batch, found, strict=True))
            advanced(len(reports), len(items))
    return [reports[i] for i in range(len(items))], seconds


def areas(items: Sequence[LeakItem], reports: Sequence[LeakReport]) -> dict[str, Interval]:
    """The area under the ROC curve of the nats: over all items (`all`), and by environment.

    Hints on one task are one cluster. Hints that no tier could judge are left out; empty where another has no nats.
    """
    judged = [(item, report) for item, report in zip(items, reports, strict=True) if report.error is None]
    if not judged or any(report.nats is None for _, report in judged):
        return {}
    groups = {"all": judged}
    for item, report in judged:
        groups.setdefault(str(item.environment["type"]), []).append((item, report))
    return {name: _area(pairs) for name, pairs in groups.items()}


def _area(pairs: Sequence[tuple[LeakItem, LeakReport]]) -> Interval:
    tasks = [(json.dumps(i.environment, sort_keys=True), i.problem, i.answer) for i, _ in pairs]
    return auc([r.nats or 0.0 for _, r in pairs], [i.leak for i, _ in pairs], tasks)
