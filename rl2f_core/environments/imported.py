"""Tasks of imported rollouts: a recorded prompt and, if the file has one, a gold answer."""

from __future__ import annotations

from typing import ClassVar, Literal, NoReturn

from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError
from rl2f_core.registry import register
from rl2f_core.types import Message, Split, Task, TaskData


@register("environment")
class Imported(Environment):
    """Recorded tasks, which can be displayed and searched for leaks, but neither sampled nor verified."""

    class Config(ComponentConfig):
        """Recorded tasks of another program."""

        type: Literal["imported"] = "imported"
        """Name of the environment."""

    unavailable_reason: ClassVar[str] = (
        "environment imported has recorded dialogues only: its tasks can be neither sampled nor verified, so it cannot "
        "be trained on, evaluated or forked; use the environment of the tasks"
    )

    def task(self, split: Split, index: int) -> NoReturn:
        """Raise `DataError`: there is no generator of tasks."""
        raise DataError("An imported run has no tasks to sample.", fix="Choose another environment.")

    def system_prompt(self) -> str:
        """Return an empty message: the recorded prompt contains the system message."""
        return ""

    def prompt_messages(self, public: TaskData) -> list[Message]:
        """Return the recorded messages before the first attempt."""
        return [Message(role=str(m["role"]), content=str(m["content"])) for m in public["messages"]]

    def prompt(self, public: TaskData) -> str:
        """Return the messages before the first attempt as text, with their roles if there are several."""
        messages = public["messages"]
        if len(messages) == 1:
            return str(messages[0]["content"])
        return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)

    def has_secret(self, task: Task) -> bool:
        """Return True: the recorded teacher may have known an answer that the file does not have."""
        return True

    def gold_answer(self, task: Task) -> str:
        """Return the recorded gold answer; empty without one."""
        return str(task.privileged.get("answer", ""))
