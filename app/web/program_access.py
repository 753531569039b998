"""What a program with an API token may request: the routes of `gradio_client` and MCP, and endpoints of its scopes.

Everything else is refused: pages and their events, uploads, and endpoints of other scopes. The audit log records the
refused calls of endpoints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.endpoints.recorder import known_arguments, summarize_call, write_entry
from jobs.db.engine import Database
from jobs.db.models import ApiToken
from jobs.db.queries import audit_log, tokens
from rl2f_core.types import JsonObject

Refusal = tuple[int, str, str]
"""HTTP status, what was refused, and the fix."""
READ_ROUTES = re.compile(
    r"/config|/gradio_api/(info/?|heartbeat/[\w-]+|queue/data|call/(v2/)?[\w-]+/[\w-]+|file=.+)", re.ASCII
)
CALL_ROUTES = re.compile(
    r"/gradio_api/(?P<kind>queue/join|cancel|reset|run(?=/)|call/v2(?=/)|call(?=/))(/(?P<name>[\w-]+))?", re.ASCII
)
MCP_ROUTE = "/mcp"
"""Its handler checks the scope of each called tool with `refuse_endpoint`."""
FIELDS = {
    "queue/join": ("data", "fn_index", "session_hash"),
    "run": ("data", "fn_index", "session_hash"),
    "call": ("data", "session_hash"),
    "cancel": ("fn_index", "session_hash", "event_id"),
    "reset": ("event_id",),
}
"""Fields of a request body that are forwarded to Gradio."""


@dataclass(frozen=True)
class PublishedEndpoint:
    """An endpoint that programs can call."""

    index: int
    """Gradio's number of the function (`fn_index`)."""
    name: str
    scope: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Names of the arguments in order, and their defaults; `...` if there is none."""
    old_names: Mapping[str, str] = field(default_factory=dict)
    """Old names of arguments, which follow the arguments, and their names."""

    def name_arguments(self, given: object) -> JsonObject:
        """Return arguments by their names, for the audit log; without unknown ones."""
        names = [*self.arguments, *self.old_names]
        passed = dict(zip(names, given, strict=False)) if isinstance(given, list) else given
        if not isinstance(passed, dict):
            return {}
        in_order = {name: passed[name] for name in names if name in passed}
        return known_arguments(in_order, self.arguments, self.old_names)

    def check_arguments(self, given: object) -> list[object] | JsonObject | Refusal:
        """Return arguments by position, with defaults for those left out, or by name; or why they are refused."""
        names = [*self.arguments, *self.old_names]
        known = f"Its arguments: {', '.join(self.arguments) or 'none'}."
        if not isinstance(given, list | dict):
            return 400, f"The arguments of {self.name} are not a list.", f'Send {{"data": […]}}. {known}'
        if len(given) > len(names) or (isinstance(given, dict) and given.keys() - {*names}):
            unknown = sorted(given.keys() - {*names}) if isinstance(given, dict) else given[len(names) :]
            return 400, f"The endpoint {self.name} has no argument {unknown[0]!r:.100}.", known
        passed = dict(given) if isinstance(given, dict) else dict(zip(names, given, strict=False))
        for old, name in self.old_names.items():
            if passed.get(old) is not None and passed.get(name) is not None:
                return 400, f"The endpoint {self.name} has no argument {passed[old]!r:.100} beside {name}.", known
            passed |= {} if passed.get(old) is None else {name: passed[old]}
        if missing := [name for name, default in self.arguments.items() if default is ... and name not in passed]:
            return 400, f"The endpoint {self.name} needs {', '.join(missing)}.", known
        if isinstance(given, dict):
            return {name: value for name, value in passed.items() if name not in self.old_names}
        values = [passed.get(name, default) for name, default in self.arguments.items()]
        return [*values, *[None for _ in self.old_names]]


def caller_name(token: ApiToken) -> str:
    """Return the caller in the audit log."""
    return f"token {token.name}"


def refuse_endpoint(
    db: Database, token: ApiToken, name: str, scope: str, arguments: Mapping[str, object]
) -> Refusal | None:
    """Return why a token does not permit an endpoint, and record it in the audit log; None if it does."""
    if scope in token.scopes.split():
        return None
    what = f"The endpoint {name} needs the scope {scope}; the token {token.name!r} permits: {token.scopes}."
    write_entry(db, audit_log.entry(caller_name(token), name, summarize_call(arguments), "refused", what))
    return 403, what, f"Create another token: rl2f token new --scope {scope}"


class ProgramAccess:
    """The tokens of a workspace and the published endpoints.

    Args:
        db: Database with the tokens.
        endpoints: Endpoints that programs can call.
        mcp: The server has the route of MCP.
    """

    def __init__(self, db: Database, endpoints: Iterable[PublishedEndpoint] = (), mcp: bool = False) -> None:
        self._db = db
        self._mcp = mcp
        self._by_name = {endpoint.name: endpoint for endpoint in endpoints}
        self._by_index = {endpoint.index: endpoint for endpoint in self._by_name.values()}

    def find(self, token: str) -> ApiToken | None:
        """Return the row of a token; None if it is unknown or was revoked."""
        return tokens.find(self._db, token)

    def refuse_route(self, method: str, path: str) -> Refusal | None:
        """Return why programs may not request a route; None if they may."""
        if self._mcp and path == MCP_ROUTE:
            return None
        allowed = READ_ROUTES if method in ("GET", "HEAD") else CALL_ROUTES if method == "POST" else None
        if allowed is not None and allowed.fullmatch(path):
            return None
        return (
            403,
            f"A token does not permit {method} {path[:100]}.",
            "Start the server with --mcp."
            if path == MCP_ROUTE
            else "Use gradio_client; view_api() lists the endpoints.",
        )

    def check_call(self, token: ApiToken | None, path: str, body: bytes) -> bytes | Refusal:
        """Return the body to forward, or why the call is refused.

        The body of a program, whose route `refuse_route` permits, is written anew with the number of the endpoint that
        was checked, so Gradio calls no other function. Of a browser, only calls of endpoints by name are checked.
        """
        route = CALL_ROUTES.fullmatch(path)
        if route is None or (token is None and route["name"] not in self._by_name):  # MCP, or the event of a page
            return body
        kind, name = route["kind"], route["name"]
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            return 400, "The body of the call is not a JSON object.", 'Send e.g. {"data": []}.'
        endpoint = self._endpoint(name, None if kind.startswith("call") else fields.get("fn_index"))
        if kind != "reset":
            if endpoint is None:
                given = f"function {fields.get('fn_index')!r:.50}" if name is None else f"function {name[:100]!r}"
                return 403, f"There is no endpoint for {given}.", "Client.view_api() lists the endpoints."
            named = endpoint.name_arguments(fields if kind == "call/v2" else fields.get("data"))
            if token is not None and (
                refusal := refuse_endpoint(self._db, token, endpoint.name, endpoint.scope, named)
            ):
                return refusal
            fields |= {"fn_index": endpoint.index} if kind in ("run", "queue/join", "cancel") else {}
            if kind != "cancel":
                by_name = kind == "call/v2"  # its body has the arguments of the endpoint
                data = fields.get("data")
                arguments = endpoint.check_arguments(fields if by_name else None if isinstance(data, dict) else data)
                if isinstance(arguments, tuple):
                    return arguments
                fields = fields if by_name else {**fields, "data": arguments}
        return json.dumps({key: fields[key] for key in FIELDS.get(kind, fields) if key in fields}).encode()

    def _endpoint(self, name: str | None, index: object) -> PublishedEndpoint | None:
        """Return the endpoint of a name or a number; None if both are given and differ."""
        if name is None:
            return self._by_index.get(index) if type(index) is int else None
        endpoint = self._by_name.get(name)
        return endpoint if endpoint is not None and index in (None, endpoint.index) else None
