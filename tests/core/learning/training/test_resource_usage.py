"""CPU, memory and GPU use of a step, with clocks and processes of the test, and once with a real child."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from run_helpers import config_of, go

from rl2f_core.learning.training import resource_usage
from rl2f_core.learning.training.resource_usage import ProcessUsage, ResourceUsage, process_usage
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import MetricEvent, read_events


@dataclass
class FakeGpu:
    """The functions of `torch.cuda`."""

    readings: list[int]
    """Utilizations in percent; NVML is missing without them."""
    peaks: list[int] = field(default_factory=lambda: [9_000_000_000])
    """The last one is the peak since the last reset."""

    def is_initialized(self) -> bool:
        return True

    def reset_peak_memory_stats(self) -> None:
        self.peaks.append(2_500_000_000)

    def max_memory_allocated(self) -> int:
        return self.peaks[-1]

    def utilization(self) -> int:
        if not self.readings:
            raise ModuleNotFoundError("pynvml")
        return self.readings.pop(0)


def step(cpu: tuple[float, float], *, gpu: FakeGpu | None = None, samples: int = 0) -> dict[str, float]:
    """Return the metrics of a step from second 10 to 14, at whose ends the processes have used `cpu` seconds."""
    clock = iter([10.0, 14.0])
    processes = iter([ProcessUsage(cpu[0], 1), ProcessUsage(cpu[1], 3_200_000_000)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource_usage, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        patch.setattr(resource_usage, "process_usage", lambda: next(processes))
        if gpu is not None:
            patch.setattr(torch, "cuda", gpu)
        usage = ResourceUsage()
        for _ in range(samples):
            usage.sample()
        return usage.metrics()


def test_cores_are_cpu_seconds_per_second_and_memory_is_that_of_the_end() -> None:
    assert step((100.0, 106.0), samples=2) == {"system/cpu_cores": 1.5, "system/memory_gb": 3.2}


def test_a_child_that_ended_without_being_waited_for_does_not_make_the_cores_negative() -> None:
    assert step((100.0, 97.0))["system/cpu_cores"] == 0


def test_a_gpu_adds_the_peak_of_the_step_and_the_mean_of_its_samples() -> None:
    found = step((0.0, 4.0), gpu=FakeGpu([90, 30]), samples=2)
    assert found["system/gpu_memory_gb"] == 2.5
    assert found["system/gpu_utilization"] == pytest.approx(0.6)


def test_without_nvml_there_is_no_utilization() -> None:
    found = step((0.0, 4.0), gpu=FakeGpu([]), samples=2)
    assert found["system/gpu_memory_gb"] == 2.5 and "system/gpu_utilization" not in found


def test_children_count_while_they_run_and_after_their_end() -> None:
    before = process_usage()  # the system counts in hundredths of a second
    work = "import time\nwhile time.process_time() < 0.25: pass\nprint(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin and child.stdout
    child.stdout.readline()
    running, own = process_usage(), psutil.Process().memory_info().rss
    assert running.cpu_seconds - before.cpu_seconds > 0.2 and running.resident_bytes > own
    child.communicate(b"\n")
    assert process_usage().cpu_seconds - before.cpu_seconds > 0.2


@pytest.mark.slow
def test_every_step_of_a_run_records_its_use(tiny: Path, tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path / "run", config_of(tiny, steps=(1, 1)))
    assert go(run_dir) == "succeeded"
    steps = {e.stage: e.values for e in read_events(run_dir.events_path) if isinstance(e, MetricEvent)}
    assert set(steps) == {"warm", "rl"}
    for values in steps.values():
        assert 0 < values["system/cpu_cores"] <= (psutil.cpu_count() or 1) + 1
        assert values["system/memory_gb"] > 0.1  # PyTorch alone needs more
        assert not [name for name in values if name.startswith("system/gpu")]


@pytest.mark.gpu
def test_a_cuda_device_has_a_peak_since_the_step_began() -> None:
    held = torch.ones(250_000_000, device="cuda")  # 1 GB
    del held
    usage = ResourceUsage()
    kept = torch.ones(25_000_000, device="cuda")
    assert 0.1 <= usage.metrics()["system/gpu_memory_gb"] < 1
    del kept
