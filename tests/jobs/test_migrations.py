"""The schema's history: from every version to the newest, and never backwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.operations import Operations

from jobs import migrations
from jobs.database import Database
from jobs.errors import StoreError, StoreVersionError
from jobs.store import runs, settings
from jobs.tables import Turn


def open_at(path: Path, version: int) -> Database:
    """A database that has taken the first `version` steps."""
    db = Database(f"sqlite:///{path}")
    for _ in range(version):
        with db._writer.begin() as connection:
            assert migrations.step(connection, db.name, newest=version)
    return db


def differences(db: Database) -> list[object]:
    with db._reader.connect() as connection:
        return migrations.differences(connection)


def version(db: Database) -> int:
    with db._reader.connect() as connection:
        return migrations.version(connection)


@pytest.mark.parametrize("first", range(migrations.NEWEST + 1))
def test_from_every_version_the_schema_becomes_what_the_models_say(first: int, tmp_path: Path) -> None:
    db = open_at(tmp_path / "studio.sqlite", first)
    assert version(db) == first
    db.migrate()
    assert version(db) == migrations.NEWEST
    assert differences(db) == []
    db.migrate()
    assert version(db) == migrations.NEWEST


def test_a_difference_between_schema_and_models_would_be_seen(tmp_path: Path) -> None:
    db = open_at(tmp_path / "studio.sqlite", migrations.NEWEST)
    with db.write() as session:
        session.connection().exec_driver_sql("ALTER TABLE note ADD COLUMN colour VARCHAR")
        session.connection().exec_driver_sql("DROP INDEX ix_note_run_event")
    assert len(differences(db)) == 2


def test_what_people_and_runs_wrote_in_the_first_version_is_there_in_the_newest(tmp_path: Path) -> None:
    db = open_at(tmp_path / "studio.sqlite", 1)
    rows = [
        "INSERT INTO run (id, name, kind, status, detail, config, folder, origin, environment, model, method, seed, "
        "device, position, created, sessions, phase, done, version, offset, bad_lines) VALUES (7, 'old', 'train', "
        "'succeeded', '', 'kind: train', '7-old', 'app', 'guess_number', 'tiny', 'rl2f', 3, 'cpu', 0, 5.5, 1, '', 2, "
        "9, 5000000000, 1)",
        "INSERT INTO leaklabel (run_id, event, turn, labeller, label, note, blind, time) VALUES "
        "(7, 'dialogue:train:rl2f/1/0/0', 1, 'ada', 'leak', 'says it', 1, 6.5)",
        "INSERT INTO note (run_id, author, text, time) VALUES (7, 'ada', 'my best run', 7.5)",
        'INSERT INTO metric (run_id, stage, step, number, time, tokens, "values") VALUES '
        "(7, 'rl2f', 1, 0, 8.5, 10, '{\"reward\": 0.5}')",
        "INSERT INTO setting VALUES ('queue.paused', '1')",
        "INSERT INTO problem VALUES (1, 7, 't', 'guess_number', 'train', 'all', '{}', '{}')",
        'INSERT INTO dialogue (id, run_id, event, key, problem_id, environment, level, phase, stage, step, "group", '
        "\"index\", stop, policy, seed, length, outcomes, reward, leak, labels, time) VALUES (1, 7, 'd', 'd', 1, 'x', "
        "'all', 'train', 's', 1, 'g', 0, 'exhausted', 'base', 0, 1, '0', 0, 0, 0, 0)",
        'INSERT INTO turn (id, dialogue_id, "index", attempt, stop, correct, verdict, reward, hint, teacher, checked, '
        "leaked) VALUES (1, 1, 0, 'a', 'eos', 0, '{}', 0, 'Too low.', 'scripted', 1, 0)",
    ]
    with db.write() as session:
        for row in rows:
            session.connection().exec_driver_sql(row)
    db.migrate()
    run = runs.get(db, 7)
    assert (run.name, run.offset, run.version) == ("old", 5_000_000_000, 9)
    with db.read() as session:
        found = session.connection().exec_driver_sql("SELECT label, note FROM leaklabel").one()
        text = session.connection().exec_driver_sql("SELECT text FROM note").scalar()
        turn = session.get(Turn, 1)
        assert turn is not None
        assert (turn.hint, turn.teacher, turn.prompt, turn.usage, turn.hint_error) == (
            "Too low.", "scripted", None, None, None)  # fmt: skip
    assert (*found, text) == ("leak", "says it", "my best run")
    assert settings.get(db, "queue.paused") == "1"


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    db = open_at(tmp_path / "studio.sqlite", migrations.NEWEST)
    settings.put(db, migrations.NAME, "99")
    for read_only in (False, True):
        again = Database(str(db.url), read_only=read_only)
        with pytest.raises(StoreVersionError, match=r"newer version of RL2F Studio \(schema 99.*Install the newer"):
            again.migrate()
    assert version(db) == 99


def test_a_reader_does_not_bring_an_old_database_up_to_date(tmp_path: Path) -> None:
    open_at(tmp_path / "studio.sqlite", 1).close()
    reader = Database(f"sqlite:///{tmp_path}/studio.sqlite", read_only=True)
    with pytest.raises(StoreVersionError, match=f"has version 1, and this program reads version {migrations.NEWEST}"):
        reader.migrate()
    assert version(reader) == 1


def test_tables_of_something_else_are_not_written_over(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path}/other.sqlite")
    with db._writer.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE run (speed REAL)")
    with pytest.raises(StoreError, match="tables of something else"):
        db.migrate()


def test_a_step_that_fails_is_undone_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(op: Operations) -> None:
        op.create_table("half", sa.Column("id", sa.Integer, primary_key=True))
        op.execute("DROP INDEX ix_note_run_event")
        raise ZeroDivisionError

    db = open_at(tmp_path / "studio.sqlite", migrations.NEWEST)
    before = differences(db)
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, broken))
    with db._writer.connect() as connection, pytest.raises(ZeroDivisionError), connection.begin():
        migrations.step(connection, db.name, newest=migrations.NEWEST + 1)
    assert differences(db) == before
    assert version(db) == migrations.NEWEST


def test_a_step_may_rebuild_a_table_that_others_point_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rebuild(op: Operations) -> None:
        with op.batch_alter_table("run", recreate="always") as table:
            table.add_column(sa.Column("colour", sa.String(), nullable=True))

    db = open_at(tmp_path / "studio.sqlite", migrations.NEWEST)
    with db.write() as session:
        insert = (
            "INSERT INTO run (id, name, kind, status, detail, config, folder, origin, environment, model, method, "
            "seed, device, position, created, sessions, phase, done, version, offset, bad_lines) VALUES "
            "(1, 'a', 'train', 'queued', '', '', '1-a', 'app', '', '', '', 0, 'cpu', 0, 0, 0, '', 0, 0, 0, 0)"
        )
        session.connection().exec_driver_sql(insert)
        session.connection().exec_driver_sql("INSERT INTO tag VALUES (1, 'kept')")
    steps: tuple[Callable[[Operations], None], ...] = (*migrations.STEPS, rebuild)
    monkeypatch.setattr(migrations, "STEPS", steps)
    monkeypatch.setattr(migrations, "NEWEST", len(steps))
    monkeypatch.setattr(migrations.step, "__defaults__", (len(steps),))
    db.migrate()
    with db.read() as session:
        assert session.connection().exec_driver_sql("SELECT tag FROM tag").scalar() == "kept"
        assert session.connection().exec_driver_sql("SELECT colour FROM run").scalar() is None
        assert session.connection().exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


@pytest.mark.slow
def test_processes_that_start_together_bring_it_up_to_date_once(tmp_path: Path) -> None:
    code = f"from jobs.database import Database; Database('sqlite:///{tmp_path}/studio.sqlite').migrate()"
    started = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]
    errors = [process.communicate(timeout=120)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * 4, errors
    db = Database(f"sqlite:///{tmp_path}/studio.sqlite")
    assert differences(db) == [] and version(db) == migrations.NEWEST
