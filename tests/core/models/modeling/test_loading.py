"""Norms of a loaded model as one kernel."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rl2f_core.models.modeling.loading import fuse_norms, load_base_model

CPU = torch.device("cpu")


def test_fused_norms_give_the_same_hidden_states_and_gradients(tiny: Path) -> None:
    plain, fused = (load_base_model(str(tiny), torch.float32, CPU) for _ in range(2))
    assert fuse_norms(fused) == 2 * plain.config.num_hidden_layers + 1
    ids = torch.arange(3, 40)[None]
    grads = []
    for model in (plain, fused):
        states = model.get_decoder()(input_ids=ids).last_hidden_state
        weight = model.get_decoder().layers[0].mlp.up_proj.weight
        grads.append((states, *torch.autograd.grad(states.square().sum(), weight)))
    for expected, found in zip(*grads, strict=True):
        assert torch.allclose(expected, found, rtol=1e-4, atol=1e-5)


def test_fused_norms_keep_the_dtype_under_autocast() -> None:
    norm = LlamaRMSNorm(8).bfloat16()
    assert fuse_norms(nn.Sequential(norm)) == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(torch.ones(2, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert norm(torch.full((1, 8), 3.0)).dtype == torch.float32  # another dtype than that of the weights: as before


def test_a_norm_with_another_formula_is_left_alone() -> None:
    gemma, scaled = GemmaRMSNorm(8), LlamaRMSNorm(8)
    scaled.extra = nn.Parameter(torch.ones(8))
    assert fuse_norms(nn.Sequential(gemma, scaled)) == 0
