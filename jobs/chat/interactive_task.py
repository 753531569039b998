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
from rl2f_core.errors import RunError
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import EDITED, Dialogue, JsonObject, Split, StopReason, Task, Turn

if TYPE_CHECKING:
    from jobs.db.models import ChatMessage


def shared_fields(config: BaseRun) -> JsonObject:
    """Return the fields of a configuration that an interactive task needs, as JSON."""
    names = ("environment", "leak_detection", "reward", "rollout")
    return {name: value for name, value in config.model_dump(mode="json").items() if name in names}


class InteractiveTask:
    """A task with its environment.

    Args:
        config: The fields of `shared_fields`.
        task: The task with its privileged data.
    """

    def __init__(self, config: JsonObject, task: Task) -> None:
        self.stored, self.config, self.task = config, BaseRun.model_validate(config), task
        self.environment = build_environment(self.config.environment)

    def valid_actions(self, turns: Sequence[Turn]) -> list[str] | None:
        """Return the valid actions after the turns of an open dialogue; None if the environment has no state."""
        names, task = self.environment.sub_environments, self.task
        environment = names.get(self.environment.sub_environment_of(task), self.environment)
        if not isinstance(environment, StatefulEnvironment):
            return None
        state = environment.restore(task, [turn.verdict for turn in turns])
        return list(environment.valid_actions(task, state))

    def taken_action(self, turns: Sequence[Turn], action: str) -> Turn:
        """Verify an action that a person takes; an invalid one is data. Raises `RunError` without a state."""
        if self.valid_actions(turns) is None:
            raise RunError("The environment of this task has no actions.", fix="Give hints to a checkpoint.")
        return self.written_attempt(turns, wrap_answer(action))

    def written_attempt(self, turns: Sequence[Turn], text: str) -> Turn:
        """Verify an attempt that a person wrote for the student."""
        return verify_attempt(self.config, self.environment, self.task, turns, text)

    def dialogue_event(
        self, leaf: ChatMessage, turns: Sequence[Turn], stop: StopReason, *, index: int, seed: int, edited: bool
    ) -> DialogueEvent:
        """Return a dialogue as an event of phase `chat`.

        The task id gets eight hex digits that distinguish environments with equal task ids.

        Args:
            leaf: The last message. Its id distinguishes the branches of a chat, whose id is the event's `step`.
            turns: At least one.
            stop: Stop reason.
            index: Position among the recorded branches of this checkpoint.
            seed: Seed of the dialogue.
            edited: Whether a person wrote an attempt.
        """
        chat, checkpoint = leaf.chat_id, leaf.checkpoint
        settings = json.dumps(self.stored["environment"], sort_keys=True)
        digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
        unique = self.task.model_copy(update={"id": f"{self.task.id}~{digest}"})
        dialogue = Dialogue(
            id=f"chat-{chat}-{leaf.id}",
            task_id=unique.id,
            group=f"chat-{chat}",
            index=index,
            turns=charge_unfinished(self.environment, self.task, turns, stop),
            stop_reason=stop,
            policy=checkpoint + EDITED if edited else checkpoint,
            seed=seed,
        )
        return DialogueEvent.of("chat", "chat", chat, unique, dialogue, checkpoint=checkpoint)


def make_task(config: JsonObject, split: Split, index: int) -> tuple[Task, str]:
    """Return a task of the environment and its prompt."""
    environment = build_environment(BaseRun.model_validate(config).environment)
    task = environment.task(split, index)
    return task, environment.prompt(task.public)
