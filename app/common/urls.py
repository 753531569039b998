"""Addresses of the pages."""

from __future__ import annotations

from urllib.parse import urlencode


def page_url(path: str, **query: str | int | None) -> str:
    """Return e.g. `/run?run=17`; None and empty values are omitted."""
    text = urlencode({name: value for name, value in query.items() if value not in (None, "")}, safe=",@:/")
    return f"/{path}?{text}" if text else f"/{path}"
