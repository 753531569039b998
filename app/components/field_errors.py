"""`FieldErrors`: messages beside the fields of a form, and marked line numbers beside its text."""

from __future__ import annotations

from typing import Any

from app.components.component import Component


class FieldErrors(Component):
    """Shows errors beside the fields with the ids `field-PATH`, and at the lines of a text.

    The value has `errors` (path → messages), `resets` (path → text of the default, for fields that differ from it),
    `lines` (wrong lines of the text), `off` (the form cannot be used), and optionally `focus` (a path) or `go` (a line)
    to which the focus moves. The button ↺ of a field triggers `select` with `{"at": path}`.

    Args:
        form: Id of the element around the fields.
        text: Id of the `gr.Textbox`.
        options: Further arguments of `gr.HTML`.
    """

    MODULE = "field_errors.js"

    def __init__(self, form: str, text: str, **options: Any) -> None:
        super().__init__(visible="hidden", form=form, text=text, **options)
