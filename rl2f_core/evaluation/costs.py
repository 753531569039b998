"""What the messages of a model teacher cost, and how often there was none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rl2f_core.types import Dialogue


def teacher_costs(dialogues: Sequence[Dialogue]) -> dict[str, float]:
    """Sums over all hints that a model was asked for; empty where none was.

    `teacher/hints` counts them; `teacher/errors` are those that could not be had, `teacher/error_rate` their share;
    `teacher/prompt_tokens` and `teacher/completion_tokens` are of all messages, those from the disk cache
    (`teacher/cached`) included; `teacher/requests` counts what an endpoint was asked; `teacher/cost` is in US dollars
    and only there where a price is configured.
    """
    hints = [turn.hint for d in dialogues for turn in d.turns if turn.hint is not None and turn.hint.usage is not None]
    used = [hint.usage for hint in hints if hint.usage is not None]
    failed = sum(hint.error is not None for hint in hints)
    if not hints:
        return {}
    costs = [usage.cost for usage in used if usage.cost is not None]
    values = {
        "teacher/hints": float(len(hints)),
        "teacher/errors": float(failed),
        "teacher/error_rate": failed / len(hints),
        "teacher/prompt_tokens": float(sum(u.prompt_tokens for u in used)),
        "teacher/completion_tokens": float(sum(u.completion_tokens for u in used)),
        "teacher/requests": float(sum(u.requests for u in used)),
        "teacher/cached": float(sum(u.cached for u in used)),
    }
    return values | ({"teacher/cost": sum(costs)} if costs else {})


def add_costs(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of several `teacher_costs` (other names are left out); empty where there are none."""
    total: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith("teacher/") and name != "teacher/error_rate":
                total[name] = total.get(name, 0.0) + value
    if total.get("teacher/hints"):
        total["teacher/error_rate"] = total.get("teacher/errors", 0.0) / total["teacher/hints"]
    return total


def costs_text(costs: Mapping[str, float]) -> str:
    """One line for people, e.g. `120 hints, 3 failed (2.5%), 8,400 tokens read, 2,100 written, $0.0100`."""
    hints, failed = costs.get("teacher/hints", 0.0), costs.get("teacher/errors", 0.0)
    parts = [f"{hints:,.0f} hints", f"{failed:,.0f} failed ({costs.get('teacher/error_rate', 0.0):.1%})"]
    read, wrote = costs.get("teacher/prompt_tokens", 0.0), costs.get("teacher/completion_tokens", 0.0)
    parts.append(f"{read:,.0f} tokens read, {wrote:,.0f} written")
    if costs.get("teacher/cached"):
        parts.append(f"{costs['teacher/cached']:,.0f} from the cache")
    if "teacher/cost" in costs:
        parts.append(f"${costs['teacher/cost']:,.4f}")
    return ", ".join(parts)
