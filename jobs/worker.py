"""The process in which a run is worked on: `python -m jobs.worker FOLDER`.

It needs nothing but the folder: it opens no database and knows no server.  Whatever happens, the last thing it does is
to leave `exit.json`; where that is missing, the process was killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
import traceback
from typing import IO

from jobs.executors.base import LEASH, PLACE, SESSION
from jobs.progress import FileProgress
from jobs.records import ExitRecord
from rl2f_core.errors import RL2FError, RunError
from rl2f_core.run import RunDir, execute
from rl2f_core.stopping import StopSignal

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
LOOK = 0.5
"""Seconds between two looks whether the process at the other end of the leash is there."""


def main(arguments: list[str]) -> int:
    """Work on the run in the folder that is named; returns the exit code."""
    if len(arguments) != 1:
        print("Usage: python -m jobs.worker FOLDER", file=sys.stderr)
        return MISUSED
    leashed()
    stop = StopSignal()
    with stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the executor had it held back until now
        try:
            run_dir = RunDir.open(arguments[0])
            with _alone(run_dir):
                return _work(run_dir, stop)
        except RL2FError as error:
            print(error, file=sys.stderr)
            return MISUSED


def leashed() -> None:
    """Where the worker was started on a leash, end it and its group at once when its parent is gone.

    Its parent is then an actor of a cluster: without it nobody could stop the worker, and what it holds would be
    given to others.
    """
    parent = int(os.environ.get(LEASH) or 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        os.write(2, b"--- the process that started this one is gone, so it ends\n")
        os.killpg(0, signal.SIGKILL)

    if parent:
        threading.Thread(target=watch, name="leash", daemon=True).start()


def _alone(run_dir: RunDir) -> IO[str]:
    """Held while a worker is on the run, so that a second one touches none of its records."""
    file = open(run_dir.path / "worker.lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise RunError("Another worker is on this run.", value=str(run_dir.path)) from error
    return file


def _work(run_dir: RunDir, stop: StopSignal) -> int:
    """Run to the end, and say how it ended."""
    session = int(os.environ.get(SESSION) or 0)
    record = ExitRecord(run_dir.path, session)
    at = f", {place}" if (place := os.environ.get(PLACE)) else ""
    print(f"--- session {session}, process {os.getpid()}{at}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}", flush=True)
    try:
        status, detail, code = _run(run_dir, stop, session)
    except KeyboardInterrupt:
        status, detail, code = "interrupted", "ended at once by two Ctrl-C", INTERRUPTED
    except RL2FError as error:
        status, detail, code = "failed", str(error), FAILED
    except BaseException as error:  # the worker's outer boundary: whatever it is, it is told
        traceback.print_exc()
        status, detail, code = "failed", f"{type(error).__name__}: {error}", FAILED
    print(f"--- {status}{': ' + detail if detail else ''}", flush=True)
    record.write(status, detail, code)
    return code


def _run(run_dir: RunDir, stop: StopSignal, session: int) -> tuple[str, str, int]:
    from jobs import kinds
    from rl2f_core.events import JsonlSink

    kinds.load()
    config = run_dir.config()
    if run_dir.last_status() == "succeeded":  # killed after the run's last word and before this worker's
        return "succeeded", "it had ended already", 0
    with FileProgress(run_dir.path, config, session) as progress:
        ended = execute(config, run_dir, JsonlSink(run_dir.events_path), _Heard(stop, progress), progress)
    return ended.status, ended.detail, 0


class _Heard:
    """The stop signal, with a line in the log when it is first seen."""

    def __init__(self, stop: StopSignal, progress: FileProgress) -> None:
        self.stop, self.progress, self.told = stop, progress, False

    def __call__(self) -> bool:
        asked = self.stop()
        if asked and not self.told:
            self.told = True
            self.progress.say("Asked to stop.")
        return asked


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
