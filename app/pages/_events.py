"""Event handlers of the pages: errors become messages, and input may be missing while a page opens."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from functools import wraps
from threading import Lock, RLock
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component
from gradio.context import LocalContext
from gradio.events import EventListener

from rl2f_core.errors import RL2FError

P = ParamSpec("P")
R = TypeVar("R")
Page = TypeVar("Page")
S = TypeVar("S", bound="Session")
Updates = dict[Block, Any]
"""New values by component."""
MAX_TABS = 200
"""Browser tabs whose errors are kept."""
MAX_ERRORS = 5
"""Errors that are kept for each tab."""
UNEXPECTED = "The server could not answer. Its log has the reason; reload the page to see the current state."


class EventOptions(TypedDict, total=False):
    """Arguments of Gradio's event listeners."""

    show_progress: Literal["hidden"]
    show_progress_on: list[Component]
    api_visibility: Literal["private"]
    queue: bool
    trigger_mode: Literal["multiple", "always_last"]
    concurrency_limit: int


QUEUED: EventOptions = {"show_progress": "hidden", "show_progress_on": [], "api_visibility": "private"}
"""Options of an event whose handler shows messages (`gr.Info`, `gr.Warning`) or takes long.

Without `show_progress_on`, the browser updates every output before and after each event.
"""
FAST: EventOptions = {**QUEUED, "queue": False}
"""Options of an event that answers at once; without the queue only errors are shown as messages, by `show_errors`."""
EACH: EventOptions = {**FAST, "trigger_mode": "multiple"}
"""Options of an event of which each one counts; with `always_last`, Gradio can send the data of an older one again."""
LATEST: EventOptions = {**FAST, "trigger_mode": "always_last"}
"""Options of an event of which the last one counts."""


class Session(Protocol):
    """What a page holds for one browser tab."""

    lock: RLock


class _Errors:
    """Errors of events without the queue by browser tab, until they are shown; the oldest tabs are dropped."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_tab: OrderedDict[str, deque[str]] = OrderedDict()

    def add(self, text: str) -> None:
        """Keep an error of the tab of the current request, if its event is not in the queue."""
        request = LocalContext.request.get(None)
        if request is None or LocalContext.event_id.get(None) is not None:
            return
        with self._lock:
            self._by_tab.setdefault(str(request.session_hash), deque(maxlen=MAX_ERRORS)).append(text)
            while len(self._by_tab) > MAX_TABS:
                self._by_tab.popitem(last=False)

    def take(self, tab: str) -> str | None:
        """Return and forget the oldest error of a tab."""
        with self._lock:
            errors = self._by_tab.get(tab)
            return errors.popleft() if errors else None


_ERRORS = _Errors()


def handler(function: Callable[P, R]) -> Callable[P, R]:
    """Show a deliberate error of `function` as a message with its fix."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RL2FError as error:
            _ERRORS.add(str(error))
            raise gr.Error(str(error), print_exception=False) from error
        except gr.Error as error:
            _ERRORS.add(error.message)
            raise

    return call


def show_errors(blocks: gr.Blocks, others: Collection[int]) -> None:
    """Show errors of events without the queue: Gradio's browser client shows only those of queued events.

    Each of these events gets a queued event that follows its failure and raises the error again.

    Args:
        blocks: The app, within the context of a page.
        others: Numbers of the events of other pages.
    """
    for number, event in list(blocks.fns.items()):
        if number not in others and event.fn is not None and not event.queue:
            failure = EventListener("failure", trigger_after=number, trigger_only_on_failure=True, has_trigger=False)
            failure.listener(None, _raise_again, None, None, **QUEUED)


def _raise_again(request: gr.Request) -> None:
    raise gr.Error(_ERRORS.take(str(request.session_hash)) or UNEXPECTED, print_exception=False)


def in_turn(
    method: Callable[Concatenate[Page, S, P], R],
) -> Callable[Concatenate[Page, S | None, P], R]:
    """Run the handlers of a session one after another; before the page has opened it has none, and nothing changes."""

    @handler
    @wraps(method)
    def call(page: Page, held: S | None, *args: P.args, **kwargs: P.kwargs) -> R:
        if held is None:
            return gr.skip()
        with held.lock:
            return method(page, held, *args, **kwargs)

    return call
