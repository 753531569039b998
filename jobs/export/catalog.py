"""Finished exports below the workspace's `exports/`: what there is, and which files of it may be handed out."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from jobs.db.errors import NotFoundError
from jobs.workspace import Workspace

MANIFEST, CARD = "manifest.json", "README.md"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


class UnknownExportError(NotFoundError):
    """There is no such export, or no such file in it."""


def listed(workspace: Workspace, limit: int = 100) -> list[dict[str, Any]]:
    """The newest finished exports, each its manifest with `folder`, `path`, `bytes` and all `files` (name → bytes)."""
    found = []
    for path in workspace.exports.iterdir() if workspace.exports.is_dir() else ():
        if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            manifest = read(path)
            if manifest is not None:
                found.append(_described(path, manifest))
    return sorted(found, key=lambda each: -each["created"])[:limit]


def read(folder: Path) -> dict[str, Any] | None:
    """The manifest of an export, or None where the folder holds none that can be read."""
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return data if isinstance(data["formats"], dict) and float(data["created"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _described(path: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    files = {name: facts["bytes"] for entry in manifest["formats"].values() for name, facts in entry["files"].items()}
    for name in (MANIFEST, CARD):
        if (path / name).is_file():
            files[name] = (path / name).stat().st_size
    return {**manifest, "folder": path.name, "path": str(path), "files": files, "bytes": sum(files.values())}


def file(workspace: Workspace, folder: str, name: str) -> Path:
    """A file of a finished export that its manifest names, or manifest and card themselves.

    Raises `UnknownExportError` for anything else, links and names with a path in them included.
    """
    place = _place(workspace, folder)
    manifest = read(place) or {"formats": {}}
    known = [MANIFEST, CARD, *(each for entry in manifest["formats"].values() for each in entry["files"])]
    path = place / name
    if name not in known or not _NAME.fullmatch(name) or path.is_symlink() or not path.is_file():
        raise UnknownExportError("The export has no such file.", value=name, known=known)
    return path


def remove(workspace: Workspace, folder: str) -> None:
    """Delete a finished export."""
    place = _place(workspace, folder)
    doomed = place.with_name(f".{place.name}.removed.tmp")
    shutil.rmtree(doomed, ignore_errors=True)
    place.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _place(workspace: Workspace, folder: str) -> Path:
    """The folder of a finished export."""
    place = workspace.exports / folder
    if not _NAME.fullmatch(folder) or place.is_symlink() or not (place / MANIFEST).is_file():
        raise UnknownExportError(
            "There is no such export.", value=folder, fix="It may have been deleted; open the list of exports."
        )
    return place
