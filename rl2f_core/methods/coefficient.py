"""The weight of a further term of the loss by step: when it starts, and whether it grows."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rl2f_core.config import BaseConfig
from rl2f_core.methods.rl2f import RL2F

Schedule = Literal["constant", "linear"]


def coefficient(peak: float, schedule: Schedule, start: int, step: int, steps: int) -> float:
    """A term's weight at a 0-based step of a stage.

    Args:
        peak: The whole weight.
        schedule: constant, or linear from 0 at `start` to `peak` at the stage's last step.
        start: Before this step the term has no weight.
        step: Which one.
        steps: Of the stage.
    """
    if step < start:
        return 0.0
    if schedule == "constant" or steps - 1 <= start:
        return peak
    return peak * min(1.0, (step - start) / (steps - 1 - start))


class TermConfig(BaseConfig):
    """When a further term of the loss counts."""

    coef_schedule: Schedule = "constant"
    """constant, or linear: from 0 at `start_step` to the whole weight at the stage's last step."""
    start_step: int = Field(0, ge=0)
    """Steps of the stage before the further term has weight."""

    def weight(self, peak: float, step: int, steps: int) -> float:
        """`coefficient` with this schedule."""
        return coefficient(peak, self.coef_schedule, self.start_step, step, steps)


class Imitates(RL2F):
    """A policy gradient beside which words are imitated, with the weight `ce_coef` of a `TermConfig`."""

    streams = ("rl", "kl", "ce")

    @property
    def ce_coef(self) -> float:
        """λ at this step."""
        return self.config.weight(self.config.ce_coef, self.scene.step, self.scene.steps)  # type: ignore[no-any-return]

    def loss_options(self) -> dict[str, Any]:
        return {**super().loss_options(), "ce_coef": self.ce_coef}
