"""The endpoints as tools of the Model Context Protocol (MCP): streamable HTTP at `/mcp`, without sessions.

`Security` admits only requests with an API token. A token lists and calls the tools of its scopes in the served
toolsets: `DEFAULT_TOOLS`, a group of `Studio` such as `chat`, or all. The description of a tool is the docstring of its
endpoint, and the schema of its arguments comes from their model. Long results are read in parts, see `mcp_results`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from app.common.context import Context
from app.endpoints.endpoint import Operation, endpoints_of, operation_of
from app.endpoints.recorder import CALLER
from app.endpoints.studio import Studio
from app.web.mcp_results import McpResults, shorten_error
from app.web.program_access import caller_name, refuse_endpoint
from app.web.security import ServerError
from jobs.db.models import ApiToken
from rl2f_core import __version__
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    import mcp_types
    from mcp.server.context import ServerRequestContext

INSTRUCTIONS = (
    "Teacher-student experiments on language models. launch_run queues a run of a preset (list_presets) or of YAML; "
    "get_run returns its status; list_dialogues and get_dialogue read its dialogues; label_hint labels a hint. A long "
    "result is shortened: a second text lists what was omitted, and read_result returns it."
)
DEFAULT_TOOLS = (
    "list_runs", "get_run", "run_metrics", "run_evaluation", "run_config", "run_log", "compare_runs",
    "compare_evaluations", "list_dialogues", "get_dialogue", "dialogue_facets", "list_presets", "get_preset",
    "check_config", "launch_run", "preflight_config", "get_preflight", "queue_status", "stop_run", "resume_run",
    "evaluate_checkpoint", "next_hints_to_label", "hint_to_label", "label_hint", "fork_choices", "start_fork",
    "fork_result", "start_export", "list_exports",
)  # fmt: skip
"""The toolset `default`; with `read_result`, 30 tools."""
READ_RESULT = "read_result"
TOOLS_FIX = "rl2f serve --mcp --mcp-tools default,chat"
MAX_ROWS = 8
"""Default of the argument `limit`, so that the rows of a list are not shortened."""
_log = logging.getLogger(__name__)


class McpServer:
    """ASGI app of the route `/mcp`; `lifespan` must run while it serves.

    Args:
        context: The workspace and its services.
        toolsets: Served toolsets and tools: `default`, `all`, groups of `Studio`, or names of endpoints.

    Raises `ServerError` if the package `mcp` is missing or older than version 2, or if a toolset is unknown.
    """

    def __init__(self, context: Context, toolsets: Sequence[str] = ("default",)) -> None:
        try:
            from mcp.server import Server
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
            from mcp_types import Tool, ToolAnnotations
        except ImportError as error:
            raise ServerError("MCP needs the package mcp.", value=str(error), fix="pip install 'rl2f[mcp]'") from error
        self._db = context.db
        self._results = McpResults()
        self._tools, self._others = _select(Studio(context), toolsets)
        self._tools[READ_RESULT] = ("read", self._results.read_result)
        self._descriptions = [
            Tool(
                name=name,
                description=operation_of(function).description,
                input_schema=input_schema(operation_of(function)),
                annotations=ToolAnnotations(read_only_hint=scope == "read"),
            )
            for name, (scope, function) in self._tools.items()
        ]
        server = Server(
            "rl2f-studio",
            version=__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._sessions = StreamableHTTPSessionManager(server, json_response=True, stateless=True)

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        """Serve requests until the context ends."""
        async with self._sessions.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that `Security` has admitted."""
        await self._sessions.handle_request(scope, receive, send)

    async def _list_tools(
        self, context: ServerRequestContext[Any, Any], _: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        from mcp_types import ListToolsResult

        permitted = _token(context).scopes.split()
        return ListToolsResult(tools=[tool for tool in self._descriptions if self._tools[tool.name][0] in permitted])

    async def _call_tool(
        self, context: ServerRequestContext[Any, Any], params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        from mcp_types import CallToolResult, TextContent

        texts, is_error = await run_in_threadpool(self._call, _token(context), params.name, params.arguments or {})
        if is_error:
            texts = [shorten_error(text.encode("utf-8", "replace").decode()) for text in texts]
        return CallToolResult(content=[TextContent(text=text) for text in texts], is_error=is_error)

    def _call(self, token: ApiToken, name: str, arguments: JsonObject) -> tuple[list[str], bool]:
        """Return the result of an endpoint as texts, or an error message and True."""
        if name in self._others:
            fix = f"Start the server with --mcp-tools default,{self._others[name]}."
            return [f"The tool {name} is not served. {fix}"], True
        if name not in self._tools:
            return [f"There is no tool {name[:100]!r}."], True
        scope, function = self._tools[name]
        operation = operation_of(function)
        if refusal := refuse_endpoint(self._db, token, name, scope, operation.known(arguments)):
            _, what, fix = refusal
            return [f"{what} {fix}"], True
        CALLER.set(caller_name(token))  # each call has a context of its own
        try:
            if name == READ_RESULT:
                return self._results.read(token.id or 0, **function(**arguments)), False
            if "limit" in operation.arguments.model_fields:
                arguments = {"limit": MAX_ROWS, **arguments}
            result = function(**arguments)
            if operation.is_stream:  # each update of a stream contains the whole state
                result = deque(result, maxlen=1).pop()
            return self._results.answer(token.id or 0, operation.to_json(result)), False
        except RL2FError as error:
            return [str(error)], True
        except Exception:
            _log.exception("The tool %s failed", name)
            return ["Something went wrong in the server. Its log has the details; please report it."], True


Tools = dict[str, tuple[str, Callable[..., Any]]]
"""Name → scope and function."""


def _select(studio: Studio, toolsets: Sequence[str]) -> tuple[Tools, dict[str, str]]:
    """Return the tools of toolsets, and the toolset of each other tool; raise `ServerError` for an unknown toolset."""
    groups = {group: list(endpoints_of(object)) for group, object in studio.groups().items()}
    known = {name: group for group, tools in groups.items() for name, _, _ in tools}
    if unknown := set(toolsets) - {"default", "all", *groups, *known}:
        raise ServerError(
            "Unknown toolset.", value=sorted(unknown)[0], known=["default", "all", *groups], fix=TOOLS_FIX
        )
    chosen = {*toolsets, *(DEFAULT_TOOLS if "default" in toolsets else ())}
    every = "all" in chosen
    tools = {
        name: (str(scope), function)
        for group, endpoints in groups.items()
        for name, scope, function in endpoints
        if every or group in chosen or name in chosen
    }
    return tools, {name: group for name, group in known.items() if name not in tools}


def input_schema(operation: Operation) -> JsonObject:
    """Return the JSON schema of an endpoint's arguments; the default of `limit` is `MAX_ROWS`."""
    schema = operation.input_schema()
    if "limit" in schema["properties"]:
        schema["properties"]["limit"]["default"] = MAX_ROWS
    return schema


def _token(context: ServerRequestContext[Any, Any]) -> ApiToken:
    assert context.request is not None  # only HTTP requests arrive
    return context.request.scope["state"]["rl2f_token"]
