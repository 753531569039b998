"""Data of a run for plots, from the database and the run directory, cached until the next ingestion."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import yaml

from app.common.context import Context
from app.plots.evaluation import Evaluation, Outcomes, from_levels, from_outcomes, from_report, read_levels
from app.plots.run_charts import CleanSteps, PlotOptions, sizes_of
from app.plots.series import XKind
from jobs.db.errors import UnknownRunError
from jobs.db.models import Metric, Run
from jobs.db.queries import metrics, outcomes, runs
from jobs.db.queries.outcomes import LeakCounts
from rl2f_core import registry
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.errors import DataError, UnknownNameError
from rl2f_core.evaluation.report_file import read_report
from rl2f_core.types import JsonObject

T = TypeVar("T")
StepSizes = dict[tuple[str, int], dict[int, float]]
"""See `app.plots.run_charts.Sizes`."""
CACHE_SIZE = 48
"""Maximum number of cached runs."""


class VersionedCache(Generic[T]):
    """Thread-safe LRU cache of values, each with the version of its source."""

    def __init__(self, limit: int = CACHE_SIZE) -> None:
        self.limit = limit
        self._entries: OrderedDict[Hashable, tuple[Hashable, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable, version: Hashable, make: Callable[[T | None], T]) -> T:
        """Return the cached value; if its version differs, call `make` with the previous value or None."""
        with self._lock:
            entry = self._entries.get(name)
        if entry is not None and entry[0] == version:
            return entry[1]
        value = make(None if entry is None else entry[1])
        with self._lock:
            self._entries[name] = (version, value)
            self._entries.move_to_end(name)
            while len(self._entries) > self.limit:
                self._entries.popitem(last=False)
        return value


class RunData:
    """Data of runs for plots, cards and tables."""

    def __init__(self, context: Context) -> None:
        self.db = context.db
        self.workspace = context.workspace
        self._rows = VersionedCache[list[Metric]]()
        self._names = VersionedCache[list[str]]()
        self._sizes = VersionedCache[StepSizes]()
        self._clean = VersionedCache[CleanSteps]()
        self._leaks = VersionedCache[tuple[int, LeakCounts]]()
        self._configs = VersionedCache[JsonObject]()
        self._evaluations = VersionedCache[Evaluation | None]()
        self._outcomes = VersionedCache[Outcomes]()

    def rows(self, run: Run) -> list[Metric]:
        """Return all training steps in order."""
        return self._rows.get(_key(run), run.events_offset, lambda _: metrics.steps(self.db, _id(run)))

    def names(self, run: Run) -> list[str]:
        """Return the names of the metrics; see `metrics.names`."""
        return self._names.get(_key(run), run.events_offset, lambda _: metrics.names(self.db, _id(run)))

    def config(self, run: Run) -> JsonObject:
        """Return the configuration as plain data; empty if invalid."""
        return self._configs.get(_key(run), run.config, lambda _: _read(run.config))

    def off_policy(self, run: Run) -> frozenset[str]:
        """Return the stages that learn from demonstrations, without those of unknown methods."""
        stages = set()
        for stage in self.config(run).get("stages") or []:
            method = stage.get("method") if isinstance(stage, dict) else None
            name = method.get("type") if isinstance(method, dict) else method
            try:
                if not registry.get("method", str(name)).on_policy:
                    stages.add(str(stage.get("name")))
            except UnknownNameError:
                continue
        return frozenset(stages)

    def on_policy_rows(self, run: Run) -> list[Metric]:
        """Return the steps of on-policy stages."""
        off_policy = self.off_policy(run)
        return [row for row in self.rows(run) if row.stage not in off_policy]

    def turns(self, run: Run) -> int:
        """Return the allowed turns of the evaluation."""
        config = self.config(run)
        turns = (config.get("evaluation") or {}).get("max_turns") or (config.get("rollout") or {}).get("max_turns")
        if run.kind == "levels":
            turns = config.get("turns")
        return turns if isinstance(turns, int) and turns > 0 else 1

    def view(self, run: Run, x: XKind, weight: float, sizes: bool = True) -> PlotOptions:
        """Return the plot settings of the run."""
        limit = (self.config(run).get("rollout") or {}).get("max_new_tokens")
        return PlotOptions(
            x=x,
            weight=weight,
            began=run.started,
            sizes=self.sizes(run) if sizes else None,
            clean=self._clean_steps(run) if sizes else {},
            off_policy=self.off_policy(run),
            max_new_tokens=limit if isinstance(limit, int) else None,
        )

    def sizes(self, run: Run) -> StepSizes:
        """Return the effective number of dialogues of each step; only new steps are computed."""
        return self._sizes.get(_key(run), run.events_offset, lambda known: self._add_sizes(run, known or {}))

    def _add_sizes(self, run: Run, known: StepSizes) -> StepSizes:
        """Return the known sizes and those of new steps."""
        sizes = dict(known)
        for stage, first, last in self._new_steps(run, known):
            counts = outcomes.training(self.db, _id(run), stage, first, last)
            groups = [(c.stage, c.step, c.group, c.solved_at, c.count) for c in counts]
            sizes |= sizes_of(groups, self._rollout_turns(run))
        return sizes

    def _new_steps(self, run: Run, known: Collection[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
        """Yield each on-policy stage with unknown steps, and the first and the last of these."""
        missing: dict[str, list[int]] = {}
        for row in self.on_policy_rows(run):
            if (row.stage, row.step) not in known:
                missing.setdefault(row.stage, []).append(row.step)
        yield from ((stage, min(steps), max(steps)) for stage, steps in missing.items())

    def _rollout_turns(self, run: Run) -> int:
        turns = (self.config(run).get("rollout") or {}).get("max_turns")
        return turns if isinstance(turns, int) else 1

    def _clean_steps(self, run: Run) -> CleanSteps:
        """Return the means of each step without dialogues in which a leak was read; only new steps are computed."""
        if not outcomes.has_leaks(self.db, _id(run)):
            return {}
        return self._clean.get(_key(run), run.events_offset, lambda known: self._add_clean(run, known or {}))

    def _add_clean(self, run: Run, known: CleanSteps) -> CleanSteps:
        clean = dict(known)
        for stage, first, last in self._new_steps(run, known):
            found = outcomes.without_leaks(self.db, _id(run), stage, first, last, self._rollout_turns(run))
            for step, means in found.items():
                values = {"reward/clean": means.reward, "solved/clean": means.solved}
                clean[stage, step] = {name: value for name, value in values.items() if value is not None}
        return clean

    def leaks_by_turn(self, run: Run) -> LeakCounts:
        """Return the number of leaks that the student read, and of checked hints, by 0-based turn and task."""
        return self._leaks.get(_key(run), run.events_offset, lambda known: self._add_leaks(run, *(known or (0, {}))))[1]

    def _add_leaks(self, run: Run, after: int, known: LeakCounts) -> tuple[int, LeakCounts]:
        """Add the hints of dialogues that were ingested after a row id."""
        phase = "train" if run.kind == "train" else "evaluation"
        newest, counts = outcomes.leaks_by_turn(self.db, _id(run), phase, after)
        total = dict(known)
        for key, (read, checked) in counts.items():
            before = known.get(key, (0, 0))
            total[key] = before[0] + read, before[1] + checked
        return newest, dict(sorted(total.items()))

    def outcomes(self, run: Run) -> Outcomes:
        """Return the turn at which each evaluation task was solved."""
        return self._outcomes.get(_key(run), run.events_offset, lambda _: outcomes.evaluation(self.db, _id(run)))

    def evaluation(self, run: Run) -> Evaluation | None:
        """Return the evaluation from the report, or else from the dialogues so far; None without dialogues.

        A damaged report counts as missing.
        """
        folder = self.workspace.folder(run.folder)
        written = max(_modified(folder / "evaluation" / name) for name in ("report.json", "levels.json"))
        return self._evaluations.get(_key(run), (run.events_offset, written), lambda _: self._read_evaluation(run))

    def _read_evaluation(self, run: Run) -> Evaluation | None:
        try:
            report = read_report(self.workspace.folder(run.folder))
        except DataError:
            report = None
        if report is not None:
            return from_report(report)
        levels = read_levels(self.workspace.folder(run.folder))
        if levels is not None:
            return from_levels(levels)
        outcomes = self.outcomes(run)
        if not outcomes:
            return None
        tasks = max(len(by_task) for by_task in outcomes.values())
        title = f"{run.environment}: {tasks} tasks so far, {self.turns(run)} turns"
        return from_outcomes(outcomes, self.turns(run), title)

    def existing(self, ids: Sequence[int]) -> tuple[list[Run], list[int]]:
        """Return the existing runs in order, and the ids of missing runs."""
        existing, missing = [], []
        for run_id in dict.fromkeys(ids):
            try:
                existing.append(runs.get(self.db, run_id))
            except UnknownRunError:
                missing.append(run_id)
        return existing, missing


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


def _read(text: str) -> JsonObject:
    try:
        data = load_yaml(text)
    except yaml.YAMLError:
        return {}
    return data if isinstance(data, dict) else {}
