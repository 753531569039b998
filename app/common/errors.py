"""How errors reach people: one plain message, whatever the page is made of."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from html import escape
from typing import Any, TypeVar

from rl2f_core.errors import DiskFullError, RL2FError, RunError, shorten

F = TypeVar("F", bound=Callable[..., Any])


def plain_errors(handler: F) -> F:
    """Decorator of a Gradio handler, also of one that streams: an `RL2FError` becomes one message on the page.

    Other exceptions stay as they are: they are faults of ours and belong into the log.
    """
    if inspect.isasyncgenfunction(handler):

        @functools.wraps(handler)
        async def streams_async(*args: Any, **kwargs: Any) -> Any:
            try:
                async for item in handler(*args, **kwargs):
                    yield item
            except RL2FError as error:
                raise _shown(error) from error

        return streams_async  # type: ignore[return-value]
    if inspect.isgeneratorfunction(handler):

        @functools.wraps(handler)
        def streams(*args: Any, **kwargs: Any) -> Any:
            try:
                yield from handler(*args, **kwargs)
            except RL2FError as error:
                raise _shown(error) from error

        return streams  # type: ignore[return-value]
    if inspect.iscoroutinefunction(handler):

        @functools.wraps(handler)
        async def waits(*args: Any, **kwargs: Any) -> Any:
            try:
                return await handler(*args, **kwargs)
            except RL2FError as error:
                raise _shown(error) from error

        return waits  # type: ignore[return-value]

    @functools.wraps(handler)
    def plain(*args: Any, **kwargs: Any) -> Any:
        try:
            return handler(*args, **kwargs)
        except RL2FError as error:
            raise _shown(error) from error

    return plain  # type: ignore[return-value]


def _shown(error: RL2FError) -> Exception:
    import gradio as gr

    return gr.Error(escape(str(error)), title="That did not work", print_exception=False)


def as_json(error: RL2FError) -> dict[str, Any]:
    """The form in which routes below `/api` tell an error."""
    value = None if error.value is None else shorten(str(error.value))
    known = None if error.known is None else list(error.known)
    return {"error": {"what": error.what, "value": value, "known": known, "fix": error.fix}}


def http_status(error: RL2FError) -> int:
    """503 where the store or the disk fails, 404 where something is not there, 409 for a state that does not fit."""
    from jobs.db.errors import NotFoundError, StoreError

    if isinstance(error, DiskFullError | StoreError):
        return 503
    if isinstance(error, NotFoundError):
        return 404
    return 409 if isinstance(error, RunError) else 400


def missing(text: str, href: str, label: str) -> str:
    """HTML of a page whose address names something that is not there: says so and links back."""
    return (
        '<div class="rl-empty" role="alert"><p class="rl-empty-title">'
        f'{escape(text)}</p><p><a class="rl-button" href="{escape(href)}">{escape(label)}</a></p></div>'
    )


def empty(title: str, text: str = "", *actions: tuple[str, str]) -> str:
    """HTML of an empty state: what is not there, what to do, and links (address, words), the first of them primary."""
    links = "".join(
        f'<a class="rl-button{" rl-primary" if i == 0 else ""}" href="{escape(href)}">{escape(label)}</a>'
        for i, (href, label) in enumerate(actions)
    )
    body = f"<p>{escape(text)}</p>" if text else ""
    return (
        f'<div class="rl-empty"><p class="rl-empty-title">{escape(title)}</p>{body}'
        f'<p class="rl-actions">{links}</p></div>'
    )
