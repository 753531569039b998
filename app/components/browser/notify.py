"""`EndNotifications`: desktop notifications of ended runs, for users who turn them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from app.components.component import Component


class Notice(TypedDict):
    """A notification."""

    title: str
    text: str
    url: str
    """Page that a click opens."""


class EndedRuns(TypedDict):
    """Runs that ended since the last question."""

    time: float
    """Time of the answer, for the next question."""
    runs: list[Notice]


class EndNotifications(Component):
    """A switch for desktop notifications; the choice is kept in the browser.

    Args:
        ended_runs: Returns the runs that ended since a time in seconds; none if the time is None.
    """

    MODULE = "browser/notify.js"

    def __init__(self, ended_runs: Callable[[float | None], EndedRuns]) -> None:
        def ask(since: float | None) -> EndedRuns:
            return ended_runs(since)

        ask.__name__ = "ended_runs"
        super().__init__(server_functions=[ask], seconds=10.0, min_width=0, scale=0)
