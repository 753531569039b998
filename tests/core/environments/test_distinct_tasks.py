"""Distinct problems of a split."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_environment
from rl2f_core.environments.base import Environment, distinct_tasks, problem_key


def make(name: str, **settings: Any) -> Environment:
    kind: Any = registry.get("environment", name)
    return kind(kind.Config(**settings))


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("secret_code", {"length": 4, "letters": 2, "pool": 6}, 64),  # the quickstart: 32 were distinct
        ("binary_matrix", {}, 30),
        ("arithmetic", {}, 30),
    ],
)
def test_tasks_are_distinct_problems_and_begin_with_the_first_positions(name, settings, count):
    environment = make(name, **settings)
    tasks = distinct_tasks(environment, "test", count)
    keys = [environment.canonical(task) for task in tasks]
    first = dict.fromkeys(environment.canonical(environment.task("test", i)) for i in range(count))
    assert len(set(keys)) == len(keys) <= count
    assert keys[: len(first)] == list(first)
    assert len({task.id for task in tasks}) == len(tasks) and {task.split for task in tasks} == {"test"}
    assert distinct_tasks(environment, "test", count) == tasks


@pytest.mark.slow
def test_a_split_with_fewer_problems_gives_all_of_them():
    """Two-person puzzles: 13 of 150 were distinct."""
    environment = make("knights_knaves", people=2)
    found = {environment.canonical(task) for task in distinct_tasks(environment, "test", 150)}
    assert found == {environment.canonical(environment.task("test", i)) for i in range(1500)}
    assert len(found) == 13


def test_a_mixture_keeps_its_weights_when_one_part_has_few_problems():
    """Half of 40 tasks each; numbers from 1 to 40 have fewer than 20 test problems, sums take none of their places."""
    small = {"environment": {"type": "guess_number", "low": 1, "size": 40}, "weight": 1}
    large = {"environment": {"type": "arithmetic"}, "weight": 1}
    data = {"kind": "eval", "adapters": {"base": None}, "backend": "fake",
            "environment": {"type": "mixture", "environments": [small, large]}}  # fmt: skip
    mixture = build_environment(parse_config(data).environment)
    names = [mixture.sub_environment_of(task) for task in distinct_tasks(mixture, "test", 40)]
    assert names.count("arithmetic") == 20 and 1 < names.count("guess_number") < 20


def test_the_key_of_a_problem_does_not_depend_on_its_position():
    environment = make("secret_code", length=1, letters=2, pool=3)
    keys: dict[str, set[str]] = {}
    for index in range(50):
        task = environment.task("test", index)
        keys.setdefault(json.dumps([task.public, task.privileged]), set()).add(problem_key(environment, task))
    assert all(len(of_problem) == 1 for of_problem in keys.values())
    assert len(set.union(*keys.values())) == len(keys) > 1
