"""Whether a model fits into the memory that is free, and how to tell that it did not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rl2f_core.errors import ModelError

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
OVERHEAD = 1.2
"""Weights, and what reading them and a first answer take beside them."""


def weight_count(folder: Path) -> int:
    """Numbers in all safetensors files of a folder, from their headers."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                size = 1
                for n in tensor["shape"]:
                    size *= n
                total += size
    return total


def needed_bytes(folder: Path, dtype: str) -> int:
    """Bytes that a model takes when it is loaded in `dtype`."""
    return int(weight_count(folder) * WIDTH[dtype] * OVERHEAD)


def free_bytes(device: str) -> int:
    """Bytes that may be taken on a device now."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    import psutil

    return int(psutil.virtual_memory().available)


def check_room(folder: Path, name: str, device: str, dtype: str, reserve: int) -> None:
    """Raise `ModelError` where a model would not leave `reserve` bytes free."""
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
    """From now on this process cannot take more than `limit` bytes: an allocation beyond them fails. 0 is no limit."""
    if limit and sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or not."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    told = ("can't allocate memory", "not enough memory", "out of memory", "cannot allocate memory")
    return isinstance(error, RuntimeError | OSError) and any(words in text for words in told)


def give_back(backend: Any) -> None:
    """Return what an aborted answer held."""
    import gc

    if backend is not None:
        backend.forget()
    gc.collect()
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()
