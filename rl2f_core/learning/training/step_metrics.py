"""Metrics of one training step, from its groups and from the sums of its loss."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl2f_core.dialogue.metrics.dialogues import compute_metrics, solved_within
from rl2f_core.dialogue.metrics.groups import group_outcomes
from rl2f_core.environments.base import Environment
from rl2f_core.environments.capabilities import Baselines
from rl2f_core.learning.methods.base import Method
from rl2f_core.types import Group, TrainingSample

if TYPE_CHECKING:
    from rl2f_core.learning.learner.losses import LossNormalizers


TRAINED = ("reward", "groups/frac_mixed", "groups/frac_all_correct", "groups/frac_all_incorrect")
"""Metrics that dynamic sampling changes: `trained/…` has their values for the groups trained on."""


def rollout_metrics(
    groups: Sequence[Group], discarded: Sequence[Group], turns: int, method: Method, *, resamples: bool
) -> dict[str, float]:
    """Return the metrics of all groups of a step; with `resamples` also `trained/…` of the groups trained on.

    A step samples more groups after groups with equal returns, so the mean of one step has a small bias. The ratio of
    the sums over many steps has none (Wald's identity).

    Args:
        groups: Groups trained on.
        discarded: Groups that dynamic sampling replaced.
        turns: Maximum number of turns.
        resamples: Whether the stage uses dynamic sampling.
    """
    values = step_metrics([*groups, *discarded], turns, method)
    trained = step_metrics(groups, turns, method) if resamples else {}
    names = [*TRAINED, f"cum_acc/{turns}"]
    return values | {f"trained/{name}": trained[name] for name in names if name in trained}


def step_metrics(groups: Sequence[Group], turns: int, method: Method) -> dict[str, float]:
    """Return the values of `compute_metrics`, and the outcomes of the groups."""
    dialogues = [r.dialogue for g in groups for r in g.rollouts]
    values = compute_metrics(dialogues, turns).flat()
    if method.on_policy:
        values |= outcomes_of(groups, method)
    return values


def constant_baseline(environments: Sequence[Environment]) -> dict[str, float]:
    """Return `constant_baseline`, the mean score of the best constant answer over all tasks.

    Empty if an environment has no `Baselines`.
    """
    distinct = {id(environment): environment for environment in environments}
    scores = {
        key: environment.constant_baseline().score
        for key, environment in distinct.items()
        if isinstance(environment, Baselines)
    }
    if len(scores) < len(distinct):
        return {}
    return {"constant_baseline": sum(scores[id(environment)] for environment in environments) / len(environments)}


def part_metrics(
    groups: Sequence[Group], turns: int, method: Method, environments: Sequence[Environment]
) -> dict[str, float]:
    """Return metrics of each sub-environment of a mixture; empty for other environments.

    `environments` has the environment of each group; a curriculum has one per level.

    `reward/<part>`, `solved/<part>` (within all turns), `solved_first/<part>`, `parse_failure_rate/<part>`,
    `groups/frac_mixed/<part>`, and `tasks/<part>`, the number of tasks. A sub-environment without tasks has only
    `tasks` 0.
    """
    values: dict[str, float] = {}
    pairs = zip(groups, environments, strict=True)
    part_names = [environment.sub_environment_of(group.task) for group, environment in pairs]
    for part in dict.fromkeys(part for environment in environments for part in environment.sub_environments):
        part_groups = [group for group, name in zip(groups, part_names, strict=True) if name == part]
        values[f"tasks/{part}"] = float(len(part_groups))
        if not part_groups:
            continue
        measured = step_metrics(part_groups, turns, method)
        names = {"reward": "reward", "solved": f"cum_acc/{turns}", "solved_first": "cum_acc/1",
                 "parse_failure_rate": "parse_failure_rate", "groups/frac_mixed": "groups/frac_mixed"}  # fmt: skip
        values |= {f"{name}/{part}": measured[source] for name, source in names.items() if source in measured}
    return values


def outcomes_of(groups: Sequence[Group], method: Method) -> dict[str, float]:
    """Return `group_outcomes` of the trainable dialogues, by the returns that the method compares at its turns."""
    dialogues = [[(r.dialogue, method.trained_turns(len(r.dialogue.turns))) for r in g.trainable] for g in groups]
    solved = [[bool(solved_within(d, n)) for d, n in group] for group in dialogues]
    return group_outcomes([method.has_different_returns(group) for group in groups], solved)


def loss_means(sums: dict[str, float], norms: LossNormalizers) -> dict[str, float]:
    """Return metrics from the sums of `losses.loss` over all micro-batches."""
    out = {}
    if norms.rl:
        out["loss/rl"] = sums["rl"] / norms.rl
        if "negative_entropy" in sums:
            out["loss/entropy"] = sums["negative_entropy"] / norms.rl
        for key, name in (("ratio", "ratio/mean"), ("clipped", "clip_ratio"), ("mismatch", "approx_kl")):
            for prefix, group in (("", ""), ("off_", "off_context/")):
                if sums.get(f"{prefix}weight"):
                    out[f"{group}{name}"] = sums[f"{prefix}{key}"] / sums[f"{prefix}weight"]
    if norms.ce:
        out["loss/ce"] = sums["ce"] / norms.ce
    if norms.kl:
        out["kl"] = sums["kl"] / norms.kl
    out |= {key: value / norms.rl for key, value in sums.items() if key.startswith("value/")}
    return out


class StepTimer:
    """Measures the seconds of each phase of a step, which lasts from the metrics of the last one to its own."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> float:
        """End a phase, which began with the end of the previous one; return its seconds."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        return seconds

    def take(self) -> dict[str, float]:
        """Return the seconds by phase, and begin the next step."""
        seconds, self.seconds = self.seconds, {}
        return seconds


def throughput(
    seconds: dict[str, float], groups: Sequence[Group], samples: Sequence[TrainingSample], *, on_policy: bool
) -> dict[str, float]:
    """Return seconds by phase, the number of sampled (or demonstrated) tokens, and the tokens per second.

    `samples` are those of the update.
    """
    student = sum(r.student_tokens for g in groups for r in g.rollouts)
    rollout = seconds["rollout"] + seconds.get("waiting", 0.0)
    return {
        **{f"time/{name}": value for name, value in seconds.items()},
        f"tokens/{'sampled' if on_policy else 'demonstrated'}": float(student),
        "tokens_per_second/rollout": student / max(rollout, 1e-9),
        "tokens_per_second/update": sum(len(s.token_ids) for s in samples) / max(seconds["update"], 1e-9),
    }


def progress_note(values: dict[str, float]) -> str:
    """Return the metrics of the progress line."""
    shown = {"loss": "loss/ce", "reward": "reward", "kept": "retention", "mixed": "groups/frac_mixed"}
    return "  ".join(f"{label} {values[key]:.2f}" for label, key in shown.items() if key in values)
