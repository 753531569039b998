"""Gradio without network access and development work, and the pages as one Gradio app."""

from __future__ import annotations

import importlib.machinery
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from app.common.context import Context
from app.common.http_status import http_status
from app.endpoints.endpoint import Operation, operation_of
from app.endpoints.recorder import CALLER
from app.endpoints.studio import Studio
from app.web.call_limits import MAX_QUEUED_EVENTS
from app.web.page_registry import PageInfo
from app.web.program_access import PublishedEndpoint, caller_name
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

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
    with _without_apps(blocks):
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


@contextmanager
def _without_apps(blocks: Any) -> Iterator[None]:
    """Make no configuration and app after each page, which takes half the time: mounting the pages makes both."""
    import gradio as gr

    module: Any = gr.blocks
    app, module.App = module.App, SimpleNamespace(create_app=lambda *_, **__: None)
    blocks.get_config_file = lambda: {"pages": blocks.pages}
    try:
        yield
    finally:
        module.App = app
        del blocks.get_config_file


def _publish(blocks: gr.Blocks, studio: Studio) -> list[PublishedEndpoint]:
    """Publish the endpoints, before the events of pages so that these cannot take their names."""
    import gradio as gr

    published = []
    with blocks.route("Endpoints", ENDPOINTS_PAGE, show_in_navbar=False):
        for name, scope, function in studio.endpoints():
            operation = operation_of(function)
            defaults, old_names = operation.defaults(), operation.old_names
            event = gr.api(
                _for_programs(function, defaults, old_names),
                api_name=name,
                api_description=operation.description,
                queue=operation.is_stream,
                concurrency_id=None if operation.is_stream else "programs",
            )
            schemas = argument_schemas(operation)
            schemas += [{**schemas[list(defaults).index(new)], "additional_description": f"Old name of `{new}`."}
                        for new in old_names.values()]  # fmt: skip
            called = blocks.fns[event["id"]]
            schemas.append(result_schema(operation))
            for component, schema in zip((*called.inputs, *called.outputs), schemas, strict=True):
                cast(Any, component)._api_info = schema
            published.append(PublishedEndpoint(event["id"], name, scope, defaults, old_names))
    blocks.current_page = ""
    return published


def argument_schemas(operation: Operation) -> list[JsonObject]:
    """Return the schema of each argument, with its description where Gradio's client shows it."""
    schema = _for_gradio(operation.input_schema())
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    fields = schema.get("properties", {}).values()
    return [{**field, **shared, "additional_description": field.get("description", "")} for field in fields]


def result_schema(operation: Operation) -> JsonObject:
    """Return the schema of the result. Gradio's client shows the description of the endpoint with it."""
    return {"description": operation.summary, **_for_gradio(operation.output_schema())}


def _for_gradio(schema: Any) -> Any:
    """Return a schema without what Gradio's client cannot read: that an object has no other properties."""
    if isinstance(schema, list):
        return [_for_gradio(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _for_gradio(part) for key, part in schema.items() if (key, part) != ("additionalProperties", False)}


def _hide_events(blocks: gr.Blocks, published: list[PublishedEndpoint]) -> None:
    """Exclude the events of pages from the documentation of the endpoints."""
    numbers = {endpoint.index for endpoint in published}
    for number, event in blocks.fns.items():
        if number not in numbers:
            event.api_visibility = "private"


def _for_programs(
    function: Callable[..., Any], defaults: Mapping[str, object], old_names: Mapping[str, str]
) -> Callable[..., object]:
    """Return an endpoint that takes and returns JSON data, whose errors are messages.

    Gradio passes the request as the first argument; it names the caller for the audit log. Arguments with an old name
    are optional for Gradio, because clients may use either name; `PublishedEndpoint` checks that there is one.
    """
    import gradio as gr

    operation, names = operation_of(function), [*defaults, *old_names]

    def arguments(args: Sequence[object]) -> dict[str, object]:
        return {name: _renamed(value, "_path", "path") for name, value in zip(names, args, strict=False)}

    def call(request: gr.Request, *args: object) -> object:
        CALLER.set(_caller(request))  # each call has a context of its own
        with _errors_as_messages(operation.name):
            return _without_false_files(operation.to_json(function(**arguments(args))))

    def stream(request: gr.Request, *args: object) -> Iterator[object]:
        CALLER.set(_caller(request))
        with _errors_as_messages(operation.name):
            yield from map(_without_false_files, map(operation.to_json, function(**arguments(args))))

    made: Any = stream if operation.is_stream else call
    optional = dict.fromkeys([*old_names, *old_names.values()])
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("request", kind, annotation=gr.Request)]
    for name, default in ({**defaults, **optional}).items():
        value = inspect.Parameter.empty if default is ... else default
        parameters.append(inspect.Parameter(name, kind, annotation=Any, default=value))
    made.__name__ = operation.name
    made.__annotations__ = {"request": gr.Request, **dict.fromkeys(names, Any)}
    # arguments without a default may follow others
    made.__signature__ = inspect.Signature(parameters, return_annotation=Any, __validate_parameters__=False)
    return cast("Callable[..., object]", made)


def _caller(request: gr.Request) -> str:
    """Return the caller of a request in the audit log."""
    token = request.request.scope.get("state", {}).get("rl2f_token") if request.request else None
    return CALLER.get() if token is None else caller_name(token)


def _without_false_files(value: object) -> object:
    """Rename the key `path` to `_path` except in file references: `gradio_client` downloads what has a `path`.

    See https://github.com/gradio-app/gradio/issues/8367.
    """
    return _renamed(value, "path", "_path")


def _renamed(value: object, old: str, new: str) -> object:
    """Rename a key except in file references, and beside the new one."""
    if isinstance(value, list | tuple):
        return [_renamed(item, old, new) for item in value]
    if not isinstance(value, dict):
        return value
    key = old if "meta" in value or new in value else new
    return {key if name == old else name: _renamed(item, old, new) for name, item in value.items()}


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
