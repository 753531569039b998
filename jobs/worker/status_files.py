"""Files in the run directory by which worker and queue communicate.

    progress.json    progress, replaced at most once per second
    exit.json        {"status","detail","time","code"}: last file that a worker writes
    stop.json        request to stop after the step; replaces the signal for remote workers

All contain the worker's session, so that records of earlier sessions are ignored.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl2f_core.common.file_io import read_json
from rl2f_core.types import JsonObject

SESSION = "RL2F_SESSION"
"""Environment variable with the number of the worker's session. Its records contain it, so that records of earlier
sessions are ignored."""
LOCATION = "RL2F_LOCATION"
"""Environment variable with `WorkerHandle.location`."""
PROGRESS, EXIT, STOP, LOG = "progress.json", "exit.json", "stop.json", "log.txt"
EXIT_BYTES = 8192
"""Disk space reserved for `exit.json` at the start, so that it can be written on a full disk."""
MAX_DETAIL_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """Contents of `progress.json`."""

    session: int
    pid: int
    pid_started: float
    phase: str
    done: float
    """Steps of the whole run."""
    total: float | None
    eta: float | None
    """Remaining seconds."""
    alive: float
    """Time of the last write."""
    location: str = ""
    """See `jobs.executors.base.WorkerHandle`."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Contents of `exit.json`."""

    session: int
    status: str
    detail: str
    time: float
    code: int


def read_progress(folder: Path, session: int) -> WorkerProgress | None:
    """Return the last progress of this session's worker, or None."""
    data = _read(folder / PROGRESS, session)
    if data is None:
        return None
    try:
        return WorkerProgress(
            session=session,
            pid=int(data["pid"]),
            pid_started=float(data["pid_started"]),
            phase=str(data["phase"]),
            done=float(data["overall_done"]),
            total=_finite(data["overall_total"]),
            eta=_finite(data["eta"]),
            alive=float(data["alive"]),
            location=str(data.get("location", "")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def read_exit(folder: Path, session: int) -> ExitStatus | None:
    """Return the exit status of this session's worker, or None."""
    from jobs.db.models import ENDED  # not at the top: a worker writes these records without the database packages

    data = _read(folder / EXIT, session)
    try:
        if data is None or data["status"] not in ENDED:
            return None
        return ExitStatus(session, data["status"], str(data["detail"]), float(data["time"]), int(data["code"]))
    except (KeyError, TypeError, ValueError):
        return None


def write_exit(folder: Path, exit: ExitStatus) -> None:
    """Write the exit record on behalf of a dead worker, replacing any other."""
    with contextlib.suppress(OSError):
        _replace(folder / EXIT, _encode(exit))


def request_stop(folder: Path, session: int) -> None:
    """Ask the worker of this session to stop after its step; raises `OSError`."""
    _replace(folder / STOP, json.dumps({"session": session}).encode())


def stop_requested(folder: Path, session: int) -> bool:
    """Return whether the worker of this session should stop."""
    return _read(folder / STOP, session) is not None


def describe_exit(code: int | None) -> str:
    """Describe the end of a worker without an exit record by its exit code (negative: minus the signal), if known."""
    if code is not None and code < 0:
        return f"the worker was killed by signal {-code}; see the log"
    if code:
        return f"the worker ended with code {code} without an exit record; see the log"
    return "the worker ended without an exit record: it was killed, or the machine went down"


class ExitRecord:
    """A worker's exit record. Reserves its disk space."""

    def __init__(self, folder: Path, session: int) -> None:
        self.path, self.session = folder / EXIT, session
        self._reserved = folder / f".{EXIT}.reserved"
        self.path.unlink(missing_ok=True)
        with open(self._reserved, "wb") as file:
            file.write(b" " * EXIT_BYTES)
            file.flush()
            os.fsync(file.fileno())

    def write(self, status: str, detail: str, code: int) -> None:
        """Write the record into the reserved space."""
        text = _encode(ExitStatus(self.session, status, detail, time.time(), code))
        with open(self._reserved, "r+b") as file:
            file.write(text)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._reserved, self.path)


def write_progress(folder: Path, data: JsonObject) -> None:
    """Replace `progress.json`; raises `OSError`."""
    _replace(folder / PROGRESS, json.dumps(data).encode())


def _encode(exit: ExitStatus) -> bytes:
    data = {"status": exit.status, "detail": exit.detail[:MAX_DETAIL_CHARACTERS], "time": exit.time, "code": exit.code}
    return json.dumps({**data, "session": exit.session, "pid": os.getpid()}, ensure_ascii=False).encode()


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path, session: int) -> JsonObject | None:
    data = read_json(path, path.parent)
    return data if data.get("session") == session else None


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else float(value)
