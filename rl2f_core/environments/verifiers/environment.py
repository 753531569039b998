"""`verifiers:<taskset>`: a text taskset of the package verifiers, with its rubric as the verifier.

The rubric scores the whole attempt, as the only reply to the task's prompt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, JsonValue, field_validator

from rl2f_core.config.fields import BASIC_FIELD, FILE_REF, ComponentConfig
from rl2f_core.environments.base import (
    MAX_ATTEMPT_CHARS,
    Environment,
    assign_split,
    listed_task,
    new_task,
    parsed_answers,
)
from rl2f_core.environments.math.answer_text import canonical, folded
from rl2f_core.environments.verifiers.taskset import Reply, Taskset, open_taskset
from rl2f_core.errors import ConfigError
from rl2f_core.registry import register
from rl2f_core.types import SPLITS, Split, Task, TaskData, Verdict

NOT_SETTINGS = ("id", "task", "system_prompt")
"""Fields of a taskset's configuration that can name files, programs and addresses."""

ROUNDING = 1e-6
"""Tolerance of `correct_from`, because a reward is a sum of weighted terms."""


@register("environment")
class Verifiers(Environment):
    """A hash of the prompt assigns each task to a split; the task order is a permutation of it, then another one."""

    member_field: ClassVar[str] = "taskset"
    has_rewards = True

    class Config(ComponentConfig):
        """Taskset, its settings, and when a reply is correct."""

        type: Literal["verifiers"] = "verifiers"
        """Name of the environment; `verifiers:gsm8k-v1` is short for this type and the taskset gsm8k-v1."""
        taskset: str = Field("gsm8k-v1", pattern=r"^[A-Za-z0-9][A-Za-z0-9._/@-]*$", json_schema_extra=BASIC_FIELD)
        """Id of a taskset that is installed beside verifiers, or the name of its module."""
        settings: dict[str, JsonValue] = Field(default_factory=dict, json_schema_extra=BASIC_FIELD)
        """Settings of the taskset, e.g. its split. Paths, and settings of its tasks, are for `settings_file`."""
        settings_file: str | None = Field(None, json_schema_extra=FILE_REF)
        """JSON file with more settings, e.g. `{"task": {"judges": […]}}`; `settings` wins."""
        correct_from: float = Field(1.0, gt=0, json_schema_extra=BASIC_FIELD)
        """A reply is correct if its reward is at least this."""
        answer_field: str = "answer"
        """Field of a task with the gold answer, which teachers and leak detectors use; may be missing."""
        max_tasks: int = Field(10_000, ge=3, le=1_000_000)
        """Tasks that are read; a taskset may be infinite."""
        load_limit: float = Field(600.0, gt=0, le=7200)
        """Time limit in seconds for reading the tasks."""
        time_limit: float = Field(30.0, gt=0, le=600)
        """Time limit in seconds for scoring a reply, or several at once."""
        seed: int = 0
        """Seed of the task order."""

        @field_validator("settings")
        @classmethod
        def _check_settings(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
            if taken := sorted(set(value) & set(NOT_SETTINGS)):
                raise ValueError(
                    f"{', '.join(taken)} cannot be set here; taskset names it, settings_file has the others"
                )
            return value

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._split_positions: dict[Split, list[int]] | None = None

    @property
    def source(self) -> Taskset:
        """The taskset, read once per process. Raises `ConfigError` without the package, or if it is not text only."""
        config = self.config
        settings = json.dumps(config.settings, sort_keys=True)
        return open_taskset(
            config.taskset, settings, _read_settings(config.settings_file), config.max_tasks, config.load_limit
        )

    # -- tasks -------------------------------------------------------------------------------------------------
    @property
    def positions(self) -> dict[Split, list[int]]:
        """The positions of the tasks in each split."""
        if self._split_positions is None:
            found: dict[Split, list[int]] = {split: [] for split in SPLITS}
            for position in range(len(self.source.tasks)):
                problem = self._task(position).public["problem"]
                found[assign_split(canonical(problem) or problem)].append(position)
            self._split_positions = found
        return self._split_positions

    def task(self, split: Split, index: int) -> Task:
        """Raises `DataError` if the split is empty, and `ConfigError` if the taskset cannot be used."""
        positions, fix = self.positions[split], "Use a taskset with more tasks, or raise max_tasks."
        task = listed_task(self, positions, split, index, self.config.seed, self._task, fix)
        return task.model_copy(update={"id": f"{self.name}/{self.config.taskset}/{split}/{index}"})

    def _task(self, position: int) -> Task:
        found = self.source.tasks[position]
        common = self.source.system is not None
        public: TaskData = {"problem": found.prompt if common else f"{found.system}\n\n{found.prompt}".strip()}
        answer = found.data.get(self.config.answer_field)
        known = {"answer": str(answer)} if isinstance(answer, str | int | float) else {}
        return new_task(self, self.config.taskset, public, {**known, "position": position, "key": found.key})

    def canonical(self, task: Task) -> str:
        return folded(task.public["problem"])

    def describe_data(self) -> str:
        """Count the tasks. Raises `ConfigError` if the taskset cannot be used."""
        sizes = ", ".join(f"{len(positions):,} {split}" for split, positions in self.positions.items())
        return f"verifiers:{self.config.taskset}: tasks: {sizes}."

    # -- student -----------------------------------------------------------------------------------------------
    def system_prompt(self) -> str:
        """The system message of the taskset. Tasks with different ones have it in their problem text."""
        return self.source.system or ""

    def prompt(self, public: TaskData) -> str:
        return str(public["problem"])

    # -- verifier ----------------------------------------------------------------------------------------------
    def gold_answer(self, task: Task) -> str:
        """The task's field `answer_field`; empty without one. The rubric need not accept it as a reply."""
        return str(task.privileged.get("answer", ""))

    def extract(self, attempt: str) -> tuple[str | None, str]:
        """The whole attempt: the rubric finds the answer in it."""
        if len(attempt) > MAX_ATTEMPT_CHARS:
            return None, f"unparsable: the attempt is {len(attempt)} characters long"
        return (attempt, "") if attempt.strip() else (None, "unparsable: the attempt is empty")

    def parse(self, task: Task, text: str) -> str | None:
        return text.strip().encode(errors="replace").decode() or None

    def score_parsed(self, task: Task, parsed: str) -> Verdict:
        """An error of the rubric is a wrong attempt with the error as detail."""
        score = self.source.score(_reply(task, parsed), self.config.time_limit)
        if score.error:
            return Verdict(correct=False, score=0.0, parsed=parsed, reward=0.0, detail=f"no reward: {score.error}")
        correct = score.reward >= self.config.correct_from - ROUNDING
        partial = max(0.0, score.reward / self.config.correct_from)
        terms = ", ".join(f"{name} {value}" for name, value in score.terms.items())
        return Verdict(
            correct=correct,
            score=1.0 if correct else partial,
            parsed=parsed,
            detail=f"reward {score.reward:g} ({terms})",
            well_formed=True,
            reward=score.reward,
        )

    def prefetch_verdicts(self, attempts: Sequence[tuple[Task, str]]) -> None:
        """Score the attempts of a batch at the same time."""
        replies = [_reply(task, parsed) for task, parsed in parsed_answers(self, attempts)]
        self.source.prefetch(replies, self.config.time_limit)


def _reply(task: Task, text: str) -> Reply:
    return Reply(task.privileged["position"], task.privileged["key"], text)


def _read_settings(file: str | None) -> str:
    """Return the JSON object of a file in one normal form. Raises `ConfigError` if it has none."""
    if file is None:
        return "{}"
    try:
        settings: Any = json.loads(Path(file).expanduser().read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"settings_file cannot be read: {error}.", value=file, fix="Name a JSON file.") from error
    if not isinstance(settings, dict):
        raise ConfigError("settings_file has no JSON object.", value=file, fix='Write one, e.g. {"split": "train"}.')
    return json.dumps(settings, sort_keys=True)
