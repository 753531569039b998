"""Adapters: load LoRA in PEFT's format and full checkpoints; merge LoRA into base weights, W + (alpha / r) · B A."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from rl2f_core.common.file_io import read_json
from rl2f_core.errors import AdapterError
from rl2f_core.models.backends.base import check_adapter
from rl2f_core.models.store.files import weight_hashes
from rl2f_core.types import JsonObject

_PREFIX = "base_model.model."
FULL_WEIGHTS = "FULL"
"""`peft_type` of a checkpoint with all weights."""
_A, _B = ".lora_A.weight", ".lora_B.weight"
_HARMLESS = {
    "r", "lora_alpha", "peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
    "inference_mode", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout",
    "megatron_core", "qalora_group_size", "runtime_config", "loftq_config", "eva_config", "ensure_weight_tying",
}  # fmt: skip
"""Settings of `adapter_config.json` that change neither formula nor base, or only together with another one."""
_PLAIN = {"bias": ("none",), "init_lora_weights": (True, "gaussian", "orthogonal", "eva")}
"""Values of other settings that change neither. The other initializations, such as pissa, also change the base."""


@dataclass(frozen=True)
class LoraWeights:
    """Module name → (A [r, in], B [out, r]) in float32, and the scale."""

    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]]
    scale: float

    def to(self, device: torch.device) -> LoraWeights:
        """Copy the weights to a device."""
        return LoraWeights({name: (a.to(device), b.to(device)) for name, (a, b) in self.pairs.items()}, self.scale)


def load_lora(folder: Path, modules: Mapping[str, torch.nn.Linear]) -> LoraWeights:
    """Load an adapter. Raises `AdapterError` if it is invalid or does not fit the base model's `modules`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config = read_lora_config(folder)
    rank = config["r"]
    try:
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, SafetensorError) as error:
        raise _unreadable(folder, error) from error
    pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for key in sorted(tensors):
        if key.endswith(_B) and key.removesuffix(_B) + _A in tensors:
            continue
        if not key.endswith(_A) or key.removesuffix(_A) + _B not in tensors:
            raise AdapterError(f"The adapter file contains {key}, which is not half of a LoRA pair.", value=str(folder))
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
        raise AdapterError("The adapter file contains no LoRA weights.", value=str(folder))
    return LoraWeights(pairs, config["lora_alpha"] / rank)


def read_lora_config(folder: Path) -> JsonObject:
    """Return the `adapter_config.json` of an adapter W + (lora_alpha / r) · B A on an unchanged base W.

    Raises `AdapterError` if it is invalid, or names the settings that change the formula or the base.
    """
    try:
        config = json.loads((folder / "adapter_config.json").read_text())
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError("adapter_config.json describes no LoRA adapter.", value=str(folder), known=["LORA"])
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise AdapterError(
            "adapter_config.json has no usable r and lora_alpha.", value={"r": rank, "lora_alpha": alpha}
        )
    changing = {k: v for k, v in config.items() if v and k not in _HARMLESS and v not in _PLAIN.get(k, ())}
    if changing:
        raise AdapterError(
            f"Only plain LoRA adapters are supported; {', '.join(changing)} in adapter_config.json changes what the "
            "weights mean.",
            value=changing,
            fix="Merge the adapter into its base with PEFT, and set model.name to the merged model.",
        )
    return config


def check_base(config: JsonObject, folder: Path) -> None:
    """Raise `AdapterError` if the base that an adapter's configuration names is here and has other weights."""
    base = Path(config.get("base_model_name_or_path") or folder)
    hashes = weight_hashes(base) if base.resolve() != folder.resolve() else ()
    if hashes and hashes != weight_hashes(folder):
        raise AdapterError(
            "The adapter belongs to another base model: base_model_name_or_path has other weights.",
            value=str(base),
            known=[str(folder)],
            fix=f"Set model.name={base}, or choose an adapter of this base.",
        )


def _unreadable(folder: Path, error: Exception) -> AdapterError:
    return AdapterError(
        f"The folder contains no readable LoRA adapter: {error}.",
        value=str(folder),
        fix="It needs adapter_config.json and adapter_model.safetensors.",
    )


@dataclass(frozen=True)
class FullWeights:
    """All weights of a fully fine-tuned model by parameter name."""

    tensors: dict[str, torch.Tensor]


def load_weights(folder: Path, merger: LoraMerger) -> LoraWeights | FullWeights:
    """Load an adapter or a checkpoint with all weights. Raises `AdapterError` if it does not fit the base model."""
    full = read_json(folder / "adapter_config.json").get("peft_type") == FULL_WEIGHTS
    return load_full(folder, merger.parameters) if full else load_lora(folder, merger.modules).to(merger.device)


