"""The schema: from an empty database or an older revision to the newest one, and never backwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from filelock import FileLock
from schema_drift import schema_drift

from jobs.db import engine, schema, settings
from jobs.db.engine import Database
from jobs.db.errors import StoreError, StoreVersionError
from jobs.db.models import Run
from jobs.db.queries import notes, runs

ROOT = Path(__file__).resolve().parents[3]
HEAD = int(schema.head_revision())
ADD_COLOR = """
    with op.batch_alter_table("run", recreate="always") as table:
        table.add_column(sa.Column("color", sa.String(), nullable=True))
    op.execute("UPDATE run SET color = 'blue'")
"""


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """A database at the newest revision with a run, a tag and a note."""
    made = Database(f"sqlite:///{tmp_path}/workspace.sqlite")
    made.migrate()
    run = runs.add(
        made, Run(name="old", kind="train", folder="7-old", config="kind: train", events_offset=5_000_000_000)
    )
    runs.set_tags(made, run.id or 0, ["kept"])
    notes.add(made, run.id or 0, "my best run")
    settings.put(made, "queue.paused", "1")
    yield made
    made.close()


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of revisions to which a test adds its own."""
    folder = tmp_path / "50% of versions"
    shutil.copytree(schema.VERSIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(schema, "VERSIONS", folder)
    return folder


def add_revision(versions: Path, number: int, body: str) -> None:
    source = f"import sqlalchemy as sa\nfrom alembic import op\nrevision = '{number}'\ndown_revision = '{number - 1}'\n"
    (versions / f"v{number}.py").write_text(f"{source}\ndef upgrade():\n    {body.strip()}\n")


def revision(db: Database) -> str | None:
    with db._reader.connect() as connection:
        return schema.current_revision(connection)


def value(db: Database, query: str) -> object:
    with db.read() as session:
        return session.connection().exec_driver_sql(query).scalar()


def test_an_empty_database_gets_the_schema_of_the_models(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path}/workspace.sqlite")
    assert revision(db) is None
    db.migrate()
    assert revision(db) == schema.head_revision() == str(HEAD) and schema_drift(db) == []
    db.migrate()
    assert revision(db) == str(HEAD)


def test_a_difference_between_schema_and_models_is_found(db: Database) -> None:
    with db.write() as session:
        session.connection().exec_driver_sql("ALTER TABLE note ADD COLUMN colour VARCHAR")
        session.connection().exec_driver_sql("DROP INDEX ix_note_run_event")
    assert len(schema_drift(db)) == 2


def test_the_alembic_command_compares_a_database_with_the_models(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL2F_DATABASE_URL", str(db.url))
    command.check(Config(toml_file=ROOT / "pyproject.toml"))


def test_an_upgrade_keeps_all_rows_even_of_tables_that_refer_to_a_rebuilt_one(db: Database, versions: Path) -> None:
    add_revision(versions, HEAD + 1, ADD_COLOR)
    add_revision(versions, HEAD + 2, "op.add_column('note', sa.Column('rank', sa.Integer(), server_default='4'))")
    db.migrate()
    assert revision(db) == schema.head_revision() == str(HEAD + 2)
    run = runs.get(db, 1)
    assert (run.name, run.config, run.events_offset) == ("old", "kind: train", 5_000_000_000)
    assert (value(db, "SELECT tag FROM tag"), value(db, "SELECT color FROM run")) == ("kept", "blue")
    assert value(db, "SELECT rank FROM note") == 4 and notes.of_run(db, 1)[0].text == "my best run"
    assert settings.get(db, "queue.paused") == "1"
    assert value(db, "PRAGMA foreign_keys") == 1


@pytest.mark.parametrize("failing", ["raise ZeroDivisionError", "op.execute('DELETE FROM run')"])
def test_an_upgrade_that_fails_is_undone_with_all_its_revisions(db: Database, versions: Path, failing: str) -> None:
    add_revision(versions, HEAD + 1, ADD_COLOR + "    op.drop_index('ix_note_run_event')")
    add_revision(versions, HEAD + 2, failing)
    with pytest.raises((ZeroDivisionError, StoreError)):
        db.migrate()
    assert schema_drift(db) == [] and revision(db) == str(HEAD) and runs.get(db, 1).name == "old"
    assert value(db, "PRAGMA foreign_keys") == 1
    add_revision(versions, HEAD + 2, "op.drop_table('note')")
    db.migrate()
    assert revision(db) == str(HEAD + 2)


@pytest.mark.slow
def test_a_process_killed_in_an_upgrade_leaves_the_older_revision(db: Database, versions: Path) -> None:
    add_revision(versions, HEAD + 1, ADD_COLOR + "    import os; os._exit(9)")
    code = (
        "import pathlib\nfrom jobs.db.engine import Database\nfrom jobs.db import schema\n"
        f"schema.VERSIONS = pathlib.Path({str(versions)!r})\nDatabase({str(db.url)!r}).migrate()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert schema_drift(db) == [] and revision(db) == str(HEAD) and runs.get(db, 1).name == "old"


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_database_is_refused_and_left_alone(db: Database, read_only: bool) -> None:
    with db.write() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '99'")
    again = Database(str(db.url), read_only=read_only)
    with pytest.raises(StoreVersionError, match=rf"newer version .*\(schema 99.*knows {HEAD}.*Install the newer"):
        again.migrate()
    assert revision(db) == "99"


def test_the_database_of_a_running_server_is_not_upgraded(
    db: Database, versions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "UPGRADE_SECONDS", 0.1)
    lock = FileLock(tmp_path / "scheduler.lock", thread_local=False)
    with lock:
        assert not Database(str(db.url)).migrate(tmp_path / "scheduler.lock")  # it has the newest schema
        add_revision(versions, HEAD + 1, ADD_COLOR)
        with pytest.raises(StoreVersionError, match="A running server of an earlier version"):
            Database(str(db.url)).migrate(tmp_path / "scheduler.lock")
        assert revision(db) == str(HEAD)
    assert Database(str(db.url)).migrate(tmp_path / "scheduler.lock") and revision(db) == str(HEAD + 1)


def test_a_reader_does_not_upgrade_an_older_database(db: Database, versions: Path) -> None:
    add_revision(versions, HEAD + 1, ADD_COLOR)
    reader = Database(str(db.url), read_only=True)
    with pytest.raises(StoreVersionError, match=f"has version {HEAD}, and this program reads version {HEAD + 1}"):
        reader.migrate()
    assert revision(reader) == str(HEAD)


def test_tables_of_something_else_are_not_written_over(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path}/other.sqlite")
    with db._writer.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE run (speed REAL)")
    with pytest.raises(StoreError, match="tables of another application"):
        db.migrate()


@pytest.mark.slow
def test_processes_that_start_together_bring_it_up_to_date_once(tmp_path: Path) -> None:
    code = f"from jobs.db.engine import Database; Database('sqlite:///{tmp_path}/workspace.sqlite').migrate()"
    started = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]
    errors = [process.communicate(timeout=120)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * 4, errors
    db = Database(f"sqlite:///{tmp_path}/workspace.sqlite")
    assert schema_drift(db) == [] and revision(db) == str(HEAD)
