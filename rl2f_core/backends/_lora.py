"""Reading a LoRA adapter in PEFT's format, and adding it to base weights: W + (alpha / r) · B A."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rl2f_core.errors import AdapterError

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_BEYOND_PLAIN = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "lora_bias")
"""Settings of `adapter_config.json` under which the weights mean something else than W + (alpha / r) · B A."""


@dataclass(frozen=True)
class LoraWeights:
    """Module name → (A [r, in], B [out, r]) in float32, and the scale."""

    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]]
    scale: float

    def to(self, device: torch.device) -> LoraWeights:
        """The same on a device."""
        return LoraWeights({name: (a.to(device), b.to(device)) for name, (a, b) in self.pairs.items()}, self.scale)


def read_lora(folder: Path, modules: dict[str, Any]) -> LoraWeights:
    """Read `adapter_model.safetensors`, checking that it fits the base model's `modules`; raises `AdapterError`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise AdapterError(
            f"The folder holds no readable LoRA adapter: {error}.",
            value=str(folder),
            fix="It needs adapter_config.json and adapter_model.safetensors.",
        ) from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError("adapter_config.json describes no LoRA adapter.", value=str(folder), known=["LORA"])
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise AdapterError(
            "adapter_config.json has no usable r and lora_alpha.", value={"r": rank, "lora_alpha": alpha}
        )
    beyond = [key for key in _BEYOND_PLAIN if config.get(key)]
    if beyond:
        raise AdapterError("Only plain LoRA adapters can be merged.", value={key: config[key] for key in beyond})
    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for key in sorted(tensors):
        if key.endswith(_B) and key.removesuffix(_B) + _A in tensors:
            continue
        if not key.endswith(_A) or key.removesuffix(_A) + _B not in tensors:
            raise AdapterError(f"The adapter file holds {key}, which is no half of a LoRA pair.", value=str(folder))
        name = key.removeprefix(_PREFIX).removesuffix(_A)
        a, b = tensors[key].float(), tensors[key.removesuffix(_A) + _B].float()
        module = modules.get(name)
        if not a.shape[0] == b.shape[1] == rank:
            raise AdapterError(f"The rank of {name} is not the {rank} of adapter_config.json.", value=str(folder))
        if module is None or tuple(module.weight.shape) != (b.shape[0], a.shape[1]):
            has = "no such module" if module is None else f"shape {tuple(module.weight.shape)}"
            raise AdapterError(
                f"The adapter belongs to another base model: it changes {name} by {b.shape[0]}×{a.shape[1]}, "
                f"and this model has {has}.",
                value=str(folder),
                fix="Load it on the base it was trained on.",
            )
        pairs[name] = (a, b)
    if not pairs:
        raise AdapterError("The adapter file holds no LoRA weights.", value=str(folder))
    return LoraWeights(pairs, alpha / rank)


class Merger:
    """Lets one model speak as its base or with an adapter, by exchanging the weights of the modules that it adapts.

    The merged weights of the adapter that spoke last are kept beside the base, so that the two may take turns.
    """

    def __init__(self, model: Any) -> None:
        self.modules = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        self.active: str | None = None
        self._base: dict[str, torch.Tensor] = {}
        """Base weights of the modules that now have others."""
        self._merged: dict[str, dict[str, torch.Tensor]] = {}

    def forget(self, name: str) -> None:
        """The adapter of this name is another one from now on."""
        if self.active == name:
            self._restore()
        self._merged.pop(name, None)

    @torch.no_grad()
    def activate(self, name: str | None, adapters: dict[str, LoraWeights]) -> None:
        """Make the model speak with an adapter; None is the base."""
        if name == self.active:
            return
        if name is not None and name not in adapters:
            raise AdapterError("No adapter of this name is loaded.", value=name, known=sorted(adapters))
        self._restore()
        if name is None:
            return
        if name not in self._merged:
            self._merged.clear()
            self._merged[name] = {
                module: self._sum(module, a, b, adapters[name].scale) for module, (a, b) in adapters[name].pairs.items()
            }
        for module, merged in self._merged[name].items():
            weight = self.modules[module].weight
            self._base[module] = weight.data
            weight.data = merged
        self.active = name

    def _sum(self, module: str, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
        weight = self.modules[module].weight
        return (weight.float() + (b @ a) * scale).to(weight.dtype)

    def _restore(self) -> None:
        for module, base in self._base.items():
            self.modules[module].weight.data = base
        self._base.clear()
        self.active = None
