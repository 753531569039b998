"""A small line of values."""

from __future__ import annotations

from collections.abc import Sequence

from app.common.quantities import number
from app.components.nodes import Element, el


def sparkline(values: Sequence[float], width: int = 120, height: int = 28) -> Element | None:
    """Return the values as a line that ends in a dot; None for less than two values."""
    if len(values) < 2:
        return None
    low, span = min(values), (max(values) - min(values)) or 1.0
    points = [
        (i / (len(values) - 1) * (width - 4) + 2, height - 3 - (value - low) / span * (height - 6))
        for i, value in enumerate(values)
    ]
    x, y = points[-1]
    return el(
        "svg:svg",
        el("svg:polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), fill="none", stroke="currentColor"),
        el("svg:circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=2, fill="currentColor"),
        class_="rl-spark",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=f"from {number(values[0])} to {number(values[-1])}",
    )
