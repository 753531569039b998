"""The numbers of one training step, from its groups and from the sums of its loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl2f_core.environments.base import Environment
from rl2f_core.evaluation.metrics import group_outcomes, measure
from rl2f_core.methods.base import Method
from rl2f_core.methods.credit import dialogue_return
from rl2f_core.types import Group

if TYPE_CHECKING:
    from rl2f_core.training.losses import Norms


def step_metrics(groups: Sequence[Group], turns: int, method: Method) -> dict[str, float]:
    """Metrics of `evaluation.metrics.measure` without intervals, and what the groups could teach."""
    dialogues = [r.dialogue for g in groups for r in g.rollouts]
    values = measure(dialogues, turns, resamples=0).flat()
    if method.on_policy:
        values |= outcomes_of(groups, method)
    return values


def floor_of(environments: Sequence[Environment]) -> float:
    """The score of the best constant answer to tasks of these environments, one a task."""
    distinct = {id(environment): environment for environment in environments}
    floors = {key: environment.floor().score for key, environment in distinct.items()}
    return sum(floors[id(environment)] for environment in environments) / len(environments)


def part_metrics(
    groups: Sequence[Group], turns: int, method: Method, environments: Sequence[Environment]
) -> dict[str, float]:
    """What each part of a mixture did at a step, by name; nothing where the environments are none.

    Args:
        groups: Of the step.
        turns: Turns of a dialogue.
        method: Whose groups they are.
        environments: The one that each group was played in; a curriculum has one a level.

    `reward/<part>`, `solved/<part>` (within all turns), `solved_first/<part>`, `unparsable/<part>`,
    `groups/frac_mixed/<part>`, and `tasks/<part>`, of which the step had so many. A part without a task at the step
    has `tasks` 0 and no other number.
    """
    values: dict[str, float] = {}
    of = [environment.part_of(group.task) for group, environment in zip(groups, environments, strict=True)]
    for part in dict.fromkeys(part for environment in environments for part in environment.parts):
        own = [group for group, name in zip(groups, of, strict=True) if name == part]
        values[f"tasks/{part}"] = float(len(own))
        if not own:
            continue
        measured = step_metrics(own, turns, method)
        names = {"reward": "reward", "solved": f"cum_acc/{turns}", "solved_first": "cum_acc/1",
                 "unparsable": "unparsable", "groups/frac_mixed": "groups/frac_mixed"}  # fmt: skip
        values |= {f"{name}/{part}": measured[source] for name, source in names.items() if source in measured}
    return values


def outcomes_of(groups: Sequence[Group], method: Method) -> dict[str, float]:
    """`group_outcomes` of the trainable dialogues, by the method's own discounted returns."""
    gamma = getattr(method.config, "gamma", 1.0)
    returns = [[dialogue_return([t.reward for t in r.dialogue.turns], gamma) for r in g.trainable] for g in groups]
    return group_outcomes(returns, [[r.dialogue.solved for r in g.trainable] for g in groups])


def loss_means(sums: dict[str, float], norms: Norms) -> dict[str, float]:
    """Metric names and means from the sums of `losses.loss` over all micro-batches."""
    out = {}
    if norms.rl:
        out["loss/rl"] = sums["rl"] / norms.rl
        for key, name in (("ratio", "ratio"), ("clipped", "clip_frac"), ("mismatch", "mismatch_kl")):
            for prefix, group in (("", ""), ("off_", "off_context/")):
                if sums[f"{prefix}weight"]:
                    out[f"{group}{name}"] = sums[f"{prefix}{key}"] / sums[f"{prefix}weight"]
    if norms.ce:
        out["loss/ce"] = sums["ce"] / norms.ce
    if norms.kl:
        out["kl"] = sums["kl"] / norms.kl
    out |= {key: value / norms.rl for key, value in sums.items() if key.startswith("value/")}
    return out
