"""Publish a folder of files with one rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from rl2f_core.common.file_io import disk_is_full
from rl2f_core.errors import DiskFullError, RunError


@contextmanager
def new_folder(out: Path, replace: bool = False) -> Iterator[Path]:
    """Yield an empty hidden directory beside `out`; at the end of the context, rename it to `out`.

    After an error, `out` is unchanged and no partial files remain.

    Args:
        out: The directory to create; missing parents are created.
        replace: Replace an earlier export in `out`, once the new one is complete.

    Raises `RunError` if `out` contains something else, and `DiskFullError`.
    """
    can_replace = replace and (out / "manifest.json").is_file()
    if out.exists() and not can_replace and (not out.is_dir() or any(out.iterdir())):
        raise RunError("The folder for the export is not empty.", value=str(out), fix="Name another folder.")
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_partial(out)
    scratch = out.parent / f".{out.name}.{os.getpid()}.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir()
        yield scratch
        _publish(scratch, out)
    except OSError as error:
        if disk_is_full(error):
            raise DiskFullError("The disk is full.", value=str(out), fix="Free space, then export again.") from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_partial(out: Path) -> None:
    """Remove the scratch directories of killed exports to the same target."""
    for scratch in out.parent.glob(f".{out.name}.*.tmp"):
        pid = scratch.name.split(".")[-2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(scratch, ignore_errors=True)


def _publish(scratch: Path, out: Path) -> None:
    old = out.parent / f".{out.name}.old.{os.getpid()}.tmp"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.rename(out, old)
    os.rename(scratch, out)
    shutil.rmtree(old, ignore_errors=True)
