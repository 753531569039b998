"""Returns, baselines and advantages of a group, as pure functions (formulas: README.md).

`rewards` has one list per dialogue with one number per turn; advantages have the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Baseline = Literal["mean", "leave_one_out"]
KLEstimator = Literal["k1", "k2", "k3"]
Rewards = Sequence[Sequence[float]]
EPSILON = 1e-6
"""Added to a standard deviation before division, as in GRPO implementations."""


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return R_k = Σ_{j≥k} γ^{j−k} r_j for every turn of one dialogue."""
    out: list[float] = []
    total = 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        out.append(total)
    return out[::-1]


def dialogue_return(rewards: Sequence[float], gamma: float) -> float:
    """Return R = Σ γ^k r_k; with one solving turn k this is γ^k (Social Meta-Learning, arXiv 2602.16488)."""
    return sum(gamma**k * reward for k, reward in enumerate(rewards))


def subtract_baseline(returns: Sequence[float], *, std: bool, baseline: Baseline) -> list[float]:
    """Subtract the group's baseline from returns.

    Args:
        returns: One number per member; fewer than two members get 0.
        std: Divide by the group's sample standard deviation (GRPO) or not (Dr. GRPO, arXiv 2503.20783).
        baseline: The group's mean (GRPO), or the mean of the other members (RLOO, arXiv 2402.14740).
    """
    n = len(returns)
    if n < 2:
        return [0.0] * n
    mean = sum(returns) / n
    out = [r - mean for r in returns]
    if baseline == "leave_one_out":
        out = [a * n / (n - 1) for a in out]
    if std:
        deviation = math.sqrt(sum((r - mean) ** 2 for r in returns) / (n - 1))
        out = [a / (deviation + EPSILON) for a in out]
    return out


def dialogue_advantages(
    rewards: Rewards, gamma: float, *, std: bool = False, baseline: Baseline = "mean"
) -> list[list[float]]:
    """Return R − mean R over the group for each dialogue, repeated for all its turns."""
    advantages = subtract_baseline([dialogue_return(r, gamma) for r in rewards], std=std, baseline=baseline)
    return [[a] * len(r) for a, r in zip(advantages, rewards, strict=True)]


def turn_advantages(
    rewards: Rewards, gamma: float, *, std: bool = False, baseline: Baseline = "mean"
) -> list[list[float]]:
    """Return A_k = R_k − mean of R_k over the members that reached turn k; 0 if fewer than two did.

    After the first turn members have different histories: this reduces variance but is no same-state baseline.
    """
    togo = [returns_to_go(r, gamma) for r in rewards]
    out = [[0.0] * len(r) for r in rewards]
    for k in range(max(map(len, rewards), default=0)):
        members = [i for i, r in enumerate(rewards) if len(r) > k]
        for i, advantage in zip(
            members, subtract_baseline([togo[i][k] for i in members], std=std, baseline=baseline), strict=True
        ):
            out[i][k] = advantage
    return out


def gae(rewards: Sequence[float], values: Sequence[float], discounts: Sequence[float], lam: float) -> list[float]:
    """Return generalized advantage estimates of one action sequence (arXiv 1506.02438, eq. 16).

    A_t = δ_t + γ_t λ A_{t+1} with δ_t = r_t + γ_t V_{t+1} − V_t, and value 0 after the last action. With λ = 1 and
    values 0 these are the returns-to-go of REINFORCE.

    Args:
        rewards: r_t.
        values: V_t, the estimate before action t.
        discounts: γ_t, from action t to the next.
        lam: λ; 0 uses one reward and the next value, 1 all rewards.
    """
    out: list[float] = []
    advantage = following = 0.0
    for reward, value, gamma in zip(reversed(rewards), reversed(values), reversed(discounts), strict=True):
        advantage = reward + gamma * following - value + gamma * lam * advantage
        following = value
        out.append(advantage)
    return out[::-1]


def whiten(values: Sequence[float]) -> list[float]:
    """Subtract the mean and divide by the sample standard deviation plus ε; equal values give 0."""
    return subtract_baseline(values, std=True, baseline="mean")


def kl_estimate(log_ratio: float, estimator: KLEstimator) -> float:
    """Estimate KL(π ‖ π_ref) from one sampled token, with log_ratio = log π − log π_ref (Schulman, 2020).

    k1 = log_ratio (unbiased, of either sign), k2 = ½ log_ratio² (biased, ≥ 0), k3 = exp(−log_ratio) − 1 + log_ratio
    (unbiased, ≥ 0).
    """
    if estimator == "k1":
        return log_ratio
    return 0.5 * log_ratio**2 if estimator == "k2" else math.expm1(-log_ratio) + log_ratio


def explained_variance(values: Sequence[float], targets: Sequence[float]) -> float:
    """Return 1 − Var(targets − values) / Var(targets); 0 for equal targets."""

    def variance(numbers: Sequence[float]) -> float:
        mean = sum(numbers) / max(1, len(numbers))
        return sum((x - mean) ** 2 for x in numbers)

    total = variance(targets)
    return 1 - variance([t - v for t, v in zip(targets, values, strict=True)]) / total if total > 0 else 0.0


def has_gradient(advantages: Sequence[Sequence[float]], tolerance: float = 1e-9) -> bool:
    """Return whether any turn of the group has a nonzero advantage."""
    return any(abs(a) > tolerance for turns in advantages for a in turns)
