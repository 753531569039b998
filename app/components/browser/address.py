"""`Address`: the query of the page's URL as a value, with Back and Forward."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode

from app.components.component import Component
from app.components.module import module_url, plotly_url


class Replacement(dict[str, Any]):
    """Parameters that replace the current entry of the browser's history instead of adding one."""


class Address(Component):
    """The query of the URL as a dictionary of texts.

    The event `input` is triggered when the page opens, and when the user presses Back or Forward. As an output, the
    component adds an entry to the browser's history if the query changes (a `Replacement` does not); empty values are
    omitted. The output of an
    address such as `/exports?run=1` opens that page, and `gr.update(title=…)` changes the title.

    Args:
        title: Title of the browser window.
        options: Further arguments of `gr.HTML`; Gradio passes some when the title is updated.
    """

    MODULE = "browser/address.js"

    def __init__(self, title: str, **options: Any) -> None:
        urls = {"charts": module_url("charts.js"), "library": plotly_url()}
        super().__init__(visible="hidden", title=title, **(urls | options))

    def preprocess(self, payload: str | None) -> dict[str, str]:  # type: ignore[override]
        """Return the parameters of the query."""
        return dict(parse_qsl((payload or "").removeprefix("~")))

    def postprocess(self, value: dict[str, Any] | str | None) -> str:
        """Return the query of parameters."""
        if isinstance(value, str) or value is None:
            return value or ""
        given = {name: str(item) for name, item in value.items() if item not in (None, "", False)}
        return f"{'~' if isinstance(value, Replacement) else ''}{urlencode(given, safe=',@:/')}"
