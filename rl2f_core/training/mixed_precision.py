"""Mixed precision: adapter weights in float32, their products in the base's dtype.

By default PEFT casts the input of every adapted layer to float32, the adapter's dtype, and saves that copy for the
backward pass. Beside a bfloat16 base these rank-r products can cost as much as the base's. Logits, logprobs and loss
stay in float32.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def compute_dtype(model: torch.nn.Module) -> torch.dtype | None:
    """Return the autocast dtype of an adapted model: bfloat16 beside a bfloat16 base, else None.

    float16 is not used: its gradients vanish without loss scaling.
    """
    dtype = next((p.dtype for p in model.parameters() if not p.requires_grad), torch.float32)
    return dtype if dtype == torch.bfloat16 else None


def disable_input_cast(model: torch.nn.Module) -> None:
    """Disable PEFT's input casts; `autocast_context` then sets the dtype of the products."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            layer: Any = module
            layer.cast_input_dtype_enabled = False


def autocast_context(dtype: torch.dtype | None, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return an autocast context of this dtype; without effect for None."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)
