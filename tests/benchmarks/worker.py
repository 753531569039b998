"""A side of a benchmark in a process of its own: asked one JSON line at a time, answering one JSON line at a time.

A role is a module of this package with `serve(settings, channel)`.  It sends one message when it is ready and then one
for every request.  What libraries print goes to the log, never between the answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[2]
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes of a run, the same for every side."""

    folder: str
    """The model's folder."""
    device: str = "auto"
    dtype: str = "auto"
    adapter: str = ""
    """A LoRA folder whose merged weights play the dialogues; empty is the base model."""
    dialogues: int = 64
    group: int = 8
    turns: int = 4
    max_new_tokens: int = 14
    temperature: float = 1.0
    rows: int = 16
    """Dialogues that are trained on."""
    micro_rows: int = 4
    """Rows in one forward and backward pass of TRL; ours may hold as many padded tokens."""
    rank: int = 16
    steps: int = 4
    """Most updates a side is asked for."""
    attention: str = ""
    """The baseline's attention implementation."""
    recompute: bool = False
    """Whether the baseline recomputes activations in the backward pass."""
    rows_file: str = ""
    """Where the rows of the update lie."""


class Worker:
    """The parent's handle on a side."""

    def __init__(self, role: str, settings: Settings) -> None:
        self.role = role
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.worker", role, json.dumps(dataclasses.asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env={**os.environ, **QUIET},
        )
        self.info: dict[str, Any] = {}

    def ready(self) -> Worker:
        """Wait until the side has loaded; `info` is its first message."""
        self.info = self._receive()
        return self

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request, one answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise RuntimeError(f"The {self.role} side ended ({self._process.returncode}):\n{self._log.read()[-4000:]}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self._process.communicate(timeout=60)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()


@contextlib.contextmanager
def started(*jobs: tuple[str, Settings]) -> Iterator[list[Worker]]:
    """Sides that load at the same time and end with the block."""
    workers = [Worker(role, settings) for role, settings in jobs]
    try:
        yield [worker.ready() for worker in workers]
    finally:
        for worker in workers:
            worker.close()


class Channel:
    """The side's end of the line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def send(self, **message: Any) -> None:
        """Answer, or say that the side is ready."""
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def receive(self) -> dict[str, Any] | None:
        """The next request; None where there are no more."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None


class Memory:
    """Bytes above the level at the time of construction: of the process, or of the GPU where one is used.

    The peak is the kernel's high-water mark of resident memory, which is set back at the start where the system lets a
    process do so (Linux); elsewhere it includes the loading of the model.
    """

    def __init__(self, device: Any) -> None:
        self.cuda = device.type == "cuda"
        if self.cuda:
            import torch

            torch.cuda.reset_peak_memory_stats()
            self.level = torch.cuda.memory_allocated()
            return
        import psutil

        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self.level = psutil.Process().memory_info().rss

    def report(self) -> dict[str, int]:
        """The level after loading, and the highest rise above it so far."""
        return {"level": self.level, "rise": max(0, self._peak() - self.level)}

    def _peak(self) -> int:
        if self.cuda:
            import torch

            return torch.cuda.max_memory_allocated()
        with contextlib.suppress(OSError):  # not ru_maxrss: a child inherits the parent's there
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def processor_seconds() -> float:
    """Processor seconds of all child processes that have ended."""
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Stopwatch:
    """Time since its construction, once the device has done all that it was given."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._start = self._now()

    def read(self) -> dict[str, float]:
        """`seconds` by the clock, and the `cpu_seconds` of this process, which other programs hardly change."""
        now = self._now()
        return {"seconds": now[0] - self._start[0], "cpu_seconds": now[1] - self._start[1]}

    def _now(self) -> tuple[float, float]:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()
        elif self.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter(), time.process_time()


def main() -> None:
    """Entry of the process: role and settings on the command line, requests on standard input."""
    channel = Channel(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    role = importlib.import_module(f"tests.benchmarks.{sys.argv[1]}")
    role.serve(Settings(**json.loads(sys.argv[2])), channel)


if __name__ == "__main__":
    main()
