"""kind: export. Leak-labelled dialogues of the workspace's runs become data sets below `exports/`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jobs.export.settings import ExportSettings
from rl2f_core.registry import register
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import LogEvent
from rl2f_core.run.journal import Journal
from rl2f_core.run.progress import Progress, ShouldStop
from rl2f_core.run_kinds.base import Kind


class ExportRun(ExportSettings):
    """An export of some of the workspace's runs."""

    kind: Literal["export"] = "export"
    """Kind of run."""
    name: str = Field("export", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$")
    """For people; the title of the data-set card."""
    runs: tuple[int, ...] = Field(min_length=1, max_length=1000)
    """Numbers of the runs whose dialogues are exported."""


@register("run_kind")
class Export(Kind[ExportRun]):
    """An export as a job."""

    config_class = ExportRun
    light = True

    def execute(
        self, config: ExportRun, run_dir: RunDir, journal: Journal, stop: ShouldStop, progress: Progress
    ) -> bool:
        """Export into `exports/FOLDER` of the workspace that the run lies in; False where `stop` ended it early.

        An export that was stopped or killed left nothing, and starts again from the first dialogue.
        """
        from jobs.export.exporter import export, summary
        from jobs.export.resolve_sources import open_workspace, workspace_sources

        with open_workspace(run_dir.path.resolve().parent.parent) as (workspace, db):
            sources = workspace_sources(db, workspace, config.runs)
            manifest = export(
                sources,
                ExportSettings(**config.model_dump(include=set(ExportSettings.model_fields))),
                workspace.exports / run_dir.path.resolve().name,
                name=config.name,
                progress=progress,
                stop=stop,
                replace=True,
            )
        if manifest is None:
            return False
        text = summary(manifest)
        journal.emit([LogEvent(id="export", text=text)])
        journal.commit({"done": True})
        progress.message(text)
        return True
