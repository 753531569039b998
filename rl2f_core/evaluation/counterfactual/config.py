"""Configuration of forks and hint values, and how it is derived from the source run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from rl2f_core.common.text.integers import whole_number
from rl2f_core.config.components import wrapped_teacher
from rl2f_core.config.curriculum import level_of
from rl2f_core.config.fields import BASIC_FIELD, CHECKPOINT_REF, RUN_REF
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.errors import ConfigError, FieldValueError
from rl2f_core.evaluation.counterfactual.arms import Arm, label_arms
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject

OWN_SETTINGS = ("lora", "tracking", "alerts")
"""Settings that a fork does not inherit."""
DEFAULT_ARMS = (Arm(hint="original"), Arm(hint="contentless"), Arm(hint="shuffled"), Arm(hint="misleading"))
"""The hint, its baseline, and two controls whose hint value should be 0."""


class CounterfactualRun(BaseRun):
    """Stored dialogues, continued under other hints."""

    source: str = Field(min_length=1, max_length=4096, json_schema_extra={**BASIC_FIELD, **RUN_REF})
    """Run directory with the dialogues; a bare name is a sibling of this run's directory."""
    checkpoints: dict[str, str | None] = Field(min_length=1, json_schema_extra={**BASIC_FIELD, **CHECKPOINT_REF})
    """Name in the report → directory of a LoRA adapter; null is the base model."""
    arms: tuple[Arm, ...] = Field(DEFAULT_ARMS, min_length=1, max_length=16, json_schema_extra=BASIC_FIELD)
    """Alternatives to the hint; differences are relative to the arm `contentless`."""
    samples: int = Field(16, ge=1, le=1000, json_schema_extra=BASIC_FIELD)
    """Dialogues per arm and fork point; sample j has the same seed in every arm."""
    turns: int | None = Field(None, ge=1, le=64, json_schema_extra=BASIC_FIELD)
    """Attempts after the fork; null uses the remaining turns, 1 only the next attempt."""
    later_hints: Literal["run", "arm", "contentless"] = "run"
    """Teacher of later turns: `run` (that of the run, so arms differ in one hint), `arm` (that of the arm, if it has
    one), or `contentless`."""
    apply_leak_action: bool = False
    """Apply `leak_detection.action` to leaking hints of arms; otherwise leaks are only reported."""

    @model_validator(mode="after")
    def _check_leak_action(self) -> CounterfactualRun:
        if self.apply_leak_action and self.leak_detection.action == "drop":
            raise FieldValueError(
                "apply_leak_action cannot be combined with leak_detection.action drop: an arm needs its dialogues",
                "leak_detection",
                "action",
            )
        return self

    def labeled_arms(self) -> dict[str, Arm]:
        """Return the arms by label."""
        return label_arms(self.arms)

    @property
    def repeats_seed(self) -> bool:
        """Whether each arm has one more sample, number 0, with the dialogue's own seed."""
        return any(arm.hint == "redacted" for arm in self.arms)


def inherit_settings(source: RunDir, phase: str, stage: str = "", step: int = 0, task: str = "") -> JsonObject:
    """Return the settings that a fork inherits from its source: model, environment, teacher, leaks, rollout.

    Args:
        source: Run with the dialogues.
        phase: Phase of the dialogues; with stage and step, it determines turns and temperature.
        stage: Training stage; empty if the dialogues come from several.
        step: 1-based step; 0 is the start of the stage.
        task: Task id, which contains the curriculum's level.
    """
    config = source.config()
    shared = {k: v for k, v in config.model_dump().items() if k in BaseRun.model_fields and k not in OWN_SETTINGS}
    changed: JsonObject = {}
    if phase == "evaluation":
        changed = {"max_turns": config.evaluation.max_turns, "temperature": config.evaluation.temperature}
    elif isinstance(config, RunConfig):
        stage_config = next((s for s in config.stages if s.name == stage), None)
        if stage_config is not None:
            changed = {"temperature": stage_config.resolve(max(0, step - 1), config.rollout.temperature).temperature}
            teacher = config.for_stage(stage_config).teacher
            recorded = teacher.type == "shuffled"  # a fork has no other dialogues of the step
            shared["teacher"] = (wrapped_teacher(teacher) if recorded else teacher).model_dump()
            number = level_of(task)
            if stage_config.curriculum is not None and number is not None:
                levels = stage_config.curriculum.environments(config.environment)
                shared["environment"] = levels[number - 1].model_dump()
    shared["rollout"] = {**source.rollout_settings(config), **{k: v for k, v in changed.items() if v is not None}}
    return shared


def known_checkpoints(source: RunDir) -> dict[str, str | None]:
    """Return the checkpoints of a run: base, its own by stage and step, those of its evaluation or fork."""
    checkpoints: dict[str, str | None] = {"base": None}
    config = source.config()
    if isinstance(config, RunConfig):
        stages = [stage.name for stage in config.stages]
        checkpoints |= {
            name: str(source.checkpoint(name).resolve())
            for name in sorted(source.checkpoint_names(), key=lambda name: _sort_key(name, stages))
        }
    for field in ("adapters", "checkpoints"):
        adapters = getattr(config, field, None)
        checkpoints |= adapters if isinstance(adapters, Mapping) else {}
    return checkpoints


def _sort_key(checkpoint: str, stages: Sequence[str]) -> tuple[int, int]:
    """Return a checkpoint's stage index and step; −1 if unknown."""
    stage, _, step = checkpoint.rpartition("@")
    return stages.index(stage) if stage in stages else -1, whole_number(step, -1)


def nearest_checkpoint(known: Sequence[str], requested: str) -> str:
    """Return the saved checkpoint closest to weights such as `rl2f@13`.

    The order of preference is: the same name, the last earlier one of its stage, the stage's first, the last of all.
    `known` contains at least `base`, in the order of stages and steps.
    """
    if requested in known:
        return requested
    stage, _, step = requested.rpartition("@")
    of_stage = {_sort_key(name, [stage])[1]: name for name in known if stage and name.rpartition("@")[0] == stage}
    number = whole_number(step, None)
    if not of_stage or number is None:
        return known[-1]
    before = [n for n in of_stage if n <= number]
    return of_stage[max(before) if before else min(of_stage)]


def choose_checkpoints(source: RunDir, names: Sequence[str], default: str = "") -> dict[str, str | None]:
    """Return checkpoints by name: `base`, a checkpoint of the source, or an adapter directory.

    Without names, the result is the `nearest_checkpoint` to `default`.
    """
    known = known_checkpoints(source)
    chosen: dict[str, str | None] = {}
    for name in names or [nearest_checkpoint(list(known), default)]:
        path = Path(name)
        if name in known:
            chosen[name] = known[name]
        elif (path / "adapter_model.safetensors").is_file():
            chosen[path.name] = str(path.resolve())
        else:
            raise ConfigError("Unknown checkpoint.", value=name, known=known)
    return chosen
