"""Played tasks: where the configuration comes from, how an attempt is judged, and the dialogue that is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from rl2f_core import presets as core
from rl2f_core.config import BaseRun
from rl2f_core.environments.base import Environment
from rl2f_core.errors import ConfigError
from rl2f_core.events import DialogueEvent
from rl2f_core.rollout.build import build_environment
from rl2f_core.rollout.history import template
from rl2f_core.rollout.live import judged
from rl2f_core.types import SPLITS, Dialogue, StopReason, Task, Turn, TurnStop

MAX_INDEX = 2**31


def presets() -> list[str]:
    """Names of the shipped configurations."""
    return sorted(preset.name for preset in core.presets())


def preset(name: str) -> BaseRun:
    """A shipped configuration by name; raises `ConfigError` naming those there are."""
    return core.preset(name).config()


def shared_fields(config: BaseRun) -> dict[str, Any]:
    """What a played task needs of a configuration, as JSON."""
    names = ("environment", "leaks", "reward", "rollout")
    return {name: value for name, value in config.model_dump(mode="json").items() if name in names}


def make_task(config: dict[str, Any], split: str, index: int) -> tuple[Task, str]:
    """A task of the environment and the problem as the student reads it."""
    if split not in SPLITS:
        raise ConfigError("There is no such split.", value=split, known=SPLITS)
    if not 0 <= index < MAX_INDEX:
        raise ConfigError("The position of a task is a number from 0.", value=index, fix=f"Stay below {MAX_INDEX}.")
    environment = build_environment(BaseRun.model_validate(config).environment)
    task = environment.task(split, index)
    return task, environment.prompt(task.public)


def answer(config: dict[str, Any], task: dict[str, Any]) -> str:
    """The right answer of a task, in the environment's normal form."""
    return build_environment(BaseRun.model_validate(config).environment).answer(Task.model_validate(task))


def attempt(
    config: BaseRun,
    environment: Environment,
    task: Task,
    turns: Sequence[Turn],
    text: str,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    stop: TurnStop,
) -> Turn:
    """The next turn of a dialogue, judged and rewarded as the rollout engine does it."""
    asked = template(config.rollout) if turns else None
    return judged(turns, environment.verify(task, text), config.reward, text, token_ids, logprobs, stop,
                  None if asked is None else asked.version)  # fmt: skip


def written_attempt(config: dict[str, Any], task: Task, turns: Sequence[Turn], text: str) -> Turn:
    """An attempt that a person wrote in the student's place, judged like any other."""
    run = BaseRun.model_validate(config)
    return attempt(run, build_environment(run.environment), task, turns, text, (), (), TurnStop.EOS)


def fingerprint(config: dict[str, Any]) -> str:
    """Eight hex digits of the environment's configuration: task ids of two configurations are the same words."""
    return hashlib.sha256(json.dumps(config["environment"], sort_keys=True).encode()).hexdigest()[:8]


def dialogue_event(
    *, chat: int, leaf: int, index: int, speaker: str, edited: bool, seed: int, task: Task, config: dict[str, Any],
    turns: Sequence[Turn], stop: StopReason,
) -> DialogueEvent:  # fmt: skip
    """A played dialogue as an event of phase `chat`.

    Args:
        chat: Row id of the conversation; it is the event's `step`, so that one conversation can be picked.
        leaf: Row id of the last message, which tells the branches of one conversation apart.
        index: Position among the branches that were kept of this speaker.
        speaker: `base` or `RUN:stage@step`.
        edited: A person wrote some of the attempts.
        seed: Of the dialogue.
        task: The task, both halves.
        config: As `shared_fields` has it.
        turns: At least one.
        stop: How it ended.
    """
    told = task.model_copy(update={"id": f"{task.id}~{fingerprint(config)}"})
    dialogue = Dialogue(
        id=f"chat-{chat}-{leaf}",
        task_id=told.id,
        group=f"chat-{chat}",
        index=index,
        turns=tuple(turns),
        stop=stop,
        policy=f"{speaker}, edited" if edited else speaker,
        seed=seed,
    )
    return DialogueEvent.of("chat", "chat", chat, told, dialogue, checkpoint=speaker)
