"""SFT: cross-entropy on the student's turns of demonstrations, or of a stored data set.

Without `data` the environment writes well-formed dialogues of an imperfect student: wrong tries by an error model,
hints by the run's teacher, and (for a share of the dialogues) a right last turn.  `follow` says how many revisions
respect the hint, so the warm-up can be made to know the form without knowing yet what hints are for.

With `data` it learns right answers: what an earlier `distill` stage kept, an export, or any JSONL of conversations.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from rl2f_core.config import EvaluationConfig
from rl2f_core.errors import ConfigError
from rl2f_core.fields import BASIC, KNOWN_DATA, BaseConfig
from rl2f_core.methods.base import Method
from rl2f_core.methods.rows import imitation_rows
from rl2f_core.registry import register
from rl2f_core.types import Group, Rollout, Sample

if TYPE_CHECKING:
    from rl2f_core.training.collect import Collector


@register("method")
class SFT(Method):
    """Cross-entropy on demonstrations or stored data."""

    on_policy = False
    streams = ("ce",)

    class Config(BaseConfig):
        """Supervised warm-up on the environment's imperfect student, or on a stored data set."""

        type: Literal["sft"] = "sft"
        data: str | None = Field(None, json_schema_extra={**BASIC, **KNOWN_DATA})
        """A data set to learn from instead: the name of an earlier `distill` stage, the folder of another run's data
        set, or a JSONL file with `prompt` and `completion` or `messages`, as exports and TRL write them. The student
        reads this run's own system message with it."""
        epochs: float | None = Field(None, gt=0, json_schema_extra=BASIC)
        """With data: passes over it. A step then takes its even share of the rows, so that the stage's steps make
        exactly so many passes; None takes `tasks_per_step` rows a step, over and over."""
        follow: float = Field(0.5, ge=0, le=1, json_schema_extra=BASIC)
        """Share of revisions that respect the last hint; the others ignore it."""
        right_last: float = Field(1.0, ge=0, le=1, json_schema_extra=BASIC)
        """Share of dialogues whose last turn is made right."""
        right_first: float = Field(0.0, ge=0, le=1)
        """Share of dialogues that are right at once."""
        max_turns: int | None = Field(None, ge=1)
        """Turns of the longest demonstration; None is `rollout.max_turns`."""
        train_on: Literal["all", "last"] = "all"
        """Imitate all turns of the student, or the last one only."""

        @model_validator(mode="after")
        def _fields_have_a_use(self) -> SFT.Config:
            if self.data is None:
                if self.epochs is not None:
                    raise ValueError("epochs counts passes over stored data; set data too, or leave it out")
                return self
            fields = type(self).model_fields
            idle = [name for name in ("follow", "right_last", "right_first", "max_turns")
                    if getattr(self, name) != fields[name].default]  # fmt: skip
            if idle:
                raise ValueError(f"{', '.join(idle)} shape demonstrations and mean nothing with data; leave them out")
            return self

        def check_stage(self, stage: Any, run: Any) -> None:
            """Refuse a name that is neither an earlier `distill` stage nor looks like a path; raises `ValueError`."""
            if self.data is None:
                return
            names = [s.name for s in run.stages]
            earlier = [s.name for s in run.stages[: names.index(stage.name)] if not s.trains]
            is_path = any(sign in self.data for sign in "/\\.")
            if self.data not in earlier and (self.data in names or not is_path):
                raise ValueError(
                    f"stage {stage.name!r}: data {self.data!r} is no earlier stage that makes a data set, and no path; "
                    f"such stages: {', '.join(earlier) or 'none'}"
                )
            if stage.group_size != 1:
                raise ValueError(
                    f"stage {stage.name!r}: stored data has one dialogue a row; set group_size: 1 instead of "
                    f"{stage.group_size}"
                )

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._stored: list[Rollout] | None = None
        self._tasks: list[Any] = []

    def prepare(self, collector: Collector, evaluation: EvaluationConfig) -> list[str]:
        """Read and check the data set. Raises `DataError` where it holds held-out tasks or is another environment's."""
        if self.config.data is None:
            return []
        from rl2f_core.training.stored import refuse_held_out

        held, left_out = self._load(collector)
        refuse_held_out(held, collector.engine.environment, evaluation)
        stage, used = collector.stage, len(self._stored or ())
        share(used, stage.steps - 1, stage.steps, stage.tasks_per_step, self.config.epochs)
        passes = self.config.epochs or stage.steps * stage.tasks_per_step / used
        text = f"Stage {stage.name} learns from {used} rows of {self.config.data}, {passes:.3g} passes"
        return [f"{text}; {left_out} more do not fit the context and are left out." if left_out else f"{text}."]

    def collect(self, collector: Collector, step: int) -> list[Group]:
        if self.config.data is None:
            return collector.demonstrations(step, self.config)
        if self._stored is None:
            self._load(collector)
        assert self._stored is not None
        stage, n = collector.stage, len(self._stored)
        groups = []
        for i, place in enumerate(share(n, step, stage.steps, stage.tasks_per_step, self.config.epochs)):
            order = list(range(n))
            random.Random(f"{collector.seed}/{stage.name}/{place // n}").shuffle(order)
            row = order[place % n]
            group = f"{stage.name}/{step + 1}/{i}"
            rollout = self._stored[row]
            dialogue = rollout.dialogue.model_copy(update={"id": f"{group}/0", "group": group})
            groups.append(Group(self._tasks[row], (Rollout(dialogue, rollout.streams),)))
        return groups

    def samples(self, group: Group) -> list[Sample]:
        rows: list[Sample] = []
        for rollout in group.trainable:
            last = len(rollout.dialogue.turns) - 1
            rows += imitation_rows(rollout, range(last + 1) if self.config.train_on == "all" else [last])
        return rows

    def _load(self, collector: Collector) -> tuple[list[Any], int]:
        """Fill in the rollouts that fit the context; returns all rows, and how many do not fit."""
        from rl2f_core.rollout.engine import Request
        from rl2f_core.training.stored import find, read_rows
        from rl2f_core.training.written import transcribe

        engine = collector.engine
        rows = read_rows(find(self.config.data, collector.run_dir), engine.environment)
        engine.environment.prepare([(row.task, text) for row in rows for text in row.attempts])
        limit = min(engine.config.context_length, engine.backend.context_limit)
        made = [(row.task, transcribe(engine, Request(row.task, "", "", 0, 0), row.attempts, row.hints))
                for row in rows]  # fmt: skip
        fitting = [(task, rollout) for task, rollout in made
                   if max(len(stream.token_ids) for stream in rollout.streams) <= limit]  # fmt: skip
        if not fitting:
            raise ConfigError("No row of the data set fits the context.", value=limit,
                              fix="Raise rollout.context_length.")  # fmt: skip
        self._tasks, self._stored = [task for task, _ in fitting], [rollout for _, rollout in fitting]
        return rows, len(made) - len(fitting)


def share(rows: int, step: int, steps: int, a_step: int, epochs: float | None) -> range:
    """The places of a 0-based step in the endless sequence of passes over the rows.

    With `epochs` the `steps` together take `epochs × rows` places, as evenly as can be; else a step takes `a_step`.
    Raises `ConfigError` where there are fewer places than steps.
    """
    if epochs is None:
        return range(step * a_step, (step + 1) * a_step)
    total = round(epochs * rows)
    if total < steps:
        raise ConfigError(f"{epochs:g} passes over {rows} rows are fewer rows than the stage has steps.", value=steps,
                          fix=f"Lower steps to {max(total, 1)}, or raise epochs.")  # fmt: skip
    return range(step * total // steps, (step + 1) * total // steps)
