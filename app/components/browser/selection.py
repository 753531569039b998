"""`Selection`: the words that the user selected in a text block."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from app.components.component import Component


class SelectedSpan(TypedDict):
    """A selected span, in code points."""

    key: str
    """`select` of the text block."""
    start: int
    end: int


class Selection(Component):
    """The last selected span in a `text_block` with `select`, as an input of handlers; None without one.

    As an output, None clears the selection. It triggers no event.

    Args:
        options: Further arguments of `gr.HTML`.
    """

    MODULE = "browser/selection.js"

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"visible": "hidden", **options})

    def postprocess(self, value: object) -> str:
        """Return an empty text, which clears the selection."""
        return ""

    def preprocess(self, payload: str | None) -> SelectedSpan | None:  # type: ignore[override]
        """Return the span."""
        try:
            span = json.loads(payload or "null")
            return {"key": str(span["key"]), "start": int(span["start"]), "end": int(span["end"])} if span else None
        except (ValueError, KeyError, TypeError):
            return None
