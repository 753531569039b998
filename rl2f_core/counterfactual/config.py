"""What forks and hint values are configured by, and how such a configuration is made from the run they look back at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from rl2f_core.config import BaseRun, RunConfig
from rl2f_core.counterfactual.arms import Arm, named
from rl2f_core.curricula import level_of
from rl2f_core.errors import ConfigError
from rl2f_core.fields import BASIC, KNOWN_CHECKPOINT, KNOWN_RUN
from rl2f_core.run import RunDir

FOUR = (Arm(hint="as_was"), Arm(hint="contentless"), Arm(hint="shuffled"), Arm(hint="misleading"))
"""The hint, what it is compared with, and two controls that must not be worth anything."""
SAMPLES = 16


class CounterfactualRun(BaseRun):
    """Stored dialogues taken up again under other hints."""

    source: str = Field(min_length=1, max_length=4096, json_schema_extra={**BASIC, **KNOWN_RUN})
    """The run whose dialogues are taken up again: its folder; a bare name lies beside this run's own folder."""
    checkpoints: dict[str, str | None] = Field(min_length=1, json_schema_extra={**BASIC, **KNOWN_CHECKPOINT})
    """Name in the report → folder of a LoRA adapter; null is the base model."""
    arms: tuple[Arm, ...] = Field(FOUR, min_length=1, max_length=16, json_schema_extra=BASIC)
    """What the student reads in place of the hint; differences are taken to the arm `contentless`."""
    samples: int = Field(SAMPLES, ge=1, le=1000, json_schema_extra=BASIC)
    """Dialogues of each arm after each turn; sample j of every arm has the same seed."""
    turns: int | None = Field(None, ge=1, le=64, json_schema_extra=BASIC)
    """Attempts after the fork; null is what the dialogue had left, 1 the very next attempt alone."""
    then: Literal["run", "arm", "contentless"] = "run"
    """Who hints later on: the run's own teacher in every arm, so that arms differ in one hint alone; the arm's own
    teacher, where it has one; or nobody says anything."""
    apply_leak_action: bool = False
    """Do with a leaking hint of an arm what `leaks.action` says; off, it is reported and read as it is."""

    @model_validator(mode="after")
    def _drops_nothing(self) -> CounterfactualRun:
        if self.apply_leak_action and self.leaks.action == "drop":
            raise ValueError("apply_leak_action does not go with leaks.action drop: an arm needs its dialogues")
        return self

    def labelled(self) -> dict[str, Arm]:
        """The arms by their names in tables."""
        return named(self.arms)


def settings_of(source: RunDir, phase: str, stage: str = "", step: int = 0, task: str = "") -> dict[str, Any]:
    """What a fork takes over from its source: model, environment, teacher, leaks, and how dialogues were played.

    A run's own name and kind are left out.

    Args:
        source: The run that holds the dialogues.
        phase: Theirs; with stage and step it decides turns and temperature.
        stage: Of training; "" where they come from several.
        step: Theirs, 1-based; 0 is the stage's beginning.
        task: Id of their task, which names the level of the stage's curriculum.
    """
    config = source.config()
    shared = {k: v for k, v in config.model_dump().items() if k in BaseRun.model_fields and k != "lora"}
    changed: dict[str, Any] = {}
    if phase == "evaluation":
        changed = {"max_turns": config.evaluation.max_turns, "temperature": config.evaluation.temperature}
    elif isinstance(config, RunConfig):
        held = next((s for s in config.stages if s.name == stage), None)
        if held is not None:
            changed = {"temperature": held.at(max(0, step - 1)).temperature}
            number = level_of(task)
            if held.curriculum is not None and number is not None:
                shared["environment"] = held.curriculum.environments(config.environment)[number - 1].model_dump()
    shared["rollout"] = {**shared["rollout"], **{k: v for k, v in changed.items() if v is not None}}
    return shared


def known_checkpoints(source: RunDir) -> dict[str, str | None]:
    """Every checkpoint that a run can name: the base, its own by stage and step, those it evaluated or forked with."""
    found: dict[str, str | None] = {"base": None}
    config = source.config()
    if isinstance(config, RunConfig):
        stages = [stage.name for stage in config.stages]
        found |= {
            name: str(source.checkpoint(name).resolve())
            for name in sorted(source.checkpoint_names(), key=lambda name: _place(name, stages))
        }
    for field in ("adapters", "checkpoints"):
        held = getattr(config, field, None)
        found |= held if isinstance(held, Mapping) else {}
    return found


def _place(checkpoint: str, stages: Sequence[str]) -> tuple[int, int]:
    """Where a checkpoint stands in a run: position of its stage, and step; −1 for what no stage saves."""
    stage, _, step = checkpoint.rpartition("@")
    return stages.index(stage) if stage in stages else -1, int(step) if step.isdigit() else -1


def nearest(known: Sequence[str], wanted: str) -> str:
    """The checkpoint that comes closest to weights such as `rl2f@13`: those, else the last of the stage saved before
    them, else its first, else the last of all. `known` holds at least `base`, in the order of stages and steps."""
    if wanted in known:
        return wanted
    stage, _, step = wanted.rpartition("@")
    of_stage = {_place(name, [stage])[1]: name for name in known if stage and name.rpartition("@")[0] == stage}
    if not of_stage or not step.isdigit():
        return known[-1]
    before = [n for n in of_stage if n <= int(step)]
    return of_stage[max(before) if before else min(of_stage)]


def choose_checkpoints(source: RunDir, names: Sequence[str], default: str = "") -> dict[str, str | None]:
    """Checkpoints by name: `base`, a name of the source's own, or the folder of an adapter.

    Without names it is the `nearest` to `default`. Raises `ConfigError`.
    """
    known = known_checkpoints(source)
    chosen: dict[str, str | None] = {}
    for name in names or [nearest(list(known), default)]:
        folder = Path(name)
        if name in known:
            chosen[name] = known[name]
        elif (folder / "adapter_model.safetensors").is_file():
            chosen[folder.name] = str(folder.resolve())
        else:
            raise ConfigError("There is no such checkpoint.", value=name, known=known)
    return chosen
