"""Run functions in the sandbox and compare their outputs with the expected ones.

The sandbox receives programs and inputs.  Expected outputs stay in this process, and outputs come back as Python
literals, so no object of a program takes part in a comparison.
"""

from __future__ import annotations

import ast
import functools
import math
import warnings
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from rl2f_core.environments.sandbox.pool import START_SECONDS, Job, Reply, code_pool
from rl2f_core.errors import ConfigError

TOLERANCE = 1e-6
"""Relative tolerance of floating-point outputs that are not whole."""
ROUNDING = 1e-12
"""Relative rounding error of whole outputs, absolute for 0.0."""
MAX_WHOLE = 2.0**53
"""Floats from this on are all whole, and have the tolerance of others unless an int is compared."""
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

    texts: tuple[str, ...]
    """Source texts that run one after the other in one module."""
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
        unfiltered = len(missing) > 1 and any(part.startswith("system call filter") for part in missing)
        if unfiltered:
            raise ConfigError(
                f"This system lacks parts of the sandbox for code: {'; '.join(missing)}.",
                fix="Use a kernel with seccomp on x86-64 or aarch64: without the filter, even the weaker sandbox of "
                "environment.allow_weaker_sandbox needs all other parts.",
            )
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
                    "program": program.texts,
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
    """Return the parts of the sandbox that this system lacks, with the reasons.

    Raises `ConfigError` if its worker does not start.
    """
    reply = code_pool().ask("warm", START_SECONDS)
    if reply.error:
        raise ConfigError(
            f"The worker of the sandbox for code does not start: {reply.error}.",
            fix="Free memory and processes of this machine, then start the run again.",
        )
    return tuple(reply.value)


def _outputs(program: Program, reply: Reply) -> tuple[Output, ...]:
    if reply.error:
        return (Output(None, f"has no result ({reply.error})"),) * len(program.inputs)
    results, status = reply.value["results"][: len(program.inputs)], reply.value["status"]
    outputs = [Output(value) if kind == "returned" else Output(None, _raised(value)) for kind, value in results]
    if len(outputs) == 1 < len(program.inputs) and outputs[0].value is None and status == "done":
        return tuple(outputs * len(program.inputs))  # the program failed before its first call
    rest = Output(None, _STATUS.get(status, "ends the process"))
    return (*outputs, *[rest] * (len(program.inputs) - len(outputs)))


def _raised(name: str) -> str:
    if name == "NoPlainValue":
        return "returns no plain value"
    return f"raises {name}" if name.isidentifier() and len(name) <= 40 else "raises an exception"


# -- values --------------------------------------------------------------------------------------------------------
def read_literal(text: str) -> Any:
    """Return the value of an output; see `parse_literal`. Raises `ValueError`, also if the text is too long."""
    if len(text) > MAX_LITERAL_CHARS:
        raise ValueError("too long")
    return parse_literal(text)


def parse_literal(text: str) -> Any:
    """Return the value of a Python literal; also of `inf`, `nan`, `float('…')` and `frozenset({…})`.

    Raises `ValueError`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.literal_eval(_Values().visit(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


class _Values(ast.NodeTransformer):
    """Replaces the expressions of values that have no literal by constants."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match self.generic_visit(node):
            case ast.Call(func=ast.Name("float"), args=[ast.Constant(str() as text)], keywords=[]):
                return ast.Constant(float(text))
            case ast.Call(func=ast.Name("frozenset"), args=args, keywords=[]) if len(args) < 2:
                items: Any = frozenset(*map(ast.literal_eval, args))
                return ast.Constant(items)
        return node


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
    """Return whether plain values are equal: as by `==`, with a tolerance for an expected float.

    An expected `int` is exact, and a whole float below 2^53 up to rounding errors. Two NaN are equal.
    """
    if isinstance(expected, float) and isinstance(actual, int | float):
        return _close(expected, actual)
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple) or type(expected) is not type(actual) or len(expected) != len(actual):
            return False
        return all(map(agree, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        shared = expected.keys() & actual.keys()
        return all(agree(expected[key], actual[key]) for key in shared) and _pair_up(
            [item for item in expected.items() if item[0] not in shared],
            [item for item in actual.items() if item[0] not in shared],
        )
    if isinstance(expected, set | frozenset) and isinstance(actual, set | frozenset):
        return _pair_up(expected - actual, actual - expected)
    return bool(expected == actual)


def _close(expected: float, actual: float) -> bool:
    exact = isinstance(actual, int) or abs(expected) < MAX_WHOLE
    if exact and expected % 1 == actual % 1 == 0:
        return expected == actual
    tolerance = ROUNDING if exact and expected % 1 == 0 else TOLERANCE
    try:
        both_nan = math.isnan(expected) and math.isnan(actual)
        return both_nan or math.isclose(expected, actual, rel_tol=tolerance, abs_tol=0 if expected else ROUNDING)
    except OverflowError:  # an int beyond all floats
        return False


def _pair_up(expected: Collection[object], actual: Collection[object]) -> bool:
    """Return whether each value agrees with one of the other collection."""
    return (
        len(expected) == len(actual)
        and all(any(agree(value, other) for other in actual) for value in expected)
        and all(any(agree(value, other) for value in expected) for other in actual)
    )
