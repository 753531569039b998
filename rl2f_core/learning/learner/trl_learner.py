"""Learner on TRL 1.16's `GRPOTrainer`: our dialogues and samples, TRL's loss, backward pass, clipping and optimizer.

    ours   dialogues, advantages, samples, micro-batches, learning rate of a step, commits, events
    TRL's  logprobs (`fused_lm_head`), `_compute_loss`, `training_step`, `_clip_grad_norm`, `create_optimizer`

TRL's training loop is not used, because a run must stop, commit and resume after every step. TRL receives a sample as
prompt and completion. The prompt ends before the first weighted token of the micro-batch, so there is no left padding;
TRL's tool mask selects the student's tokens of the completion. Advantages are per token ([B, T], supported for
subclasses) and old logprobs are those of the samples, so the ratio is that of our loss. `loss_type` is `dapo`, the mean
over all tokens of the update. k3 is not weighted by the ratio (`use_bias_correction_kl`).

Options that TRL's loss does not support are refused, never approximated (`methods.trl_compat`).
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import nn
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from rl2f_core.config.stage import ResolvedStage, StageConfig
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.learning.learner.learner import Learner, to_floats
from rl2f_core.learning.learner.losses import LossConfig, LossNormalizers, loss
from rl2f_core.learning.learner.micro_batch import MicroBatch, shared_prefix_length
from rl2f_core.learning.learner.policy_model import autocast_context
from rl2f_core.learning.methods.trl_compat import unsupported_options, unsupported_sample
from rl2f_core.models.modeling.attention import CausalLM
from rl2f_core.models.process_group import current_group
from rl2f_core.types import TrainingSample

BANNED_TOKEN_BIAS = -1e30
"""Output bias of banned tokens: TRL's head has no list of them, and their probability becomes 0."""


def trl_batch(batch: MicroBatch, tokens: float, *, counts: bool = True) -> dict[str, torch.Tensor]:
    """Convert a micro-batch to the inputs of `GRPOTrainer._compute_loss`.

    Args:
        batch: Samples that TRL supports (`methods.trl_compat`).
        tokens: Number of tokens with rl weight in the whole update.
        counts: False gives all tokens weight 0.
    """
    first = min(shared_prefix_length(sample) for sample in batch.samples) + 1

    def scatter(values_N: torch.Tensor) -> torch.Tensor:
        values_BT = torch.zeros(batch.input_BT.shape, dtype=values_N.dtype, device=values_N.device)
        values_BT[batch.target_mask_BT] = values_N
        return values_BT[:, first:]

    token_batch = batch.tokens
    inputs = {
        "prompt_ids": batch.input_BT[:, :first],
        "prompt_mask": batch.attention_mask_BT[:, :first].long(),
        "completion_ids": batch.input_BT[:, first:],
        "completion_mask": batch.attention_mask_BT[:, first:].long(),
        "tool_mask": scatter((token_batch.rl_N != 0).long() * int(counts)),
        "advantages": scatter(token_batch.advantages_N),
        "old_per_token_logps": scatter(token_batch.old_logprobs_N),
        "num_items_in_batch": torch.tensor(tokens, device=token_batch.rl_N.device),
    }
    if token_batch.reference_N is not None:
        inputs["ref_per_token_logps"] = scatter(token_batch.reference_N)
    return inputs


def _unused_reward(completions: Sequence[object], **columns: object) -> list[float | None]:
    """Satisfy TRL's constructor, which requires a reward function; rewards are the environment's."""
    raise RunError("TRL must not compute rewards, which are those of the environment.")


