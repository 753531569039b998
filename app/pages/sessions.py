"""Page Sessions: how often the worker of each run was started."""

from __future__ import annotations

from app.components.nodes import Element, el
from app.components.view import View
from app.endpoints.studio import Studio
from app.pages._events import FAST, handler
from app.pages._frame import page_frame

PATH, TITLE, ORDER = "sessions", "Sessions", 95


def build(studio: Studio) -> None:
    """Build the list."""
    address, listed = page_frame(studio, TITLE), View()
    address.input(handler(lambda: sessions(studio)), None, listed, **FAST)


def sessions(studio: Studio) -> Element:
    """Return the runs with their number of sessions."""
    return el("ul", [el("li", f"{run.name}: {run.sessions}") for run in studio.runs.list_runs().rows])
