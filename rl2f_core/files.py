"""Files that are whole or absent, and a disk without room."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from rl2f_core.errors import DataError, DiskFullError


def disk_is_full(error: BaseException) -> bool:
    """Whether there was no room for what was written: no space, or a quota or limit on the size of files."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return getattr(error, "errno", None) in full or any(f"os error {number})" in str(error) for number in full)


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write a whole file or nothing: a temporary sibling, flushed, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
            raise DiskFullError("The disk is full.", value=str(path), fix="Free space, then resume the run.") from error
        raise DataError(f"The file cannot be written: {error.strerror}.", value=str(path)) from error
