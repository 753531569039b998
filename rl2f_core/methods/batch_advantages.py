"""Advantages that need the whole batch: token rewards → returns or GAE → whitening.

Samples without `token_rewards` are left unchanged. The KL penalty is subtracted from each token's reward,
r_t − β·KL_t (arXiv 2501.03262, eq. 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rl2f_core.methods.advantages import explained_variance, gae, kl_estimate, whiten
from rl2f_core.methods.loss_spec import AdvantageConfig
from rl2f_core.types import TrainingSample


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
    indices = [i for i, sample in enumerate(samples) if sample.token_rewards is not None]
    if not indices:
        return list(samples), {}
    if (config.critic is not None and values is None) or (config.kl_coef and reference is None):
        raise ValueError("Advantages need value estimates with a critic, and reference logprobs with a KL penalty.")
    raw: dict[int, list[float]] = {}
    returns: dict[int, list[float]] = {}
    estimates: dict[int, list[float]] = {}
    penalties: list[float] = []
    for i in indices:
        sample, positions = samples[i], action_positions(samples[i])
        rewards = [(sample.token_rewards or ())[p] for p in positions]
        if config.kl_coef and reference is not None:
            penalty = [kl_estimate(sample.logprobs[p] - reference[i][p], config.kl_estimator) for p in positions]
            rewards = [r - config.kl_coef * estimate for r, estimate in zip(rewards, penalty, strict=True)]
            penalties += penalty
        estimates[i] = [0.0] * len(positions)
        if values is not None and config.critic is not None:
            estimates[i] = [values[i][p] for p in positions]
        advantages = gae(
            rewards, estimates[i], [(sample.token_discounts or ())[p] for p in positions], config.gae_lambda
        )
        returns[i] = [a + v for a, v in zip(advantages, estimates[i], strict=True)]
        raw[i] = [a + sample.advantages[p] for a, p in zip(advantages, positions, strict=True)]
    flat = [a for i in indices for a in raw[i]]
    final = iter(whiten(flat) if config.whiten_advantages else flat)
    out = list(samples)
    for i in indices:
        sample, positions = samples[i], action_positions(samples[i])
        length = len(sample.token_ids)
        out[i] = dataclasses.replace(sample, advantages=_spread(length, positions, [next(final) for _ in positions]))
        if config.critic is not None:
            value_estimates, targets = (_spread(length, positions, numbers[i]) for numbers in (estimates, returns))
            out[i] = dataclasses.replace(out[i], value_estimates=value_estimates, value_targets=targets)
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
