"""Configuration of evaluation and preflight."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rl2f_core.config.fields import BASIC_FIELD, BaseConfig
from rl2f_core.errors import FieldValueError

Condition = Literal[
    "hints",
    "no_oracle",
    "contentless",
    "resample",
    "shuffled",
    "misleading",
    "scripted",
    "leaking",
    "reflection_shuffled",
    "reflection_dropped",
    "reflection_corrupted",
]


class EvaluationConfig(BaseConfig):
    """Evaluation of checkpoints on held-out tasks."""

    num_tasks: int = Field(64, ge=1, json_schema_extra=BASIC_FIELD)
    """Number of tasks, all of distinct problems; a split with fewer problems is used completely."""
    samples_per_task: int = Field(1, ge=1)
    """Dialogues per task and condition; several help if the split has few problems."""
    max_turns: int | None = Field(None, ge=1)
    """Maximum number of turns; None is that of training."""
    temperature: float | None = Field(None, ge=0, le=10)
    """Sampling temperature; 0 is greedy, None is that of training."""
    split: Literal["validation", "test"] = "test"
    """Split of the tasks."""
    conditions: tuple[Condition, ...] = Field(
        ("hints", "contentless", "resample", "shuffled", "misleading"), min_length=1
    )
    """The run's teacher (hints) and controls. shuffled: hints of the dialogues under `hints` on other problems.
    scripted: the environment's true hints, for a run with another teacher.
    leaking: hints that state the answer, which no leak action replaces.
    no_oracle: a correct attempt does not end the dialogue, and the last attempt counts; for self_critique.
    reflection_shuffled, reflection_dropped, reflection_corrupted: the hints, with reflections of another problem's
    dialogue under `hints`, without reflections, or with arguments for wrong actions; compared with `hints`."""
    checkpoints: tuple[str, ...] = ("base", "stages")
    """Checkpoints to evaluate at the end of training: `base`, `stages` (the last of each), or names like `rl2f@20`."""
    seed: int = 1234
    """Sampling seed, used with the seed of the run; the same for all checkpoints, so that differences are paired."""

    @model_validator(mode="after")
    def _check_shuffled(self) -> EvaluationConfig:
        based = [name for name in self.conditions if name == "shuffled" or name.startswith("reflection_")]
        if based and "hints" not in self.conditions:
            raise FieldValueError(
                f"conditions has {based[0]}, whose texts or comparison come from the dialogues under hints; add hints",
                "conditions",
            )
        return self


class PreflightConfig(BaseConfig):
    """Check before training whether the run can learn."""

    num_tasks: int = Field(16, ge=1)
    """Number of tasks for the initial weights."""
    samples_per_task: int = Field(8, ge=2)
    """Dialogues per task."""
    min_parse_rate: float = Field(0.5, ge=0, le=1)
    """Minimum fraction of first attempts that can be parsed."""
    min_mixed_rate: float = Field(0.1, ge=0, le=1)
    """Minimum fraction of groups with a learning signal, at the stage's group size: mixed groups, unless the method
    learns from others too."""
    ignore_failure: bool = False
    """Train although the preflight failed; recorded in the run."""
