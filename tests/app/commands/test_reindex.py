"""`rl2f reindex` from the command line."""

from __future__ import annotations

from pathlib import Path

from event_data import append, folder, small_run
from typer.testing import CliRunner

from app.cli import app
from jobs.db.engine import Database
from jobs.db.queries import notes, runs
from jobs.workspace import Workspace


def test_reindex_adds_rebuilds_and_says_what_it_did(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").create()
    path = folder(workspace, "mine", small_run()) / "events.jsonl"
    asked = ["reindex", "--workspace", str(workspace.root)]
    first = CliRunner().invoke(app, asked)
    assert first.exit_code == 0 and "mine: added as run 1" in first.output, first.output
    db = Database(workspace.database_url())
    notes.add(db, 1, "kept")
    append(path, b"rubbish\n")
    second = CliRunner().invoke(app, [*asked, "mine"])
    assert all(text in second.output for text in ("mine: rebuilt", "invalid lines: 1", "Reindexed runs: 1"))
    assert [note.text for note in notes.of_run(db, 1)] == ["kept"]
    assert runs.get(db, 1).invalid_lines == 1
    db.close()


def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_read_all_the_same(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").create()
    folder(workspace, "bad")
    (workspace.folder("bad") / "config.yaml").write_text("kind: nothing\n")
    folder(workspace, "good", small_run())
    done = CliRunner().invoke(app, ["reindex", "--workspace", str(workspace.root)])
    assert done.exit_code == 2
    assert "good: added as run 1" in done.output and "bad: Unknown run kind" in done.output
    unknown = CliRunner().invoke(app, ["reindex", "--workspace", str(workspace.root), "../elsewhere"])
    assert unknown.exit_code == 2 and "The folder contains no run" in unknown.output
