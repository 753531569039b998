"""`rl2f train`, `eval` and `preflight` from outside: folders, Ctrl-C, resume, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli import app
from app.commands.options import find_target
from rl2f_core.run.events import MetricEvent, StatusEvent, read_events
from rl2f_core.run.kinds.eval import eval_config

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-c", "from app.cli import main; main()"]
CONFIG: dict[str, Any] = {
    "name": "small run",
    "model": {"name": "tiny-random", "device": "cpu", "dtype": "float32"},
    "environment": {"type": "guess_number", "size": 4},
    "rollout": {"max_turns": 2, "max_new_tokens": 8, "max_seq_len": 512},
    "evaluation": {"num_tasks": 6, "conditions": ["hints", "contentless"]},
    "stages": [
        {"name": "warm", "method": "sft", "steps": 2, "tasks_per_step": 2, "group_size": 2},
        {"name": "rl", "method": "rl2f", "steps": 2, "tasks_per_step": 2, "group_size": 2},
    ],
    "preflight": {"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True},
}


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(CONFIG | changes))
    return path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def rl2f(*args: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command, in this process: torch is loaded already."""
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(app, [*map(str, args)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return subprocess.CompletedProcess(args, done.exit_code, done.stdout, done.stderr)


def statuses(run: Path) -> list[str]:
    return [event.status for event in read_events(run / "events.jsonl") if isinstance(event, StatusEvent)]


def steps(run: Path) -> list[tuple[str, int]]:
    return [
        (event.stage, event.step)
        for event in read_events(run / "events.jsonl")
        if isinstance(event, MetricEvent) and not event.stage.startswith("evaluation")
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A finished run in `runs/` of a working folder, and what the command said."""
    cwd = tmp_path_factory.mktemp("work")
    done = rl2f("train", write(cwd / "small.yaml"), cwd=cwd)
    assert done.returncode == 0, done.stderr
    (run,) = (cwd / "runs").iterdir()
    return run, done


def test_train_makes_a_folder_named_for_the_run_and_prints_the_report(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    run, done = finished
    assert run.name.startswith("small-run-")
    assert statuses(run)[-1] == "succeeded"
    assert steps(run) == [("warm", 1), ("warm", 2), ("rl", 1), ("rl", 2)]
    assert (run / "evaluation" / "report.md").read_text().strip() == done.stdout.strip()
    assert f"rl2f replay {run.relative_to(run.parent.parent)}" in done.stderr
    assert "stage warm 2/2" in done.stderr  # where there is no terminal, lines tell how far it is


def test_a_finished_run_can_be_replayed(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run, _ = finished
    done = rl2f("replay", run, "--phase", "evaluation", "--condition", "hints", cwd=run)
    listed = done.stdout.splitlines()[1:-2]
    assert len(listed) == 3 * 6  # base and the two stages' last checkpoints on six tasks
    number = listed[0].split()[0]
    assert "turn 1" in rl2f("replay", run, "--dialogue", number, cwd=run).stdout


def test_a_finished_run_is_not_resumed_and_its_folder_not_taken(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    run, _ = finished
    config = run.parent.parent / "small.yaml"
    before = (run / "events.jsonl").read_bytes()
    again = rl2f("train", "--resume", run, cwd=run.parent)
    assert again.returncode == 2 and "finished" in again.stderr
    taken = rl2f("train", config, "--out", run, cwd=run.parent)
    assert taken.returncode == 2 and "The folder already contains a run" in taken.stderr
    assert (run / "events.jsonl").read_bytes() == before


def test_resume_goes_on_as_configured_and_as_nothing_else(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run, _ = finished
    changed = rl2f("train", "--resume", run, "--set", "seed=2", cwd=tmp_path)
    assert changed.returncode == 2 and "--set" in changed.stderr
    other = rl2f("train", write(tmp_path / "other.yaml", seed=5), "--resume", run, cwd=tmp_path)
    assert other.returncode == 2 and "not the one of the run" in other.stderr
    nothing = rl2f("train", cwd=tmp_path)
    assert nothing.returncode == 2 and "A configuration file is needed" in nothing.stderr
    absent = rl2f("train", "--resume", tmp_path / "absent", cwd=tmp_path)
    assert absent.returncode == 2 and "The folder contains no run" in absent.stderr


def start_long_run(tmp_path: Path) -> tuple[subprocess.Popen[str], Path]:
    """A run of many steps, returned once its first step is committed."""
    stage = {"name": "warm", "method": "sft", "steps": 100_000, "tasks_per_step": 2, "group_size": 2, "save_steps": 99}
    config = write(tmp_path / "long.yaml", stages=[stage])
    run = tmp_path / "run"
    process = subprocess.Popen(
        [*COMMAND, "train", str(config), "--out", str(run)],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not ((run / "events.jsonl").exists() and steps(run)):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.05)
    return process, run


@pytest.mark.slow
def test_ctrl_c_stops_after_the_step_and_saves(tmp_path: Path) -> None:
    process, run = start_long_run(tmp_path)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Stopping after this step" in said and f"rl2f train --resume {run}" in said
    assert statuses(run)[-1] == "stopped"
    commit = run / "state" / (run / "state" / "CURRENT").read_text().strip()
    position = json.loads((commit / "state.json").read_text())["position"]
    assert position["step"] == len(steps(run)) > 0
    assert (commit / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_leaves_a_run_that_can_go_on(tmp_path: Path) -> None:
    from rl2f_core.run.directory import RunDir
    from rl2f_core.run.events import JsonlSink
    from rl2f_core.run.journal import Journal

    process, run = start_long_run(tmp_path)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said
    assert statuses(run)[-1] in ("interrupted", "stopped")  # the step may have ended between the two
    journal = Journal(RunDir.open(run), JsonlSink(run / "events.jsonl"))
    journal.resume()  # every file of the last commit has its checksum
    assert [step for _, step in steps(run)] == list(range(1, len(steps(run)) + 1))


def test_an_error_in_a_run_names_its_folder_and_the_fix(tmp_path: Path) -> None:
    config = write(tmp_path / "bad.yaml", model={"name": "no-such-model"})
    done = rl2f("train", config, "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 2 and "There is no such model" in done.stderr and "Traceback" not in done.stderr
    assert str(tmp_path / "run") in done.stderr and not (tmp_path / "run").exists()  # nothing was trained


def test_a_preflight_that_fails_says_why_and_what_would_override_it(tmp_path: Path) -> None:
    config = write(
        tmp_path / "strict.yaml", preflight={"num_tasks": 2, "samples_per_task": 2}, stages=[CONFIG["stages"][1]]
    )
    done = rl2f("train", config, "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "0 of 4 first attempts are parsable" in done.stderr and "preflight.ignore_failure=true" in done.stderr
    assert steps(tmp_path / "run") == []


@pytest.mark.slow
def test_eval_compares_checkpoints_under_the_settings_of_their_run(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run, _ = finished
    targets = [f"{run}:warm@2", run / "checkpoints" / "rl@2"]
    done = rl2f("eval", *targets, "--set", "evaluation.num_tasks=7", "--out", tmp_path / "eval", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "eval" / "evaluation" / "report.json").read_text())
    played = {(row["checkpoint"], row["condition"]) for row in report["rows"]}
    assert played == {(c, k) for c in ("base", "warm@2", "rl@2") for k in ("hints", "contentless")}
    assert report["tasks"] == 7
    assert (tmp_path / "eval" / "evaluation" / "report.md").read_text().strip() == done.stdout.strip()
    assert statuses(tmp_path / "eval")[-1] == "succeeded"


def test_a_runs_folder_may_have_a_colon_in_its_name(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished[0], tmp_path / "at 12:30" / "run"))
    assert find_target(str(run), None) == (run, None)
    assert find_target(f"{run}@rl@2", None) == (run, "rl@2")
    assert find_target(str(run / "checkpoints" / "rl@2"), None) == (run, "rl@2")
    made = eval_config([find_target(f"{run}@rl@2", None)])
    assert made.adapters == {"base": None, "rl@2": str(run.resolve() / "checkpoints" / "rl@2")}


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ([], "Nothing to evaluate"),
        (["RUN@rl@9"], "no such checkpoint"),
        (["nowhere"], "The folder contains no run"),
        (["nowhere@rl@2"], "The folder contains no run"),
    ],
)
def test_a_target_that_is_not_there_is_a_clear_error(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, targets: list[str], said: str
) -> None:
    run, _ = finished
    named = [target.replace("RUN", str(run)) for target in targets]
    done = CliRunner().invoke(app, ["eval", *named, "--out", str(tmp_path / "eval")])
    assert done.exit_code == 2 and said in done.stderr and isinstance(done.exception, SystemExit)
    assert not (tmp_path / "eval").exists()


def test_preflight_on_its_own_reports_and_trains_nothing(tmp_path: Path) -> None:
    config = write(tmp_path / "small.yaml")
    done = rl2f("preflight", config, "--out", tmp_path / "pre", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "0 of 4 first attempts are parsable" in done.stderr
    assert "parsable" in (tmp_path / "pre" / "preflight.txt").read_text()
    assert not (tmp_path / "pre" / "checkpoints").exists()
    alone = write(
        tmp_path / "alone.yaml", preflight={"num_tasks": 2, "samples_per_task": 2}, stages=[CONFIG["stages"][1]]
    )
    failed = rl2f("preflight", alone, "--out", tmp_path / "pre2", cwd=tmp_path)
    assert failed.returncode == 2 and "not worth starting" in failed.stderr
