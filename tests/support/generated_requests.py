"""Random requests to a server: calls of endpoints with valid and invalid arguments, page events, and other routes."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEXTS = (
    *("", " ", "quickstart", "train", "rl2f@24", "run:1", "preset:quickstart", "*/5 * * * *", "UTC", "base"),
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "a" * 400,
        "x" * 70_000,
        "\x00",
        "\ud800",
        "é😀\u202e",
        "<script>",
        "' OR 1=1 --",
    ),
    *("{}", "[" * 3000, "a: &a [*a]", "seed: 0x" + "f" * 4000, "seed: 1" + ":1" * 30_000, "kind: export\nruns: [1]"),
    *("NaN", "-1", "9" * 5000, "2030-01-01T00:00", "%s%n", "$HOME", "null", "true", "stage@1", "0" * 64),
)
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    -1,
    50,
    2**31 - 1,
    2**31,
    2**63,
    -(2**63),
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
)
FILES = ("/etc/passwd", "/proc/self/environ", "../rl2f.sqlite", "exports", "x\x00y", "http://127.0.0.1:1/x")


@dataclass(frozen=True)
class GeneratedRequest:
    """A request, without the headers that identify its sender."""

    method: str
    path: str
    body: bytes | None = None


class RequestGenerator:
    """Generates requests from a seed.

    Args:
        seed: Of the generator.
        endpoints: Name of each endpoint → JSON schema of its arguments.
        events: Gradio's numbers of the events of pages → number of inputs.
        avoid: Endpoints that are not called.
    """

    def __init__(
        self, seed: int, endpoints: Mapping[str, Any], events: Mapping[int, int], avoid: Sequence[str] = ()
    ) -> None:
        self.rng = random.Random(seed)
        self.endpoints = {name: schema for name, schema in endpoints.items() if name not in avoid}
        self.events = dict(events)

    def call(self) -> GeneratedRequest:
        """Return a call of an endpoint by a program."""
        rng = self.rng
        name = rng.choice(list(self.endpoints)) if rng.random() < 0.97 else rng.choice(TEXTS)[:50]
        by_name = self._arguments(self.endpoints.get(name, {}))
        data = list(by_name.values())
        route = rng.choice(("run", "run", "call", "call/v2", "queue/join", "cancel", "reset"))
        body: Any = by_name if route == "call/v2" else {"data": data}
        if route in ("queue/join", "cancel", "reset"):
            body |= {"fn_index": rng.choice((0, 1, 50, 100, 5000, "x", None)), "session_hash": f"g{rng.randrange(30)}"}
            body |= {"event_id": "e" * 32}
            return self._post(route, body)
        return self._post(f"{route}/{_quoted(name)}", body)

    def event(self) -> GeneratedRequest:
        """Return an event of a page."""
        rng = self.rng
        number = rng.choice(list(self.events))
        count = self.events[number] if rng.random() < 0.8 else rng.randrange(6)
        body = {
            "data": [self._value({}) for _ in range(count)],
            "fn_index": number,
            "session_hash": f"g{rng.randrange(30)}",
            "event_data": self._value({}) if rng.random() < 0.7 else None,
            "trigger_id": rng.choice((None, 1, 100, "x")),
        }
        if rng.random() < 0.1:
            body.pop(rng.choice(list(body)))
        return self._post(rng.choice(("run/predict", "run/predict", "queue/join", "component_server")), body)

    def page(self) -> GeneratedRequest:
        """Return a page, a file, a download or a stream."""
        rng = self.rng
        page = rng.choice(("", "run", "dialogues", "compare", "labels", "fork", "chat", "exports", "new", "audit"))
        text = _quoted(rng.choice((*TEXTS, *FILES))[:2000])
        return GeneratedRequest("GET", rng.choice((
            f"/{page}?run={text}&dialogue={text}", f"/gradio_api/file={text}", f"/exports/{text}/{text}",
            f"/chats/{text}/messages.jsonl", f"/gradio_api/queue/data?session_hash={text}", f"/static/{text}",
            f"/gradio_api/call/list_runs/{text}", f"/{text}", f"/gradio_api/{text}",
        )))  # fmt: skip

    def _post(self, route: str, body: Any) -> GeneratedRequest:
        rng = self.rng
        content = json.dumps(body).encode()
        if rng.random() < 0.05:
            broken = (b"", b"null", b"[]", b"{", b"[" * 20_000, b"\xff" * 20, json.dumps(rng.choice(TEXTS)).encode())
            content = rng.choice((*broken, content[: len(content) // 2]))
        return GeneratedRequest("POST", f"/gradio_api/{route}", content)

    def _arguments(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by name: some are left out, some are unknown."""
        rng, properties = self.rng, schema.get("properties", {})
        names = list(properties)[: rng.randrange(len(properties) + 1)] if rng.random() < 0.3 else list(properties)
        made = {name: self._value(properties[name], schema.get("$defs", {})) for name in names}
        return made | ({"unknown": 1} if rng.random() < 0.03 else {})

    def _value(self, schema: Mapping[str, Any], defs: Mapping[str, Any] = {}, depth: int = 0) -> Any:
        """Return a value of a schema, or with some probability any other one."""
        rng = self.rng
        if "$ref" in schema:
            schema = defs.get(schema["$ref"].rpartition("/")[2], {})
        if "anyOf" in schema:
            return self._value(rng.choice(schema["anyOf"]), defs, depth)
        if depth > 3 or not schema or rng.random() < 0.15:
            return rng.choice(
                (rng.choice(TEXTS), rng.choice(NUMBERS), None, True, [], {}, [[[]]], {"a": {"b": [None]}})
            )
        if "default" in schema and rng.random() < 0.3:
            return schema["default"]
        if options := schema.get("enum", [schema["const"]] if "const" in schema else None):
            return rng.choice(options)
        kind = schema.get("type")
        if kind == "object":
            properties = schema.get("properties", {})
            return {name: self._value(each, defs, depth + 1) for name, each in properties.items() if rng.random() < 0.7}
        if kind == "array":
            return [self._value(schema.get("items", {}), defs, depth + 1) for _ in range(rng.randrange(4))]
        if kind == "boolean":
            return rng.random() < 0.5
        return (
            rng.choice(NUMBERS[:8]) if kind in ("integer", "number") else None if kind == "null" else rng.choice(TEXTS)
        )


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text.encode("utf-8", "replace"), safe="/")
