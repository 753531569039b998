"""Weights that several processes hold a part each of: read whole, written whole, and refused where that cannot be.

With DDP every process holds all weights and nothing here has an effect.  FSDP (version 2) makes a parameter a DTensor,
and DeepSpeed's ZeRO stages 1 and 2 keep the weights whole and share out the optimiser's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from rl2f_core.config import StageConfig
    from rl2f_core.training.losses import LossConfig


def whole(tensor: Any) -> torch.Tensor:
    """The full tensor on this process; where it is shared out, all holders must ask for it."""
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def like(parameter: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A full tensor in the form of a parameter: on its device, of its type, shared out as it is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    moved = tensor.to(device=parameter.device, dtype=parameter.dtype)
    if not isinstance(parameter, DTensor):
        return moved
    return distribute_tensor(moved, parameter.device_mesh, parameter.placements)


def sharding(accelerator: Any) -> str:
    """`fsdp` or `deepspeed` where the launcher asked for it, else empty.

    Raises `ConfigError` for FSDP's version 1 and ZeRO's stage 3.
    """
    kind = str(getattr(accelerator.distributed_type, "value", ""))
    if kind == "FSDP":
        if not accelerator.is_fsdp2:
            raise ConfigError(
                "FSDP's version 1 cannot hold a frozen base and an adapter of another type.", value="fsdp_version: 1",
                fix="Launch with fsdp_version: 2, as data/configs/accelerate/fsdp_2.yaml does.",
            )  # fmt: skip
        return "fsdp"
    if kind == "DEEPSPEED":
        stage = accelerator.state.deepspeed_plugin.zero_stage
        if stage == 3:
            raise ConfigError(
                "ZeRO's stage 3 shares out the weights, which are read and set between updates.", value=stage,
                known=["0", "1", "2"], fix="Launch with zero_stage: 2, or with FSDP.",
            )  # fmt: skip
        # rows are the learner's matter, and DeepSpeed asks for a number
        accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 1
        return "deepspeed"
    return ""


def ready(accelerator: Any, kind: str, options: LossConfig, stage: StageConfig) -> None:
    """Make sure that a stage can be trained by sharded weights, and tell DeepSpeed where to clip, as it clips itself.

    Args:
        accelerator: Of the run.
        kind: What `sharding` says of it.
        options: Of the stage's loss.
        stage: Where it clips, and whether it computes activations again.

    Raises `ConfigError` where a term needs passes that not all processes would make together, or activations would be
    computed again by us.
    """
    critic = options.credit is not None and options.credit.critic is not None
    pull = kind == "fsdp" and options.kl_coef > 0
    if kind and (critic or pull):
        term = "value head" if critic else "kl stream (its reference is read pass by pass)"
        raise ConfigError(f"A stage with a {term} cannot be trained by sharded weights.", value=kind,
                          fix="Launch with DDP: data/configs/accelerate/ddp_2.yaml.")  # fmt: skip
    if kind == "fsdp" and stage.recompute == "always":
        raise ConfigError("With FSDP the launcher has activations computed again.", value="recompute: always",
                          fix="Set fsdp_activation_checkpointing in its file, and recompute: auto here.")  # fmt: skip
    if kind == "deepspeed":
        accelerator.state.deepspeed_plugin.deepspeed_config["gradient_clipping"] = stage.max_grad_norm
