"""Split training samples into shards, minibatches and micro-batches: padded at the right, under a token budget.

Every process computes all shards alike. The loss is a mean over the tokens of all samples. Each process divides its
part by the normalizers of all of them, so the parts add up to the loss of a single process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rl2f_core.learning.learner.losses import LossNormalizers, TokenBatch
from rl2f_core.models.device import to_device
from rl2f_core.models.modeling.logprobs import allowed_tensor, right_padded
from rl2f_core.types import POLICY_LOSSES, TrainingSample


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one forward pass; `tokens` describes the positions of `target_mask_BT`, row by row."""

    samples: tuple[TrainingSample, ...]
    input_BT: torch.Tensor
    attention_mask_BT: torch.Tensor
    target_mask_BT: torch.Tensor
    row_N: torch.Tensor
    """Row of each target token."""
    column_N: torch.Tensor
    tokens: TokenBatch
    prefixes: tuple[int, ...]
    """Length of each sample's prefix that predicts no weighted token; samples may share prefixes."""
    reference_NH: torch.Tensor | None = None
    """Hidden states of the reference, to compare whole distributions."""
    reference_output: dict[str, torch.Tensor] | None = None
    """Weights of the reference's output layer that differ from the policy's."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sample without padding."""
        return [effective_length(sample) for sample in self.samples]


def shared_prefix_length(sample: TrainingSample) -> int:
    """Count the tokens before the one that predicts the first weighted token."""
    return max(0, next(iter(sample.weighted_positions), 1) - 1)


def effective_length(sample: TrainingSample) -> int:
    """Count the tokens up to the last weighted one, inclusive."""
    return sample.weighted_positions[-1] + 1 if sample.weighted_positions else 0


def micro_batches(samples: Sequence[TrainingSample], limit: int, pad: int, device: torch.device) -> list[MicroBatch]:
    """Build micro-batches of at most `limit` tokens, padding included (`split_by_token_budget`)."""
    return [micro_batch(part, pad, device) for part in split_by_token_budget(samples, limit)]


def split_by_token_budget(samples: Sequence[TrainingSample], limit: int) -> list[list[TrainingSample]]:
    """Split samples so that count × longest ≤ `limit` tokens; one sample may exceed the limit alone.

    Samples without weight are dropped. The others keep the order of `sort_by_prefix`.
    """
    remaining = sort_by_prefix(samples)
    parts = []
    while remaining:
        count, longest = 1, effective_length(remaining[0])
        while count < len(remaining) and (count + 1) * max(longest, effective_length(remaining[count])) <= limit:
            longest = max(longest, effective_length(remaining[count]))
            count += 1
        parts.append(remaining[:count])
        remaining = remaining[count:]
    return parts


