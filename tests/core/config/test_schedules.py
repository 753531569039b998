"""Schedules: values at steps, computed by hand, and schedules of a stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl2f_core.config.loading import load_config, parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.config.schedules import Schedule, resolve_float, resolve_int
from rl2f_core.config.stage import StageConfig
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.counterfactual.config import inherit_settings
from rl2f_core.learning.training.preflight import dialogues_of
from rl2f_core.run.directory import RunDir

POINTS = [{"step": 0, "value": 1.0}, {"step": 4, "value": 3.0}, {"step": 6, "value": 2.0}]


@pytest.mark.parametrize(
    ("interpolation", "values"),
    [
        ("step", [1, 1, 1, 1, 3, 3, 2, 2, 2]),
        ("linear", [1, 1.5, 2, 2.5, 3, 2.5, 2, 2, 2]),
    ],
)
def test_schedule_values_at_steps(interpolation: str, values: list[float]) -> None:
    schedule = Schedule[float].model_validate({"points": POINTS, "interpolation": interpolation})
    assert [schedule.at(step) for step in range(9)] == values


def test_counts_are_rounded_to_the_nearest_integer() -> None:
    held = Schedule[int].model_validate({"points": [{"step": 0, "value": 2}, {"step": 4, "value": 4}],
                                         "interpolation": "linear"})  # fmt: skip
    assert [held.at(step) for step in range(5)] == [2, 2.5, 3, 3.5, 4]
    assert [resolve_int(held, step) for step in range(6)] == [2, 3, 3, 4, 4, 4]
    assert (resolve_int(8, 50), resolve_float(0.5, 50)) == (8, 0.5)


def stage(**changes: Any) -> dict[str, Any]:
    return {"name": "rl", "method": "rl2f", "steps": 6, "tasks_per_step": 3, **changes}


def test_resolved_stage_has_plain_numbers() -> None:
    plain = StageConfig.model_validate(stage(group_size=4, learning_rate=0.1))
    for step in (0, 5):
        now = plain.resolve(step, 0.7)
        assert (now.group_size, now.learning_rate, now.temperature) == (4, 0.1, 0.7)
    held = StageConfig.model_validate(
        stage(
            group_size=[{"step": 0, "value": 4}, {"step": 3, "value": 8}],
            temperature={"points": [{"step": 0, "value": 1.0}, {"step": 4, "value": 1.2}], "interpolation": "linear"},
            learning_rate=[{"step": 0, "value": 0.4}, {"step": 2, "value": 0.1}],
            warmup_steps=2,
        )
    )
    assert [held.resolve(step, 0.7).group_size for step in range(6)] == [4, 4, 4, 8, 8, 8]
    assert [round(held.resolve(step, 0.7).temperature, 3) for step in range(6)] == [1, 1.05, 1.1, 1.15, 1.2, 1.2]
    assert [round(held.resolve(step, 0.7).learning_rate, 3) for step in range(4)] == [0.2, 0.4, 0.1, 0.1]
    assert dialogues_of(held) == [12, 12, 12, 24, 24, 24] and held.breakpoints() == [0, 2, 3, 4]
    assert StageConfig.model_validate(held.model_dump(mode="json")) == held


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group_size": [{"step": 2, "value": 8}]}, "points begin at step 2"),
        ({"group_size": [{"step": 0, "value": 8}, {"step": 0, "value": 9}]}, "steps must increase"),
        ({"group_size": [{"step": 0, "value": 0}]}, "greater than or equal to 1"),
        ({"temperature": [{"step": 0, "value": 0.0}]}, "greater than 0"),
        ({"temperature": {"points": []}}, "at least 1"),
        ({"temperature": {"points": [{"step": 0, "value": 1.0}], "betwen": "linear"}}, "unknown key"),
        ({"learning_rate": [{"step": 0, "value": 0.1}], "lr_scheduler_type": "cosine"}, "lr_scheduler_type 'cosine'"),
        ({"group_size": [{"step": 0, "value": 4}, {"step": 3, "value": 1}]}, "group_size 1 has no other dialogue"),
    ],
)
def test_invalid_schedule_is_rejected(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({"environment": "guess_number", "stages": [stage(**changes)]})


def test_fork_is_sampled_at_the_temperature_of_its_dialogue(tmp_path: Path) -> None:
    held = stage(temperature=[{"step": 0, "value": 1.0}, {"step": 3, "value": 1.3}],
                 curriculum={"levels": [{"settings": {"size": 4}, "steps": 2}, {"settings": {"size": 8}}]})  # fmt: skip
    source = RunDir.create(tmp_path / "run", parse_config({"environment": "guess_number", "stages": [held]}))
    # steps of events are 1-based: the fourth is the first that is played hotter
    for step, wanted in ((0, 1.0), (1, 1.0), (3, 1.0), (4, 1.3), (6, 1.3)):
        assert inherit_settings(source, "train", "rl", step)["rollout"]["temperature"] == wanted
    sizes = [inherit_settings(source, "train", "rl", 1, f"guess_number/train/7{end}")["environment"]["size"]
             for end in ("~1", "~2", "")]  # fmt: skip
    assert sizes == [4, 8, 16]


def test_list_of_points_is_parsed_from_yaml_and_can_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "environment: guess_number\n"
        "stages: [{name: rl, method: rl2f, steps: 3, group_size: [{step: 0, value: 4}, {step: 2, value: 8}]}]\n"
    )
    config = load_config(path, ["stages.0.group_size.1.value=6"])
    assert isinstance(config, RunConfig)
    assert [config.stages[0].resolve(s, 1.0).group_size for s in range(3)] == [
        4,
        4,
        6,
    ]
