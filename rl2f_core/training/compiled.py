"""torch.compile where it wins: a model's blocks, which are alike and so are compiled once, without their attention.

What is fused is all that lies between the products: norms, rotations, the feed-forward's gate, casts, the adapter's
sums.  Attention, which reads a layout of its own at every pass, is called from the compiled code as it is; and so is a
block whose activations are computed again (`training.recompute`), as torch's checkpoint compiles nothing within it.
Measured on SmolLM2 with 2 cores (`tests/benchmarks/compiled.py`); where nothing was measured, as on a GPU, nothing is
compiled unless it is asked for.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    from rl2f_core.config import StageConfig

MUCH = 2e12
"""Base weights × rows of a stage from which on it is compiled by itself. Half a minute of compiling was made up for at
5e10 with rows of 260 tokens, at 1e11 with rows of 60, and in a run at 1e12, where half of the rows, of 40 tokens, had
no advantage and were left out."""


def blocks(model: Any) -> list[Any]:
    """The blocks of a transformers model, which are one after another and alike."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@cache
def works(device: str) -> bool:
    """Whether code can be compiled for a device here, which takes a C++ compiler and Python's headers on a CPU.

    It is tried on one sum, in some seconds.
    """

    def sums(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + x.exp()

    try:
        torch.compile(sums)(torch.ones(8, device=device))
    except Exception:  # whatever a compiler may raise
        return False
    return True


def able(stage: StageConfig, processes: int) -> bool:
    """Whether a stage is trained by those passes that can be compiled: our own, in one process."""
    return stage.trainer == "own" and processes == 1


def wanted(stage: StageConfig, weights: int, device: torch.device, dtype: torch.dtype, processes: int) -> bool:
    """Whether a stage is to be compiled: as it asks, or where compiling pays, as far as that was measured.

    It follows from the configuration and the machine alone, so that a resumed run computes as the first one did.

    Args:
        stage: Its rows are reckoned as one a dialogue.
        weights: Of the base.
        device: On which it is trained.
        dtype: Of the base.
        processes: That train together.
    """
    if stage.compile != "auto":
        return stage.compile == "always"
    rows = stage.steps * stage.passes * stage.tasks_per_step * int(stage.at(0).group_size)
    measured = device.type == "cpu" and dtype == torch.bfloat16 and able(stage, processes)
    return measured and weights * rows >= MUCH and works(device.type)


def compile_blocks(model: Any, *, on: bool) -> None:
    """Let the blocks of a model be compiled when they are next called, or not."""
    from transformers import AttentionInterface

    from rl2f_core.backends._end_to_end import ROWS, rows_attention

    AttentionInterface.register(ROWS, torch.compiler.disable(rows_attention) if on else rows_attention)
    for block in blocks(model):
        if on and block._compiled_call_impl is None:
            block.compile(dynamic=True)
        elif not on:
            block._compiled_call_impl = None


def check(stage: StageConfig, device: torch.device, processes: int) -> None:
    """Raises `ConfigError` where a stage asks to be compiled and cannot be."""
    if stage.compile != "always":
        return
    if not able(stage, processes):
        raise ConfigError(
            "Only our own trainer compiles, and only in one process.",
            value=f"trainer: {stage.trainer}, {processes} process{'es' if processes > 1 else ''}",
            fix="Set the stage's compile to auto.",
        )
    if not works(device.type):
        raise ConfigError("torch cannot compile on this machine.", value=f"compile: always, on {device.type}",
                          fix="Install g++ and Python's headers (python3-dev), or set compile to auto.")  # fmt: skip