def load_full(folder: Path, parameters: Mapping[str, torch.nn.Parameter]) -> FullWeights:
    """Load a checkpoint with all weights. Raises `AdapterError` if it is damaged or of another base model."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"The checkpoint cannot be read: {error}.", value=str(folder)) from error
    if {n: t.shape for n, t in tensors.items()} != {n: p.shape for n, p in parameters.items()}:
        raise AdapterError(
            "The checkpoint's weights are not those of this base model.",
            value=str(folder),
            fix="Load it on the base it was trained on.",
        )
    return FullWeights(tensors)


def copy_weights(
    tensors: Mapping[str, torch.Tensor], scale: float | None, device: torch.device, dtype: torch.dtype
) -> LoraWeights | FullWeights:
    """Copy the weights of a model in training; see `Backend.copy_adapter`. All weights get the base's dtype."""
    if scale is None:
        return FullWeights({name: tensor.to(device, dtype, copy=True) for name, tensor in tensors.items()})
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors.values()]).to(device)
    parts = dict(zip(tensors, flat.split([tensor.numel() for tensor in tensors.values()]), strict=True))
    copies = {name: part.view(tensors[name].shape) for name, part in parts.items()}
    names = [name.removesuffix(_A) for name in sorted(tensors) if name.endswith(_A)]
    return LoraWeights({n.removeprefix(_PREFIX): (copies[n + _A], copies[n + _B]) for n in names}, scale)


class LoraMerger:
    """Switches a model between its base, merged adapters and full checkpoints.

    By default it replaces weight tensors, and the weights of the last adapter stay in memory, so switching between it
    and the base is fast. With `in_place` it writes into the model's tensors, as CUDA graphs need, and merges again.
    """

    def __init__(self, model: torch.nn.Module, *, in_place: bool = False) -> None:
        self.in_place = in_place
        self.modules = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
        self.parameters = dict(model.named_parameters())
        self.active: str | None = None
        self._base: dict[torch.nn.Parameter, torch.Tensor] = {}
        """Base weights of the parameters with other weights."""
        self._merged: dict[str, dict[torch.nn.Parameter, torch.Tensor]] = {}
        self._copies: dict[torch.nn.Parameter, torch.Tensor] = {}
        """With `in_place`: base weights of the parameters that an adapter has changed."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(iter(self.parameters.values())).device

    def forget(self, name: str) -> None:
        """Drop the merged weights of an adapter."""
        if self.active == name:
            self._restore()
        self._merged.pop(name, None)

    @torch.no_grad()
    def activate(self, name: str | None, adapters: Mapping[str, LoraWeights | FullWeights]) -> None:
        """Merge an adapter, or use all weights of a checkpoint; None restores the base."""
        if name == self.active:
            return
        check_adapter(name, adapters)
        self._restore()
        if name is None:
            return
        if self.in_place:
            self._write(adapters[name])
        else:
            if name not in self._merged:
                self._merged.clear()
                self._merged[name] = dict(self._replacements(adapters[name]))
            for parameter, weight in self._merged[name].items():
                self._base[parameter] = parameter.data
                parameter.data = weight
        self.active = name

    def _write(self, adapter: LoraWeights | FullWeights) -> None:
        """Copy the weights of an adapter into the model's tensors, and keep those of the base."""
        for parameter, weight in self._replacements(adapter):
            if parameter not in self._copies:
                self._copies[parameter] = parameter.data.clone()
            self._base[parameter] = self._copies[parameter]
            parameter.data.copy_(weight)

    def _replacements(self, adapter: LoraWeights | FullWeights) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Yield the changed weights of an adapter by parameter."""
        if isinstance(adapter, FullWeights):
            for name, p in self.parameters.items():
                yield p, adapter.tensors[name].to(p.device, p.dtype)
        else:
            for module, (a, b) in adapter.pairs.items():
                weight = cast("torch.nn.Parameter", self.modules[module].weight)
                yield weight, self._merge(module, a, b, adapter.scale)

    def _merge(self, module: str, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
        weight = self.modules[module].weight
        return (weight.float() + (b @ a) * scale).to(weight.dtype)

    def _restore(self) -> None:
        if self.in_place and self._base:
            torch._foreach_copy_([parameter.data for parameter in self._base], [*self._base.values()])
        else:
            for parameter, base in self._base.items():
                parameter.data = base
        self._base.clear()
        self.active = None
