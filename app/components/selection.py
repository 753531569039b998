"""`Selection`: the words that the user selected in a text block."""

from __future__ import annotations

import json
from typing import Any, TypedDict

import gradio as gr

from app.components.module import load_module


class SelectedSpan(TypedDict):
    """A selected span, in code points."""

    key: str
    """`select` of the text block."""
    start: int
    end: int


class Selection(gr.HTML):
    """The last selected span in a `text_block` with `select`, as an input of handlers; None without one.

    As an output, None clears the selection. It triggers no event.

    Args:
        options: Further arguments of `gr.HTML`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            "",
            html_template="",
            js_on_load=load_module("selection.js"),
            apply_default_css=False,
            **{"visible": "hidden", **options},
        )

    def preprocess(self, payload: str | None) -> SelectedSpan | None:  # type: ignore[override]
        """Return the span."""
        try:
            span = json.loads(payload or "null")
            return {"key": str(span["key"]), "start": int(span["start"]), "end": int(span["end"])} if span else None
        except (ValueError, KeyError, TypeError):
            return None

    def postprocess(self, value: Any) -> str:
        """Return the span as JSON text."""
        return json.dumps(value) if value else ""
