"""Errors of events without the queue as messages: Gradio's browser client shows only those of queued events."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from threading import Lock

import gradio as gr
from gradio.context import LocalContext
from gradio.events import EventListener

from app.common.http_status import STATUS

MAX_TABS = 200
"""Browser tabs whose errors are kept; the oldest are dropped."""
MAX_ERRORS = 5
"""Errors that are kept for each tab."""
UNEXPECTED = "The server could not answer. Its log has the reason; reload the page to see the current state."
_lock = Lock()
_by_tab: OrderedDict[str, deque[str]] = OrderedDict()
"""Errors that are not yet shown."""


def keep_status(status: int) -> None:
    """Set the HTTP status of the current request, whose event fails outside of the queue."""
    request = LocalContext.request.get(None)
    if request is not None and request.request is not None and LocalContext.event_id.get(None) is None:
        request.request.scope["state"][STATUS] = status


def keep_error(text: str, status: int = 400) -> None:
    """Keep an error of the tab of the current request and its HTTP status, if its event is not in the queue."""
    request = LocalContext.request.get(None)
    if request is None or LocalContext.event_id.get(None) is not None:
        return
    keep_status(status)
    with _lock:
        _by_tab.setdefault(str(request.session_hash), deque(maxlen=MAX_ERRORS)).append(text)
        while len(_by_tab) > MAX_TABS:
            _by_tab.popitem(last=False)


def take_error(tab: str) -> str | None:
    """Return and forget the oldest error of a tab."""
    with _lock:
        errors = _by_tab.get(tab)
        return errors.popleft() if errors else None


def show_errors(blocks: gr.Blocks, others: Collection[int]) -> None:
    """Add to each event without the queue a queued event that follows its failure and raises the error again.

    Args:
        blocks: The app, within the context of a page.
        others: Numbers of the events of other pages.
    """
    for number, event in list(blocks.fns.items()):
        if number not in others and event.fn is not None and not event.queue:
            failure = EventListener("failure", trigger_after=number, trigger_only_on_failure=True, has_trigger=False)
            failure.listener(None, _raise_again, None, None, show_progress="hidden", show_progress_on=[])


def _raise_again(request: gr.Request) -> None:
    raise gr.Error(take_error(str(request.session_hash)) or UNEXPECTED, print_exception=False)
