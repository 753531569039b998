"""Exports of leak-labelled data: what can be exported, starting one, what is at work, and finished files to take.

Files are handed out from the workspace's `exports/` alone, and only those that a finished export's manifest names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.common.urls import page_url
from jobs.db.models import ACTIVE, Run
from jobs.db.queries import dialogues, runs
from jobs.db.queries.runs import RunFilter
from jobs.export import catalog
from jobs.export.formats import FORMATS
from jobs.export.resolve_sources import workspace_sources
from jobs.export.settings import ExportFilter, ExportSettings
from jobs.labels import label_queries
from jobs.run_kinds.export import ExportRun
from rl2f_core.config.loading import format_validation_error
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from app.common.context import Context

BIG = 2**31 - 1
Number = Annotated[int, Field(ge=1, le=BIG)]
Text = Annotated[str, Field(max_length=300)]
RUNS_SHOWN = 200
FAILED_SHOWN = 3
"""Exports that failed are told until so many newer ones did."""
_FILTER_FIELDS = {"control": "condition", "labelled": "labeled_only"}
"""JSON key → field of `ExportFilter`, if they differ."""
_LABEL_SOURCES = {"people": "human"}
"""JSON value of a label source → `ExportSettings.labels`, if they differ."""


class Chosen(BaseModel):
    """Which dialogues, as it stands in an address."""

    model_config = ConfigDict(extra="ignore")
    runs: Annotated[str, Field(pattern=r"^([0-9]{1,9}(,[0-9]{1,9}){0,999})?$")] = ""
    phase: Text = ""
    stage: Text = ""
    step_from: Annotated[int, Field(ge=0, le=BIG)] | None = None
    step_to: Annotated[int, Field(ge=0, le=BIG)] | None = None
    checkpoint: Text = ""
    control: Text = ""
    without_controls: bool = False
    labelled: bool = False

    def numbers(self) -> list[int]:
        """The runs, each once."""
        return list(dict.fromkeys(int(number) for number in self.runs.split(",") if number))

    def filter(self) -> ExportFilter:
        """As an export takes it; raises `ConfigError`."""
        data = self.model_dump(exclude={"runs"})
        return _checked(ExportFilter, _rename(data, _FILTER_FIELDS))


class Started(BaseModel):
    """An export to start: the fields of `ExportRun`."""

    model_config = ConfigDict(extra="allow")


class Which(BaseModel):
    """A finished export."""

    model_config = ConfigDict(extra="forbid")
    folder: Text


class Job(BaseModel):
    """An export at work, or one that failed."""

    model_config = ConfigDict(extra="forbid")
    run: Number


def router(context: Context) -> APIRouter:
    """Routes below `/api/exports`."""
    api = APIRouter(prefix="/api/exports")
    db, workspace, queue = context.db, context.workspace, context.queue

    @api.get("")
    def all_of_them() -> dict[str, Any]:
        """Finished exports, those at work, and the newest that failed."""
        finished = catalog.listed(workspace)
        at_work = [_job(row) for row in runs.page(db, RunFilter(kind="export", status=ACTIVE), limit=50).rows]
        failed = runs.page(
            db, RunFilter(kind="export", status=("failed", "stopped", "interrupted")), limit=FAILED_SHOWN
        )
        done = {
            row.folder: row.id for row in runs.page(db, RunFilter(kind="export", status=("succeeded",)), limit=200).rows
        }
        return {
            "finished": [{**_finished(each), "run": done.get(each["folder"])} for each in finished],
            "at_work": at_work,
            "failed": [_job(row) for row in failed.rows],
        }

    @api.get("/choices")
    def choices(query: Annotated[Chosen, Query()]) -> dict[str, Any]:
        """What the form offers: runs, data set types, labellers, and what the chosen runs can be filtered by."""
        listed = [row for row in runs.page(db, limit=RUNS_SHOWN).rows if row.kind != "export"]
        chosen = [runs.get(db, number) for number in query.numbers()]
        found: dict[str, set[str]] = {name: set() for name in ("phases", "stages", "checkpoints", "conditions")}
        last = 0
        for row in chosen:
            facets = dialogues.facets(db, row.id)
            last = max(last, facets["steps"][1])
            for name, values in found.items():
                values.update(facets[name])
        rows = {row.id: row for row in [*chosen, *listed]}
        return {
            "runs": [{"id": row.id, "name": row.name, "kind": row.kind} for row in rows.values()],
            "formats": [{"name": f.name, "title": f.title, "about": f.short} for f in FORMATS.values()],
            "labellers": label_queries.annotators(db),
            "facets": {
                **_rename({name: sorted(values) for name, values in found.items()}, {"conditions": "controls"}),
                "steps": last,
            },
        }

    @api.get("/count")
    def count(query: Annotated[Chosen, Query()]) -> dict[str, Any]:
        """How many dialogues would be exported, and how many of them a person labelled."""
        filter = query.filter()
        filters = [filter.dialogue_filter(runs.get(db, number).id or 0) for number in query.numbers()]
        return {
            "dialogues": sum(dialogues.count(db, each) for each in filters),
            "labelled": sum(dialogues.count(db, replace(each, labeled=True)) for each in filters),
        }

    @api.post("")
    def start(body: Started) -> dict[str, Any]:
        """Put an export into the queue."""
        data = _rename(body.model_extra or {}, {"labeller": "annotator"})
        if isinstance(data.get("labels"), str):
            data["labels"] = _LABEL_SOURCES.get(data["labels"], data["labels"])
        if isinstance(data.get("filter"), dict):
            data["filter"] = _rename(data["filter"], _FILTER_FIELDS)
        config = _checked(ExportRun, {**data, "kind": "export"})
        sources = workspace_sources(db, workspace, config.runs)
        parent = config.runs[0] if len(sources) == 1 else None
        run = queue.add(config, parent=parent)  # type: ignore[arg-type]  # a kind of its own, without a model
        return {"run": run.id, "name": run.name, "url": page_url("run", run=run.id)}

    @api.post("/stop")
    def stop(body: Job) -> dict[str, Any]:
        """Stop an export; nothing of it is left."""
        return _job(queue.stop(_export(body.run).id or 0))

    @api.post("/again")
    def again(body: Job) -> dict[str, Any]:
        """Start an export again that failed or was stopped."""
        return _job(queue.resume(_export(body.run).id or 0))

    @api.post("/forget")
    def forget(body: Job) -> dict[str, Any]:
        """Delete the record of an export that failed or was stopped."""
        queue.delete(_export(body.run).id or 0)
        return {}

    @api.post("/remove")
    def remove(body: Which) -> dict[str, Any]:
        """Delete a finished export's files."""
        catalog.remove(workspace, body.folder)
        return {}

    @api.get("/file/{folder}/{name}")
    def file(folder: str, name: str) -> FileResponse:
        """A file of a finished export, to be saved."""
        path = catalog.file(workspace, folder, name)
        headers = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox; default-src 'none'"}
        kind = "application/octet-stream"
        return FileResponse(path, media_type=kind, filename=f"{folder}-{name}", headers=headers)

    def _export(number: int) -> Run:
        row = runs.get(db, number)
        if row.kind != "export":
            raise ConfigError("The run is no export.", value=number, fix="Open its own page.")
        return row

    return api


