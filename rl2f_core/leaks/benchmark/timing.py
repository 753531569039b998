"""Run detectors on labeled hints with time and cost; area under the ROC curve of `logprob_gain`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from rl2f_core import registry
from rl2f_core.common.stats.intervals import Interval, auc
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.leaks.base import make_detectors, run_cascade
from rl2f_core.leaks.benchmark.score import LeakItem, by_environment, query_of
from rl2f_core.types import LeakReport

if TYPE_CHECKING:
    from rl2f_core.models.backends.model_pool import ModelPool

BATCH = 32
"""Hints per batch."""


@dataclass(frozen=True)
class Trial:
    """Result of a cascade on some items."""

    reports: list[LeakReport]
    """One per item, in order."""
    seconds: float
    """Without model loading. Cached replies of an endpoint take no time."""
    cost: float | None
    """US dollars, also of cached replies; None if a price is unknown."""
    judged: int
    """Hints that a detector with a model checked."""


def needs_model(detectors: Sequence[ComponentConfig]) -> bool:
    """Return whether a cascade uses a model."""
    return any(registry.get("leak_detector", config.type).requires_model for config in detectors)


def spread_out(items: Sequence[LeakItem], limit: int) -> list[LeakItem]:
    """Return at most `limit` items of evenly spaced dialogues; neighbors with the same problem are one dialogue."""
    dialogues = [list(group) for _, group in groupby(items, key=lambda item: (item.problem, item.attempts))]
    count = min(len(dialogues), -(-limit * len(dialogues) // max(1, len(items))))
    return [item for i in range(count) for item in dialogues[i * len(dialogues) // count]][:limit]


def try_detectors(
    items: Sequence[LeakItem],
    detectors: Sequence[ComponentConfig],
    models: ModelPool | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Trial:
    """Run a cascade on all items. An additional check before loads models and tables.

    Without a model, the seconds are those of the processor, so that other processes do not count.

    Args:
        items: Items to check.
        detectors: Detector configurations, cheapest first.
        models: For detectors with a model.
        on_progress: Called with (items checked, all items).
    """
    reports: dict[int, LeakReport] = {}
    seconds, cost, judged = 0.0, [], 0
    clock = time.perf_counter if needs_model(detectors) else time.process_time
    for number, (environment, indices) in enumerate(by_environment(items)):
        for detector in make_detectors(detectors, environment, models):
            if number == 0 or not detector.requires_model:
                detector.check(query_of(environment, items[indices[0]]))
        cascade = make_detectors(detectors, environment, models)
        for start in range(0, len(indices), BATCH):
            batch = indices[start : start + BATCH]
            queries = [query_of(environment, items[i]) for i in batch]
            began = clock()
            results = run_cascade(cascade, queries)
            seconds += clock() - began
            reports.update(zip(batch, results, strict=True))
            on_progress(len(reports), len(items))
        cost += [detector.cost for detector in cascade]
        judged += max((detector.num_checked for detector in cascade if detector.requires_model), default=0)
    known = [price for price in cost if price is not None]
    total = sum(known) if len(known) == len(cost) else None
    return Trial([reports[i] for i in range(len(items))], seconds, total, judged)


def area_under_roc(items: Sequence[LeakItem], reports: Sequence[LeakReport]) -> Interval | None:
    """Return the area under the ROC curve of `logprob_gain`.

    Hints on one task are one cluster. Ambiguous hints and hints with an error are left out. The result is None if
    another hint has no `logprob_gain`.
    """
    pairs = [(i, r) for i, r in zip(items, reports, strict=True) if r.error is None and not i.ambiguous]
    if not pairs or any(report.logprob_gain is None for _, report in pairs):
        return None
    tasks = [(json.dumps(i.environment, sort_keys=True), i.problem, i.answer) for i, _ in pairs]
    return auc([r.logprob_gain or 0.0 for _, r in pairs], [i.leak for i, _ in pairs], tasks)
