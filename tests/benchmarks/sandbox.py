"""`python -m tests.benchmarks.sandbox`: how many verdicts a second the sandbox of `code` gives, with warm workers.

Attempts are those of the simulated student on generated functions, half of them correct, each on 13 tests, and all
different, so that none is cached.  `one by one` waits for each verdict; `batch` uses all workers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.code.environment import Code
from rl2f_core.environments.code.mutations import mutants
from rl2f_core.environments.sandbox.pool import code_pool
from rl2f_core.types import Task

from .report import busy

WANTED = 30.0
"""Verdicts a second on two cores, from the project's requirements."""


def attempts(environment: Code, count: int) -> list[tuple[Task, str]]:
    """Tasks with right and wrong attempts in turn."""
    pairs = []
    for index in range(count):
        task = environment.task("train", index)
        gold = environment.gold_answer(task)
        wrong = list(mutants(gold, random.Random(index), 1)) if index % 2 else []
        pairs.append((task, wrap_answer(f"{(wrong or [gold])[0]}\n\nattempt = {index}")))
    return pairs


def rate(environment: Code, pairs: Sequence[tuple[Task, str]], batch: bool) -> float:
    """Verdicts a second on new attempts."""
    start = time.perf_counter()
    if batch:
        environment.prefetch_verdicts(pairs)
    correct = [environment.verify(task, attempt).correct for task, attempt in pairs]
    seconds = time.perf_counter() - start
    assert any(correct) and not all(correct)
    return len(pairs) / seconds


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Print the rates; write them as JSON where asked. Exit with status 1 below `WANTED` if `--check` is given."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sandbox", description=__doc__)
    parser.add_argument("--verdicts", type=int, default=400)
    parser.add_argument("--check", action="store_true", help=f"fail below {WANTED:g} verdicts a second")
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    args = parser.parse_args(argv)
    environment = Code(Code.Config())
    rate(environment, attempts(environment, 2 * code_pool().size), batch=True)  # starts the workers
    pairs = attempts(environment, 2 * args.verdicts)
    found = {
        "one by one": rate(environment, pairs[: args.verdicts], batch=False),
        "batch": rate(environment, pairs[args.verdicts :], batch=True),
        "workers": float(code_pool().size),
    }
    print(f"one by one: {found['one by one']:.0f} verdicts/s")
    print(f"batch of {args.verdicts}, {code_pool().size} workers: {found['batch']:.0f} verdicts/s ({WANTED:g} wanted)")
    print(busy(os.getloadavg()[0], os.cpu_count() or 1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    if args.check and found["batch"] < WANTED:
        raise SystemExit(1)
    return found


if __name__ == "__main__":
    main()
