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
    change. With `fixed`, the weights of other adapters of the same ranks are copied into the same tensors, as CUDA
    graphs need.
    """

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Linear],
        *,
        prepacked: bool = False,
        stack_all: bool = False,
        fixed: bool = False,
    ) -> None:
        self._modules, self._prepacked, self._stack_all, self._fixed = modules, prepacked, stack_all, fixed
        self.version = 0
        """Changes when the tensors move."""
        self._loaded: Mapping[str, LoraWeights] = {}
        self._adapters: list[LoraWeights] = []
        """The stacked adapters."""
        self._stacks: dict[str, StackedLora | None] = {}
        """Their weights per layer, stacked at first use."""
        self._index_N: torch.Tensor | None = None
        """Index in `_adapters` (−1: base) of each token; None outside `active`."""
        self._rank_index: dict[tuple[int, ...], torch.Tensor] = {}
        """Per `adapter_index`: the same as a tensor."""
        self._masks: dict[tuple[int, ...], torch.Tensor] = {}
        """Per `adapter_index`: mask of the ranks of each token, [N, R]."""
        for name, module in modules.items():
            layer: Any = module
            layer.forward = partial(self._forward, name, module, module.forward)

    @contextmanager
    def active(self, adapters: Mapping[str, LoraWeights]) -> Iterator[BatchedLora]:
        """Apply adapters in the block; before each forward, call `select` and `use`."""
        self._loaded = adapters
        try:
            yield self
        finally:
            self._loaded, self._index_N, self._masks = {}, None, {}

    def select(self, names: Sequence[str | None]) -> list[int]:
        """Stack the weights of these adapters; return the index of each name for `use`."""
        needed = sorted({name for name in names if name is not None})
        self._select([self._loaded[name] for name in (sorted(self._loaded) if self._stack_all else needed)])
        stacked = [*map(id, self._adapters)]
        indices: dict[str | None, int] = {name: stacked.index(id(self._loaded[name])) for name in needed}
        return [indices.get(name, -1) for name in names]

    def use(self, index_N: torch.Tensor) -> None:
        """Set the index of each token's adapter, on the model's device."""
        self._index_N, self._masks = index_N, {}

    def _select(self, adapters: list[LoraWeights]) -> None:
        """Stack these adapters, unless they are at least half of the current ones: some may pause for a while."""
        stacked = {id(lora) for lora in self._adapters}
        if not all(id(lora) in stacked for lora in adapters) or 2 * len(adapters) < len(stacked):
            before, self._adapters, self._stacks = self._stacks, adapters, {}
            if self._fixed:
                self._copy_stacks(before)

    def _copy_stacks(self, before: dict[str, StackedLora | None]) -> None:
        """Stack all layers, in the tensors of the earlier stacks if they fit."""
        after = {name: self._get_stack(name, module.weight) for name, module in self._modules.items()}
        ranks = [{n: stack and stack.adapter_index for n, stack in stacks.items()} for stacks in (before, after)]
        if ranks[0] != ranks[1]:
            self.version += 1
            return
        self._stacks = before
        for old, new in zip(before.values(), after.values(), strict=True):
            if old is not None and new is not None and old.b_RO is not None and new.b_RO is not None:
                old.a.copy_(new.a)
                old.b_RO.copy_(new.b_RO)

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
            assert self._index_N is not None
            if adapter_index not in self._rank_index:
                self._rank_index[adapter_index] = torch.tensor(adapter_index, device=like.device)
            mask_NR = self._index_N[:, None] == self._rank_index[adapter_index]
            self._masks[adapter_index] = mask_NR.to(like.dtype)
        return self._masks[adapter_index]

    def _forward(self, name: str, layer: torch.nn.Linear, base: Forward, x_1NI: torch.Tensor) -> torch.Tensor:
        stack = None if self._index_N is None else self._get_stack(name, layer.weight)
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
