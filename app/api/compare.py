"""Several runs as JSON: metrics overlaid, evaluations beside each other, paired differences, differences of configs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Response

from app.api.run import plain_json
from app.plots import comparison, evaluation, run_charts
from app.plots.comparison import CheckpointOutcomes, ComparedRun
from app.plots.run_data import RunData, VersionedCache
from app.plots.series import XKind
from jobs.db.models import Run
from jobs.db.queries import metrics, runs
from jobs.db.queries.runs import RunFilter
from rl2f_core.errors import DataError

if TYPE_CHECKING:
    from app.common.context import Context

MOST = 20
"""Runs that are compared at once."""
PATIENCE = 0.4
"""Seconds that one request spends on paired differences; what is left comes with the next."""
PICKED = 25
"""Runs that the picker offers."""
OF_TRAINING = ("loss", "time/", "tokens", "entropy", "learning_rate", "grad_norm", "updates")
"""Metrics that mean the same in stages that learn from demonstrations."""
Ids = Annotated[str, Query(max_length=400, pattern=r"^[0-9,]*$")]
Smooth = Annotated[float, Query(ge=0, le=0.99)]
Words = Annotated[str, Query(max_length=400)]


def router(context: Context) -> APIRouter:
    """Routes below `/api/compare`."""
    api = APIRouter(prefix="/api/compare")
    db, data, paired = context.db, RunData(context), VersionedCache[dict[str, Any]](2000)

    def members(chosen: Sequence[Run], names: Sequence[str]) -> list[ComparedRun]:
        everything = any(name.startswith(OF_TRAINING) for name in names)
        found = []
        for run in chosen:
            rows = data.rows(run) if everything else data.on_policy_rows(run)
            found.append(ComparedRun(run.id or 0, run.name, rows, run.started, data.config(run)))
        return found

    @api.get("")
    def whole(ids: Ids = "") -> dict[str, Any]:
        """The runs, the metrics that any of them has, and the keys in which their configurations differ."""
        chosen, gone = data.existing(_ids(ids))
        names = sorted({name for run in chosen for name in metrics.names(db, run.id or 0)})
        configs = [data.config(run) for run in chosen]
        groups = comparison.seed_groups(members(chosen, []))
        return {
            "runs": [_run(run, comparison.line_style(i)) for i, run in enumerate(chosen)],
            "gone": gone,
            "series": [item for item in run_charts.catalogue(names) if not item["name"].endswith("/")],
            "config": comparison.config_differences(configs) if len(chosen) > 1 else [],
            "seeds": any(len(group) > 1 for group in groups),
            "version": runs.version(db),
        }

    @api.get("/runs")
    def pick(search: Words = "") -> dict[str, Any]:
        """Runs to choose from, newest first."""
        page = runs.page(db, RunFilter(search=search), limit=PICKED)
        return {"runs": [_run(run) for run in page.rows], "total": page.total}

    @api.get("/version")
    def version() -> dict[str, int]:
        """A number that moves with every change."""
        return {"version": runs.version(db)}

    @api.get("/charts")
    def charts(
        ids: Ids = "", metric: Words = "reward", x: XKind = "step", smooth: Smooth = 0.0, seeds: bool = False
    ) -> Response:
        """One plot a metric; `metric` holds names with commas between them."""
        chosen, _ = data.existing(_ids(ids))
        names = [name for name in metric.split(",") if name][:12]
        found = []
        for name in names:
            chart = comparison.overlay(members(chosen, [name]), name, x, smooth, seeds)
            if chart is not None:
                found.append(chart.as_json())
        return plain_json({"charts": found})

    @api.get("/evaluations")
    def evaluations(ids: Ids = "", base: Words = "", seeds: bool = False) -> dict[str, Any]:
        """Tables of each run, and every checkpoint against `base` (`RUN:CHECKPOINT`), paired over tasks."""
        chosen, _ = data.existing(_ids(ids))
        tables: list[dict[str, Any]] = []
        checkpoints: list[CheckpointOutcomes] = []
        for run in chosen:
            found = data.evaluation(run)
            if found is None:
                tables.append({"run": run.id, "evaluation": None})
                continue
            tables.append({"run": run.id, "evaluation": {**evaluation.as_json(found), "charts": [], "parts": []}})
            held = data.outcomes(run)
            checkpoints += [
                CheckpointOutcomes(run.id or 0, name, held, data.config(run), data.turns(run))
                for name in dict.fromkeys(checkpoint for checkpoint, _ in held)
            ]
        against = _base(checkpoints, base)
        rows, pending = _differences(chosen, checkpoints, against)
        return {
            "tables": tables,
            "checkpoints": [checkpoint.name for checkpoint in checkpoints],
            "base": None if against is None else against.name,
            "differences": rows,
            "pending": pending,
            "merged": _merged(chosen) if seeds else [],
        }

    def _differences(
        chosen: Sequence[Run], checkpoints: Sequence[CheckpointOutcomes], base: CheckpointOutcomes | None
    ) -> tuple[list[dict[str, Any]], int]:
        """Rows as far as they can be had at once, and how many are left for the next request."""
        if base is None:
            return [], 0
        by_id = {run.id: run for run in chosen}
        drawn = data.bootstrap(by_id[base.run])
        others = [checkpoint for checkpoint in checkpoints if checkpoint.name != base.name]
        ends = time.monotonic() + PATIENCE
        rows: list[dict[str, Any]] = []
        for checkpoint in others:
            state = tuple(
                (by_id[s.run].created, by_id[s.run].events_offset, by_id[s.run].config) for s in (checkpoint, base)
            )
            rows.append(paired.get((checkpoint.name, base.name), state, partial(_difference, checkpoint, base, drawn)))
            if time.monotonic() > ends:
                break
        return rows, len(others) - len(rows)

    def _merged(chosen: Sequence[Run]) -> list[dict[str, Any]]:
        """The reports of each configuration's seeds as one table, where there are several."""
        from rl2f_core.evaluation.across_seeds import merge_seeds

        by_id = {run.id: run for run in chosen}
        found = []
        for group in comparison.seed_groups(members(chosen, [])):
            reports = {}
            for member in group:
                try:
                    report = evaluation.read_report(context.workspace.folder(by_id[member.id].folder))
                except DataError:
                    report = None
                if report is not None:
                    reports[f"{member.config.get('seed', '?')} (run {member.id})"] = report
            if len(reports) > 1:
                found.append(comparison.seed_table(merge_seeds(reports)))
        return found

    return api


