"""Interactive tasks: configuration, verification of written attempts, and the recorded dialogue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobs.model_server.tasks import verify_attempt
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.build import build_environment
from rl2f_core.dialogue.rollout.rewards import charge_unfinished
from rl2f_core.environments.base import wrap_answer
from rl2f_core.environments.stateful import StatefulEnvironment
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import EDITED, SPLITS, Dialogue, JsonObject, StopReason, Task, Turn

if TYPE_CHECKING:
    from jobs.chat.checkpoints import ChatSettings
    from jobs.db.models import ChatMessage

MAX_INDEX = 2**31


def shared_fields(config: BaseRun) -> JsonObject:
    """Return the fields of a configuration that an interactive task needs, as JSON."""
    names = ("environment", "leak_detection", "reward", "rollout")
    return {name: value for name, value in config.model_dump(mode="json").items() if name in names}


def make_task(config: JsonObject, split: str, index: int) -> tuple[Task, str]:
    """Return a task of the environment and its prompt."""
    if split not in SPLITS:
        raise ConfigError("There is no such split.", value=split, known=SPLITS)
    if not 0 <= index < MAX_INDEX:
        raise ConfigError("The position of a task is a number from 0.", value=index, fix=f"Stay below {MAX_INDEX}.")
    environment = build_environment(BaseRun.model_validate(config).environment)
    task = environment.task(split, index)
    return task, environment.prompt(task.public)


def gold_answer(config: JsonObject, task: JsonObject) -> str:
    """Return the gold answer of a task."""
    return build_environment(BaseRun.model_validate(config).environment).gold_answer(Task.model_validate(task))


def valid_actions(config: JsonObject, task: JsonObject, turns: Sequence[Turn]) -> list[str] | None:
    """Return the valid actions after the turns of an open dialogue; None if the environment has no state."""
    parsed = Task.model_validate(task)
    environment = build_environment(BaseRun.model_validate(config).environment)
    environment = environment.sub_environments.get(environment.sub_environment_of(parsed), environment)
    if not isinstance(environment, StatefulEnvironment):
        return None
    state = environment.restore(parsed, [turn.verdict for turn in turns])
    return list(environment.valid_actions(parsed, state))


def taken_action(config: JsonObject, task: JsonObject, turns: Sequence[Turn], action: str) -> Turn:
    """Verify an action that a person takes; an invalid one is data. Raises `RunError` without a state."""
    if valid_actions(config, task, turns) is None:
        raise RunError("The environment of this task has no actions.", fix="Give hints to a checkpoint.")
    return written_attempt(config, Task.model_validate(task), turns, wrap_answer(action))


def written_attempt(config: JsonObject, task: Task, turns: Sequence[Turn], text: str) -> Turn:
    """Verify an attempt that a person wrote for the student."""
    run = BaseRun.model_validate(config)
    return verify_attempt(run, build_environment(run.environment), task, turns, text)


def dialogue_event(
    leaf: ChatMessage,
    settings: ChatSettings,
    task: Task,
    turns: Sequence[Turn],
    stop: StopReason,
    *,
    index: int,
    edited: bool,
) -> DialogueEvent:
    """Return an interactive task as a dialogue event of phase `chat`.

    The task id gets eight hex digits that distinguish environments with equal task ids.

    Args:
        leaf: The last message. Its id distinguishes the branches of a chat, whose id is the event's `step`.
        settings: Configuration and seed of the dialogue.
        task: The task with its privileged data.
        turns: At least one.
        stop: Stop reason.
        index: Position among the recorded branches of this checkpoint.
        edited: Whether a person wrote an attempt.
    """
    chat, checkpoint = leaf.chat_id, leaf.checkpoint
    environment = json.dumps(settings.config["environment"], sort_keys=True)
    built = build_environment(BaseRun.model_validate(settings.config).environment)
    unique = task.model_copy(update={"id": f"{task.id}~{hashlib.sha256(environment.encode()).hexdigest()[:8]}"})
    dialogue = Dialogue(
        id=f"chat-{chat}-{leaf.id}",
        task_id=unique.id,
        group=f"chat-{chat}",
        index=index,
        turns=charge_unfinished(built, task, turns, stop),
        stop_reason=stop,
        policy=checkpoint + EDITED if edited else checkpoint,
        seed=settings.sampling.seed,
    )
    return DialogueEvent.of("chat", "chat", chat, unique, dialogue, checkpoint=checkpoint)
