"""The levels that a stage goes through: settings of its environment that change, and when the next level begins.

A level is whatever the environment's own configuration can say (people, digits, the size of a grid, the shares of a
mixture), so every environment has levels.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from rl2f_core.errors import ConfigError
from rl2f_core.fields import BASIC, BaseConfig
from rl2f_core.overrides import put
from rl2f_core.types import Task

_LEVEL = re.compile(r"~([1-9][0-9]{0,8})$")


def marked(task: Task, number: int) -> Task:
    """A task of level `number` (1-based): its id ends in `~number`, and its level says so too.

    The same position of two levels' streams would else give two problems one id, and levels need not show in a task.
    """
    return task.model_copy(update={"id": f"{task.id}~{number}", "level": f"{task.level} (level {number})"})


def level_of(task_id: str) -> int | None:
    """The 1-based level in a task's id; None where it comes from no curriculum."""
    found = _LEVEL.search(task_id)
    return int(found[1]) if found else None


class Level(BaseConfig):
    """One level."""

    settings: dict[str, Any] = Field(default_factory=dict, json_schema_extra=BASIC)
    """What this level changes in the run's environment, e.g. `people: 3`; a dotted name (`parts.0.share`) reaches
    deeper. The other settings are the run's."""
    steps: int | None = Field(None, ge=1, json_schema_extra=BASIC)
    """The next level begins after so many steps at the latest; None waits for the solve rate. The last level has
    none."""

    def in_words(self) -> str:
        """`people=3, depth=2`."""
        return ", ".join(f"{key}={value}" for key, value in self.settings.items()) or "as the run's"


class Curriculum(BaseConfig):
    """Levels in order, and what moves on to the next one."""

    levels: tuple[Level, ...] = Field(min_length=2)
    """From the first to the last; the last one lasts to the end of the stage."""
    solve_rate: float | None = Field(None, gt=0, le=1, json_schema_extra=BASIC)
    """The next level begins where at least this share of the level's dialogues in the window was solved; None moves
    on by steps alone."""
    window: int = Field(10, ge=1)
    """Steps that the share is taken over; a level lasts at least as long where the share moves it on."""
    solved: Literal["first", "within"] = "within"
    """What counts as solved: right at the first attempt, or within all turns."""
    old: float = Field(0.0, ge=0, lt=1)
    """Share of the tasks that is drawn from earlier levels, each as often as any other."""

    @model_validator(mode="after")
    def _ends(self) -> Curriculum:
        for number, level in enumerate(self.levels[:-1], start=1):
            if level.steps is None and self.solve_rate is None:
                raise ValueError(
                    f"level {number} has no end: give it steps, or give the curriculum a solve_rate that ends it"
                )
        if self.levels[-1].steps is not None:
            raise ValueError("the last level lasts to the end of the stage, so it has no steps of its own")
        return self

    def environments(self, environment: BaseConfig) -> list[BaseConfig]:
        """The environment's configuration at each level. Raises `ValueError` naming the level that it refuses."""
        found = []
        for number, level in enumerate(self.levels, start=1):
            data: Any = environment.model_dump(mode="json")
            try:
                for path, value in level.settings.items():
                    if path.partition(".")[0] == "type":
                        raise ConfigError("A level cannot change the environment itself.", value=value,
                                          fix="Take environment mixture, whose shares can be levels.")  # fmt: skip
                    data = put(data, path, value)
                found.append(type(environment).model_validate(data))
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                said = first["msg"].removeprefix("Value error, ")
                raise ValueError(f"level {number} of the curriculum: {where}: {said}") from error
            except ConfigError as error:
                raise ValueError(f"level {number} of the curriculum: {error}") from error
        return found

    def check(self, stage: str, environment: BaseConfig, *, on_policy: bool) -> None:
        """Refuse levels that the environment does not have, or that cannot be told apart. Raises `ValueError`."""
        made = self.environments(environment)
        for number, config in enumerate(made, start=1):
            if config in made[: number - 1]:
                raise ValueError(
                    f"stage {stage!r}: level {number} of the curriculum is level {made.index(config) + 1} again"
                )
        if self.solve_rate is not None and not on_policy:
            raise ValueError(
                f"stage {stage!r}: its method imitates, so no solve_rate can move its curriculum on; give levels steps"
            )
