"""Memory check before a model is loaded, and the memory limit of a process."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from rl2f_core.errors import ModelError

BYTES_PER_PARAM = {"float32": 4, "bfloat16": 2, "float16": 2}
OVERHEAD_FACTOR = 1.2
"""Memory of loading and of a first response, relative to the weights."""


def weight_count(folder: Path) -> int:
    """Return the number of parameters in a folder's safetensors files, from their headers."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        total += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return total


def needed_bytes(folder: Path, dtype: str) -> int:
    """Return the memory that a model needs in `dtype`."""
    return int(weight_count(folder) * BYTES_PER_PARAM[dtype] * OVERHEAD_FACTOR)


def free_bytes(device: str) -> int:
    """Return the free memory of a device in bytes."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    import psutil

    return int(psutil.virtual_memory().available)


def ensure_memory(folder: Path, name: str, device: str, dtype: str, reserve: int) -> None:
    """Raise `ModelError` unless a model leaves `reserve` bytes free."""
    needed, free = needed_bytes(folder, dtype), free_bytes(device)
    if needed + reserve > free:
        where = "GPU memory" if device == "cuda" else "memory"
        raise ModelError(
            f"There is not enough free {where} to load {name}: it needs {_gb(needed)}, {_gb(free)} are free, "
            f"and {_gb(reserve)} must stay free.",
            fix="Wait until a run ends, stop one, or choose a smaller model.",
        )


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def limit_process(limit: int) -> None:
    """Limit the memory of this process to `limit` bytes; 0 is no limit."""
    if limit and sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
