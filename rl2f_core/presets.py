"""The experiments that ship with the project, by name: one a file, or one a cell of a file with a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from rl2f_core.config import BaseRun, parse_config
from rl2f_core.errors import ConfigError
from rl2f_core.matrix import cells, is_matrix

FOLDER = Path(__file__).resolve().parent.parent / "data" / "configs"


@dataclass(frozen=True)
class Preset:
    """An experiment that ships with the project."""

    name: str
    """The file's name, or `file:cell`."""
    about: str
    """The comment at the top of its file."""
    path: Path
    text: str
    """Its YAML; of a file without a matrix, the file itself."""

    def config(self) -> BaseRun:
        """What it amounts to."""
        return parse_config(yaml.safe_load(self.text))


def presets() -> list[Preset]:
    """All of them, by file name, the cells of a matrix in its order."""
    return [preset for path in sorted(FOLDER.glob("*.yaml")) for preset in _of_file(path, path.stat().st_mtime_ns)]


def preset(name: str) -> Preset:
    """One by name; raises `ConfigError` naming those there are."""
    found = {held.name: held for held in presets()}
    if name not in found:
        raise ConfigError("There is no such preset.", value=name, known=list(found))
    return found[name]


@lru_cache(maxsize=128)
def _of_file(path: Path, changed: int) -> tuple[Preset, ...]:
    text = path.read_text(encoding="utf-8")
    about, data = _head(text), yaml.safe_load(text)
    if not is_matrix(data):
        return (Preset(path.stem, about, path, text),)
    return tuple(Preset(f"{path.stem}:{name}", about, path, _yaml(about, made)) for name, made in cells(data).items())


def _yaml(about: str, data: dict[str, Any]) -> str:
    return f"# {about}\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)}"


def _head(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").strip())
    return " ".join(lines)
