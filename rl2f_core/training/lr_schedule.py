"""Learning-rate schedule."""

from __future__ import annotations

import math

from rl2f_core.config.stage import StageConfig


def learning_rate(stage: StageConfig, step: int) -> float:
    """Return the rate at a 0-based step: linear warm-up, then constant, or linear or cosine decay to 0.

    If `learning_rate` is itself a schedule, only the warm-up applies to it.
    """
    peak = stage.resolve(step).learning_rate
    if step < stage.warmup_steps:
        return peak * (step + 1) / stage.warmup_steps
    if stage.lr_scheduler_type == "constant":
        return peak
    done = (step - stage.warmup_steps) / max(1, stage.steps - stage.warmup_steps)
    shape = 1 - done if stage.lr_scheduler_type == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return peak * shape
