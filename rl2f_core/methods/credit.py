"""Credit: from the rewards of a group's turns to advantages. Pure functions (methods.md §2).

`rewards` is one list a dialogue with one number a turn; the result has the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Baseline = Literal["mean", "leave_one_out"]
KLEstimator = Literal["k1", "k2", "k3"]
Rewards = Sequence[Sequence[float]]
EPSILON = 1e-6
"""Added to a standard deviation before dividing by it, as GRPO implementations do."""


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """R_k = Σ_{j≥k} γ^{j−k} r_j for every turn of one dialogue."""
    out: list[float] = []
    total = 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        out.append(total)
    return out[::-1]


def dialogue_return(rewards: Sequence[float], gamma: float) -> float:
    """R = Σ γ^k r_k; with one solving turn k this is γ^k (Social Meta-Learning, arXiv 2602.16488)."""
    return sum(gamma**k * reward for k, reward in enumerate(rewards))


def centred(returns: Sequence[float], *, std: bool, baseline: Baseline) -> list[float]:
    """Returns minus their baseline, by default the mean of the group (GRPO).

    Args:
        returns: One number a member; fewer than two members have no baseline and get 0.
        std: Divide by the group's sample standard deviation (GRPO), or not (Dr. GRPO, arXiv 2503.20783).
        baseline: `mean`, or the mean of the others (RLOO, arXiv 2402.14740), which is n/(n−1) times as far.
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


def dialogue_credit(
    rewards: Rewards, gamma: float, *, std: bool = False, baseline: Baseline = "mean"
) -> list[list[float]]:
    """One advantage a dialogue, R − mean R over the group, for each of its turns."""
    advantages = centred([dialogue_return(r, gamma) for r in rewards], std=std, baseline=baseline)
    return [[a] * len(r) for a, r in zip(advantages, rewards, strict=True)]


def turn_credit(rewards: Rewards, gamma: float, *, std: bool = False, baseline: Baseline = "mean") -> list[list[float]]:
    """A_k = R_k − mean of R_k over the members that reached turn k; 0 where fewer than two did.

    From the second turn on the members have different histories, so this reduces variance but is no same-state
    baseline.
    """
    togo = [returns_to_go(r, gamma) for r in rewards]
    out = [[0.0] * len(r) for r in rewards]
    for k in range(max(map(len, rewards), default=0)):
        members = [i for i, r in enumerate(rewards) if len(r) > k]
        for i, advantage in zip(
            members, centred([togo[i][k] for i in members], std=std, baseline=baseline), strict=True
        ):
            out[i][k] = advantage
    return out


def gae(rewards: Sequence[float], values: Sequence[float], discounts: Sequence[float], lam: float) -> list[float]:
    """Generalised advantage estimates of one sequence of actions (arXiv 1506.02438, eq. 16).

    A_t = δ_t + γ_t λ A_{t+1} with δ_t = r_t + γ_t V_{t+1} − V_t; after the last action there is no value. With λ = 1
    and no values these are the returns-to-go of REINFORCE.

    Args:
        rewards: r_t.
        values: V_t, the estimate before action t.
        discounts: γ_t, from action t to the next.
        lam: λ; 0 trusts the values, 1 the rewards.
    """
    out: list[float] = []
    advantage = following = 0.0
    for reward, value, gamma in zip(reversed(rewards), reversed(values), reversed(discounts), strict=True):
        advantage = reward + gamma * following - value + gamma * lam * advantage
        following = value
        out.append(advantage)
    return out[::-1]


def whitened(values: Sequence[float]) -> list[float]:
    """Minus their mean, divided by their sample standard deviation plus ε; equal values and a single one give 0."""
    return centred(values, std=True, baseline="mean")


def kl_estimate(log_ratio: float, estimator: KLEstimator) -> float:
    """An estimate of KL(π ‖ π_ref) from one sampled token, log_ratio = log π − log π_ref (Schulman, 2020).

    k1 = log_ratio (unbiased, of either sign), k2 = ½ log_ratio² (biased, ≥ 0), k3 = exp(−log_ratio) − 1 + log_ratio
    (unbiased, ≥ 0).
    """
    if estimator == "k1":
        return log_ratio
    return 0.5 * log_ratio**2 if estimator == "k2" else math.expm1(-log_ratio) + log_ratio


def explained_variance(values: Sequence[float], targets: Sequence[float]) -> float:
    """1 − Var(targets − values) / Var(targets): 1 is a perfect value head, 0 a constant one; 0 for equal targets."""

    def variance(numbers: Sequence[float]) -> float:
        mean = sum(numbers) / max(1, len(numbers))
        return sum((x - mean) ** 2 for x in numbers)

    total = variance(targets)
    return 1 - variance([t - v for t, v in zip(targets, values, strict=True)]) / total if total > 0 else 0.0


def has_gradient(advantages: Sequence[Sequence[float]], tolerance: float = 1e-9) -> bool:
    """Whether any turn of the group has an advantage to learn from."""
    return any(abs(a) > tolerance for turns in advantages for a in turns)
