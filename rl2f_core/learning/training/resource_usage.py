"""CPU, memory and GPU use of a training step: the metrics `system/…`.

Like the metrics `time/…`, they depend on the machine, and no later step reads them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import psutil

GB = 1e9


class ProcessUsage(NamedTuple):
    """CPU time and memory of a process and its children."""

    cpu_seconds: float
    """User and system time since the start, with that of ended children."""
    resident_bytes: int
    """Sum over the processes; shared pages count once per process."""


def process_usage() -> ProcessUsage:
    """Return the usage of this process and its running children."""
    this = psutil.Process()
    cpu_seconds, resident = 0.0, 0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended
            cpu_seconds += sum(process.cpu_times()[:4])  # user, system, and both of ended children
            resident += process.memory_info().rss
    return ProcessUsage(cpu_seconds, resident)


class Gpu(Protocol):
    """A GPU that this process uses."""

    def reset_peak(self) -> None:
        """Start a new measurement of the peak memory."""

    def peak_bytes(self) -> int:
        """Return the peak of the memory allocated by PyTorch in this process since the last reset."""

    def utilization(self) -> float | None:
        """Return the fraction of the last moments in which the GPU computed; None if NVML is missing."""


class CudaGpu:
    """The current CUDA device."""

    def reset_peak(self) -> None:
        """See `Gpu`."""
        import torch

        torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        """See `Gpu`."""
        import torch

        return torch.cuda.max_memory_allocated()

    def utilization(self) -> float | None:
        """See `Gpu`."""
        import torch

        try:
            return torch.cuda.utilization() / 100
        except (ModuleNotFoundError, RuntimeError):
            return None


def current_gpu() -> Gpu | None:
    """Return the CUDA device of this process; None if it has not used one."""
    import torch

    return CudaGpu() if torch.cuda.is_initialized() else None


class ResourceUsage:
    """Measures one step, from its construction to `metrics`.

    Args:
        clock: Returns seconds.
        processes: Returns the usage of this process and its children.
        gpu: The GPU, or None; by default the one that PyTorch uses.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        processes: Callable[[], ProcessUsage] = process_usage,
        gpu: Callable[[], Gpu | None] = current_gpu,
    ) -> None:
        self._clock, self._processes, self._gpu = clock, processes, gpu()
        self._utilizations: list[float] = []
        if self._gpu is not None:
            self._gpu.reset_peak()
        self._start, self._cpu_start = clock(), processes().cpu_seconds

    def sample(self) -> None:
        """Read the GPU's utilization, which covers at most the last second; call it at the end of each phase."""
        utilization = self._gpu.utilization() if self._gpu is not None else None
        if utilization is not None:
            self._utilizations.append(utilization)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the step.

        `system/cpu_cores`: CPU seconds per second of the step; `system/memory_gb`: resident memory now;
        `system/gpu_memory_gb`: peak memory of the GPU; `system/gpu_utilization`: mean of the samples.
        """
        seconds, usage = self._clock() - self._start, self._processes()
        values = {
            "system/cpu_cores": max(0.0, usage.cpu_seconds - self._cpu_start) / max(seconds, 1e-9),
            "system/memory_gb": usage.resident_bytes / GB,
        }
        if self._gpu is not None:
            values["system/gpu_memory_gb"] = self._gpu.peak_bytes() / GB
        if self._utilizations:
            values["system/gpu_utilization"] = sum(self._utilizations) / len(self._utilizations)
        return values
