"""`rl2f study` in real processes, on the random model."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from run_helpers import assert_same_run, statuses

from jobs.db.errors import NotFoundError
from rl2f_core.common.paths import CONFIGS
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.evaluation.study.spec import load_study
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import StatusEvent

TINY = CONFIGS / "studies" / "tiny.yaml"
SECONDS = 600
MOMENTS = (
    "warm-up-1-seed-0/state/CURRENT",  # a warm-up trains
    "contentless-seed-0/state/CURRENT",  # an arm has copied it and trains
    "rl2f-seed-1/evaluation/dialogues/warmup@4/hints.jsonl",  # an arm is evaluated
)


def start(folder: Path, file: Path = TINY) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "app.cli", "study", str(file), "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, error
    return out


@pytest.mark.slow
def test_a_killed_study_repeats_nothing_and_shows_a_changed_hypothesis(tmp_path: Path) -> None:
    """Killed at three moments, it ends with the runs of a study that was not killed."""
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    finished: dict[str, bytes] = {}
    for moment in MOMENTS:
        process = start(folder)
        deadline = time.monotonic() + SECONDS
        while not (folder / moment).exists():
            assert process.poll() is None and time.monotonic() < deadline, moment
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        done = [run for run in folder.iterdir() if RunDir(run).last_status() == "succeeded"]
        assert all((folder / name / "events.jsonl").read_bytes() == events for name, events in finished.items())
        finished |= {run.name: (run / "events.jsonl").read_bytes() for run in done}
    assert len(finished) > 3
    text = finish(start(folder))
    assert all((folder / name / "events.jsonl").read_bytes() == events for name, events in finished.items())
    finish(start(whole))
    parts = sorted(run.name for run in whole.iterdir() if run.is_dir())
    assert len(parts) == 6
    for name in parts:
        assert_same_run(folder / name, whole / name, "warmup@4" if name.startswith("warm-up") else "rl2f@3")
        assert statuses(folder / name).count("succeeded") == 1
    assert "| The content of hints teaches |" in text and "The file changed" not in text
    assert all((folder / name).is_file() for name in ("report.md", "report.html", "training.png"))

    changed = tmp_path / "changed.yaml"
    changed.write_text(TINY.read_text().replace("smallest_effect: 0.05", "smallest_effect: 0.5"))
    text = finish(start(folder, changed))
    assert "after 4 finished parts: hypothesis 'The reward in training differs' changed (smallest_effect 0.05" in text
    assert all((folder / name / "events.jsonl").read_bytes() == events for name, events in finished.items())


def test_a_study_is_queued_in_a_workspace_and_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from app.commands.evaluation.study import study

    study(Path("tiny"), workspace=tmp_path / "w")
    first = capsys.readouterr()
    assert "rl2f-seed-0: run 2, queued" in first.err and first.out == ""
    study(Path("tiny"), workspace=tmp_path / "w", stop=True)
    assert "rl2f-seed-0: run 2, stopped" in capsys.readouterr().err
    with pytest.raises(NotFoundError, match="Unknown study"):
        study(Path("leaks"), workspace=tmp_path / "w", stop=True)


def test_a_refused_study_changes_no_file(tmp_path: Path) -> None:
    from app.commands.evaluation.study import study

    part = load_study("tiny").parts()[1]
    RunDir.create(tmp_path / part.name, part.config(part.warm_up))
    files = sorted(tmp_path.rglob("*"))
    (changed := tmp_path / "changed.yaml").write_text(TINY.read_text().replace("steps: 3", "steps: 5"))
    with pytest.raises(ConfigError, match=r"settings of a part changed after its start. Got: 'rl2f-seed-0'"):
        study(changed, tmp_path)
    assert sorted(tmp_path.rglob("*")) == sorted([*files, changed])


def test_a_part_that_fails_with_any_error_does_not_end_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.commands.evaluation import study as command

    errors = iter([RuntimeError("CUDA out of memory"), RunError("It waits."), *[OSError("No space left")] * 4])

    def fail(*_: object) -> StatusEvent:
        raise next(errors)

    monkeypatch.setattr(command, "execute", fail)
    with pytest.raises(typer.Exit, match="2"):
        command.study(TINY, tmp_path)
    shown = capsys.readouterr().err
    assert "warm-up-1-seed-0 failed: RuntimeError: CUDA out of memory" in shown
    assert "rl2f-seed-0 failed: It waits." in shown
    assert "contentless-seed-1 (6 of 6)\ncontentless-seed-1 failed: OSError: No space left" in shown

    errors = iter([RuntimeError("CUDA out of memory"), KeyboardInterrupt()])
    with pytest.raises(typer.Exit, match="130"):
        command.study(TINY, tmp_path)
    assert "rl2f-seed-0 (2 of 6)" in (shown := capsys.readouterr().err) and "(3 of 6)" not in shown


def test_a_deleted_warm_up_is_not_trained_again_for_finished_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.commands.evaluation import study as command

    executed: list[str] = []

    def succeed(config: RunConfig, run_dir: RunDir, *_: object) -> StatusEvent:
        executed.append(run_dir.path.name)
        run_dir.heartbeat(status="succeeded")
        return StatusEvent(id="x", status="succeeded")

    monkeypatch.setattr(command, "execute", succeed)
    names = [part.name for part in load_study("tiny").parts()]
    for expected in (names, [], names[3:5]):
        executed.clear()
        with pytest.raises(typer.Exit, match="2"):  # there are no results
            command.study(TINY, tmp_path)
        assert executed == expected
        shutil.rmtree(tmp_path / "warm-up-1-seed-0", ignore_errors=True)
        if expected == []:
            shutil.rmtree(tmp_path / "warm-up-1-seed-1")
            shutil.rmtree(tmp_path / "rl2f-seed-1")
