"""Evaluation reports of constructed dialogues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl2f_core import registry
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.dialogue.metrics.dialogues import Metrics, compute_metrics
from rl2f_core.evaluation.report import (
    CheckpointDifference,
    CheckpointResult,
    Effect,
    EvaluatedTasks,
    EvaluationReport,
    build_report,
)
from rl2f_core.types import Dialogue, Hint, StopReason, Turn, Verdict

TURNS = 3


def series(metrics: Metrics, name: str) -> list[Interval]:
    """The values of `name/1` … `name/T`."""
    return [metrics[f"{name}/{t}"] for t in range(1, metrics.turns + 1)]


def played(task: str, solved_at: int, *, teacher: str = "scripted", parsable: bool = True) -> Dialogue:
    """A dialogue solved at a turn (0 for never), wrong answers 1, 2, 3 before."""
    turns = []
    for t in range(1, (solved_at or TURNS) + 1):
        right = t == solved_at
        verdict = Verdict(
            correct=right, score=float(right), parsed=str(t) if parsable else None, well_formed=parsable,
            distance=0.0 if right else 0.5 if parsable else None,
        )  # fmt: skip
        hint = None if right or t == TURNS else Hint(text="No.", teacher=teacher)
        turns.append(Turn(index=t - 1, attempt=str(t), token_ids=(5, 6), verdict=verdict, hint=hint))
    stop = StopReason.SOLVED if solved_at else StopReason.EXHAUSTED
    return Dialogue(id=task, task_id=task, group=task, index=0, turns=tuple(turns), stop_reason=stop)


def tasks(*solved_at: int, **more: Any) -> list[Dialogue]:
    """One dialogue a task."""
    return [played(f"t{i}", at, **more) for i, at in enumerate(solved_at)]


PLAYED: dict[str, dict[str, list[Dialogue]]] = {
    "base": {"hints": tasks(*[0] * 8, parsable=False), "contentless": tasks(*[0] * 8)},
    "rl2f@24": {
        "hints": tasks(1, 2, 2, 2, 3, 3, 3, 0),
        "contentless": tasks(1, 0, 0, 0, 0, 0, 0, 0),
        "misleading": tasks(1, 0, 0, 0, 0, 0, 0, 0, teacher="misleading"),
    },
}
"""cum_acc of rl2f@24 with hints: 1/8, 4/8, 7/8; contentless 1/8 throughout; base 0 throughout."""


def built(
    dialogues: Mapping[str, Mapping[str, Sequence[Dialogue]]] = PLAYED,
    seed: int = 0,
    evaluated: EvaluatedTasks | None = None,
) -> EvaluationReport:
    kind: Any = registry.get("environment", "secret_code")
    evaluated = evaluated or EvaluatedTasks(tasks=8, samples=1, level="3 of ABC", seed=seed)
    notes = ("rl2f@24 was trained on 1,000 tokens.",)
    return build_report(kind(kind.Config()), dialogues, TURNS, evaluated, notes)


def made(low: float, high: float, n: int = 20) -> Interval:
    return Interval(value=(low + high) / 2, low=low, high=high, n=n)


def with_effect(interval: Interval, condition: str = "hints") -> EvaluationReport:
    row = CheckpointResult(checkpoint="rl2f@24", condition=condition, metrics=compute_metrics(tasks(1, 0), TURNS))
    return EvaluationReport(
        environment="e", turns=TURNS, tasks=20, samples=1, rows=(row,),
        effects=(Effect(checkpoint="rl2f@24", condition=condition, difference=interval),),
        differences=(CheckpointDifference(quantity="hint_effect", checkpoint="b", against="a", difference=interval),),
    )  # fmt: skip
