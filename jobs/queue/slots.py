"""Slots: how many runs may execute at once on this machine, and on which device.

slots.cpu      concurrent runs on the CPU (default 1)
slots.cuda     `auto` (default), or device numbers such as `0,1`; empty for none. One run per device
slots.light    concurrent runs of kinds without a device, such as exports (default 2)
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jobs.db import settings
from jobs.db.engine import Database
from rl2f_core import registry
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Slots:
    """All slots of this machine."""

    cpu: int = 1
    cuda: tuple[str, ...] = ()
    light: int = 2
    remote: bool = False
    """Another executor starts the runs that need a device, and chooses the device at their start."""

    def device_of(self, config: BaseRun) -> str:
        """Return the slot class of a run: cpu, cuda or none; raises `ConfigError` if there is no such device."""
        if registry.get("run_kind", str(getattr(config, "kind", "train"))).light:
            return "none"
        device = getattr(config.model, "device", "auto")  # some kinds take the model from the run that they read
        if self.remote:
            return "cuda" if device == "cuda" else "cpu"
        if device == "cuda" and not self.cuda:
            raise ConfigError(
                "model.device: there is no CUDA device for runs here.",
                value=device,
                known=("auto", "cpu"),
                fix="Set model.device to auto, or name the devices in the setting slots.cuda.",
            )
        return "cuda" if self.cuda and device in ("cuda", "auto") else "cpu"


@dataclass
class SlotAllocation:
    """Slots in use."""

    slots: Slots
    used: Counter[str] = field(default_factory=Counter)
    devices: set[str] = field(default_factory=set)
    """Numbers of the CUDA devices in use."""

    def acquire(self, device: str) -> str | None:
        """Allocate a slot of a class; returns its name (`cpu`, `none`, `cuda:1`), or None if all are in use."""
        capacity = {"cpu": self.slots.cpu, "none": self.slots.light}.get(device, len(self.slots.cuda))
        free_devices = [number for number in self.slots.cuda if number not in self.devices]
        if self.used[device] >= capacity or (device == "cuda" and not free_devices):
            return None
        self.used[device] += 1
        if device != "cuda":
            return device
        self.devices.add(free_devices[0])
        return f"cuda:{free_devices[0]}"


def read_slots(db: Database) -> Slots:
    """Return the slots by the workspace's settings; raises `ConfigError` for a malformed setting."""
    cuda = settings.get(db, "slots.cuda").strip()
    return Slots(
        cpu=_read_count(db, "slots.cpu"),
        cuda=cuda_devices() if cuda == "auto" else tuple(filter(None, (d.strip() for d in cuda.split(",")))),
        light=_read_count(db, "slots.light"),
    )


def _read_count(db: Database, name: str) -> int:
    text = settings.get(db, name)
    if not text.isascii() or not text.isdigit():
        fix = f"Set it to e.g. {settings.DEFAULTS[name]}."
        raise ConfigError(f"The setting {name} is not a whole number.", value=text, fix=fix)
    return int(text)


@functools.cache
def cuda_devices() -> tuple[str, ...]:
    """Return the CUDA devices of this machine, from nvidia-smi, so that the server does not load torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(d for d in map(str.strip, visible.split(",")) if d and d != "-1")
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in result.stdout.splitlines() if line.strip().isdigit())


def free_slots(slots: Slots, active: Iterable[str]) -> SlotAllocation:
    """Return the allocation that results from the slots of the active runs."""
    allocation = SlotAllocation(slots)
    for name in active:
        if is_remote(name):
            continue
        allocation.used[slot_class(name)] += 1
        if name == "cuda":  # started by a version that did not store the device here: it may be any
            allocation.devices.update(slots.cuda)
        elif name.startswith("cuda:"):
            allocation.devices.add(name.removeprefix("cuda:"))
    return allocation


def is_remote(slot: str) -> bool:
    """Return whether a slot belongs to another executor."""
    return ":" in slot and not slot.startswith("cuda:")


def slot_class(slot: str) -> str:
    """Return the class of a slot (`cpu`, `cuda` or `none`) or of a slot class."""
    return "cuda" if slot.startswith("cuda:") else slot.rpartition(":")[2]


def slot_env(slots: Slots, name: str) -> Mapping[str, str]:
    """Return the environment variables that restrict a worker to its slot."""
    if is_remote(name):
        return {}
    if name.startswith("cuda:"):
        return {"CUDA_VISIBLE_DEVICES": name.removeprefix("cuda:")}
    variables = {"CUDA_VISIBLE_DEVICES": ""}
    if name == "cpu" and slots.cpu > 1 and "OMP_NUM_THREADS" not in os.environ:  # concurrent runs share the cores
        variables["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // slots.cpu))
    return variables
