"""The learner: iterations → minibatches → micro-batches → optimizer step, with the loss of `learner.losses`.

There is no dropout, so training draws no random numbers: weights, optimizer and samples determine a step.

With several processes, each receives all samples, computes its shard (`micro_batch.shard_samples`), and ends with the
same weights and metrics.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from rl2f_core.config.stage import ResolvedStage, StageConfig
from rl2f_core.errors import RunError
from rl2f_core.learning.learner.fsdp import full_tensor
from rl2f_core.learning.learner.gradient_checkpointing import default_micro_batch_tokens
from rl2f_core.learning.learner.importance_sampling import recompute_old_logprobs
from rl2f_core.learning.learner.losses import LossConfig, LossNormalizers, loss
from rl2f_core.learning.learner.micro_batch import (
    MicroBatch,
    local_micro_batches,
    loss_normalizers,
    micro_batch,
    minibatches,
    split_by_token_budget,
)
from rl2f_core.learning.learner.policy_model import OutputFlags
from rl2f_core.learning.learner.scoring import Scorer
from rl2f_core.learning.learner.trainable_adapter import TrainableAdapter
from rl2f_core.learning.learner.value_head import value_loss
from rl2f_core.learning.methods.advantages import compute_batch_advantages
from rl2f_core.learning.training.step_metrics import loss_means
from rl2f_core.models.process_group import current_group
from rl2f_core.types import TrainingSample


class Learner(TrainableAdapter):
    """Trains one adapter on one base model."""

    def update(self, samples: Sequence[TrainingSample], options: LossConfig, now: ResolvedStage) -> dict[str, float]:
        """Train on the samples of one step, drawn at `now.temperature`; return metrics.

        There are `now.num_iterations` times `now.minibatches` optimizer updates; none without gradient. Samples
        without gradient count in the normalizers of the loss and are not computed.

        Raises:
            RunError: The loss or the gradient is not finite; the weights are as before this update.
        """
        check_finite(samples)
        scorer = Scorer(self, self.micro_batch_tokens(now), now.temperature)
        samples, metrics = recompute_old_logprobs(samples, now.importance_sampling_clip_max, scorer, options)
        trained = sum(len(sample.weighted_positions) for sample in samples if options.trains(sample))
        parts = [part for part in minibatches(samples, now.minibatches) if any(map(options.trains, part))]
        history: dict[str, list[float]] = {}
        for _ in range(now.num_iterations):
            for part in parts:
                for key, value in self._update_minibatch(part, options, now).items():
                    history.setdefault(key, []).append(value)
        means = {key: sum(values) / len(values) for key, values in history.items()}
        if again := self.activations.read():
            metrics["gradient_checkpointing_frac"] = again
        return {
            **means,
            **metrics,
            "learning_rate": now.learning_rate,
            "optimizer_updates": float(len(parts) * now.num_iterations),
            "tokens/trained": float(trained),
        }

    def _update_minibatch(
        self, samples: Sequence[TrainingSample], options: LossConfig, now: ResolvedStage
    ) -> dict[str, float]:
        """Run one optimizer step on the sum of the gradients of all micro-batches in all processes."""
        ranks, norms, limit = current_group(), loss_normalizers(samples), self.micro_batch_tokens(now)
        trained = [sample for sample in samples if options.trains(sample)]
        local, idle = local_micro_batches(trained, limit, ranks.rank, ranks.world_size)
        batches = [*local, *idle]
        scorer = Scorer(self, limit, now.temperature)
        self.set_learning_rates(now, options)
        self.optimizer.zero_grad()
        sums = {"loss": 0.0, "entropy": 0.0, "tokens": 0.0}
        for number, part in enumerate(batches):
            # gradients are averaged over processes, and the shards are to add up
            scale = float(ranks.world_size) if number < len(local) else 0.0
            batch = scorer.with_reference(micro_batch(part, self.pad, self.device), options.kl, now.ref_model)
            with self._gathering(number + 1 == len(batches)):
                part_sums = self.forward_backward(batch, norms, options, now, scale)
            for key, value in part_sums.items() if scale else ():
                sums[key] = sums.get(key, 0.0) + value
        sums = ranks.all_reduce_sum(sums)
        total, entropy = sums.pop("loss"), sums.pop("entropy") / max(sums.pop("tokens"), 1.0)
        clipped = self._clip_gradients(total, now)
        self.optimizer.step()
        if options.uses_ema:
            self.update_ema(options.kl.ema_rate)
        return {"loss": total, "entropy": entropy, **clipped, **loss_means(sums, norms)}

    def micro_batch_tokens(self, stage: StageConfig) -> int:
        """Return the most tokens of one forward and backward: as configured, or by the device's memory."""
        return stage.micro_batch_tokens or default_micro_batch_tokens(self.policy_model.model, self.device)

    def forward_backward(
        self, batch: MicroBatch, norms: LossNormalizers, options: LossConfig, now: ResolvedStage, scale: float
    ) -> dict[str, float]:
        """Run forward and backward on one micro-batch; return its part of the loss and sums for the metrics.

        `norms` are those of all samples of the update, in all processes. `scale` is the factor of the loss for the
        backward pass; 0 for an idle micro-batch. The terms rl and kl have the temperature of the step; ce has 1.
        """
        critic = options.critic
        distributions = options.kl.compares_distributions and batch.tokens.has_kl
        flags = OutputFlags(
            critic is not None,
            critic is None or critic.trains_adapter,
            entropy_gradient=options.entropy_coef > 0,
            kl=options.kl if distributions else None,
        )
        size, width = batch.input_BT.numel(), batch.input_BT.shape[1]
        with self.activations.forward_context(size, now.gradient_checkpointing, width):
            logp_N, entropy_N, more = self.policy(batch, now.temperature, flags)
        tokens = dataclasses.replace(batch.tokens, divergence_N=more.divergence_N, entropy_N=entropy_N)
        part, sums = loss(logp_N, tokens, norms, options)
        if critic is not None and tokens.values_N is not None and tokens.returns_N is not None:
            value_part, value_sums = value_loss(
                more.values_N, tokens.values_N, tokens.returns_N, tokens.rl_N, norms.rl, critic
            )
            part, sums = part + value_part, sums | value_sums
        self.accelerator.backward(part * scale if scale != 1 else part)
        return {
            "tokens": len(entropy_N),
            **to_floats({"loss": part.detach(), "entropy": entropy_N.detach().sum(), **sums}),
        }

    def set_learning_rates(self, now: ResolvedStage, options: LossConfig) -> None:
        """Set the optimizer's learning rate, decay and betas; DeepSpeed makes its step within the backward pass."""
        head_rate = None if options.critic is None else options.critic.learning_rate
        for number, group in enumerate(self.optimizer.param_groups):
            scale = head_rate / now.peak_learning_rate if head_rate is not None and number == 1 else 1.0
            group["lr"], group["weight_decay"] = now.learning_rate * scale, now.weight_decay
            group["betas"] = now.adam_beta1, now.adam_beta2

    @contextlib.contextmanager
    def _gathering(self, last: bool) -> Iterator[None]:
        """Context of a backward pass: only the last one of an update all-reduces the gradients."""
        self.accelerator.sync_gradients = last
        with contextlib.nullcontext() if last else self.accelerator.no_sync(self.policy):
            yield

    def _clip_gradients(self, total: float, now: ResolvedStage) -> dict[str, float]:
        """Clip the gradients of adapter and value head; return their norms before.

        Raises `RunError` if the loss or a norm is not finite.
        """
        trained = {"grad_norm": self.parameters, "value/grad_norm": self.head_parameters}
        norms = {name: self._clip(parameters, now) for name, parameters in trained.items() if parameters}
        if not all(map(math.isfinite, (total, *norms.values()))):
            self.optimizer.zero_grad()
            raise RunError(
                "The loss or its gradient is not a finite number.",
                value={"loss": total, "norm": norms["grad_norm"]},
                fix="Lower learning_rate, or resume from an earlier checkpoint.",
            )
        return norms

    def _clip(self, parameters: dict[str, nn.Parameter], now: ResolvedStage) -> float:
        limit = math.inf if now.max_grad_norm is None else now.max_grad_norm
        norm = self.accelerator.clip_grad_norm_(list(parameters.values()), limit)
        return float(full_tensor(norm)) if norm is not None else 0.0

    # -- before the update -------------------------------------------------------------------------------------
    def compute_advantages(
        self, samples: Sequence[TrainingSample], options: LossConfig, now: ResolvedStage
    ) -> tuple[list[TrainingSample], dict[str, float]]:
        """Return the samples with the advantages that only the whole step determines (`methods.advantages`).

        Also returns metrics. All iterations share the value estimates and the reference of this call.
        """
        config = options.advantage
        if config is None:
            return list(samples), {}
        scorer = Scorer(self, self.micro_batch_tokens(now), now.temperature)
        values = reference = None
        if config.critic is not None:
            values = scorer.score_actions(samples, scorer.values)
        if config.kl_coef:
            with self.reference_weights(now.ref_model):
                reference = scorer.score_actions(samples, scorer.logprobs)
        return compute_batch_advantages(samples, config, values, reference)

    def seconds_of_update(self, samples: Sequence[TrainingSample], stage: StageConfig, count: int = 8) -> float:
        """Estimate the seconds that one update on `samples` takes, from the first `count`; changes nothing."""
        few = [s for s in samples[:count] if s.weighted_positions]
        if not few:
            return 0.0
        batch = micro_batch(split_by_token_budget(few, self.micro_batch_tokens(stage))[0], self.pad, self.device)
        start = time.perf_counter()
        logp_N, *_ = self.scoring_model(batch, 1.0)
        logp_N.sum().backward()
        seconds = time.perf_counter() - start
        self.optimizer.zero_grad()
        tokens = sum(len(s.token_ids) for s in samples)
        return seconds * tokens / sum(len(s.token_ids) for s in batch.samples)


def to_floats(sums: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return the values of scalars, read from the device at once."""
    return dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))


def check_finite(samples: Sequence[TrainingSample]) -> None:
    """Raise `RunError` for an advantage or a sampling logprob that is not finite: the loss would not be either."""
    for sample in samples:
        for name in ("advantages", "logprobs"):
            value = next((value for value in getattr(sample, name) if not math.isfinite(value)), None)
            if value is not None:
                raise RunError(
                    f"One of the {name} of dialogue {sample.dialogue!r} is not a finite number.",
                    value=value,
                    fix="Check the rewards of its turns and their weights: `rl2f replay RUN`.",
                )
