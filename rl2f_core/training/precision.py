"""The adapter in the base's precision: held and updated in float32, multiplied in what the base is multiplied in.

PEFT by itself casts what every adapted layer reads to float32, the adapter's own type, and keeps that copy for the
backward pass.  Beside a bfloat16 base those products of rank r can cost as much as the base's own.  Only the model's
layers run so: logits, log-probabilities and the loss stay in float32.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def low_precision(model: Any) -> torch.dtype | None:
    """The type that an adapted model's products are made in where it is not float32; None leaves all as it is.

    float16 is left alone: without a scaled loss its gradients vanish.
    """
    dtype = next((p.dtype for p in model.parameters() if not p.requires_grad), torch.float32)
    return dtype if dtype == torch.bfloat16 else None


def read_as_they_come(model: Any) -> None:
    """Let PEFT's layers take what they read in its own type; the products' type is then `computing`'s."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            held: Any = module
            held.cast_input_dtype_enabled = False


def computing(dtype: torch.dtype | None, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """In the block products are made in this type; with None as they are."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)
