"""Stages on TRL 1.16's `GRPOTrainer`: our dialogues and rows, TRL's loss, backward pass, clipping and optimiser.

    ours  dialogues, credit, rows, micro-batches, the learning rate of a step, commits, events
    TRL's  log-probabilities (`fused_lm_head`), `_compute_loss`, `training_step`, `_clip_grad_norm`, `create_optimizer`

TRL's own loop is left out, as a run must be able to stop, commit and go on after every step.  A row is given to TRL as
a prompt and a completion: the prompt is what stands before the first weighted token of the micro-batch, so that there
is no padding at the left; within the completion TRL's tool mask picks the student's tokens.  Advantages are one a token
([B, T], which TRL takes "to support subclasses") and old log-probabilities are those of the rows, so that the ratio is
that of our loss; `loss_type` is `dapo`, the mean over all tokens of the update, and k3 is not weighed by the ratio
(TRL's `use_bias_correction_kl`), as in ours.

What TRL's loss has no place for is refused, never approximated (`methods.fitting`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl2f_core.config import StageAt, StageConfig
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.methods.fitting import options_misfit, row_misfit
from rl2f_core.ranks import here
from rl2f_core.training.batch import MicroBatch, free_length
from rl2f_core.training.learner import Learner, Pass
from rl2f_core.training.losses import LossConfig, loss
from rl2f_core.training.precision import computing
from rl2f_core.types import Sample

FORBIDDEN = -1e30
"""The bias of a token that may not be sampled: TRL's head knows no list of such tokens, and its probability is 0."""


def trl_batch(batch: MicroBatch, tokens: float, *, counts: bool = True) -> dict[str, torch.Tensor]:
    """A micro-batch as `GRPOTrainer._compute_loss` reads it.

    Args:
        batch: Rows that fit (`methods.fitting`).
        tokens: With rl weight in the whole update.
        counts: False gives all tokens the weight 0.
    """
    first = min(free_length(row) for row in batch.samples) + 1

    def placed(values_N: torch.Tensor) -> torch.Tensor:
        values_BT = torch.zeros(batch.input_BT.shape, dtype=values_N.dtype, device=values_N.device)
        values_BT[batch.wanted_BT] = values_N
        return values_BT[:, first:]

    of = batch.tokens
    made = {
        "prompt_ids": batch.input_BT[:, :first],
        "prompt_mask": batch.valid_BT[:, :first].long(),
        "completion_ids": batch.input_BT[:, first:],
        "completion_mask": batch.valid_BT[:, first:].long(),
        "tool_mask": placed((of.rl_N != 0).long() * int(counts)),
        "advantages": placed(of.advantages_N),
        "old_per_token_logps": placed(of.behaviour_N),
        "num_items_in_batch": torch.tensor(tokens, device=of.rl_N.device),
    }
    if of.reference_N is not None:
        made["ref_per_token_logps"] = placed(of.reference_N)
    return made


