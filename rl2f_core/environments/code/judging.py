"""Run functions in the sandbox and compare their outputs with the expected ones.

The sandbox receives programs and inputs.  Expected outputs stay in this process, and outputs come back as Python
literals, so no object of a program takes part in a comparison.
"""

from __future__ import annotations

import ast
import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl2f_core.environments.sandbox.pool import START_SECONDS, Job, Reply, code_pool
from rl2f_core.errors import ConfigError

TOLERANCE = 1e-6
"""Relative and absolute tolerance of floating-point outputs."""
MAX_LITERAL_CHARS = 100_000
MAX_CACHED = 2_000
"""Programs whose outputs are cached, each at most `Limits.output_bytes`."""
_STATUS = {"timeout": "does not finish in time", "output": "returns too much"}
_GRACE_SECONDS = 20.0
"""Time that a worker has beyond a job's limit, on a busy machine."""


class Limits(NamedTuple):
    """Limits of one attempt on all its tests."""

    cpu_seconds: int = 2
    memory_mb: int = 256
    output_bytes: int = 1 << 16

    @property
    def wall_seconds(self) -> float:
        """Limit of the wall-clock time, for programs that wait and for busy machines."""
        return 2.0 * self.cpu_seconds + 1


class Program(NamedTuple):
    """A program and its function's arguments, each a tuple as a Python literal."""

    code: str
    function: str
    inputs: tuple[str, ...]


class Output(NamedTuple):
    """What a call of the function did."""

    value: str | None
    """The returned value as a Python literal; None if it returned none."""
    failure: str = ""
    """The failure in words that follow `your function`, e.g. `raises ValueError`."""


class Sandbox:
    """Runs programs within limits; caches their outputs.

    Args:
        limits: Limits of one program.
        allow_weaker: Whether to run without the parts that the kernel refuses.
    """

    def __init__(self, limits: Limits, allow_weaker: bool) -> None:
        self.limits = limits
        self.allow_weaker = allow_weaker
        self._cache: dict[Program, Reply] = {}

    def check(self) -> None:
        """Raise `ConfigError` if a part is missing and that is not accepted."""
        missing = missing_parts()
        if missing and not self.allow_weaker:
            raise ConfigError(
                f"This system lacks parts of the sandbox for code: {'; '.join(missing)}.",
                fix="Allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
                "kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces above 0; Docker: a seccomp "
                "profile with unshare and mount), or accept the weaker sandbox: "
                "environment.allow_weaker_sandbox: true.",
            )

    def run(self, programs: Sequence[Program]) -> list[tuple[Output, ...]]:
        """Run programs and return one output per input.

        Hostile programs give failures, never exceptions.
        """
        self.check()
        if len(self._cache) > MAX_CACHED:
            self._cache.clear()
        limits = self.limits
        jobs = {
            program: Job(
                "run",
                {
                    "program": program.code,
                    "function": program.function,
                    "inputs": list(program.inputs),
                    "cpu_seconds": limits.cpu_seconds,
                    "wall_seconds": limits.wall_seconds,
                    "memory_bytes": limits.memory_mb << 20,
                    "output_bytes": limits.output_bytes,
                },
            )
            for program in programs
        }
        replies = code_pool().run_cached(jobs, limits.wall_seconds + _GRACE_SECONDS, self._cache)
        return [_outputs(program, replies[program]) for program in programs]


@functools.cache
def missing_parts() -> tuple[str, ...]:
    """Return the parts of the sandbox that this system lacks, with the reasons."""
    reply = code_pool().ask("warm", START_SECONDS)
    return (f"the worker does not start ({reply.error})",) if reply.error else tuple(reply.value)


def _outputs(program: Program, reply: Reply) -> tuple[Output, ...]:
    results = [] if reply.error else reply.value["results"][: len(program.inputs)]
    outputs = [Output(value) if kind == "returned" else Output(None, _raised(value)) for kind, value in results]
    if len(outputs) == 1 < len(program.inputs) and outputs[0].value is None and reply.value["status"] == "done":
        return tuple(outputs * len(program.inputs))  # the program failed before its first call
    status = "" if reply.error else reply.value["status"]
    rest = Output(None, _STATUS.get(status, "ends the process"))
    return (*outputs, *[rest] * (len(program.inputs) - len(outputs)))


def _raised(name: str) -> str:
    if name == "NoPlainValue":
        return "returns no plain value"
    return f"raises {name}" if name.isidentifier() and len(name) <= 40 else "raises an exception"


# -- values --------------------------------------------------------------------------------------------------------
def read_literal(text: str) -> Any:
    """Return the value of a Python literal. Raises `ValueError`."""
    if len(text) > MAX_LITERAL_CHARS:
        raise ValueError("too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


@functools.lru_cache(MAX_CACHED)
def passes(expected: str, output: Output) -> bool:
    """Return whether a call returned the expected value."""
    if output.value is None:
        return False
    if output.value == expected:
        return True
    try:
        return agree(read_literal(expected), read_literal(output.value))
    except ValueError:
        return False


def agree(expected: object, actual: object) -> bool:
    """Return whether plain values are equal, with a tolerance for floats."""
    if isinstance(expected, float) or isinstance(actual, float):
        if not isinstance(expected, int | float) or not isinstance(actual, int | float):
            return False
        try:
            return math.isclose(expected, actual, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        except OverflowError:
            return False
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple) or type(expected) is not type(actual) or len(expected) != len(actual):
            return False
        return all(map(agree, expected, actual))
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or expected.keys() != actual.keys():
            return False
        return all(agree(value, actual[key]) for key, value in expected.items())
    return bool(expected == actual)
