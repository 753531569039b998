"""`View`: elements made in Python, patched in the browser; clicks on its actions are Python events."""

from __future__ import annotations

from typing import Any

from app.components.component import Component
from app.components.nodes import Element, Node


class View(Component):
    """Shows elements of `app.components.nodes`.

    A new value changes only the elements that differ, so that focus, scroll position and open `<details>` remain. A
    click on an element with `data-action` triggers `click`; `gr.EventData` has `action` and the other `data-` values.
    An action with `data-focus` moves the focus to the field with this CSS selector if the field is empty.
    The action `copy` copies `data-text`, or the address of the page, without an event. An element is scrolled into view
    when its `data-show` changes. A change of an input with `data-change` triggers `input` with its `value` and the
    other `data-` values. With `data-trigger="select"` a click triggers `select` instead, for another handler.

    A `dialog` is modal while it is shown; if the user closes it with Escape, the action `close` is triggered. A `form`
    triggers `submit` with its `data-` values and `fields`: name → values.

    Args:
        value: One element, a list of elements, or None.
        options: Further arguments of `gr.HTML`, and properties of the module. The element whose `data-key` is `current`
            gets `aria-current` and is scrolled into view.
    """

    MODULE = "view.js"

    def __init__(self, value: Element | list[Node] | None = None, **options: Any) -> None:
        super().__init__(value, **options)
