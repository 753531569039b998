"""`Form`: a View whose inputs report their edits to a draft in Python."""

from __future__ import annotations

from typing import Any

from app.components.module import module_url
from app.components.nodes import Element
from app.components.view import View


class Form(View):
    """A `View` with inputs whose values Python holds.

    The value is one element with these attributes:

    - `data_serial` is another number in each value, so that an equal one resets the inputs too; 0 in the built page.
    - `data_draft` names what the form edits.
    - `data_count` is the number of the last edit that the value contains.
    - `data_off` disables the form.
    - `data_focus` (id of an element) or `data_go` (a line of its text area) receives the focus.

    An input has `data_field` and, unless it is a checkbox, `data_value`. An edit triggers `input` with `draft` and
    `edits`: `[field, value, number]` of each edit that no value contains. An input with `data_late` is read when the
    user leaves it; leaving one with `data_leave` triggers `blur`. A value does not overwrite a newer edit.

    Args:
        value: The element.
        around: Class of the element that is inert until the first value; it is hidden if the address names another
            draft.
        options: Further arguments of `gr.HTML`.
    """

    MODULE = "form.js"

    def __init__(self, value: Element | None = None, around: str | None = None, **options: Any) -> None:
        super().__init__(value, view=module_url("view.js"), around=around, **options)
