"""`rl2f reindex` from the command line."""

from __future__ import annotations

from pathlib import Path

from event_data import append, folder, small_run
from typer.testing import CliRunner

from app.cli import app
from jobs.database import Database
from jobs.store import notes, runs
from jobs.studio import Studio


def test_reindex_adds_rebuilds_and_says_what_it_did(tmp_path: Path) -> None:
    studio = Studio(tmp_path / "studio").create()
    path = folder(studio, "mine", small_run()) / "events.jsonl"
    asked = ["reindex", "--studio", str(studio.root)]
    first = CliRunner().invoke(app, asked)
    assert first.exit_code == 0 and "mine: added as run 1" in first.output, first.output
    db = Database(studio.database_url())
    notes.add(db, 1, "kept")
    append(path, b"rubbish\n")
    second = CliRunner().invoke(app, [*asked, "mine"])
    assert "mine: rebuilt" in second.output and "1 lines left out" in second.output and "1 runs in" in second.output
    assert [note.text for note in notes.of_run(db, 1)] == ["kept"]
    assert runs.get(db, 1).bad_lines == 1
    db.close()


def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_read_all_the_same(tmp_path: Path) -> None:
    studio = Studio(tmp_path / "studio").create()
    folder(studio, "bad")
    (studio.folder("bad") / "config.yaml").write_text("kind: nothing\n")
    folder(studio, "good", small_run())
    done = CliRunner().invoke(app, ["reindex", "--studio", str(studio.root)])
    assert done.exit_code == 2
    assert "good: added as run 1" in done.output and "bad: Unknown kind of run" in done.output
    unknown = CliRunner().invoke(app, ["reindex", "--studio", str(studio.root), "../elsewhere"])
    assert unknown.exit_code == 2 and "no run in this folder" in unknown.output