def _rename(data: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Rename the keys of a mapping."""
    return {names.get(key, key): value for key, value in data.items()}


def _checked(model: Any, values: dict[str, Any]) -> Any:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(format_validation_error(error, model), fix="Correct the field and try again.") from error


def _job(row: Run) -> dict[str, Any]:
    return {
        "run": row.id,
        "name": row.name,
        "status": row.status,
        "detail": row.detail,
        "phase": row.phase,
        "done": row.done,
        "total": row.total,
        "eta": row.eta,
        "created": row.created,
        "ended": row.ended,
        "url": page_url("run", run=row.id),
    }


def _finished(export: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of an export."""
    settings = export.get("settings") or ExportSettings().model_dump(mode="json")
    old_sources = {new: old for old, new in _LABEL_SOURCES.items()}
    return {
        "folder": export["folder"],
        "path": export["path"],
        "name": export["name"],
        "created": export["created"],
        "bytes": export["bytes"],
        "dialogues": export.get("dialogues"),
        "labels": _rename(export.get("labels") or {}, old_sources),
        "privileged": settings.get("privileged", False),
        "label_source": old_sources.get(str(settings.get("labels")), settings.get("labels")),
        "runs": [{"run": str(run.get("run")), "name": str(run.get("name"))} for run in export.get("runs", [])],
        "formats": [
            {"name": name, "rows": entry["rows"], "files": sorted(entry["files"])}
            for name, entry in export["formats"].items()
        ],
        "left_out": export.get("left_out", {}),
        "files": [
            {"name": name, "bytes": size, "url": f"/api/exports/file/{export['folder']}/{name}"}
            for name, size in sorted(export["files"].items())
        ],
    }
