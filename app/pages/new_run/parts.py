"""Parts of the form of a new run: buttons of lists, maps and folds, and texts with code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from app.common.urls import page_url
from app.components.nodes import Element, Node, el
from app.forms.allowlist import Option
from app.forms.schema import Path
from app.pages.new_run.draft import Field, dotted

DUPLICATE = el(
    "svg:svg",
    el("svg:rect", x=5.5, y=5.5, width=8, height=8),
    el("svg:path", d="M3.5 10.5h-1v-8h8v1"),
    viewBox="0 0 16 16",
    width=14,
    height=14,
    fill="none",
    stroke="currentColor",
    aria_hidden="true",
)

MAX_EVALUATIONS = 5
"""Newest runs whose last checkpoint is offered for an evaluation."""


def words(text: str) -> list[Node]:
    """Return a text with `code` in backquotes as elements."""
    return [el("code", part) if i % 2 else part for i, part in enumerate(text.split("`")) if part]


def component_types(fields: list[Field], item: object) -> Iterator[str]:
    """Yield the types of the components of an item."""
    for field in fields:
        if field["node"]["kind"] == "component" and isinstance(item, dict):
            value = item.get(field["key"])
            kind = value.get("type") if isinstance(value, dict) else value
            if isinstance(kind, str):
                yield kind


def tool(
    sign: Node, text: str, act: str, path: Path, *, off: bool = False, style: str = "rl-icon", key: str | None = None
) -> Element:
    """Return a button that changes the form at a path."""
    data = {"data_action": act, "data_at": json.dumps(path), "data_key": key}
    return el("button", sign, class_=style, title=text, aria_label=text, disabled=off, **data)


def item_tools(path: Path, label: str, count: int, least: int) -> Element:
    """Return the buttons of an item of a list."""
    index = int(path[-1])
    return el(
        "span.rf-tools",
        tool("↑", f"move {label} up", "up", path, off=index == 0),
        tool("↓", f"move {label} down", "down", path, off=index == count - 1),
        tool(DUPLICATE, f"duplicate {label}", "duplicate", path),
        tool("×", f"remove {label}", "remove", path, off=count <= least),
    )


def fold_button(title: str, fold: str, is_open: bool, changes: int) -> Element:
    """Return the button that opens or closes a fold, with how many of its fields differ from their defaults."""
    chip = el("span.rl-chip", f"{changes} changed") if changes else None
    return el(
        "button.rf-fold", title, chip, aria_expanded="true" if is_open else "false", data_action="fold", data_fold=fold
    )


def evaluation_links(checkpoints: Sequence[Option]) -> Element | None:
    """Return links to evaluations of the last checkpoints of the newest runs, with the settings of these runs."""
    last: dict[str, Option] = {}
    for option in checkpoints:  # newest first
        last.setdefault(option.label.partition(":")[0], option)
    links = [
        el("div", el("a", option.label, href=page_url("new", evaluate=option.label)), f" {option.note}")
        for option in list(last.values())[:MAX_EVALUATIONS]
    ]
    return el("div.rf-help", "Evaluate with the settings of the checkpoint's run:", links) if links else None


def field_id(path: Path) -> str:
    """Return the id of the element of a field."""
    return f"field-{dotted(path)}"


def value_text(value: object) -> str:
    """Return a value of a choice as text."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def same(a: object, b: object) -> bool:
    """Return whether two values are equal and both or none of them is a truth value."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)
