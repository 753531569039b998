"""Sliding windows and soft caps of the sampler's attention against the library's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rl2f_core.config.model import ModelConfig
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.hf.backend import HFBackend


@pytest.mark.parametrize(
    ("family", "cuda_graphs"),
    [("qwen2", "off"), pytest.param("qwen2", "on", marks=pytest.mark.slow), ("gemma2", "off"), ("gemma2", "on")],
)
def test_windows_and_soft_caps_give_the_logprobs_of_transformers(
    tmp_path: Path, tiny: Path, cuda_graphs: Any, family: str
) -> None:
    """One layer looks 8 tokens back, and Gemma caps its scores; the library computes the same without our cache."""
    plain = json.loads((tiny / "config.json").read_text())
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    special = {
        "qwen2": {"use_sliding_window": True},
        "gemma2": {
            "head_dim": plain["hidden_size"] // plain["num_attention_heads"],
            "query_pre_attn_scalar": 1,
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 2.0,
            "initializer_range": 0.5,
        },
    }
    config = AutoConfig.for_model(
        family, **{name: plain[name] for name in sizes}, **special[family], num_hidden_layers=2, sliding_window=8,
        layer_types=["full_attention", "sliding_attention"], max_position_embeddings=512,
    )  # fmt: skip
    folder = tmp_path / "windowed"
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(folder)
    windowed = HFBackend(
        HFBackend.Config(cuda_graphs=cuda_graphs), ModelConfig(name=str(folder), dtype="float32", device="cpu")
    )
    sampling = SamplingParams(max_new_tokens=6, temperature=1.0)
    start = tuple(windowed.tokenizer.encode("Guess the number."))
    (first,) = windowed.generate([GenerationRequest(start, 1, "d")], sampling)
    after = start + first.token_ids + (5, 6, 7)
    read = windowed._decoder.num_forward_tokens
    (second,) = windowed.generate([GenerationRequest(after, 2, "d")], sampling)
    computed = windowed._decoder.num_forward_tokens - read
    assert computed == 3 + 1 + len(second.token_ids) - 1  # what is new, the last token, and all drawn but the last
    for before, said in ((start, first), (after, second)):
        tokens = before
        for token, logprob in zip(said.token_ids, said.logprobs, strict=True):
            with torch.inference_mode():
                out = model(input_ids=torch.tensor([list(tokens)])).logits[0, -1]
                out[list(windowed.tokenizer.banned_token_ids)] = float("-inf")
            assert logprob == pytest.approx(float(out.log_softmax(0)[token]), abs=1e-4)
            tokens += (token,)
