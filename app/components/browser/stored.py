"""`Stored`: an entry of the browser's storage that Python writes."""

from __future__ import annotations

import json
from typing import Any

from app.components.component import Component
from rl2f_core.types import JsonObject


class Stored(Component):
    """A dictionary in the browser's `localStorage`, shared by all tabs.

    The value `{key: entry}` sets entries and None removes one; the newest 20 entries are kept. To read, take the
    component as the last input of an event with `js=stored.reader(inputs)`.

    Args:
        name: Name of the dictionary.
        options: Further arguments of `gr.HTML`.
    """

    MODULE = "browser/stored.js"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(visible="hidden", name=name, limit=20, **options)
        self.name = name

    def reader(self) -> str:
        """Return the `js` of an event that replaces its last input by the stored dictionary."""
        return f"(...inputs) => [...inputs.slice(0, -1), localStorage.getItem({json.dumps(self.name)})]"

    def preprocess(self, payload: str | None) -> JsonObject:  # type: ignore[override]
        """Return the stored dictionary; what cannot be read is empty."""
        try:
            value = json.loads(payload or "{}")
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}
