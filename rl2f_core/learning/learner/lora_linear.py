"""LoRA layers as one operation of autograd: half as many kernels where a GPU waits for the host to launch them.

Products have the dtype of the base weights; gradients of A and B have their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

ADAPTER = "default"
"""Name of the only adapter of a learner."""


class LoraProduct(torch.autograd.Function):
    """x Wᵀ + bias + s·(x Aᵀ) Bᵀ (arXiv 2106.09685, eq. 3) for x [N, in], with the gradients of x, A and B."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NI: torch.Tensor,
        base: nn.Linear,
        a_RI: torch.Tensor,
        b_OR: torch.Tensor,
        copies: tuple[torch.Tensor, torch.Tensor],
        scale: float,
    ) -> torch.Tensor:
        """Compute the product from `copies` of A and of s·B in the dtype of x and the base weights."""
        low_a_RI, low_b_OR = copies
        inner_NR = x_NI @ low_a_RI.T
        ctx.save_for_backward(x_NI, inner_NR, base.weight, low_a_RI, low_b_OR)
        ctx.scale, ctx.dtype = scale, a_RI.dtype
        return nn.functional.linear(x_NI, base.weight, base.bias).addmm_(inner_NR, low_b_OR.T)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients."""
        (grad_NO,) = grads
        x_NI, inner_NR, weight_OI, low_a_RI, low_b_OR = ctx.saved_tensors
        inner_grad_NR = grad_NO @ low_b_OR
        x_grad_NI = (grad_NO @ weight_OI).addmm_(inner_grad_NR, low_a_RI) if ctx.needs_input_grad[0] else None
        a_grad_RI = _product(inner_grad_NR.T, x_NI, ctx.dtype)
        b_grad_OR = _product(grad_NO.T, inner_NR, ctx.dtype).mul_(ctx.scale)
        return x_grad_NI, None, a_grad_RI, b_grad_OR, None, None


class FusedLora:
    """Lets the LoRA layers of a PEFT model compute a `LoraProduct`, from copies of A and s·B in the base's dtype.

    `refresh` must be called before each forward pass, because optimizers change the weights unnoticed.
    """

    def __init__(self, model: nn.Module) -> None:
        from peft.tuners.lora.layer import Linear

        found: list[Any] = [module for module in model.modules() if type(module) is Linear]
        layers = [layer for layer in found if isinstance(layer.base_layer, nn.Linear)]
        self._trained = [half[ADAPTER].weight for layer in layers for half in (layer.lora_A, layer.lora_B)]
        dtypes = [layer.base_layer.weight.dtype for layer in layers for _ in range(2)]
        self._copies = [torch.empty_like(w, dtype=d) for w, d in zip(self._trained, dtypes, strict=True)]
        self._scales = [layer.scaling[ADAPTER] for layer in layers]
        for i, layer in enumerate(layers):
            copies = self._copies[2 * i], self._copies[2 * i + 1]
            layer.forward = partial(_forward, layer, layer.forward, copies)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights."""
        if self._trained:
            torch._foreach_copy_(self._copies, self._trained)
            torch._foreach_mul_(self._copies[1::2], self._scales)


def _product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a·b in another dtype, on a GPU without an operation of its own."""
    return torch.mm(a, b, out_dtype=dtype) if a.is_cuda and a.dtype != dtype else (a @ b).to(dtype)


def _forward(
    layer: Any,
    original: Callable[[torch.Tensor], torch.Tensor],
    copies: tuple[torch.Tensor, torch.Tensor],
    x: torch.Tensor,
) -> torch.Tensor:
    """Compute a layer; by `original` if its adapter is disabled, and while torch compiles."""
    if layer.disable_adapters or x.dtype != copies[0].dtype or torch.compiler.is_compiling():
        return original(x)
    a_RI, b_OR, scale = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight, layer.scaling[ADAPTER]
    out_NO: torch.Tensor = LoraProduct.apply(x.reshape(-1, x.shape[-1]), layer.base_layer, a_RI, b_OR, copies, scale)
    return out_NO.view(*x.shape[:-1], -1)
