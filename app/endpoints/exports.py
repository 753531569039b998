"""Exports: what can be exported, start an export, finished exports and their files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from app.common.known_values import check_checkpoint, check_dialogue_filters, check_known
from app.endpoints.endpoint import Endpoints, endpoint
from app.endpoints.types import (
    MAX_LISTED_RUNS,
    Checkpoint,
    FileRef,
    QueuedRun,
    RunId,
    RunOrOldId,
    RunsOrOldIds,
    ShortText,
    file_ref,
    from_row,
    validated,
)
from jobs.db.models import ACTIVE, Run, RunRef, RunStatus
from jobs.db.queries import dialogues
from jobs.db.queries import runs as queries
from jobs.db.queries.runs import RunFilter
from jobs.export import catalog
from jobs.export.datasets.dataset_types import FORMATS
from jobs.export.datasets.exporter import refuse_excluded
from jobs.export.datasets.resolve_sources import workspace_sources
from jobs.export.datasets.settings import EXCLUSIONS, Exclusion, ExportFilter, ExportSettings
from jobs.export.model.formats import check_format
from jobs.labels import label_queries
from jobs.run_kinds.export import ExportRun, NamedExport
from jobs.run_kinds.model_export import ModelExportRun
from rl2f_core.config.loading import dump_yaml
from rl2f_core.types import FrozenModel, JsonObject

ExportFolder = Annotated[str, Field(max_length=300, description="Folder of a finished export, see `list_exports`.")]
KINDS = ("export", "model_export")
"""Run kinds of exports."""
FAILED: tuple[RunStatus, ...] = ("failed", "stopped", "interrupted")
MAX_FAILED = 3
"""Failed exports that are listed."""


class ExportFile(FrozenModel):
    """A file of a finished export."""

    name: str
    bytes: int
    """Size of the file."""


class ExportFormat(FrozenModel):
    """A dataset of a finished export."""

    name: str
    """Dataset type."""
    rows: int
    files: list[str]
    """Names of its files."""


class ExportedRun(FrozenModel):
    """A run whose dialogues an export contains."""

    run: str
    """Number of the run, or its folder."""
    name: str


class Exported(FrozenModel):
    """What a finished export of dialogues or of a model has."""

    folder: str
    """Name of its folder below the workspace's `exports/`."""
    name: str
    created: float
    bytes: int
    """Size of all files."""
    files: list[ExportFile]
    """All files."""


class FinishedExport(Exported):
    """A finished export of dialogues."""

    directory: str
    """Path of the folder."""
    run: int | None
    """Run that wrote the export; None if it was deleted."""
    dialogues: int | None
    """Number of dialogues; None if it was not recorded."""
    labels: JsonObject
    """Number of hints, and of labels by source."""
    privileged: bool
    """Prompts contain the answer."""
    label_source: str
    """`both`, `human` or `detector`."""
    runs: list[ExportedRun]
    """The exported runs."""
    formats: list[ExportFormat]
    """The datasets."""
    left_out: dict[str, str]
    """Datasets without rows, and the reasons."""


class ExportedModel(Exported):
    """A finished export of a model."""

    checkpoint: Checkpoint
    base: str
    """Id of the base model."""
    format: str
    """`safetensors`, `peft` or a type of GGUF."""
    run: int | None
    """The training run; None if it or the record of the export was deleted."""


class ExportJob(FrozenModel):
    """An export that waits, runs or failed."""

    run: RunId
    name: str
    status: str
    detail: str | None
    phase: str | None
    done: float
    """Completed dialogues, or pairs."""
    total: float | None
    """All dialogues, or pairs."""
    eta: float | None
    """Estimated seconds left."""
    created: float
    ended: float | None


class ExportList(FrozenModel):
    """All exports of the workspace."""

    finished: list[FinishedExport]
    """Finished exports of dialogues, newest first."""
    models: list[ExportedModel]
    """Finished exports of models, newest first."""
    active: list[ExportJob]
    """Exports that wait or run."""
    failed: list[ExportJob]
    """The newest exports that failed or were stopped."""


