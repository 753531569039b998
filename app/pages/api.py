"""Page API: the endpoints by subject, each with its arguments and examples for Python, curl and the command line."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from app.common.urls import page_url
from app.components.browser.address import Replacement
from app.components.nodes import Element, Node, action, el, table
from app.components.view import View
from app.endpoints.endpoint import OPERATIONS, Operation, endpoints_of, operation_of
from app.endpoints.studio import Studio
from app.pages._events import FAST, LATEST, handler
from app.pages._frame import page_frame

PATH, TITLE, ORDER = "api", "API", 95
TOKEN = "rl2f_…"
WITH_ORIGIN = "(query, _) => [query, location.origin]"
"""Adds the address that the browser uses."""
SCOPES = {
    "read": "every token may call it",
    "run": "needs a token of the scope run",
    "label": "needs a token of the scope label",
}


def build(studio: Studio) -> None:
    """Build how to connect, the list of endpoints with its filter, and the chosen endpoint."""
    address = page_frame(studio, TITLE)
    groups = {
        name: [operation_of(call) for _, _, call in endpoints_of(group)] for name, group in studio.groups().items()
    }
    View(el("h1.rl-title", TITLE))
    origin = gr.Textbox(visible="hidden", elem_classes="rl-hidden")
    connect = View(elem_id="api-connect")
    hint = "Filter by name or description"
    search = gr.Textbox(label="Filter", placeholder=hint, show_label=False, container=False, max_lines=1)
    with gr.Row(equal_height=False, elem_classes="api-columns"):
        with gr.Column(scale=1, min_width=280):
            listed = View(elem_id="api-list")
        with gr.Column(scale=2, min_width=300):
            chosen = View(elem_id="api-endpoint")

    @handler
    def open_page(query: dict[str, str], origin: str) -> tuple[str, Node, Element, Node]:
        text = query.get("search", "")
        shown = OPERATIONS.get(query.get("endpoint", "list_runs"))
        missing = el("p.rl-wrong", f"No endpoint is named {query.get('endpoint')}.", role="alert")
        return text, _connect(origin), _list(groups, text), missing if shown is None else _endpoint(shown, origin)

    @handler
    def filter_names(text: str) -> tuple[Replacement, Element]:
        return Replacement(search=text), _list(groups, text)

    address.input(open_page, [address, origin], [search, connect, listed, chosen], js=WITH_ORIGIN, **FAST)
    search.change(filter_names, search, [address, listed], **LATEST)


def _connect(origin: str) -> Element:
    """Return how a program gets a token, and the configuration of an MCP client."""
    mcp = {"mcpServers": {"rl2f": {"url": f"{origin}/mcp", "headers": {"Authorization": f"Bearer {TOKEN}"}}}}
    return el(
        "div.rl-stack",
        el("p.rl-muted", "Programs call the functions of the pages with a token, which a shell on the server makes."),
        _code("Token", "rl2f token new --scope run --name NAME"),
        el(
            "details",
            el("summary", "MCP: the same endpoints as tools (rl2f serve --mcp)"),
            _code("Configuration of a client", json.dumps(mcp, indent=2)),
        ),
    )


def _list(groups: dict[str, list[Operation]], text: str) -> Element:
    """Return the names of the endpoints that contain a text, by subject."""
    words = text.lower().split()
    sections = []
    for name, operations in groups.items():
        found = [o for o in operations if all(word in f"{o.name} {o.description}".lower() for word in words)]
        items = [el("li", el("a", o.name, href=page_url("api", endpoint=o.name), title=o.summary)) for o in found]
        if items:
            sections.append(el("section", el("h2", name.replace("_", " ")), el("ul", items)))
    return el("div.rl-stack", sections or el("p.rl-muted", "No endpoint matches."))


def _endpoint(operation: Operation, origin: str) -> Element:
    """Return description, arguments and examples of an endpoint."""
    schema, defaults = operation.input_schema(), operation.defaults()
    rows = [
        el("tr", el("td", el("code", name)), el("td", _type(field)), el("td", _default(defaults[name])),
           el("td", field.get("description", "").replace("`", "")))
        for name, field in schema.get("properties", {}).items()
    ]  # fmt: skip
    given: dict[str, Any] = {name: "…" for name, value in defaults.items() if value is ...}
    options = "".join(f", {name}={value!r}" for name, value in given.items())
    python = (
        "from gradio_client import Client\n\n"
        f'studio = Client("{origin}", headers={{"Authorization": "Bearer {TOKEN}"}})\n'
        f'print(studio.predict(api_name="/{operation.name}"{options}))'
    )
    curl = (
        f"id=$(curl -s {origin}/gradio_api/call/v2/{operation.name} -H 'Authorization: Bearer {TOKEN}' "
        f"-H 'Content-Type: application/json' -d '{json.dumps(given)}' | sed 's/.*: *\"//; s/\".*//')\n"
        f"curl -sN {origin}/gradio_api/call/{operation.name}/$id -H 'Authorization: Bearer {TOKEN}'"
    )
    shell = " ".join(["rl2f call", operation.name, *(f"--{name.replace('_', '-')} …" for name in given)])
    return el(
        "div.rl-stack",
        el("h2", operation.name, " ", el("span.rl-chip", operation.scope, title=SCOPES[operation.scope])),
        el("p", operation.description),
        table(("argument", "type", "default", "description"), rows) if rows else el("p.rl-muted", "No arguments."),
        _code("Python", python),
        _code("curl", curl),
        _code("Shell", shell),
    )


def _type(field: dict[str, Any]) -> str:
    """Return the type of an argument in the words of JSON."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(option) for option in field["anyOf"]))
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    name = str(field.get("type", "object"))
    return f"list of {_type(field['items'])}" if name == "array" and field.get("items") else name


def _default(value: object) -> str:
    return "required" if value is ... else json.dumps(value, ensure_ascii=False)


def _code(title: str, text: str) -> Element:
    """Return a text to copy."""
    return el(
        "div.rl-stack",
        el("div.rl-row", el("b.rl-small.rl-grow", title), action("Copy", "copy", style="rl-small", text=text)),
        el("pre.rl-model-text", text),
    )
