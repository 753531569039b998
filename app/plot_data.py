"""What the store and the run's folder hold of a run, in the form that the plots take.

It is kept until more of the run's events were read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from app.plot_evaluation import (
    Evaluation,
    Outcomes,
    from_levels,
    from_outcomes,
    from_report,
    read_levels,
    read_report,
)
from app.plot_run import View, sizes_of
from app.plot_series import XKind
from jobs.store import metrics, outcomes, runs
from jobs.tables import Metric, Run
from rl2f_core import registry
from rl2f_core.errors import DataError, UnknownNameError

if TYPE_CHECKING:
    from app.context import Context

T = TypeVar("T")
KEPT = 48
"""Runs whose numbers stay in memory."""


class Kept:
    """The newest values by name, each with the state it was made from; safe between threads."""

    def __init__(self, limit: int = KEPT) -> None:
        self.limit = limit
        self._held: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable, state: Hashable, make: Callable[[Any], T]) -> T:
        """The value, made again where `state` is another; `make` is handed the last value, or None."""
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
    """Numbers of runs for plots, cards and tables."""

    def __init__(self, context: Context) -> None:
        self.db = context.db
        self.studio = context.studio
        self._rows, self._sizes, self._configs, self._evaluations, self._outcomes = (Kept() for _ in range(5))

    def rows(self, run: Run) -> list[Metric]:
        """All training steps, in order."""
        return self._rows.get(_key(run), run.offset, lambda _: metrics.steps(self.db, _id(run)))

    def config(self, run: Run) -> dict[str, Any]:
        """The configuration as plain data; empty where it cannot be read."""
        return self._configs.get(_key(run), run.config, lambda _: _read(run.config))

    def off_policy(self, run: Run) -> frozenset[str]:
        """Stages that learn from demonstrations, by name; a method that is not installed counts as none of them."""
        found = set()
        for stage in self.config(run).get("stages") or []:
            method = stage.get("method") if isinstance(stage, dict) else None
            name = method.get("type") if isinstance(method, dict) else method
            try:
                if not getattr(registry.get("method", str(name)), "on_policy", True):
                    found.add(str(stage.get("name")))
            except UnknownNameError:
                continue
        return frozenset(found)

    def played(self, run: Run) -> list[Metric]:
        """The steps of stages that learn from their own dialogues."""
        left_out = self.off_policy(run)
        return [row for row in self.rows(run) if row.stage not in left_out]

    def turns(self, run: Run) -> int:
        """Turns that an evaluation allows."""
        config = self.config(run)
        if run.kind == "levels":
            found = config.get("turns")
            return found if isinstance(found, int) and found > 0 else 1
        found = (config.get("evaluation") or {}).get("max_turns") or (config.get("rollout") or {}).get("max_turns")
        return found if isinstance(found, int) and found > 0 else 1

    def view(self, run: Run, x: XKind, weight: float, sizes: bool = True) -> View:
        """How the run's plots are to be drawn."""
        limit = (self.config(run).get("rollout") or {}).get("max_new_tokens")
        return View(
            x=x,
            weight=weight,
            began=run.started,
            sizes=self.sizes(run) if sizes else None,
            off_policy=self.off_policy(run),
            max_new_tokens=limit if isinstance(limit, int) else None,
        )

    def sizes(self, run: Run) -> dict[tuple[str, int], dict[int, float]]:
        """How many independent dialogues lie behind the shares of each step; only new steps are counted anew."""
        return self._sizes.get(_key(run), run.offset, lambda before: self._counted(run, before or {}))

    def _counted(
        self, run: Run, before: dict[tuple[str, int], dict[int, float]]
    ) -> dict[tuple[str, int], dict[int, float]]:
        found = dict(before)
        turns = (self.config(run).get("rollout") or {}).get("max_turns")
        missing: dict[str, list[int]] = {}
        for row in self.played(run):
            if (row.stage, row.step) not in found:
                missing.setdefault(row.stage, []).append(row.step)
        for stage, steps in missing.items():
            counts = outcomes.training(self.db, _id(run), stage, min(steps), max(steps))
            groups = [(c.stage, c.step, c.group, c.solved_at, c.count) for c in counts]
            found |= sizes_of(groups, turns if isinstance(turns, int) else 1)
        return found

    def outcomes(self, run: Run) -> Outcomes:
        """Which task of its evaluation was solved when."""
        return self._outcomes.get(_key(run), run.offset, lambda _: outcomes.evaluation(self.db, _id(run)))

    def evaluation(self, run: Run) -> Evaluation | None:
        """From the report where it is written, else from the dialogues so far; None where nothing was played.

        A damaged report counts as none, and its dialogues are counted instead.
        """
        folder = self.studio.folder(run.folder)
        written = max(_modified(folder / "evaluation" / name) for name in ("report.json", "levels.json"))
        return self._evaluations.get(_key(run), (run.offset, written), lambda _: self._evaluated(run))

    def _evaluated(self, run: Run) -> Evaluation | None:
        try:
            report = read_report(self.studio.folder(run.folder))
        except DataError:
            report = None
        if report is not None:
            return from_report(report)
        levels = read_levels(self.studio.folder(run.folder))
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
        """Resamples and seed of intervals of differences, as the run's evaluation has them."""
        return _bootstrap(self.config(run).get("evaluation") or {})

    def found(self, ids: Sequence[int]) -> tuple[list[Run], list[int]]:
        """The runs that exist, in order, and the numbers of those that do not."""
        from jobs.errors import UnknownRunError

        there, gone = [], []
        for run_id in dict.fromkeys(ids):
            try:
                there.append(runs.get(self.db, run_id))
            except UnknownRunError:
                gone.append(run_id)
        return there, gone


def _bootstrap(settings: dict[str, Any]) -> tuple[int, int]:
    resamples, seed = settings.get("bootstrap", 2000), settings.get("seed", 0)
    return (resamples if isinstance(resamples, int) else 2000), (seed if isinstance(seed, int) else 0)


def _modified(path: Path) -> int:
    """When a file was written, in nanoseconds; 0 where there is none."""
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
