"""Returns, baselines and advantages of a group and of the whole batch, as pure functions (formulas: README.md).

`rewards` has one list per dialogue with one number per turn; advantages have the same shape.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from rl2f_core.learning.methods.loss_spec import AdvantageConfig, KLEstimator
from rl2f_core.types import TrainingSample, ValueTargets

Baseline = Literal["mean", "leave_one_out"]
Rewards = Sequence[Sequence[float]]
MIN_ADVANTAGE = 1e-9
"""Smaller differences of returns, and smaller absolute advantages, are rounding errors."""
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
        returns: One number per member; fewer than two members, or equal returns, get 0.
        std: Divide by the group's sample standard deviation (GRPO) or not (Dr. GRPO, arXiv 2503.20783).
        baseline: The group's mean (GRPO), or the mean of the other members (RLOO, arXiv 2402.14740).
    """
    n = len(returns)
    if n < 2 or max(returns) - min(returns) <= MIN_ADVANTAGE:
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
    rewards: Rewards,
    gamma: float,
    *,
    std: bool = False,
    baseline: Baseline = "mean",
    trees: Sequence[int] | None = None,
) -> list[list[float]]:
    """Return A_k = R_k − mean of R_k over the members that reached turn k; 0 if fewer than two did.

    After the first turn members have different histories: this reduces variance but is not a same-state baseline. With
    `trees`, later turns are compared within a tree, whose second turns have the same history.

    Args:
        rewards: One number per turn, for each dialogue of a group.
        gamma: Discount per turn.
        std: See `subtract_baseline`.
        baseline: See `subtract_baseline`.
        trees: Number of the first attempt of each dialogue; None if all are different.
    """
    togo = [returns_to_go(r, gamma) for r in rewards]
    out = [[0.0] * len(r) for r in rewards]
    for k in range(max(map(len, rewards), default=0)):
        blocks: dict[int, list[int]] = {}
        for i, r in enumerate(rewards):
            if len(r) > k:
                blocks.setdefault(trees[i] if trees is not None and k else 0, []).append(i)
        for members in blocks.values():
            advantages = subtract_baseline([togo[i][k] for i in members], std=std, baseline=baseline)
            for i, advantage in zip(members, advantages, strict=True):
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


def has_gradient(advantages: Sequence[Sequence[float]]) -> bool:
    """Return whether any turn of the group has a nonzero advantage."""
    return any(abs(a) > MIN_ADVANTAGE for turns in advantages for a in turns)


# -- batch --------------------------------------------------------------------------------------------------------
def action_positions(sample: TrainingSample) -> list[int]:
    """Return the positions of the policy's actions: the tokens with rl weight."""
    return [i for i, weight in enumerate(sample.rl_weights) if weight]


def compute_batch_advantages(
    samples: Sequence[TrainingSample],
    config: AdvantageConfig,
    values: Sequence[Sequence[float]] | None = None,
    reference: Sequence[Sequence[float]] | None = None,
) -> tuple[list[TrainingSample], dict[str, float]]:
    """Return the samples with advantages (and value estimates and targets under a critic), and metrics.

    Args:
        samples: All samples of a step.
        config: λ, whitening, penalty.
        values: Value estimate before each token of each sample; required with a critic.
        reference: log π_ref of each token of each sample; required with a KL penalty.

    Raises:
        ValueError: Values or reference are missing.
    """
    rewarded = {i: sample.token_rewards for i, sample in enumerate(samples) if sample.token_rewards is not None}
    if not rewarded:
        return list(samples), {}
    if (config.critic is not None and values is None) or (config.kl_coef and reference is None):
        raise ValueError("Advantages need value estimates with a critic, and reference logprobs with a KL penalty.")
    raw: dict[int, list[float]] = {}
    returns: dict[int, list[float]] = {}
    estimates: dict[int, list[float]] = {}
    penalties: list[float] = []
    for i, tokens in rewarded.items():
        sample, positions = samples[i], action_positions(samples[i])
        rewards = [tokens.rewards[p] for p in positions]
        if config.kl_coef and reference is not None:
            penalty = [kl_estimate(sample.logprobs[p] - reference[i][p], config.kl_estimator) for p in positions]
            rewards = [r - config.kl_coef * estimate for r, estimate in zip(rewards, penalty, strict=True)]
            penalties += penalty
        estimates[i] = [0.0] * len(positions)
        if values is not None and config.critic is not None:
            estimates[i] = [values[i][p] for p in positions]
        advantages = gae(rewards, estimates[i], [tokens.discounts[p] for p in positions], config.gae_lambda)
        returns[i] = [a + v for a, v in zip(advantages, estimates[i], strict=True)]
        raw[i] = [a if abs(a) > MIN_ADVANTAGE else 0.0 for a in advantages]
    flat = [a for i in rewarded for a in raw[i]]
    final = iter(whiten(flat) if config.whiten_advantages else flat)
    out = list(samples)
    for i in rewarded:
        sample, positions = samples[i], action_positions(samples[i])
        length = len(sample.token_ids)
        out[i] = dataclasses.replace(sample, advantages=_spread(length, positions, [next(final) for _ in positions]))
        if config.critic is not None:
            columns = (_spread(length, positions, numbers[i]) for numbers in (estimates, returns))
            out[i] = dataclasses.replace(out[i], value_targets=ValueTargets(*columns))
    return out, _metrics(flat, returns, estimates, penalties, config)


def _metrics(
    flat: Sequence[float],
    returns: dict[int, list[float]],
    estimates: dict[int, list[float]],
    penalties: Sequence[float],
    config: AdvantageConfig,
) -> dict[str, float]:
    mean = sum(flat) / max(1, len(flat))
    metrics = {"advantage/mean": mean, "advantage/std": (sum((a - mean) ** 2 for a in flat) / max(1, len(flat))) ** 0.5}
    if penalties:
        metrics["kl_in_reward"] = sum(penalties) / len(penalties)
    if config.critic is not None:
        targets, values = ([x for numbers in arrays.values() for x in numbers] for arrays in (returns, estimates))
        metrics["value/explained_variance"] = explained_variance(values, targets)
        metrics["value/mean"] = sum(values) / max(1, len(values))
        metrics["value/return"] = sum(targets) / max(1, len(targets))
    return metrics


def _spread(length: int, positions: Sequence[int], numbers: Sequence[float]) -> list[float]:
    out = [0.0] * length
    for position, number in zip(positions, numbers, strict=True):
        out[position] = number
    return out