class FormatChoice(FrozenModel):
    """A dataset type."""

    name: str
    """Value of `formats`."""
    title: str
    description: str
    """What its rows contain."""


class ExportChoices(FrozenModel):
    """What the form of an export offers."""

    runs: list[RunRef]
    """Runs that can be exported."""
    formats: list[FormatChoice]
    """Dataset types."""
    annotators: list[str]
    """Names of all annotators."""
    phases: list[str]
    """Phases of the runs."""
    stages: list[str]
    """Stages of the runs."""
    checkpoints: list[str]
    """Evaluated checkpoints of the runs."""
    conditions: list[str]
    """Conditions of the runs' evaluations."""
    steps: int
    """Largest step of the runs."""


class ExcludedDialogues(FrozenModel):
    """Dialogues that a field of the filter would include."""

    field: str
    """Field of the filter."""
    dialogues: int
    what: str
    """Which dialogues, e.g. `of validation or test tasks`."""


class ExportCount(FrozenModel):
    """Dialogues that an export would contain."""

    dialogues: int
    labeled: int
    """Number of dialogues with a human label."""
    excluded: list[ExcludedDialogues]
    """Dialogues that the filter excludes by default."""


class ExportEndpoints(Endpoints):
    """Endpoints of the page *Exports*."""

    @endpoint("read")
    def list_exports(self) -> ExportList:
        """List finished exports, those that wait or run, and the newest ones that failed."""
        listed = catalog.listed(self._context.workspace)
        done = self._jobs(("succeeded",))
        run_of, parent_of = {row.folder: row.id for row in done}, {row.folder: row.parent for row in done}
        return ExportList(
            finished=[
                _finished(manifest, run_of.get(manifest["folder"])) for manifest in listed if "model" not in manifest
            ],
            models=[_model(item, parent_of.get(item["folder"])) for item in listed if "model" in item],
            active=[from_row(ExportJob, row, run=row.id) for row in self._jobs(ACTIVE)],
            failed=[from_row(ExportJob, row, run=row.id) for row in self._jobs(FAILED, MAX_FAILED)],
        )

    def _jobs(self, status: Sequence[RunStatus], limit: int | None = None) -> list[Run]:
        """Return the exports of datasets and of models with a status, newest first, by default all."""
        filters = [RunFilter(kind=kind, status=status) for kind in KINDS]
        rows = [row for filter in filters for row in queries.matching(self._context.db, filter, limit)]
        return sorted(rows, key=lambda row: -(row.id or 0))[:limit]

    @endpoint("read")
    def export_choices(self, runs: RunsOrOldIds | None = None) -> ExportChoices:
        """List what an export can contain: runs, dataset types, annotators, and the filter values of the given runs.

        Args:
            runs: Runs whose stages, checkpoints and conditions are listed.
        """
        db = self._context.db
        listed = queries.newest(db, MAX_LISTED_RUNS, without=KINDS)
        chosen = [queries.get(db, number) for number in runs or []]
        facets = [dialogues.facets(db, row.id) for row in chosen]
        names = ("phases", "stages", "checkpoints", "conditions")
        return ExportChoices(
            runs=list({row.id: row for row in [*chosen, *listed]}.values()),
            formats=[FormatChoice(name=f.name, title=f.title, description=f.short) for f in FORMATS.values()],
            annotators=label_queries.annotators(db),
            steps=max((facet["steps"][1] for facet in facets), default=0),
            **{name: sorted({value for facet in facets for value in facet[name]}) for name in names},
        )

    @endpoint("read")
    def count_export(self, runs: RunsOrOldIds, filter: ExportFilter | None = None) -> ExportCount:
        """Count the dialogues that an export would contain, and those with a human label.

        Args:
            runs: Runs to export.
            filter: Conditions on the dialogues, e.g. `{"phase": "evaluation"}`.
        """
        chosen = filter or ExportFilter()
        sources = workspace_sources(self._context.db, self._context.workspace, runs)
        tally: Counter[Exclusion | None] = sum((source.tally(chosen) for source in sources), Counter())
        if not tally.total():
            check_dialogue_filters(self._context.db, map(chosen.dialogue_filter, runs))
        labeled = chosen.model_copy(update={"labeled_only": True})
        excluded = [ExcludedDialogues(field=k, dialogues=tally[k], what=v) for k, v in EXCLUSIONS.items() if tally[k]]
        count = sum(source.count(labeled) for source in sources)
        return ExportCount(dialogues=tally[None], labeled=count, excluded=excluded)

    @endpoint("run")
    def start_export(self, runs: RunsOrOldIds, settings: NamedExport | None = None) -> QueuedRun:
        """Queue an export of runs.

        Without the filter's `include_test`, `include_demonstrations` and `include_base`, only sampled turns of trained
        policies on training tasks are exported; a run without any is refused.

        Args:
            runs: Runs to export.
            settings: Name, formats, files, labels, filter and further settings.
        """
        config = validated(ExportRun, {**(settings or NamedExport()).model_dump(), "runs": runs})
        check_known("annotator", config.annotator, label_queries.annotators(self._context.db))
        self.count_export(runs, config.filter)
        sources = workspace_sources(self._context.db, self._context.workspace, config.runs)
        refuse_excluded(sources, config.filter)
        parent = config.runs[0] if len(sources) == 1 else None
        return self._queue(dump_yaml(config), parent)

    @endpoint("run")
    def export_model(
        self,
        run: RunOrOldId,
        checkpoint: Checkpoint,
        format: ShortText = "safetensors",
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    ) -> QueuedRun:
        """Queue the export of a trained model with its model card.

        Args:
            run: The training run.
            format: safetensors (merged weights), peft (the adapter), or gguf- with f32, f16, bf16, q8_0, q5_1, q5_0,
                q4_1 or q4_0.
            dtype: Type of merged safetensors.
        """
        db, row = self._context.db, queries.get(self._context.db, run)
        check_format(format, dtype)
        check_checkpoint(db, run, checkpoint)
        self._folder(row).checkpoint(checkpoint)
        values = {"run": row.folder, "checkpoint": checkpoint, "format": format, "dtype": dtype}
        config = validated(ModelExportRun, {**values, "name": f"{checkpoint} as {format}"})
        return self._queue(dump_yaml(config), run)

    @endpoint("run")
    def delete_export(self, folder: ExportFolder) -> None:
        """Delete the files of a finished export; the exported runs remain."""
        catalog.remove(self._context.workspace, folder)

    @endpoint("read")
    def download_export(self, folder: ExportFolder, name: ShortText) -> FileRef:
        """Return a file of a finished export; `gradio_client` downloads it.

        Args:
            folder: Folder of the export, see `list_exports`.
            name: File name, e.g. `messages.jsonl`.
        """
        return file_ref(catalog.file(self._context.workspace, folder, name))


