"""Database connections, with read and write transactions.

A read transaction sees one snapshot. A write transaction takes the write lock before its first statement
(`BEGIN IMMEDIATE`): SQLite rejects an upgrade from reading to writing with BUSY immediately, whatever the timeout.
Writes of rows that pages show increase `store.version`, and `version` of the changed runs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import psutil
from filelock import FileLock, Timeout
from sqlalchemy import (
    BigInteger,
    Connection,
    Engine,
    Select,
    String,
    cast,
    create_engine,
    event,
    inspect,
    select,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import ORMExecuteState
from sqlmodel import Session, col

from jobs.db import schema
from jobs.db.errors import (
    StoreError,
    StoreReadOnlyError,
    StoreVersionError,
    translate_driver_error,
    unstorable_value,
)
from jobs.db.models import Checkpoint, LeakLabel, Note, Run, ScheduledRun, Setting, Stage, Tag

BUSY_TIMEOUT_SECONDS = 30.0
UPGRADE_SECONDS = 10.0
"""Wait for another command that upgrades the database."""
"""Maximum wait for the write lock."""
SCHEMA_VERSION_KEY = "store.version"
"""Setting that counts the changes of rows that pages show."""
NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs afpfs ncpfs 9p drvfs davfs webdav afs ceph glusterfs lustre gpfs beegfs orangefs pvfs2 "
    "ocfs2 gfs2 fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.rclone fuse.gcsfuse fuse.davfs fuse.juicefs".split()
)
_WATCHED = (Run, Tag, Stage, Checkpoint, Note, LeakLabel, ScheduledRun, Setting)
_MODE = "rl2f_begin"
T = TypeVar("T")


class _WriteSession(Session):
    """A session that records which runs it changes."""

    def __init__(self, bind: Engine) -> None:
        super().__init__(bind, expire_on_commit=False)
        self.changed = False
        self.runs: set[int] = set()


@event.listens_for(_WriteSession, "before_flush")
def _record_objects(session: _WriteSession, *_: object) -> None:
    dirty = [obj for obj in session.dirty if isinstance(obj, _WATCHED) and session.is_modified(obj)]
    for obj in [*session.new, *dirty]:
        if isinstance(obj, Run) and obj.parent and inspect(obj).attrs.status.history.has_changes():
            session.runs.add(obj.parent)  # its page lists this run
    for obj in dirty:
        if isinstance(obj, Run):
            obj.version += 1
    for obj in [*session.new, *dirty, *session.deleted]:
        if not isinstance(obj, _WATCHED):
            continue
        session.changed = True
        if not isinstance(obj, Run) and (run_id := getattr(obj, "run_id", None)) is not None:
            session.runs.add(run_id)


@event.listens_for(_WriteSession, "do_orm_execute")
def _record_statements(state: ORMExecuteState) -> None:
    changes_rows = state.is_insert or state.is_update or state.is_delete
    if changes_rows and state.bind_mapper is not None and issubclass(state.bind_mapper.class_, _WATCHED):
        assert isinstance(state.session, _WriteSession)
        state.session.changed = True


class Database:
    """A SQLite file, or another database that SQLAlchemy supports.

    Args:
        url: SQLAlchemy's URL, e.g. `sqlite:////data/rl2f.sqlite` or `postgresql+psycopg://user@host/name`.
        read_only: Reject write transactions.
        timeout: Maximum seconds to wait for a lock.

    Raises `StoreError` if the URL is invalid, or the database is in memory or on a network file system.
    """

    def __init__(self, url: str, *, read_only: bool = False, timeout: float = BUSY_TIMEOUT_SECONDS) -> None:
        self.url = _parse(url)
        self.read_only = read_only
        self.timeout = timeout
        self.sqlite = self.url.get_backend_name() == "sqlite"
        self.name = str(self.url.database) if self.sqlite else self.url.render_as_string(hide_password=True)
        self._inside = threading.local()
        if self.sqlite:
            _check_file(self.url, read_only)
        try:
            self._engine = create_engine(
                self.url,
                json_serializer=functools.partial(json.dumps, ensure_ascii=False),
                connect_args={"timeout": timeout} if self.sqlite else {},
                pool_pre_ping=not self.sqlite,
                query_cache_size=100,  # a compiled statement takes some 30 kB
            )
        except ImportError as error:
            raise StoreError(f"The driver of the database is missing: {error}.", value=self.name) from error
        if self.sqlite:
            event.listen(self._engine, "connect", self._on_connect)
            event.listen(self._engine, "begin", _begin)
            self._reader: Engine = self._engine.execution_options(**{_MODE: "BEGIN"})
            self._writer: Engine = self._engine.execution_options(**{_MODE: "BEGIN IMMEDIATE"})
        else:
            read_only_option = {"postgresql_readonly": True} if self.url.get_backend_name() == "postgresql" else {}
            self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ", **read_only_option)
            self._writer = self._engine

    def _on_connect(self, connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # SQLAlchemy's begin event opens transactions, not the driver
        connection.execute(f"PRAGMA busy_timeout = {int(self.timeout * 1000)}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -1024")  # kB of each connection, of which a server keeps five
        connection.execute("PRAGMA synchronous = NORMAL")
        if not self.read_only:
            connection.execute("PRAGMA journal_size_limit = 67108864")
            _enable_wal(connection, self.timeout, self.name)

    def migrate(self, lock: Path | None = None) -> bool:
        """Bring the schema to the newest revision in one transaction; return whether it was an older one.

        Args:
            lock: Lock file of the server that uses the database. The schema of a running server is not changed.

        Raises `StoreVersionError` if the database has a newer revision, or an older one and is only read or in use.
        """
        with self._translate_errors():
            with self._reader.connect() as connection:
                if self.read_only:
                    schema.check_readable(connection, self.name)
                if schema.is_newest(connection, self.name):
                    return False
            with self._unused(lock), self._writer.connect() as connection:
                cursor = connection.connection.cursor()
                if self.sqlite:  # a revision may rebuild a table that others reference; `upgrade` checks the references
                    cursor.execute("PRAGMA foreign_keys = OFF")
                try:
                    with connection.begin():
                        return schema.upgrade(connection, self.name)
                finally:
                    if self.sqlite:
                        cursor.execute("PRAGMA foreign_keys = ON")

    @contextlib.contextmanager
    def _unused(self, lock: Path | None) -> Iterator[None]:
        try:  # another command may upgrade it now, and release the lock
            with contextlib.nullcontext() if lock is None else FileLock(lock, timeout=UPGRADE_SECONDS):
                yield
        except Timeout as error:
            text = "A running server of an earlier version uses the database."
            raise StoreVersionError(text, value=self.name, fix="Stop that server, then repeat the command.") from error

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """Open a short read transaction; its rows remain usable afterwards. Raises `StoreError`."""
        with self._translate_errors(), Session(self._reader, expire_on_commit=False) as session:
            yield session

    def fetch_all(self, query: Select[T]) -> list[T]:
        """Return the first column of a query's result, from its own read transaction."""
        with self.read() as session:
            return list(session.scalars(query))

    @contextlib.contextmanager
    def write(self) -> Iterator[Session]:
        """Open a short, exclusive write transaction, committed at the end of the block.

        Raises `StoreLockedError`, `StoreFullError` or `StoreReadOnlyError` after a rollback.
        """
        if self.read_only:
            raise StoreReadOnlyError(
                "This server only reads: another server writes to the same data.",
                value=self.name,
                fix="Use the other server, or stop it and start this one again.",
            )
        if getattr(self._inside, "write", False):
            raise StoreError("This thread is already in a write transaction.", value=self.name)
        self._inside.write = True
        try:
            with self._translate_errors(), _WriteSession(self._writer) as session:
                self._take_write_lock(session)
                yield session
                session.flush()
                _increase_versions(session)
                session.commit()
        finally:
            self._inside.write = False

    def _take_write_lock(self, session: Session) -> None:
        """Lock the row of `store.version`. On SQLite, `BEGIN IMMEDIATE` takes the lock."""
        session.connection()
        if self.sqlite:
            return
        if self.url.get_backend_name() == "postgresql":
            session.connection().exec_driver_sql(f"SET LOCAL lock_timeout = {int(self.timeout * 1000)}")
        session.connection().execute(
            select(col(Setting.value)).where(col(Setting.name) == SCHEMA_VERSION_KEY).with_for_update()
        )

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            translated = translate_driver_error(error, self.name)
            if translated is None:
                raise
            raise translated from error
        except (OverflowError, UnicodeEncodeError) as error:  # raised by SQLite's driver for parameters
            raise unstorable_value(error) from error

    def backup(self, target: Path) -> Path:
        """Copy a SQLite database that may be in use; check the copy and rename it to `target`.

        Raises `StoreError` if the copy cannot be written, or if the database is not SQLite.
        """
        if not self.sqlite:
            raise StoreError(
                "Only SQLite databases can be copied.", value=self.name, fix="Use the database's own dump."
            )
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            make_private(temporary)
            with contextlib.closing(sqlite3.connect(self.name, timeout=self.timeout)) as source:
                with contextlib.closing(sqlite3.connect(temporary)) as copy:
                    source.backup(copy)
                    copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a separate log
                    result = copy.execute("PRAGMA quick_check").fetchone()[0]
            if result != "ok":
                raise StoreError(f"The copy of the database is damaged: {result}.", value=str(target))
            os.replace(temporary, target)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"The database could not be copied: {error}.", value=str(target), fix="Check the disk's space."
            ) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return target

    def close(self) -> None:
        """Close all connections. A later transaction opens new ones."""
        self._engine.dispose()


