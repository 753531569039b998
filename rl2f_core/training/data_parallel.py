"""Sharding of an update's samples among processes. Pure functions: every process computes all shards alike.

The loss is a mean over the tokens of all samples. Each process divides its part by the normalizers of all of them, so
the parts add up to the loss of a single process.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl2f_core.training.micro_batch import effective_length, sort_by_prefix, split_by_token_budget
from rl2f_core.types import TrainingSample


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
    micro-batch contains the shortest sample.

    Args:
        samples: All samples of the update, the same in every process.
        limit: Tokens per micro-batch.
        rank: Rank of this process.
        world_size: Number of processes.
    """
    shards = shard_samples(samples, world_size) if world_size > 1 else [samples]
    planned = [split_by_token_budget(shard, limit) for shard in shards]
    local, most = planned[rank], max(map(len, planned))
    shortest = min((sample for sample in samples if sample.num_weighted_tokens), key=effective_length, default=None)
    return local, [[shortest]] * (most - len(local)) if shortest is not None else []
