"""torch.compile of the decoder layers, which are identical and therefore compiled once.

Compilation fuses the operations between matrix products: norms, rotary embeddings, gates, casts, adapter sums.
Attention is excluded, because its packing layout changes with every batch. Layers under gradient checkpointing are not
compiled either: `torch.utils.checkpoint` runs them eagerly. The automatic choice follows measurements on SmolLM2 with
2 cores (`tests/benchmarks/compiled.py`). Without measurements, as on a GPU, only `always` compiles.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from rl2f_core.config.schedules import resolve_int
from rl2f_core.config.stage import StageConfig
from rl2f_core.errors import ConfigError

MIN_AUTO_COMPILE_WORK = 2e12
"""Base weights × samples of a stage above which `auto` compiles. The half minute of compilation was amortized at 5e10
with samples of 260 tokens, at 1e11 with 60 tokens, and at 1e12 with 40 tokens and half of the samples without
advantage."""


def decoder_layers(model: torch.nn.Module) -> list[Any]:
    """Return the decoder layers of a transformers model."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@cache
def can_compile(device: str) -> bool:
    """Return whether torch can compile for a device; a CPU needs a C++ compiler and Python's headers.

    The check compiles one sum, which takes some seconds.
    """

    def sums(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + x.exp()

    try:
        torch.compile(sums)(torch.ones(8, device=device))
    except Exception:  # compilers raise various types
        return False
    return True


def supports_compile(stage: StageConfig, processes: int) -> bool:
    """Return whether a stage can be compiled: native trainer, one process."""
    return stage.trainer == "native" and processes == 1


def should_compile(stage: StageConfig, weights: int, device: torch.device, dtype: torch.dtype, processes: int) -> bool:
    """Return whether to compile a stage: as configured, or with `auto` if measurements show a gain.

    The result depends only on configuration and machine, so a resumed run computes the same. One sample per dialogue is
    assumed; `weights` is the number of base weights, `dtype` that of the base.
    """
    if stage.torch_compile != "auto":
        return stage.torch_compile == "always"
    sizes = sum(resolve_int(stage.group_size, step) for step in range(stage.steps))
    samples = stage.num_iterations * stage.tasks_per_step * sizes
    measured = device.type == "cpu" and dtype == torch.bfloat16 and supports_compile(stage, processes)
    return measured and weights * samples >= MIN_AUTO_COMPILE_WORK and can_compile(device.type)


def compile_blocks(model: torch.nn.Module, *, on: bool) -> None:
    """Enable or disable compilation of a model's decoder layers at their next call."""
    from transformers import AttentionInterface

    from rl2f_core.models.modeling.sequence_packing import VARLEN_ATTENTION, varlen_attention

    AttentionInterface.register(VARLEN_ATTENTION, torch.compiler.disable(varlen_attention) if on else varlen_attention)
    for block in decoder_layers(model):
        if on and block._compiled_call_impl is None:
            block.compile(dynamic=True)
        elif not on:
            block._compiled_call_impl = None


def check(stage: StageConfig, device: torch.device, processes: int) -> None:
    """Raise `ConfigError` if a stage sets `torch_compile: always` and cannot be compiled."""
    if stage.torch_compile != "always":
        return
    if not supports_compile(stage, processes):
        raise ConfigError(
            "torch_compile needs the native trainer and a single process.",
            value=f"trainer: {stage.trainer}, {processes} process{'es' if processes > 1 else ''}",
            fix="Set the stage's torch_compile to auto.",
        )
    if not can_compile(device.type):
        raise ConfigError(
            "torch cannot compile on this machine.",
            value=f"torch_compile: always, on {device.type}",
            fix="Install g++ and Python's headers (python3-dev), or set torch_compile to auto.",
        )