def _unasked(completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """The reward function that TRL needs to be made with; rewards are ours."""
    raise RunError("TRL asked for rewards, which are those of the environment.")


def fed_trainer(model: Any, folder: Path, device: torch.device, output: str) -> Any:
    """A `GRPOTrainer` that is handed its micro-batches.

    Args:
        model: The base with its adapter.
        folder: Of the base model, for its tokenizer.
        device: Where it runs.
        output: A folder that TRL may make; nothing is written there.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    class FedTrainer(GRPOTrainer):
        """Takes each micro-batch as it is given."""

        seen_BT: torch.Tensor
        """Log-probabilities of the completion's weighted tokens in the last pass, 0 elsewhere."""
        entropy: float
        """Their entropy, summed."""
        picked_BT: torch.Tensor
        products: torch.dtype | None = None
        """See `training.precision`."""

        def _send_telemetry(self) -> None:
            """Nothing is told to anyone."""

        def _prepare_inputs(self, inputs: Any) -> Any:
            self.picked_BT = inputs["tool_mask"].bool()
            return inputs

        def _get_per_token_logps_and_entropies(self, *args: Any, **options: Any) -> Any:
            """What is no student's token says nothing: its log-probability may be −∞, as tags are never sampled."""
            with computing(self.products, device):
                logps_BT, entropies_BT, more = super()._get_per_token_logps_and_entropies(*args, **options)
            logps_BT = logps_BT.masked_fill(~self.picked_BT, 0.0)
            entropies_BT = entropies_BT.masked_fill(~self.picked_BT, 0.0)
            self.seen_BT, self.entropy = logps_BT.detach(), float(entropies_BT.detach().sum())
            return logps_BT, entropies_BT, more

    args = GRPOConfig(
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
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    # one prompt for each process, as TRL checks; none of them is read
    prompts = Dataset.from_dict({"prompt": ["-"] * max(1, here().count)})
    return FedTrainer(model=model, reward_funcs=_unasked, args=args, train_dataset=prompts, processing_class=tokenizer)


class TRLLearner(Learner):
    """Trains one adapter on one base model with TRL's `GRPOTrainer`."""

    def engage(self, folder: Path) -> Any:
        """The trainer's own accelerator."""
        self._output = tempfile.TemporaryDirectory(prefix="rl2f-trl-")
        _forbid(self.model.get_base_model(), self.reader.banned)
        self.trainer = fed_trainer(self.model, folder, self.device, os.path.join(self._output.name, "out"))
        self.trainer.products = self.reader.products
        return self.trainer.accelerator

    def begin(self, options: LossConfig, stage: StageConfig) -> None:
        """As `Learner.begin`; raises `ConfigError` where TRL's loss has no place for an option."""
        self._refuse(options_misfit(options.kl_coef, options.pull, options.credit))
        super().begin(options, stage)

    def new_optimiser(self, weight_decay: float) -> None:
        """Forget the optimiser's state."""
        if self.sharding:
            raise ConfigError(
                "TRL's trainer is driven step by step, which it can do in one process or with DDP.",
                value=self.sharding, fix="Set the stage's trainer to own, or launch with --multi_gpu.",
            )  # fmt: skip
        self.trainer.optimizer, self.trainer.args.weight_decay = None, weight_decay
        self.wrap(self.model, self.trainer.create_optimizer())
        self.trainer.model_wrapped, self.trainer.optimizer = self.policy, self.optimiser

    def set_rates(self, rate: float, now: StageAt, options: LossConfig) -> None:
        """TRL's second group of parameters, biases and norms, does not decay."""
        for number, group in enumerate(self.optimiser.param_groups):
            group["lr"], group["weight_decay"] = rate, now.weight_decay if number == 0 else 0.0

    def update(
        self, samples: Sequence[Sample], options: LossConfig, stage: StageConfig, step: int, temperature: float
    ) -> dict[str, float]:
        """As `Learner.update`; raises `ConfigError` before anything is read where a row or an option does not fit."""
        self._refuse(options_misfit(options.kl_coef, options.pull, options.credit))
        for sample in samples:
            self._refuse(row_misfit(sample, options.kl_coef))
        return super().update(samples, options, stage, step, temperature)

    def seconds_of_update(self, samples: Sequence[Sample], stage: StageConfig, rows: int = 8) -> float:
        """As `Learner.seconds_of_update`; rows that do not fit are refused here already, which a preflight asks."""
        for sample in samples:
            self._refuse(row_misfit(sample, 0.0))
        return super().seconds_of_update(samples, stage, rows)

    def pass_over(self, batch: MicroBatch, of: Pass) -> dict[str, float]:
        """TRL's `training_step` of one micro-batch; the sums for the metrics are those of our own loss."""
        trainer, options, ranks = self.trainer, of.options, here()
        self._heat(of.temperature)
        trainer.beta, trainer.epsilon_low, trainer.epsilon_high = options.kl_coef, options.clip_low, options.clip_high
        # TRL divides by the tokens of the update, times these two, over the processes
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = of.count
        inputs = trl_batch(batch, of.norms.rl, counts=of.scale > 0)
        part = trainer.training_step(self.policy, inputs, None)
        trainer._metrics["train"].clear()  # TRL's own log, which nobody reads, would grow for ever
        if not of.scale:
            return {}
        logp_BT = torch.zeros(batch.input_BT.shape, device=self.device)
        logp_BT[:, -trainer.seen_BT.shape[1] :] = trainer.seen_BT.float()
        _, found = loss(logp_BT[batch.wanted_BT], batch.tokens, of.norms, options)
        return {
            "loss": float(part) / ranks.count,
            "entropy": trainer.entropy,
            "tokens": int(batch.wanted_BT.sum()),
            **found,
        }

    def _clip(self, parameters: dict[str, nn.Parameter], now: StageAt) -> float:
        """By TRL's trainer, of all that it trains."""
        self.trainer.args.max_grad_norm = now.max_grad_norm
        return float(self.trainer._clip_grad_norm(self.policy))

    def _heat(self, temperature: float) -> None:
        """Let TRL's head divide by the step's temperature, which it is made with."""
        from trl.trainer.utils import add_fused_lm_head

        if temperature == self.trainer.temperature:
            return
        base: Any = self.model.get_base_model()
        vars(base).pop("forward", None)
        add_fused_lm_head(base, temperature=temperature, outputs=("log_probs", "entropy"))
        self.trainer.temperature = temperature

    def _refuse(self, why: str) -> None:
        if why:
            raise ConfigError(f"TRL's GRPO loss has no place for {why}.", value="trainer: trl",
                              fix="Set the stage's trainer to own.")  # fmt: skip


def _forbid(base: Any, banned: torch.Tensor) -> None:
    """Give the output layer a bias that leaves the banned tokens no probability.

    Raises `ConfigError` where the model bends its logits after the bias.
    """
    if not len(banned):
        return
    if getattr(base.config.get_text_config(), "final_logit_softcapping", None):
        raise ConfigError("TRL's head cannot leave out tokens of a model that caps its logits.",
                          value=base.config.model_type, fix="Set the stage's trainer to own.")  # fmt: skip
    head = base.get_output_embeddings()
    lowest = max(FORBIDDEN, torch.finfo(head.weight.dtype).min)
    bias = torch.zeros(head.weight.shape[0], dtype=head.weight.dtype, device=head.weight.device)
    if head.bias is not None:
        bias += head.bias.detach()
    bias[banned] = lowest
    head.bias = nn.Parameter(bias, requires_grad=False)
