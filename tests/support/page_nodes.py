"""Elements of pages, as `app.components.nodes` builds them: those of a tag, and their texts."""

from __future__ import annotations

from typing import Any


def elements(node: Any, tag: str = "") -> list[list[Any]]:
    """Return an element and all elements inside it, only those of a tag if given, in document order."""
    if not isinstance(node, list):
        return []
    own = [node] if node and tag in ("", node[0]) else []
    return own + [found for child in node[2:] for found in elements(child, tag)]


def texts(node: Any) -> list[str]:
    """Return the texts of an element in order."""
    if isinstance(node, str):
        return [node]
    return [found for child in node[2:] for found in texts(child)] if isinstance(node, list) else []


def text(node: Any) -> str:
    """Return the whole text of an element."""
    return "".join(texts(node))
