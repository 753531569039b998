"""Weights & Biases; the key comes from `WANDB_API_KEY` or `wandb login`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError
from rl2f_core.registry import register
from rl2f_core.run.directory import RunDir
from rl2f_core.run.observers import CLOSE_SECONDS
from rl2f_core.run.tracking.base import Messages, ProjectTrackerConfig, Tracker
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from wandb import Run

STEP = "train_step"
"""Metric on the horizontal axis of all others."""


@register("tracker")
class WandB(Tracker):
    """Logs metrics, and tables and dialogues as tables."""

    class Config(ProjectTrackerConfig):
        """Runs of Weights & Biases; files in `wandb/` of the run directory."""

        type: Literal["wandb"] = "wandb"
        """Name of the tracker."""
        entity: str | None = Field(None, json_schema_extra=BASIC_FIELD)
        """User or team; None is the default of the key."""
        mode: Literal["online", "offline"] = "online"
        """offline: only write files, which `wandb sync` uploads."""

    name = "wandb"
    packages = ("wandb",)
    settings: Config
    _run: Run

    def __init__(self, settings: ComponentConfig, config: BaseRun, run_dir: RunDir) -> None:
        super().__init__(settings, config, run_dir)
        if self.settings.mode == "online":
            import wandb

            if not wandb.login(prompt=False, verify=False):
                raise ConfigError("Weights & Biases has no key.", fix="Set WANDB_API_KEY, or `tracking.mode: offline`.")

    def start(self, id: str | None) -> str:
        """Start or resume a run."""
        import wandb

        quiet = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True,
            finish_timeout=CLOSE_SECONDS,
        )  # fmt: skip
        self._run = wandb.init(
            project=self.settings.project,
            entity=self.settings.entity,
            dir=str(self.run_dir.path),
            id=id or self.new_id(),
            name=self.config.name,
            config=self.public_config(),
            resume="allow",
            mode=self.settings.mode,
            settings=quiet,
            reinit="create_new",
        )
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        return str(self._run.id)

    def log_metrics(self, values: dict[str, float], step: int, time: float) -> None:
        """Log metrics with their step."""
        self._run.log({**values, STEP: step, "time": time})

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int) -> None:
        """Log a table."""
        self._log_table(f"evaluation/{name}", columns, rows, step)

    def log_dialogue(self, name: str, messages: Messages, facts: JsonObject, step: int) -> None:
        """Log a dialogue as a table of roles and messages."""
        rows = [[message["role"], message["content"]] for message in messages]
        rows += [[key, str(value)] for key, value in facts.items()]
        self._log_table(f"dialogues/{name}", ["role", "content"], rows, step)

    def _log_table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int) -> None:
        import wandb

        self._run.log({key: wandb.Table(columns=list(columns), data=[list(row) for row in rows]), STEP: step})

    def close(self) -> None:
        """Finish the run; the exit code is 1 if it failed."""
        self._run.finish(exit_code=int(self.status in ("failed", "interrupted")))
