"""One run as JSON: what it is, how it goes, its plots, its files. What may take long is kept while nothing changed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api._tail import TAIL, tail
from app.plots import evaluation as evaluation_plots
from app.plots import run_charts, summary_cards
from app.plots.run_data import RunData
from app.plots.series import XKind
from jobs.db.errors import NotFoundError
from jobs.db.models import Checkpoint, Metric, Note, Run, Stage
from jobs.db.queries import metrics, notes, outcomes, runs
from jobs.worker.status_files import LOG
from rl2f_core.errors import DataError, RunError
from rl2f_core.metrics.teacher_costs import add_costs, costs_text

if TYPE_CHECKING:
    from app.common.context import Context

Id = Annotated[int, Field(ge=1, le=2**31 - 1)]
Smooth = Annotated[float, Query(ge=0, le=0.99)]
Act = Literal["stop", "abort", "resume", "delete"]
ACTS: dict[str, tuple[Act, ...]] = {
    "queued": ("stop",),
    "starting": ("stop", "abort"),
    "running": ("stop", "abort"),
    "stopping": ("abort",),
    "succeeded": ("delete",),
    "failed": ("resume", "delete"),
    "stopped": ("resume", "delete"),
    "interrupted": ("resume", "delete"),
}
"""What can be done with a run of each status."""
LOGS = 100
NAMED = 24
"""Metrics that one request draws by name."""
UNNAMEABLE = re.compile(r"[^A-Za-z0-9 ._-]")
"""What the name of a run cannot hold, such as the @ of a checkpoint."""
FIELDS = ("id", "name", "kind", "status", "detail", "origin", "parent", "environment", "model", "method", "seed",
          "device", "created", "started", "ended", "sessions", "phase", "done", "total", "eta", "reward",
          "tokens_per_second", "heartbeat", "version", "folder")  # fmt: skip


class Asked(BaseModel):
    """Something to be done with the run."""

    model_config = ConfigDict(extra="forbid")
    act: Act


class Named(BaseModel):
    """A checkpoint by its name."""

    model_config = ConfigDict(extra="forbid")
    checkpoint: Annotated[str, Field(max_length=200)]


class Text(BaseModel):
    """A note."""

    model_config = ConfigDict(extra="forbid")
    text: Annotated[str, Field(max_length=notes.MAX_CHARS)]


class Tags(BaseModel):
    """All tags of the run."""

    model_config = ConfigDict(extra="forbid")
    tags: Annotated[list[Annotated[str, Field(max_length=60)]], Field(max_length=50)]


def router(context: Context) -> APIRouter:
    """Routes below `/api/run`."""
    api = APIRouter(prefix="/api/run")
    db, queue, data = context.db, context.queue, RunData(context)

    @api.get("/{run_id}")
    def whole(run_id: Id) -> dict[str, Any]:
        """All but plots and files."""
        run = runs.get(db, run_id)
        held = notes.of_run(db, run_id)
        rows, evaluated = data.rows(run), data.evaluation(run)
        return {
            "run": {**{name: getattr(run, name) for name in FIELDS}, "bad_lines": run.invalid_lines},
            "acts": list(ACTS.get(run.status, ())),
            "cards": summary_cards.cards(data.on_policy_rows(run), evaluated),
            "steps": len(rows),
            "teacher": _teacher([*rows, *metrics.evaluations(db, run_id)]),
            "evaluated": None if evaluated is None else [evaluated.title, evaluated.whole, len(evaluated.cells)],
            "stages": [_stage(stage, data.off_policy(run)) for stage in runs.stages(db, run_id)],
            "checkpoints": [_checkpoint(row) for row in runs.checkpoints(db, run_id)],
            "children": [_child(row) for row in outcomes.child_runs(db, run_id)],
            "tags": runs.tags(db, run_id),
            "notes": [_note(row) for row in held if row.event_id is None],
            "other_notes": sum(row.event_id is not None for row in held),
        }

    @api.get("/{run_id}/version")
    def version(run_id: Id) -> dict[str, int]:
        """A number that moves with everything of the run; 404 once it is gone."""
        return {"version": runs.version(db, run_id)}

    @api.get("/{run_id}/charts")
    def charts(run_id: Id, x: XKind = "step", smooth: Smooth = 0.0, names: str = "") -> Response:
        """The overview, or the metrics of `names` (with commas between them)."""
        run = runs.get(db, run_id)
        rows = data.rows(run)
        wanted = [name for name in names.split(",") if name][:NAMED]
        view = data.view(run, x, smooth, sizes=not wanted)
        made = run_charts.series(rows, wanted, view) if wanted else run_charts.overview(rows, view)
        left_out = [stage.name for stage in runs.stages(db, run_id) if stage.name in view.off_policy]
        return plain_json(
            {"version": run.version, "charts": [chart.as_json() for chart in made], "demonstrated": left_out}
        )

    @api.get("/{run_id}/series")
    def series(run_id: Id) -> dict[str, Any]:
        """Every metric there is, for the search box."""
        run = runs.get(db, run_id)
        shown = {
            name for chart in run_charts.overview(data.rows(run), data.view(run, "step", 0.0)) for name in chart.names
        }
        return {"series": run_charts.catalogue(metrics.names(db, run_id)), "shown": sorted(shown)}

    @api.get("/{run_id}/evaluation")
    def evaluation(run_id: Id) -> dict[str, Any]:
        """Tables, findings and plots; `evaluation` is null where nothing was played."""
        run = runs.get(db, run_id)
        found = data.evaluation(run)
        return {"evaluation": None if found is None else evaluation_plots.as_json(found)}

    @api.get("/{run_id}/config")
    def config(run_id: Id) -> dict[str, Any]:
        """The YAML as it lies in the run's folder."""
        return {"yaml": runs.get(db, run_id).config}

    @api.get("/{run_id}/environment")
    def environment(run_id: Id) -> dict[str, Any]:
        """Where the run came from: seed, revision, packages, machine."""
        run = runs.get(db, run_id)
        path = context.workspace.folder(run.folder) / "meta.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"meta": None}
        except (OSError, ValueError) as error:
            raise DataError("The record of the run's environment cannot be read.", value=path.name) from error
        return {"meta": found if isinstance(found, dict) else None}

    @api.get("/{run_id}/log")
    def log(run_id: Id, at: Annotated[int | None, Query(ge=0, le=2**62)] = None) -> dict[str, Any]:
        """What the worker printed, from byte `at` on, or the end of it; and the run's own sentences."""
        run = runs.get(db, run_id)
        found = tail(context.workspace.folder(run.folder) / LOG, at)
        rows = [] if at is not None else [
            {"time": row.time, "level": row.level, "text": row.text[:TAIL]} for row in runs.logs(db, run_id, LOGS)
        ]  # fmt: skip
        return {**found.as_json(), "rows": rows, "status": run.status}

    @api.post("/{run_id}/act")
    def act(run_id: Id, body: Asked) -> dict[str, Any]:
        """Stop, abort, resume or delete; 409 where the run's status does not allow it any more."""
        run = runs.get(db, run_id)
        if body.act not in ACTS.get(run.status, ()):
            raise RunError(f"Run {run_id} is {run.status} now.", value=body.act, known=ACTS.get(run.status, ()),
                           fix="Look again: something else changed it meanwhile.")  # fmt: skip
        doing: dict[Act, Callable[[int], Any]] = {
            "stop": queue.stop, "abort": queue.abort, "resume": queue.resume, "delete": queue.delete
        }  # fmt: skip
        doing[body.act](run_id)
        return {"status": "deleted" if body.act == "delete" else runs.get(db, run_id).status}

    @api.post("/{run_id}/evaluate")
    def evaluate(run_id: Id, body: Named) -> dict[str, Any]:
        """Put an evaluation of one checkpoint into the queue."""
        from rl2f_core.run_kinds.eval import eval_config

        run = runs.get(db, run_id)
        known = [row.name for row in runs.checkpoints(db, run_id)]
        if body.checkpoint not in known:
            raise NotFoundError("There is no such checkpoint.", value=body.checkpoint, known=known)
        made = eval_config([(context.workspace.folder(run.folder), body.checkpoint)])
        name = UNNAMEABLE.sub("-", f"eval {run.name} {body.checkpoint}")
        added = queue.add(made, name=name[:100], parent=run_id)
        return {"run": added.id}

    @api.put("/{run_id}/tags")
    def tags(run_id: Id, body: Tags) -> dict[str, Any]:
        """Replace the tags."""
        runs.set_tags(db, run_id, body.tags)
        return {"tags": runs.tags(db, run_id)}

    @api.post("/{run_id}/notes")
    def note(run_id: Id, body: Text) -> dict[str, Any]:
        """Keep a remark."""
        return _note(notes.add(db, run_id, body.text))

    @api.delete("/{run_id}/notes/{note_id}")
    def unnote(run_id: Id, note_id: Id) -> dict[str, Any]:
        """Delete a remark."""
        if note_id not in [row.id for row in notes.of_run(db, run_id)]:
            raise NotFoundError(
                "There is no such note.", value=note_id, fix="Reload the page: it may have been deleted."
            )
        notes.delete(db, note_id)
        return {"deleted": note_id}

    return api


