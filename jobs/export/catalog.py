"""Finished exports below the workspace's `exports/`, and their downloadable files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from jobs.db.errors import NotFoundError
from jobs.workspace import Workspace
from rl2f_core.common.file_io import read_json
from rl2f_core.types import JsonObject

MANIFEST, CARD = "manifest.json", "README.md"
MAX_LISTED = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


class UnknownExportError(NotFoundError):
    """The export or its file does not exist."""


def listed(workspace: Workspace) -> list[JsonObject]:
    """Return the newest finished exports: manifests with `folder`, `path`, `bytes` and all `files` (name → bytes)."""
    exports = []
    for path in workspace.exports.iterdir() if workspace.exports.is_dir() else ():
        if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            manifest = read(path)
            if manifest is not None:
                exports.append(_describe(path, manifest))
    return sorted(exports, key=lambda export: -export["created"])[:MAX_LISTED]


def read(folder: Path) -> JsonObject | None:
    """Return the manifest of an export; None if it is missing or invalid."""
    data = read_json(folder / MANIFEST, folder)
    is_valid = isinstance(data.get("formats"), dict) and isinstance(data.get("created"), int | float)
    return data if is_valid else None


def _describe(path: Path, manifest: JsonObject) -> JsonObject:
    files = {name: facts["bytes"] for entry in manifest["formats"].values() for name, facts in entry["files"].items()}
    for name in (MANIFEST, CARD):
        if (path / name).is_file():
            files[name] = (path / name).stat().st_size
    return {**manifest, "folder": path.name, "path": str(path), "files": files, "bytes": sum(files.values())}


def file(workspace: Workspace, folder: str, name: str) -> Path:
    """Return the path of a finished export's dataset file, manifest or card.

    Raises `UnknownExportError` for all other names, including links and names with a path.
    """
    export_dir = _find(workspace, folder)
    manifest = read(export_dir) or {"formats": {}}
    known = [MANIFEST, CARD, *(file for entry in manifest["formats"].values() for file in entry["files"])]
    path = export_dir / name
    if name not in known or not _NAME.fullmatch(name) or path.is_symlink() or not path.is_file():
        raise UnknownExportError("The export has no such file.", value=name, known=known)
    return path


def remove(workspace: Workspace, folder: str) -> None:
    """Delete a finished export."""
    export_dir = _find(workspace, folder)
    removed = export_dir.with_name(f".{export_dir.name}.removed.tmp")
    shutil.rmtree(removed, ignore_errors=True)
    export_dir.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _find(workspace: Workspace, folder: str) -> Path:
    """Return the directory of a finished export."""
    export_dir = workspace.exports / folder
    if not _NAME.fullmatch(folder) or export_dir.is_symlink() or not (export_dir / MANIFEST).is_file():
        raise UnknownExportError(
            "There is no such export.",
            value=folder,
            known=[export["folder"] for export in listed(workspace)],
            fix="It may have been deleted; open the list of exports.",
        )
    return export_dir
