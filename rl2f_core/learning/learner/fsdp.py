"""Sharded weights: gather, reshard, and refuse unsupported stages.

With DDP every process has all weights and nothing here has an effect. FSDP 2 shards parameters as DTensors. DeepSpeed's
ZeRO stages 1 and 2 shard only the optimizer state.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator

from rl2f_core.config.stage import StageConfig
from rl2f_core.errors import ConfigError
from rl2f_core.learning.methods.loss_spec import LossConfig


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor; if it is sharded, all processes must call this."""
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def reshard_like(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a full tensor with the device, dtype and sharding of a parameter."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    moved = tensor.to(device=parameter.device, dtype=parameter.dtype)
    if not isinstance(parameter, DTensor):
        return moved
    return distribute_tensor(moved, parameter.device_mesh, parameter.placements)


def sharding(accelerator: Accelerator) -> str:
    """Return `fsdp` or `deepspeed` if the launcher set it, else an empty string.

    Raises:
        ConfigError: FSDP version 1 or ZeRO stage 3.
    """
    kind = str(getattr(accelerator.distributed_type, "value", ""))
    if kind == "FSDP":
        if not accelerator.is_fsdp2:
            raise ConfigError(
                "FSDP version 1 does not support a frozen base with an adapter of another dtype.",
                value="fsdp_version: 1",
                fix="Launch with fsdp_version: 2, as data/configs/launch/fsdp_2.yaml does.",
            )
        return "fsdp"
    if kind == "DEEPSPEED":
        stage = accelerator.state.deepspeed_plugin.zero_stage
        if stage == 3:
            raise ConfigError(
                "ZeRO stage 3 shards the weights, which the learner reads and sets between updates.",
                value=stage,
                known=["0", "1", "2"],
                fix="Launch with zero_stage: 2, or with FSDP.",
            )
        # unused, but DeepSpeed requires a number
        accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 1
        return "deepspeed"
    return ""


def check_sharding(accelerator: Accelerator, kind: str, options: LossConfig, stage: StageConfig) -> None:
    """Check that a stage supports sharded weights, and set DeepSpeed's gradient clipping.

    `kind` is the result of `sharding`.

    Raises:
        ConfigError: A loss term needs forward passes that not all processes run together, or the stage sets gradient
            checkpointing under FSDP.
    """
    kl = kind == "fsdp" and options.kl_coef > 0
    if kind and (options.critic is not None or kl):
        term = "value head" if options.critic is not None else "kl term (its reference is scored per micro-batch)"
        raise ConfigError(
            f"A stage with a {term} does not support sharded weights.",
            value=kind,
            fix="Launch with DDP: data/configs/launch/ddp_2.yaml.",
        )
    if kind == "fsdp" and stage.gradient_checkpointing == "always":
        raise ConfigError(
            "With FSDP the launcher controls gradient checkpointing.",
            value="gradient_checkpointing: always",
            fix="Set fsdp_activation_checkpointing in its file, and gradient_checkpointing: auto here.",
        )
    if kind == "deepspeed":
        accelerator.state.deepspeed_plugin.deepspeed_config["gradient_clipping"] = stage.max_grad_norm or 0.0
