"""The endpoints as tools of the Model Context Protocol (MCP): streamable HTTP at `/mcp`, without sessions.

`Security` admits only requests with an API token. A token lists and calls the tools of its scopes. The description of a
tool is the docstring of its endpoint, and the schema of its arguments comes from the signature.
"""

from __future__ import annotations

import inspect
import logging
import typing
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, create_model
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from app.common.context import Context
from app.endpoints.recorder import CALLER
from app.endpoints.studio import Studio
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
    "get_run returns its status; list_dialogues and get_dialogue read its dialogues; label_hint labels a hint."
)
_log = logging.getLogger(__name__)


class McpServer:
    """ASGI app of the route `/mcp`; `lifespan` must run while it serves.

    Args:
        context: The workspace and its services.

    Raises `ServerError` if the package `mcp` is missing or older than version 2.
    """

    def __init__(self, context: Context) -> None:
        try:
            from mcp.server import Server
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
            from mcp_types import Tool, ToolAnnotations
        except ImportError as error:
            raise ServerError("MCP needs the package mcp.", value=str(error), fix="pip install 'rl2f[mcp]'") from error
        self._db = context.db
        self._tools = {name: (scope, function) for name, scope, function in Studio(context).endpoints()}
        self._descriptions = [
            Tool(
                name=name,
                description=inspect.getdoc(function),
                input_schema=input_schema(function),
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

        text, is_error = await run_in_threadpool(self._call, _token(context), params.name, params.arguments or {})
        encodable = text.encode("utf-8", "replace").decode()  # a file of a user may have lone surrogates
        return CallToolResult(content=[TextContent(text=encodable)], is_error=is_error)

    def _call(self, token: ApiToken, name: str, arguments: JsonObject) -> tuple[str, bool]:
        """Return the result of an endpoint as text, or an error message and True."""
        if name not in self._tools:
            return f"There is no tool {name[:100]!r}.", True
        scope, function = self._tools[name]
        if refusal := refuse_endpoint(self._db, token, name, scope):
            _, what, fix = refusal
            return f"{what} {fix}", True
        CALLER.set(caller_name(token))  # each call has a context of its own
        try:
            result = function(**arguments)
            if inspect.isgenerator(result):  # each update of a stream contains the whole state
                result = deque(result, maxlen=1).pop()
            text = result if isinstance(result, str) else to_json(result, inf_nan_mode="null").decode()
        except RL2FError as error:
            return str(error), True
        except Exception:
            _log.exception("The tool %s failed", name)
            return "Something went wrong in the server. Its log has the details; please report it.", True
        return text, False


def input_schema(function: Callable[..., object]) -> JsonObject:
    """Return the JSON schema of a function's arguments."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: Any = {
        name: (hints[name], ... if each.default is each.empty else each.default)
        for name, each in inspect.signature(function).parameters.items()
    }
    model = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    return model.model_json_schema()


def _token(context: ServerRequestContext[Any, Any]) -> ApiToken:
    assert context.request is not None  # only HTTP requests arrive
    return context.request.scope["state"]["rl2f_token"]
