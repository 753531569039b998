"""kind: export. Leak-labelled dialogues of the studio's runs become data sets below `exports/`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jobs.export.settings import ExportSettings
from rl2f_core.config import BaseConfig
from rl2f_core.events import LogEvent
from rl2f_core.registry import register
from rl2f_core.run import Journal, Progress, RunDir, Stop


class ExportRun(ExportSettings):
    """An export of some of the studio's runs."""

    kind: Literal["export"] = "export"
    """Kind of run."""
    name: str = Field("export", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}$")
    """For people; the title of the data-set card."""
    runs: tuple[int, ...] = Field(min_length=1, max_length=1000)
    """Numbers of the runs whose dialogues are exported."""


@register("kind")
class Export:
    """An export as a job."""

    class Config(BaseConfig):
        """The name of the kind."""

        type: Literal["export"] = "export"

    config_type = ExportRun
    light = True

    def execute(self, config: ExportRun, run_dir: RunDir, journal: Journal, stop: Stop, progress: Progress) -> bool:
        """Export into `exports/FOLDER` of the studio that the run lies in; False where `stop` ended it early.

        An export that was stopped or killed left nothing, and starts again from the first dialogue.
        """
        from jobs.export.export import export, summary
        from jobs.export.locate import open_studio, studio_sources

        with open_studio(run_dir.path.resolve().parent.parent) as (studio, db):
            sources = studio_sources(db, studio, config.runs)
            manifest = export(
                sources,
                ExportSettings(**config.model_dump(include=set(ExportSettings.model_fields))),
                studio.exports / run_dir.path.resolve().name,
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
        progress.say(text)
        return True
