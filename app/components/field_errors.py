"""`FieldErrors`: messages beside the fields of a form, and marked line numbers beside its text."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from app.components.module import load_module


class FieldErrors(gr.HTML):
    """Shows errors beside the fields with the ids `field-PATH`, and at the lines of a text.

    The value has `errors` (path → messages), `resets` (path → text of the default, for fields that differ from it),
    `lines` (wrong lines of the text), `off` (the form cannot be used), and optionally `focus` (a path) or `go` (a line)
    to which the focus moves. The button ↺ of a field triggers `select` with `{"at": path}`.

    Args:
        form: Id of the element around the fields.
        text: Id of the `gr.Textbox`.
        options: Further arguments of `gr.HTML`.
    """

    def __init__(self, form: str, text: str, **options: Any) -> None:
        super().__init__(
            None,
            html_template="",
            js_on_load=load_module("field_errors.js"),
            apply_default_css=False,
            visible="hidden",
            form=form,
            text=text,
            **options,
        )

    def postprocess(self, value: Any) -> str | None:
        """Return the marks as JSON text."""
        return None if value is None else json.dumps(value, ensure_ascii=False)
