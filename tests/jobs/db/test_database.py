"""The database: two kinds of transaction, plain errors, and copies of it."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from sqlalchemy import event
from sqlmodel import select

from jobs.db import settings
from jobs.db.engine import NETWORK_FILE_SYSTEMS, Database, file_system
from jobs.db.errors import StoreError, StoreFullError, StoreLockedError, StoreReadOnlyError
from jobs.db.models import JobLog, LeakLabel, Run, ScheduledRun, Setting
from jobs.db.queries import notes, runs


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path}/workspace.sqlite", timeout=0.3)
    made.migrate()
    yield made
    made.close()


def a_run(db: Database, folder: str = "1-a") -> int:
    run = runs.add(db, Run(name="a", kind="eval", folder=folder))
    assert run.id is not None
    return run.id


def other_connection(db: Database) -> sqlite3.Connection:
    return sqlite3.connect(db.name, timeout=0, isolation_level=None)


def pragma(db: Database, name: str) -> object:
    with db.read() as session:
        return session.connection().exec_driver_sql(f"PRAGMA {name}").scalar()


def test_every_connection_writes_ahead_waits_and_checks_foreign_keys(db: Database) -> None:
    assert pragma(db, "journal_mode") == "wal"
    assert pragma(db, "foreign_keys") == 1
    assert pragma(db, "synchronous") == 1
    assert pragma(db, "busy_timeout") == 300


def test_default_write_timeout_is_thirty_seconds(tmp_path: Path) -> None:
    with_default = Database(f"sqlite:///{tmp_path}/other.sqlite")
    with_default.migrate()
    assert pragma(with_default, "busy_timeout") == 30_000
    with_default.close()


def test_a_write_holds_the_lock_before_its_first_statement(db: Database) -> None:
    with db.write():
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other_connection(db).execute("BEGIN IMMEDIATE")


def test_a_write_that_fails_leaves_nothing(db: Database) -> None:
    with pytest.raises(ZeroDivisionError), db.write() as session:
        session.add(Setting(name="a", value="b"))
        session.flush()
        raise ZeroDivisionError
    assert settings.get(db, "a", "none") == "none"


def test_a_read_sees_one_state_while_another_writes(db: Database) -> None:
    settings.put(db, "a", "before")
    with db.read() as session:
        first = session.get(Setting, "a")
        assert first is not None and first.value == "before"
        threading.Thread(target=settings.put, args=(db, "a", "after")).start()
        while settings.get(db, "a") == "before":
            pass
        session.expire_all()
        assert session.get(Setting, "a").value == "before"  # type: ignore[union-attr]


def test_rows_stay_usable_after_their_transaction(db: Database) -> None:
    run_id = a_run(db)
    with db.read() as session:
        run = session.exec(select(Run)).one()
    with db.write() as session:
        note = session.merge(Setting(name="x", value="y"))
    assert (run.id, run.name, note.value) == (run_id, "a", "y")


def test_a_read_cannot_write(db: Database) -> None:
    with pytest.raises(StoreReadOnlyError, match="is read-only"), db.read() as session:
        session.add(Setting(name="a", value="b"))
        session.flush()
    with db.write() as session:  # and the same connection can, in a write
        session.add(Setting(name="a", value="b"))


def test_a_write_inside_a_write_is_refused_at_once_and_not_after_the_timeout(db: Database) -> None:
    with pytest.raises(StoreError, match="already in a write transaction"), db.write(), db.write():
        pass
    settings.put(db, "a", "b")


def test_threads_write_in_turns(db: Database) -> None:
    patient = Database(str(db.url))
    settings.put(db, "n", "0")

    def add_one() -> None:
        for _ in range(20):
            with patient.write() as session:
                row = session.get(Setting, "n")
                assert row is not None
                row.value = str(int(row.value) + 1)

    threads = [threading.Thread(target=add_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    patient.close()
    assert settings.get(db, "n") == "80"


def test_a_locked_database_is_a_plain_error_and_the_next_write_works(db: Database) -> None:
    other = other_connection(db)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreLockedError, match=r"locked by another process.*try again"):
        settings.put(db, "a", "b")
    assert settings.get(db, "a", "none") == "none"  # reading goes on meanwhile
    other.execute("ROLLBACK")
    settings.put(db, "a", "b")
    assert settings.get(db, "a") == "b"


def test_a_full_disk_is_a_plain_error_and_nothing_of_the_write_is_kept(db: Database) -> None:
    run_id = a_run(db)
    pages = pragma(db, "page_count")
    db.close()
    event.listen(db._engine, "connect", lambda raw, _: raw.execute(f"PRAGMA max_page_count = {pages}"))
    notes.add(db, run_id, "short")
    with pytest.raises(StoreFullError, match=r"disk is full.*Free space"), db.write() as session:
        session.add(Setting(name="first", value="fits"))
        session.flush()
        session.add(Setting(name="second", value="x" * 100_000))
    assert settings.get(db, "first", "none") == "none"
    assert [note.text for note in notes.of_run(db, run_id)] == ["short"]


def test_a_read_only_database_is_read_and_refuses_every_write(db: Database) -> None:
    run_id = a_run(db)
    reader = Database(str(db.url), read_only=True)
    reader.migrate()
    assert runs.get(reader, run_id).name == "a"
    with pytest.raises(StoreReadOnlyError, match="only reads"):
        settings.put(reader, "a", "b")
    runs.update(db, run_id, name="b")
    assert runs.get(reader, run_id).name == "b"
    reader.close()


def test_reading_where_there_is_no_database_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no database to read"):
        Database(f"sqlite:///{tmp_path}/none.sqlite", read_only=True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("not a url", "address is invalid"),
        ("sybase://host/name", "address is invalid"),
    ],
)
def test_an_invalid_database_url_raises(url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        Database(url)


def test_a_password_is_never_in_a_message() -> None:
    db = Database("postgresql+psycopg://me:secret@127.0.0.1:9/none", timeout=1)
    with pytest.raises(StoreError, match="does not answer") as caught:
        db.migrate()
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_database_is_a_plain_error(tmp_path: Path) -> None:
    (tmp_path / "bad.sqlite").write_bytes(b"not a database at all, " * 100)
    db = Database(f"sqlite:///{tmp_path}/bad.sqlite")
    with pytest.raises(StoreError, match=r"damaged, or is not a SQLite database.*backups"):
        db.migrate()


def test_the_nearest_mount_tells_the_file_system() -> None:
    mounts = [("/", "ext4"), ("/data", "ext4"), ("/data/far", "nfs4"), ("/database", "cifs")]
    assert file_system(Path("/data/far/workspace/x.sqlite"), mounts) == "nfs4"
    assert file_system(Path("/data/near/x.sqlite"), mounts) == "ext4"
    assert file_system(Path("/home/x.sqlite"), mounts) == "ext4"
    assert file_system(Path("/home/x.sqlite"), []) == ""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype=kind)]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    assert kind in NETWORK_FILE_SYSTEMS
    with pytest.raises(StoreError, match=rf"network file system \({kind}\).*RL2F_WORKSPACE"):
        Database(f"sqlite:///{tmp_path}/workspace/x.sqlite")
    assert not (tmp_path / "workspace").exists()


def test_a_copy_is_whole_though_others_write_meanwhile(db: Database, tmp_path: Path) -> None:
    run_id = a_run(db)
    going = threading.Event()
    begun = threading.Event()
    writer_db = Database(str(db.url))

    def write_on() -> None:
        while not going.is_set():
            notes.add(writer_db, run_id, "meanwhile " * 50)
            begun.set()

    writer = threading.Thread(target=write_on)
    writer.start()
    begun.wait(10)
    copies = [db.backup(tmp_path / "backups" / f"{i}.sqlite") for i in range(5)]
    going.set()
    writer.join()
    writer_db.close()
    counts = []
    for copy in copies:
        opened = Database(f"sqlite:///{copy}", read_only=True)
        opened.migrate()
        counts.append(len(notes.of_run(opened, run_id)))
        opened.close()
    assert counts == sorted(counts) and counts[0] >= 1
    assert sorted(path.name for path in (tmp_path / "backups").iterdir() if path.suffix == ".sqlite") == [
        f"{i}.sqlite" for i in range(5)
    ]


def test_a_copy_that_cannot_be_written_leaves_nothing(db: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="could not be copied"):
        db.backup(tmp_path / "file" / "copy.sqlite")
    (tmp_path / "folder" / "copy.sqlite").mkdir(parents=True)
    with pytest.raises(StoreError, match="could not be copied"):
        db.backup(tmp_path / "folder" / "copy.sqlite")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["copy.sqlite"]


def test_the_version_moves_with_everything_that_pages_show(db: Database) -> None:
    run_id = a_run(db)
    numbers = [(runs.version(db), runs.version(db, run_id))]

    def noted() -> None:
        numbers.append((runs.version(db), runs.version(db, run_id)))

    runs.update(db, run_id, phase="stage rl2f")
    noted()
    note = notes.add(db, run_id, "look here")
    noted()
    runs.set_tags(db, run_id, ["good"])
    noted()
    with db.write() as session:
        session.add(LeakLabel(run_id=run_id, event_id="e", turn=0, annotator="me", label="leak", time=1.0))
    noted()
    assert note.id is not None
    notes.delete(db, note.id)
    noted()
    for (before, of_run_before), (after, of_run_after) in itertools.pairwise(numbers):
        assert before < after and of_run_before < of_run_after


def test_the_version_moves_with_schedules_and_new_and_deleted_runs_but_not_with_the_scheduler_s_log(
    db: Database,
) -> None:
    first = runs.version(db)
    with db.write() as session:
        session.add(ScheduledRun(name="n", trigger="cron", when="* * * * *", created=1.0))
    second = runs.version(db)
    run_id = a_run(db)
    third = runs.version(db)
    runs.remove(db, run_id)
    fourth = runs.version(db)
    assert first < second < third < fourth
    with db.write() as session:
        session.add(JobLog(time=1.0, job="dispatch", outcome="ran"))
    assert runs.version(db) == fourth


def test_one_run_s_change_leaves_the_version_of_another(db: Database) -> None:
    one, two = a_run(db, "1-a"), a_run(db, "2-b")
    before = runs.version(db, two)
    notes.add(db, one, "x")
    runs.update(db, one, phase="y")
    assert runs.version(db, two) == before
