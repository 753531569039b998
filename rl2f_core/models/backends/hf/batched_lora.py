"""Batched multi-LoRA: several adapters in one forward; each token gets its own adapter's low-rank update.

The A matrices of all adapters of a layer are stacked and multiplied at once. A mask keeps the ranks of each token's
adapter, and the result is multiplied by all B matrices. With prepacked CPU weights, the base and all B matrices are one
product, [x, s] · [W, B]ᵀ, because a product costs more there than its additional columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rl2f_core.models.backends.hf.cpu_prepack import prepack, prepacked_linear
from rl2f_core.models.backends.hf.lora import LoraWeights

Forward = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class StackedLora:
    """The stacked adapters of one layer, in its dtype and on its device."""

    a: torch.Tensor
    """A matrices [R, in]; prepacked if `packed_weight` is set."""
    b_RO: torch.Tensor | None
    """Scaled B matrices, if not prepacked."""
    packed_weight: torch.Tensor | None
    """Prepacked base weight and B matrices, [out, in + R]."""
    adapter_index: tuple[int, ...]
    """Adapter of each of the R ranks."""


class BatchedLora:
    """Adds each token's own low-rank update to linear layers in `active`, without writing weights.

    With `prepacked` the weights are prepacked (`Prepacked`), which needs their memory a second time. `stack_all` stacks
    all adapters once. Otherwise only those of a forward are stacked, which computes less, but stacks again when they
    change.
    """

    def __init__(
        self, modules: Mapping[str, torch.nn.Linear], *, prepacked: bool = False, stack_all: bool = False
    ) -> None:
        self._prepacked, self._stack_all = prepacked, stack_all
        self._adapters: list[LoraWeights] = []
        """The stacked adapters."""
        self._stacks: dict[str, StackedLora | None] = {}
        """Their weights per layer, stacked at first use."""
        self._blocks: list[tuple[int, int]] | None = None
        """Index in `_adapters` (−1: base) and number of tokens of each block; None outside `active`."""
        self._masks: dict[tuple[int, ...], torch.Tensor] = {}
        """Per `adapter_index`: mask of the ranks of each token, [N, R]."""
        for name, module in modules.items():
            layer: Any = module
            layer.forward = partial(self._forward, name, module, module.forward)

    @contextmanager
    def active(
        self, adapters: Mapping[str, LoraWeights]
    ) -> Iterator[Callable[[Sequence[tuple[str | None, int]]], None]]:
        """Apply adapters; call the result with (adapter, tokens) blocks before a forward."""

        def before_forward(blocks: Sequence[tuple[str | None, int]]) -> None:
            names = sorted({name for name, _ in blocks if name is not None})
            self._select([adapters[name] for name in (sorted(adapters) if self._stack_all else names)])
            stacked = [*map(id, self._adapters)]
            indices: dict[str | None, int] = {name: stacked.index(id(adapters[name])) for name in names}
            self._blocks = [(indices.get(name, -1), count) for name, count in blocks]
            self._masks = {}

        try:
            yield before_forward
        finally:
            self._blocks, self._masks = None, {}

    def _select(self, adapters: list[LoraWeights]) -> None:
        """Stack these adapters, unless they are at least half of the current ones: some may pause for a while."""
        stacked = {id(lora) for lora in self._adapters}
        if not all(id(lora) in stacked for lora in adapters) or 2 * len(adapters) < len(stacked):
            self._adapters, self._stacks = adapters, {}

    def _get_stack(self, name: str, weight_OI: torch.Tensor) -> StackedLora | None:
        if name not in self._stacks:
            parts = [(i, lora.pairs[name], lora.scale) for i, lora in enumerate(self._adapters) if name in lora.pairs]
            self._stacks[name] = self._stack(parts, weight_OI) if parts else None
        return self._stacks[name]

    def _stack(
        self, parts: Sequence[tuple[int, tuple[torch.Tensor, torch.Tensor], float]], weight_OI: torch.Tensor
    ) -> StackedLora:
        a_RI = torch.cat([a_RI for _, (a_RI, _), _ in parts]).to(weight_OI)
        b_OR = torch.cat([b_OR * scale for _, (_, b_OR), scale in parts], 1).to(weight_OI)
        adapter_index = tuple(i for i, (a_RI, _), _ in parts for _ in range(len(a_RI)))
        if self._prepacked:
            return StackedLora(prepack(a_RI), None, prepack(torch.cat([weight_OI, b_OR], 1)), adapter_index)
        return StackedLora(a_RI, b_OR.T.contiguous(), None, adapter_index)

    def _mask(self, adapter_index: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        if adapter_index not in self._masks:
            assert self._blocks
            indices, counts = (torch.tensor(column) for column in zip(*self._blocks, strict=True))
            mask_NR = indices.repeat_interleave(counts)[:, None] == torch.tensor(adapter_index)
            self._masks[adapter_index] = mask_NR.to(like)
        return self._masks[adapter_index]

    def _forward(self, name: str, layer: torch.nn.Linear, base: Forward, x_1NI: torch.Tensor) -> torch.Tensor:
        stack = self._get_stack(name, layer.weight) if self._blocks else None
        if stack is None:
            return base(x_1NI)
        mask_NR = self._mask(stack.adapter_index, x_1NI)
        if stack.b_RO is None:
            assert stack.packed_weight is not None
            low_rank_1NR = prepacked_linear(x_1NI, stack.a).mul_(mask_NR)
            return prepacked_linear(torch.cat([x_1NI, low_rank_1NR], 2), stack.packed_weight, layer.bias)
        out_1NO = base(x_1NI)
        out_1NO[0].addmm_((x_1NI[0] @ stack.a.T).mul_(mask_NR), stack.b_RO)
        return out_1NO
