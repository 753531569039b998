"""Curriculum of a stage: levels with changed environment settings, and when the next level begins.

A level may change any setting of the environment (people, digits, grid size, weights of a mixture).
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from rl2f_core.config.fields import BASIC_FIELD, BaseConfig
from rl2f_core.config.overrides import set_nested
from rl2f_core.errors import ConfigError, FieldValueError
from rl2f_core.types import JsonObject, Task

_LEVEL = re.compile(r"~([1-9][0-9]{0,8})$")


def tag_level(task: Task, number: int) -> Task:
    """Tag a task with its 1-based level, so that tasks of different levels have different ids (`…~number`)."""
    return task.model_copy(update={"id": f"{task.id}~{number}", "level": f"{task.level} (level {number})"})


def level_of(task_id: str) -> int | None:
    """Return the 1-based level in a task id, or None without a curriculum."""
    match = _LEVEL.search(task_id)
    return int(match[1]) if match else None


class Level(BaseConfig):
    """One level of a curriculum."""

    settings: JsonObject = Field(default_factory=dict, json_schema_extra=BASIC_FIELD)
    """Changed settings of the run's environment, e.g. `people: 3`; dotted names (`environments.0.weight`) reach nested
    ones."""
    steps: int | None = Field(None, ge=1, json_schema_extra=BASIC_FIELD)
    """Maximum number of steps; None waits for the solve rate. The last level has none."""

    def describe(self) -> str:
        """Describe the settings, e.g. `people=3, depth=2`."""
        return ", ".join(f"{key}={value}" for key, value in self.settings.items()) or "as the run's"


class Curriculum(BaseConfig):
    """Levels in order, and when the next one begins."""

    levels: tuple[Level, ...] = Field(min_length=2)
    """Levels in order; the last one lasts to the end of the stage."""
    solve_rate_threshold: float | None = Field(None, gt=0, le=1, json_schema_extra=BASIC_FIELD)
    """Solve rate in the window at which the next level begins; None uses only `steps`."""
    window_steps: int = Field(10, ge=1)
    """Window of the solve rate in steps, and the minimum length of a level that the solve rate ends."""
    solved_at: Literal["first_turn", "any_turn"] = "any_turn"
    """Solved at the first attempt, or at any turn."""
    replay_fraction: float = Field(0.0, ge=0, lt=1)
    """Fraction of tasks from earlier levels, each equally likely."""

    @model_validator(mode="after")
    def _check_steps(self) -> Curriculum:
        for number, level in enumerate(self.levels[:-1], start=1):
            if level.steps is None and self.solve_rate_threshold is None:
                raise FieldValueError(
                    f"level {number} has no end; set its steps, or solve_rate_threshold of the curriculum",
                    "solve_rate_threshold",
                )
        if self.levels[-1].steps is not None:
            raise FieldValueError(
                "the last level lasts to the end of the stage; remove its steps",
                *("levels", len(self.levels) - 1, "steps"),
            )
        return self

    def environments(self, environment: BaseConfig) -> list[BaseConfig]:
        """Return the environment's config at each level. Raises `FieldValueError` for an invalid level."""
        configs = []
        for number, level in enumerate(self.levels, start=1):
            data = environment.model_dump(mode="json")
            try:
                for path, value in level.settings.items():
                    if path.partition(".")[0] == "type":
                        raise ConfigError(
                            "A level cannot change the type of the environment.",
                            value=value,
                            fix="Use environment mixture with a weight per level.",
                        )
                    data = set_nested(data, path, value)
                configs.append(type(environment).model_validate(data))
            except ValidationError as error:
                first = error.errors()[0]
                message = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
                raise FieldValueError(f"level {number} of the curriculum: {message}", "curriculum") from error
            except ConfigError as error:
                raise FieldValueError(f"level {number} of the curriculum: {error}", "curriculum") from error
        return configs

    def check(self, stage: str, environment: BaseConfig, *, on_policy: bool) -> None:
        """Raise `FieldValueError` if levels are invalid or equal, or never end."""
        configs = self.environments(environment)
        for number, config in enumerate(configs, start=1):
            if config in configs[: number - 1]:
                raise FieldValueError(
                    f"stage {stage!r}: level {number} of the curriculum equals level {configs.index(config) + 1}",
                    "curriculum",
                )
        if self.solve_rate_threshold is not None and not on_policy:
            raise FieldValueError(
                f"stage {stage!r}: an off-policy method has no solve rate; set the steps of the curriculum's levels",
                "curriculum",
            )
