"""Gradio without network access and development work, and the pages as one Gradio app."""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import logging
import os
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from app.common.context import Context
from app.common.http_status import http_status
from app.endpoints.endpoint import to_json
from app.endpoints.recorder import CALLER
from app.endpoints.studio import Studio
from app.web.call_limits import MAX_QUEUED_EVENTS
from app.web.page_registry import PageInfo
from app.web.program_access import PublishedEndpoint, caller_name
from rl2f_core.errors import RL2FError

if TYPE_CHECKING:
    import gradio as gr

_log = logging.getLogger(__name__)
ENDPOINTS_PAGE = "_endpoints"
"""Gradio's page of the published endpoints, so that no other page loads their definitions; it is never served."""
MAX_PARALLEL_EVENTS = 8
"""Maximum number of events of one kind that run at once; all queries of programs are one kind."""
MAX_SESSIONS = 1000
"""Browser tabs and programs whose state is kept; the oldest are dropped."""
COMPONENT_META = "gradio.component_meta"


def configure_gradio(cache: Path) -> None:
    """Disable telemetry and set Gradio's cache directory; call it before the first import of Gradio."""
    os.environ.update(
        GRADIO_ANALYTICS_ENABLED="False",
        GRADIO_ANALYTICS_MAX_EVENTS="1",
        GRADIO_SSR_MODE="False",
        GRADIO_MCP_SERVER="False",
        GRADIO_RUN_HISTORY="False",
        GRADIO_TEMP_DIR=str(cache),
        HF_HUB_DISABLE_TELEMETRY="1",
        DO_NOT_TRACK="1",
    )
    if "gradio" not in sys.modules and not any(isinstance(finder, _NoStubs) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoStubs())


def build(context: Context, pages: list[PageInfo]) -> tuple[gr.Blocks, list[PublishedEndpoint]]:
    """Build all pages, each with its own route, and publish the endpoints for programs."""
    import gradio as gr

    from app.components.browser.event_errors import show_errors

    blocks = gr.Blocks(title="RL2F Studio", analytics_enabled=False, fill_width=True)
    blocks.pages[0] = ("", "Runs", True)
    blocks.state_session_capacity = MAX_SESSIONS
    studio = Studio(context)
    published = _publish(blocks, studio)
    for page in sorted(pages, key=lambda page: page.path != ""):  # routes must follow the root page
        shown = page.in_navigation
        with blocks if page.path == "" else blocks.route(page.title, page.path, show_in_navbar=shown):
            others = set(blocks.fns)
            page.module.build(studio)
            show_errors(blocks, others)
            _hide_events(blocks, published)
    blocks.queue(default_concurrency_limit=MAX_PARALLEL_EVENTS, max_size=MAX_QUEUED_EVENTS, api_open=False)
    return blocks, published


def _publish(blocks: gr.Blocks, studio: Studio) -> list[PublishedEndpoint]:
    """Publish the endpoints, before the events of pages so that these cannot take their names."""
    import gradio as gr

    published = []
    with blocks.route("Endpoints", ENDPOINTS_PAGE, show_in_navbar=False):
        for name, scope, function in studio.endpoints():
            is_stream = inspect.isgeneratorfunction(function)
            kind = None if is_stream else "programs"
            event = gr.api(_for_programs(function), api_name=name, queue=is_stream, concurrency_id=kind)
            parameters = inspect.signature(function).parameters.values()
            published.append(PublishedEndpoint(event["id"], name, scope, tuple(parameters)))
    blocks.current_page = ""
    return published


def _hide_events(blocks: gr.Blocks, published: list[PublishedEndpoint]) -> None:
    """Exclude the events of pages from the documentation of the endpoints."""
    numbers = {endpoint.index for endpoint in published}
    for number, event in blocks.fns.items():
        if number not in numbers:
            event.api_visibility = "private"


def _for_programs(function: Callable[..., Any]) -> Callable[..., object]:
    """Return an endpoint whose errors are messages, and whose signature has types instead of their names.

    Gradio passes the request as the first argument; it names the caller for the audit log.
    """
    import gradio as gr

    @functools.wraps(function)
    def call(request: gr.Request, *args: object) -> object:
        CALLER.set(_caller(request))  # each call has a context of its own
        with _errors_as_messages(function.__name__):
            return _without_false_files(to_json(function, function(*args)))

    @functools.wraps(function)
    def stream(request: gr.Request, *args: object) -> Iterator[object]:
        CALLER.set(_caller(request))
        with _errors_as_messages(function.__name__):
            yield from (_without_false_files(to_json(function, item)) for item in function(*args))

    is_stream = inspect.isgeneratorfunction(function)
    made: Any = stream if is_stream else call
    hints = typing.get_type_hints(function)
    result = hints.pop("return")
    # a stream is documented by the type of its items, and None as a value: Gradio omits the output of type None
    returned = typing.get_args(result)[0] if is_stream else typing.Literal[None] if result is type(None) else result
    signature = inspect.signature(function)
    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=gr.Request)
    parameters = [first, *(each.replace(annotation=hints[name]) for name, each in signature.parameters.items())]
    made.__annotations__ = {"request": gr.Request, **hints}
    made.__signature__ = signature.replace(parameters=parameters, return_annotation=returned)
    return cast("Callable[..., object]", made)


def _caller(request: gr.Request) -> str:
    """Return the caller of a request in the audit log."""
    token = request.request.scope.get("state", {}).get("rl2f_token") if request.request else None
    return CALLER.get() if token is None else caller_name(token)


def _without_false_files(value: object) -> object:
    """Rename the key `path` to `_path` except in file references: `gradio_client` downloads what has a `path`.

    See https://github.com/gradio-app/gradio/issues/8367.
    """
    if isinstance(value, list | tuple):
        return [_without_false_files(item) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {} if "meta" in value else {"path": "_path"}
    return {renamed.get(key, key): _without_false_files(item) for key, item in value.items()}


@contextmanager
def _errors_as_messages(name: str) -> Iterator[None]:
    import gradio as gr

    from app.components.browser.event_errors import keep_status

    try:
        yield
    except RL2FError as error:
        keep_status(http_status(error))
        raise gr.Error(str(error), print_exception=False) from error
    except Exception as error:
        _log.exception("The endpoint %s failed", name)
        message = "Something went wrong in the server. Its log has the details; please report it."
        raise gr.Error(message, print_exception=False) from error


class _NoStubs(MetaPathFinder):
    """Prevent Gradio from writing type stubs beside each component at import, which takes a third of the import time.

    See https://github.com/gradio-app/gradio/issues/7791. Stubs beside our components would also hide them from mypy.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != COMPONENT_META:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            module.create_or_modify_pyi = _do_nothing  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _do_nothing(*_: object, **__: object) -> None:
    return None