def plain_json(data: Any) -> Response:
    """Large plain data as JSON, without a walk through all of it by the framework."""
    return Response(json.dumps(data, allow_nan=False, separators=(",", ":")), media_type="application/json")


def _teacher(rows: Iterable[Metric]) -> str | None:
    """What the run's model teacher cost so far; None where no model taught."""
    spent = add_costs(row.values for row in rows)
    return costs_text(spent) if spent else None


def _stage(stage: Stage, off_policy: frozenset[str]) -> dict[str, Any]:
    seconds = stage.ended - stage.started if stage.started is not None and stage.ended is not None else None
    return {
        "name": stage.name,
        "method": stage.method,
        "steps": stage.steps,
        "done": stage.done,
        "started": stage.started,
        "seconds": seconds,
        "demonstrations": stage.name in off_policy,
    }


def _checkpoint(row: Checkpoint) -> dict[str, Any]:
    return {"name": row.name, "stage": row.stage, "step": row.step, "sha256": row.sha256, "time": row.time}


def _child(row: Run) -> dict[str, Any]:
    return {"id": row.id, "name": row.name, "kind": row.kind, "status": row.status, "created": row.created}


def _note(row: Note) -> dict[str, Any]:
    return {"id": row.id, "text": row.text, "author": row.author, "time": row.time}
