"""What the kl stream compares with: log-probabilities (or hidden states) of a reference, under the row's own tokens or
under a context that only the reference reads.  No gradient flows through any of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from rl2f_core.errors import RunError
from rl2f_core.training.batch import MicroBatch, micro_batches
from rl2f_core.types import Sample

Read = Callable[[MicroBatch], torch.Tensor]
"""From a micro-batch to one number, or one vector, for each of its wanted positions: [N] or [N, H]."""


def under_context(sample: Sample) -> Sample:
    """The row as its reference reads it: the context, then the row's tokens from the first with kl weight to the last.

    Only which tokens have kl weight is kept of its weights.
    """
    assert sample.context is not None
    held = [i for i, weight in enumerate(sample.kl) if weight]
    first, last = held[0], held[-1] + 1
    n = len(sample.context)
    zeros = [0.0] * (n + last - first)
    return Sample(
        token_ids=(*sample.context, *sample.token_ids[first:last]),
        sampled=[False] * len(zeros),
        logprobs=zeros,
        advantages=zeros,
        rl=zeros,
        ce=zeros,
        kl=[0.0] * n + [float(bool(w)) for w in sample.kl[first:last]],
        dialogue=sample.dialogue,
    )


def read_rows(
    rows: Sequence[Sample], read: Read, *, limit: int, pad: int, device: torch.device
) -> list[torch.Tensor | None]:
    """What `read` finds for each row's wanted positions, in the rows' order; None for a row without weight."""
    found: dict[int, torch.Tensor] = {}
    for batch in micro_batches(rows, limit, pad, device):
        parts = read(batch).split(batch.wanted_BT.sum(1).tolist())
        found.update((id(row), part) for row, part in zip(batch.samples, parts, strict=True))
    return [found.get(id(row)) for row in rows]


def with_reference(
    batch: MicroBatch, read: Read, *, limit: int, pad: int, device: torch.device, distributions: bool
) -> MicroBatch:
    """The batch with what its kl weights need of the reference filled in.

    Args:
        batch: Rows of an update.
        read: Reads with the reference's weights, log-probabilities or, for `distributions`, hidden states.
        limit: Tokens of a pass over contexts.
        pad: The token that rows are padded with.
        device: Where to read.
        distributions: Whole distributions are compared, so that a row's own `ref_logprobs` do not help.

    Raises `RunError` where whole distributions are asked of a row that brings log-probabilities.
    """
    held_N = batch.tokens.kl_N != 0
    known_N = batch.tokens.reference_N
    if distributions and known_N is not None and bool((held_N & ~known_N.isnan()).any()):
        raise RunError("A row brings log π_ref of its sampled tokens, but whole distributions are to be compared.",
                       fix="Use the divergence sampled or k3.")  # fmt: skip
    needed_N = held_N if known_N is None else held_N & known_N.isnan()
    if not bool(needed_N.any()):
        return batch
    row_N = batch.wanted_BT.nonzero(as_tuple=True)[0]
    apart = [row.context is not None and any(row.kl) for row in batch.samples]
    apart_N = torch.tensor(apart, device=device)[row_N]
    found: torch.Tensor | None = None
    if bool((needed_N & ~apart_N).any()):
        found = read(batch)
    if any(apart):
        rows = [under_context(row) for row, own in zip(batch.samples, apart, strict=True) if own]
        parts = [part for part in read_rows(rows, read, limit=limit, pad=pad, device=device) if part is not None]
        told = torch.cat(parts)
        if found is None:
            found = told.new_zeros(len(held_N), *told.shape[1:])
        found = found.index_put(((held_N & apart_N).nonzero(as_tuple=True)[0],), told)
    assert found is not None
    if distributions:
        return dataclasses.replace(batch, reference_NH=found)
    logp_N = found if known_N is None else torch.where(known_N.isnan(), found, known_N)
    return dataclasses.replace(batch, tokens=dataclasses.replace(batch.tokens, reference_N=logp_N))
