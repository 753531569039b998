"""Run kind `imported`: recorded rollouts of another program, read-only."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl2f_core.config.components import TeacherConfig, by_name
from rl2f_core.config.fields import BASIC_FIELD
from rl2f_core.config.run import BaseRun
from rl2f_core.environments.imported import Imported
from rl2f_core.errors import RunError
from rl2f_core.registry import register
from rl2f_core.run.context import RunContext
from rl2f_core.run.kinds.base import Kind


class ImportedRun(BaseRun):
    """Rollouts that `rl2f import` read from a file."""

    kind: Literal["imported"] = "imported"
    """Run kind."""
    format: str = ""
    """Format of the file; see `rl2f import --help`."""
    source: str = ""
    """Name of the file."""
    sha256: str = ""
    """Digest of the file."""
    threshold: float = 1.0
    """Sum of the rewards from which a rollout without a verdict counts as correct."""
    environment: Imported.Config = Field(default_factory=Imported.Config, json_schema_extra=BASIC_FIELD)  # type: ignore[assignment]
    """Recorded tasks."""
    teacher: TeacherConfig = Field(by_name("contentless"))
    """Not used: the hints are recorded."""


@register("run_kind")
class ImportedKind(Kind[ImportedRun]):
    """Recorded rollouts."""

    config_class = ImportedRun
    light = True

    def execute(self, config: ImportedRun, context: RunContext) -> bool:
        """Raise `RunError`: there is nothing to execute."""
        raise RunError(
            "An imported run is read-only: it has neither policy nor verifier.",
            value=config.name,
            fix="Start a new run; `rl2f import` reads files.",
        )
