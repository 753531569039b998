"""Data of a run for plots, from the database and the run directory, cached until the next ingestion."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from app.plots.evaluation import Evaluation, Outcomes, from_levels, from_outcomes, from_report, read_levels, read_report
from app.plots.run_charts import PlotOptions, sizes_of
from app.plots.series import XKind
from jobs.db.models import Metric, Run
from jobs.db.queries import metrics, outcomes, runs
from rl2f_core import registry
from rl2f_core.errors import DataError, UnknownNameError

if TYPE_CHECKING:
    from app.common.context import Context

T = TypeVar("T")
CACHE_SIZE = 48
"""Maximum number of cached runs."""


class VersionedCache:
    """Thread-safe LRU cache of values, each with the version of its source."""

    def __init__(self, limit: int = CACHE_SIZE) -> None:
        self.limit = limit
        self._held: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable, state: Hashable, make: Callable[[Any], T]) -> T:
        """Return the cached value; if its version differs, call `make` with the previous value or None."""
        with self._lock:
            found = self._held.get(name)
        if found is not None and found[0] == state:
            return found[1]
        value = make(None if found is None else found[1])
        with self._lock:
            self._held[name] = (state, value)
            self._held.move_to_end(name)
            while len(self._held) > self.limit:
                self._held.popitem(last=False)
        return value


class RunData:
    """Data of runs for plots, cards and tables."""

    def __init__(self, context: Context) -> None:
        self.db = context.db
        self.workspace = context.workspace
        self._rows, self._sizes, self._configs, self._evaluations, self._outcomes = (VersionedCache() for _ in range(5))

    def rows(self, run: Run) -> list[Metric]:
        """Return all training steps in order."""
        return self._rows.get(_key(run), run.events_offset, lambda _: metrics.steps(self.db, _id(run)))

    def config(self, run: Run) -> dict[str, Any]:
        """Return the configuration as plain data; empty if invalid."""
        return self._configs.get(_key(run), run.config, lambda _: _read(run.config))

    def off_policy(self, run: Run) -> frozenset[str]:
        """Return the stages that learn from demonstrations, without those of unknown methods."""
        found = set()
        for stage in self.config(run).get("stages") or []:
            method = stage.get("method") if isinstance(stage, dict) else None
            name = method.get("type") if isinstance(method, dict) else method
            try:
                if not registry.get("method", str(name)).on_policy:
                    found.add(str(stage.get("name")))
            except UnknownNameError:
                continue
        return frozenset(found)

    def on_policy_rows(self, run: Run) -> list[Metric]:
        """Return the steps of on-policy stages."""
        off_policy = self.off_policy(run)
        return [row for row in self.rows(run) if row.stage not in off_policy]

    def turns(self, run: Run) -> int:
        """Return the allowed turns of the evaluation."""
        config = self.config(run)
        if run.kind == "levels":
            found = config.get("turns")
            return found if isinstance(found, int) and found > 0 else 1
        found = (config.get("evaluation") or {}).get("max_turns") or (config.get("rollout") or {}).get("max_turns")
        return found if isinstance(found, int) and found > 0 else 1

    def view(self, run: Run, x: XKind, weight: float, sizes: bool = True) -> PlotOptions:
        """Return the plot settings of the run."""
        limit = (self.config(run).get("rollout") or {}).get("max_new_tokens")
        return PlotOptions(
            x=x,
            weight=weight,
            began=run.started,
            sizes=self.sizes(run) if sizes else None,
            off_policy=self.off_policy(run),
            max_new_tokens=limit if isinstance(limit, int) else None,
        )

    def sizes(self, run: Run) -> dict[tuple[str, int], dict[int, float]]:
        """Return the effective number of dialogues of each step; only new steps are computed."""
        return self._sizes.get(_key(run), run.events_offset, lambda before: self._counted(run, before or {}))

    def _counted(
        self, run: Run, before: dict[tuple[str, int], dict[int, float]]
    ) -> dict[tuple[str, int], dict[int, float]]:
        found = dict(before)
        turns = (self.config(run).get("rollout") or {}).get("max_turns")
        missing: dict[str, list[int]] = {}
        for row in self.on_policy_rows(run):
            if (row.stage, row.step) not in found:
                missing.setdefault(row.stage, []).append(row.step)
        for stage, steps in missing.items():
            counts = outcomes.training(self.db, _id(run), stage, min(steps), max(steps))
            groups = [(c.stage, c.step, c.group, c.solved_at, c.count) for c in counts]
            found |= sizes_of(groups, turns if isinstance(turns, int) else 1)
        return found

    def outcomes(self, run: Run) -> Outcomes:
        """Return the turn at which each evaluation task was solved."""
        return self._outcomes.get(_key(run), run.events_offset, lambda _: outcomes.evaluation(self.db, _id(run)))

    def evaluation(self, run: Run) -> Evaluation | None:
        """Return the evaluation from the report, or else from the dialogues so far; None without dialogues.

        A damaged report counts as missing.
        """
        folder = self.workspace.folder(run.folder)
        written = max(_modified(folder / "evaluation" / name) for name in ("report.json", "levels.json"))
        return self._evaluations.get(_key(run), (run.events_offset, written), lambda _: self._evaluated(run))

    def _evaluated(self, run: Run) -> Evaluation | None:
        try:
            report = read_report(self.workspace.folder(run.folder))
        except DataError:
            report = None
        if report is not None:
            return from_report(report)
        levels = read_levels(self.workspace.folder(run.folder))
        if levels is not None:
            return from_levels(levels)
        held = self.outcomes(run)
        if not held:
            return None
        settings = self.config(run).get("evaluation") or {}
        tasks = max(len(by_task) for by_task in held.values())
        title = f"{run.environment}: {tasks} tasks so far, {self.turns(run)} turns"
        return from_outcomes(held, self.turns(run), title, *_bootstrap(settings))

    def bootstrap(self, run: Run) -> tuple[int, int]:
        """Return bootstrap samples and seed of the run's evaluation."""
        return _bootstrap(self.config(run).get("evaluation") or {})

    def found(self, ids: Sequence[int]) -> tuple[list[Run], list[int]]:
        """Return the existing runs in order, and the ids of missing runs."""
        from jobs.db.errors import UnknownRunError

        existing, missing = [], []
        for run_id in dict.fromkeys(ids):
            try:
                existing.append(runs.get(self.db, run_id))
            except UnknownRunError:
                missing.append(run_id)
        return existing, missing


def _bootstrap(settings: dict[str, Any]) -> tuple[int, int]:
    resamples, seed = settings.get("bootstrap_samples", 2000), settings.get("seed", 0)
    return (resamples if isinstance(resamples, int) else 2000), (seed if isinstance(seed, int) else 0)


def _modified(path: Path) -> int:
    """Return the modification time in nanoseconds; 0 if missing."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _key(run: Run) -> tuple[int, float]:
    return _id(run), run.created


def _id(run: Run) -> int:
    assert run.id is not None
    return run.id


def _read(text: str) -> dict[str, Any]:
    try:
        found = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}