class MicroBatchTrainer(GRPOTrainer):
    """`GRPOTrainer` that receives its micro-batches as inputs."""

    args: GRPOConfig
    current_gradient_accumulation_steps = 1
    last_logps_BT: torch.Tensor
    """Logprobs of the completion's weighted tokens in the last forward pass, else 0."""
    entropy: float
    """Sum of their entropies."""
    student_mask_BT: torch.Tensor
    compute_dtype: torch.dtype | None = None
    """See `learner.policy_model`."""

    def _send_telemetry(self) -> None:
        """Send no telemetry."""

    def _prepare_inputs(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.student_mask_BT = inputs["tool_mask"].bool()
        return inputs

    def _get_per_token_logps_and_entropies(
        self, *args: object, **options: object
    ) -> tuple[torch.Tensor, torch.Tensor, object]:
        """Zero the logprobs of other than student tokens: they may be −∞ for banned tokens."""
        with autocast_context(self.compute_dtype, self.accelerator.device):
            logps_BT, entropies_BT, more = super()._get_per_token_logps_and_entropies(*args, **options)
        logps_BT = logps_BT.masked_fill(~self.student_mask_BT, 0.0)
        entropies_BT = entropies_BT.masked_fill(~self.student_mask_BT, 0.0)
        self.last_logps_BT, self.entropy = logps_BT.detach(), float(entropies_BT.detach().sum())
        return logps_BT, entropies_BT, more


def build_grpo_trainer(model: CausalLM, folder: Path, device: torch.device, output: str) -> MicroBatchTrainer:
    """Build TRL's trainer; `folder` is that of the base model, `output` one that TRL may create and leaves empty."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    # TRL requires one prompt per process; none is used
    prompts = Dataset.from_dict({"prompt": ["-"] * max(1, current_group().world_size)})
    return MicroBatchTrainer(
        model=model,
        reward_funcs=_unused_reward,
        args=_grpo_config(device, output),
        train_dataset=prompts,
        processing_class=tokenizer,
    )


def _grpo_config(device: torch.device, output: str) -> GRPOConfig:
    """Return TRL's settings for our loss: dapo with k3, no output and no logging."""
    return GRPOConfig(
        output_dir=output,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        num_generations=2,
        loss_type="dapo",
        beta=0.0,
        use_bias_correction_kl=False,
        optim="adamw_torch",
        lr_scheduler_type="constant",
        bf16=False,
        gradient_checkpointing=False,
        disable_dropout=True,
        ddp_find_unused_parameters=False,
        use_cpu=device.type == "cpu",
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


class TRLLearner(Learner):
    """Trains one adapter on one base model with TRL's `GRPOTrainer`."""

    fuses_lora = False

    def setup_accelerator(self, folder: Path) -> Accelerator:
        """Return the accelerator of TRL's trainer."""
        self._output = tempfile.TemporaryDirectory(prefix="rl2f-trl-")
        _ban_tokens(self.model.get_base_model(), self.policy_model.banned)
        self.trainer = build_grpo_trainer(self.model, folder, self.device, os.path.join(self._output.name, "out"))
        self.trainer.compute_dtype = self.policy_model.compute_dtype
        return self.trainer.accelerator

    def begin_stage(self, options: LossConfig, stage: StageConfig) -> None:
        """As `Learner.begin_stage`; raises `ConfigError` for options that TRL's loss does not support."""
        self._refuse(unsupported_options(options))
        super().begin_stage(options, stage)

    def new_optimizer(self, weight_decay: float) -> None:
        """Create a new optimizer."""
        if self.sharding:
            raise ConfigError(
                "TRL's trainer does not support sharded weights.",
                value=self.sharding,
                fix="Set the stage's trainer to native, or launch with --multi_gpu.",
            )
        self.trainer.optimizer, self.trainer.args.weight_decay = None, weight_decay
        self.wrap(self.model, self.trainer.create_optimizer())
        self.trainer.model_wrapped, self.trainer.optimizer = self.policy, self.optimizer

    def set_learning_rates(self, now: ResolvedStage, options: LossConfig) -> None:
        """Set rate, decay and betas; TRL's second parameter group (biases and norms) has no decay."""
        for number, group in enumerate(self.optimizer.param_groups):
            group["lr"], group["weight_decay"] = now.learning_rate, now.weight_decay if number == 0 else 0.0
            group["betas"] = now.adam_beta1, now.adam_beta2

    def update(self, samples: Sequence[TrainingSample], options: LossConfig, now: ResolvedStage) -> dict[str, float]:
        """As `Learner.update`; raises `ConfigError` first if a sample or option is not supported."""
        self._refuse(unsupported_options(options))
        for sample in samples:
            self._refuse(unsupported_sample(sample, options.kl_coef))
        return super().update(samples, options, now)

    def seconds_of_update(self, samples: Sequence[TrainingSample], stage: StageConfig, count: int = 8) -> float:
        """As `Learner.seconds_of_update`; refuses unsupported samples already at the preflight."""
        for sample in samples:
            self._refuse(unsupported_sample(sample, 0.0))
        return super().seconds_of_update(samples, stage, count)

    def forward_backward(
        self, batch: MicroBatch, norms: LossNormalizers, options: LossConfig, now: ResolvedStage, scale: float
    ) -> dict[str, float]:
        """Run TRL's `training_step` on one micro-batch; return the sums of our loss for the metrics."""
        trainer, ranks = self.trainer, current_group()
        self._set_temperature(now.temperature)
        trainer.beta, trainer.epsilon_low, trainer.epsilon_high = options.kl_coef, options.epsilon, options.epsilon_high
        # TRL's divisor: tokens of the update / processes, because one accumulation step is configured
        inputs = trl_batch(batch, norms.rl, counts=scale > 0)
        part = trainer.training_step(self.policy, inputs, None)
        trainer._metrics["train"].clear()  # unused, and would grow without limit
        if not scale:
            return {}
        logp_BT = torch.zeros(batch.input_BT.shape, device=self.device)
        logp_BT[:, -trainer.last_logps_BT.shape[1] :] = trainer.last_logps_BT.float()
        _, sums = loss(logp_BT[batch.target_mask_BT], batch.tokens, norms, options)
        return {
            "loss": float(part) / ranks.world_size,
            "entropy": trainer.entropy,
            "tokens": int(batch.target_mask_BT.sum()),
            **to_floats(sums),
        }

    def _clip(self, parameters: dict[str, nn.Parameter], now: ResolvedStage) -> float:
        """Clip with TRL's trainer, over all trained parameters."""
        self.trainer.args.max_grad_norm = math.inf if now.max_grad_norm is None else now.max_grad_norm
        return float(self.trainer._clip_grad_norm(self.policy))

    def _set_temperature(self, temperature: float) -> None:
        """Rebuild TRL's head for the step's temperature, which is fixed at its creation."""
        if temperature == self.trainer.temperature:
            return
        base: CausalLM = self.model.get_base_model()
        base.__dict__.pop("forward", None)
        add_fused_lm_head(base, temperature=temperature, outputs=("log_probs", "entropy"))
        self.trainer.temperature = temperature

    def _refuse(self, reason: str) -> None:
        if reason:
            raise ConfigError(
                f"TRL's GRPO loss does not support {reason}.",
                value="trainer: trl",
                fix="Set the stage's trainer to native.",
            )


def _ban_tokens(base: CausalLM, banned: torch.Tensor) -> None:
    """Give the output layer a bias that sets the probability of banned tokens to 0.

    Raises:
        ConfigError: The model caps its logits after the bias.
    """
    if not len(banned):
        return
    if getattr(base.config.get_text_config(), "final_logit_softcapping", None):
        raise ConfigError(
            "TRL's head cannot ban tokens of a model that caps its logits.",
            value=base.config.model_type,
            fix="Set the stage's trainer to native.",
        )
    head = base.get_output_embeddings()
    lowest = max(BANNED_TOKEN_BIAS, torch.finfo(head.weight.dtype).min)
    bias = torch.zeros(head.weight.shape[0], dtype=head.weight.dtype, device=head.weight.device)
    if head.bias is not None:
        bias += head.bias.detach()
    bias[banned] = lowest
    head.bias = nn.Parameter(bias, requires_grad=False)
