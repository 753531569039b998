"""Uploaded files of own questions in the workspace's folder `data/`."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from pathlib import Path

from jobs.workspace import Workspace
from rl2f_core.common.file_io import write_atomically
from rl2f_core.environments.data_files import SUFFIXES
from rl2f_core.environments.dataset.summary import read_header
from rl2f_core.errors import DataError

MAX_FILE_BYTES = 20 * 2**20
"""Maximum size of an uploaded file."""
MAX_UNPACKED_BYTES = 10 * MAX_FILE_BYTES
"""Maximum decompressed size of an uploaded .gz file."""
MAX_STEM = 60


def stored_files(workspace: Workspace) -> list[Path]:
    """Return the uploaded files, by name; links are left out."""
    found = workspace.data.iterdir() if workspace.data.is_dir() else ()
    return sorted(path for path in found if path.name.endswith(SUFFIXES) and path.is_file() and not path.is_symlink())


def store(workspace: Workspace, source: Path) -> Path:
    """Copy a file completely, under its name and a hash of its content, and return the new path.

    The same content gets the same path, and another content never replaces the file of an earlier run. Raises
    `DataError` for another ending, a larger file, or one that cannot be read.
    """
    name, size = source.name, source.stat().st_size
    suffix = next((ending for ending in sorted(SUFFIXES, key=len, reverse=True) if name.lower().endswith(ending)), None)
    if suffix is None:
        raise DataError("Files of this kind cannot be read.", value=name, known=SUFFIXES)
    if size > MAX_FILE_BYTES:
        raise DataError(
            f"The file has {size / 2**20:.1f} MiB; an upload has at most {MAX_FILE_BYTES / 2**20:g} MiB.",
            fix="Name the file in the YAML of a run on the command line.",
        )
    if suffix.endswith(".gz"):
        _check_unpacked_size(source)
    read_header(source)
    content = source.read_bytes()
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", name[: -len(suffix)])[:MAX_STEM].strip("-") or "data"
    path = workspace.data / f"{stem}-{hashlib.sha256(content).hexdigest()[:8]}{suffix}"
    if not path.is_file():
        write_atomically(path, content)
    return path


def _check_unpacked_size(path: Path) -> None:
    """Raise `DataError` if a .gz file is damaged, or larger than `MAX_UNPACKED_BYTES` when it is decompressed."""
    size = 0
    try:
        with gzip.open(path) as file:
            while size <= MAX_UNPACKED_BYTES and (part := file.read(2**20)):
                size += len(part)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"The file cannot be read: {error}.", value=path.name) from error
    if size > MAX_UNPACKED_BYTES:
        raise DataError(f"The file has more than {MAX_UNPACKED_BYTES / 2**20:g} MiB when it is decompressed.",
                        value=path.name, fix="Upload a smaller file.")  # fmt: skip
