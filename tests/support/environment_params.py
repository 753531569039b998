"""Test parameters for every registered environment."""

from __future__ import annotations

import pytest

from rl2f_core import registry
from rl2f_core.environments.base import Environment
from rl2f_core.environments.stateful import OracleEnvironment
from rl2f_core.types import Task, Verdict

WORKERS = ("math", "gsm_symbolic", "reasoning_gym", "code")
"""Environments that judge in worker processes: their tests share one test process, which starts the workers once."""
NAMES = [name for name in registry.names("environment") if name not in ("gymnasium", "imported", "verifiers")]
"""Environments with tasks of their own and without an optional package; `test_gymnasium.py` and `test_verifiers.py`
test the others."""
ENVIRONMENTS = [
    pytest.param(name, marks=pytest.mark.xdist_group("workers")) if name in WORKERS else name for name in NAMES
]


def before_last_action(environment: Environment, task: Task) -> list[Verdict]:
    """Verdicts on the oracle's actions but the last; none in an environment without a state."""
    earlier: list[Verdict] = []
    if isinstance(environment, OracleEnvironment):
        for action in environment.plan(task)[:-1]:
            earlier.append(environment.verify_turn(task, earlier, f"<answer>{action}</answer>"))
    return earlier


def last_answer(environment: Environment, task: Task) -> str:
    """The gold answer, or the oracle's last action."""
    return environment.plan(task)[-1] if isinstance(environment, OracleEnvironment) else environment.gold_answer(task)
