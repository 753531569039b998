"""The numbers of one training step, from its groups."""

from __future__ import annotations

from collections.abc import Sequence

from rl2f_core.evaluation.metrics import group_outcomes, measure
from rl2f_core.methods.base import Method
from rl2f_core.methods.credit import dialogue_return
from rl2f_core.types import Group


def step_metrics(groups: Sequence[Group], turns: int, method: Method) -> dict[str, float]:
    """Metrics of `evaluation.metrics.measure` without intervals, and what the groups could teach."""
    dialogues = [r.dialogue for g in groups for r in g.rollouts]
    values = measure(dialogues, turns, resamples=0).flat()
    if method.on_policy:
        values |= outcomes_of(groups, method)
    return values


def outcomes_of(groups: Sequence[Group], method: Method) -> dict[str, float]:
    """`group_outcomes` of the trainable dialogues, by the method's own discounted returns."""
    gamma = getattr(method.config, "gamma", 1.0)
    returns = [[dialogue_return([t.reward for t in r.dialogue.turns], gamma) for r in g.trainable] for g in groups]
    return group_outcomes(returns, [[r.dialogue.solved for r in g.trainable] for g in groups])
