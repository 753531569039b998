"""Prepacked weights for the linear layers of a bfloat16 model on a CPU.

oneDNN otherwise reorders a weight for each product, which in a decode step costs about as much as the product. The
packed copy needs as much memory as the weights, so large models are not prepacked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional

MAX_BYTES = 2 * 2**30
"""Maximum size of a model's weights."""
MAX_CACHED = 2
"""Packed weights per layer: the base's and the last merged adapter's."""


def prepack(weight_OI: torch.Tensor) -> torch.Tensor:
    """Reorder a weight for the CPU's matrix units, for `prepacked_linear`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI)


def prepacked_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute x Wᵀ + bias with a packed weight, only under `torch.inference_mode`."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


class Prepacked:
    """Makes a model's linear layers use packed weights inside `enabled`.

    The weight tensors may be replaced at any time, but not modified in place.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.packed: dict[str, dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}
        """Per layer and weight address: the weight, which stays alive, and its packed copy."""
        self._enabled = False
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
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

    def _forward(self, name: str, layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if not self._enabled:
            return functional.linear(x, layer.weight, layer.bias)
        return prepacked_linear(x, self._get_packed(name, layer.weight), layer.bias)

    def _get_packed(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        cache, key = self.packed.setdefault(name, {}), weight.data_ptr()
        if key not in cache:
            while len(cache) >= MAX_CACHED:
                del cache[next(iter(cache))]
            cache[key] = weight.data, prepack(weight.data)
        else:
            cache[key] = cache.pop(key)  # most recently used
        return cache[key][1]


def prepack_model(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> Prepacked | None:
    """Prepack a model; None if it is too large or the device lacks support."""
    supported = all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    size = sum(p.nbytes for p in model.parameters())
    if device.type != "cpu" or dtype != torch.bfloat16 or not supported or size > MAX_BYTES:
        return None
    return Prepacked(model) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else None
