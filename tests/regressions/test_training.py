"""Rewards, references, schedules, first adapters and scores that are not numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jobs.chat.interactive_task import dialogue_event
from rl2f_core.backends.fake import FakeBackend
from rl2f_core.config.loading import parse_config
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.household.environment import Household
from rl2f_core.environments.verifiers import server
from rl2f_core.rollout.build import build_engine
from rl2f_core.rollout.engine import RolloutEngine, RolloutRequest
from rl2f_core.rollout.transcript import rollout_from_text
from rl2f_core.types import Dialogue, StopReason


# -- auto_explore: the end of an episode without an answer ----------------------------------------------------------
def explorer(text: str = "no command", max_turns: int = 8, **changes: Any) -> RolloutEngine:
    """A student of `auto_explore` that always replies with the same text."""
    rollout = {"max_turns": max_turns, "max_new_tokens": 40, "max_seq_len": 8192} | changes.pop("rollout", {})
    base = {"environment": "auto_explore", "teacher": "contentless", "reward": {"preset": "environment"}}
    stages = [{"name": "rl", "method": "rl2f", "steps": 1}]
    data = base | {"backend": "fake", "rollout": rollout, "stages": stages, "leak_detection": {"detectors": []}}
    return build_engine(parse_config(data | changes), FakeBackend(script=lambda prompt, rng: text))


def episode(engine: RolloutEngine, **more: Any) -> Dialogue:
    (rollout,) = engine.run([RolloutRequest(engine.environment.task("test", 0), "d", "g", 0, 7, **more)])
    return rollout.dialogue


def total(dialogue: Dialogue) -> float:
    return sum(turn.reward for turn in dialogue.turns)


@pytest.mark.parametrize(("turns", "reward"), [(8, -23.0), (15, -30.0)])
def test_an_episode_without_id_costs_the_end_reward(turns: int, reward: float) -> None:
    dialogue = episode(explorer(max_turns=turns))
    assert (dialogue.stop_reason, len(dialogue.turns), total(dialogue)) == (StopReason.EXHAUSTED, turns, reward)
    assert [turn.reward for turn in dialogue.turns] == [-1.0] * (turns - 1) + [-16.0]


def test_no_answer_is_worse_than_a_wrong_answer_after_as_many_commands() -> None:
    engine = explorer(max_turns=3)
    task = engine.environment.task("test", 0)
    wrong = task.model_copy(update={"privileged": {"answer": "another/file.py"}})
    commands = [wrap_answer(text) for text in engine.environment.plan(task)]  # type: ignore[attr-defined]
    request = RolloutRequest(wrong, "d", "g", 0, 7)
    named, silent = (rollout_from_text(engine, request, texts).dialogue for texts in (commands, commands[:-1]))
    assert named.stop_reason is StopReason.ENDED and silent.stop_reason is StopReason.EXHAUSTED
    assert total(named) == -len(commands) - 15 and total(silent) == -len(commands) + 1 - 15


def test_an_episode_that_fills_the_context_costs_the_end_reward() -> None:
    dialogue = episode(explorer(max_turns=60, rollout={"max_seq_len": 700}))
    assert dialogue.stop_reason is StopReason.CONTEXT_FULL and total(dialogue) == -len(dialogue.turns) - 15


def test_the_end_reward_has_the_weight_of_the_environment() -> None:
    assert total(episode(explorer(reward={"preset": "environment", "environment_weight": 0.1}))) == pytest.approx(-2.3)


def test_a_continued_episode_pays_the_end_reward_once() -> None:
    first = episode(explorer(max_turns=3))
    assert total(first) == -18
    continued = episode(explorer(max_turns=8), turns=first.turns)
    assert [turn.reward for turn in continued.turns] == [-1.0] * 7 + [-16.0]


def test_a_mixture_charges_the_end_reward_of_its_part() -> None:
    parts = [{"environment": {"type": "auto_explore", "depth": depth}, "name": f"d{depth}"} for depth in (1, 2)]
    assert total(episode(explorer(environment={"type": "mixture", "environments": parts}))) == -23


def test_an_interactive_task_that_a_person_ends_pays_the_end_reward() -> None:
    engine = explorer(max_turns=2)
    task = engine.environment.task("test", 0)
    settings: Any = SimpleNamespace(
        config={"environment": {"type": "auto_explore"}, "reward": {"preset": "environment"}},
        sampling=SimpleNamespace(seed=0),
    )
    turns = episode(engine, turns=()).turns[:1]
    leaf: Any = SimpleNamespace(chat_id=1, id=2, checkpoint="base")
    event = dialogue_event(leaf, settings, task, turns, StopReason.EXHAUSTED, index=0, edited=False)
    assert total(event.dialogue) == -16


def test_a_taskset_for_verifiers_charges_the_end_reward() -> None:
    reply = server.verify(explorer().environment, "test", 0, ["no command"] * 8)
    assert (reply["done"], reply["reward"]) == (False, -23)


@pytest.mark.parametrize(
    ("costs", "attempt", "reward"),
    [(False, wrap_answer("ls"), -1), (True, wrap_answer("ls"), -3), (False, "hm", -1), (True, "hm", -2)],
    ids=["error, off by default", "error", "warning, off by default", "warning"],
)
def test_the_costs_of_error_and_warning_are_an_option(costs: bool, attempt: str, reward: float) -> None:
    settings = {"type": "auto_explore"} | ({"invalid_costs": True} if costs else {})
    dialogue = episode(explorer(attempt, max_turns=2, environment=settings))
    assert [turn.reward for turn in dialogue.turns] == [reward, reward - 15]


def test_an_invalid_action_in_a_household_is_not_cheaper_than_a_valid_one() -> None:
    environment = Household(Household.Config(step_reward=-0.1))
    task = environment.task("test", 0)
    assert environment.verify(task, "no action").reward == -0.1
