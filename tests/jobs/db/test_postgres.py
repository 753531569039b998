"""The same store on PostgreSQL: Debian's server, started on loopback for these tests alone."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from db_load import check
from event_data import append, dialogue, metric, read_all, small_run, stored_run, turn
from schema_drift import schema_drift

from jobs.db import schema, settings
from jobs.db.engine import Database
from jobs.db.errors import StoreError, StoreLockedError, StoreVersionError, UnknownRunError
from jobs.db.queries import dialogues, metrics, notes, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.db.queries.runs import RunFilter
from jobs.ingest.ingester import reindex
from jobs.workspace import Workspace
from rl2f_core.errors import DataError

pytestmark = pytest.mark.slow


def program(name: str) -> str:
    """A program of the server; fails the test where it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = str(found[-1]) if found else shutil.which(name)
    if path is None:
        pytest.fail("PostgreSQL's server is not installed. On Debian: apt-get install postgresql")
    return path


def run_program(*command: str) -> None:
    """Run as an unprivileged user where this process is root: the server refuses to start as root."""
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("postgres" if any(u.pw_name == "postgres" for u in pwd.getpwall()) else "nobody")
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **who)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running server, without a database's name."""
    initdb, pg_ctl = program("initdb"), program("pg_ctl")
    folder = Path(tempfile.mkdtemp(prefix="rl2f-postgres-"))  # not below tmp_path, which is closed to the server's user
    folder.chmod(0o777)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = str(folder / "data")
    try:
        run_program(initdb, "-D", data, "-U", "studio", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c fsync=off"
        run_program(pg_ctl, "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg://studio@127.0.0.1:{port}"
        finally:
            run_program(pg_ctl, "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """The address of an empty database."""
    import psycopg

    name = f"t{abs(hash(request.node.name))}"
    plain = server.replace("+psycopg", "")
    with psycopg.connect(f"{plain}/postgres", autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}"')  # type: ignore[call-overload]
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[call-overload]
    return f"{server}/{name}"


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    made = Database(url, timeout=1)
    made.migrate()
    yield made
    made.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace").create()


def test_the_schema_is_that_of_the_models_and_a_newer_one_is_refused(db: Database) -> None:
    assert schema_drift(db) == []
    with db._reader.connect() as connection:
        assert schema.current_revision(connection) == schema.head_revision()
    db.migrate()
    with db.write() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '99'")
    with pytest.raises(StoreVersionError, match="newer version"):
        db.migrate()


def test_a_run_is_read_shown_searched_rebuilt_and_deleted(db: Database, workspace: Workspace) -> None:
    odd = dialogue(9, turns=[turn(0, attempt="Größe \0 50% x_y 😀"), turn(1, right=True)], seed=2**40)
    run = stored_run(db, workspace, [*small_run(), odd])
    assert run.id is not None and (run.done, run.total, run.invalid_lines) == (5.0, 5.0, 0)
    page = dialogues.page(db, DialogueFilter(run=run.id), limit=5)
    assert (page.total, len(page.rows), page.after is not None) == (13, 5, True)
    second = dialogues.page(db, DialogueFilter(run=run.id), page.after, 5)
    assert (second.first, dialogues.page(db, DialogueFilter(run=run.id), second.before, 5).rows) == (6, page.rows)
    view = dialogues.get(db, run.id, odd.id)
    first = view.turns[0]
    assert first.attempt == "Größe \ufffd 50% x_y 😀" and view.row.seed == 2**40
    assert first.verdict.parts == {"1": "x"} and view.event.task.privileged == {"answer": 8}
    assert (first.token_ids, first.logprobs) == ((5, 6, 7), (-0.5, -0.25, -1.0))
    with db.read() as session:
        query = "SELECT attempt, reward, leaked FROM turns WHERE event_id = %s"
        found = session.connection().exec_driver_sql(query, (odd.id,)).all()
        assert found[0] == (first.attempt, first.known_reward, False)
    for search, wanted in (("größe", 1), ("50%", 1), ("x_y", 1), ("xzy", 0), ("red box", 7), ("nothing", 0)):
        assert dialogues.page(db, DialogueFilter(run=run.id, search=search)).total == wanted
    assert dialogues.page_containing(db, DialogueFilter(run=run.id), odd.id, 5).first == 11
    assert len(dialogues.group(db, run.id, page.rows[0])) == 2
    assert dialogues.facets(db, run.id)["steps"] == (1, 9)
    note = notes.add(db, run.id, "kept", event=odd.id, turn=0)
    before = (runs.version(db), counts(db))
    assert reindex(db, workspace) == [run.id]
    assert counts(db) == before[1] and runs.version(db) > before[0]
    assert notes.of_run(db, run.id) == [note]
    runs.remove(db, run.id)
    assert set(counts(db).values()) == {0}


def counts(db: Database) -> dict[str, int]:
    with db.read() as session:
        ask = session.connection().exec_driver_sql
        tables = ("run", "dialogue", "record", "turn", "dialogue_text", "task", "metric", "stage", "checkpoint", "log")
        return {name: int(ask(f"SELECT count(*) FROM {name}").scalar_one()) for name in tables}


def test_an_event_that_comes_again_counts_once_and_a_bad_line_is_left_out(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, small_run())
    before = counts(db)
    large = small_run()[0]
    append(workspace.folder(run.folder) / "events.jsonl", *small_run(), b"rubbish\n", large, metric(4, kl=float("nan")))
    read_all(db, workspace, run)
    after = counts(db)
    assert after == {**before, "metric": before["metric"] + 1, "log": before["log"] + 1}
    assert runs.get(db, run.id or 0).invalid_lines == 1
    assert metrics.sparkline(db, [run.id or 0])[run.id or 0] == [0.1, 0.2, 0.1, 0.2, 0.3, 0.4]


def test_lists_of_runs_and_errors_are_as_on_sqlite(db: Database, workspace: Workspace) -> None:
    for i in range(3):
        stored_run(db, workspace, small_run()[: 5 + i], f"{i}-run")
    runs.set_tags(db, 1, ["a%"])
    for sort in ("-created", "name", "-reward", "ended", "environment"):
        first = runs.page(db, RunFilter(sort=sort), limit=2)
        rest = runs.page(db, RunFilter(sort=sort), first.after, 2)
        assert (len(first.rows), len(rest.rows), rest.first) == (2, 1, 3)
    assert runs.page(db, RunFilter(search="a% small")).total == 1
    with pytest.raises(UnknownRunError):
        runs.get(db, 2**40)
    with pytest.raises(DataError, match="cannot be stored"):
        dialogues.page(db, DialogueFilter.model_construct(step_from=2**70))
    with pytest.raises(StoreError, match="own dump"):
        db.backup(workspace.backups / "x.sqlite")


def test_a_writer_that_waits_too_long_says_that_the_database_is_locked(db: Database, url: str) -> None:
    other = Database(url)
    settings.put(db, "a", "b")
    with other.write(), pytest.raises(StoreLockedError, match="locked by another process"):
        settings.put(db, "a", "c")
    assert settings.get(db, "a") == "b"
    other.close()


def test_a_read_sees_one_state_and_cannot_write(db: Database) -> None:
    settings.put(db, "a", "before")
    with db.read() as session:
        ask = session.connection().exec_driver_sql
        assert ask("SELECT value FROM setting WHERE name = 'a'").scalar() == "before"
        settings.put(db, "a", "after")
        assert ask("SELECT value FROM setting WHERE name = 'a'").scalar() == "before"
    with pytest.raises(StoreError, match="is read-only"), db.read() as session:
        session.connection().exec_driver_sql("DELETE FROM setting")


def test_four_writers_and_a_reader_on_postgres(url: str, workspace: Workspace) -> None:
    check(url, workspace, 10)
