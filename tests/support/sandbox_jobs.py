"""The sandbox worker program with additional jobs for tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parents[2] / "rl2f_core" / "environments" / "sandbox" / "worker.py"


def echo(value: Any) -> Any:
    """Return the argument."""
    return value


def hang() -> None:
    """Never return, and hold the interpreter lock."""
    pow(7, 10**9)


def crash() -> None:
    """Exit without a reply."""
    os._exit(7)


def lose_once(how: str, path: str) -> str:
    """Hang or crash in the first run, which leaves a FIFO at `path`."""
    try:
        os.mkfifo(path)
    except FileExistsError:
        return "second run"
    return str({"hang": hang, "crash": crash}[how]())


def modules() -> list[str]:
    """Return the loaded modules."""
    return sorted(sys.modules)


def trespass(path: str) -> None:
    """Write a file, which no job may do."""
    with open(path, "w", encoding="utf-8"):
        pass


if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("worker", WORKER)
    assert spec is not None and spec.loader is not None
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    jobs = (echo, hang, crash, lose_once, modules, trespass)
    worker.JOBS |= {job.__name__: job for job in jobs}
    worker.main()
