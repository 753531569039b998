"""Environments of one file, as plug-ins: `doors`, and the stateful `corridor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl2f_core import registry

CORRIDOR = '''"""Find the flag in a corridor; cell 0 is a pit."""
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


DOORS = '''"""Which door is the right one? The hint says on which side of the last try it is."""
from typing import Literal
from rl2f_core.config.run import BaseConfig
from rl2f_core.environments.base import sample_task, wrap_answer
from rl2f_core.environments.capabilities import Baselines, Demonstrator, MisleadingHints
from rl2f_core.errors import DataError
from rl2f_core.registry import register
from rl2f_core.types import ConstantBaseline, Task, Verdict

@register("environment")
class Doors(MisleadingHints, Demonstrator, Baselines):
    class Config(BaseConfig):
        """Doors of a house."""
        type: Literal["doors"] = "doors"
        doors: int = 8
        """How many doors a house has."""
    def _make(self, rng):
        return self._task(rng.randint(1, 9999), rng.randint(1, self.config.doors))
    def _task(self, house, door):
        return Task(id="doors/gold", environment="doors", split="test", level="all",
                    public={"house": house}, privileged={"door": door})
    def task(self, split, index): return sample_task(self, split, index, 0, self._make)
    def canonical(self, task): return f"{task.public['house']}:{task.privileged['door']}"
    def task_from_gold(self, problem, answer):
        if self.parse(None, answer) is None: raise DataError("The gold answer is no door.", value=answer)
        return self._task(0, int(answer))
    def prompt(self, public): return f"House {public['house']}: which door?"
    def gold_answer(self, task): return str(task.privileged["door"])
    def parse(self, task, text): return text if text.isascii() and text.isdigit() and len(text) < 9 else None
    def score_parsed(self, task, parsed):
        right = int(parsed) == task.privileged["door"]
        return Verdict(correct=right, score=float(right), parsed=parsed, well_formed=True)
    def hint(self, task, attempts, rng):
        return "Right." if int(attempts[-1].parsed or 0) < task.privileged["door"] else "Left."
    def misleading_hint(self, task, attempts, rng):
        return "Left." if self.hint(task, attempts, rng) == "Right." else "Right."
    def simulate_attempt(self, task, attempts, rng, *, follow_hint, correct):
        wrong = [d for d in range(1, self.config.doors + 1) if d != task.privileged["door"]]
        return wrap_answer(str(task.privileged["door"] if correct else rng.choice(wrong)))
    def constant_baseline(self): return ConstantBaseline("1", 1 / self.config.doors)
'''
PLUGINS = {"corridor": CORRIDOR, "doors": DOORS}


@contextmanager
def loaded(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make an environment of `PLUGINS` known to this process, and to its subprocesses, in the context."""
    path = folder / f"{name}.py"
    path.write_text(PLUGINS[name])
    monkeypatch.setenv("RL2F_PLUGINS", str(path))
    yield
    registry._components["environment"].pop(name, None)
    registry._discovered.discard(str(path))
    sys.modules.pop(f"rl2f_plugin_{name}", None)
