"""The random policy as a baseline of stateful environments."""

from __future__ import annotations

from pathlib import Path

import pytest
from environment_plugins import loaded

from rl2f_core import registry
from rl2f_core.evaluation.reference_policies import random_policy


def test_random_actions_solve_the_closed_form_fraction_of_a_corridor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From cell 2 of 3 to cell 3: ½ at once. Left is cell 1, from which right, right needs two more steps: + ⅛."""
    with loaded("corridor", tmp_path, monkeypatch):
        environment = registry.get("environment", "corridor")
        corridor = environment(environment.Config(cells=3))
        task = corridor.task("test", 0).model_copy(update={"public": {"start": 2}, "privileged": {"flag": 3}})
        tasks = [task.model_copy(update={"id": f"t/{i}"}) for i in range(60)]
        rates = random_policy(corridor, tasks, 3)
        assert [rate.n for rate in rates] == [600] * 3
        for rate, expected in zip(rates, (1 / 2, 1 / 2, 5 / 8), strict=True):
            assert rate.value == pytest.approx(expected, abs=0.06)
        assert random_policy(corridor, tasks, 3) == rates
