"""CPU, memory and GPU use of a training step: the metrics `system/…`.

Like the metrics `time/…`, they depend on the machine, and no later step reads them.
"""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

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


class ResourceUsage:
    """Measures one step, from its construction to `metrics`; the GPU is the one that PyTorch uses, if any."""

    def __init__(self) -> None:
        import torch

        self._gpu = torch.cuda if torch.cuda.is_initialized() else None
        self._utilizations: list[float] = []
        if self._gpu is not None:
            self._gpu.reset_peak_memory_stats()
        self._start, self._cpu_start = time.perf_counter(), process_usage().cpu_seconds

    def sample(self) -> None:
        """Read the GPU's utilization, which covers at most the last second; call it at the end of each phase."""
        if self._gpu is not None:
            with contextlib.suppress(ModuleNotFoundError, RuntimeError):  # NVML is missing
                self._utilizations.append(self._gpu.utilization() / 100)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the step.

        `system/cpu_cores`: CPU seconds per second of the step; `system/memory_gb`: resident memory now;
        `system/gpu_memory_gb`: peak memory of the GPU; `system/gpu_utilization`: mean of the samples.
        """
        seconds, usage = time.perf_counter() - self._start, process_usage()
        values = {
            "system/cpu_cores": max(0.0, usage.cpu_seconds - self._cpu_start) / max(seconds, 1e-9),
            "system/memory_gb": usage.resident_bytes / GB,
        }
        if self._gpu is not None:
            values["system/gpu_memory_gb"] = self._gpu.max_memory_allocated() / GB
        if self._utilizations:
            values["system/gpu_utilization"] = sum(self._utilizations) / len(self._utilizations)
        return values
