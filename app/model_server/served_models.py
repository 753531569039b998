"""The models of a server: checkpoints of training runs with one base model, by the names that requests use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.export.model.exporter import find_checkpoint
from rl2f_core.config.model import ModelConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import AdapterError, ConfigError
from rl2f_core.models.store.conversion import plain_name
from rl2f_core.run.directory import RunDir

if TYPE_CHECKING:
    from rl2f_core.models.backends.hf.backend import HFBackend


@dataclass(frozen=True)
class ServedModels:
    """A base model and the folders of its adapters by name."""

    base: ModelConfig
    serves_base: bool
    adapters: dict[str, Path]

    @property
    def base_name(self) -> str:
        """Name of the base model in requests."""
        return Path(self.base.name).name if Path(self.base.name).is_absolute() else plain_name(self.base.name)

    @property
    def names(self) -> list[str]:
        """The names of all served models; the default is the first."""
        return [*self.adapters, *([self.base_name] if self.serves_base else [])]


def find_models(checkpoints: Sequence[tuple[Path, str]], *, base: bool) -> ServedModels:
    """Find checkpoints, given as run directory and `stage@step` or step.

    A model is named `RUN@stage@step` with the name of the run directory. Raises `ConfigError` if a checkpoint is
    unknown, two have the same name, or they have different base models.
    """
    adapters: dict[str, Path] = {}
    models: dict[str, ModelConfig] = {}
    for folder, name in checkpoints:
        run = RunDir.open(folder)
        config = run.config()
        if not isinstance(config, RunConfig):
            raise ConfigError("Only training runs have checkpoints.", value=str(folder))
        checkpoint = find_checkpoint(run, name)
        served = f"{run.path.resolve().name}@{checkpoint}"
        if served in adapters:
            raise ConfigError("Two checkpoints have the same name.", value=served,
                              fix="Name each once; rename one run directory if they are different.")  # fmt: skip
        adapters[served] = run.checkpoint(checkpoint).resolve()
        models.setdefault(config.model.name, config.model)
    if len(models) != 1:
        raise ConfigError("A server has one base model." if models else "There is no checkpoint to serve.",
                          value=list(models), fix="Name checkpoints of runs with the same model.name.")  # fmt: skip
    (model,) = models.values()
    return ServedModels(model.model_copy(update={"device": "auto"}), base, adapters)


def load_backend(models: ServedModels) -> HFBackend:
    """Load the base model and all adapters.

    A single checkpoint is merged into the base weights, as in training. Several share each forward unmerged. Raises
    `AdapterError` for a checkpoint with all weights beside other models.
    """
    from rl2f_core.models.backends.hf.backend import HFBackend
    from rl2f_core.models.backends.hf.lora import FullWeights
    from rl2f_core.models.backends.hf.streaming import ServerBackend

    is_single = len(models.names) == 1
    backend = HFBackend(HFBackend.Config(), models.base) if is_single else ServerBackend(models.base)
    for name, folder in models.adapters.items():
        backend.load_adapter(name, folder)
        if not is_single and isinstance(backend.adapters[name], FullWeights):
            raise AdapterError("A checkpoint with all weights cannot share a server with other models.", value=name,
                               fix="Serve it alone, without --base.")  # fmt: skip
    return backend


def lora_shape(models: ServedModels) -> tuple[int, list[str]]:
    """Return the highest LoRA rank of the adapters and the names of their target modules.

    Raises `AdapterError` if one is no LoRA adapter.
    """
    ranks: list[int] = []
    targets: set[str] = set()
    for name, folder in models.adapters.items():
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        if config.get("peft_type") != "LORA":
            raise AdapterError("vLLM serves LoRA adapters only.", value=name, fix="Use --backend hf.")
        ranks += [config["r"], *config.get("rank_pattern", {}).values()]
        targets |= {module.rpartition(".")[2] for module in config["target_modules"]}
    return max(ranks), sorted(targets)
