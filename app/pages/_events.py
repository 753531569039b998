"""Event handlers of the pages: errors become messages, and input may be missing while a page opens."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import gradio as gr

from rl2f_core.errors import RL2FError

F = TypeVar("F", bound=Callable[..., Any])

QUEUED: dict[str, Any] = {"show_progress": "hidden", "show_progress_on": [], "api_visibility": "private"}
"""Options of an event whose handler shows messages (`gr.Info`, `gr.Warning`) or takes long.

Without `show_progress_on`, the browser updates every output before and after each event.
"""
FAST: dict[str, Any] = {**QUEUED, "queue": False}
"""Options of an event that answers at once; without the queue only errors are shown as messages."""


def handler(function: F) -> F:
    """Show a deliberate error of `function` as a message with its fix."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RL2FError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return call  # type: ignore[return-value]
