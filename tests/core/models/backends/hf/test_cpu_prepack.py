"""Prepacked weights of a model on a CPU: same results, also after adapters change."""

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
has_avx = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="this CPU has no AVX"
)
DTYPES = [pytest.param("bfloat16", marks=supported), pytest.param("float32", marks=has_avx)]


@pytest.fixture(autouse=True)
def _small_layers_are_packed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_prepack, "MIN_WEIGHTS", 1)


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_dialogues_are_the_same_with_and_without_prepacking_also_after_the_adapter_changes(
    dtype: str, tiny: Path, tmp_path: Path
) -> None:
    packed, plain = backend(tiny, dtype), backend(tiny, dtype)
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_weights_of_a_large_model_are_packed_in_place_until_its_first_adapter(
    dtype: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = backend(tiny, dtype)
    plain._prepacked = None
    monkeypatch.setattr(cpu_prepack, "MAX_BYTES", 1000)
    packed = backend(tiny, dtype)
    made, held = packed._prepacked, dict(plain.model.named_parameters())
    assert made is not None and made.in_place
    asked = [GenerationRequest(tuple(range(40, 60 + i)), i, f"d{i}") for i in range(4)]

    def agree(adapter: str | None) -> None:
        mine, its = (each.generate(asked, SamplingParams(6), adapter) for each in (packed, plain))
        assert [g.token_ids for g in mine] == [g.token_ids for g in its]
        scored = [list(range(40, 52)), list(range(60, 69))]
        for a, b in zip(packed.score(scored, adapter), plain.score(scored, adapter), strict=True):
            assert a == pytest.approx(b, abs=0.02 if dtype == "bfloat16" else 1e-4)

    agree(None)
    assert made.replaced and all(layer.weight.isnan().all() for layer in made.replaced)
    assert all(p.shape == held[name].shape for name, p in packed.model.named_parameters())
    save_adapters(tiny, tmp_path / "a")
    for each in (packed, plain):
        each.load_adapter("policy", tmp_path / "a")
    assert not made.replaced and all(torch.equal(p, held[name]) for name, p in packed.model.named_parameters())
    agree("policy")
    agree(None)
    assert not made.replaced and not made.packed


@has_avx
def test_float32_products_use_packed_weights_for_the_rows_of_decode_steps_in_wide_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_prepack, "MIN_WEIGHTS", 32 * 16)
    model = torch.nn.ModuleDict({"wide": torch.nn.Linear(32, 16), "narrow": torch.nn.Linear(32, 15)})
    made = prepack_model(model, CPU, torch.float32)
    assert made is not None
    for rows, used in ((1, []), (3, []), (129, []), (4, ["wide"]), (128, ["wide"])):
        made.packed.clear()
        with torch.inference_mode(), made.enabled():
            for layer in model.values():
                x = torch.randn(rows, 32)
                assert torch.allclose(layer(x), x @ layer.weight.T + layer.bias, atol=1e-5)
        assert list(made.packed) == used, rows


def test_a_model_is_not_prepacked_without_support(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = torch.nn.Linear(2, 2)
    assert prepack_model(layer, torch.device("meta"), torch.bfloat16) is None
    assert prepack_model(layer, CPU, torch.float16) is None
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert prepack_model(layer, CPU, torch.float32) is None
