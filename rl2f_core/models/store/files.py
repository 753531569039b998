"""Checks of a model folder, and the manifest with its checksums. Loads no torch."""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatch
from pathlib import Path

from safetensors import SafetensorError, safe_open

from rl2f_core.common.file_io import read_json, sha256, write_atomically
from rl2f_core.errors import ModelError, rl2f_command
from rl2f_core.types import JsonObject

MANIFEST = "manifest.json"
SCHEMA = 1
_IDENTITY = ("*.safetensors", "tokenizer.json", "chat_template.jinja")


# -- manifests -------------------------------------------------------------------------------------------------------
def _files(folder: Path) -> list[Path]:
    """List all files below `folder` but the manifest and the hub library's `.cache`."""
    cache = folder / ".cache"
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST and cache not in p.parents)


def stamps(folder: Path) -> dict[str, list[int]]:
    """Return size in bytes and modification time in ns of all files, by relative path."""
    stats = {path.relative_to(folder).as_posix(): path.stat() for path in _files(folder)}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of all files, by relative path."""
    return {path.relative_to(folder).as_posix(): sha256(path) for path in _files(folder)}


def weight_hashes(folder: Path) -> set[str]:
    """Return the SHA-256 of the safetensors files of a folder, from its manifest if there is one."""
    recorded = (read_manifest(folder) or {}).get("files", {})
    names = [path.name for path in folder.glob("*.safetensors")]
    return {recorded[name]["sha256"] if name in recorded else sha256(folder / name) for name in names}


def identity(hashes: dict[str, str]) -> str:
    """Combine the hashes of weights, tokenizer and chat template into one checksum."""
    lines = [
        f"{digest}  {name}\n" for name, digest in sorted(hashes.items()) if any(fnmatch(name, p) for p in _IDENTITY)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write_manifest(folder: Path, source: JsonObject) -> JsonObject:
    """Hash all files and write `manifest.json`."""
    hashes = hash_files(folder)
    files = {
        name: {"size": size, "mtime_ns": mtime, "sha256": hashes[name]}
        for name, (size, mtime) in stamps(folder).items()
    }
    manifest = {"schema": SCHEMA, **source, "checksum": identity(hashes), "files": files}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1))
    return manifest


def read_manifest(folder: Path) -> JsonObject | None:
    """Read the manifest; None if it is missing or invalid."""
    manifest = read_json(folder / MANIFEST)
    return manifest if all(manifest.get(k) for k in ("name", "checksum", "files")) else None


def check_manifest(folder: Path, name: str, full: bool) -> JsonObject:
    """Check the files and return the manifest. Raises `ModelError` naming changed files.

    Unless `full`, a file with the recorded size and modification time counts as unchanged; others are hashed, so a
    copied folder is valid.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise ModelError(
            f"{name} has no readable manifest.", value=str(folder), fix=rl2f_command("models", "get", name, "--force")
        )
    recorded, current = manifest["files"], stamps(folder)
    bad = sorted(set(recorded) - set(current))
    for relative, entry in recorded.items():
        unchanged = not full and current.get(relative) == [entry["size"], entry["mtime_ns"]]
        if relative in current and not unchanged and sha256(folder / relative) != entry["sha256"]:
            bad.append(relative)
    if bad:
        raise ModelError(
            f"The files of {name} have changed since the download: checksum mismatch in {', '.join(bad)}.",
            value=str(folder),
            fix=rl2f_command("models", "get", name, "--force"),
        )
    return manifest


# -- model folders ---------------------------------------------------------------------------------------------------
def check_folder(folder: Path, name: str | None = None) -> JsonObject:
    """Check a model folder and return its `config.json`.

    Raises `ModelError` if it is missing, pickle-only, incomplete, no causal language model, or has no chat template.
    """
    name = name or str(folder)
    if not folder.is_dir():
        raise ModelError("The model folder does not exist.", value=str(folder))
    config = read_json(folder / "config.json")
    weights = sorted(folder.glob("*.safetensors"))
    if not config:
        if (folder / "adapter_config.json").exists():
            raise ModelError(
                f"{name} contains a LoRA adapter, not a model.", value=str(folder), fix="Name the base model instead."
            )
        raise ModelError(f"{name} has no readable config.json.", value=str(folder), fix="Name a model folder.")
    if not weights:
        refuse_pickle([path.name for path in folder.iterdir()], name)
    check_architecture(config, name)
    index = read_json(folder / "model.safetensors.index.json")
    shards = set(index.get("weight_map", {}).values())
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


def check_architecture(config: JsonObject, name: str) -> None:
    """Raise `ModelError` unless the config names a causal language model."""
    architectures = config.get("architectures") or []
    if not any(str(a).endswith(("ForCausalLM", "LMHeadModel")) for a in architectures):
        raise ModelError(
            f"{name} is not a causal language model, so it cannot write answers.",
            value=architectures,
            fix="Choose a model whose config.json names a …ForCausalLM architecture.",
        )


def _check_whole(path: Path) -> None:
    """Raise `ModelError` if a safetensors file is not as long as its header requires."""
    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        raise ModelError(
            "The safetensors file is incomplete or invalid.", value=str(path), fix="Download it again."
        ) from error


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer has a chat template."""
    if (folder / "chat_template.jinja").is_file() or (folder / "additional_chat_templates").is_dir():
        return True
    return any(read_json(folder / f).get("chat_template") for f in ("tokenizer_config.json", "chat_template.json"))
