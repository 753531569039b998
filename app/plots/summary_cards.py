"""Summary cards of a run: hint effect, solve rate, revisions, groups."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from app.plots.evaluation import Evaluation
from app.plots.series import MetricRow, newest, turns_of
from jobs.db.queries.outcomes import LeakCounts
from rl2f_core.common.stats.intervals import wilson_clustered
from rl2f_core.evaluation.formatting import interval_text, number, verdict_text
from rl2f_core.types import JsonObject

NEWEST_STEPS = 10
"""Training steps over which the numbers of a running training are averaged."""
CHANGES = (
    ("plasticity", "plasticity"),
    ("improving_change_rate", "improving"),
    ("retention", "retention"),
    ("repeated_answer_rate", "repeated"),
)
GROUPS = (
    ("mixed", "groups/frac_mixed", "frac_mixed"),
    ("all correct ✓", "groups/frac_all_correct", "frac_all_good"),
    ("all incorrect ✗", "groups/frac_all_incorrect", "frac_all_bad"),
)
TEACHER = (
    ("true_hint_rate", "true"),
    ("leak_rate", "leaking"),
    ("hint_bits", "bits"),
    ("teacher/completion_tokens", "tokens"),
    ("time/waiting", "seconds"),
    ("teacher/cost", "US dollars"),
)


def cards(
    rows: Sequence[MetricRow],
    evaluation: Evaluation | None,
    leaks: LeakCounts = MappingProxyType({}),
    kind: str = "train",
) -> JsonObject:
    """Return all cards.

    Args:
        rows: The steps of on-policy stages in order.
        evaluation: The evaluation, if there is one.
        leaks: Number of leaks that the student read, and of checked hints, by 0-based turn and task.
        kind: Kind of the run.
    """
    return {
        "hints": hints(evaluation),
        "solved": solved(rows, evaluation),
        "changes": changes(rows, evaluation),
        "groups": groups(rows),
        "teacher": teacher(rows),
        "leaks": leak_rates(leaks, "training" if kind == "train" else "the evaluation"),
    }


def leak_rates(leaks: LeakCounts, phase: str) -> JsonObject | None:
    """Return the fraction of leaks that the student read, by turn of the hint; None without a checked hint."""
    if not leaks:
        return None
    by_turn: dict[int, list[tuple[int, int]]] = {}
    for (turn, _), counts in sorted(leaks.items()):
        by_turn.setdefault(turn + 1, []).append(counts)
    rates = [(turn, wilson_clustered(*zip(*tasks, strict=True))) for turn, tasks in by_turn.items()]
    bars = [
        {"turn": t, "value": i.value, "low": i.low, "high": i.high, "text": f"{interval_text(i)} of {i.n:,} hints"}
        for t, i in rates
    ]
    return {"bars": bars, "source": f"{sum(checked for _, checked in leaks.values()):,} checked hints in {phase}"}


def teacher(rows: Sequence[MetricRow]) -> JsonObject | None:
    """Return truth, leaks, information and price of a model teacher's hints in training; None without one."""
    asked = [row.values for row in rows if row.values.get("teacher/hints")]
    total = sum(values["teacher/hints"] for values in asked)
    pairs = []
    for metric, name in TEACHER:
        known = [values for values in asked if metric in values]
        hints = sum(values["teacher/hints"] for values in known)
        if not hints:
            continue
        is_sum = metric.startswith(("teacher/", "time/"))
        amount = sum(values[metric] * (1 if is_sum else values["teacher/hints"]) for values in known)
        pairs.append({"name": name, "metric": metric, "text": number(amount / hints), "title": "mean over hints"})
    return {"pairs": pairs, "source": f"training, {total:,.0f} hints"} if pairs else None


