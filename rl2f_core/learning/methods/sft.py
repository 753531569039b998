"""SFT: cross-entropy on the student's turns of demonstrations, or of a stored dataset.

Without `dataset` the environment writes demonstrations of a simulated student: wrong attempts by its error model, hints
by the run's teacher, and a correct last turn in a fraction of the dialogues. `hint_follow_rate` is the fraction of
revisions that respect the hint, so a warm-up can teach the answer format without teaching the use of hints.

With `dataset` it learns correct answers: of an earlier `distill` stage, of an export, or of any JSONL conversations.
"""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field, model_validator

from rl2f_core.config.evaluation import EvaluationConfig
from rl2f_core.config.fields import BASIC_FIELD, DATASET_REF, BaseConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.config.stage import ResolvedStage
from rl2f_core.dialogue.dataset_store import Row, find_rows, read_rows, refuse_held_out
from rl2f_core.dialogue.rollout.engine import RolloutRequest
from rl2f_core.dialogue.rollout.transcript import rollout_from_text
from rl2f_core.environments.capabilities import Demonstrator, check_parts
from rl2f_core.errors import ConfigError, FieldValueError, refuse_ineffective
from rl2f_core.learning.methods.base import Collector, DemonstrationSettings, Method
from rl2f_core.learning.methods.samples import sft_samples
from rl2f_core.registry import register
from rl2f_core.types import Group, Rollout, Task, TrainingSample


