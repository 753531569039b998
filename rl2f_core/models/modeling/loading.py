"""Load a base model with the fastest attention for its device."""

from __future__ import annotations

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
    return model.to(device).eval()
