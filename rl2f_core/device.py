"""Where the model runs and in which number format, and how fast that device multiplies matrices."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

from rl2f_core.errors import ConfigError

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float16")


def resolve(device: str = "auto", dtype: str = "auto") -> tuple[torch.device, torch.dtype]:
    """The device and dtype to use.

    Args:
        device: auto (cuda, then mps, then cpu), or one of `DEVICES`.
        dtype: auto (bfloat16 where the device computes it natively, else float32), or one of `DTYPES`.

    Raises `ConfigError` where the device is not there, or the names are unknown.
    """
    import torch

    if device not in DEVICES or dtype not in DTYPES:
        wrong, known = (device, DEVICES) if device not in DEVICES else (dtype, DTYPES)
        raise ConfigError("Unknown device or dtype.", value=wrong, known=known)
    there = available()
    name = there[0] if device == "auto" else device
    if name not in there:
        raise ConfigError(
            "This device is not available.", value=device, known=there, fix="Set model.device to auto or a known one."
        )
    if dtype == "auto":
        dtype = "bfloat16" if native_bfloat16(name) else "float32"
    chosen: torch.dtype = getattr(torch, dtype)
    return torch.device(name), chosen


def available() -> list[str]:
    """The devices of this machine, best first; `cpu` is always the last."""
    import torch

    found = []
    if torch.cuda.is_available():
        found.append("cuda")
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


def native_bfloat16(device: str) -> bool:
    """Whether the device multiplies bfloat16 in hardware.

    A CPU without AVX512-BF16, AMX or Arm's BF16 emulates it, up to ten times slower than float32.
    """
    import torch

    if device == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device != "cpu":
        return False
    can = torch.cpu.get_capabilities()
    return any(can.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def matmul_ceiling(dtype: str = "float32", device: str = "cpu", seconds: float = 0.4) -> float:
    """The measured speed of a square matrix product in GFLOP/s (1e9 multiply-adds count as 2e9).

    Takes the best of several rounds of about `seconds` in all, after one to warm up.
    """
    import torch

    where, kind = resolve(device, dtype)
    n = 4096 if where.type == "cuda" else 1024
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(n, n, generator=generator).to(where, kind)
    b = torch.randn(n, n, generator=generator).to(where, kind)
    out = a @ b
    _wait(where)
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        _wait(where)
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() >= end:
            return 2 * n**3 / best / 1e9


def _wait(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()


def give_back(share: float = 0.5) -> bool:
    """Return what this process has freed to the system; whether it did.

    glibc keeps freed blocks below 32 MB for itself, between others that live on: steps of training and playing, whose
    tensors are of ever other sizes, then hold several times what they use.

    Args:
        share: Of the machine's memory; where more than that is free nothing is done, as taking it again costs time.
    """
    import psutil

    memory = psutil.virtual_memory()
    if memory.available > share * memory.total:
        return False
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # another C library
        return False


def describe() -> list[dict[str, Any]]:
    """One record for each device: name, memory in bytes, and whether bfloat16 is native."""
    import torch

    records: list[dict[str, Any]] = []
    for name in available():
        record: dict[str, Any] = {"device": name, "bfloat16": native_bfloat16(name)}
        if name == "cuda":
            for index in range(torch.cuda.device_count()):
                held = torch.cuda.get_device_properties(index)
                records.append({**record, "name": held.name, "memory": held.total_memory})
            continue
        if name == "cpu":
            record |= {"name": torch.cpu.get_capabilities().get("cpu_name", "CPU"), "threads": torch.get_num_threads()}
        records.append(record)
    return records