@register("method")
class SFT(Method["SFT.Config"]):
    """Cross-entropy on demonstrations or a stored dataset."""

    on_policy = False
    loss_terms = ("ce",)

    class Config(BaseConfig):
        """Supervised warm-up on the environment's simulated student, or on a stored dataset."""

        type: Literal["sft"] = "sft"
        dataset: str | None = Field(None, json_schema_extra={**BASIC_FIELD, **DATASET_REF})
        """Dataset to learn from instead of demonstrations: the name of an earlier `distill` stage, the folder of
        another run's dataset, or a JSONL file with `prompt` and `completion` or `messages`, as exports and TRL write
        them. A row whose last attempt is incorrect by its `verdicts`, `solved_at` or `correct` is refused. The student
        receives this run's system message."""
        num_epochs: float | None = Field(None, gt=0, json_schema_extra=BASIC_FIELD)
        """With dataset: epochs of the whole stage, spread evenly over its steps; None takes `tasks_per_step` rows per
        step, cyclically."""
        hint_follow_rate: float = Field(0.5, ge=0, le=1, json_schema_extra=BASIC_FIELD)
        """Fraction of revisions that respect the last hint; the others ignore it."""
        final_correct_rate: float = Field(1.0, ge=0, le=1, json_schema_extra=BASIC_FIELD)
        """Fraction of the other dialogues (see `first_correct_rate`) whose last turn is correct; with one turn, that
        is the first. Episodes of stateful environments ignore both rates."""
        first_correct_rate: float = Field(0.0, ge=0, le=1)
        """Fraction of dialogues that end with a correct first turn."""
        max_turns: int | None = Field(None, ge=1)
        """Turns of the longest demonstration; None is `rollout.max_turns`."""
        train_on: Literal["all", "last"] = "all"
        """Imitate all turns of the student, or only the last."""

        @model_validator(mode="after")
        def _check_unused_fields(self) -> SFT.Config:
            if self.dataset is None:
                if self.num_epochs is not None:
                    raise FieldValueError(
                        "num_epochs counts passes over a dataset; set dataset too, or leave it out", "num_epochs"
                    )
                return self
            fields = type(self).model_fields
            shaping = ("hint_follow_rate", "final_correct_rate", "first_correct_rate", "max_turns")
            unused = [name for name in shaping if getattr(self, name) != fields[name].default]
            if unused:
                raise FieldValueError(
                    f"{', '.join(unused)} shape demonstrations and have no effect with dataset; leave them out",
                    unused[0],
                )
            return self

        def check_stage(self, stage: ResolvedStage, run: RunConfig) -> None:
            """Refuse a dataset that is neither an earlier `distill` stage nor a path; raises `ValueError`."""
            if self.dataset is None:
                consumer = f"stage {stage.name!r}: {self.type} without dataset"
                check_parts(run.environment, (Demonstrator,), consumer, "name a dataset")
                return
            names = [s.name for s in run.stages]
            earlier = [s.name for s in run.stages[: names.index(stage.name)] if not s.updates_weights]
            is_path = any(sign in self.dataset for sign in "/\\.")
            if self.dataset not in earlier and (self.dataset in names or not is_path):
                raise FieldValueError(
                    f"stage {stage.name!r}: dataset {self.dataset!r} is neither an earlier stage that makes a dataset "
                    f"nor a path; such stages: {', '.join(earlier) or 'none'}",
                    *run.loc_of(stage, "method", "dataset"),
                )
            if stage.group_size != 1:
                raise FieldValueError(
                    f"stage {stage.name!r}: a dataset has one dialogue per row; set group_size: 1 instead of "
                    f"{stage.group_size}",
                    *run.loc_of(stage, "group_size"),
                )
            for field in ("curriculum", "teacher", "tasks_from"):
                if getattr(stage, field) is not None:
                    refuse_ineffective(
                        f"stage {stage.name!r}: the dialogues of a dataset have their tasks and hints; leave {field} "
                        "out",
                        *run.loc_of(stage, field),
                    )

    def __init__(self, config: SFT.Config) -> None:
        super().__init__(config)
        self._stored: list[tuple[Task, Rollout]] = []

    def prepare(self, collector: Collector, evaluation: EvaluationConfig) -> list[str]:
        """Read and check the dataset; raises `DataError` if it has held-out tasks or is of another environment."""
        if self.config.dataset is None:
            return []
        rows, too_long = self._load(collector)
        refuse_held_out(rows, collector.engine.environment, evaluation)
        stage, used = collector.stage, len(self._stored)
        epoch_positions(used, stage.steps - 1, stage.steps, stage.tasks_per_step, self.config.num_epochs)
        epochs = self.config.num_epochs or stage.steps * stage.tasks_per_step / used
        text = f"Stage {stage.name} learns from {used} rows of {self.config.dataset}, {epochs:.3g} epochs"
        return [f"{text}; {too_long} rows are longer than the context and left out." if too_long else f"{text}."]

    def collect(self, collector: Collector, now: ResolvedStage) -> list[Group]:
        if self.config.dataset is None:
            config = self.config
            rates = config.hint_follow_rate, config.final_correct_rate, config.first_correct_rate
            return collector.demonstrations(now, DemonstrationSettings(*rates, config.max_turns))
        if not self._stored:
            self._load(collector)
        stage, n = collector.stage, len(self._stored)
        groups = []
        positions = epoch_positions(n, now.step, stage.steps, stage.tasks_per_step, self.config.num_epochs)
        for i, position in enumerate(positions):
            order = list(range(n))
            random.Random(f"{collector.seed}/{stage.name}/{position // n}").shuffle(order)
            task, rollout = self._stored[order[position % n]]
            group = f"{stage.name}/{now.step + 1}/{i}"
            dialogue = rollout.dialogue.model_copy(update={"id": f"{group}/0", "group": group})
            groups.append(Group(task, (Rollout(dialogue, rollout.sequences),)))
        return groups

    def samples(self, group: Group) -> list[TrainingSample]:
        samples: list[TrainingSample] = []
        for rollout in group.trainable:
            last = len(rollout.dialogue.turns) - 1
            samples += sft_samples(rollout, range(last + 1) if self.config.train_on == "all" else [last])
        return samples

    def _load(self, collector: Collector) -> tuple[list[Row], int]:
        """Store the rollouts that fit the context; return all rows, and the number of those that do not fit."""
        assert self.config.dataset is not None
        engine = collector.engine
        rows = read_rows(find_rows(self.config.dataset, collector.run_dir), engine.environment)
        engine.environment.prefetch_verdicts([(row.task, text) for row in rows for text in row.attempts])
        limit = min(engine.config.max_seq_len, engine.backend.max_model_len)
        rollouts = [
            (row.task, rollout_from_text(engine, RolloutRequest(row.task, "", "", 0, 0), row.attempts, row.hints))
            for row in rows
        ]
        self._stored = [
            (task, rollout)
            for task, rollout in rollouts
            if max(len(sequence.token_ids) for sequence in rollout.sequences) <= limit
        ]
        if not self._stored:
            raise ConfigError("No row of the dataset fits the context.", value=limit, fix="Raise rollout.max_seq_len.")
        return rows, len(rows) - len(self._stored)


def epoch_positions(rows: int, step: int, steps: int, rows_per_step: int, epochs: float | None) -> range:
    """Return the positions of a 0-based step in the endless sequence of epochs over the rows.

    With `epochs`, all `steps` together take `epochs × rows` positions, split evenly. Otherwise a step takes
    `rows_per_step`.

    Raises:
        ConfigError: There are fewer positions than steps.
    """
    if epochs is None:
        return range(step * rows_per_step, (step + 1) * rows_per_step)
    total = round(epochs * rows)
    if total < steps:
        raise ConfigError(
            f"{epochs:g} epochs over {rows} rows give fewer rows than the stage has steps.",
            value=steps,
            fix=f"Lower steps to {max(total, 1)}, or raise num_epochs.",
        )
    return range(step * total // steps, (step + 1) * total // steps)
