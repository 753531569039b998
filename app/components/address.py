"""`Address`: the query of the page's URL as a value, with Back and Forward."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode

import gradio as gr

from app.components.module import load_module


class Address(gr.HTML):
    """The query of the URL as a dictionary of texts.

    The event `input` is triggered when the page opens, and when the user presses Back or Forward. As an output, the
    component adds an entry to the browser's history if the query changes; empty values are omitted. The output of an
    address such as `/exports?run=1` opens that page, and `gr.update(title=…)` changes the title.

    Args:
        title: Title of the browser window.
    """

    def __init__(self, title: str) -> None:
        super().__init__(
            "",
            html_template="",
            js_on_load=load_module("address.js"),
            apply_default_css=False,
            visible="hidden",
            title=title,
        )

    def preprocess(self, payload: str | None) -> dict[str, str]:  # type: ignore[override]
        """Return the parameters of the query."""
        return dict(parse_qsl(payload or ""))

    def postprocess(self, value: dict[str, Any] | str | None) -> str:
        """Return the query of parameters."""
        if isinstance(value, str) or value is None:
            return value or ""
        return urlencode(
            {name: str(each) for name, each in value.items() if each not in (None, "", False)}, safe=",@:/"
        )
