"""Estimated size, duration and memory of a training run before it starts, from an earlier run of the same model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median

from sqlalchemy import func, select

from jobs.db.columns import table_of
from jobs.db.engine import Database
from jobs.db.models import Metric, Run
from rl2f_core.common.paths import QUICKSTART_RESULTS
from rl2f_core.config.components import wrapped_teacher
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.loading import parse_yaml
from rl2f_core.config.run import RunConfig
from rl2f_core.config.schedules import peak
from rl2f_core.errors import RL2FError
from rl2f_core.types import FrozenModel

ELSEWHERE = ("example", "imported")
"""Origins of runs that other machines executed."""
CANDIDATES = 5
"""Newest runs of a model among which one with a readable configuration is sought."""


class Pace(FrozenModel):
    """Speed and memory of an earlier run."""

    run: int | None = None
    """Number of the run; None for recorded runs of other machines."""
    seconds_per_token: float
    """Seconds of the whole run for each token that the student could sample at most."""
    memory_gb: float | None = None
    """Highest resident memory in GB."""


class Estimate(FrozenModel):
    """Estimated size of a training run."""

    dialogues: int
    """Dialogues of training and evaluation."""
    tokens: int
    """Maximum of the tokens that the student samples in them."""
    seconds: float | None = None
    """Estimated duration; None without an earlier run of the model."""
    memory_gb: float | None = None
    """Highest memory of the earlier run in GB."""
    like: int | None = None
    """Number of the earlier run; None for recorded runs of other machines."""
    model_teacher: bool = False
    """Whether a model writes the hints, whose time is not counted."""


def pace(db: Database, model: str) -> Pace | None:
    """Return the pace of the newest run that trained a model to the end here, or else of the recorded runs.

    None if there are neither.
    """
    run, metric = table_of(Run).c, table_of(Metric).c
    query = select(run.id, run.config, run.ended - run.started).where(
        run.kind == "train", run.status == "succeeded", run.model == model, run.ended > run.started,
        run.origin.not_in(ELSEWHERE),
    )  # fmt: skip
    with db.read() as session:
        for number, text, seconds in session.execute(query.order_by(run.ended.desc()).limit(CANDIDATES)).all():
            try:
                config = parse_yaml(text)
            except RL2FError:  # of another version
                continue
            if isinstance(config, RunConfig):
                memory = metric["values"]["system/memory_gb"].as_float()
                most = session.scalar(select(func.max(memory)).where(metric.run_id == number))
                return Pace(run=number, seconds_per_token=seconds / size(config).tokens, memory_gb=most)
    recorded = recorded_seconds_per_token().get(model)
    return None if recorded is None else Pace(seconds_per_token=recorded)


@cache
def recorded_seconds_per_token() -> dict[str, float]:
    """Return the median seconds for each token in the recorded runs of the quickstart, by model."""
    found: dict[str, list[float]] = {}
    for folder in sorted(QUICKSTART_RESULTS.glob("seed-*")):
        config = parse_yaml((folder / "config.yaml").read_text())
        seconds = json.loads((folder / "environment.json").read_text())["wall_seconds"]
        if isinstance(config, RunConfig):
            found.setdefault(config.model.name, []).append(seconds / size(config).tokens)
    return {model: median(values) for model, values in found.items()}


def size(config: RunConfig) -> Estimate:
    """Count the dialogues of all steps and evaluations, and the tokens if each turn has the maximum length."""
    dialogues = sum(stage.steps * stage.tasks_per_step * int(peak(stage.group_size)) for stage in config.stages)
    evaluation = config.evaluation
    checkpoints = sum(len(config.stages) if name == "stages" else 1 for name in evaluation.checkpoints)
    dialogues += checkpoints * len(evaluation.conditions) * evaluation.num_tasks * evaluation.samples_per_task
    tokens = dialogues * config.rollout.max_turns * config.rollout.max_new_tokens
    teachers = [config.teacher, *(stage.teacher for stage in config.stages if stage.teacher is not None)]
    asks = any(hasattr(wrapped_teacher(teacher), "llm") for teacher in teachers)
    return Estimate(dialogues=dialogues, tokens=tokens, model_teacher=asks)


def estimate(config: BaseConfig, pace_of: Callable[[str], Pace | None]) -> Estimate | None:
    """Return the size of a training run; None for other kinds.

    Args:
        config: Configuration of any run kind.
        pace_of: Returns the pace of a model, which gives duration and memory, if it is known.
    """
    if not isinstance(config, RunConfig) or config.kind != "train":
        return None
    found, known = size(config), pace_of(config.model.name)
    if known is None:
        return found
    seconds = found.tokens * known.seconds_per_token
    return found.model_copy(update={"seconds": seconds, "memory_gb": known.memory_gb, "like": known.run})


def estimate_study(arms: Sequence[BaseConfig], seeds: int, pace_of: Callable[[str], Pace | None]) -> Estimate | None:
    """Return the size of all runs of a study, with shared warm-ups counted in each; None if that of an arm is unknown.

    Args:
        arms: Configurations of the arms.
        seeds: Number of seeds.
        pace_of: As for `estimate`.
    """
    found = [size for arm in arms if (size := estimate(arm, pace_of)) is not None]
    if not found or len(found) < len(arms):
        return None
    seconds = [size.seconds for size in found if size.seconds is not None]
    return Estimate(
        dialogues=seeds * sum(size.dialogues for size in found),
        tokens=seeds * sum(size.tokens for size in found),
        seconds=seeds * sum(seconds) if len(seconds) == len(found) else None,
        memory_gb=max((size.memory_gb for size in found if size.memory_gb is not None), default=None),
        like=found[0].like,
        model_teacher=any(size.model_teacher for size in found),
    )
