"""`?` beside a metric: one sentence and the formula."""

from __future__ import annotations

from app.components.nodes import Element, el


def help_tip(title: str, text: str, formula: str = "") -> Element | None:
    """Return a `?` that opens an explanation; None without a text. At most one explanation of a page is open."""
    if not (text or formula):
        return None
    return el(
        "details.rl-help",
        el("summary", "?", aria_label=f"Explain {title}", title=" ".join(filter(None, [text, formula]))),
        el("div", el("p", text) if text else None, el("p.rl-formula", formula) if formula else None),
        name="rl-help",
    )