def sort_by_prefix(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Sort the samples with weight so that those with the same prefix are adjacent.

    The prefix with the longest sample comes first, and within a prefix the longest sample.
    """
    weighted = [sample for sample in samples if sample.weighted_positions]
    prefixes = {id(sample): tuple(sample.token_ids[: shared_prefix_length(sample)]) for sample in weighted}
    longest: dict[tuple[int, ...], int] = {}
    for sample in weighted:
        prefix = prefixes[id(sample)]
        longest[prefix] = max(longest.get(prefix, 0), effective_length(sample))

    def order(sample: TrainingSample) -> tuple[int, tuple[int, ...], int]:
        prefix = prefixes[id(sample)]
        return longest[prefix], prefix, effective_length(sample)

    return sorted(weighted, key=order, reverse=True)


def shard_samples(samples: Sequence[TrainingSample], count: int) -> list[list[TrainingSample]]:
    """Split samples into `count` shards of nearly equal token counts; samples without weight are dropped.

    The shards are slices of `sort_by_prefix`, so samples with a common prefix mostly stay together. A sample belongs
    to the shard that contains its middle token. A shard may be empty, and exceeds an even share by at most one sample.
    """
    ordered = sort_by_prefix(samples)
    total = sum(map(effective_length, ordered))
    shards: list[list[TrainingSample]] = [[] for _ in range(count)]
    before = 0
    for sample in ordered:
        length = effective_length(sample)
        shards[min(count - 1, (2 * before + length) * count // (2 * total))].append(sample)
        before += length
    return shards


def local_micro_batches(
    samples: Sequence[TrainingSample], limit: int, rank: int, world_size: int
) -> tuple[list[list[TrainingSample]], list[list[TrainingSample]]]:
    """Return the samples of this process's micro-batches, and of its idle ones, whose loss has scale 0.

    All processes run the same number of forward passes, because each must join every collective operation. An idle
    micro-batch contains the shortest sample. `samples` are those of the whole update, the same in every process;
    `limit` is the number of tokens per micro-batch.
    """
    shards = shard_samples(samples, world_size) if world_size > 1 else [samples]
    planned = [split_by_token_budget(shard, limit) for shard in shards]
    local, most = planned[rank], max(map(len, planned))
    shortest = min((sample for sample in samples if sample.weighted_positions), key=effective_length, default=None)
    return local, [[shortest]] * (most - len(local)) if shortest is not None else []


def minibatches(samples: Sequence[TrainingSample], count: int) -> list[list[TrainingSample]]:
    """Distribute samples over up to `count` minibatches, dialogue by dialogue in turn.

    All samples of a dialogue share one optimizer update. A sample without dialogue counts as its own.
    """
    indices: dict[object, int] = {}
    parts: list[list[TrainingSample]] = [[] for _ in range(count)]
    for number, sample in enumerate(samples):
        index = indices.setdefault(sample.dialogue or number, len(indices))
        parts[index % count].append(sample)
    return [part for part in parts if part]


def micro_batch(samples: Sequence[TrainingSample], pad: int, device: torch.device) -> MicroBatch:
    """Build one micro-batch of samples with weight; tokens after the last weighted one are cut off."""
    token_ids = [sample.token_ids[: effective_length(sample)] for sample in samples]
    input_BT, attention_mask_BT = right_padded(token_ids, pad, device)
    positions = [np.array(sample.weighted_positions, dtype=np.int64) for sample in samples]
    counts = [len(p) for p in positions]
    codes = np.array([POLICY_LOSSES.index(sample.policy_loss) for sample in samples])
    off_context = np.array([sample.off_context for sample in samples], dtype=np.int64)
    row_N, column_N, loss_N, off_N = to_device(
        [np.repeat(np.arange(len(samples)), counts), np.concatenate(positions), np.repeat(codes, counts),
         np.repeat(off_context, counts)], device
    )  # fmt: skip
    target_mask_BT = torch.zeros_like(attention_mask_BT).index_put_((row_N, column_N), attention_mask_BT.new_ones(()))
    targets = [sample.value_targets for sample in samples]
    columns: list[list[Sequence[float] | None]] = [
        [getattr(sample, name) for sample in samples]
        for name in ("logprobs", "advantages", "rl_weights", "ce_weights", "kl_weights")
    ]
    if any(target is not None for target in targets):
        columns += [[None if target is None else target[i] for target in targets] for i in range(2)]

    def values_at_positions(arrays: Iterable[Sequence[float] | None]) -> np.ndarray:
        pairs = zip(arrays, positions, strict=True)
        parts = [np.full(len(p), np.nan) if a is None else np.asarray(a, np.float64)[p] for a, p in pairs]
        return np.concatenate(parts).astype(np.float32)

    old_N, advantages_N, rl_N, ce_N, kl_N, *values = to_device([*map(values_at_positions, columns)], device)
    allowed = [sample.allowed_tokens.get(p, ()) for sample in samples for p in sample.weighted_positions]
    tokens = TokenBatch(
        old_logprobs_N=old_N,
        advantages_N=advantages_N,
        rl_N=rl_N,
        ce_N=ce_N,
        kl_N=kl_N,
        policy_loss_N=loss_N if codes.any() else None,
        allowed_NK=allowed_tensor(allowed, device),
        off_context_N=off_N.bool() if off_context.any() else None,
        values_N=values[0] if values else None,
        returns_N=values[1] if values else None,
        has_kl=any(any(sample.kl_weights) for sample in samples),
    )
    prefixes = tuple(shared_prefix_length(sample) for sample in samples)
    return MicroBatch(tuple(samples), input_BT, attention_mask_BT, target_mask_BT, row_N, column_N, tokens, prefixes)


def loss_normalizers(samples: Sequence[TrainingSample]) -> LossNormalizers:
    """Sum each loss term's weights over all samples."""
    rl, ce, kl = (
        float(sum(sum(getattr(sample, name)) for sample in samples))
        for name in ("rl_weights", "ce_weights", "kl_weights")
    )
    return LossNormalizers(rl, ce, kl)
