"""A worker process that judges: one JSON object a line in and out, on its own pipes.

Started as a file by `_worker_pool`, so it imports nothing of this project and never torch. What it is handed was
written by a model: nothing of it is evaluated, and while a job runs the process can neither write a file, start a
program nor open a socket. A job that outlasts its limit is ended by the kernel's alarm even where the parent is gone.

Jobs: `math` judges an answer by math-verify; `gym` makes the entries of a reasoning-gym data set; `score` judges an
answer by the scorer of such a data set.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import re
import resource
import select
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

MEMORY = 4 << 30
"""Bytes of address space."""
_POLL = 5.0
"""Seconds between two looks at whether the parent is still there."""
_FORBIDDEN = ("subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.remove", "os.rename",
              "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.kill", "os.truncate",
              "socket.", "shutil.", "ctypes.dlopen", "pty.", "urllib.", "ftplib.", "smtplib.")  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EXPRESSION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?|[A-Za-z]+|[+\-*/^(), =\n]|\.[0-9]+)*")
_NAMES = frozenset("sin cos tan cot sec csc asin acos atan sinh cosh tanh exp log ln sqrt pi E C Abs".split())
_working = False


# -- jobs ----------------------------------------------------------------------------------------------------------
def equal(gold: str, said: str) -> bool:
    """Whether math-verify calls two expressions in LaTeX the same."""
    from math_verify import LatexExtractionConfig, parse, verify

    # LaTeX alone: the package's plain expressions go through sympy's parse_expr, which evaluates its input
    config = (LatexExtractionConfig(boxed_match_priority=0),)
    one, other = (
        parse(f"$\\boxed{{{text}}}$", config, fallback_mode="no_fallback", parsing_timeout=None)
        for text in (gold, said)
    )
    return bool(one and other and verify(one, other, timeout_seconds=None))


def entries(name: str, settings: dict[str, Any], seed: int, size: int, indices: list[int]) -> list[dict[str, Any]]:
    """Questions, answers and worked solutions at positions of a data set."""
    held = json.dumps(settings, sort_keys=True)
    found = [entry_at(name, held, seed, size, index) for index in indices]
    return [
        {
            "question": str(entry["question"]),
            "answer": entry["answer"] if isinstance(entry["answer"], str) else None,
            "solution": str((entry.get("metadata") or {}).get("answer_cot") or "") or None,
        }
        for entry in found
    ]


def score(
    name: str,
    settings: dict[str, Any],
    seed: int,
    size: int,
    said: str,
    index: int | None = None,
    question: str = "",
    answer: str = "",
) -> float:
    """What the data set's own scorer gives an answer, 0…1.

    The entry is made again from its index; where there is none, it is question and answer alone, and scorers
    that need more of it raise.
    """
    data = dataset(name, json.dumps(settings, sort_keys=True), seed, size)
    if index is None:
        entry: Any = {"question": question, "answer": answer, "metadata": {}}
    else:
        entry = entry_at(name, json.dumps(settings, sort_keys=True), seed, size, index)
    if name in _SYMBOLIC and not harmless(said):
        return 0.0
    found = float(data.score_answer(said, entry))
    return min(max(found, 0.0), 1.0) if found == found else 0.0


_SYMBOLIC = frozenset(
    ("simple_integration", "intermediate_integration", "polynomial_multiplication", "puzzle24", "countdown")
)
"""Data sets whose scorers hand the answer to sympy's parse_expr, which evaluates it."""


def harmless(said: str) -> bool:
    """Whether a text is numbers, operators and known function or one-letter names: nothing that could be called."""
    if len(said) > 1000 or not _EXPRESSION.fullmatch(said):
        return False
    names = re.findall(r"[A-Za-z]+", said)
    return all(len(name) == 1 or name in _NAMES for name in names)


@functools.lru_cache(512)
def entry_at(name: str, settings: str, seed: int, size: int, index: int) -> Any:
    """The entry at a position; kept, as some take seconds to make."""
    return dataset(name, settings, seed, size)[index]