def _begin(connection: Connection) -> None:
    statement = connection.get_execution_options().get(_MODE, "BEGIN IMMEDIATE")
    connection.exec_driver_sql(f"PRAGMA query_only = {int(statement == 'BEGIN')}")
    connection.exec_driver_sql(statement)


def _increase_versions(session: _WriteSession) -> None:
    if session.runs:
        increase = update(Run).where(col(Run.id).in_(session.runs)).values(version=col(Run.version) + 1)
        session.connection().execute(increase)
    if session.changed or session.runs:
        value = cast(cast(Setting.value, BigInteger) + 1, String)
        session.connection().execute(update(Setting).where(col(Setting.name) == SCHEMA_VERSION_KEY).values(value=value))


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise StoreError(
            "The database's address is invalid.",
            value=url.partition("@")[2] or url,
            known=("sqlite:////PATH", "postgresql+psycopg://USER@HOST/NAME"),
            fix="Correct or unset RL2F_DATABASE_URL.",
        ) from error
    return parsed


def _check_file(url: URL, read_only: bool) -> None:
    """Check that the file is on a local disk; create it, readable by its owner only, if it is to be written."""
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise StoreError("The database needs a file.", value=str(url), fix="Use sqlite:////PATH.")
    path = Path(url.database)
    if read_only and not path.is_file():
        raise StoreError("There is no database to read.", value=str(path), fix="Start a server that writes first.")
    kind = file_system(path, [(p.mountpoint, p.fstype) for p in psutil.disk_partitions(all=True)])
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"The database is on a network file system ({kind}), where SQLite loses data.",
            value=str(path),
            fix="Set RL2F_WORKSPACE to a folder on a local disk, or RL2F_DATABASE_URL to a PostgreSQL server.",
        )
    if read_only:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        make_private(path)  # SQLite creates its other files with the same permissions
    except OSError as error:
        raise StoreError(f"The database's file cannot be opened: {error.strerror}.", value=str(path)) from error


def make_private(path: Path) -> None:
    """Create a database file that only its owner can read; take the permissions of others from an existing one."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    for file in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal"))):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another user owns it
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)


def file_system(path: Path, mounts: list[tuple[str, str]]) -> str:
    """Return the type of the file system of `path`; an empty string if it is unknown.

    Args:
        path: May not exist yet.
        mounts: Mount point and type of each file system; later ones cover earlier ones.
    """
    path = path.resolve()
    matches = [(len(Path(at).parts), i, kind) for i, (at, kind) in enumerate(mounts) if path.is_relative_to(at)]
    return max(matches, default=(0, 0, ""))[2]


def _enable_wal(connection: sqlite3.Connection, timeout: float, name: str) -> None:
    """Enable the file's write-ahead log. SQLite does not wait for the lock that this needs, so retry."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    deadline = time.monotonic() + timeout
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        if mode != "wal":
            raise StoreError(
                f"The file system does not support a write-ahead log (SQLite chose {mode!r}).",
                value=name,
                fix="Put the workspace's folder on a local disk.",
            )
        return
