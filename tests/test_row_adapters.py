"""Several adapters in one pass: each token gets what its own adapter says, whoever else speaks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl2f_core.backends import _row_adapters
from rl2f_core.backends._lora import LoraWeights
from rl2f_core.backends._prepacked import Prepacked
from rl2f_core.backends._row_adapters import RowAdapters

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


def said(
    rows: RowAdapters, module: torch.nn.Linear, held: dict[str, LoraWeights], *blocks: tuple[str | None, int]
) -> Any:
    """What the layer gives for the token (4, 6), as often as the blocks have it."""
    count = sum(n for _, n in blocks)
    with torch.inference_mode(), rows.speaking(held) as reading:
        reading(blocks)
        return module(torch.tensor([[4.0, 6.0]]).expand(count, 2)[None].to(module.weight.dtype))[0].tolist()


def test_each_token_gets_its_own_adapter_s_part_and_the_base_s_tokens_none() -> None:
    module = layer()
    rows, held = RowAdapters({"wide": module}), adapters()
    found = said(rows, module, held, ("two", 1), (None, 1), ("one", 2))
    # base: (4, 6, 20); two adds ½·(0, 4, 6); one adds 2·4 to the first
    assert found == [[4, 8, 23], [4, 6, 20], [12, 6, 20], [12, 6, 20]]
    assert said(rows, module, held, ("two", 1)) == [[4, 8, 23]]
    with torch.inference_mode():
        assert module(torch.tensor([[[4.0, 6.0]]])).tolist() == [[[4, 6, 20]]]  # outside the block it is the base


@supported
def test_weights_laid_out_beside_the_base_s_say_the_same() -> None:
    module = layer(torch.bfloat16)
    quick = Prepacked(torch.nn.ModuleDict({"wide": module}))
    rows = RowAdapters({"wide": module}, ahead=True)
    with quick.used():
        found = said(rows, module, adapters(), ("two", 1), (None, 1), ("one", 2))
    assert found == [[4, 8, 23], [4, 6, 20], [12, 6, 20], [12, 6, 20]]


def test_a_layer_that_no_speaker_changes_is_the_base_s() -> None:
    module = layer()
    rows = RowAdapters({"other": module})
    assert said(rows, module, adapters(), ("one", 1)) == [[4, 6, 20]]


def test_what_is_stacked_is_kept_while_some_are_silent_and_made_anew_for_another_adapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    plain = RowAdapters._made
    monkeypatch.setattr(_row_adapters.RowAdapters, "_made", lambda *a: made.append(len(a[1])) or plain(*a))
    module = layer()
    rows, held = RowAdapters({"wide": module}), adapters()
    for blocks in ([("one", 1), ("two", 1)], [("two", 1)], [("one", 1)], [("one", 1), ("two", 1)]):
        said(rows, module, held, *blocks)
    assert made == [2]
    held["one"] = LoraWeights(held["one"].pairs, 4.0)  # loaded anew: another adapter under the same name
    assert said(rows, module, held, ("one", 1)) == [[20, 6, 20]]
    assert made == [2, 1]