@functools.lru_cache(32)
def dataset(name: str, settings: str, seed: int, size: int) -> Any:
    """A data set of the package, made once; raises `ValueError` where the settings do not fit."""
    from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum, create_dataset

    disarm()
    if name not in DATASETS:
        raise ValueError(f"reasoning-gym has no data set {name!r}")
    held: dict[str, Any] = json.loads(settings)
    level = held.pop("level", None)
    if level is not None:
        if name not in CURRICULA:
            raise ValueError(f"data set {name!r} has no levels; leave `level` out")
        curriculum = create_curriculum(name)
        highest = max((len(a.levels) - 1 for a in curriculum.attributes.values()), default=0)
        if level > highest:
            raise ValueError(f"data set {name!r} has levels 0 to {highest}, not {level}")
        for attribute in curriculum.attributes.values():
            curriculum.set_attr_level(attribute.name, min(level, len(attribute.levels) - 1))
        made = curriculum.generate_configuration({"seed": seed, "size": size, **held})
        made.validate()
        return DATASETS[name][0](config=made)
    return create_dataset(name, **{"seed": seed, "size": size, **held})


@functools.lru_cache(1)
def disarm() -> None:
    """Take `eval` from the scorers that hand it the answer: they read a list in it, which `literal_eval` does."""
    for name in ("algorithmic.string_insertion", "algorithmic.spiral_matrix", "algorithmic.binary_matrix",
                 "algorithmic.number_sorting", "games.n_queens"):  # fmt: skip
        module: Any = importlib.import_module(f"reasoning_gym.{name}")
        module.eval = ast.literal_eval


def warm(what: str) -> bool:
    """Import what a kind of job needs, before its time is counted; the start of the process is not counted either."""
    if what == "math":
        equal("x+1", "1+x")
    elif what == "gym":
        sys.meta_path.insert(0, _NoDrawing())
        import reasoning_gym  # noqa: F401

        disarm()
    return True


class _NoDrawing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for matplotlib, which a package of the package imports to draw with: nobody draws here, and it takes
    as long to load as all the rest."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if _DRAWING.match(name) else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Blank(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return


class _Blank(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})  # may be called, and may be a base class


_DRAWING = re.compile(r"(?:matplotlib|mpl_toolkits)(\.|$)")


def echo(value: Any) -> Any:
    """For tests: what it is given."""
    return value


def hang() -> None:
    """For tests: never answer, and hold the interpreter while at it."""
    pow(7, 10**9)


def crash() -> None:
    """For tests: end without a word."""
    os._exit(7)


def modules() -> list[str]:
    """For tests: what is loaded."""
    return sorted(sys.modules)


def trespass(path: str) -> None:
    """For tests: what no job may do."""
    with open(path, "w", encoding="utf-8"):
        pass


JOBS: dict[str, Callable[..., Any]] = {
    "math": equal, "gym": entries, "score": score, "warm": warm, "echo": echo, "hang": hang, "crash": crash,
    "modules": modules, "trespass": trespass,
}  # fmt: skip


# -- the loop ------------------------------------------------------------------------------------------------------
def _watch(event: str, details: tuple[Any, ...]) -> None:
    if not _working:
        return
    if event == "open":
        mode, flags = (*details[1:3], None, None)[:2]
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & _WRITING):
            raise PermissionError("a job may not write")
    elif event.startswith(_FORBIDDEN):
        raise PermissionError(f"a job may not do {event}")


def answered(line: str) -> dict[str, Any]:
    """The reply to one line."""
    global _working
    try:
        job = json.loads(line)
        signal.alarm(int(job["limit"]) + 2)
        _working = job["job"] != "warm"
        return {"value": JOBS[job["job"]](**job["args"])}
    except MemoryError:
        return {"error": "the job ran out of memory"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    finally:
        _working = False
        signal.alarm(0)


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)  # a package that prints must not write between the replies
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_watch)
    parent, lines = os.getppid(), os.fdopen(0, "r", encoding="utf-8", closefd=False)
    while True:
        while not select.select([0], [], [], _POLL)[0]:
            if os.getppid() != parent:
                return
        line = lines.readline()  # the parent waits for each reply, so that nothing else is buffered
        if not line:
            return
        replies.write(json.dumps(answered(line)) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
