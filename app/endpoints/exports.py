"""Exports: what can be exported, start an export, finished exports and their files."""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypedDict, cast

from app.common.context import Context
from app.common.known_values import check_dialogue_filters, check_known
from app.common.urls import page_url
from app.endpoints.endpoint import endpoint
from app.endpoints.types import FileRef, QueuedRun, RunId, RunIds, ShortText, file_ref, validated
from jobs.db.errors import NotFoundError
from jobs.db.models import ACTIVE, Run
from jobs.db.queries import dialogues, runs
from jobs.db.queries.runs import RunFilter
from jobs.export import catalog
from jobs.export.datasets.exporter import refuse_excluded
from jobs.export.datasets.formats import FORMATS
from jobs.export.datasets.resolve_sources import workspace_sources
from jobs.export.datasets.settings import EXCLUSIONS, Exclusion, ExportFilter, ExportSettings
from jobs.export.model.formats import check_format
from jobs.labels import label_queries
from jobs.run_kinds.export import ExportRun
from jobs.run_kinds.model_export import ModelExportRun
from rl2f_core.config.loading import dump_yaml
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject

MAX_LISTED_RUNS = 200
KINDS = ("export", "model_export")
"""Run kinds of exports."""
MAX_FAILED = 3
"""Failed exports that are listed."""


class ExportFile(TypedDict):
    """A file of a finished export."""

    name: str
    bytes: int


class ExportFormat(TypedDict):
    """A dataset of a finished export."""

    name: str
    rows: int
    files: list[str]


class ExportedRun(TypedDict):
    """A run whose dialogues an export contains."""

    run: str
    name: str


class FinishedExport(TypedDict):
    """A finished export."""

    folder: str
    directory: str
    name: str
    created: float
    bytes: int
    run: int | None
    """Run that wrote the export; None if it was deleted."""
    dialogues: int | None
    labels: JsonObject
    privileged: bool
    """Prompts contain the answer."""
    label_source: str
    runs: list[ExportedRun]
    formats: list[ExportFormat]
    left_out: dict[str, str]
    files: list[ExportFile]


class ExportedModel(TypedDict):
    """A finished export of a model."""

    folder: str
    name: str
    created: float
    bytes: int
    checkpoint: str
    base: str
    """Id of the base model."""
    format: str
    files: list[ExportFile]


class ExportJob(TypedDict):
    """An export that waits, runs or failed."""

    run: int
    name: str
    status: str
    detail: str | None
    phase: str | None
    done: float
    total: float | None
    eta: float | None
    created: float
    ended: float | None


class ExportList(TypedDict):
    """All exports of the workspace."""

    finished: list[FinishedExport]
    models: list[ExportedModel]
    active: list[ExportJob]
    failed: list[ExportJob]


class ExportableRun(TypedDict):
    """A run that can be exported."""

    id: int
    name: str
    kind: str


class FormatChoice(TypedDict):
    """A dataset type."""

    name: str
    title: str
    description: str


class ExportChoices(TypedDict):
    """What the form of an export offers."""

    runs: list[ExportableRun]
    formats: list[FormatChoice]
    annotators: list[str]
    phases: list[str]
    stages: list[str]
    checkpoints: list[str]
    conditions: list[str]
    steps: int


class ExcludedDialogues(TypedDict):
    """Dialogues that a field of the filter would include."""

    field: str
    dialogues: int
    what: str
    """Which dialogues, e.g. `of validation or test tasks`."""


class ExportCount(TypedDict):
    """Dialogues that an export would contain."""

    dialogues: int
    labeled: int
    excluded: list[ExcludedDialogues]


