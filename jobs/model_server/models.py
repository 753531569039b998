"""Models of a server: the checkpoints that it serves by name, their base models, and what is in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.model_server.protocol import ModelSource
from rl2f_core.common.file_io import read_json
from rl2f_core.config.model import ModelConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import ConfigError, ModelError
from rl2f_core.models.device import free_cached, resolve_device
from rl2f_core.models.store.conversion import plain_name
from rl2f_core.models.store.store import get_model
from rl2f_core.models.tokenizer import HFChatTokenizer
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    import torch

    from rl2f_core.models.backends.hf.backend import HFBackend

MAX_ADAPTERS = 8
"""Maximum number of loaded adapters that are neither served nor used by a running request."""
OVERHEAD_FACTOR = 1.2
"""Memory of loading and of a first response, relative to the weights."""


def base_name(source: ModelSource) -> str:
    """Return the name of a base model in requests."""
    return Path(source.base).name if Path(source.base).is_absolute() else plain_name(source.base)


def find_models(checkpoints: Sequence[tuple[Path, str]], *, base: bool) -> dict[str, ModelSource]:
    """Return checkpoints, given as run directory and `stage@step` or step, by name, and with `base` their base model.

    A checkpoint is named `RUN@stage@step` with the name of the run directory. Raises `ConfigError` if one is unknown,
    two have the same name, or they have different base models.
    """
    models: dict[str, ModelSource] = {}
    for folder, name in checkpoints:
        run = RunDir.open(folder)
        config = run.config()
        if not isinstance(config, RunConfig):
            raise ConfigError("Only training runs have checkpoints.", value=str(folder))
        checkpoint = run.find_checkpoint(name)
        served = f"{run.path.resolve().name}@{checkpoint}"
        if served in models:
            raise ConfigError("Two checkpoints have the same name.", value=served,
                              fix="Name each once; rename one run directory if they are different.")  # fmt: skip
        weights = str(run.checkpoint(checkpoint).resolve())
        models[served] = ModelSource(base=config.model.name, adapter=weights, dtype=config.model.dtype)
    bases = sorted({source.base for source in models.values()})
    if len(bases) != 1:
        raise ConfigError("A server has one base model." if bases else "There is no checkpoint to serve.", value=bases,
                          fix="Name checkpoints of runs with the same model.name.")  # fmt: skip
    source = next(iter(models.values())).model_copy(update={"adapter": None})
    return {**models, **({base_name(source): source} if base else {})}


@dataclass(frozen=True)
class BaseInfo:
    """What is known of a base model without its weights."""

    tokenizer: HFChatTokenizer
    vocab_size: int
    context: int
    """Maximum number of tokens of a prompt and its completion."""


@lru_cache(maxsize=4)
def base_info(name: str) -> BaseInfo:
    """Return tokenizer and limits of a base model. Raises `ModelError`. Two threads must not call it at once."""
    import torch  # noqa: F401  two threads cannot import it at once, and later the loop needs it
    from transformers import AutoConfig, AutoTokenizer

    options = {"trust_remote_code": False, "local_files_only": True}
    folder = get_model(name).path
    config = AutoConfig.from_pretrained(folder, **options)
    tokenizer = HFChatTokenizer(AutoTokenizer.from_pretrained(folder, **options), config.vocab_size)
    return BaseInfo(tokenizer, config.vocab_size, int(getattr(config, "max_position_embeddings", 0) or 2**31))


class ModelLoader:
    """One base model in memory with its adapters; used by one thread.

    Args:
        served: Served models by name; their adapters stay in memory with the base model.
        reserve_gb: Memory that must stay free when a model is loaded; None checks nothing.
    """

    def __init__(self, served: Mapping[str, ModelSource], reserve_gb: float | None) -> None:
        self.served, self.reserve_gb = served, reserve_gb
        self.backend: HFBackend | None = None
        self.loads = 0
        """Number of base model loads."""
        self.adapter_loads = 0
        self._source: ModelSource | None = None
        self._adapters: dict[str, ModelSource] = {}
        """Loaded adapters by name, the last used one at the end."""

    def state(self) -> JsonObject:
        """Return what is in memory."""
        loads = {"loads": self.loads, "adapter_loads": self.adapter_loads}
        return {"model": self._source and self._source.base, "adapters": sorted(self._adapters), **loads}

    def is_loaded(self, source: ModelSource) -> bool:
        """Return whether the base model of a source is in memory, with weights that `source` can use."""
        return self._source is not None and _base_key(self._source) == _base_key(source)

    def load(
        self, name: str, source: ModelSource, used: Collection[str] = (), report: Callable[[str], object] = str
    ) -> HFBackend:
        """Return the backend with base model and adapter loaded; another base model is unloaded.

        Args:
            name: Name of the adapter.
            source: The weights.
            used: Adapters of running requests, which stay in memory.
            report: Called with progress messages.

        Raises `ModelError` or `AdapterError`.
        """
        if self.backend is None or not self.is_loaded(source):
            report(f"Loading {source.base} …")
            self._load_base(source)
        assert self.backend is not None
        if source.adapter is not None:
            if self._adapters.pop(name, None) != source or name not in self.backend.adapters:
                report(f"Loading {name.partition('#')[0]} …")
                self.backend.load_adapter(name, Path(source.adapter))
                self.adapter_loads += 1
            self._adapters[name] = source
            unused = [other for other in self._adapters if other not in {name, *used, *self.served}]
            for surplus in unused[:-MAX_ADAPTERS]:
                self.backend.drop_adapter(surplus)
                del self._adapters[surplus]
        return self.backend

    def _load_base(self, source: ModelSource) -> None:
        from rl2f_core.models.backends.hf.backend import HFBackend

        self.unload()
        _, device, dtype, full = _base_key(source)
        if self.reserve_gb is not None:
            _ensure_memory(source, device, dtype, int(self.reserve_gb * 1e9))
        config = ModelConfig(name=source.base, dtype=source.dtype, device=source.device)
        self.backend = HFBackend(HFBackend.Config(), config, unmerged=full is None)
        self._source = source
        self.loads += 1

    def unload(self) -> None:
        """Free the memory of the model."""
        backend, self.backend, self._source = self.backend, None, None
        self._adapters.clear()
        if backend is not None:
            backend.adapters.clear()
            del backend
            free_cached()


@lru_cache(maxsize=256)
def _base_key(source: ModelSource) -> tuple[str, torch.device, torch.dtype, str | None]:
    """Return the key of sources that share a base model in memory; its last part is a checkpoint with all weights."""
    from rl2f_core.models.backends.hf.lora import FULL_WEIGHTS

    kind = read_json(Path(source.adapter) / "adapter_config.json").get("peft_type") if source.adapter else None
    return source.base, *resolve_device(source.device, source.dtype), source.adapter if kind == FULL_WEIGHTS else None


def _ensure_memory(source: ModelSource, device: torch.device, dtype: torch.dtype, reserve: int) -> None:
    """Raise `ModelError` unless a base model leaves `reserve` bytes free."""
    import psutil
    import torch

    from rl2f_core.learning.learner.memory import weight_shapes

    weights = sum(map(math.prod, weight_shapes(get_model(source.base).path).values()))
    needed, on_gpu = int(weights * dtype.itemsize * OVERHEAD_FACTOR), device.type == "cuda"
    free = torch.cuda.mem_get_info()[0] if on_gpu else psutil.virtual_memory().available
    if needed + reserve > free:
        raise ModelError(
            f"There is not enough free {'GPU memory' if on_gpu else 'memory'} to load {source.base}: it needs "
            f"{needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free, and {reserve / 1e9:.1f} GB must stay free.",
            fix="Wait until a run ends, stop one, or choose a smaller model.",
        )
