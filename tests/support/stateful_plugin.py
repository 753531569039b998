"""A stateful environment of one file, as a plug-in, and dialogues in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl2f_core import registry

PLUGIN = '''"""Find the flag in a corridor; cell 0 is a pit."""
from typing import Literal
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import new_task, sample_task
from rl2f_core.environments.capabilities import Baselines, MisleadingHints
from rl2f_core.environments.stateful import OracleEnvironment, Step
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline

@register("environment")
class Corridor(OracleEnvironment[int], MisleadingHints, Baselines):
    class Config(ComponentConfig):
        """A corridor of cells."""
        type: Literal["corridor"] = "corridor"
        cells: int = 9
        """Number of the last cell of the corridor."""
    def _make(self, rng):
        start, flag = rng.sample(range(1, self.config.cells + 1), 2)
        return new_task(self, "all", {"start": start}, {"flag": flag})
    def task(self, split, index): return sample_task(self, split, index, 0, self._make)
    def canonical(self, task): return f"{task.public['start']} {task.privileged['flag']}"
    def prompt(self, public): return f"Find the flag. You are at {public['start']}."
    def initial(self, task): return task.public["start"]
    def valid_actions(self, task, state): return ("left", "right") if state < self.config.cells else ("left",)
    def step(self, task, state, action):
        state += 1 if action == "right" else -1
        found = state == task.privileged["flag"]
        return Step(state, f"You are at {state}.", 10 if found else -1, done=state == 0, solved=found)
    def oracle_action(self, task, state): return "right" if state < task.privileged["flag"] else "left"
    def distance(self, task, state): return abs(state - task.privileged["flag"]) / 10
    def hint(self, task, attempts, rng):
        ahead = self.restore(task, attempts) < task.privileged["flag"]
        return f"The flag is {'ahead of' if ahead else 'behind'} you."
    def misleading_hint(self, task, attempts, rng):
        return f"The flag is {'behind' if 'ahead' in self.hint(task, attempts, rng) else 'ahead of'} you."
    def constant_baseline(self): return ConstantBaseline("right", 0.5)
'''


@contextmanager
def corridor_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The environment `corridor`, known to this process in the context."""
    path = folder / "corridor.py"
    path.write_text(PLUGIN)
    monkeypatch.setenv("RL2F_PLUGINS", str(path))
    yield path
    registry._components["environment"].pop("corridor", None)
    registry._discovered.discard(str(path))
    sys.modules.pop("rl2f_plugin_corridor", None)
