"""A run that starts from the finished run of its first stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_helpers import assert_same_run, config_of, content, go

from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.learning.training.start_from import adopted_evaluations, settings_of_first_stages
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import MetricEvent, read_events


def first_stages(data: dict[str, Any], count: int = 1, **changes: Any) -> RunConfig:
    config = parse_config({**data, "name": "warm-up", "stages": data["stages"][:count], **changes})
    assert isinstance(config, RunConfig)
    return config


@pytest.fixture(scope="module")
def warm(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    data = config_of(speaker, steps=(2, 2)).model_dump(mode="json")
    run_dir = RunDir.create(tmp_path_factory.mktemp("start") / "warm", first_stages(data))
    assert go(run_dir) == "succeeded"
    return run_dir


@pytest.mark.slow
def test_a_run_from_the_end_of_its_first_stages_equals_the_whole_run(speaker: Path, warm: RunDir) -> None:
    """Also if it is stopped after the copy, and resumed."""
    config = config_of(speaker, steps=(2, 2))
    whole = RunDir.create(warm.path.parent / "whole", config)
    assert go(whole) == "succeeded"
    data = config.model_dump(mode="json")
    short = RunDir.create(warm.path.parent / "short", parse_config({**data, "start_from": "warm"}))
    assert go(short, lambda: True) == "stopped"
    names = [(e.stage, e.step) for e in read_events(short.events_path) if isinstance(e, MetricEvent)]
    assert names == [("warm", 1), ("warm", 2)] and short.checkpoint_names() == ["warm@2"]
    assert go(short) == "succeeded"
    assert_same_run(short.path, whole.path, "rl@2")


@pytest.mark.slow
def test_the_next_stage_may_have_an_adapter_of_another_shape(speaker: Path, warm: RunDir) -> None:
    data = config_of(speaker, steps=(2, 2)).model_dump(mode="json")
    data["stages"][1] |= {"init_from": "base", "lora": {"rank": 2, "alpha": 4}}
    whole = RunDir.create(warm.path.parent / "whole-other-rank", parse_config(data))
    short = RunDir.create(warm.path.parent / "short-other-rank", parse_config({**data, "start_from": "warm"}))
    assert [go(run_dir) for run_dir in (whole, short)] == ["succeeded"] * 2
    assert_same_run(short.path, whole.path, "rl@2")


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [0.0, 0.5], ids=["equal rewards", "other rewards"])
def test_evaluations_of_the_first_stages_are_adopted_if_rewards_are_equal(
    speaker: Path, tmp_path: Path, penalty: float
) -> None:
    """The runs are equal but for the order of events, and for the last digits of the log-probabilities of evaluations,
    which generate other dialogues together. Of the warm-up's checkpoints, one is not evaluated again."""
    evaluation = {"num_tasks": 3, "conditions": ["hints", "contentless"], "checkpoints": ["warm@2", "rl@2"]}
    reward = {"preset": "format", "progress_weight": 0.5, "leak_penalty": penalty}
    data = config_of(speaker, steps=(2, 2), evaluation=evaluation, reward=reward).model_dump(mode="json")
    more = {"evaluation": {**evaluation, "checkpoints": ["base", "warm@2"]}, "reward": {**reward, "leak_penalty": 0}}
    warm = RunDir.create(tmp_path / "warm", first_stages(data, **more))
    whole = RunDir.create(tmp_path / "whole", parse_config(data))
    short = RunDir.create(tmp_path / "short", parse_config({**data, "start_from": "warm"}))
    assert [go(run_dir) for run_dir in (warm, whole)] == ["succeeded"] * 2
    assert go(short, lambda: True) == "stopped"
    assert adopted_evaluations(short) == ([] if penalty else ["warm@2/hints", "warm@2/contentless"])
    assert [path.name for path in short.evaluation.glob("dialogues/*")] == ([] if penalty else ["warm@2"])
    assert go(short) == "succeeded"
    ours, theirs = ({event["id"]: event for event in content(run_dir.path)} for run_dir in (short, whole))
    for name in ours.keys() & theirs.keys():
        if name.startswith("dialogue:evaluation"):
            for turn, other in zip(*(events[name]["dialogue"]["turns"] for events in (ours, theirs)), strict=True):
                assert turn.pop("logprobs") == pytest.approx(other.pop("logprobs"), abs=1e-4)
    assert ours == theirs and len(ours) == len(content(short.path))
    assert (short.evaluation / "report.json").read_text() == (whole.evaluation / "report.json").read_text()


@pytest.mark.slow
def test_a_run_does_not_start_from_other_settings_or_an_unfinished_run(speaker: Path, warm: RunDir) -> None:
    data = config_of(speaker, steps=(2, 2)).model_dump(mode="json")
    other = parse_config({**data, "seed": 6, "start_from": str(warm.path), "retain_states": 0.5})
    run_dir = RunDir.create(warm.path.parent / "other", other)
    with pytest.raises(
        ConfigError, match=r"other settings than these first stages. Got: \['seed', .*'retain_states'\]"
    ):
        go(run_dir)
    half = RunDir.create(warm.path.parent / "half", first_stages(data))
    assert go(half, lambda: True) == "stopped"
    run_dir = RunDir.create(warm.path.parent / "early", parse_config({**data, "start_from": "half"}))
    with pytest.raises(RunError, match=r"not a finished training run.*train --resume"):
        go(run_dir)
    assert go(half) == "succeeded" and go(run_dir) == "succeeded"


def test_the_first_stages_depend_on_rewards_only_if_they_learn_from_rollouts(tiny: Path) -> None:
    def settings(count: int, **changes: Any) -> dict[str, Any]:
        data = {**config_of(tiny).model_dump(mode="json"), **changes}
        config = parse_config(data)
        assert isinstance(config, RunConfig)
        return settings_of_first_stages(config, count)

    plain, penalty = {}, {"reward": {"preset": "format", "leak_penalty": 0.5}}
    assert settings(1, **plain) == settings(1, **penalty) != settings(1, teacher="contentless")
    assert settings(2, **plain) != settings(2, **penalty)
    assert settings(1, name="a", evaluation={"checkpoints": ["base"]}) == settings(1, name="b")
    assert settings(1) != settings(1, evaluation={"split": "validation", "checkpoints": []})
