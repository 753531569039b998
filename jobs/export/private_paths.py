"""Folders to publish: written as a whole, without paths of this machine."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from jobs.export.publish import new_folder
from rl2f_core.common.file_io import write_atomically
from rl2f_core.common.paths import ROOT
from rl2f_core.errors import DataError


def machine_paths(run: Path) -> re.Pattern[bytes]:
    """Return a pattern for paths of this machine: of the run, the user, and the working directories."""
    paths = {
        run.absolute(),
        run.resolve(),
        Path.home(),
        Path.cwd(),
        Path(tempfile.gettempdir()),
        Path(sys.prefix),
        ROOT,
    }
    texts = sorted((str(path) for path in paths if len(path.parts) > 1), key=len, reverse=True)
    return re.compile(rb"(?<![\w.])(?:" + b"|".join(re.escape(t.encode()) for t in texts) + rb")(?![\w-])")


def check_private(name: str, data: bytes, private: re.Pattern[bytes]) -> None:
    """Raise `DataError` if the data of a file contain a path that matches."""
    if match := private.search(data):
        raise DataError("A path of this machine would remain.", value=f"{name}: {match[0].decode(errors='replace')}")


def without_folders(node: object) -> object:
    """Return the data of a configuration with the last component of each absolute path."""
    if isinstance(node, dict):
        return {key: without_folders(value) for key, value in node.items()}
    if isinstance(node, list):
        return [without_folders(value) for value in node]
    return Path(node).name if isinstance(node, str) and Path(node).is_absolute() else node


def write_folder(target: Path, files: dict[str, bytes]) -> None:
    """Write the files of a new folder, all or none."""
    with new_folder(target) as scratch:
        for name, data in files.items():
            write_atomically(scratch / name, data)
