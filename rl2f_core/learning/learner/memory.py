"""Estimated memory of training, from the sizes in the model's files; activations are not included."""

from __future__ import annotations

import math
import re
from pathlib import Path

import psutil
import torch
from safetensors import safe_open

from rl2f_core import registry
from rl2f_core.config.model import LoraConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.learning.methods.loss_spec import LossConfig
from rl2f_core.models.backends.hf.cpu_prepack import MAX_BYTES, MAX_CACHED

TRAINED_BYTES = 16
"""Bytes per trained weight: float32 weight, gradient and the two moments of AdamW."""
STATE_BYTES = 12
"""Bytes per trained weight in a training state on disk: float32 weight and the two moments of AdamW."""


def training_memory(folder: Path, lora: LoraConfig, width: int, options: LossConfig, *, on_cpu: bool = False) -> int:
    """Return the bytes of weights, gradients, optimizer and reference of one process; activations come on top.

    With FSDP the processes share the learner's part, which this does not divide.

    With N weights of the model, P trained ones, and `width` bytes w per weight of the base:

        adapter      2·w·N + 16·P     (base of sampler and learner)
        all weights  2·w·N + 16·N     (base and current weights of the sampler)

    A KL reference, or a moving average, adds 4·P; the base as the reference of an adapter needs no copy, which this
    ignores. On a CPU, the copy of the training state that a thread writes lies in the same memory: 12·P more, and
    4·P with a reference; the packed weights of base and adapter need up to 2·w·N (`hf.cpu_prepack`). A model with
    quantized or unusual layers needs other amounts.

    Args:
        folder: Folder of the base model.
        lora: Adapter, or full fine-tuning.
        width: Bytes per weight of the base.
        options: Loss of the stage.
        on_cpu: Whether the CPU trains.
    """
    shapes = weight_shapes(folder)
    weights, trained = sum(map(math.prod, shapes.values())), trained_weights(shapes, lora)
    reference = 4 * trained if options.uses_ema or options.uses_ref_model else 0
    copies = (STATE_BYTES * trained + reference) if on_cpu else 0
    if on_cpu and width * weights <= MAX_BYTES:
        copies += MAX_CACHED * width * weights
    return 2 * width * weights + TRAINED_BYTES * trained + reference + copies


def retained_disk(folder: Path, config: RunConfig) -> int:
    """Return the estimated bytes on disk of the training states that a run retains, at most.

    With P trained weights, a state has 12·P bytes, and 4·P more with a KL reference or a moving average.

    Args:
        folder: Folder of the base model.
        config: Configuration of the run.
    """
    shapes, total = weight_shapes(folder), 0
    stages = {stage.name: stage for stage in config.stages}
    for name, _ in config.retained_steps():
        stage = stages[name]
        options = registry.get("method", stage.method.type)(stage.method).loss_options()
        reference = 4 if options.uses_ema or options.uses_ref_model else 0
        total += (STATE_BYTES + reference) * trained_weights(shapes, config.lora_of(stage))
    return total


def trained_weights(shapes: dict[str, tuple[int, ...]], lora: LoraConfig) -> int:
    """Return the number of trained weights: of the adapter, or of the whole model."""
    return sum(map(math.prod, shapes.values())) if lora.full_finetuning else adapter_size(shapes, lora)


def total_memory(device: torch.device) -> int:
    """Return the bytes of memory of the GPU, or of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)


def model_memory(folder: Path, width: int) -> int:
    """Return the bytes of a model's weights, with `width` bytes each."""
    return width * sum(map(math.prod, weight_shapes(folder).values()))


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a model folder by name, without loading them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}
    return shapes


def adapter_size(shapes: dict[str, tuple[int, ...]], lora: LoraConfig) -> int:
    """Return the number of weights of a LoRA adapter, r·(in + out) per adapted matrix."""
    layers = {name: int(match[1]) for name in shapes if (match := re.search(r"\.(\d+)\.", name))}
    count = max(layers.values(), default=-1) + 1
    first = count - max(1, round(count * lora.top_layer_fraction))
    return sum(
        lora.rank * sum(shapes[name])
        for name, layer in layers.items()
        if layer >= first
        and len(shapes[name]) == 2
        and (lora.target_modules == "all-linear" or name.split(".")[-2] in lora.target_modules)
    )