def hints(evaluation: Evaluation | None) -> JsonObject | None:
    """Return the hint effect of the newest checkpoint, or None."""
    if evaluation is None:
        return None
    checkpoint = next((c for c in reversed(evaluation.checkpoints) if (c, "hints") in evaluation.effects), None)
    if checkpoint is None:
        return None
    effect = evaluation.effects[checkpoint, "hints"]
    under = [
        {"control": control, "text": number(metrics[f"cum_acc/{evaluation.turns}"].value)}
        for (name, control), metrics in evaluation.cells.items()
        if name == checkpoint
    ]
    return {
        "value": number(effect.value, signed=True),
        "interval": interval_text(effect, signed=True).partition(" ")[2],
        "verdict": verdict_text(effect, "hints help", "hints hurt"),
        "separated": effect.excludes_zero,
        "under": under,
        "source": _source(checkpoint, evaluation),
    }


def solved(rows: Sequence[MetricRow], evaluation: Evaluation | None) -> JsonObject | None:
    """Return the solve rate by turn, from the evaluation with hints or the newest training steps."""
    checkpoint = evaluation.last() if evaluation else None
    if evaluation is not None and checkpoint is not None:
        metrics = evaluation.cells[checkpoint, "hints"]
        rates = [(t, metrics[f"cum_acc/{t}"]) for t in range(1, evaluation.turns + 1)]
        bars = [{"turn": t, "value": i.value, "low": i.low, "high": i.high, "text": interval_text(i)} for t, i in rates]
        return {"bars": bars, "source": _source(checkpoint, evaluation)}
    turns = turns_of({name for row in rows for name in row.values}, "cum_acc")
    means = newest(rows, [f"cum_acc/{t}" for t in turns], NEWEST_STEPS)
    if not means:
        return None
    means_by_turn = {t: means[f"cum_acc/{t}"] for t in turns if f"cum_acc/{t}" in means}
    bars = [
        {"turn": t, "value": rate, "low": None, "high": None, "text": number(rate)} for t, rate in means_by_turn.items()
    ]
    return {"bars": bars, "source": _newest(rows, "cum_acc/1")}


def changes(rows: Sequence[MetricRow], evaluation: Evaluation | None) -> JsonObject | None:
    """Return the metrics of revisions."""
    checkpoint = evaluation.last() if evaluation else None
    if evaluation is not None and checkpoint is not None and evaluation.whole:
        metrics = evaluation.cells[checkpoint, "hints"]
        pairs = [
            {"name": name, "metric": key, "text": number(metrics[key].value), "title": interval_text(metrics[key])}
            for key, name in CHANGES
            if key in metrics and metrics[key].value is not None
        ]
        return {"pairs": pairs, "source": _source(checkpoint, evaluation)} if pairs else None
    means = newest(rows, [key for key, _ in CHANGES], NEWEST_STEPS)
    if not means:
        return None
    pairs = [
        {"name": name, "metric": key, "text": number(means[key]), "title": ""} for key, name in CHANGES if key in means
    ]
    return {"pairs": pairs, "source": _newest(rows, "plasticity")}


def groups(rows: Sequence[MetricRow]) -> JsonObject | None:
    """Return the fractions of mixed and uniform groups."""
    means = newest(rows, [key for _, key, _ in GROUPS], NEWEST_STEPS)
    if not means:
        return None
    fractions = [
        {"name": name, "metric": also, "value": means.get(key, 0.0), "text": f"{100 * means.get(key, 0.0):.0f} %"}
        for name, key, also in GROUPS
    ]
    return {"fractions": fractions, "source": _newest(rows, GROUPS[0][1])}


def _source(checkpoint: str, evaluation: Evaluation) -> str:
    return f"evaluation of {checkpoint}" if evaluation.whole else f"evaluation of {checkpoint}, in progress"


def _newest(rows: Sequence[MetricRow], name: str) -> str:
    count = min(NEWEST_STEPS, sum(name in row.values for row in rows))
    return f"training, mean of the last {count} steps" if count > 1 else "training, the first step"
