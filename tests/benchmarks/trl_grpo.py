"""The update side that is TRL's: `GRPOTrainer.train`, fed with given rows in place of its own generation.

Everything from the padded batch on is TRL's own: shuffling and splitting into micro-batches, `_compute_loss`, the
backward pass, clipping, AdamW.  The completion of a row is all that follows the opening prompt; TRL's tool mask leaves
the student's tokens, and its per-token advantages and old log-probabilities are the row's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from rl2f_core.types import TrainingSample

from .learner import RATE, SEED, opening_length, read_rows
from .worker import Channel, Memory, Settings, Stopwatch


def serve(settings: Settings, channel: Channel) -> None:
    """Every request is one optimiser step."""
    with tempfile.TemporaryDirectory() as folder:
        build(settings, channel, folder).train()


def batch_of(samples: list[TrainingSample], pad: int, device: Any) -> dict[str, Any]:
    """The rows as `_generate_and_score_completions` returns them: openings padded left, completions right."""
    import torch

    openings = [opening_length(s) for s in samples]
    before = max(openings)
    after = max(len(s.token_ids) - n for s, n in zip(samples, openings, strict=True))
    prompt_BP = torch.full((len(samples), before), pad)
    completion_BC = torch.full((len(samples), after), pad)
    prompt_mask_BP, mask_BC = torch.zeros_like(prompt_BP), torch.zeros_like(completion_BC)
    student_BC, advantages_BC, old_BC = (torch.zeros(len(samples), after) for _ in range(3))
    for i, (sample, n) in enumerate(zip(samples, openings, strict=True)):
        size = len(sample.token_ids) - n
        prompt_BP[i, before - n :] = torch.tensor(sample.token_ids[:n])
        prompt_mask_BP[i, before - n :] = 1
        completion_BC[i, :size] = torch.tensor(sample.token_ids[n:])
        mask_BC[i, :size] = 1
        for target, values in (
            (student_BC, sample.rl_weights),
            (advantages_BC, sample.advantages),
            (old_BC, sample.logprobs),
        ):
            target[i, :size] = torch.tensor(values[n:])
    batch = {
        "prompt_ids": prompt_BP,
        "prompt_mask": prompt_mask_BP,
        "completion_ids": completion_BC,
        "completion_mask": mask_BC,
        "tool_mask": student_BC.long(),
        "advantages": advantages_BC,
        "old_per_token_logps": old_BC,
        "num_items_in_batch": student_BC.sum(),
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}


def no_reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """The reward function that TRL asks for and this trainer never calls."""
    return [0.0] * len(completions)


def build(settings: Settings, channel: Channel, folder: str) -> Any:
    """The trainer, with a callback that waits for a request before each optimiser step and answers after it."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    from rl2f_core.models.device import resolve_device
    from rl2f_core.models.tokenizer import HFChatTokenizer

    device, dtype = resolve_device(settings.device, settings.dtype)
    samples = read_rows(settings.rows_file)
    tokenizer = AutoTokenizer.from_pretrained(settings.folder)
    end = HFChatTokenizer(tokenizer).eos_token_id
    losses: list[float] = []
    norms: list[float] = []

    class Fed(GRPOTrainer):
        """GRPO on the given rows."""

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            return batch_of(samples, end, device)

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            loss = super()._compute_loss(model, inputs)
            losses.append(loss.detach())
            return loss

        def _clip_grad_norm(self, model: Any) -> Any:
            norm = super()._clip_grad_norm(model)
            norms.append(float(norm))
            return norm

    class Turns(TrainerCallback):
        """Takes its turn when asked."""

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.memory = Memory(device)
            channel.send(micro_batches=trainer.args.gradient_accumulation_steps)

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            if channel.receive() is None:
                raise SystemExit
            losses.clear()
            self.watch = Stopwatch(device)

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            timed = self.watch.read()
            channel.send(**timed, loss=float(sum(losses)), grad_norm=norms[-1], **self.memory.report())

    model = AutoModelForCausalLM.from_pretrained(
        settings.folder, dtype=dtype, attn_implementation=settings.attention, use_safetensors=True
    )
    trainer = Fed(
        model=model,
        reward_funcs=no_reward,
        args=grpo_config(
            settings, folder, device, gradient_accumulation_steps=len(samples) // settings.micro_rows, num_generations=2
        ),
        train_dataset=Dataset.from_dict({"prompt": ["-"] * (len(samples) // 2)}),
        processing_class=tokenizer,
        peft_config=peft_config(settings, model),
        callbacks=[Turns()],
    )
    return trainer


def grpo_config(settings: Settings, folder: str, device: Any, **own: Any) -> Any:
    """The trainer's settings that are those of our update, and a side's `own`.

    Beside a bfloat16 base it makes its products in bfloat16, as TRL does by default.
    """
    import torch
    from trl import GRPOConfig

    from rl2f_core.models.device import resolve_device

    return GRPOConfig(
        output_dir=folder,
        seed=SEED,
        max_steps=settings.steps,
        per_device_train_batch_size=settings.micro_rows,
        temperature=settings.temperature,
        loss_type="dapo",
        beta=0.0,
        epsilon=0.2,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        bf16=resolve_device(settings.device, settings.dtype)[1] == torch.bfloat16,
        gradient_checkpointing=settings.recompute,
        use_cpu=device.type == "cpu",
        shuffle_dataset=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        **own,
    )


def peft_config(settings: Settings, model: Any) -> Any:
    """The adapter of our learner, for PEFT."""
    import peft

    from rl2f_core.config.model import LoraConfig
    from rl2f_core.learning.learner.trainable_adapter import target_modules

    adapter = LoraConfig(rank=settings.rank, alpha=2 * settings.rank)
    return peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=target_modules(model, adapter),
        task_type="CAUSAL_LM",
    )
