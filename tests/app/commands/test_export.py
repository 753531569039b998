"""`rl2f export` from outside: folders without a database, runs of a workspace, errors, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from export_builders import leaky_events, rows_of, write_run
from typer.testing import CliRunner

from app.cli import app
from jobs.db.engine import Database
from jobs.ingest.ingester import reindex
from jobs.labels import label_queries
from jobs.labels.label_queries import LabelAnswer
from jobs.workspace import Workspace

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-c", "from app.cli import main; main()"]


def rl2f(*args: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("RL2F_WORKSPACE", "RL2F_DATABASE_URL")}
    return subprocess.run(
        [*COMMAND, *map(str, args)],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def workspace(tmp_path: Path, empty_database: bytes) -> Workspace:
    """A workspace with a recorded run, number 1, in which a person labelled one hint."""
    made = Workspace(tmp_path / "workspace").create()
    write_run(made.folder("leaky"), leaky_events())
    made.database.write_bytes(empty_database)
    db = Database(made.database_url())
    assert reindex(db, made) == [1]
    label_queries.put(db, 1, leaky_events()[0].id, 0, "ann", LabelAnswer(label="leak"))
    db.close()
    return made


@pytest.mark.slow
def test_a_bare_folder_is_exported_without_a_database(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", leaky_events())
    done = rl2f("export", run, "--out", "sets", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Exported 8 dialogues with 16 hints. Rows: unpaired_preference 16")
    assert "no human labels, so the detectors' findings are used" in done.stderr
    assert 'datasets.load_dataset("sets", "unpaired_preference", split="train")' in done.stderr
    manifest = json.loads((tmp_path / "sets" / "manifest.json").read_text())
    assert manifest["name"] == "sets" and set(manifest["formats"]) == {
        "unpaired_preference",
        "preference",
        "messages",
    }
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "sets"]


@pytest.mark.slow
def test_a_run_of_the_workspace_comes_with_peoples_labels(tmp_path: Path, workspace: Workspace) -> None:
    done = rl2f(
        *("export", "1", "--out", tmp_path / "sets", "--labels", "human", "--labeled-only"),
        *("--format", "unpaired_preference", "--file", "jsonl", "--workspace", workspace.root),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (row,) = rows_of(tmp_path / "sets" / "unpaired_preference.jsonl")
    assert (row["run"], row["label"], row["source"]) == ("1", False, "human")
    assert {p.name for p in (tmp_path / "sets").iterdir()} == {
        "README.md",
        "manifest.json",
        "unpaired_preference.jsonl",
    }


@pytest.mark.slow
def test_numbers_and_folders_go_together_each_once(tmp_path: Path, workspace: Workspace) -> None:
    run = write_run(tmp_path / "other", leaky_events(tasks=1))
    done = rl2f(
        "export", "1", run, "1", run, "--out", "sets", "--workspace", workspace.root, "--steps", "1-", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "sets" / "manifest.json").read_text())
    assert [(r["run"], r["dialogues"]) for r in manifest["runs"]] == [("1", 8), ("other", 2)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere"], "The folder contains no run"),
        (["7"], "There is no workspace in this folder"),
        (["RUN", "--format", "csv"], "Option --format: "),
        (["RUN", "--file", "xml"], "Option --file: "),
        (["RUN", "--labels", "human"], "contains no human labels"),
        (["RUN", "--steps", "x"], "a range such as 10-20"),
        (["RUN", "--steps", "9-2"], "step_from 9 is after"),
        (["RUN", "--steps", "-"], "a range such as 10-20"),
        (["RUN", "--phase", "nonsense"], "--phase"),
        (["RUN", "--condition", "shuffled"], "No dialogue passes the filter"),
        (["RUN", "--labeled-only"], "No dialogue passes the filter"),
        (["RUN", "--pairs", "0"], "--pairs"),
    ],
)
def test_what_cannot_be_exported_is_one_message_and_leaves_nothing(
    tmp_path: Path, options: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL2F_WORKSPACE", raising=False)
    run = write_run(tmp_path / "run", leaky_events(tasks=1))
    named = [str(run) if option == "RUN" else option for option in options]
    done = CliRunner().invoke(app, ["export", *named, "--out", str(tmp_path / "sets")])
    assert done.exit_code == 2 and said in done.stderr and isinstance(done.exception, SystemExit), done.stderr
    assert not (tmp_path / "sets").exists()


def test_a_folder_that_holds_something_is_not_overwritten(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", leaky_events(tasks=1))
    first = CliRunner().invoke(app, ["export", str(run), "--out", str(tmp_path / "sets")])
    again = CliRunner().invoke(app, ["export", str(run), "--out", str(tmp_path / "sets")])
    assert (first.exit_code, again.exit_code) == (0, 2) and "not empty" in again.stderr


@pytest.mark.slow
def test_the_first_ctrl_c_stops_and_leaves_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", leaky_events(tasks=2000, siblings=4))
    process = subprocess.Popen(
        [*COMMAND, "export", str(run), "--out", str(tmp_path / "sets")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 120
    while not list(tmp_path.glob(".sets.*")) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and "nothing was written" in said and "Traceback" not in said, said
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_help_needs_neither_torch_nor_a_database() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from app.cli import app;"
        "done = CliRunner().invoke(app, ['export', '--help']); assert done.exit_code == 0, done.output;"
        "print([m for m in ('torch', 'sqlmodel', 'pyarrow', 'datasets', 'gradio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
