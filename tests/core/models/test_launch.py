"""`rl2f train` under `accelerate launch`: two processes on CPUs (gloo) do what one does, and stop and die together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from learner_rows import learner
from run_helpers import adapter, config_of, content, go, statuses
from safetensors.torch import load_file
from sharded_worker import NOW, OPTIONS, updates

from rl2f_core.config.loading import dump_yaml
from rl2f_core.config.run import RunConfig
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import MetricEvent, read_events

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
LAUNCH = ROOT / "data" / "configs" / "launch" / "cpu_2.yaml"
NAMES = ["warm@2", "rl@2", "rl@3", "on_trl@2"]


@pytest.fixture(scope="module")
def config(speaker: Path) -> RunConfig:
    """sft → rl2f with a KL term and re-drawn groups → rlvr on TRL's trainer, then an evaluation."""
    made = config_of(speaker, kl=0.1).model_dump()
    last = {"name": "on_trl", "method": {"type": "rlvr"}, "trainer": "trl", "steps": 2, "tasks_per_step": 3,
            "group_size": 4, "learning_rate": 0.005, "micro_batch_tokens": 256}  # fmt: skip
    made["stages"] = [*({**stage, "micro_batch_tokens": 256} for stage in made["stages"]), last]
    made["evaluation"] |= {
        "num_tasks": 3,
        "conditions": ["hints", "resample"],
        "checkpoints": ["rl@3"],
    }
    return RunConfig.model_validate(made)


def launched(*arguments: str, script: Sequence[str] = ("-m", "app.cli", "train")) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(LAUNCH), *script]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *arguments], cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)  # fmt: skip


