"""Atomic file writes, tolerant reads, checksums, and detection of a full disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import threading
from pathlib import Path

from rl2f_core.errors import DataError, DiskFullError
from rl2f_core.types import JsonObject


def disk_is_full(error: BaseException) -> bool:
    """Whether a write failed for lack of space, or by a quota or a limit on file size."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return getattr(error, "errno", None) in full or any(f"os error {number})" in str(error) for number in full)


def disk_full_error(path: Path) -> DiskFullError:
    """Return the error for a run that cannot write to `path`."""
    return DiskFullError("The disk is full.", value=str(path), fix="Free space, then resume the run.")


def checked_path(folder: Path, name: str = "") -> Path:
    """Return a file or folder of a run directory.

    Raises `DataError` if it is or has a link that leaves the directory, or a named pipe, which would block a reader.

    Args:
        folder: The run directory, which may be a link.
        name: Relative path of the file or folder; empty for the whole directory.
    """
    root, path = os.path.realpath(folder), folder / name

    def leaves(file: Path) -> bool:
        real = os.path.realpath(file)  # unlike `resolve`, without an error for circular links
        return real != root and not real.startswith(root + os.sep)

    found = [path, *(Path(at, entry) for at, folders, files in os.walk(path) for entry in (*folders, *files))]
    for file in found:
        if (file.is_symlink() or file == path) and leaves(file):
            raise DataError(
                "A symbolic link leads out of the run directory.",
                value=str(file),
                fix="Replace it by a copy of the file; only the directory as a whole can be a link.",
            )
        if file.is_fifo():
            raise DataError("The run directory contains a named pipe.", value=str(file), fix="Remove it.")
    return path


def read_json(path: Path, folder: Path | None = None) -> JsonObject:
    """Return the JSON object of a file; empty if the file is missing, damaged, or a link that leaves `folder`."""
    try:
        data = json.loads((checked_path(folder, path.name) if folder else path).read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


class RepeatedKeyError(ValueError):
    """A JSON object has a key twice, so that one of the values would be lost."""


def unique_keys(pairs: list[tuple[str, object]]) -> JsonObject:
    """Return a JSON object from its pairs (`object_pairs_hook`). Raises `RepeatedKeyError`."""
    result: JsonObject = {}
    for key, value in pairs:
        if key in result:
            raise RepeatedKeyError(f"has the key {key!r} twice")
        result[key] = value
    return result


def sha256(path: Path) -> str:
    """Return the hexadecimal digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def apply_umask(folder: Path) -> None:
    """Give all files in a folder the mode of new files: safetensors writes files that only their owner can read."""
    probe = folder / f".mode.{os.getpid()}.{threading.get_ident()}.tmp"
    probe.touch()  # `os.umask` cannot be read without setting it
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write a complete file or nothing: a temporary sibling of this thread, flushed, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if disk_is_full(error):
            raise disk_full_error(path) from error
        raise DataError(f"The file cannot be written: {error.strerror}.", value=str(path)) from error
