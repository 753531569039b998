"""`gymnasium:<id>`: with a small stand-in for the package, and with the package where it is installed."""

from __future__ import annotations

import importlib.util
import random
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stateful_contract import check_episodes, take

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.environments.worlds import gymnasium_wrapper
from rl2f_core.environments.worlds.gymnasium_wrapper import Gymnasium
from rl2f_core.errors import ConfigError
from rl2f_core.types import SPLITS, Verdict

INSTALLED = importlib.util.find_spec("gymnasium") is not None


class Corridor:
    """Cells in a row: action 0 goes left, 1 right; the last cell is the goal, and six steps are the limit."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "ansi"]}

    def __init__(self, render_mode: str | None = None, length: int = 4, n: int | None = 2) -> None:
        self.render_mode, self.length = render_mode, length
        self.action_space = SimpleNamespace(n=n) if n else SimpleNamespace(shape=(1,))

    def reset(self, seed: int) -> tuple[int, dict[str, Any]]:
        self.cell, self.left = random.Random(seed).randrange(self.length - 1), 6
        return self.cell, {}

    def step(self, action: int) -> tuple[int, int, bool, bool, dict[str, Any]]:
        self.cell, self.left = max(0, self.cell + (1 if action else -1)), self.left - 1
        won = self.cell == self.length - 1
        return self.cell, 1 if won else -1, won, self.left == 0, {}

    def render(self) -> str:
        cells = ["\x1b[43m\x1b[34;1mX\x1b[0m\x1b[0m" if k == self.cell else "." for k in range(self.length)]
        return "".join(cells) + "\n\n"

    def close(self) -> None:
        pass


def make(name: str, **arguments: Any) -> Corridor:
    if name != "Corridor-v0":
        raise LookupError(f"Environment `{name}` does not exist.")
    return Corridor(**arguments)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in as the package gymnasium."""
    monkeypatch.setitem(importlib.import_module("sys").modules, "gymnasium", SimpleNamespace(make=make))
    monkeypatch.setattr(gymnasium_wrapper, "_worlds", SimpleNamespace())


def corridor(**config: Any) -> Gymnasium:
    return Gymnasium(Gymnasium.Config(id="Corridor-v0", **config))


def test_a_short_name_selects_the_environment() -> None:
    stages = [{"name": "s", "method": "rl2f", "steps": 1}]
    config: Any = parse_config({"environment": "gymnasium:Taxi-v4", "teacher": "contentless", "stages": stages})
    assert (config.environment.type, config.environment.id) == ("gymnasium", "Taxi-v4")
    assert registry.get("environment", "gymnasium") is Gymnasium


@pytest.mark.skipif(INSTALLED, reason="the package is installed")
def test_without_the_package_the_error_names_it() -> None:
    with pytest.raises(ConfigError, match=r"needs the package gymnasium.*pip install gymnasium"):
        Gymnasium(Gymnasium.Config())


def test_a_wrapped_environment_keeps_the_contract(package: None) -> None:
    held = corridor()
    check_episodes(held)
    keys = [{held.canonical(held.task(split, k)) for k in range(20)} for split in SPLITS]
    assert keys[0].isdisjoint(keys[1]) and keys[0].isdisjoint(keys[2]) and keys[1].isdisjoint(keys[2])


def test_an_episode_of_a_wrapped_environment_is_as_it_says(package: None) -> None:
    held = corridor(action_names=("left", "right"), instructions="Go right.")
    task = next(t for t in (held.task("test", k) for k in range(99)) if "Observation: 1" in t.public["observation"])
    assert held.prompt(task.public) == "Go right.\n.[X]..\nObservation: 1"
    assert held.system_prompt() == "Reply with one action of left, right, as <answer>left</answer>."
    verdicts = take(held, task, ["left", "jump", "right", "right", "right"])
    assert [v.observation for v in verdicts] == [
        "[X]...\nObservation: 0",
        "This is not a valid action. Valid actions: left, right.\n\n[X]...\nObservation: 0",
        ".[X]..\nObservation: 1", "..[X].\nObservation: 2", "...[X]\nObservation: 3",
    ]  # fmt: skip
    assert [(v.reward, v.done, v.correct) for v in verdicts] == [
        (-1, False, False), (0, False, False), (-1, False, False), (-1, False, False), (1, True, True),
    ]  # fmt: skip


def test_an_episode_that_is_truncated_or_ends_below_the_reward_is_not_solved(package: None) -> None:
    held = corridor()
    last = take(held, held.task("test", 0), ["0"] * 9)[-1]
    assert (last.done, last.correct, last.reward) == (True, False, -1)
    strict = corridor(solved_above=1)
    last = take(strict, strict.task("test", 0), ["1"] * 9)[-1]
    assert (last.done, last.correct, last.reward) == (True, False, 1)


def test_what_cannot_be_played_is_refused(package: None) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        Gymnasium(Gymnasium.Config(id="Nowhere-v0"))
    with pytest.raises(ConfigError, match="no discrete actions"):
        corridor(settings={"n": None})
    for names in (("left",), ("go", "go")):
        with pytest.raises(ConfigError, match="one unique name for each action"):
            corridor(action_names=names)


def test_no_text_crashes_a_wrapped_environment(package: None) -> None:
    held = corridor()
    task = held.task("test", 0)

    @settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.text(st.characters(), max_size=50))
    def run(text: str) -> None:
        for attempt in (text, f"<answer>{text}</answer>"):
            verdict = held.verify_turn(task, (), attempt)
            assert verdict.observation and Verdict.model_validate_json(verdict.model_dump_json()) == verdict
            assert verdict.well_formed == (verdict.parsed in ("0", "1"))

    run()


@pytest.mark.skipif(not INSTALLED, reason="needs the package gymnasium")
@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"])
def test_environments_of_the_package_keep_the_contract(name: str) -> None:
    check_episodes(Gymnasium(Gymnasium.Config(id=name)), 4)
