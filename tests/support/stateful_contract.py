"""What every stateful environment must keep."""

from __future__ import annotations

import math
import random

import pytest

from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.stateful import OracleEnvironment, StatefulEnvironment
from rl2f_core.errors import DataError
from rl2f_core.types import Task, Verdict

INVALID = ("", "<answer>", wrap_answer(""), wrap_answer("no such action"), wrap_answer("\ud800"), "9" * 30_000)


def take(environment: StatefulEnvironment, task: Task, actions: list[str]) -> list[Verdict]:
    """The verdicts on actions in order, up to the end of the episode."""
    verdicts: list[Verdict] = []
    for action in actions:
        if verdicts and verdicts[-1].done:
            break
        verdicts.append(environment.verify_turn(task, verdicts, wrap_answer(action)))
    return verdicts


def check_step(verdict: Verdict) -> None:
    """The verdict on a valid action has an observation, a finite reward and a consistent end."""
    assert verdict.well_formed and verdict.observation and verdict.observation.strip()
    assert verdict.reward is not None and math.isfinite(verdict.reward)
    assert verdict.score == float(verdict.correct) and (verdict.done or not verdict.correct)
    assert verdict.distance is None or (0 <= verdict.distance <= 1 and (verdict.distance == 0) == verdict.correct)
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def check_invalid(environment: StatefulEnvironment, task: Task, earlier: list[Verdict]) -> None:
    """An invalid action is data: a message, a reward, and the same state."""
    valid = list(environment.valid_actions(task, environment.restore(task, earlier)))
    for attempt in INVALID:
        verdict = environment.verify_turn(task, earlier, attempt)
        assert not verdict.correct and not verdict.done and not verdict.well_formed and verdict.score == 0
        assert verdict.reward == environment.invalid_reward
        assert verdict.observation and valid[0] in verdict.observation
        verdict.model_dump_json()
        assert list(environment.valid_actions(task, environment.restore(task, [*earlier, verdict]))) == valid


def check_episode(environment: StatefulEnvironment, task: Task, rng: random.Random, length: int = 6) -> None:
    """Random actions: each step follows from the task and the actions, and what was recorded is checked."""
    verdicts: list[Verdict] = []
    while len(verdicts) < length and not (verdicts and verdicts[-1].done):
        valid = environment.valid_actions(task, environment.restore(task, verdicts))
        assert valid and len(set(valid)) == len(valid) and all(environment.parse(task, a) == a for a in valid)
        attempt = f"Let me see. {wrap_answer(rng.choice(valid))}"
        verdict = environment.verify_turn(task, verdicts, attempt)
        assert verdict == environment.verify_turn(task, verdicts, attempt)
        check_step(verdict)
        verdicts.append(verdict)
        if not verdict.done:
            check_invalid(environment, task, verdicts)
    forged = verdicts[-1].model_copy(update={"observation": "You see a dragon."})
    with pytest.raises(DataError, match=f"at turn {len(verdicts)} the observation differs"):
        environment.restore(task, [*verdicts[:-1], forged])
    with pytest.raises(DataError, match="at turn 1 the action is not valid"):
        environment.restore(task, [verdicts[0].model_copy(update={"parsed": "no such action"})])
    if verdicts[-1].done:
        with pytest.raises(DataError, match="has ended"):
            environment.verify_turn(task, verdicts, wrap_answer("again"))
        with pytest.raises(DataError, match="continues after its end"):
            environment.restore(task, [*verdicts, verdicts[0]])


def check_oracle(environment: OracleEnvironment, task: Task) -> None:
    """The oracle's plan solves the task with its last action, and each step comes nearer."""
    plan = environment.plan(task)
    verdicts = take(environment, task, plan)
    assert [v.correct for v in verdicts] == [False] * (len(plan) - 1) + [True] and verdicts[-1].done
    assert [v.parsed for v in verdicts] == plan and environment.gold_answer(task) == ", ".join(plan)
    distances = [v.distance for v in verdicts if v.distance is not None]
    assert distances == sorted(distances, reverse=True) and len(set(distances)) in (0, len(plan))
    told = environment.simulate_attempt(task, verdicts[:1], random.Random(0), follow_hint=True, correct=False)
    assert len(plan) < 2 or told == wrap_answer(plan[1])


def check_episodes(environment: StatefulEnvironment, count: int = 12) -> None:
    """Episodes on several tasks."""
    for index in range(count):
        task = environment.task("test", index)
        assert environment.restore(task, ()) is not None
        check_episode(environment, task, random.Random(index))
        if isinstance(environment, OracleEnvironment):
            check_oracle(environment, task)
