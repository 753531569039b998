"""Worker process of a run: `python -m jobs.worker FOLDER`.

It needs only the run directory, neither database nor server. It always writes `exit.json` last; if that is missing, the
process was killed.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import AbstractContextManager

from filelock import FileLock, Timeout

from jobs.worker.progress import FileProgress
from jobs.worker.status_files import LOCATION, SESSION, ExitRecord, stop_requested
from rl2f_core.common.processes import unblock_sigterm
from rl2f_core.errors import RL2FError, RunError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.execute import execute
from rl2f_core.run.signals import InterruptHandler

FAILED, EXIT_USAGE, INTERRUPTED = 1, 2, 130
STOP_POLL_SECONDS = 1.0
"""Interval of checks for `stop.json`."""


def main(arguments: list[str]) -> int:
    """Execute the run in the given directory; returns the exit code."""
    if len(arguments) != 1:
        print("Usage: python -m jobs.worker FOLDER", file=sys.stderr)
        return EXIT_USAGE
    stop = InterruptHandler()
    with stop:
        unblock_sigterm()  # blocked by the executor
        try:
            run_dir = RunDir.open(arguments[0])
            with _run_lock(run_dir):
                return _execute_and_record(run_dir, stop)
        except RL2FError as error:
            print(error, file=sys.stderr)
            return EXIT_USAGE


def _run_lock(run_dir: RunDir) -> AbstractContextManager[object]:
    """Lock the run's records against a second worker."""
    try:
        return FileLock(run_dir.path / "worker.lock", timeout=0).acquire()
    except Timeout as error:
        raise RunError("Another worker is on this run.", value=str(run_dir.path)) from error


def _execute_and_record(run_dir: RunDir, stop: InterruptHandler) -> int:
    """Execute the run and write the exit record."""
    session = int(os.environ.get(SESSION) or 0)
    record = ExitRecord(run_dir.path, session)
    at = f", {location}" if (location := os.environ.get(LOCATION)) else ""
    print(f"--- session {session}, process {os.getpid()}{at}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}", flush=True)
    try:
        status, detail, code = _execute(run_dir, stop, session)
    except KeyboardInterrupt:
        status, detail, code = "interrupted", "ended immediately by two Ctrl-C", INTERRUPTED
    except RL2FError as error:
        status, detail, code = "failed", str(error), FAILED
    except BaseException as error:  # outer boundary of the worker: every error is recorded
        traceback.print_exc()
        status, detail, code = "failed", f"{type(error).__name__}: {error}", FAILED
    print(f"--- {status}{': ' + detail if detail else ''}", flush=True)
    record.write(status, detail, code)
    return code


def _execute(run_dir: RunDir, stop: InterruptHandler, session: int) -> tuple[str, str, int]:
    from jobs import run_kinds
    from rl2f_core.run.events import JsonlSink

    run_kinds.load()
    config = run_dir.config()
    if run_dir.last_status() == "succeeded":  # the earlier worker was killed before it wrote its exit record
        return "succeeded", "it had ended already", 0
    with FileProgress(run_dir.path, config, session) as progress:
        should_stop = _ShouldStop(stop, progress, session)
        result = execute(config, run_dir, JsonlSink(run_dir.events_path), should_stop, progress)
    return result.status, result.detail, 0


class _ShouldStop:
    """Combines the stop signal and `stop.json`, and logs the first request."""

    def __init__(self, stop: InterruptHandler, progress: FileProgress, session: int) -> None:
        self.stop, self.progress, self.session, self.is_logged = stop, progress, session, False
        self._requested, self._next_check = False, 0.0

    def __call__(self) -> bool:
        if not self._requested and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + STOP_POLL_SECONDS
            self._requested = stop_requested(self.progress.folder, self.session)
        should_stop = self.stop() or self._requested
        if should_stop and not self.is_logged:
            self.is_logged = True
            self.progress.message("Asked to stop.")
        return should_stop


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
