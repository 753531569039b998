"""Executors by name."""

from __future__ import annotations

from jobs.executors.base import Executor
from jobs.workspace import Workspace
from rl2f_core.errors import UnknownNameError

NAMES = ("local", "ray")


def create_executor(name: str, workspace: Workspace) -> Executor:
    """Create an executor; raises `UnknownNameError`, or `RunError` if a package is missing."""
    if name == "local":
        from jobs.executors.local import Local

        return Local(workspace)
    if name == "ray":
        from jobs.executors.ray.executor import RayExecutor

        return RayExecutor(workspace)
    raise UnknownNameError("There is no such executor.", value=name, known=NAMES)
