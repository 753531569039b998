"""Progress of a run, written to the run directory by a thread, so that the run never waits for the disk.

The remaining time is estimated from this session's steps only.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType

import psutil

from jobs.worker.status_files import LOCATION, write_progress
from rl2f_core.config.run import BaseRun
from rl2f_core.run.context import Progress
from rl2f_core.types import JsonObject

WRITE_INTERVAL_SECONDS = 1.0
"""Interval of writes after a change."""
HEARTBEAT_INTERVAL_SECONDS = 5.0
"""Interval of writes without a change."""
LOG_INTERVAL_SECONDS = 10.0
"""Interval of progress lines in the log."""
ETA_WINDOW_STEPS = 20


class EtaEstimator:
    """Moving average of the time per step.

    Args:
        window: Number of newest records that count; None for all of the phase, because dialogues of a batch end
            together and say nothing about the time of a batch.
    """

    def __init__(self, window: int | None = ETA_WINDOW_STEPS) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=None if window is None else window + 1)
        self._phase = ""

    def record(self, phase: str, done: float, now: float) -> None:
        """Record that `done` steps of a phase are complete at `now` (seconds, any origin). A new phase resets it."""
        if phase != self._phase or (self._steps and done < self._steps[-1][1]):
            self._steps.clear()
            self._phase = phase
        if not self._steps or done > self._steps[-1][1]:
            self._steps.append((now, done))

    def eta(self, steps: float) -> float | None:
        """Return the seconds that further `steps` take; None before two are recorded."""
        if len(self._steps) < 2:
            return None
        (first, from_step), (last, to_step) = self._steps[0], self._steps[-1]
        return max(0.0, steps * (last - first) / (to_step - from_step))


class OverallProgress:
    """Converts the progress of phases to steps of the whole run: the stages in order, then the evaluation."""

    def __init__(self, config: BaseRun) -> None:
        stages = getattr(config, "stages", ()) if getattr(config, "kind", "train") == "train" else ()
        self.before: dict[str, float] = {}
        self.steps: float | None = None
        for stage in stages:
            self.before[f"stage {stage.name}"] = self.steps or 0.0
            self.steps = (self.steps or 0.0) + stage.steps
        self.done, self.total = 0.0, self.steps
        self.eta: float | None = None
        self._estimator = EtaEstimator(ETA_WINDOW_STEPS if self.steps is not None else None)

    def update(self, phase: str, done: float, total: float | None, now: float) -> None:
        """Record the progress of a phase. Phases inside a step (rollout, preflight) do not count."""
        if phase in self.before:
            self.done, self.total = self.before[phase] + done, self.steps
        elif self.steps is None:
            self.done, self.total = done, total
        elif phase == "evaluation":  # follows the stages, at its own pace
            self.done = self.total = self.steps
        else:
            return
        self._estimator.record(phase, done, now)
        if phase != "evaluation":
            done, total = self.done, self.total
        self.eta = None if total is None else self._estimator.eta(total - done)


class FileProgress(Progress):
    """Context manager that writes `progress.json`, and progress lines to standard output."""

    def __init__(self, folder: Path, config: BaseRun, session: int) -> None:
        self.folder = folder
        self._overall = OverallProgress(config)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_until_end, name="progress", daemon=True)
        process = psutil.Process()
        self._data: JsonObject = {"session": session, "pid": process.pid, "pid_started": process.create_time()}
        self._data["location"] = os.environ.get(LOCATION, "")
        self._set("starting", 0.0, None, "")
        self._changed, self._written = True, 0.0
        self._logged = float("-inf")

    def __enter__(self) -> FileProgress:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._write()

    def update(self, phase: str, done: float, total: float | None, note: str = "") -> None:
        """Set the progress of a phase to `done` of `total`."""
        with self._lock:
            self._overall.update(phase, done, total, time.monotonic())
            self._set(phase, done, total, note)
            self._changed = True
        now = time.monotonic()
        is_end = total is not None and done >= total and (phase.startswith("stage ") or phase == "evaluation")
        if is_end or now - self._logged >= LOG_INTERVAL_SECONDS:
            self._logged = now
            suffix = f"/{total:g}" if total is not None else ""
            self.message(f"{phase} {done:g}{suffix} {note}".rstrip())

    def message(self, text: str) -> None:
        """Log a message."""
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def _set(self, phase: str, done: float, total: float | None, note: str) -> None:
        overall = self._overall
        self._data |= {"phase": phase, "done": done, "total": total, "note": note, "time": time.time()}
        self._data |= {"overall_done": overall.done, "overall_total": overall.total, "eta": overall.eta}

    def _write_until_end(self) -> None:
        while not self._ended.wait(WRITE_INTERVAL_SECONDS):
            if self._changed or time.monotonic() - self._written >= HEARTBEAT_INTERVAL_SECONDS:
                self._write()

    def _write(self) -> None:
        with self._lock:
            data, self._changed = {**self._data, "alive": time.time()}, False
        self._written = time.monotonic()
        try:
            write_progress(self.folder, data)
        except OSError as error:  # the run continues without a progress file
            if not self._data.get("unwritten"):
                self._data["unwritten"] = True
                os.write(2, f"progress.json cannot be written: {error}\n".encode())
