"""Device and dtype of a model, the matrix speed of a device, and its memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rl2f_core.errors import ConfigError
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    import numpy as np
    import torch

DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float16")


def resolve_device(device: str = "auto", dtype: str = "auto") -> tuple[torch.device, torch.dtype]:
    """Return the device and dtype to use.

    Args:
        device: auto (cuda, then mps, then cpu), or one of `DEVICES`.
        dtype: auto (bfloat16 if the device supports it natively, otherwise float32), or one of `DTYPES`.

    Raises `ConfigError` if a name is unknown or the device is not available.
    """
    import torch

    for value, known in ((device, DEVICES), (dtype, DTYPES)):
        if value not in known:
            raise ConfigError("Unknown device or dtype.", value=value, known=known)
    available = available_devices()
    name = available[0] if device == "auto" else device
    if name not in available:
        raise ConfigError("This device is not available.", value=device, known=available, fix="Set model.device: auto.")
    if dtype == "auto":
        dtype = "bfloat16" if has_native_bf16(name) else "float32"
    return torch.device(name), getattr(torch, dtype)


def use_idle_cores(device: torch.device, max_threads: int = 0) -> int:
    """Use only the idle CPU cores, because threads on a busy core slow each other down; measures for 50 ms.

    Args:
        device: Device of the model; only a CPU changes anything.
        max_threads: Maximum number of threads; 0 is torch's current number. Returned for the next call.
    """
    import psutil
    import torch

    max_threads = max_threads or torch.get_num_threads()
    if device.type == "cpu":
        cores = psutil.cpu_count() or 1
        busy = psutil.cpu_percent(interval=0.05) / 100 * cores
        torch.set_num_threads(max(1, min(max_threads, round(cores - busy))))
    return max_threads


def available_devices() -> list[str]:
    """List the devices of this machine, fastest first; the last is always `cpu`."""
    import torch

    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [name for name, available in usable.items() if available]


def has_native_bf16(device: str) -> bool:
    """Whether the device supports bfloat16 in hardware; a CPU that emulates it is up to ten times slower."""
    import torch

    if device == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    if device != "cpu":
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))


def matmul_ceiling(dtype: str = "float32", device: str = "cpu", seconds: float = 0.4) -> float:
    """Measure the speed of a square matrix product in GFLOP/s (a multiply-add counts as 2).

    Returns the best of several products within `seconds`, after one warm-up.
    """
    import torch

    resolved, number_type = resolve_device(device, dtype)
    n = 4096 if resolved.type == "cuda" else 1024
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(n, n, generator=generator).to(resolved, number_type)
    b = torch.randn(n, n, generator=generator).to(resolved, number_type)
    out = a @ b
    return 2 * n**3 / best_seconds(lambda: torch.mm(a, b, out=out), resolved, seconds) / 1e9


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return arrays of one dtype as tensors; on a GPU by one copy, for which the host does not wait.

    On a CPU the tensors share the memory of contiguous arrays.
    """
    import numpy as np
    import torch

    if device.type == "cpu":
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    flat, is_cuda = torch.from_numpy(np.concatenate([array.ravel() for array in arrays])), device.type == "cuda"
    flat = (flat.pin_memory() if is_cuda else flat).to(device, non_blocking=is_cuda)
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall-clock seconds of some work on a device."""
    import torch

    synchronize = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type, lambda: None)
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def best_seconds(work: Callable[[], object], device: torch.device, limit: float) -> float:
    """Return the seconds of the fastest repetition of some work; repeats it for `limit` seconds, at least once."""
    best, end = math.inf, time.perf_counter() + limit
    while math.isinf(best) or time.perf_counter() < end:
        best = min(best, seconds_of(work, device))
    return best


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that CPU or GPU memory is exhausted."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    phrases = ("can't allocate memory", "not enough memory", "out of memory", "cannot allocate memory")
    return isinstance(error, RuntimeError | OSError) and any(phrase in text for phrase in phrases)


def free_cached() -> None:
    """Free unreachable tensors, and return the unused memory of PyTorch to the GPU."""
    gc.collect()
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def trim_memory(free_fraction: float = 0.5) -> bool:
    """Return freed memory of this process to the system; whether any was returned.

    glibc keeps freed blocks below 32 MB. With tensors of changing sizes, a process then holds several times the
    memory that it uses.

    Args:
        free_fraction: Do nothing if more than this fraction of the machine's memory is available.
    """
    import psutil

    memory = psutil.virtual_memory()
    if memory.available > free_fraction * memory.total:
        return False
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError, TypeError):  # another C library
        return False


def limit_arenas() -> None:
    """Let the threads of this process share two arenas of glibc, which return freed memory to the system.

    With an arena for each thread, a server that answered thousands of requests holds some 100 MB more. To be called
    before threads start.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(-8, 2)  # M_ARENA_MAX
        libc.mallopt(-1, 128 * 1024)  # M_TRIM_THRESHOLD, which grows to 64 MB otherwise


def describe_devices() -> list[JsonObject]:
    """Describe each device: name, memory in bytes, and native bfloat16."""
    import torch

    records: list[JsonObject] = []
    for name in available_devices():
        record: JsonObject = {"device": name, "bfloat16": has_native_bf16(name)}
        if name == "cuda":
            for index in range(torch.cuda.device_count()):
                properties = torch.cuda.get_device_properties(index)
                records.append({**record, "name": properties.name, "memory": properties.total_memory})
            continue
        if name == "cpu":
            record |= {"name": torch.cpu.get_capabilities().get("cpu_name", "CPU"), "threads": torch.get_num_threads()}
        records.append(record)
    return records
