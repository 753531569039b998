"""Event handlers of the pages: errors become messages, and input may be missing while a page opens."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component

from app.common.http_status import http_status
from app.components.browser.event_errors import keep_error
from rl2f_core.errors import RL2FError

P = ParamSpec("P")
R = TypeVar("R")
Page = TypeVar("Page")
S = TypeVar("S")
Updates = dict[Block, Any]
"""New values by component."""
TriggerMode = Literal["once", "multiple", "always_last"]


class EventOptions(TypedDict, total=False):
    """Arguments of Gradio's event listeners."""

    show_progress: Literal["hidden"]
    show_progress_on: list[Component]
    api_visibility: Literal["private"]
    queue: bool
    trigger_mode: TriggerMode
    concurrency_id: str
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


def in_order(page: str, mode: TriggerMode = "once") -> EventOptions:
    """Return the options of events that change the state of a tab: the queue runs those of a page one after another.

    This holds for all tabs together, because the queue knows no tabs. Other events run at the same time, see https://github.com/gradio-app/gradio/issues/3908.
    """
    return {**QUEUED, "trigger_mode": mode, "concurrency_id": page, "concurrency_limit": 1}


def handler(function: Callable[P, R]) -> Callable[P, R]:
    """Show a deliberate error of `function` as a message with its fix."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RL2FError as error:
            keep_error(str(error), http_status(error))
            raise gr.Error(str(error), print_exception=False) from error
        except gr.Error as error:
            keep_error(error.message)
            raise

    return call


def once_opened(
    method: Callable[Concatenate[Page, S, P], R],
) -> Callable[Concatenate[Page, S | None, P], R]:
    """Handle events of a page after it has opened; before, it has no state, and nothing changes."""

    @handler
    @wraps(method)
    def call(page: Page, state: S | None, *args: P.args, **kwargs: P.kwargs) -> R:
        return gr.skip() if state is None else method(page, state, *args, **kwargs)

    return call
