"""A stage with its own teacher: the training control of the quickstart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_helpers import config_of, go, undrawn_figures

from rl2f_core.config.loading import parse_config
from rl2f_core.config.presets import preset
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.counterfactual.config import inherit_settings
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, read_events


@pytest.fixture(scope="module")
def branched(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A warm-up with two branches, the second under contentless hints; then an evaluation."""
    preflight = {"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True}
    config = config_of(speaker, steps=(1, 1), preflight=preflight).model_dump(mode="json")
    config["stages"][1] |= {"group_size": 2, "max_group_resamples": 0}
    config["stages"].append({**config["stages"][1], "name": "blank", "teacher": "contentless", "init_from": "warm"})
    config["stages"].append({**config["stages"][1], "name": "again", "init_from": "warm"})
    config["evaluation"] = {"num_tasks": 2, "conditions": ["hints"], "checkpoints": ["blank@1"]}
    run_dir = RunDir.create(tmp_path_factory.mktemp("branched") / "run", parse_config(config))
    with undrawn_figures():
        assert go(run_dir) == "succeeded"
    return run_dir


def teachers(run_dir: RunDir, phase: str, stage: str) -> set[str]:
    events = (e for e in read_events(run_dir.events_path, strict=True) if isinstance(e, DialogueEvent))
    turns = [turn for e in events if (e.phase, e.stage) == (phase, stage) for turn in e.dialogue.turns]
    return {turn.hint.teacher for turn in turns if turn.hint is not None}


def test_a_stage_can_train_under_contentless_hints_while_evaluations_use_the_runs_teacher(branched: RunDir) -> None:
    for phase in ("preflight", "train"):
        assert teachers(branched, phase, "rl") == {"scripted"}
        assert teachers(branched, phase, "blank") == {"contentless"}
        assert teachers(branched, phase, "again") == {"scripted"}
    assert teachers(branched, "evaluation", "evaluation") == {"scripted"}


def test_a_fork_of_a_training_dialogue_inherits_the_teacher_of_its_stage(branched: RunDir) -> None:
    assert inherit_settings(branched, "train", "blank", 1)["teacher"]["type"] == "contentless"
    assert inherit_settings(branched, "train", "rl", 1)["teacher"]["type"] == "scripted"
    assert inherit_settings(branched, "evaluation")["teacher"]["type"] == "scripted"


def test_a_stage_teacher_that_the_environment_does_not_support_is_refused() -> None:
    data: dict[str, Any] = {
        "environment": {"type": "math", "answers": "all"},
        "teacher": "contentless",
        "evaluation": {"conditions": ["hints"]},
        "stages": [{"name": "s", "method": "rl2f", "steps": 1}],
    }
    parse_config(data)
    data["stages"][0]["teacher"] = "scripted"
    with pytest.raises(ConfigError, match="teacher 'scripted' has hints on numbers alone"):
        parse_config(data)


def test_quickstart_presets_differ_in_the_named_settings_alone() -> None:
    shaped: Any = preset("quickstart_shaped").config()
    plain = shaped.model_dump()

    def changed(name: str) -> dict[str, Any]:
        data = preset(name).config().model_dump()
        return {key: value for key, value in data.items() if value != plain[key] and key != "name"}

    sparse = plain["reward"] | {"progress_weight": 0.0, "repeat_answer_penalty": 0.0}
    assert changed("quickstart") == {"reward": sparse}
    environment, rollout = plain["environment"] | {"letters": 3}, plain["rollout"] | {"max_turns": 4}
    assert changed("quickstart_three_letters") == {"environment": environment, "rollout": rollout}
    controls: Any = preset("quickstart_controls").config()
    assert set(changed("quickstart_controls")) == {"stages"}
    warmup, rl2f, rlvr, contentless = controls.stages
    assert (warmup, rl2f) == shaped.stages
    assert (
        contentless.model_copy(update={"name": "rl2f", "teacher": None, "init_from": None, "tasks_from": None}) == rl2f
    )
    assert (contentless.teacher.type, contentless.init_from, rlvr.init_from) == ("contentless", "warmup", "warmup")
    assert controls.for_stage(contentless).teacher.type == "contentless"
    assert controls.for_stage(rl2f).teacher.type == "scripted"
