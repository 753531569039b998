"""kind: levels. Checkpoints on several levels of an environment, and on perturbed copies of the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from rl2f_core import registry
from rl2f_core.config import BaseRun, parse_config
from rl2f_core.environments.base import Environment
from rl2f_core.errors import ConfigError
from rl2f_core.fields import BASIC, KNOWN_CHECKPOINT, BaseConfig
from rl2f_core.kinds.eval import Target, eval_config
from rl2f_core.registry import register
from rl2f_core.run import Journal, Progress, RunDir, Stop

NEW_TOKENS = 256
"""Tokens of an attempt where no training run says how many: eight people's roles take about 80."""


class LevelsRun(BaseRun):
    """An evaluation by level. Of `evaluation` it takes temperature, bootstrap and seed; the rest stands here."""

    kind: Literal["levels"] = "levels"
    """Kind of run."""
    adapters: dict[str, str | None] = Field(min_length=1, json_schema_extra={**BASIC, **KNOWN_CHECKPOINT})
    """Name in the report → folder of a LoRA adapter; null is the base model."""
    field: str | None = Field(None, max_length=100, json_schema_extra=BASIC)
    """The whole-number field of the environment that is swept; null is the one that it names as its level."""
    values: tuple[int, ...] = Field((), max_length=100, json_schema_extra=BASIC)
    """Its values, from easy to hard; empty: those that the environment lists."""
    perturbations: tuple[str, ...] | None = Field(None, json_schema_extra=BASIC)
    """Which perturbed copies of each task are played; null is all that the environment offers, [] none."""
    tasks: int = Field(100, ge=1, le=100_000, json_schema_extra=BASIC)
    """Tasks at each level."""
    samples: int = Field(1, ge=1, le=1000)
    """Dialogues on each task and each of its copies."""
    turns: int = Field(1, ge=1, le=64)
    """Turns with the run's teacher on the tasks as they are; copies, and the accuracy, are first attempts."""
    split: Literal["train", "validation", "test"] = "test"
    """Where the tasks come from; memorisation is best looked for in `train`."""

    @model_validator(mode="after")
    def _levels_exist(self) -> LevelsRun:
        kind = self._environment_class()
        field = self.swept()
        name: Any = self.environment.type  # type: ignore[attr-defined]
        if field is None and self.values:
            raise ValueError(f"values need a field: {name} names none as its level")
        if field is not None and field not in type(self.environment).model_fields:  # type: ignore[attr-defined]
            known = ", ".join(type(self.environment).model_fields)  # type: ignore[attr-defined]
            raise ValueError(f"field {field!r} is none of {name}; known: {known}")
        if len(set(self.values)) != len(self.values):
            raise ValueError(f"values are given twice: {list(self.values)}")
        if self.field is not None and not self.values and self.field != kind.level_field:
            raise ValueError(f"field {self.field!r} needs values: {name} lists none for it")
        offered = kind.copies_in(self.environment)
        unknown = [n for n in self.perturbations or () if n not in offered]
        if unknown:
            known = ", ".join(offered) or "none"
            raise ValueError(f"perturbation {unknown[0]!r} is not offered by {name}; known: {known}")
        self.levels()
        return self

    def _environment_class(self) -> type[Environment]:
        return registry.get("environment", self.environment.type)  # type: ignore[attr-defined, return-value]

    def swept(self) -> str | None:
        """The field that is swept; None where the environment is played as it is configured."""
        return self.field or self._environment_class().level_field

    def copies(self) -> tuple[str, ...]:
        """Names of the perturbed copies that are played."""
        if self.perturbations is not None:
            return self.perturbations
        return self._environment_class().copies_in(self.environment)

    def levels(self) -> dict[str, Any]:
        """The environment's configuration at each level, by name, e.g. `people=3`."""
        field = self.swept()
        if field is None:
            return {"as configured": self.environment}
        made = {}
        for value in self.values or self._environment_class().level_values:
            try:
                made[f"{field}={value}"] = type(self.environment).model_validate(
                    {**self.environment.model_dump(), field: value}  # type: ignore[attr-defined]
                )
            except ValidationError as error:
                said = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"{field}={value} is no level of {self.environment.type}: {said}") from error  # type: ignore[attr-defined]
        return made

    def value_of(self, level: str) -> int | None:
        """The field's value at a level of `levels`."""
        _, sign, text = level.rpartition("=")
        return int(text) if sign else None


@register("kind")
class Levels:
    """An evaluation by level."""

    class Config(BaseConfig):
        """The name of the kind."""

        type: Literal["levels"] = "levels"

    config_type = LevelsRun

    def execute(self, config: LevelsRun, run_dir: RunDir, journal: Journal, stop: Stop, progress: Progress) -> bool:
        """Play and report; False where `stop` ended it early."""
        from rl2f_core.evaluation.play_levels import play_levels
        from rl2f_core.rollout.build import build_backend

        progress.say(f"Loading {config.model.name} …")
        if not play_levels(config, run_dir, journal, build_backend(config, run_dir, progress), stop, progress):
            return False
        journal.commit({**(journal.position or {}), "done": True})
        return True


def levels_config(
    targets: Sequence[Target], environment: str | None = None, model: str | None = None, **changes: Any
) -> LevelsRun:
    """The evaluation by level of checkpoints, or of a base model alone where there are no targets.

    Args:
        targets: As for `eval_config`; the base model is always there too, and comes first.
        environment: Another environment than the first target's; its settings are the defaults.
        model: The base model where there are no targets.
        changes: Fields of `LevelsRun`.

    Raises `ConfigError`.
    """
    data: dict[str, Any]
    if targets:
        if model is not None:
            raise ConfigError("A base model goes with no targets: theirs is the one of their runs.", value=model)
        made = eval_config(targets).model_dump(mode="json")
        data = {key: value for key, value in made.items() if key != "kind"}
        data["name"] = made["name"].replace("eval", "levels", 1)
        if environment is not None and environment != data["environment"]["type"]:
            data |= {"environment": environment, "teacher": "scripted"}
    elif environment is None:
        raise ConfigError("Nothing to evaluate.", fix="Name a run's folder, or an environment: --environment NAME.")
    else:
        data = {"environment": environment, "name": f"levels {environment}"[:100], "adapters": {"base": None}}
        data["rollout"] = {"max_new_tokens": NEW_TOKENS, "context_length": 4 * NEW_TOKENS}
        data |= {"model": {"name": model}} if model else {}
    made_run = parse_config({**data, "kind": "levels", **changes})
    assert isinstance(made_run, LevelsRun)
    return made_run
