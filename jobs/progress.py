"""How far a run is: kept in memory while it works, written to its folder by a thread, so that the run never waits.

The time left is reckoned from the pace of this session alone: what an earlier session did took no time of this one.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from jobs.executors.base import PLACE
from jobs.records import write_progress
from rl2f_core.config import BaseRun
from rl2f_core.run import Progress

TICK = 1.0
"""Seconds between writes where something moved."""
BEAT = 5.0
"""Seconds between writes where nothing did: the heartbeat."""
QUIET = 10.0
"""Seconds between lines in the log."""
WINDOW = 20
"""Steps from which the pace is taken."""


class Pace:
    """Seconds a step, from the steps that this session saw."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=WINDOW + 1)
        self._phase = ""

    def saw(self, phase: str, done: float, now: float) -> None:
        """`done` steps of a phase are made at time `now` (seconds, any origin). Another phase starts afresh."""
        if phase != self._phase or (self._seen and done < self._seen[-1][1]):
            self._seen.clear()
            self._phase = phase
        if not self._seen or done > self._seen[-1][1]:
            self._seen.append((now, done))

    def left(self, steps: float) -> float | None:
        """Seconds that `steps` more take, or None before two steps were seen."""
        if len(self._seen) < 2:
            return None
        (first, from_step), (last, to_step) = self._seen[0], self._seen[-1]
        return max(0.0, steps * (last - first) / (to_step - from_step))


class Course:
    """Turns the phases of a run into steps of the whole run: stages one after the other, then the rest."""

    def __init__(self, config: BaseRun) -> None:
        stages = getattr(config, "stages", ()) if getattr(config, "kind", "train") == "train" else ()
        self.before: dict[str, float] = {}
        self.steps: float | None = None
        for stage in stages:
            self.before[f"stage {stage.name}"] = self.steps or 0.0
            self.steps = (self.steps or 0.0) + stage.steps
        self.done, self.total = 0.0, self.steps
        self.eta: float | None = None
        self._pace = Pace()

    def update(self, phase: str, done: float, total: float | None, now: float) -> None:
        """Hear of a phase. Phases inside a step (a rollout, a preflight) do not move the whole."""
        if phase in self.before:
            self.done, self.total = self.before[phase] + done, self.steps
        elif self.steps is None:
            self.done, self.total = done, total
        elif phase == "evaluation":  # comes last, and has its own pace
            self.done = self.total = self.steps
        else:
            return
        self._pace.saw(phase, done, now)
        all_of_it = total if phase == "evaluation" else self.total
        so_far = done if phase == "evaluation" else self.done
        self.eta = None if all_of_it is None else self._pace.left(all_of_it - so_far)


class FileProgress(Progress):
    """Writes `progress.json` while it is entered, and a line to standard output now and then."""

    def __init__(self, folder: Path, config: BaseRun, session: int) -> None:
        self.folder = folder
        self._course = Course(config)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_until_the_end, name="progress", daemon=True)
        own = psutil.Process()
        self._data: dict[str, Any] = {"session": session, "pid": own.pid, "pid_started": own.create_time()}
        self._data["place"] = os.environ.get(PLACE, "")
        self._moved("starting", 0.0, None, "")
        self._changed, self._written = True, 0.0
        self._said = float("-inf")

    def __enter__(self) -> FileProgress:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._write()

    def update(self, phase: str, done: float, total: float | None, note: str = "") -> None:
        """`done` of `total` of a phase."""
        with self._lock:
            self._course.update(phase, done, total, time.monotonic())
            self._moved(phase, done, total, note)
            self._changed = True
        self._line(phase, done, total, note)

    def say(self, text: str) -> None:
        """A sentence in the log."""
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def _moved(self, phase: str, done: float, total: float | None, note: str) -> None:
        course = self._course
        self._data |= {
            "phase": phase,
            "done": done,
            "total": total,
            "note": note,
            "time": time.time(),
            "overall_done": course.done,
            "overall_total": course.total,
            "eta": course.eta,
        }

    def _line(self, phase: str, done: float, total: float | None, note: str) -> None:
        now = time.monotonic()
        ends = total is not None and done >= total and (phase.startswith("stage ") or phase == "evaluation")
        if ends or now - self._said >= QUIET:
            self._said = now
            of = f"/{total:g}" if total is not None else ""
            self.say(f"{phase} {done:g}{of} {note}".rstrip())

    def _write_until_the_end(self) -> None:
        while not self._ended.wait(TICK):
            if self._changed or time.monotonic() - self._written >= BEAT:
                self._write()

    def _write(self) -> None:
        with self._lock:
            data, self._changed = {**self._data, "alive": time.time()}, False
        self._written = time.monotonic()
        try:
            write_progress(self.folder, data)
        except OSError as error:  # how far it is matters less than that it goes on
            if not self._data.get("unwritten"):
                self._data["unwritten"] = True
                os.write(2, f"progress.json cannot be written: {error}\n".encode())
