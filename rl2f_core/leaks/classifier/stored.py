"""Files of a trained classifier: `detector.json`, and the adapter with the head in peft's format."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, ValidationError

from rl2f_core.errors import ConfigError, DataError
from rl2f_core.leaks.classifier.quality import QualityReport
from rl2f_core.leaks.classifier.rendering import FORMAT
from rl2f_core.types import FrozenModel, LeakType

DETECTOR = "detector.json"
CLASSES: tuple[LeakType | None, ...] = (None, *LeakType)
"""Meaning of the model's outputs; the first is no leak."""


class DetectorFile(FrozenModel):
    """Content of `detector.json`."""

    version: int = 1
    """Version of this schema."""
    name: str
    """E.g. `leaks/v3`."""
    rendering: int = FORMAT
    """Version of the input's text."""
    model: str
    """Name of the base model."""
    checksum: str
    """SHA-256 of the base model."""
    conversion: int = 1
    """Conversion of the built-in models at the training."""
    layers: int | None
    """Layers of the base model that are used; None for all."""
    max_tokens: int
    threshold: float
    """A hint with at least this probability is flagged."""
    classes: tuple[str, ...] = ("none", *LeakType)
    seed: int
    settings: dict[str, str | int | float | None]
    """Settings of the training."""
    data: dict[str, int]
    """Number of training examples by source and augmentation."""
    data_sha256: str
    """Hash of all training examples."""
    heldout_sha256: str
    """Hash of the held-out examples that the threshold was chosen on."""
    cpu_seconds: float
    report: QualityReport
    """Quality on the held-out examples."""
    left_out: dict[str, QualityReport] = Field(default_factory=dict)
    """Quality on examples that the training left out, e.g. `kind=encoded`."""


def read_detector(folder: Path) -> DetectorFile:
    """Read `detector.json`; raises `ConfigError` if the folder has none, `DataError` if it is invalid."""
    path = folder / DETECTOR
    try:
        stored = DetectorFile.model_validate_json(path.read_bytes())
    except OSError:
        raise ConfigError(
            "This folder contains no trained detector.", value=str(folder), fix="Train one: rl2f leaks train"
        ) from None
    except ValidationError as error:
        raise DataError(f"The detector's file is invalid: {error}", value=str(path)) from None
    if stored.rendering != FORMAT:
        raise DataError(
            f"The detector was trained with version {stored.rendering} of the input text, and this is {FORMAT}.",
            value=str(folder),
            fix="Train it again: rl2f leaks train",
        )
    return stored


def new_version(root: Path, name: str) -> Path:
    """Create and return the folder `ROOT/NAME/vN` with the next free number."""
    parent = root / name
    parent.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(p.name[1:]) for p in parent.glob("v*") if p.name[1:].isdigit()), default=0)
    while True:
        folder = parent / f"v{number}"
        try:
            os.mkdir(folder)
            return folder
        except FileExistsError:
            number += 1


def trained_detectors(root: Path) -> list[Path]:
    """Return the folders of the trained detectors below a folder, by name and version."""
    found = (path.parent for path in root.glob(f"*/v*/{DETECTOR}"))
    return sorted(found, key=lambda path: (path.parent.name, int(path.name[1:]) if path.name[1:].isdigit() else 0))
