"""What a model folder must hold, and the manifest that says it still does.  Nothing here loads torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rl2f_core.config import write_atomically
from rl2f_core.errors import ModelError

MANIFEST = "manifest.json"
SCHEMA = 1
_IDENTITY = ("*.safetensors", "tokenizer.json", "chat_template.jinja")


# -- manifests -------------------------------------------------------------------------------------------------------
def _files(folder: Path) -> list[Path]:
    """Everything below `folder` but the manifest and the hub library's own notes in `folder/.cache`."""
    notes = folder / ".cache"
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST and notes not in p.parents)


def stamps(folder: Path) -> dict[str, list[int]]:
    """Size in bytes and time of change in ns of every file below `folder`, by relative path."""
    stats = {path.relative_to(folder).as_posix(): path.stat() for path in _files(folder)}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder`, by relative path."""
    hashes = {}
    for path in _files(folder):
        with open(path, "rb") as file:
            hashes[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def identity(hashes: dict[str, str]) -> str:
    """One checksum from the hashes of what a model computes with: weights, tokenizer, chat template."""
    lines = [
        f"{digest}  {name}\n" for name, digest in sorted(hashes.items()) if any(fnmatch(name, p) for p in _IDENTITY)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write_manifest(folder: Path, source: dict[str, Any]) -> dict[str, Any]:
    """Hash every file and write `manifest.json`."""
    hashes, found = hash_files(folder), stamps(folder)
    files = {name: {"size": found[name][0], "mtime_ns": found[name][1], "sha256": hashes[name]} for name in hashes}
    manifest = {"schema": SCHEMA, **source, "checksum": identity(hashes), "files": files}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1))
    return manifest


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where the file holds none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest, or None where there is none that can be read."""
    manifest = read_json(folder / MANIFEST)
    return manifest if manifest is not None and all(manifest.get(k) for k in ("name", "checksum", "files")) else None


def check_manifest(folder: Path, name: str, full: bool) -> dict[str, Any]:
    """The manifest, once the files are shown to be the recorded ones. Raises `ModelError` naming the changed files.

    A file whose size and time of change are the recorded ones counts as unchanged unless `full`; any other is hashed,
    so that a copied folder passes and an edited one does not.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise ModelError(f"{name} has no readable manifest.", value=str(folder), fix=f"rl2f models get {name} --force")
    recorded, found = manifest["files"], stamps(folder)
    bad = sorted(set(recorded) - set(found))
    for relative, noted in recorded.items():
        if relative in bad:
            continue
        same = found[relative] == [noted["size"], noted["mtime_ns"]]
        if same and not full:
            continue
        with open(folder / relative, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != noted["sha256"]:
                bad.append(relative)
    if bad:
        raise ModelError(
            f"The files of {name} are not the ones that were fetched: checksum mismatch in {', '.join(bad)}.",
            value=str(folder),
            fix=f"rl2f models get {name} --force",
        )
    return manifest


# -- what is accepted ------------------------------------------------------------------------------------------------
def check_folder(folder: Path, name: str | None = None) -> dict[str, Any]:
    """The parsed `config.json` of a folder that can be loaded without pickle or foreign code.

    Raises `ModelError` where it is missing, pickle-only, torn, not a causal language model, or has no chat template.
    """
    name = name or str(folder)
    if not folder.is_dir():
        raise ModelError("The model folder does not exist.", value=str(folder))
    config = read_json(folder / "config.json")
    weights = sorted(folder.glob("*.safetensors"))
    if config is None:
        if (folder / "adapter_config.json").exists():
            raise ModelError(
                f"{name} holds a LoRA adapter, not a model.", value=str(folder), fix="Name the base model instead."
            )
        raise ModelError(f"{name} has no readable config.json.", value=str(folder), fix="Name a model folder.")
    if not weights:
        refuse_pickle([path.name for path in folder.iterdir()], name)
    check_architecture(config, name)
    index = read_json(folder / "model.safetensors.index.json")
    shards = set((index or {}).get("weight_map", {}).values())
    if missing := sorted(shards - {path.name for path in weights}):
        raise ModelError(f"{name} is incomplete: {', '.join(missing)} missing.", value=str(folder))
    for path in weights:
        _check_whole(path)
    if not has_chat_template(folder):
        raise ModelError(
            f"{name} has no chat template, so dialogues cannot be rendered.",
            value=str(folder),
            fix="Use an instruction-tuned model, or add a chat_template.jinja to the folder.",
        )
    return config


def refuse_pickle(files: list[str], name: str) -> None:
    """Raise the `ModelError` for a model without safetensors, given its file names."""
    pickles = sorted(file for file in files if file.endswith((".bin", ".pt", ".pth", ".ckpt", ".pkl")))
    if pickles:
        raise ModelError(
            f"{name} has its weights only as pickle, which can run code when it is loaded, and is never read.",
            value=pickles,
            fix="Convert it to safetensors, or choose a model that has them.",
        )
    raise ModelError(f"{name} has no safetensors weights.", value=sorted(files)[:10])


def check_architecture(config: dict[str, Any], name: str) -> None:
    """Raise `ModelError` unless the config names a causal language model that transformers itself knows."""
    architectures = config.get("architectures") or []
    if not any(str(a).endswith(("ForCausalLM", "LMHeadModel")) for a in architectures):
        raise ModelError(
            f"{name} is not a causal language model, so it cannot write answers.",
            value=architectures,
            fix="Choose a model whose config.json names a …ForCausalLM architecture.",
        )


def _check_whole(path: Path) -> None:
    """A safetensors file is as long as its header says: 8 bytes of header length, JSON header, tensors."""
    size = path.stat().st_size
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, 100_000_000):
                raise ValueError("no header")
            header = json.loads(file.read(length))
        end = max((t["data_offsets"][1] for key, t in header.items() if key != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError("The safetensors file is torn or not one.", value=str(path), fix="Fetch it again.") from error
    if size != 8 + length + end:
        raise ModelError("The safetensors file is torn.", value=str(path), fix="Fetch it again.")


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer files carry a chat template."""
    if (folder / "chat_template.jinja").is_file() or (folder / "additional_chat_templates").is_dir():
        return True
    return any(
        (read_json(folder / f) or {}).get("chat_template") for f in ("tokenizer_config.json", "chat_template.json")
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars of transformers, which would write over ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
