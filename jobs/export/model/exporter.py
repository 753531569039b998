"""Export a checkpoint: merged safetensors, the PEFT adapter or GGUF, with model card and manifest.

The folder is built beside its destination and renamed, so it is complete or missing.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.export.model.card import BaseModel, ModelExport, model_card
from jobs.export.model.formats import check_format, quantization
from jobs.export.model.gguf_file import write_gguf
from jobs.export.model.ollama import modelfile
from jobs.export.model.transformers4 import add_settings, supported_versions
from jobs.export.private_paths import check_private, machine_paths
from jobs.export.publish import new_folder
from rl2f_core.common.file_io import apply_umask, sha256, write_atomically
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import AdapterError, ConfigError
from rl2f_core.models.store.conversion import plain_name
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCHEMA_VERSION = 1
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
LEGAL_FILES = ("LICENSE*", "NOTICE*")
MANIFEST, CARD = "manifest.json", "README.md"


def export_model(
    run: str | Path,
    checkpoint: str,
    out: str | Path,
    *,
    format: str = "safetensors",
    dtype: str = "float32",
    replace: bool = False,
    on_message: Callable[[str], None] = lambda text: None,
) -> JsonObject:
    """Write a checkpoint as a model to the directory `out`; return the manifest.

    The adapter is merged in float32. Merged float32 weights give the logits of base and adapter within 1e-3;
    bfloat16 and float16 round the weights.

    Args:
        run: Directory of a training run.
        checkpoint: `stage@step`, or a step.
        out: The directory to create.
        format: A name of `jobs.export.model.formats.MODEL_FORMATS`.
        dtype: Type of merged safetensors: float32, bfloat16 or float16.
        replace: Replace an earlier export in `out`.
        on_message: Receives one line per phase.

    Raises `ConfigError` for an unknown format, dtype or checkpoint, or a run without training, `AdapterError` if the
    adapter does not fit, `ModelError` if the base model is missing or cannot be written in this format, `DataError` if
    a path of this machine would remain, and `RunError` if `out` contains something else.
    """
    from rl2f_core.models.store.store import get_model

    check_format(format, dtype)
    run_dir = RunDir.open(run)
    config = run_dir.config()
    if not isinstance(config, RunConfig):
        raise ConfigError("Only training runs have checkpoints.", value=str(run))
    checkpoint = run_dir.find_checkpoint(checkpoint)
    base = get_model(config.model.name, on_message=on_message)
    adapter = run_dir.checkpoint(checkpoint)
    export = _describe(run_dir, config, checkpoint, format, dtype, base.path)
    with new_folder(Path(out), replace) as folder:
        on_message(f"Writing {checkpoint} as {format} …")
        if format == "peft":
            _write_adapter(adapter, folder, export.base.reference)
        else:
            _write_merged(export, base.path, adapter, folder)
        for pattern in LEGAL_FILES:
            for file in base.path.glob(pattern):
                shutil.copyfile(file, folder / file.name)
        versions = supported_versions(folder if format == "safetensors" else base.path)
        write_atomically(folder / CARD, model_card(export, versions))
        manifest = _manifest(export, folder, base.checksum, sha256(adapter / "adapter_model.safetensors"))
        write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1))
        _check_private(run_dir, folder)
    return manifest


def _describe(run: RunDir, config: RunConfig, checkpoint: str, format: str, dtype: str, folder: Path) -> ModelExport:
    from rl2f_core.dialogue.rollout.build import build_environment
    from rl2f_core.models.store.download import FROM_WHEELS
    from rl2f_core.models.store.files import read_manifest

    manifest = read_manifest(folder) or {}
    name = Path(config.model.name).name if Path(config.model.name).is_absolute() else config.model.name
    source = str(manifest.get("source", "a local folder"))
    kind, _, hub_id = source.partition(" ")
    built_in = FROM_WHEELS.get(plain_name(str(manifest.get("name"))))
    notice = folder / "NOTICE"
    base = BaseModel(
        name=name,
        id=built_in.hub if built_in else hub_id if kind == "hub" else name,
        license=str(manifest.get("license", "unknown")),
        source=source,
        notice=notice.read_text(encoding="utf-8").strip() if notice.is_file() else "",
    )
    return ModelExport(
        run=run, config=config, checkpoint=checkpoint, format=format, dtype=dtype, base=base,
        name=f"{config.name}-{checkpoint}".replace("@", "-").replace(" ", "-"),
        system=build_environment(config.environment).system_prompt(),
    )  # fmt: skip


def _write_adapter(adapter: Path, folder: Path, base: str) -> None:
    try:
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        shutil.copyfile(adapter / "adapter_model.safetensors", folder / "adapter_model.safetensors")
    except (OSError, ValueError) as error:
        raise AdapterError(f"The adapter cannot be read: {error}.", value=str(adapter)) from error
    if config.get("peft_type") != "LORA":
        raise AdapterError("The checkpoint has all weights and no adapter.", value=adapter.name,
                           fix="Export safetensors.")  # fmt: skip
    write_atomically(folder / "adapter_config.json", json.dumps({**config, "base_model_name_or_path": base}, indent=2))


def _write_merged(export: ModelExport, base: Path, adapter: Path, folder: Path) -> None:
    """Write merged weights with their tokenizer, or one GGUF file with its Modelfile."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    model: Any = merged_model(base, adapter)
    kind = quantization(export.format)
    if kind is None:
        model.to(getattr(torch, export.dtype)).save_pretrained(folder)
        for name in TOKENIZER_FILES:
            if (base / name).is_file():
                shutil.copyfile(base / name, folder / name)
        apply_umask(folder)
        add_settings(folder)
        return
    file = f"{export.name}.{kind}.gguf"
    write_gguf(model, base, folder / file, kind, export.name)
    config = export.config
    text = modelfile(file, base, export.system, config.evaluation_temperature, config.rollout.top_p)
    write_atomically(folder / "Modelfile", text)


def merged_model(base: Path, adapter: Path) -> PreTrainedModel:
    """Load a base model in float32 with the weights of a checkpoint. Raises `AdapterError` if they do not fit."""
    import torch
    from transformers import AutoModelForCausalLM

    from rl2f_core.models.backends.hf.lora import LoraMerger, load_weights

    model: Any = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, trust_remote_code=False, local_files_only=True
    )
    merger = LoraMerger(model)
    merger.activate("checkpoint", {"checkpoint": load_weights(adapter, merger)})
    return model.eval()


def _manifest(export: ModelExport, folder: Path, base_checksum: str, adapter_digest: str) -> JsonObject:
    files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(folder.iterdir())}
    files.pop(CARD)
    return {
        "schema": SCHEMA_VERSION,
        "name": f"{export.config.name} {export.checkpoint}, {export.format}",
        "created": time.time(),
        "model": {
            "run": export.run.path.resolve().name,
            "checkpoint": export.checkpoint,
            "adapter_sha256": adapter_digest,
            "base": export.base.reference,
            "base_checksum": base_checksum,
            "dtype": export.dtype if export.format == "safetensors" else None,
        },
        "formats": {export.format: {"files": files}},
    }


def _check_private(run: RunDir, folder: Path) -> None:
    """Raise `DataError` if a text file names a path of this machine."""
    private = machine_paths(run.path)
    for file in folder.iterdir():
        if file.suffix not in (".safetensors", ".gguf"):
            check_private(file.name, file.read_bytes(), private)
