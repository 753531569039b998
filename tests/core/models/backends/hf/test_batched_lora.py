"""Batched multi-LoRA: each token gets its own adapter's update, whatever else is in the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl2f_core.models.backends.hf import batched_lora
from rl2f_core.models.backends.hf.batched_lora import BatchedLora
from rl2f_core.models.backends.hf.cpu_prepack import Prepacked
from rl2f_core.models.backends.hf.lora import LoraWeights

BASE = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
supported = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no products in bfloat16"
)


def layer(dtype: torch.dtype = torch.float32) -> torch.nn.Linear:
    made = torch.nn.Linear(2, 3)
    with torch.no_grad():
        made.weight.copy_(BASE)
        made.bias.copy_(torch.tensor([0.0, 0.0, 10.0]))
    return made.to(dtype)


def adapters() -> dict[str, LoraWeights]:
    """x ↦ 2·x₁·(1, 0, 0), and of rank 2 x ↦ ½·(0, x₁, x₂)."""
    one = LoraWeights({"wide": (torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0], [0.0], [0.0]]))}, 2.0)
    two = LoraWeights({"wide": (torch.eye(2), torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))}, 0.5)
    return {"one": one, "two": two}


def outputs(
    batched: BatchedLora, module: torch.nn.Linear, weights: dict[str, LoraWeights], *blocks: tuple[str | None, int]
) -> Any:
    """Outputs of the layer for the input (4, 6), once per token of the blocks."""
    count = sum(n for _, n in blocks)
    with torch.inference_mode(), batched.active(weights):
        indices = batched.select([name for name, _ in blocks])
        batched.use(torch.tensor(indices).repeat_interleave(torch.tensor([n for _, n in blocks])))
        return module(torch.tensor([[4.0, 6.0]]).expand(count, 2)[None].to(module.weight.dtype))[0].tolist()


def test_each_token_gets_its_own_adapter_and_base_tokens_get_none() -> None:
    module = layer()
    batched, weights = BatchedLora({"wide": module}), adapters()
    result = outputs(batched, module, weights, ("two", 1), (None, 1), ("one", 2))
    # base: (4, 6, 20); two adds ½·(0, 4, 6); one adds 2·4 to the first
    assert result == [[4, 8, 23], [4, 6, 20], [12, 6, 20], [12, 6, 20]]
    assert outputs(batched, module, weights, ("two", 1)) == [[4, 8, 23]]
    with torch.inference_mode():
        assert module(torch.tensor([[[4.0, 6.0]]])).tolist() == [[[4, 6, 20]]]  # outside the block it is the base


@supported
def test_prepacked_weights_give_the_same_outputs() -> None:
    module = layer(torch.bfloat16)
    packed = Prepacked(torch.nn.ModuleDict({"wide": module}))
    batched = BatchedLora({"wide": module}, prepacked=True)
    with packed.enabled():
        result = outputs(batched, module, adapters(), ("two", 1), (None, 1), ("one", 2))
    assert result == [[4, 8, 23], [4, 6, 20], [12, 6, 20], [12, 6, 20]]


def test_a_layer_without_adapter_weights_gives_the_base_output() -> None:
    module = layer()
    batched = BatchedLora({"other": module})
    assert outputs(batched, module, adapters(), ("one", 1)) == [[4, 6, 20]]


def test_stacks_are_kept_while_adapters_pause_and_rebuilt_for_a_new_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []
    plain = BatchedLora._stack
    monkeypatch.setattr(batched_lora.BatchedLora, "_stack", lambda *a: sizes.append(len(a[1])) or plain(*a))
    module = layer()
    batched, weights = BatchedLora({"wide": module}), adapters()
    for blocks in ([("one", 1), ("two", 1)], [("two", 1)], [("one", 1)], [("one", 1), ("two", 1)]):
        outputs(batched, module, weights, *blocks)
    assert sizes == [2]
    weights["one"] = LoraWeights(weights["one"].pairs, 4.0)  # a new version under the same name
    assert outputs(batched, module, weights, ("one", 1)) == [[20, 6, 20]]
    assert sizes == [2, 1]


def test_all_adapters_are_stacked_once_if_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    plain = BatchedLora._stack
    monkeypatch.setattr(batched_lora.BatchedLora, "_stack", lambda *a: sizes.append(len(a[1])) or plain(*a))
    module, weights = layer(), adapters()
    batched = BatchedLora({"wide": module}, stack_all=True)
    assert outputs(batched, module, weights, (None, 1)) == [[4, 6, 20]]
    assert outputs(batched, module, weights, ("one", 1)) == [[12, 6, 20]]
    assert outputs(batched, module, weights, (None, 1), ("two", 1)) == [[4, 6, 20], [4, 8, 23]]
    assert sizes == [2]
