"""Prepacked weights for the linear layers of a model on a CPU.

A product otherwise reorders the weight each time, which in a decode step costs about as much as the product. In float32
only wide layers use packed weights, for the rows of a decode step; other products are as fast or faster without. The
packed copy needs as much memory as the weights, so those of a large model are replaced until it gets an adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional

MAX_BYTES = 2 * 2**30
"""Maximum size of a model's weights that stay beside their packed copies."""
MAX_CACHED = 2
"""Packed weights per layer: the base's and the last merged adapter's."""
PACKED_ROWS = range(4, 129)
"""Numbers of tokens whose float32 products are faster with packed weights, measured with AVX2 and AVX-512."""
MIN_WEIGHTS = 2**19
"""Least size of a float32 layer whose products are faster with packed weights, measured likewise."""


def prepack(weight_OI: torch.Tensor) -> torch.Tensor:
    """Reorder a weight for the CPU's matrix units, for `prepacked_linear`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI)


def prepacked_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute x Wᵀ + bias with a packed weight, only under `torch.inference_mode`."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


class Prepacked:
    """Makes a model's linear layers use packed weights inside `enabled`.

    The weight tensors may be replaced at any time, but not modified in place. With `in_place`, packed weights replace
    those of layers that share none, also outside `enabled`, until `restore`; the model must then be used under
    `torch.inference_mode`.
    """

    def __init__(self, model: torch.nn.Module, *, in_place: bool = False) -> None:
        self.packed: dict[str, dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}
        """Per layer and weight address: the weight, which stays alive, and its packed copy."""
        self.replaced: dict[torch.nn.Linear, torch.Tensor] = {}
        """Packed weights that replace those of their layers."""
        self.in_place = in_place
        self._enabled = False
        embedded = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and not (in_place and id(module.weight) in embedded):
                layer: Any = module
                layer.forward = partial(self._forward, name, module)

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Use packed weights in the block, which must be under `torch.inference_mode`."""
        self._enabled = True
        try:
            yield
        finally:
            self._enabled = False

    def restore(self) -> None:
        """Give the layers their weights back."""
        while self.replaced:  # one after the other, so that no second model is in memory
            layer, packed = self.replaced.popitem()
            layer.weight.data = packed.to_dense()

    def _forward(self, name: str, layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        packed = self.replaced.get(layer)
        if packed is None and self._enabled and _is_faster(layer.weight, x):
            packed = self._replace(layer) if self.in_place else self._get_packed(name, layer.weight)
        if packed is None:
            return functional.linear(x, layer.weight, layer.bias)
        return prepacked_linear(x, packed, layer.bias)

    def _replace(self, layer: torch.nn.Linear) -> torch.Tensor:
        weight = layer.weight.data
        self.replaced[layer] = packed = prepack(weight)
        layer.weight.data = weight.new_full((1,), torch.nan).expand(weight.shape)  # same shape, no memory
        return packed

    def _get_packed(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        cache, key = self.packed.setdefault(name, {}), weight.data_ptr()
        if key not in cache:
            while len(cache) >= MAX_CACHED:
                del cache[next(iter(cache))]
            cache[key] = weight.data, prepack(weight.data)
        else:
            cache[key] = cache.pop(key)  # most recently used
        return cache[key][1]


def _is_faster(weight: torch.Tensor, x: torch.Tensor) -> bool:
    return weight.dtype != torch.float32 or (weight.numel() >= MIN_WEIGHTS and x.numel() // x.shape[-1] in PACKED_ROWS)


def prepack_model(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> Prepacked | None:
    """Prepack a model, in place if it is large; None if the device lacks support."""
    supported = all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    if device.type != "cpu" or not supported:
        return None
    if dtype == torch.bfloat16:
        supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    else:
        supported = dtype == torch.float32 and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return Prepacked(model, in_place=sum(p.nbytes for p in model.parameters()) > MAX_BYTES) if supported else None
