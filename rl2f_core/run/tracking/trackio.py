"""Trackio: local by default; `TRACKIO_SPACE_ID` and `TRACKIO_DIR` are its own variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rl2f_core.registry import register
from rl2f_core.run.tracking.base import Messages, ProjectTrackerConfig, Tracker
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from trackio import Run


@register("tracker")
class Trackio(Tracker):
    """Logs metrics, tables, and dialogues as traces."""

    class Config(ProjectTrackerConfig):
        """Runs of Trackio, in its own folder; `trackio show` displays them."""

        type: Literal["trackio"] = "trackio"
        """Name of the tracker."""

    name = "trackio"
    packages = ("trackio",)
    settings: Config
    _run: Run

    def start(self, id: str | None) -> str:
        """Start or resume a run; the id is its name."""
        import trackio

        id = id or self.new_id()
        self._run = trackio.init(
            project=self.settings.project,
            name=id,
            config=self.public_config(),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return id

    def log_metrics(self, values: dict[str, float], step: int, time: float) -> None:
        """Log metrics."""
        self._run.log(values, step=step)

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int) -> None:
        """Log a table."""
        import trackio

        table = trackio.Table(columns=list(columns), data=[list(row) for row in rows])
        self._run.log({f"evaluation/{name}": table}, step=step)

    def log_dialogue(self, name: str, messages: Messages, facts: JsonObject, step: int) -> None:
        """Log a dialogue as a trace."""
        import trackio

        self._run.log({f"dialogues/{name}": trackio.Trace(messages=messages, metadata=facts)}, step=step)

    def close(self) -> None:
        """Send the remaining data."""
        self._run.finish()
