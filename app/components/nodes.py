"""Elements of a `View` as plain data: text stays text, so a model's output is never parsed as markup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Attribute: TypeAlias = str | float | bool | None
Node: TypeAlias = "str | Element | None"
Element: TypeAlias = "list[object]"
"""`[tag, attributes, *children]`."""


def el(tag: str, *children: Node | Iterable[Node], **attributes: Attribute) -> Element:
    """Return an element.

    Args:
        tag: Name of an HTML element, such as `div`, or of an SVG element, such as `svg:path`; classes may follow, as in
            `div.rl-row.rl-small`. A `button` does not submit a form.
        children: Texts and elements; None is omitted, lists are flattened.
        attributes: `class_` becomes `class`, other underscores become hyphens (`data_id` → `data-id`). None and False
            omit the attribute, True sets it without a value.
    """
    content: list[object] = []
    for child in children:
        if isinstance(child, str) or _is_element(child):
            content.append(child)
        elif child is not None:
            content.extend(node for node in child if node is not None)
    name, *classes = tag.split(".")
    given: dict[str, Attribute] = {"type": "button"} if name == "button" else {}
    given |= {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    if classes:
        given["class"] = " ".join([*classes, str(given["class"])] if given.get("class") else classes)
    return [name, {k: v for k, v in given.items() if v is not None and v is not False}, *content]


def _is_element(child: object) -> bool:
    return isinstance(child, list) and len(child) >= 2 and isinstance(child[0], str) and isinstance(child[1], dict)


def action(
    label: Node, name: str, *, style: str = "", title: str | None = None, disabled: bool = False, **data: Attribute
) -> Element:
    """Return a button that triggers the `View`'s event `click` with `{"action": name, **data}`.

    Args:
        label: Text of the button.
        name: The action.
        style: Further classes; `rl-icon` replaces the look of a button.
        title: Explanation; of an icon also the name for screen readers.
        disabled: The button cannot be pressed.
        data: Values of the event, and attributes whose name begins with `aria_`.
    """
    values = {key if key.startswith("aria_") else f"data_{key}": value for key, value in data.items()}
    is_icon = "rl-icon" in style
    if is_icon:
        values.setdefault("aria_label", title)
    look = style if is_icon else f"rl-button {style}".strip()
    return el("button", label, class_=look, title=title, disabled=disabled, data_action=name, **values)


def page_button(label: str, name: str, cursor: str | None) -> Element:
    """Return the button that triggers the action `page` of a list: `name` for screen readers, and the page's cursor."""
    return action(label, "page", style="rl-small", disabled=cursor is None, aria_label=name, cursor=cursor)


def badge(status: str, detail: str | None = None) -> Element:
    """Return the status of a run as a colored badge."""
    return el("span.rl-badge", status, data_status=status, title=detail or None)


def time_ago(seconds: float | None) -> Element:
    """Return a time as `3 min ago`, kept current by the `View`, with the exact time as its title."""
    return el("span.rl-muted", "–") if seconds is None else el("time", data_t=seconds)


def progress(done: float, total: float | None) -> Element:
    """Return a progress bar; without a total it moves back and forth."""
    fraction = min(1.0, done / total) if total else None
    width = None if fraction is None else f"width: {100 * fraction:.1f}%"
    now = None if fraction is None else round(100 * fraction)
    return el(
        "div.rl-progress",
        el("i", style=width),
        role="progressbar",
        aria_label="progress",
        aria_valuenow=now,
        data_unknown=fraction is None,
    )


def table(titles: Iterable[Node], rows: Iterable[Node], style: str = "", *, name: str | None = None) -> Element:
    """Return a table that scrolls sideways; it can be focused to scroll by keyboard.

    Args:
        titles: Titles of the columns, as texts, elements or cells; without any the table has no header.
        rows: The rows.
        style: Further classes.
        name: Name for screen readers.
    """
    cells = [
        title if isinstance(title, list) and title[0] == "th" else el("th", title, scope="col") for title in titles
    ]
    header = el("thead", el("tr", cells)) if cells else None
    content = el("table.rl-table", header, el("tbody", rows), class_=style)
    return el("div.rl-scroll", content, tabindex=0, role="region" if name else None, aria_label=name)


def empty(title: str, *children: Node, role: str | None = None) -> Element:
    """Return the content of a list without rows: what is missing as texts, and the next steps as elements."""
    texts = [el("p", child) for child in children if isinstance(child, str)]
    steps = [child for child in children if _is_element(child)]
    steps_line = el("p.rl-actions", steps) if steps else None
    return el("div.rl-empty", el("p.rl-empty-title", title), texts, steps_line, role=role)
