"""A training run on the tiny model with random adapters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from export_builders import write_run

from rl2f_core.common.file_io import sha256
from rl2f_core.run.events import CheckpointEvent, JsonlSink

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def write_model_run(folder: Path, base: Path, checkpoints: Sequence[str]) -> Path:
    """Write a finished run whose checkpoints change all linear modules of `base`; return `folder`."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    write_run(folder, [], model={"name": str(base)})
    sink = JsonlSink(folder / "events.jsonl")
    for seed, name in enumerate(checkpoints):
        torch.manual_seed(seed)
        model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=4, lora_alpha=8, target_modules=MODULES)
        )
        for key, weight in model.named_parameters():
            if "lora_" in key:
                torch.nn.init.normal_(weight, std=0.2)
        path = f"checkpoints/{name}"
        model.save_pretrained(folder / path)
        digest, (stage, step) = sha256(folder / path / "adapter_model.safetensors"), name.split("@")
        event = CheckpointEvent(
            id=f"checkpoint:{name}", name=name, stage=stage, step=int(step), path=path, sha256=digest
        )
        sink.emit([event])
    return folder
