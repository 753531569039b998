"""Numbers and durations as short texts."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from rl2f_core.common.text.decimals import decimal
from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from rl2f_core.common.stats.intervals import Interval

_NUMBER = r"(-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)?"
RANGES: dict[str, tuple[re.Pattern[str], type[int] | type[float], str]] = {
    "step": (re.compile(r"\s*(\d{1,9})?\s*(?:(–|-|\.\.)\s*(\d{1,9})?)?\s*"), int, "10-20"),
    "reward": (re.compile(rf"\s*{_NUMBER}\s*(?:(–|\.\.)\s*{_NUMBER})?\s*"), float, "0.5..1"),
}
"""Fields with one value or a range, of which either end may be missing."""


def parse_range(name: str, text: str) -> dict[str, float]:
    """Return e.g. `step_from` and `step_to` of `12`, `10-20`, `10-` or `-20`. Raises `ConfigError`.

    Args:
        name: One of `RANGES`.
        text: The text; without a number, the result is empty.
    """
    pattern, kind, example = RANGES[name]
    found = pattern.fullmatch(text)
    if found is None:
        raise ConfigError(f"The {name} is a number, or a range such as {example}.", value=text)
    low, dash, high = found.groups()
    ends = {"from": low, "to": high if dash else low}
    return {f"{name}_{end}": kind(item) for end, item in ends.items() if item}


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with few significant digits, such as `.237` or `12,804`; `–` for None."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size < 10 and not float(value).is_integer():
        return decimal(value, digits)
    return f"{value:,.1f}".replace("-", "−") if 10 <= size < 100 and size % 1 else f"{value:,.0f}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """Return seconds as `3 min` or `2 h 10 min`; `–` for None."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    rest = max(0, round(seconds))
    if rest < 60:
        return f"{rest} s"
    if rest < 600 and rest % 60:
        return f"{rest // 60} min {rest % 60} s"
    minutes = round(rest / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"


def plural(count: int, noun: str) -> str:
    """Return e.g. `1 hint` or `1,200 hints`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def fraction(value: float | None) -> str:
    """Return e.g. `.94`, `1.00`, `.003` or `–`."""
    return decimal(value, 3 if value and abs(value) < 0.005 else 2)


def ends(interval: Interval) -> str:
    """Return e.g. `[.90, .98]`; empty if the interval is unknown."""
    if interval.value is None or interval.low is None:
        return ""
    return f"[{fraction(interval.low)}, {fraction(interval.high)}]"
