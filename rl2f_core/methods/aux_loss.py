"""Auxiliary loss terms: their weight by step, and cross-entropy beside a policy gradient."""

from __future__ import annotations

import dataclasses
from typing import Literal, Protocol, cast

from pydantic import Field

from rl2f_core.config.run import CheckedMethodConfig
from rl2f_core.methods.loss_spec import LossConfig
from rl2f_core.methods.rl2f import GradientConfigT, PolicyGradient

Ramp = Literal["constant", "linear"]


def coefficient(peak: float, ramp: Ramp, start: int, step: int, steps: int) -> float:
    """Return a term's weight at a 0-based step of a stage.

    Args:
        peak: Full weight.
        ramp: constant, or linear from 0 at `start` to `peak` at the stage's last step.
        start: First step with weight.
        step: Current step.
        steps: Number of steps of the stage.
    """
    if step < start:
        return 0.0
    if ramp == "constant" or steps - 1 <= start:
        return peak
    return peak * min(1.0, (step - start) / (steps - 1 - start))


class AuxLossConfig(CheckedMethodConfig):
    """Weight of an auxiliary loss term over the steps."""

    coef_ramp: Ramp = "constant"
    """Weight of the auxiliary term: constant, or linear from 0 at `start_step` to the full weight at the last step."""
    start_step: int = Field(0, ge=0)
    """First step at which the auxiliary term has weight."""

    def weight(self, peak: float, step: int, steps: int) -> float:
        """Return `coefficient` for these settings."""
        return coefficient(peak, self.coef_ramp, self.start_step, step, steps)


class CrossEntropyConfig(Protocol):
    """A config with the weight of a cross-entropy term."""

    ce_coef: float

    def weight(self, peak: float, step: int, steps: int) -> float:
        """See `AuxLossConfig.weight`."""


class AuxCrossEntropy(PolicyGradient[GradientConfigT]):
    """Policy gradient with an auxiliary cross-entropy term of weight `ce_coef`."""

    loss_terms = ("rl", "kl", "ce")

    @property
    def ce_coef(self) -> float:
        """Weight λ of the cross-entropy at this step."""
        config = cast(CrossEntropyConfig, self.config)
        return config.weight(config.ce_coef, self.context.step, self.context.steps)

    def loss_options(self) -> LossConfig:
        return dataclasses.replace(super().loss_options(), ce_coef=self.ce_coef)
