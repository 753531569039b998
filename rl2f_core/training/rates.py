"""The learning rate of a step."""

from __future__ import annotations

import math

from rl2f_core.config import StageConfig


def learning_rate(stage: StageConfig, step: int) -> float:
    """The rate at a 0-based step: linear warm-up, then constant, linear or cosine decay to 0 at the stage's end.

    A rate with points of its own has the shape of these; the warm-up is the same.
    """
    peak = stage.at(step).learning_rate
    if step < stage.warmup_steps:
        return peak * (step + 1) / stage.warmup_steps
    if stage.schedule == "constant":
        return peak
    done = (step - stage.warmup_steps) / max(1, stage.steps - stage.warmup_steps)
    shape = 1 - done if stage.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return peak * shape
