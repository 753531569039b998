"""Linear layers of a bfloat16 model on a CPU, multiplied with weights that are laid out ahead for its matrix units.

oneDNN otherwise lays a weight out anew for every product, which for the few rows of a decoding step costs about as much
as the product.  The copy takes as much memory as the weights, so a large model is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional

MOST = 2 * 2**30
"""Bytes of weights beyond which a model is left as it is."""
KEPT = 2
"""Weights of a layer that are kept laid out: the base's and the last merged adapter's."""


def lay_out(weight_OI: torch.Tensor) -> Any:
    """A weight as the matrix units want it; only `multiply` can read it."""
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI)


def multiply(x: torch.Tensor, laid: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x Wᵀ + bias with a weight that was laid out, under `torch.inference_mode` only."""
    return torch.ops.mkldnn._linear_pointwise(x, laid, bias, "none", [], "")


class Prepacked:
    """Gives a model's linear layers a second way to multiply, taken inside `used`.

    Args:
        model: Its weights may be exchanged for others at any time, but not written into.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.packed: dict[str, dict[int, tuple[torch.Tensor, Any]]] = {}
        """Of each layer, by the address of its weights: these, which thus stay alive, and how they are laid out."""
        self._used = False
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                layer: Any = module
                layer.forward = partial(self._multiply, name, module)

    @contextmanager
    def used(self) -> Iterator[None]:
        """In the block products are made with the weights as they are laid out; under `torch.inference_mode` only."""
        self._used = True
        try:
            yield
        finally:
            self._used = False

    def _multiply(self, name: str, layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if not self._used:
            return functional.linear(x, layer.weight, layer.bias)
        return multiply(x, self._laid_out(name, layer.weight), layer.bias)

    def _laid_out(self, name: str, weight: torch.Tensor) -> Any:
        held, key = self.packed.setdefault(name, {}), weight.data_ptr()
        if key not in held:
            while len(held) >= KEPT:
                del held[next(iter(held))]
            held[key] = weight.data, lay_out(weight.data)
        else:
            held[key] = held.pop(key)  # the last to go
        return held[key][1]


def prepacked(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> Prepacked | None:
    """The model's quicker products, where this device, type and build of torch has them and the model is not large."""
    known = all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    size = sum(p.nbytes for p in model.parameters())
    if device.type != "cpu" or dtype != torch.bfloat16 or not known or size > MOST:
        return None
    return Prepacked(model) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else None
