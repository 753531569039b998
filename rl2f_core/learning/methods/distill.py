"""Distillation by rejection sampling: k answers per task from any source; the verifier selects the correct ones.

With `max_turns` above 1 the samples are dialogues of the student with the teacher.

A stage of this method updates no weights. It makes a dataset for a later `sft` stage (`dataset: STAGE NAME`) from
`steps` × `tasks_per_step` tasks with k = `group_size` samples each. The work is in `training.distill_stage`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rl2f_core import registry
from rl2f_core.config.components import LLMConfig, by_name
from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import ResolvedStage
from rl2f_core.environments.capabilities import without_worked_solution
from rl2f_core.errors import FieldValueError
from rl2f_core.learning.methods.base import Method
from rl2f_core.registry import register
from rl2f_core.types import Group, TrainingSample

Keep = Literal["one", "all", "shortest"]
Unique = Literal["task", "text"]


@register("method")
class Distill(Method["Distill.Config"]):
    """Makes a dataset of verified answers; updates no weights."""

    on_policy = False
    updates_weights = False
    loss_terms = ()

    class Config(ComponentConfig):
        """A dataset of correct answers: k samples per task, verified and deduplicated."""

        type: Literal["distill"] = "distill"
        source: Literal["student", "solution", "llm"] = Field("student", json_schema_extra=BASIC_FIELD)
        """Source of the answers: the weights this stage starts from (see `init_from`), the environment's worked
        solutions, or the model in `llm`."""
        llm: LLMConfig = Field(by_name("local"), json_schema_extra=BASIC_FIELD)
        """With source llm: the student's base, another local model, an adapter (e.g. another run's checkpoint), or an
        endpoint."""
        instruction: str = Field("", max_length=4000)
        """With source llm: added to the source's system message, e.g. how to reason. Never shown to the student."""
        keep: Keep = Field("one", json_schema_extra=BASIC_FIELD)
        """Which correct answers of a task to keep: the first, all distinct ones, or the one with the fewest tokens."""
        dedup_by: Unique = "task"
        """task: sample no problem again, up to renaming, of which an answer is kept. text: only an identical problem
        with an identical answer is a duplicate."""
        max_turns: int = Field(1, ge=1, le=64)
        """With source student: attempts of a dialogue with the stage's teacher. Above 1, the dataset has dialogues
        whose last attempt is correct and without a leak before it; `sft` learns their attempts."""
        max_new_tokens: int | None = Field(None, ge=1)
        """Token limit of the source; None is `rollout.max_new_tokens`."""
        max_kept_tokens: int | None = Field(None, ge=1)
        """Token limit of a kept answer; None is `rollout.max_new_tokens`, the student's limit."""

        @model_validator(mode="after")
        def _check_llm_used(self) -> Distill.Config:
            if self.source != "llm" and (self.instruction or self.llm != registry.get("llm", "local").Config()):
                raise FieldValueError(
                    f"source {self.source} uses no llm; leave out llm and instruction, or set source: llm", "source"
                )
            return self

        def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
            """Refuse settings without effect; raises `ValueError`."""
            prefix = f"stage {stage.name!r}"
            if self.max_turns > 1 and (self.source != "student" or run.rollout.prompting != "append"):
                raise FieldValueError(
                    f"{prefix}: only the student's dialogues, with rollout.prompting append, have several attempts; "
                    "set max_turns: 1",
                    *run.loc_of(stage, "method", "max_turns"),
                )
            if self.source == "solution":
                unsolved = without_worked_solution(run.environment)
                if unsolved:
                    raise FieldValueError(
                        f"{prefix}: {', '.join(unsolved)} has no worked solutions; use source student or llm",
                        *run.loc_of(stage, "method", "source"),
                    )
                if stage.group_size != 1:
                    raise FieldValueError(
                        f"{prefix}: worked solutions are deterministic, so group_size {stage.group_size} has no "
                        "effect; set group_size: 1",
                        *run.loc_of(stage, "group_size"),
                    )
            if stage.curriculum is not None:
                raise FieldValueError(
                    f"{prefix}: distill supports no curriculum; use a mixture of the levels as environment",
                    *run.loc_of(stage, "curriculum"),
                )
            if stage.minibatches != 1:
                raise FieldValueError(
                    f"{prefix}: distill updates no weights; leave out minibatches", *run.loc_of(stage, "minibatches")
                )

    def max_turns(self, turns: int) -> int:
        return self.config.max_turns

    def samples(self, group: Group) -> list[TrainingSample]:
        return []
