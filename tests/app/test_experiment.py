"""Experiments from Python: frames, figures and exports of a run's folder; running and queueing; README and notebook."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_builders import leaky_events, write_run
from jobs_helpers import counting, counting_kinds

from app.experiment import Experiment, queue_experiment, run_experiment
from jobs.db.engine import Database
from jobs.db.queries import runs
from jobs.workspace import Workspace
from rl2f_core.common.paths import EXAMPLE_RUNS
from rl2f_core.errors import ConfigError, DataError, RunError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def recorded() -> Experiment:
    """The recorded quickstart run."""
    return Experiment(EXAMPLE_RUNS / "quickstart")


@pytest.fixture
def leaky(tmp_path: Path) -> Experiment:
    """Eight solved dialogues of three turns; the second hint of every other one leaks."""
    return Experiment(write_run(tmp_path / "leaky", leaky_events()))


@pytest.fixture
def countable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs that count instead of training are known; the current folder is empty."""
    monkeypatch.setenv("RL2F_WORKSPACE", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    with counting_kinds():
        yield


# -- frames ------------------------------------------------------------------------------------------------------------
def test_dialogues_have_one_row_each_and_turns_one_row_per_attempt(leaky: Experiment) -> None:
    dialogues, turns = leaky.dialogues(), leaky.turns()
    assert len(dialogues) == dialogues.id.nunique() == 8 and dialogues.solved.all()
    assert dialogues.leaks.tolist() == [1, 0] * 4 and dialogues.solved_at.tolist() == [3] * 8
    assert dialogues.step.tolist() == [1] * 4 + [2] * 4 and dialogues.reward.tolist() == [1.0] * 8
    assert len(turns) == 24 and turns.turn.tolist() == [1, 2, 3] * 8
    assert turns.correct.tolist() == [False, False, True] * 8 and turns.tokens.eq(3).all()
    first = turns[turns.dialogue == dialogues.id[0]]
    assert first.hint.tolist()[0] == "Look at the first letter." and first.hint.isna().tolist() == [False, False, True]
    assert first.leaked.tolist() == [False, True, None]


def test_a_run_without_events_has_empty_frames_and_no_evaluation(tmp_path: Path) -> None:
    experiment = Experiment(write_run(tmp_path / "empty", []))
    (experiment.folder / "events.jsonl").unlink()
    assert experiment.dialogues().empty and experiment.turns().empty and experiment.checkpoints == []
    with pytest.raises(DataError, match=r"no evaluation.*evaluate\(\)"):
        experiment.report()


def test_metrics_have_one_row_per_step(recorded: Experiment) -> None:
    metrics = recorded.metrics()
    assert metrics.groupby("stage", sort=False).step.max().to_dict() == {"warmup": 60, "rl2f": 24}
    assert len(metrics) == 84 and metrics[metrics.stage == "rl2f"].reward.between(-1, 1).all()
    assert metrics[metrics.stage == "warmup"].reward.isna().all()  # demonstrations have no reward of the student


def test_the_evaluation_frame_has_the_values_of_the_report(recorded: Experiment) -> None:
    frame = recorded.evaluation().set_index(["checkpoint", "condition", "metric"])
    report = json.loads((recorded.folder / "evaluation" / "report.json").read_text())
    row = report["rows"][0]
    metric = row["metrics"]["values"]["cum_acc/3"]
    found = frame.loc[(row["checkpoint"], row["condition"], "cum_acc/3")]
    assert (found.value, found.low, found.high, found.n) == (
        metric["value"],
        metric["low"],
        metric["high"],
        metric["n"],
    )
    effect = next(e for e in report["effects"] if (e["checkpoint"], e["condition"]) == ("rl2f@24", "hints"))
    assert frame.loc[("rl2f@24", "hints", "effect")].value == effect["difference"]["value"]
    assert "effect against contentless" in recorded.report()


# -- figures and exports -----------------------------------------------------------------------------------------------
def test_figures_have_real_colors_and_the_values_of_the_metric(recorded: Experiment) -> None:
    effects = recorded.plot("hint_effect rl2f@24")
    assert [trace.name for trace in effects.data] == ["hints", "resample", "shuffled", "misleading"]
    figure, values = recorded.plot("grad_norm"), recorded.metrics().grad_norm.dropna().tolist()
    drawn = [v for v in figure.data[-1].y if v is not None]
    assert drawn == pytest.approx(values) and "--rl-" not in figure.to_json()
    with pytest.raises(ConfigError, match="no such figure or metric") as error:
        recorded.plot("rewards")
    assert error.value.known is not None and {"reward", "grad_norm", "hint_effect base"} <= set(error.value.known)


def test_datasets_are_exported_with_the_settings_of_the_command_line(leaky: Experiment, tmp_path: Path) -> None:
    manifest = leaky.export(tmp_path / "out", formats=["messages"], files=["jsonl"])
    assert (
        manifest["formats"]["messages"]["rows"] == len((tmp_path / "out/messages.jsonl").read_text().splitlines()) == 8
    )
    with pytest.raises(ConfigError, match="formats"):
        leaky.export(tmp_path / "other", formats=["poems"])


# -- run and queue -----------------------------------------------------------------------------------------------------
def test_a_mapping_and_a_file_run_with_overrides_and_show_progress(
    countable: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = yaml.safe_load(counting())
    first = run_experiment(data, {"count": 2, "name": "two steps"})
    assert first.status == "succeeded" and len(first.dialogues()) == 2 and first.config.name == "two steps"
    assert first.folder.parent == Path("runs") and first.folder.name.startswith("two-steps-")
    assert "counting" in capsys.readouterr().err and list(first.plots()) == ["reward"]
    (tmp_path / "count.yaml").write_text(counting())
    second = run_experiment(tmp_path / "count.yaml", folder=tmp_path / "second", progress=False)
    assert len(second.metrics()) == 3 and capsys.readouterr().err == ""
    with pytest.raises(RunError, match="already contains a run"):
        run_experiment(second.config, folder=second.folder)


def test_an_experiment_runs_outside_of_the_main_thread(countable: None) -> None:
    made: list[Experiment] = []
    thread = threading.Thread(target=lambda: made.append(run_experiment(yaml.safe_load(counting()), progress=False)))
    thread.start()
    thread.join()
    assert made[0].status == "succeeded"


def test_a_failed_run_raises_its_error_and_keeps_its_data(countable: None, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="went wrong"):
        run_experiment({**yaml.safe_load(counting()), "fail_at": 1}, folder=tmp_path / "failed", progress=False)
    failed = Experiment(tmp_path / "failed")
    assert failed.status == "failed" and len(failed.dialogues()) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [("quickstrat", "does not exist.*quickstrat"), ({"kind": "nothing"}, "Unknown run kind"), ("no.yaml", "no.yaml")],
)
def test_an_invalid_configuration_creates_no_folder(countable: None, tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_experiment(config, folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_queued_preset_waits_in_the_workspace(workspace: Workspace, db: Database) -> None:
    queued = queue_experiment("quickstart", {"stages.1.steps": 3}, workspace=workspace.root)
    (row,) = runs.page(db).rows
    assert queued.status == row.status == "queued" and queued.folder == workspace.folder(row.folder)
    assert yaml.safe_load(row.config)["stages"][1]["steps"] == queued.config.stages[1].steps == 3  # type: ignore[attr-defined]


# -- README and notebook -----------------------------------------------------------------------------------------------
def readme() -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if "run_experiment" in block)


def notebook() -> str:
    cells = json.loads((ROOT / "data/notebooks/experiment.ipynb").read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_the_readme_needs_ten_lines_and_the_notebook_stores_no_output() -> None:
    assert sum(bool(line.strip()) for line in readme().splitlines()) <= 10
    cells = json.loads((ROOT / "data/notebooks/experiment.ipynb").read_text(encoding="utf-8"))["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("source", [readme, notebook], ids=["readme", "notebook"])
def test_the_code_of_the_documentation_runs(source: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", source()], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (trained,), (evaluated,) = (list((tmp_path / "runs").glob(pattern)) for pattern in ("quickstart-*", "eval-*"))
    assert Experiment(trained).checkpoints[-1] == "rl2f@2"
    conditions = set(Experiment(evaluated).evaluation().condition)
    assert conditions == {"hints", "contentless", "resample", "shuffled", "misleading"}
    assert "Evaluation of" in done.stdout
