"""Base of the groups of endpoints."""

from __future__ import annotations

from app.common.context import Context
from app.common.urls import page_url
from app.endpoints.types import RunId
from jobs.db.models import Run
from rl2f_core.config.run import BaseRun
from rl2f_core.run.directory import RunDir
from rl2f_core.types import FrozenModel


class QueuedRun(FrozenModel):
    """A run that an endpoint put into the queue."""

    run: RunId
    name: str
    url: str
    """Address of the run's page."""


class Endpoints:
    """Endpoints of one subject.

    Args:
        context: The workspace and its services.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def _queue(self, config: BaseRun | str, parent: int | None, name: str | None = None) -> QueuedRun:
        """Put a configuration, or its YAML, into the queue."""
        run = self._context.queue.add(config, name=name, parent=parent)
        return QueuedRun(run=run.id, name=run.name, url=page_url("run", run=run.id))

    def _folder(self, run: Run) -> RunDir:
        """Return the directory of a run, which may have disappeared."""
        return RunDir(self._context.workspace.folder(run.folder))

    def _open(self, run: Run) -> RunDir:
        """Return the directory of a run. Raises `RunError` if there is none."""
        return RunDir.open(self._context.workspace.folder(run.folder))
