"""Distillation by rejection sampling: k answers a task from any source, those that the verifier accepts become data.

A stage of this method makes no optimiser step: it makes a data set that a later `sft` stage trains on
(`data: NAME OF THE STAGE`).  Its `steps` × `tasks_per_step` are the tasks that are asked and `group_size` is k.
Source of the recipe: k 5 at temperature 1.0, one right answer kept a task, four epochs of cross-entropy, as the cold
start of reinforcement on knights and knaves (methods.md §4).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rl2f_core import registry
from rl2f_core.components import component
from rl2f_core.config import BASIC, BaseConfig
from rl2f_core.methods.base import Method
from rl2f_core.registry import register
from rl2f_core.types import Group, Sample

Keep = Literal["one", "all", "shortest"]
Unique = Literal["task", "text"]


@register("method")
class Distill(Method):
    """Makes a data set of verified answers; trains nothing."""

    on_policy = False
    trains = False
    streams = ()

    class Config(BaseConfig):
        """A data set of right answers: k samples a task, verified, deduplicated."""

        type: Literal["distill"] = "distill"
        source: Literal["student", "solution", "llm"] = Field("student", json_schema_extra=BASIC)
        """Who answers: the weights that this stage starts from (see `start_from`), the environment's own worked
        solution, or the model in `llm`."""
        llm: component("llm") = Field("local", json_schema_extra=BASIC)  # type: ignore[valid-type, assignment]
        """With source llm: the student's base, another local model, an adapter such as another run's checkpoint, or an
        endpoint."""
        instruction: str = Field("", max_length=4000)
        """With source llm: added to the system message for the source alone, e.g. how to reason. The student never
        reads it."""
        keep: Keep = Field("one", json_schema_extra=BASIC)
        """Of a task's right answers: the first, all that differ, or the one with the fewest tokens."""
        unique: Unique = "task"
        """task: each problem once, up to renaming; a task that comes again is not asked. text: only what is word for
        word the same problem and answer counts as a duplicate."""
        max_new_tokens: int | None = Field(None, ge=1)
        """Tokens that the source may write; None is `rollout.max_new_tokens`."""
        max_kept_tokens: int | None = Field(None, ge=1)
        """Tokens of the longest answer that is kept; None is `rollout.max_new_tokens`, what the student may write."""

        @model_validator(mode="after")
        def _llm_has_a_use(self) -> Distill.Config:
            local: Any = registry.get("llm", "local")
            if self.source != "llm" and (self.instruction or self.llm != local.Config()):
                raise ValueError(f"source {self.source} asks no llm; leave out llm and instruction, or set source: llm")
            return self

        def check_stage(self, stage: Any, run: Any) -> None:
            """Refuse what would have no effect; raises `ValueError`."""
            where = f"stage {stage.name!r}"
            if self.source == "solution":
                environment: Any = registry.get("environment", run.environment.type)
                unsolved = environment.unsolved_in(run.environment)
                if unsolved:
                    raise ValueError(
                        f"{where}: {', '.join(unsolved)} has no worked solutions; take source student or llm"
                    )
                if stage.group_size != 1:
                    raise ValueError(
                        f"{where}: a worked solution is the same every time, so group_size {stage.group_size} asks in "
                        "vain; set group_size: 1"
                    )
            if stage.curriculum is not None:
                raise ValueError(f"{where}: distill plays no curriculum; make the environment a mixture of its levels")
            if stage.minibatches != 1 or stage.max_resamples:
                raise ValueError(f"{where}: distill trains nothing and draws nothing again; leave out minibatches and "
                                 "max_resamples")  # fmt: skip

    def max_turns(self, turns: int) -> int:
        return 1

    def samples(self, group: Group) -> list[Sample]:
        return []