@pytest.fixture(scope="module")
def one(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as one process makes it."""
    run_dir = RunDir.create(tmp_path_factory.mktemp("one") / "run", config)
    assert go(run_dir) == "succeeded"
    return run_dir.path


def assert_alike(ours: Any, theirs: Any, where: str = "") -> None:
    """The same, with numbers that differ in their last digits: the sums of two processes are added in another order."""
    if isinstance(ours, float) and isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=5e-5), where
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours.keys() - {"sha256"}:
            assert_alike(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), where
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_alike(*pair, where=f"{where}.{number}")
    else:
        assert ours == theirs, where


def assert_same_as(folder: Path, one: Path) -> None:
    """The same events in the same order, and the same adapters."""
    ours, theirs = content(folder), content(one)
    assert [event["id"] for event in ours] == [event["id"] for event in theirs]
    assert_alike(ours, theirs)
    assert RunDir(folder).checkpoint_names() == RunDir(one).checkpoint_names() == NAMES
    for name in NAMES:
        held, wanted = (load_file(run / "checkpoints" / name / "adapter_model.safetensors") for run in (folder, one))
        assert held.keys() == wanted.keys()
        for key, tensor in wanted.items():
            assert float((held[key] - tensor).abs().max()) < 5e-5, (name, key)
    assert (folder / "evaluation" / "report.json").is_file() and not (folder / ".sync").exists()


def losses(folder: Path) -> list[float]:
    events = read_events(folder / "events.jsonl", strict=True)
    return [e.values["loss"] for e in events if isinstance(e, MetricEvent) and "loss" in e.values]


def test_two_processes_make_the_run_of_one(config: RunConfig, one: Path, tmp_path: Path):
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    process = launched(str(tmp_path / "config.yaml"), "--out", str(tmp_path / "two"))
    said, _ = process.communicate(timeout=550)
    assert process.returncode == 0, said
    assert said.count("Run ") == 1, "both processes speak"
    assert statuses(tmp_path / "two") == ["running", "succeeded"]
    assert losses(tmp_path / "two") == pytest.approx(losses(one), rel=1e-4, abs=1e-6)
    assert len(losses(one)) == 7 and len(set(losses(one))) == 7
    assert_same_as(tmp_path / "two", one)


def test_a_run_that_goes_on_from_our_trainer_to_trl_can_be_stopped_after_every_step(
    config: RunConfig, one: Path, tmp_path: Path
):
    run_dir = RunDir.create(tmp_path / "stopped", config)
    ended = []
    while not ended or ended[-1] == "stopped":
        ended.append(go(run_dir, partial(next, iter([False]), True)))
        if run_dir.evaluation.exists():
            break  # the evaluation is asked to stop between its parts as well
    while ended[-1] == "stopped":
        ended.append(go(run_dir))
    assert ended[-1] == "succeeded" and ended.count("stopped") >= 6
    assert content(run_dir.path) == content(one)
    for name in NAMES:
        assert adapter(run_dir.path, name) == adapter(one, name)


def test_trl_and_our_trainer_make_the_same_steps_of_a_run(config: RunConfig, one: Path, tmp_path: Path):
    made = config.model_dump()
    made["stages"][-1]["trainer"] = "native"
    made["evaluation"]["checkpoints"] = []
    ours = RunDir.create(tmp_path / "own", RunConfig.model_validate(made))
    assert go(ours) == "succeeded"
    assert losses(ours.path) == pytest.approx(losses(one), rel=1e-4, abs=1e-6)
    kinds = ("dialogue", "metric")
    told, wanted = ([e for e in content(run) if e["type"] in kinds and e["stage"] == "on_trl"]
                    for run in (ours.path, one))  # fmt: skip
    assert_alike(told, wanted)
    assert len(told) == 8 + 2 * 12 + 2 and adapter(ours.path, "rl@3") == adapter(one, "rl@3")


def workers(process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """The launcher's processes by rank."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with_rank = child.environ().get("RANK")
        if with_rank is not None and "app.cli" in child.cmdline():
            found[int(with_rank)] = child
    return found


def until(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 400
    while not true():
        assert process.poll() is None and time.monotonic() < end, process.communicate()[0]
        time.sleep(0.02)


def at_stage(folder: Path, name: str) -> bool:
    try:
        return f'"stage": "{name}"' in (folder / "heartbeat.json").read_text()
    except OSError:
        return False


def test_a_stop_told_to_one_stops_both_and_the_death_of_one_ends_both(config: RunConfig, one: Path, tmp_path: Path):
    folder = tmp_path / "two"
    RunDir.create(folder, config)
    first = launched("--resume", str(folder))
    until(lambda: at_stage(folder, "warm"), first)
    workers(first)[1].send_signal(signal.SIGTERM)
    said, _ = first.communicate(timeout=300)
    assert statuses(folder) == ["running", "stopped"], said
    second = launched("--resume", str(folder))
    until(lambda: at_stage(folder, "on_trl"), second)
    held = workers(second)
    held[1].kill()
    said, _ = second.communicate(timeout=300)
    assert second.returncode != 0, said
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in held.values())
    third = launched("--resume", str(folder))
    said, _ = third.communicate(timeout=550)
    assert third.returncode == 0, said
    assert_same_as(folder, one)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "ddp-full", "fsdp-full"])
def test_weights_that_two_processes_share_out_are_trained_saved_and_loaded_as_one(
    kind: str, tiny: Path, tmp_path: Path
):
    process = launched(kind, str(tiny), str(tmp_path), script=[str(ROOT / "tests" / "support" / "sharded_worker.py")])
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    one = learner(Learner, tiny, full=kind.endswith("-full"))
    one.begin_stage(OPTIONS, NOW)
    for ours, theirs in zip(json.loads((tmp_path / "found.json").read_text()), updates(one, 0, 3), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)
    one.save_adapter(tmp_path / "one")
    held, wanted = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("last", "one"))
    assert held.keys() == wanted.keys()
    assert all(float((held[key] - tensor).abs().max()) < 1e-6 for key, tensor in wanted.items())


def test_a_wrong_configuration_is_told_once(config: RunConfig, tmp_path: Path):
    folder = tmp_path / "taken"
    RunDir.create(folder, config)
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    process = launched(str(tmp_path / "config.yaml"), "--out", str(folder))
    said, _ = process.communicate(timeout=300)
    assert process.returncode != 0 and said.count("The folder already contains a run") == 1, said