class ExportEndpoints:
    """Endpoints of the page *Exports*.

    Args:
        context: The workspace and its services.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    @endpoint("read")
    def list_exports(self) -> ExportList:
        """List finished exports, those that wait or run, and the newest ones that failed."""
        listed = catalog.listed(self._context.workspace)
        run_of = {row.folder: row.id for row in self._jobs(("succeeded",), 200)}
        return {
            "finished": [_finished(each, run_of.get(each["folder"])) for each in listed if "model" not in each],
            "models": [_model(each) for each in listed if "model" in each],
            "active": [_job(row) for row in self._jobs(ACTIVE, 50)],
            "failed": [_job(row) for row in self._jobs(("failed", "stopped", "interrupted"), MAX_FAILED)],
        }

    def _jobs(self, status: tuple[str, ...], limit: int) -> list[Run]:
        """Return the newest exports of datasets and of models with a status."""
        filters = [RunFilter(kind=kind, status=status) for kind in KINDS]
        rows = [row for each in filters for row in runs.page(self._context.db, each, limit=limit).rows]
        return sorted(rows, key=lambda row: -(row.id or 0))[:limit]

    @endpoint("read")
    def export_choices(self, run_ids: RunIds | None = None) -> ExportChoices:
        """List what an export can contain: runs, dataset types, annotators, and the filter values of the given runs.

        Args:
            run_ids: Runs whose stages, checkpoints and conditions are listed.
        """
        db = self._context.db
        listed = [row for row in runs.page(db, limit=MAX_LISTED_RUNS).rows if row.kind not in KINDS]
        chosen = [runs.get(db, number) for number in run_ids or []]
        facets = [dialogues.facets(db, row.id) for row in chosen]
        rows = {row.id: row for row in [*chosen, *listed]}

        def values(name: str) -> list[str]:
            return sorted({value for facet in facets for value in facet[name]})

        return {
            "runs": [{"id": row.id or 0, "name": row.name, "kind": row.kind} for row in rows.values()],
            "formats": [{"name": f.name, "title": f.title, "description": f.short} for f in FORMATS.values()],
            "annotators": label_queries.annotators(db),
            "phases": values("phases"),
            "stages": values("stages"),
            "checkpoints": values("checkpoints"),
            "conditions": values("conditions"),
            "steps": max((facet["steps"][1] for facet in facets), default=0),
        }

    @endpoint("read")
    def count_export(self, run_ids: RunIds, filter: JsonObject | None = None) -> ExportCount:
        """Count the dialogues that an export would contain, and those with a human label.

        Args:
            run_ids: Runs to export.
            filter: Fields of `jobs.export.datasets.settings.ExportFilter`, e.g. `{"phase": "evaluation"}`.
        """
        chosen = validated(ExportFilter, filter or {})
        sources = workspace_sources(self._context.db, self._context.workspace, run_ids)
        tally: Counter[Exclusion | None] = sum((source.tally(chosen) for source in sources), Counter())
        if not tally.total():
            check_dialogue_filters(self._context.db, map(chosen.dialogue_filter, run_ids))
        labeled = chosen.model_copy(update={"labeled_only": True})
        return {
            "dialogues": tally[None],
            "labeled": sum(source.count(labeled) for source in sources),
            "excluded": [{"field": k, "dialogues": tally[k], "what": v} for k, v in EXCLUSIONS.items() if tally[k]],
        }

    @endpoint("run")
    def start_export(self, run_ids: RunIds, settings: JsonObject | None = None) -> QueuedRun:
        """Queue an export of runs.

        Without the filter's `include_test`, `include_demonstrations` and `include_base`, only sampled turns of trained
        policies on training tasks are exported; a run without any is refused.

        Args:
            run_ids: Runs to export.
            settings: Further fields of `jobs.run_kinds.export.ExportRun`: name, formats, files, labels, filter, …
        """
        config = validated(ExportRun, {**(settings or {}), "runs": run_ids, "kind": "export"})
        check_known("annotator", config.annotator, label_queries.annotators(self._context.db))
        self.count_export(run_ids, config.filter.model_dump())
        sources = workspace_sources(self._context.db, self._context.workspace, config.runs)
        refuse_excluded(sources, config.filter)
        parent = config.runs[0] if len(sources) == 1 else None
        run = self._context.queue.add(config, parent=parent)  # type: ignore[arg-type]  # a run kind without a model
        return {"run": run.id or 0, "name": run.name, "url": page_url("run", run=run.id)}

    @endpoint("run")
    def export_model(
        self,
        run_id: RunId,
        checkpoint: ShortText,
        format: ShortText = "safetensors",
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    ) -> QueuedRun:
        """Queue the export of a trained model with its model card.

        Args:
            run_id: The training run.
            checkpoint: Name of the checkpoint, e.g. `rl2f@24`.
            format: safetensors (merged weights), peft (the adapter), or gguf- with f32, f16, bf16, q8_0, q5_1, q5_0,
                q4_1 or q4_0.
            dtype: Type of merged safetensors.
        """
        db, run = self._context.db, runs.get(self._context.db, run_id)
        check_format(format, dtype)
        known = [row.name for row in runs.checkpoints(db, run_id)]
        if checkpoint not in known:
            raise NotFoundError(f"Run {run_id} has no such checkpoint.", value=checkpoint, known=known)
        RunDir(self._context.workspace.folder(run.folder)).checkpoint(checkpoint)
        values = {"run": run.folder, "checkpoint": checkpoint, "format": format, "dtype": dtype}
        config = validated(ModelExportRun, {**values, "name": f"{checkpoint} as {format}"})
        queued = self._context.queue.add(dump_yaml(config), parent=run_id)
        return {"run": queued.id or 0, "name": queued.name, "url": page_url("run", run=queued.id)}

    @endpoint("run")
    def delete_export(self, folder: ShortText) -> None:
        """Delete the files of a finished export; the exported runs remain."""
        catalog.remove(self._context.workspace, folder)

    @endpoint("read")
    def download_export(self, folder: ShortText, name: ShortText) -> FileRef:
        """Return a file of a finished export; `gradio_client` downloads it.

        Args:
            folder: Folder of the export, see `list_exports`.
            name: File name, e.g. `messages.jsonl`.
        """
        return file_ref(catalog.file(self._context.workspace, folder, name))


def _job(row: Run) -> ExportJob:
    columns = {name: getattr(row, name, None) for name in ExportJob.__annotations__}
    return cast(ExportJob, {**columns, "run": row.id})


def _model(export: JsonObject) -> ExportedModel:
    return {
        "folder": export["folder"],
        "name": export["name"],
        "created": export["created"],
        "bytes": export["bytes"],
        "checkpoint": export["model"]["checkpoint"],
        "base": export["model"]["base"],
        "format": next(iter(export["formats"])),
        "files": [{"name": name, "bytes": size} for name, size in sorted(export["files"].items())],
    }


def _finished(export: JsonObject, run: int | None) -> FinishedExport:
    settings = export.get("settings") or ExportSettings().model_dump(mode="json")
    formats = export["formats"].items()
    return cast(FinishedExport, {
        "dialogues": None,
        "left_out": {},
        **{name: value for name, value in export.items() if name in FinishedExport.__annotations__},
        "directory": export["path"],
        "run": run,
        "labels": export.get("labels") or {},
        "privileged": settings.get("privileged", False),
        "label_source": str(settings.get("labels")),
        "runs": [{name: str(run.get(name)) for name in ("run", "name")} for run in export.get("runs", [])],
        "formats": [{"name": name, "rows": each["rows"], "files": sorted(each["files"])} for name, each in formats],
        "files": [{"name": name, "bytes": size} for name, size in sorted(export["files"].items())],
    })  # fmt: skip
