"""Reference of the kl term: logprobs or hidden states, under the sample's prompt or a separate reference prompt.

No gradient flows into the reference.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch

from rl2f_core.errors import RunError
from rl2f_core.training.micro_batch import MicroBatch, micro_batches
from rl2f_core.training.trainable_adapter import TrainableAdapter
from rl2f_core.types import TrainingSample

ScoreBatch = Callable[[MicroBatch], torch.Tensor]
"""From a micro-batch to one number or vector per target position, [N] or [N, H]."""


def with_reference_prompt(sample: TrainingSample) -> TrainingSample:
    """Return the reference's sample: its prompt, then the tokens from the first to the last with kl weight."""
    assert sample.reference_prompt_ids is not None
    positions = [i for i, weight in enumerate(sample.kl_weights) if weight]
    first, last = positions[0], positions[-1] + 1
    n = len(sample.reference_prompt_ids)
    zeros = [0.0] * (n + last - first)
    return TrainingSample(
        token_ids=(*sample.reference_prompt_ids, *sample.token_ids[first:last]),
        policy_mask=[False] * len(zeros),
        logprobs=zeros,
        advantages=zeros,
        rl_weights=zeros,
        ce_weights=zeros,
        kl_weights=[0.0] * n + [float(bool(w)) for w in sample.kl_weights[first:last]],
        dialogue=sample.dialogue,
    )


def score_samples(
    samples: Sequence[TrainingSample], score: ScoreBatch, *, limit: int, pad: int, device: torch.device
) -> list[torch.Tensor | None]:
    """Return `score` at each sample's target positions, in order; None for a sample without weight."""
    scores: dict[int, torch.Tensor] = {}
    for batch in micro_batches(samples, limit, pad, device):
        parts = score(batch).split(batch.target_mask_BT.sum(1).tolist())
        scores.update((id(sample), part) for sample, part in zip(batch.samples, parts, strict=True))
    return [scores.get(id(sample)) for sample in samples]


def with_reference(
    batch: MicroBatch, score: ScoreBatch, *, limit: int, pad: int, device: torch.device, distributions: bool
) -> MicroBatch:
    """Return the batch with the reference logprobs or hidden states of its tokens with kl weight.

    Args:
        batch: A micro-batch of the update.
        score: Computes logprobs with the reference's weights; with `distributions`, hidden states.
        limit: Tokens of a micro-batch of samples with reference prompts.
        pad: Padding token.
        device: Device of the batch.
        distributions: Whether whole distributions are compared.

    Raises:
        RunError: Whole distributions are compared, but a sample has `ref_logprobs`.
    """
    kl_mask_N = batch.tokens.kl_N != 0
    known_N = batch.tokens.reference_N
    if distributions and known_N is not None and bool((kl_mask_N & ~known_N.isnan()).any()):
        raise RunError(
            "A sample has ref_logprobs of its sampled tokens, but whole distributions are compared.",
            fix="Use the divergence sampled_token or k3.",
        )
    needed_N = kl_mask_N if known_N is None else kl_mask_N & known_N.isnan()
    if not bool(needed_N.any()):
        return batch
    row_N = batch.target_mask_BT.nonzero(as_tuple=True)[0]
    reprompted = [sample.reference_prompt_ids is not None and any(sample.kl_weights) for sample in batch.samples]
    reprompted_N = torch.tensor(reprompted, device=device)[row_N]
    scores: torch.Tensor | None = None
    if bool((needed_N & ~reprompted_N).any()):
        scores = score(batch)
    if any(reprompted):
        samples = [with_reference_prompt(s) for s, selected in zip(batch.samples, reprompted, strict=True) if selected]
        parts = score_samples(samples, score, limit=limit, pad=pad, device=device)
        reprompted_scores = torch.cat([part for part in parts if part is not None])
        if scores is None:
            scores = reprompted_scores.new_zeros(len(kl_mask_N), *reprompted_scores.shape[1:])
        scores = scores.index_put(((kl_mask_N & reprompted_N).nonzero(as_tuple=True)[0],), reprompted_scores)
    assert scores is not None
    if distributions:
        return dataclasses.replace(batch, reference_NH=scores)
    logp_N = scores if known_N is None else torch.where(known_N.isnan(), scores, known_N)
    return dataclasses.replace(batch, tokens=dataclasses.replace(batch.tokens, reference_N=logp_N))


@contextlib.contextmanager
def reference_weights(adapter: TrainableAdapter, kind: str) -> Iterator[None]:
    """Context in which the model has the weights of the reference.

    Args:
        adapter: The adapter in training.
        kind: `base`, `stage_start` (the stored weights), or `live` for the current ones.
    """
    if kind == "live":
        yield
    elif kind == "base":
        with adapter.model.disable_adapter():
            yield
    elif adapter.reference is None:
        raise RunError("The stage has no reference weights.", fix="Set ref_model: base.")
    else:
        current = adapter.snapshot()
        try:
            adapter.restore(adapter.reference)
            yield
        finally:
            adapter.restore(current)


@torch.no_grad()
def update_ema(adapter: TrainableAdapter, rate: float) -> None:
    """Move the reference toward the policy: reference ← (1 − rate)·reference + rate·policy."""
    if adapter.reference is not None:
        for name, parameter in adapter.parameters.items():
            adapter.reference[name].lerp_(parameter, rate)
