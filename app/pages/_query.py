"""Form fields whose values are in the address of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.components import Component

from rl2f_core.common.text.integers import whole_number
from rl2f_core.types import JsonObject


@dataclass(frozen=True)
class QueryFields:
    """Fields of a page by their parameter in the address; a parameter is omitted while its field has the default value.

    Lists are written with commas, True as `1`.

    Args:
        fields: Parameter → component and default value.
    """

    fields: dict[str, tuple[Component, object]]

    @property
    def components(self) -> list[Component]:
        """The components in the order of their values."""
        return [component for component, _ in self.fields.values()]

    @property
    def edits(self) -> list[Callable[..., object]]:
        """The events that a user's edit of a field triggers, and no update by Python.

        Texts and numbers also have `blur`: `input` misses pasted text, and the first input in an accordion that was
        closed. `change` does not replace it: it is triggered while an update by Python is applied to some fields only.
        """
        fields: list[Any] = self.components
        left = [field.blur for field in fields if isinstance(field, gr.Textbox | gr.Number)]
        return [*(field.input for field in fields), *left]

    def values(self, query: dict[str, str]) -> JsonObject:
        """Return the value of every field; an unreadable parameter gives the default."""
        return {
            name: _parse(query[name], default) if name in query else default
            for name, (_, default) in self.fields.items()
        }

    def named(self, values: Sequence[object]) -> JsonObject:
        """Return the values of the components by parameter."""
        return dict(zip(self.fields, values, strict=True))

    def query(self, values: Sequence[object]) -> dict[str, str]:
        """Return the parameters of the fields that differ from their default."""
        pairs = zip(self.fields.items(), values, strict=True)
        return {name: _text(value) for (name, (_, default)), value in pairs if _text(value) != _text(default)}


def _parse(text: str, default: object) -> object:
    if isinstance(default, bool):
        return text == "1"
    if isinstance(default, list):
        words = [word for word in text.split(",") if word]
        return [whole_number(word, word) for word in words]
    if isinstance(default, int | float):
        try:
            return type(default)(text)
        except ValueError:
            return default
    return text


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else ""
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return "" if value is None else str(value)
