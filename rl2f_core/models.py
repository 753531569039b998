"""The model store: names to folders of safetensors that are complete, checked, and never hold a pickle.

A name is a built-in one, a local folder, or a hub id.  What is fetched is kept under `RL2F_HOME` (else the user's
cache folder) as `models/NAME`, with a `manifest.json` that holds source, version and the SHA-256 of every file.
A folder appears there whole or not at all: it is built in a sibling and renamed, under a lock.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl2f_core._model_files import (
    check_folder,
    check_manifest,
    hash_files,
    identity,
    read_json,
    read_manifest,
    stamps,
    write_manifest,
)
from rl2f_core.config import write_atomically
from rl2f_core.errors import DiskFullError, ModelError

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model that can be loaded."""

    path: Path
    """Folder with config, safetensors and tokenizer."""
    name: str
    """As the user named it."""
    checksum: str
    """SHA-256 over weights, tokenizer and chat template, in hex; equal folders have equal checksums."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of `rl2f models list`."""

    name: str
    description: str
    license: str
    path: Path | None
    """Where it lies, or None where it still has to be fetched."""
    bytes: int = 0
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A model that is known by name."""

    name: str
    description: str
    license: str
    build: Callable[[Path, Callable[[str], None]], dict[str, Any]]
    """Writes the model into an empty folder and returns what the manifest should say of its source."""
    needed_bytes: int = 0
    """Free disk that building takes, for a check before it starts."""


def home() -> Path:
    """The folder for caches: `RL2F_HOME`, else `rl2f` in the user's cache folder."""
    if named := os.environ.get("RL2F_HOME"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "~/.cache"
    return Path(base).expanduser() / "rl2f"


def built_in() -> dict[str, BuiltIn]:
    """The models known by name."""
    from rl2f_core import _model_fetch, _model_tiny

    entries = [
        BuiltIn(
            "smollm2-135m",
            "SmolLM2-135M-Instruct, a small chat model",
            "Apache-2.0",
            _model_fetch.build_smollm2,
            needed_bytes=1_000_000_000,
        ),
        BuiltIn(
            "tiny-random",
            "a random two-layer model with a real tokenizer, for tests",
            "Apache-2.0",
            lambda folder, say: _model_tiny.build(folder),
            needed_bytes=10_000_000,
        ),
    ]
    return {entry.name: entry for entry in entries}


def tiny_model(folder: str | Path, seed: int = 0) -> Path:
    """Build a tiny random Llama-type chat model in memory and save it to `folder`; the same seed, the same bytes.

    About 60 thousand float32 parameters, a byte-level BPE tokenizer of 384 tokens and a ChatML template.
    """
    from rl2f_core import _model_tiny

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _model_tiny.build(folder, seed)
    return folder


# -- looking up ------------------------------------------------------------------------------------------------------
def list_models() -> list[ModelEntry]:
    """Built-in models, fetched or not, then whatever else lies in the cache."""
    entries = []
    known = built_in()
    for entry in known.values():
        entries.append(_entry(_cached(entry.name), entry.name, entry.description, entry.license))
    for folder in sorted((home() / "models").glob("*--*")):
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


def get_model(
    name: str, *, verify: bool = False, force: bool = False, say: Callable[[str], None] = lambda text: None
) -> ModelFolder:
    """The folder of a model, fetched first where it is not there yet.

    Args:
        name: A built-in name, a local folder, or a hub id such as `org/model`.
        verify: Read every byte and compare with the recorded SHA-256, instead of size and time of change alone.
        force: Fetch again although it is there.
        say: Receives one line for each step of a fetch.

    Raises:
        ModelError: missing, incomplete, changed, pickle-only, not a causal language model, or without chat template.
        DiskFullError: no room; nothing was left half-written.
    """
    known = built_in()
    if name in known:
        return obtain(known[name], verify=verify, force=force, say=say)
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
    from rl2f_core import _model_fetch

    entry = BuiltIn(name, "from the hub", "unknown", lambda folder, say: _model_fetch.build_hub(name, folder, say))
    return obtain(entry, verify=verify, force=force, say=say)


def obtain(
    entry: BuiltIn, *, verify: bool = False, force: bool = False, say: Callable[[str], None] = lambda text: None
) -> ModelFolder:
    """The cached folder of `entry`, built first where it is missing. Two processes at once build it once."""
    folder = _cached(entry.name)
    if force or read_manifest(folder) is None:
        with _locked(folder):
            if force or read_manifest(folder) is None:  # another process may have finished it meanwhile
                _build(entry, folder, say)
    manifest = check_manifest(folder, entry.name, full=verify)
    return ModelFolder(folder, entry.name, manifest["checksum"])


def _cached(name: str) -> Path:
    return home() / "models" / name.replace("/", "--")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        yield


def _build(entry: BuiltIn, folder: Path, say: Callable[[str], None]) -> None:
    for stale in folder.parent.glob(f".{folder.name}.*.part"):  # left by a killed process: we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < entry.needed_bytes:
        raise DiskFullError(
            f"Fetching {entry.name} needs {entry.needed_bytes / 1e9:.1f} GB of disk, {free / 1e9:.1f} GB are free.",
            value=str(folder.parent),
            fix="Free space, or set RL2F_HOME to a folder on another disk.",
        )
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        source = entry.build(part, say)
        check_folder(part, entry.name)
        for path in (part, *part.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        write_manifest(part, {"name": entry.name, "license": entry.license, **source})
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(part, folder)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFullError("The disk is full.", value=str(folder.parent), fix="Free space, then retry.") from error
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _local(folder: Path, name: str, verify: bool) -> ModelFolder:
    """A folder of the user's own. Its hashes are kept in our cache, since the folder may be read-only."""
    check_folder(folder, name)
    if read_manifest(folder) is not None:
        return ModelFolder(folder, name, check_manifest(folder, name, full=verify)["checksum"])
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]
    noted = home() / "local" / f"{digest}.json"
    known = read_json(noted)
    if known is None or verify or known.get("stamps") != stamps(folder):
        known = {"path": str(folder.resolve()), "stamps": stamps(folder), "checksum": identity(hash_files(folder))}
        write_atomically(noted, json.dumps(known, indent=1))
    return ModelFolder(folder, name, known["checksum"])
