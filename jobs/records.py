"""What a worker leaves in the run's folder for the queue to read: how far it is, and how it ended.

    progress.json    {"phase","done","total","note","time"} and more, replaced at most once a second
    exit.json        {"status","detail","time","code"}: the last thing a worker writes

Both carry the worker's session, so that a record of an earlier session is not taken for one of this.
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

PROGRESS, EXIT, LOG = "progress.json", "exit.json", "log.txt"
EXIT_BYTES = 8192
"""Room kept for `exit.json` from the start, so that a run that ends on a full disk can say so."""
DETAIL_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class Said:
    """How far a worker is, in its own words."""

    session: int
    pid: int
    pid_started: float
    phase: str
    done: float
    """Steps of the whole run."""
    total: float | None
    eta: float | None
    """Seconds left."""
    alive: float
    """When the worker last wrote."""
    place: str = ""
    """Where it is; see `jobs.executors.base.Handle`."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended, in its own words."""

    session: int
    status: str
    detail: str
    time: float
    code: int


def read_progress(folder: Path, session: int) -> Said | None:
    """What the worker of this session said last, or None where it said nothing."""
    data = _read(folder / PROGRESS, session)
    if data is None:
        return None
    try:
        return Said(
            session=session,
            pid=int(data["pid"]),
            pid_started=float(data["pid_started"]),
            phase=str(data["phase"]),
            done=float(data["overall_done"]),
            total=_number(data["overall_total"]),
            eta=_number(data["eta"]),
            alive=float(data["alive"]),
            place=str(data.get("place", "")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def read_exit(folder: Path, session: int) -> Exit | None:
    """How the worker of this session ended, or None where it left no word."""
    from jobs.tables import ENDED  # here: a worker writes these records, and need not load the database's packages

    data = _read(folder / EXIT, session)
    try:
        if data is None or data["status"] not in ENDED:
            return None
        return Exit(session, data["status"], str(data["detail"]), float(data["time"]), int(data["code"]))
    except (KeyError, TypeError, ValueError):
        return None


def write_exit(folder: Path, exit: Exit) -> None:
    """Leave an exit record for a worker that could not; a record that is there is replaced."""
    with contextlib.suppress(OSError):
        _replace(folder / EXIT, _encode(exit))


def how_it_went(code: int | None) -> str:
    """What to say of a worker that left no record, by its exit code (negative: minus the signal) where it is known."""
    if code is not None and code < 0:
        return f"the worker was killed by signal {-code}; see the log"
    if code:
        return f"the worker ended with code {code} and left no word; see the log"
    return "the worker is gone and left no word: it was killed, or the machine went down"


class ExitRecord:
    """A worker's own exit record. Its room on the disk is taken at the start."""

    def __init__(self, folder: Path, session: int) -> None:
        self.path, self.session = folder / EXIT, session
        self._reserved = folder / f".{EXIT}.reserved"
        self.path.unlink(missing_ok=True)
        with open(self._reserved, "wb") as file:
            file.write(b" " * EXIT_BYTES)
            file.flush()
            os.fsync(file.fileno())

    def write(self, status: str, detail: str, code: int) -> None:
        """The one record, in the room that was kept for it."""
        text = _encode(Exit(self.session, status, detail, time.time(), code))
        with open(self._reserved, "r+b") as file:
            file.write(text)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._reserved, self.path)


def write_progress(folder: Path, data: dict[str, Any]) -> None:
    """Replace `progress.json`; raises `OSError`."""
    _replace(folder / PROGRESS, json.dumps(data).encode())


def _encode(exit: Exit) -> bytes:
    data = {"status": exit.status, "detail": exit.detail[:DETAIL_CHARACTERS], "time": exit.time, "code": exit.code}
    return json.dumps({**data, "session": exit.session, "pid": os.getpid()}, ensure_ascii=False).encode()


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path, session: int) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and data.get("session") == session else None


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
