"""Load a base model with the fastest attention for its device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rl2f_core.errors import ModelError
from rl2f_core.models.modeling.attention import (
    ATTENTION,
    CausalLM,
    grouped_attention,
    is_full_attention,
    prefers_matmul_attention,
)


def load_base_model(folder: str, dtype: torch.dtype, device: torch.device) -> CausalLM:
    """Load a causal language model from safetensors, in evaluation mode."""
    from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
    from transformers.masking_utils import sdpa_mask
    from transformers.utils import logging

    logging.disable_progress_bar()
    AttentionInterface.register(ATTENTION, grouped_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    try:
        model: CausalLM = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, attn_implementation="sdpa"
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"The model cannot be loaded: {error}.", value=folder) from error
    if prefers_matmul_attention(device, dtype) and is_full_attention(model.config):
        model.set_attn_implementation(ATTENTION)
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans each new shape of a batch, which takes 15 ms
        fuse_norms(model)
    return model.to(device).eval()


def fuse_norms(model: torch.nn.Module) -> int:
    """Compute RMSNorm layers like Llama's by one kernel of torch; return their number."""
    norms: list[Any] = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm") and _is_plain_norm(m)]
    for norm in norms:
        norm.forward = partial(_fused_norm, norm, norm.forward)
    return len(norms)


def _is_plain_norm(norm: Any) -> bool:
    """Whether a layer computes w · x / √(mean(x²) + ε), which others vary, as Gemma's by 1 + w."""
    if set(dict(norm.named_parameters())) != {"weight"} or not hasattr(norm, "variance_epsilon"):
        return False
    x = torch.linspace(-1, 2, norm.weight.numel(), dtype=norm.weight.dtype)[None]
    with torch.inference_mode():
        expected, found = norm(x), torch.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
    return torch.allclose(expected, found, rtol=0.02)


def _fused_norm(norm: Any, original: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Compute a norm in the dtype of `x`; `rms_norm` itself would return float32 under autocast."""
    if x.dtype != norm.weight.dtype or torch.compiler.is_compiling():
        return original(x)
    out: torch.Tensor = torch.ops.aten._fused_rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)[0]
    return out
