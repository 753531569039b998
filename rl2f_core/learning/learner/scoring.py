"""Forward passes without gradient: logprobs, values or hidden states of samples, and the reference of the kl term."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import compress

import torch

from rl2f_core.learning.learner.micro_batch import (
    MicroBatch,
    local_micro_batches,
    micro_batch,
    micro_batches,
)
from rl2f_core.learning.learner.policy_model import OutputFlags
from rl2f_core.learning.learner.trainable_adapter import TrainableAdapter
from rl2f_core.learning.methods.loss_spec import KLConfig
from rl2f_core.learning.methods.samples import unweighted_sample
from rl2f_core.models.process_group import current_group
from rl2f_core.types import TrainingSample

ScoreBatch = Callable[[MicroBatch], torch.Tensor]
"""From a micro-batch to one number or vector per target position, [N] or [N, H]."""


def with_reference_prompt(sample: TrainingSample) -> TrainingSample:
    """Return the reference's sample: its prompt, then the tokens from the first to the last with kl weight."""
    assert sample.reference_prompt_ids is not None
    positions = [i for i, weight in enumerate(sample.kl_weights) if weight]
    first, last = positions[0], positions[-1] + 1
    reprompted = unweighted_sample((*sample.reference_prompt_ids, *sample.token_ids[first:last]), sample.dialogue)
    before = [0.0] * len(sample.reference_prompt_ids)
    mask = [float(bool(w)) for w in sample.kl_weights[first:last]]
    return dataclasses.replace(reprompted, kl_weights=before + mask)


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores samples with an adapter's current weights."""

    adapter: TrainableAdapter
    micro_batch_tokens: int
    temperature: float

    @torch.no_grad()
    def logprobs(self, batch: MicroBatch) -> torch.Tensor:
        """Return log π of the target tokens, [N]."""
        return self.adapter.scoring_model(batch, self.temperature)[0]

    @torch.no_grad()
    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Return the last hidden states before the target tokens, [N, H]."""
        return self.adapter.scoring_model(batch, self.temperature, OutputFlags(hidden=True))[2].hidden_NH

    @torch.no_grad()
    def values(self, batch: MicroBatch) -> torch.Tensor:
        """Return the value estimates before the target tokens, [N]."""
        return self.adapter.scoring_model(batch, self.temperature, OutputFlags(values=True))[2].values_N

    def score(self, samples: Sequence[TrainingSample], score_batch: ScoreBatch) -> list[list[float] | None]:
        """Return one number per weighted token of each sample, in order; None for a sample without weight.

        Every process scores its shard; all receive all scores.
        """
        ranks, adapter = current_group(), self.adapter
        scores: dict[int, list[float]] = {}
        index = {id(sample): i for i, sample in enumerate(samples)}
        local, idle = local_micro_batches(samples, self.micro_batch_tokens, ranks.rank, ranks.world_size)
        for number, part in enumerate([*local, *idle]):
            with torch.no_grad():
                values_N = score_batch(micro_batch(part, adapter.pad, adapter.device))
            if number < len(local):
                lengths = [len(sample.weighted_positions) for sample in part]
                for sample, values in zip(part, values_N.split(lengths), strict=True):
                    scores[index[id(sample)]] = values.tolist()
        gathered = {i: values for shard in ranks.all_gather(scores) for i, values in shard.items()}
        return [gathered.get(i) for i in range(len(samples))]

    def score_actions(self, samples: Sequence[TrainingSample], score_batch: ScoreBatch) -> list[list[float]]:
        """Return one number per token of each sample: the score of tokens with rl weight, else 0."""
        bare = [
            dataclasses.replace(s, kl_weights=[0.0] * len(s.kl_weights), ce_weights=[0.0] * len(s.ce_weights))
            for s in samples
        ]
        out = []
        for sample, scores in zip(bare, self.score(bare, score_batch), strict=True):
            numbers = iter(scores or [])
            out.append([next(numbers) if weight else 0.0 for weight in sample.rl_weights])
        return out

    def with_reference(self, batch: MicroBatch, kl: KLConfig, ref_model: str) -> MicroBatch:
        """Return the batch with the reference of its tokens with kl weight.

        The reference is one logprob per token, or a hidden state if whole distributions are compared; then with the
        reference's output layer, if that is trained.
        """
        if not batch.tokens.has_kl:
            return batch
        kind = {"base": ref_model, "live": "live", "ema": "stage_start"}[kl.reference]
        scores = self._score_reference(batch, batch.tokens.kl_N != 0, kl, kind)
        if kl.compares_distributions:
            output = self.adapter.reference_output(kind)
            return dataclasses.replace(batch, reference_NH=scores, reference_output=output)
        return dataclasses.replace(batch, tokens=dataclasses.replace(batch.tokens, reference_N=scores))

    def _score_reference(self, batch: MicroBatch, kl_mask_N: torch.Tensor, kl: KLConfig, kind: str) -> torch.Tensor:
        """Score a batch with the reference's weights; samples with a reference prompt are scored under it."""
        score_batch = self.hidden if kl.compares_distributions else self.logprobs
        row_N = batch.row_N
        reprompted = [sample.reference_prompt_ids is not None and any(sample.kl_weights) for sample in batch.samples]
        reprompted_N = torch.tensor(reprompted, device=self.adapter.device)[row_N]
        scores: torch.Tensor | None = None
        with self.adapter.reference_weights(kind):
            if bool((kl_mask_N & ~reprompted_N).any()):
                scores = score_batch(batch)
            if any(reprompted):
                samples = [with_reference_prompt(sample) for sample in compress(batch.samples, reprompted)]
                reprompted_scores = torch.cat(self._score_local(samples, score_batch))
                if scores is None:
                    scores = reprompted_scores.new_zeros(len(row_N), *reprompted_scores.shape[1:])
                indices_M = (kl_mask_N & reprompted_N).nonzero(as_tuple=True)[0]
                scores = scores.index_put((indices_M,), reprompted_scores)
        assert scores is not None
        return scores

    def _score_local(self, samples: Sequence[TrainingSample], score_batch: ScoreBatch) -> list[torch.Tensor]:
        """Return the scores at each sample's target positions, in order; all samples have weight."""
        scores: dict[int, torch.Tensor] = {}
        for batch in micro_batches(samples, self.micro_batch_tokens, self.adapter.pad, self.adapter.device):
            parts = score_batch(batch).split([len(sample.weighted_positions) for sample in batch.samples])
            scores.update((id(sample), part) for sample, part in zip(batch.samples, parts, strict=True))
        return [scores[id(sample)] for sample in samples]
