"""Run kind `export`: leak-labeled dialogues of the workspace's runs as datasets in `exports/`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jobs.export.settings import ExportSettings
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run.kinds.base import Kind


class ExportRun(ExportSettings):
    """Export of runs of the workspace."""

    kind: Literal["export"] = "export"
    """Run kind."""
    name: str = Field("export", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$")
    """Display name, and title of the dataset card."""
    runs: tuple[int, ...] = Field(min_length=1, max_length=1000)
    """Ids of the runs whose dialogues are exported."""


@register("run_kind")
class Export(Kind[ExportRun]):
    """Export of dialogues."""

    config_class = ExportRun
    light = True

    def execute(self, config: ExportRun, context: RunContext) -> bool:
        """Export into `exports/FOLDER` of the run's workspace; False if `context.stop` ended it early.

        An export that was stopped or killed leaves no files, and starts again from the first dialogue.
        """
        from jobs.export.exporter import export, summary
        from jobs.export.resolve_sources import open_workspace, workspace_sources

        folder = context.run_dir.path.resolve()
        with open_workspace(folder.parent.parent) as (workspace, db):
            sources = workspace_sources(db, workspace, config.runs)
            manifest = export(
                sources,
                ExportSettings(**config.model_dump(include=set(ExportSettings.model_fields))),
                workspace.exports / folder.name,
                name=config.name,
                progress=context.progress,
                stop=context.stop,
                replace=True,
            )
        if manifest is None:
            return False
        context.log("export", summary(manifest))
        context.journal.commit({"done": True})
        return True
