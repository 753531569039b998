"""Presets: the shipped experiments, one per file or per cell of a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from rl2f_core.common.paths import CONFIGS
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.loading import parse_yaml, to_yaml
from rl2f_core.config.matrix import cells, is_matrix
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError, nearest_names


@dataclass(frozen=True)
class Preset:
    """A shipped experiment."""

    name: str
    """The file's name, or `file:cell`."""
    about: str
    """Comment at the top of the file."""
    path: Path
    text: str
    """Its YAML text; without a matrix, the content of the file."""

    def config(self) -> BaseRun:
        """Parse the configuration."""
        return parse_yaml(self.text)


def presets() -> list[Preset]:
    """List all presets by file name; the cells of a matrix in order."""
    return [
        preset
        for path in sorted(CONFIGS.rglob("*.yaml"), key=lambda path: path.name)
        if path.parent.name not in ("launch", "studies")
        for preset in _of_file(path, path.stat().st_mtime_ns)
    ]


def studies() -> list[Preset]:
    """List the shipped studies by file name; each has the text of its file."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((CONFIGS / "studies").glob("*.yaml"))}
    return [Preset(path.stem, _about(text), path, text) for path, text in texts.items()]


def preset(name: str) -> Preset:
    """Return a preset by name. Raises `ConfigError` with the nearest names."""
    known = {item.name: item for item in presets()}
    if name not in known:
        nearest = nearest_names(name, known)
        text = f"Choose another one, e.g. {nearest[0]}; the page New run lists all {len(known)}." if nearest else None
        raise ConfigError("There is no such preset.", value=name, known=nearest, fix=text)
    return known[name]


@lru_cache(maxsize=128)
def _of_file(path: Path, changed: int) -> tuple[Preset, ...]:
    text = path.read_text(encoding="utf-8")
    about, data = _about(text), load_yaml(text)
    if not is_matrix(data):
        return (Preset(path.stem, about, path, text),)
    return tuple(
        Preset(f"{path.stem}:{name}", about, path, f"# {about}\n{to_yaml(config)}")
        for name, config in cells(data).items()
    )


def _about(text: str) -> str:
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.lstrip("# ").strip() for line in comment)
