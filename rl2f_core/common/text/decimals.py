"""Numbers with decimals in one format, for reports and pages."""

from __future__ import annotations

import math


def decimal(value: float | None, digits: int = 2, *, signed: bool = False) -> str:
    """Return a number with a fixed number of decimals, such as `.31`, `−.31` or `+1.20` (signed); `–` for None.

    There is no zero before the point, and the minus sign is U+2212.
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{abs(value):.{digits}f}"
    sign = "" if not float(text) else "−" if value < 0 else "+" if signed else ""
    return f"{sign}{text.removeprefix('0') if digits else text}"
