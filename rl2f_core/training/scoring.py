"""Forward passes without gradient: log-probabilities, values or hidden states of samples, sharded over processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from rl2f_core.distributed.process_group import current_group
from rl2f_core.training.data_parallel import local_micro_batches
from rl2f_core.training.micro_batch import MicroBatch, micro_batch, weighted_positions
from rl2f_core.training.policy_model import OutputFlags
from rl2f_core.training.trainable_adapter import TrainableAdapter
from rl2f_core.types import TrainingSample

ScoreBatch = Callable[[MicroBatch], torch.Tensor]
"""From a micro-batch to one number per target position, [N]."""


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
                lengths = [len(weighted_positions(sample)) for sample in part]
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
