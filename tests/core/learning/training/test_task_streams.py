"""Task streams: which positions of the train split each stage uses, and that a resumed run uses the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import SEED_STRIDE, RunConfig
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.learning.training.collector import Collector
from rl2f_core.learning.training.curriculum import tracker_for_stage
from rl2f_core.learning.training.preflight import preflight
from rl2f_core.models.backends.fake import FakeBackend

WARM = {"name": "warm", "method": "sft", "steps": 3, "tasks_per_step": 4, "group_size": 1}
RL = {"name": "rl", "method": "rl2f", "steps": 2, "tasks_per_step": 5, "group_size": 2, "max_group_resamples": 3}


def run(*stages: dict[str, Any], **changes: Any) -> RunConfig:
    data = {
        "environment": {"type": "guess_number", "low": 1, "size": 400},
        "rollout": {"max_turns": 2, "max_new_tokens": 60},
        "preflight": {"num_tasks": 6, "samples_per_task": 2},
        "stages": list(stages),
    }
    config = parse_config({**data, **changes})
    assert isinstance(config, RunConfig)
    return config


def collector(config: RunConfig, index: int) -> Collector:
    """The collector of a stage, as the trainer builds it; the student never gives a parsable answer."""
    stage, engine = config.stages[index], build_engine(config, FakeBackend(FakeBackend.Config(replies=("no",))))
    curriculum = tracker_for_stage(config, stage, engine)
    return Collector(engine, stage, config.seed, first_task=config.first_task(stage), curriculum=curriculum)


def positions(config: RunConfig, index: int, steps: Sequence[int] | None = None) -> list[int]:
    """The positions of all tasks of a stage, those of resampled groups included."""
    stage, held = config.stages[index], collector(config, index)
    method = registry.get("method", stage.method.type)(stage.method)
    groups = []
    for step in range(stage.steps) if steps is None else steps:
        groups += [*method.collect(held, held.resolve(step)), *held.discarded_groups]
    return sorted(int(group.task.id.rpartition("/")[2].partition("~")[0]) for group in groups)


def preflight_positions(config: RunConfig, index: int) -> list[int]:
    stage, held = config.stages[index], collector(config, index)
    method = registry.get("method", stage.method.type)(stage.method)
    _, groups = preflight(held.engine, config, stage, method)
    return [int(group.task.id.rpartition("/")[2]) for group in groups]


def test_each_stage_has_its_own_tasks_so_rl_does_not_train_on_those_of_the_warm_up() -> None:
    config = run(WARM, RL, {**RL, "name": "more", "steps": 1}, seed=2)
    start = 2 * SEED_STRIDE
    # warm: 12 tasks, 6 of a preflight; rl: 10 tasks, 6 of resampled groups, 6 of the preflight; then `more`
    assert [config.first_task(stage) - start for stage in config.stages] == [0, 18, 40]
    assert positions(config, 0) == [start + i for i in range(12)]
    assert positions(config, 1) == [start + i for i in range(18, 34)]
    assert preflight_positions(config, 1) == [start + i for i in range(34, 40)]
    assert positions(config, 2) == [start + i for i in range(40, 48)]


def test_the_tasks_of_a_step_follow_from_seed_stage_and_step_alone() -> None:
    config = run(WARM, RL)
    assert sorted(positions(config, 1, [1]) + positions(config, 1, [0])) == positions(config, 1)
    plain = run(WARM, {**RL, "max_group_resamples": 0})
    assert set(positions(plain, 1, [1])) < set(positions(config, 1, [1])), "resampling moves no task of a step"


def test_a_curriculum_draws_from_the_stream_of_its_stage() -> None:
    levels = [{"settings": {"size": 300}, "steps": 1}, {"settings": {"size": 400}}]
    config = run(WARM, {**RL, "max_group_resamples": 0, "curriculum": {"levels": levels}})
    assert positions(config, 1) == list(range(18, 28))


def test_a_stage_may_repeat_the_tasks_of_another_to_compare_methods() -> None:
    longer = {**RL, "name": "longer", "init_from": "warm", "tasks_from": "rl", "steps": 4}
    config = run(WARM, RL, longer, {**RL, "name": "own"})
    assert [config.first_task(stage) for stage in config.stages] == [0, 18, 18, 18 + 4 * 8 + 6]
    assert positions(config, 2, [0])[:5] == positions(config, 1, [0])[:5]
    assert not set(positions(config, 3)) & {*positions(config, 1), *positions(config, 2)}
