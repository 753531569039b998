"""executors: see `base` for the contract; one module for each place where a run can be worked on."""

from __future__ import annotations

from jobs.executors.base import Executor
from jobs.studio import Studio
from rl2f_core.errors import UnknownNameError

NAMES = ("local", "ray")


def make(name: str, studio: Studio) -> Executor:
    """An executor by its name; raises `UnknownNameError`, or `RunError` where a package for it is missing."""
    if name == "local":
        from jobs.executors.local import Local

        return Local(studio)
    if name == "ray":
        from jobs.executors.ray import Ray

        return Ray(studio)
    raise UnknownNameError("There is no such executor.", value=name, known=NAMES)
