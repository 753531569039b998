"""Credit that needs the whole batch: token rewards → returns or generalised advantages → whitened advantages.

Rows with `rewards` are credited together, rows without are left alone.  The KL penalty is *subtracted* from the reward
of each token, r_t − β·KL_t (arXiv 2501.03262, eq. 3): a token that drifts from the reference is worth less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rl2f_core.methods.credit import explained_variance, gae, kl_estimate, whitened
from rl2f_core.methods.objectives import BatchCredit
from rl2f_core.types import Sample


def actions(sample: Sample) -> list[int]:
    """The positions of the tokens with rl weight, in order: what the policy did. Other tokens are not its actions, so
    the value after the last token of a turn is the one before the first token of the next."""
    return [i for i, weight in enumerate(sample.rl) if weight]


def credited(
    samples: Sequence[Sample],
    credit: BatchCredit,
    values: Sequence[Sequence[float]] | None = None,
    reference: Sequence[Sequence[float]] | None = None,
) -> tuple[list[Sample], dict[str, float]]:
    """The same rows in the same order, with advantages (and values and returns under a critic), and metrics.

    Args:
        samples: The rows of one step.
        credit: λ, whitening, penalty.
        values: V before each token of each row; needed under a critic.
        reference: log π_ref of each token of each row; needed where there is a penalty.

    Raises `ValueError` where values or reference are missing.
    """
    rows = [i for i, sample in enumerate(samples) if sample.rewards is not None]
    if not rows:
        return list(samples), {}
    if (credit.critic is not None and values is None) or (credit.kl_coef and reference is None):
        raise ValueError("Crediting needs the value head's estimates under a critic, the reference's under a penalty.")
    raw: dict[int, list[float]] = {}
    returns: dict[int, list[float]] = {}
    estimates: dict[int, list[float]] = {}
    drifts: list[float] = []
    for i in rows:
        sample, places = samples[i], actions(samples[i])
        rewards = [(sample.rewards or ())[p] for p in places]
        if credit.kl_coef and reference is not None:
            drift = [kl_estimate(sample.logprobs[p] - reference[i][p], credit.kl_estimator) for p in places]
            rewards = [r - credit.kl_coef * d for r, d in zip(rewards, drift, strict=True)]
            drifts += drift
        held = values is not None and credit.critic is not None
        estimates[i] = [values[i][p] for p in places] if held else [0.0] * len(places)  # type: ignore[index]
        advantages = gae(rewards, estimates[i], [(sample.discounts or ())[p] for p in places], credit.lam)
        returns[i] = [a + v for a, v in zip(advantages, estimates[i], strict=True)]
        raw[i] = [a + sample.advantages[p] for a, p in zip(advantages, places, strict=True)]
    flat = [a for i in rows for a in raw[i]]
    final = iter(whitened(flat) if credit.whiten else flat)
    out = list(samples)
    for i in rows:
        sample, places = samples[i], actions(samples[i])
        changes: dict[str, Any] = {"advantages": _spread(len(sample.token_ids), places, [next(final) for _ in places])}
        if credit.critic is not None:
            changes["values"] = _spread(len(sample.token_ids), places, estimates[i])
            changes["returns"] = _spread(len(sample.token_ids), places, returns[i])
        out[i] = dataclasses.replace(sample, **changes)
    return out, _metrics(flat, returns, estimates, drifts, credit)


def _metrics(
    flat: Sequence[float],
    returns: dict[int, list[float]],
    estimates: dict[int, list[float]],
    drifts: Sequence[float],
    credit: BatchCredit,
) -> dict[str, float]:
    mean = sum(flat) / max(1, len(flat))
    found = {"advantage/mean": mean, "advantage/std": (sum((a - mean) ** 2 for a in flat) / max(1, len(flat))) ** 0.5}
    if drifts:
        found["kl/reward"] = sum(drifts) / len(drifts)
    if credit.critic is not None:
        targets, told = ([x for row in held.values() for x in row] for held in (returns, estimates))
        found["value/explained_variance"] = explained_variance(told, targets)
        found["value/mean"] = sum(told) / max(1, len(told))
        found["value/return"] = sum(targets) / max(1, len(targets))
    return found


def _spread(length: int, places: Sequence[int], numbers: Sequence[float]) -> list[float]:
    out = [0.0] * length
    for place, number in zip(places, numbers, strict=True):
        out[place] = number
    return out
