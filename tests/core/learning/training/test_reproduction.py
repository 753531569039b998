"""Retained training states, and `rl2f reproduce`."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from run_helpers import config_of, go
from typer.testing import CliRunner

from app.cli import app
from rl2f_core.common.paths import ROOT
from rl2f_core.config.loading import load_config
from rl2f_core.errors import RunError
from rl2f_core.learning.learner.memory import retained_disk
from rl2f_core.learning.training.reproduction import Reproduction, compare, reproduce
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import LogEvent, read_events


@pytest.fixture(scope="module")
def whole(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one of its five steps retained; seed 5 chooses the second one of the stage rl."""
    run_dir = RunDir.create(tmp_path_factory.mktemp("retained") / "run", config_of(speaker, retain_states=0.05))
    assert go(run_dir) == "succeeded"
    return run_dir.path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def retained(run: Path) -> Path:
    (folder,) = (path for path in (run / "retained").iterdir() if path.is_dir())
    return folder


def flip_bit(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_the_seed_chooses_the_retained_steps_beforehand(tmp_path: Path):
    def steps(**changes: Any) -> list[tuple[str, int]]:
        return config_of(tmp_path, steps=(20, 20), **changes).retained_steps()

    assert steps() == []
    assert len(steps(retain_states=0.05)) == 2 and len(steps(retain_states=0.01)) == 1
    assert steps(retain_states=0.2) == steps(retain_states=0.2) != steps(retain_states=0.2, seed=6)
    assert steps(retain_states=1) == [("warm", k) for k in range(1, 21)] + [("rl", k) for k in range(1, 21)]


@pytest.mark.slow
def test_the_preflight_states_the_disk_space_of_the_retained_states(whole: Path, speaker: Path):
    estimate = retained_disk(speaker, config_of(speaker, retain_states=0.05))
    size = sum(file.stat().st_size for file in retained(whole).glob("*.safetensors"))
    assert 0.5 * size < estimate < 1.5 * size
    texts = [event.text for event in read_events(whole / "events.jsonl") if isinstance(event, LogEvent)]
    assert any("1 retained training states: up to 0.00 GiB on disk" in text for text in texts)


@pytest.mark.slow
def test_a_run_reproduces_its_retained_steps_bit_for_bit_and_is_unchanged(whole: Path, tmp_path: Path):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    result = CliRunner().invoke(app, ["reproduce", str(whole), "--out", str(tmp_path / "report.json")])
    assert result.exit_code == 0, result.output
    report = Reproduction.model_validate_json((tmp_path / "report.json").read_bytes())
    (step,) = report.steps
    assert step.name == retained(whole).name and set(step.parts) == {
        "files", "events", "tokens", "rewards", "advantages", "metrics", "weights"
    }  # fmt: skip
    assert {part.outcome for part in step.parts.values()} == {"identical"} and report.outcome == "identical"
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_flipped_bit_in_an_event_of_the_step_is_found(copy: Path):
    events = copy / "events.jsonl"
    stage, step = retained(copy).name.split("@")
    line = events.read_bytes().index(f'"id":"metric:{stage}:{step}"'.encode())
    flip_bit(events, events.read_bytes().index(b'"loss":', line) + len('"loss":0.1'))
    result = CliRunner().invoke(app, ["reproduce", str(copy), "--json"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    parts = report["steps"][0]["parts"]
    assert parts["events"]["detail"] == f"event metric:{stage}:{step} does not match its checksum"
    assert report["events"]["outcome"] == "differs" and parts["weights"]["outcome"] == "identical"
    assert "loss: recorded" in parts["metrics"]["detail"]


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "optimizer.safetensors"])
def test_a_flipped_bit_in_a_file_of_the_state_is_found_before_the_step_is_executed(copy: Path, name: str):
    path = retained(copy) / name
    flip_bit(path, path.stat().st_size - 40)
    report = reproduce(RunDir(copy))
    assert report.steps[0].parts["files"].detail == f"{name} is missing or does not match its checksum"
    assert report.outcome == "differs" and "tokens" not in report.steps[0].parts, "damaged weights were loaded"


@pytest.mark.parametrize("text", [b'"step": ', b'"bytes": ', b'"events": {\n    "dialogue:'])
def test_a_flipped_bit_in_the_digests_is_found(copy: Path, text: bytes):
    path = next(path for path in retained(copy).glob("*.json") if text in path.read_bytes())
    flip_bit(path, path.read_bytes().index(text) + len(text))
    assert reproduce(RunDir(copy), files_only=True).outcome == "differs"


def test_a_flipped_bit_in_an_event_of_another_step_or_in_a_checkpoint_is_found(copy: Path):
    events = copy / "events.jsonl"
    flip_bit(events, events.read_bytes().index(b'"attempt":"') + 12)  # the first step, which is not retained
    flip_bit(copy / "checkpoints" / "rl@3" / "adapter_model.safetensors", -8)
    report = reproduce(RunDir(copy), files_only=True)
    assert report.steps[0].outcome == "identical"
    assert "events.jsonl changed between bytes" in report.events.detail
    assert report.checkpoints.detail == "checkpoint rl@3 does not match its checksum"


def test_a_missing_state_is_found_and_a_run_without_states_is_an_error(copy: Path):
    shutil.rmtree(retained(copy))
    report = reproduce(RunDir(copy))
    assert report.steps[0].parts["files"].detail == "state.json is missing or damaged" and report.outcome == "differs"
    text = (copy / "config.yaml").read_text().replace("retain_states: 0.05", "retain_states: 0.0")
    (copy / "config.yaml").write_text(text)
    with pytest.raises(RunError, match="retain_states"):
        reproduce(RunDir(copy))


def dialogue(**turn: Any) -> dict[str, Any]:
    told = {"index": 0, "token_ids": [3, 4], "attempt": "a", "verdict": {"parsed": "A"}, "advantage": 0.5}
    told["rewards"] = [{"name": "correct", "score": 1.0, "weight": 1.0}]
    return {"id": "d", "type": "dialogue", "dialogue": {"turns": [told | turn]}}


def metric(**values: float | None) -> dict[str, Any]:
    return {"id": "m", "type": "metric", "values": {"loss": 0.25, "time/rollout": 1.0, **values}}


@pytest.mark.parametrize(
    ("repeated", "part", "outcome", "detail"),
    [
        ([dialogue(), metric(**{"time/rollout": 9.0})], "metrics", "identical", ""),
        ([dialogue(token_ids=[3, 5]), metric()], "tokens", "differs", "d turn 1 token 1: recorded 4, repeated: 5"),
        ([dialogue(token_ids=[3]), metric()], "tokens", "differs", "d turn 1 token 1: recorded 4, repeated: None"),
        ([dialogue(advantage=0.50001), metric()], "advantages", "within tolerance", "recorded 0.5, repeated: 0.50001"),
        ([dialogue(advantage=0.6), metric()], "advantages", "differs", "recorded 0.5, repeated: 0.6"),
        ([dialogue(rewards=[]), metric()], "rewards", "differs", "reward correct: recorded 1.0, repeated: None"),
        ([dialogue(), metric(loss=None)], "metrics", "differs", "m loss: recorded 0.25, repeated: None"),
        ([metric()], "tokens", "differs", "event d is only in the recorded step"),
    ],
)
def test_the_first_difference_is_named(repeated: list[dict[str, Any]], part: str, outcome: str, detail: str):
    result = compare([dialogue(), metric()], repeated)[part]
    assert result.outcome == outcome and detail in result.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"ref_model": "stage_start"}, {"method": {"type": "ppo"}, "max_group_resamples": 0}], ids=["kl", "ppo"]
)
def test_a_run_that_was_stopped_after_every_step_reproduces_all_steps(
    speaker: Path, tmp_path: Path, changes: dict[str, Any]
):
    warm, rl = config_of(speaker).model_dump(mode="json")["stages"]
    config = config_of(speaker, retain_states=1.0, stages=[warm, {**rl, **changes}])
    run_dir = RunDir.create(tmp_path / "run", config)
    while go(run_dir, partial(next, iter([False]), True)) == "stopped":
        pass
    report = reproduce(run_dir)
    assert [step.outcome for step in report.steps] == ["identical"] * 5 and report.outcome == "identical", report


@pytest.mark.slow
def test_the_quickstart_reproduces_its_retained_steps(smollm2: Path, tmp_path: Path):
    sizes = ["stages.0.steps=2", "stages.1.steps=2", "evaluation.checkpoints=[]"]
    sizes += ["preflight.num_tasks=1", "preflight.samples_per_task=2", "preflight.ignore_failure=true"]
    sizes += ["stages.1.tasks_per_step=2", "stages.1.group_size=4", f"model.name={smollm2}"]
    config = load_config(ROOT / "data/configs/quickstart/quickstart.yaml", [*sizes, "retain_states=0.5"])
    run_dir = RunDir.create(tmp_path / "run", config)
    assert go(run_dir) == "succeeded"
    report = reproduce(run_dir)
    assert [step.name for step in report.steps] == [f"{stage}@{step}" for stage, step in config.retained_steps()]
    assert len(report.steps) == 2 and report.outcome == "identical", report
    flip_bit(run_dir.path / "retained" / report.steps[0].name / "optimizer.safetensors", -1)
    assert reproduce(run_dir, files_only=True).outcome == "differs"
