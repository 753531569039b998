"""How many runs may be worked on at once, and where: so many on the processor, one on each CUDA device.

slots.cpu      runs at once on the processor (default 1)
slots.cuda     `auto` (default), or device numbers such as `0,1`; empty for none
slots.light    runs at once of kinds that need no device, such as exports (default 2)
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.database import Database
from jobs.store import settings
from rl2f_core import registry
from rl2f_core.config import BaseRun
from rl2f_core.errors import ConfigError

SLOT = "slot.json"
"""In the run's folder: which device its worker was given."""


@dataclass(frozen=True, slots=True)
class Slots:
    """What there is."""

    cpu: int = 1
    cuda: tuple[str, ...] = ()
    light: int = 2
    elsewhere: bool = False
    """Runs that need a device go to another place, which says at their start which one they get."""

    def device_of(self, config: BaseRun) -> str:
        """The slot class a run takes: cpu, cuda or none; raises `ConfigError` where there is no such device."""
        if getattr(registry.get("kind", str(getattr(config, "kind", "train"))), "light", False):
            return "none"
        wanted = getattr(config.model, "device", "auto")  # a kind may leave the model to the run that it reads
        if self.elsewhere:
            return "cuda" if wanted == "cuda" else "cpu"
        if wanted == "cuda" and not self.cuda:
            raise ConfigError(
                "model.device: there is no CUDA device for runs here.",
                value=wanted,
                known=("auto", "cpu"),
                fix="Set model.device to auto, or name the devices in the setting slots.cuda.",
            )
        return "cuda" if self.cuda and wanted in ("cuda", "auto") else "cpu"


@dataclass
class Free:
    """What of it is not taken."""

    slots: Slots
    used: Counter[str] = field(default_factory=Counter)
    devices: set[str] = field(default_factory=set)
    """CUDA devices that are taken, by number."""

    def take(self, device: str) -> str | None:
        """Take a slot of a class and return its name (`cpu`, `none`, `cuda:1`), or None where all are taken."""
        most = {"cpu": self.slots.cpu, "none": self.slots.light}.get(device, len(self.slots.cuda))
        if self.used[device] >= most:
            return None
        name = device
        if device == "cuda":
            name = f"cuda:{next(d for d in (*self.slots.cuda, '') if d not in self.devices)}"
            if name == "cuda:":
                return None
            self.devices.add(name.removeprefix("cuda:"))
        self.used[device] += 1
        return name


def read_slots(db: Database) -> Slots:
    """The slots by the studio's settings; raises `ConfigError` where one cannot be read."""
    cuda = settings.get(db, "slots.cuda", "auto").strip()
    return Slots(
        cpu=_count(db, "slots.cpu", 1),
        cuda=cuda_devices() if cuda == "auto" else tuple(filter(None, (d.strip() for d in cuda.split(",")))),
        light=_count(db, "slots.light", 2),
    )


def _count(db: Database, name: str, default: int) -> int:
    text = settings.get(db, name, str(default))
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"The setting {name} is no whole number.", value=text, fix=f"Set it to e.g. {default}.")
    return int(text)


@functools.cache
def cuda_devices() -> tuple[str, ...]:
    """The CUDA devices of this machine, asked of the driver's tool, so that the server need not load torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = tuple(d.strip() for d in visible.split(","))
        return tuple(d for d in named if d and d != "-1")
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True, stdin=subprocess.DEVNULL,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in said.splitlines() if line.strip().isdigit())


def free_slots(slots: Slots, active: Iterable[tuple[str, Path]]) -> Free:
    """What is left beside the runs that have a worker.

    Args:
        slots: What there is.
        active: The slot class and the folder of each run that has a worker.
    """
    free = Free(slots)
    for device, folder in active:
        name = read_slot(folder)
        if elsewhere(name):
            continue
        free.used[device] += 1
        if name.startswith("cuda:"):
            free.devices.add(name.removeprefix("cuda:"))
    return free


def elsewhere(slot: str) -> bool:
    """Whether a slot is none of this machine's."""
    return ":" in slot and not slot.startswith("cuda:")


def write_slot(folder: Path, name: str) -> None:
    """Note which slot a run was given."""
    (folder / SLOT).write_text(json.dumps({"device": name}))


def read_slot(folder: Path) -> str:
    """The slot a run was given, empty where it was given none."""
    try:
        data: Any = json.loads((folder / SLOT).read_text())
        return str(data["device"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def environment(slots: Slots, name: str) -> Mapping[str, str]:
    """Variables that keep a worker to its slot."""
    if elsewhere(name):
        return {}
    if name.startswith("cuda:"):
        return {"CUDA_VISIBLE_DEVICES": name.removeprefix("cuda:")}
    made = {"CUDA_VISIBLE_DEVICES": ""}
    if name == "cpu" and slots.cpu > 1 and "OMP_NUM_THREADS" not in os.environ:  # they share the cores
        made["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // slots.cpu))
    return made