def _difference(
    checkpoint: CheckpointOutcomes, base: CheckpointOutcomes, drawn: tuple[int, int], _: object
) -> dict[str, Any]:
    return comparison.checkpoint_difference(checkpoint, base, *drawn)


def _ids(text: str) -> list[int]:
    found = [int(part) for part in text.split(",") if part and len(part) < 11]
    if len(dict.fromkeys(found)) > MOST:
        raise DataError(f"At most {MOST} runs are compared at once.", value=len(found), fix="Take some away.")
    return found


def _base(checkpoints: Sequence[CheckpointOutcomes], wanted: str) -> CheckpointOutcomes | None:
    """The one asked for, else the last checkpoint of the first run."""
    named = next((checkpoint for checkpoint in checkpoints if checkpoint.name == wanted), None)
    first = [checkpoint for checkpoint in checkpoints if checkpoint.run == checkpoints[0].run]
    return named or (first[-1] if first else None)


def _run(run: Run, look: tuple[str, str] | None = None) -> dict[str, Any]:
    found = {"id": run.id, "name": run.name, "kind": run.kind, "status": run.status, "environment": run.environment,
             "method": run.method, "model": run.model, "seed": run.seed, "created": run.created,
             "reward": run.reward}  # fmt: skip
    return found | ({"color": look[0], "dash": look[1]} if look else {})
