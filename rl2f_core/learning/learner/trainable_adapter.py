"""The weights in training, their optimizer and value head, wrapped by Accelerate; exact save and load.

They are a LoRA adapter on a frozen base, or all weights (`full_finetuning`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import peft
import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from rl2f_core.common.file_io import read_json
from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.errors import AdapterError, ConfigError, RunError
from rl2f_core.learning.learner import torch_compile
from rl2f_core.learning.learner.fsdp import check_sharding, full_tensor, reshard_like, sharding
from rl2f_core.learning.learner.full_finetuning import FullModel, checkpoint_name, swapped
from rl2f_core.learning.learner.gradient_checkpointing import ActivationMemory
from rl2f_core.learning.learner.lora_linear import FusedLora
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.learner.policy_model import PolicyModel
from rl2f_core.learning.learner.state_files import StateFiles, TensorFile
from rl2f_core.learning.learner.value_head import ValueHead
from rl2f_core.models.backends.hf.lora import FULL_WEIGHTS, check_base, read_lora_config
from rl2f_core.models.modeling.attention import CausalLM
from rl2f_core.models.modeling.loading import load_base_model
from rl2f_core.models.process_group import current_group

ADAPTER_FILE, OPTIMIZER_FILE = "adapter_model.safetensors", "optimizer.safetensors"
REFERENCE_FILE, VALUE_HEAD_FILE = "reference.safetensors", "value_head.safetensors"


class TrainableAdapter:
    """One adapter in training: its parameters, its optimizer, and its state on disk."""

    fuses_lora: ClassVar[bool] = True
    """Whether all forward passes are those of `policy_model`, which may then use `FusedLora`."""
    policy: nn.Module
    """The model in training; wrapped by Accelerate with several processes."""
    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        folder: Path,
        lora: LoraConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        banned: Sequence[int],
        pad: int,
        seed: int,
    ) -> None:
        self.full, self.shape, self.folder = lora.full_finetuning, lora.shape, folder
        self._named: dict[str, nn.Parameter] = {}
        base = load_base_model(str(folder), torch.float32 if self.full else dtype, device)
        torch.manual_seed(seed)
        self.model: CausalLM = FullModel(base) if self.full else with_adapter(base, lora)
        self.device, self.dtype, self.pad = device, dtype, pad
        self.policy_model = PolicyModel(self.model, torch.tensor(list(banned), dtype=torch.long, device=device), dtype)
        self.reference: dict[str, torch.Tensor] | None = None
        self.accelerator = self.setup_accelerator(folder)
        self.sharding = sharding(self.accelerator)
        if self.fuses_lora and device.type == "cuda" and not self.full and not self.sharding:
            self.policy_model.fused_lora = FusedLora(self.model)
        self.activations = ActivationMemory(self.policy_model, device, sharded=self.sharding == "fsdp")
        self.new_optimizer(0.0)
        self._initial = {} if self.full else self.snapshot()

    def setup_accelerator(self, folder: Path) -> Accelerator:
        """Return the `Accelerator` that wraps the model and runs the backward pass."""
        return Accelerator(cpu=self.device.type == "cpu")

    # -- weights -----------------------------------------------------------------------------------------------
    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, without the value head; their shards under FSDP."""
        reshard = getattr(getattr(self, "policy", None), "reshard", None)
        if reshard is not None:  # FSDP keeps the root's weights gathered after a forward pass without a backward pass
            reshard()
        if not self._named:
            self._named = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        return self._named

    @property
    def head_parameters(self) -> dict[str, nn.Parameter]:
        """The value head's parameters by name; empty without a critic."""
        head = self.policy_model.head
        return {} if head is None else {f"value_head.{n}": p for n, p in head.named_parameters()}

    def begin_stage(self, options: LossConfig, stage: StageConfig) -> None:
        """Start a stage from the current weights: new optimizer, and value head and reference if needed."""
        check_sharding(self.accelerator, self.sharding, options, stage)
        torch_compile.check(stage, self.device, current_group().world_size)
        self.reset_value_head(options.critic is not None)
        self.new_optimizer(stage.weight_decay)
        self.reference = None
        if options.uses_ema or (options.uses_ref_model and stage.ref_model == "stage_start"):
            self.reference = self.snapshot()
        elif options.uses_ref_model and self.full:
            self.reference = self._base_weights()

    def compile(self, stage: StageConfig) -> bool:
        """Enable torch.compile for a stage if configured or worthwhile; return whether it is enabled."""
        weights = sum(p.numel() for p in self.model.parameters() if self.full or not p.requires_grad)
        on = torch_compile.should_compile(stage, weights, self.device, self.dtype, current_group().world_size)
        torch_compile.compile_blocks(self.model, on=on)
        return on

    def reset_value_head(self, enabled: bool) -> None:
        """Create or remove the value head; call `new_optimizer` afterwards."""
        base: CausalLM = self.model.get_base_model()
        width = base.get_output_embeddings().weight.shape[1]
        self.policy_model.head = ValueHead(width, self.device) if enabled else None

    def new_optimizer(self, weight_decay: float) -> None:
        """Create a new optimizer."""
        groups = [list(named.values()) for named in (self.parameters, self.head_parameters) if named]
        fused = self.device.type == "cuda" and not self.sharding
        optimizer = torch.optim.AdamW(
            [{"params": group} for group in groups],
            lr=0.0,
            weight_decay=weight_decay,
            foreach=not (fused or self.sharding or self.full),  # bit for bit as a loop, but with a copy of all weights
            fused=fused,
        )
        self.wrap(self.policy_model, optimizer)

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Set `policy` and `optimizer`, prepared together as sharded weights require."""
        if current_group().world_size > 1:
            for name in ("policy", "optimizer"):  # the previous wrapper would receive the gradients too
                vars(self).pop(name, None)
            self.accelerator.free_memory()
        self.policy, self.optimizer = self.accelerator.prepare(model, optimizer)
        self._named = {}  # sharding replaces them

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return a copy of the trained parameters."""
        return {n: p.detach().clone() for n, p in self.parameters.items()}

    def reset(self) -> None:
        """Set the initial weights: the base model, with a new adapter."""
        self.restore(self._base_weights() if self.full else self._initial)

    def _base_weights(self) -> dict[str, torch.Tensor]:
        """Load all weights of the base model."""
        base = load_base_model(str(self.folder), torch.float32, torch.device("cpu"))
        weights = dict(base.named_parameters())
        return {n: reshard_like(p, weights[checkpoint_name(n)].detach()) for n, p in self.parameters.items()}

    @torch.no_grad()
    def restore(self, weights: dict[str, torch.Tensor]) -> None:
        """Set the trained parameters."""
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])

    @contextlib.contextmanager
    def reference_weights(self, kind: str) -> Iterator[None]:
        """Context in which the model has the weights of the reference.

        Args:
            kind: `base`, `stage_start` (the stored weights), or `live` for the current ones.
        """
        if kind == "live":
            yield
        elif kind == "base" and not self.full:
            with self.model.disable_adapter():
                yield
        elif self.reference is None:
            raise RunError("The stage has no reference weights.", fix="Set ref_model: base.")
        elif self.full and self.sharding != "fsdp":  # FSDP gathers its shards, not what a parameter refers to
            with swapped(self.parameters, self.reference):
                yield
        else:
            current = self.snapshot()
            try:
                self.restore(self.reference)
                yield
            finally:
                self.restore(current)

    def reference_output(self, kind: str) -> dict[str, torch.Tensor]:
        """Return the trained weights of the output layer by their names there, with the values of the reference `kind`.

        The layer is trained in full fine-tuning, also as the tied embedding.
        """
        if kind == "live" or self.reference is None or not self.full:
            return {}
        names = {parameter: name for name, parameter in self.parameters.items()}
        layer: nn.Module = self.model.get_base_model().get_output_embeddings()
        return {name: self.reference[names[p]] for name, p in layer.named_parameters() if p in names}

    @torch.no_grad()
    def update_ema(self, rate: float) -> None:
        """Move the reference toward the policy: reference ← (1 − rate)·reference + rate·policy."""
        if self.reference is not None:
            for name, parameter in self.parameters.items():
                self.reference[name].lerp_(parameter, rate)

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format, or all weights, in the base's dtype.

        All processes must call it; the main one writes.
        """
        self._adapter_files(exact=False).write(folder)

    def adapter_tensors(self) -> tuple[dict[str, torch.Tensor], float | None]:
        """Return the trained weights by their names in a checkpoint, and alpha / rank; None for all weights."""
        name_of = checkpoint_name if self.full else peft_name
        tensors = {name_of(name): full_tensor(parameter).detach() for name, parameter in self.parameters.items()}
        return tensors, None if self.full else self.shape.alpha / self.shape.rank

    def _adapter_files(self, *, exact: bool, reused: TensorFile | None = None) -> StateFiles:
        """Copy the trained weights; those of full fine-tuning in the base's dtype unless `exact`."""
        tensors, _ = self.adapter_tensors()
        if not current_group().is_main_process:
            return StateFiles({}, {})
        dtype = self.dtype if self.full and not exact else torch.float32
        files = {ADAPTER_FILE: TensorFile.copy(tensors, self.device, dtype, reused)}
        return StateFiles(files, {"adapter_config.json": self._adapter_config})

    @functools.cached_property
    def _adapter_config(self) -> str:
        if self.full:
            return json.dumps({"peft_type": FULL_WEIGHTS, "base_model_name_or_path": str(self.folder)}, indent=2)
        config = copy.copy(self.model.peft_config["default"])
        config.inference_mode = True
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            return (Path(folder) / "adapter_config.json").read_text()

    def load_adapter(self, folder: Path) -> None:
        """Load weights written by `save_adapter` or PEFT.

        Raises `AdapterError` if they are damaged, or of another kind, shape, scale or base model.
        """
        try:
            tensors = load_file(folder / ADAPTER_FILE)
        except (OSError, SafetensorError) as error:
            raise AdapterError(f"The adapter cannot be read: {error}.", value=str(folder)) from error
        self._check_config(folder)
        if self.full:
            weights = {f"base.{name}": tensor for name, tensor in tensors.items()}
        else:
            weights = {name.replace(".weight", ".default.weight"): tensor for name, tensor in tensors.items()}
        parameters = self.parameters
        if {n: tuple(t.shape) for n, t in weights.items()} != {n: tuple(p.shape) for n, p in parameters.items()}:
            raise AdapterError(
                "The adapter has another shape than this run's: its modules or their sizes differ.",
                value=str(folder),
                fix="Set lora.target_modules and top_layer_fraction to those of the adapter.",
            )
        self.restore({name: reshard_like(parameters[name], tensor) for name, tensor in weights.items()})

    def _check_config(self, folder: Path) -> None:
        """Raise `AdapterError` if an adapter's configuration gives its weights another meaning than this run's."""
        kind = read_json(folder / "adapter_config.json").get("peft_type")
        if self.full or kind == FULL_WEIGHTS:
            if self.full and kind == FULL_WEIGHTS:
                return
            raise AdapterError(
                "An adapter cannot start full fine-tuning, nor all weights an adapter.",
                value=kind,
                known=[FULL_WEIGHTS if self.full else "LORA"],
                fix=f"Set lora.full_finetuning={str(not self.full).lower()}.",
            )
        config = read_lora_config(folder)
        for key, field in (("r", "rank"), ("lora_alpha", "alpha")):
            if config[key] != getattr(self.shape, field):
                raise AdapterError(
                    f"The adapter has another shape than this run's: its {key} is not lora.{field}.",
                    value=config[key],
                    known=[str(getattr(self.shape, field))],
                    fix=f"Set lora.{field}={config[key]}.",
                )
        check_base(config, self.folder)

    def save(self, folder: Path) -> None:
        """Write everything that an exact resume needs (`state_files`)."""
        self.state_files().write(folder)

    def state_files(self, reused: StateFiles = StateFiles({}, {})) -> StateFiles:
        """Copy everything that an exact resume needs: adapter, optimizer, reference and value head.

        All processes must call it; the main one gets the files. `reused` is a copy that is no longer needed; this one
        takes over its memory. DeepSpeed's optimizer state has no parameter names and is not saved, so a resume under
        DeepSpeed starts with a new optimizer.
        """
        files = self._adapter_files(exact=True, reused=reused.tensors.get(ADAPTER_FILE))
        optimizer: dict[str, torch.Tensor] = {}
        for name, parameter in (self.parameters | self.head_parameters).items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                optimizer[f"{key}|{name}"] = full_tensor(torch.as_tensor(value))
        reference = {n: full_tensor(t) for n, t in (self.reference or {}).items()}
        if not current_group().is_main_process:
            return files
        head = dict(self.head_parameters)
        for file, tensors in ((OPTIMIZER_FILE, optimizer), (REFERENCE_FILE, reference), (VALUE_HEAD_FILE, head)):
            if tensors or file == OPTIMIZER_FILE:
                files.tensors[file] = TensorFile.copy(tensors, self.device, torch.float32, reused.tensors.get(file))
        return files

    def load(self, folder: Path) -> None:
        """Load the files of `save`."""
        self.load_adapter(folder)
        head = folder / VALUE_HEAD_FILE
        self.reset_value_head(head.exists())
        self.new_optimizer(0.0)
        if head.exists():
            values = load_file(head)
            with torch.no_grad():
                for name, parameter in self.head_parameters.items():
                    parameter.copy_(values[name])
        trained, fused = self.parameters | self.head_parameters, self.optimizer.param_groups[0].get("fused")
        for key, value in load_file(folder / OPTIMIZER_FILE).items():
            kind, _, name = key.partition("|")
            parameter = trained[name]
            is_host = kind == "step" and not fused  # only a fused step counts on the device
            self.optimizer.state[parameter][kind] = value if is_host else reshard_like(parameter, value)
        reference = folder / REFERENCE_FILE
        parameters = self.parameters
        self.reference = (
            {n: reshard_like(parameters[n], t) for n, t in load_file(reference).items()} if reference.exists() else None
        )

    @property
    def scoring_model(self) -> nn.Module:
        """Model for forward passes of a single process; under FSDP all processes must run them together."""
        return self.policy if self.sharding == "fsdp" else self.policy_model


def with_adapter(base: CausalLM, lora: LoraConfig) -> CausalLM:
    """Return the model with a new LoRA adapter."""
    targets = target_modules(base, lora)
    return peft.get_peft_model(
        base, peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    )


def peft_name(parameter: str) -> str:
    """Return the name in PEFT's file of an adapter's parameter."""
    return parameter.replace(".default.weight", ".weight")


def target_modules(base: CausalLM, lora: LoraConfig) -> list[str]:
    """Return the full names of the linear layers to adapt; raises `ConfigError` if none matches."""
    total = base.config.num_hidden_layers
    first = total - max(1, round(total * lora.top_layer_fraction))
    output = base.get_output_embeddings()
    names = []
    for name, module in base.named_modules():
        number = re.search(r"\.(\d+)\.", name)
        if not isinstance(module, nn.Linear) or module is output or number is None or int(number[1]) < first:
            continue
        if lora.target_modules == "all-linear" or name.rsplit(".", 1)[-1] in lora.target_modules:
            names.append(name)
    if not names:
        known = {n.rsplit(".", 1)[-1] for n, m in base.named_modules() if isinstance(m, nn.Linear)}
        raise ConfigError("No module matches lora.target_modules.", value=lora.target_modules, known=sorted(known))
    return names
