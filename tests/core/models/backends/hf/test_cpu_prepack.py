"""Prepacked weights of a bfloat16 model on a CPU: same results, also after adapters change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl2f_core.config.model import LoraConfig, ModelConfig
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.hf import cpu_prepack
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.backends.hf.cpu_prepack import Prepacked, prepack_model

CPU = torch.device("cpu")
supported = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no products in bfloat16"
)


def backend(tiny: Path, dtype: str = "bfloat16") -> HFBackend:
    return HFBackend(HFBackend.Config(), ModelConfig(name=str(tiny), dtype=dtype, device="cpu"))


def save_adapters(tiny: Path, *folders: Path) -> None:
    """Save adapters with different random weights."""
    made = Learner(tiny, LoraConfig(rank=4), dtype=torch.float32, device=CPU, banned=[], pad=2, seed=0)
    for seed, folder in enumerate(folders, 1):
        drawn = torch.Generator().manual_seed(seed)
        made.restore({name: torch.randn(w.shape, generator=drawn) * 0.3 for name, w in made.parameters.items()})
        folder.mkdir()
        made.save_adapter(folder)


@supported
def test_dialogues_are_the_same_with_and_without_prepacking_also_after_the_adapter_changes(
    tiny: Path, tmp_path: Path
) -> None:
    packed, plain = backend(tiny), backend(tiny)
    assert packed._prepacked is not None
    plain._prepacked = None
    folders = [tmp_path / str(seed) for seed in (1, 2, 3)]
    save_adapters(tiny, *folders)
    said: dict[Any, list[Any]] = {}
    asked = [GenerationRequest(tuple(range(40, 60 + i)), i, f"d{i}") for i in range(4)]
    for number, folder in enumerate([*folders, None, folders[0]]):
        for each in (packed, plain):
            if folder is not None:
                each.load_adapter("policy", folder)
            each.reset_prefix_cache()
            found = each.generate(asked, SamplingParams(6), "policy" if folder is not None else None)
            said.setdefault(number, []).append([(g.token_ids, g.logprobs) for g in found])
    for mine, its in said.values():
        assert [tokens for tokens, _ in mine] == [tokens for tokens, _ in its]
        for (_, a), (_, b) in zip(mine, its, strict=True):
            assert a == pytest.approx(b, abs=1e-3)
    assert said[0] == said[4] and said[0][0] != said[1][0] != said[2][0] != said[3][0]
    cached = packed._prepacked.packed.values()
    assert cached and max(map(len, cached)) <= cpu_prepack.MAX_CACHED


@supported
def test_outside_the_block_a_layer_uses_its_own_weight_and_can_be_trained() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 16)).bfloat16()
    made, x = Prepacked(model), torch.randn(3, 32).bfloat16()
    model(x).sum().backward()
    assert model[0].weight.grad is not None and not made.packed
    with torch.inference_mode(), made.enabled():
        found = model(x)
    assert list(made.packed) == ["0"] and torch.allclose(found, model(x), atol=0.02)


def test_float32_and_large_models_are_not_prepacked(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend(tiny, "float32")._prepacked is None
    monkeypatch.setattr(cpu_prepack, "MAX_BYTES", 1000)
    assert prepack_model(torch.nn.Linear(32, 32).bfloat16(), CPU, torch.bfloat16) is None
    assert prepack_model(torch.nn.Linear(2, 2).bfloat16(), torch.device("meta"), torch.bfloat16) is None
