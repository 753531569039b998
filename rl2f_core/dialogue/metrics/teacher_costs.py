"""Costs and failures of a model teacher."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rl2f_core.types import Dialogue


def teacher_costs(dialogues: Sequence[Dialogue]) -> dict[str, float]:
    """Return sums over all hints requested from a model; empty if there are none.

    `teacher/hints` counts the hints, `teacher/errors` those that failed. Tokens include messages from the disk cache
    (`teacher/cached`). `teacher/seconds` adds the latencies of all messages, `teacher/requests` the requests to an
    endpoint. `teacher/cost` is in US dollars and requires a configured price.
    """
    hints = [turn.hint for d in dialogues for turn in d.turns if turn.hint is not None and turn.hint.usage is not None]
    if not hints:
        return {}
    used = [hint.usage for hint in hints if hint.usage is not None]
    failed = sum(hint.error is not None for hint in hints)
    costs = [usage.cost for usage in used if usage.cost is not None]
    values = {
        "teacher/hints": float(len(hints)),
        "teacher/errors": float(failed),
        "teacher/error_rate": failed / len(hints),
        "teacher/prompt_tokens": float(sum(u.prompt_tokens for u in used)),
        "teacher/completion_tokens": float(sum(u.completion_tokens for u in used)),
        "teacher/seconds": float(sum(u.seconds for u in used)),
        "teacher/requests": float(sum(u.requests for u in used)),
        "teacher/cached": float(sum(u.cached for u in used)),
    }
    return values | ({"teacher/cost": sum(costs)} if costs else {})


def add_costs(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of several `teacher_costs`; other metrics are ignored."""
    total: dict[str, float] = defaultdict(float)
    for row in rows:
        for name, value in row.items():
            if name.startswith("teacher/") and name != "teacher/error_rate":
                total[name] += value
    if total.get("teacher/hints"):
        total["teacher/error_rate"] = total["teacher/errors"] / total["teacher/hints"]
    return dict(total)


def costs_text(costs: Mapping[str, float]) -> str:
    """Return one line such as `120 hints, 3 failed (2.5%), 8,400 prompt tokens, 2,100 completion tokens, $0.0100`."""
    value = {name.removeprefix("teacher/"): amount for name, amount in costs.items()}
    parts = [
        f"{value.get('hints', 0.0):,.0f} hints",
        f"{value.get('errors', 0.0):,.0f} failed ({value.get('error_rate', 0.0):.1%})",
        f"{value.get('prompt_tokens', 0.0):,.0f} prompt tokens",
        f"{value.get('completion_tokens', 0.0):,.0f} completion tokens",
    ]
    if value.get("cached"):
        parts.append(f"{value['cached']:,.0f} from the cache")
    if "cost" in value:
        parts.append(f"${value['cost']:,.4f}")
    return ", ".join(parts)