def _files(export: JsonObject) -> list[ExportFile]:
    return [ExportFile(name=name, bytes=size) for name, size in sorted(export["files"].items())]


def _model(export: JsonObject, run: int | None) -> ExportedModel:
    return ExportedModel(
        run=run,
        **{name: export[name] for name in ("folder", "name", "created", "bytes")},
        **{name: export["model"][name] for name in ("checkpoint", "base")},
        format=next(iter(export["formats"])),
        files=_files(export),
    )


def _finished(export: JsonObject, run: int | None) -> FinishedExport:
    settings = export.get("settings") or ExportSettings().model_dump(mode="json")
    formats = export["formats"].items()
    return FinishedExport(
        **{name: export[name] for name in ("folder", "name", "created", "bytes")},
        dialogues=export.get("dialogues"),
        left_out=export.get("left_out", {}),
        directory=export["path"],
        run=run,
        labels=export.get("labels") or {},
        privileged=settings.get("privileged", False),
        label_source=str(settings.get("labels")),
        runs=[
            ExportedRun(run=str(source.get("run")), name=str(source.get("name"))) for source in export.get("runs", [])
        ],
        formats=[ExportFormat(name=n, rows=entry["rows"], files=sorted(entry["files"])) for n, entry in formats],
        files=_files(export),
    )
