"""Interactive tasks in a stateful environment: written actions are verified in order and shown with observations."""

from __future__ import annotations

import json
from typing import Any

from jobs.chat.chat_export import lines
from jobs.chat.interactive_task import InteractiveTask, make_task, shared_fields
from jobs.db.models import Chat, ChatMessage
from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.dialogue_builder import stop_reason
from rl2f_core.environments.worlds.taxi.environment import Taxi
from rl2f_core.types import Hint, StopReason, Turn


def fields(**environment: Any) -> Any:
    stages = [{"name": "rl", "method": "rl2f", "steps": 1}]
    return shared_fields(parse_config({"environment": {"type": "taxi", **environment}, "stages": stages}))


def test_a_person_plays_a_stateful_task_from_observation_to_observation() -> None:
    config = fields(size=3)
    task, problem = make_task(config, "test", 0)
    plan = Taxi(Taxi.Config(size=3)).plan(task)
    played, turns = InteractiveTask(config, task), list[Turn]()
    for action in ["jump", *plan]:
        turns.append(played.written_attempt(turns, f"<answer>{action}</answer>"))
    observations = [turn.verdict.observation for turn in turns]
    assert "T" in problem and str(observations[0]).startswith("This is not a valid action.")
    assert str(observations[1]).startswith(("The taxi moved", "The passenger got in"))
    assert [turn.verdict.correct for turn in turns] == [False] * len(plan) + [True]
    stops = [stop_reason(turn, 64) for turn in turns]
    assert stops == [None] * len(plan) + [StopReason.SOLVED]
    assert played.environment.gold_answer(task) == ", ".join(plan)


def test_an_episode_that_the_environment_ends_is_over() -> None:
    config = fields(dangerous=True)
    task, _ = make_task(config, "test", 0)
    turn = InteractiveTask(config, task).written_attempt((), "<answer>dropoff</answer>")
    assert (turn.verdict.done, stop_reason(turn, 64)) == (True, StopReason.ENDED)


def test_an_exported_chat_has_the_observations_before_the_hints() -> None:
    config = fields(map="gymnasium")
    task, problem = make_task(config, "test", 0)
    turn = InteractiveTask(config, task).written_attempt((), "<answer>north</answer>")
    rows = [
        ChatMessage(id=1, chat_id=1, role="user", content=problem, time=0),
        ChatMessage(id=2, chat_id=1, parent=1, role="assistant", checkpoint="base", content=turn.attempt, time=0,
                    detail={"turn": turn.model_dump(mode="json")}),
        ChatMessage(id=3, chat_id=1, parent=2, role="teacher", checkpoint="base", content="Go on.", time=0,
                        detail={"hint": Hint(text="Go on.", teacher="scripted").model_dump(mode="json")}),
        ChatMessage(id=4, chat_id=1, parent=3, role="assistant", checkpoint="base", content="Well.", time=0),
    ]  # fmt: skip
    chat = Chat(id=1, title="t", mode="play", settings={"config": config}, created=0, changed=0)
    (line,) = lines(chat, rows, "messages")
    system, *messages = json.loads(line)["messages"]
    assert system["content"].startswith("You drive the taxi")
    assert [m["content"] for m in messages] == [problem, turn.attempt, f"{turn.verdict.observation}\n\nGo on.", "Well."]
