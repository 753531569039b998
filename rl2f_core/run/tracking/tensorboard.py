"""TensorBoard: event files in `tensorboard/` of the run directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rl2f_core.evaluation.formatting import markdown_rows
from rl2f_core.registry import register
from rl2f_core.run.tracking.base import Messages, Tracker, TrackerConfig
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"


@register("tracker")
class TensorBoard(Tracker):
    """Writes scalars, and tables and dialogues as texts."""

    class Config(TrackerConfig):
        """Event files in `tensorboard/` of the run directory; a resumed run adds a file."""

        type: Literal["tensorboard"] = "tensorboard"
        """Name of the tracker."""

    name = "tensorboard"
    packages = ("tensorboard",)
    _writer: SummaryWriter

    def start(self, id: str | None) -> str:
        """Open a new event file; the id is the name of the folder."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.run_dir.path / FOLDER), flush_secs=10)
        return FOLDER

    def log_metrics(self, values: dict[str, float], step: int, time: float) -> None:
        """Log scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=time)

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int) -> None:
        """Log a Markdown table."""
        self._writer.add_text(f"evaluation/{name}", "\n".join(markdown_rows(columns, rows)), step)

    def log_dialogue(self, name: str, messages: Messages, facts: JsonObject, step: int) -> None:
        """Log a dialogue as indented blocks, so that its text is not interpreted."""
        texts = [", ".join(f"{key}: {value}" for key, value in facts.items())]
        for message in messages:
            lines = message["content"].splitlines()
            texts.append(f"{message['role']}:\n\n" + "\n".join(f"    {line}" for line in lines))
        self._writer.add_text(f"{name}/{facts['task']}", "\n\n".join(texts), step)

    def close(self) -> None:
        """Write the remaining data and close the file."""
        self._writer.close()
