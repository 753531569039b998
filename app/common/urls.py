"""Addresses of the pages: what a page shows stands in its address. `app.js` has the same functions as `rl2f.links`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode


def page_url(path: str, **query: Any) -> str:
    """`/run?run=17`; values that are None or empty are left out, lists stand as `1,2`."""
    pairs = {name: _text(value) for name, value in query.items() if value is not None}
    text = urlencode({name: value for name, value in pairs.items() if value != ""}, safe=",@:/")
    return f"/{path}?{text}" if text else f"/{path}"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(item) for item in value)
    return str(value)


def runs_url(**query: Any) -> str:
    """The list of runs, with its filters."""
    return page_url("", **query)


def run_url(run_id: int, **query: Any) -> str:
    """One run."""
    return page_url("run", run=run_id, **query)


def dialogue_url(run: int, event: str, turn: int | None = None, step: int | None = None, **query: Any) -> str:
    """Exactly one turn (0-based) of one dialogue, by the id of its event."""
    return page_url("dialogues", run=run, step=step, **query, dialogue=event, turn=turn)


def dialogues_url(**query: Any) -> str:
    """The dialogue browser with filters, e.g. `run=17, step=20`."""
    return page_url("dialogues", **query)


def fork_url(run: int, event: str, turn: int = 0, **query: Any) -> str:
    """Another continuation of a dialogue after one of its turns (0-based)."""
    return page_url("fork", run=run, dialogue=event, turn=turn, **query)


def labels_url(**query: Any) -> str:
    """The queue of hints to label."""
    return page_url("labels", **query)


def new_url(preset: str | None = None, clone: int | None = None, **query: Any) -> str:
    """The form, filled from a preset or a past run."""
    return page_url("new", preset=preset, clone=clone, **query)


def compare_url(ids: Iterable[int], **query: Any) -> str:
    """Runs overlaid."""
    return page_url("compare", runs=list(ids), **query)


def chat_url(chat: int | None = None, speakers: Iterable[str] = (), **query: Any) -> str:
    """A stored chat, or a new one with speakers such as `17:rl2f@20`."""
    return page_url("chat", chat=chat, speakers=list(speakers), **query)
