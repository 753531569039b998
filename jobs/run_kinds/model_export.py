"""Run kind `model_export`: a checkpoint of a run of the workspace as a model in `exports/`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from jobs.export.model.formats import ModelFormat, check_format
from rl2f_core.config.fields import BaseConfig
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run.kinds.base import Kind


class ModelExportRun(BaseConfig):
    """Export of a trained model."""

    kind: Literal["model_export"] = "model_export"
    """Run kind."""
    name: str = Field("model_export", pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,99}$")
    """Display name."""
    run: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,150}$")
    """Name of the training run's directory in the workspace."""
    checkpoint: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*@\d+$")
    """Checkpoint `stage@step`."""
    format: ModelFormat = "safetensors"
    """Merged safetensors, the PEFT adapter, or GGUF in one of its types."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of merged safetensors."""
    seed: int = 0
    """Seed in the record of the run; an export samples nothing."""


@register("run_kind")
class ModelExport(Kind[ModelExportRun]):
    """Export of a model."""

    config_class = ModelExportRun
    light = True

    def execute(self, config: ModelExportRun, context: RunContext) -> bool:
        """Export into `exports/FOLDER` of the run's workspace.

        An export that was killed leaves no files, and starts again.
        """
        from jobs.export.model.exporter import export_model

        check_format(config.format, config.dtype)
        folder = context.run_dir.path.resolve()
        manifest = export_model(
            folder.parent / config.run,
            config.checkpoint,
            folder.parent.parent / "exports" / folder.name,
            format=config.format,
            dtype=config.dtype,
            replace=True,
            on_message=context.progress.message,
        )
        context.log("export", f"{manifest['name']}: {', '.join(manifest['formats'][config.format]['files'])}")
        context.journal.commit({"done": True})
        return True
