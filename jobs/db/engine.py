"""One database: how it is opened, and the two kinds of transaction there are.

Reads see one state and never write. Writes take the write lock before their first statement (`BEGIN IMMEDIATE`), so
no transaction ever goes from reading to writing, which SQLite answers with BUSY at once whatever the timeout. Every
write that touches what a page shows moves one number, `store.version`, and the `version` of the runs it belongs to.
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
from typing import Any

import psutil
from sqlalchemy import BigInteger, Connection, Engine, String, cast, create_engine, event, select, update
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlmodel import Session, col

from jobs.db import schema
from jobs.db.errors import StoreError, StoreReadOnlyError, StoreVersionError, translate_driver_error, unstorable_value
from jobs.db.models import Checkpoint, LeakLabel, Note, Run, ScheduledRun, Setting, Stage, Tag

BUSY_TIMEOUT_SECONDS = 30.0
"""Seconds that a writer waits for another."""
SCHEMA_VERSION_KEY = "store.version"
"""The setting that counts the changes of what pages show."""
NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs afpfs ncpfs 9p drvfs davfs webdav afs ceph glusterfs lustre gpfs beegfs orangefs pvfs2 "
    "ocfs2 gfs2 fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.rclone fuse.gcsfuse fuse.davfs fuse.juicefs".split()
)
_WATCHED = (Run, Tag, Stage, Checkpoint, Note, LeakLabel, ScheduledRun, Setting)
_MODE = "rl2f_begin"


class _WriteSession(Session):
    """A session that notes which runs its changes belong to."""

    changed = False
    runs: set[int]

    def __init__(self, bind: Engine) -> None:
        super().__init__(bind, expire_on_commit=False)
        self.runs = set()


@event.listens_for(_WriteSession, "before_flush")
def _note_objects(session: _WriteSession, *_: Any) -> None:
    dirty = [obj for obj in session.dirty if isinstance(obj, _WATCHED) and session.is_modified(obj)]
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
def _note_statements(state: Any) -> None:
    if (state.is_insert or state.is_update or state.is_delete) and state.bind_mapper is not None:
        if issubclass(state.bind_mapper.class_, _WATCHED):
            state.session.changed = True


class Database:
    """A SQLite file, or another database that SQLAlchemy reaches.

    Args:
        url: SQLAlchemy's URL, e.g. `sqlite:////data/rl2f.sqlite` or `postgresql+psycopg://user@host/name`.
        read_only: Refuse every write.
        timeout: Seconds that a transaction waits for another one.

    Raises `StoreError` where the URL is none, the database is only in memory, or it lies on a network file system.
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
            )
        except ImportError as error:
            raise StoreError(f"The driver of the database is missing: {error}.", value=self.name) from error
        if self.sqlite:
            event.listen(self._engine, "connect", self._connected)
            event.listen(self._engine, "begin", _begin)
            self._reader: Engine = self._engine.execution_options(**{_MODE: "BEGIN"})
            self._writer: Engine = self._engine.execution_options(**{_MODE: "BEGIN IMMEDIATE"})
        else:
            self._reader = self._engine.execution_options(**self._snapshots())
            self._writer = self._engine

    def _snapshots(self) -> dict[str, Any]:
        """Options under which a transaction sees one state, and on PostgreSQL cannot write."""
        read_only = {"postgresql_readonly": True} if self.url.get_backend_name() == "postgresql" else {}
        return {"isolation_level": "REPEATABLE READ", **read_only}

    def _connected(self, connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy's begin event opens transactions, not the driver
        connection.execute(f"PRAGMA busy_timeout = {int(self.timeout * 1000)}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -16384")
        connection.execute("PRAGMA synchronous = NORMAL")
        if not self.read_only:
            connection.execute("PRAGMA journal_size_limit = 67108864")
            _enable_wal(connection, self.timeout, self.name)

    def migrate(self) -> None:
        """Bring the schema to the newest revision in one transaction.

        Raises `StoreVersionError` if the database has a newer revision, or an older one and is only read.
        """
        with self._translate_errors():
            if self.read_only:
                with self._reader.connect() as connection:
                    schema.check_readable(connection, self.name)
                return
            with self._writer.connect() as connection:
                raw: Any = connection.connection.dbapi_connection
                if self.sqlite:  # a revision may rebuild a table that others reference; `upgrade` checks the references
                    raw.execute("PRAGMA foreign_keys = OFF")
                try:
                    with connection.begin():
                        schema.upgrade(connection, self.name)
                finally:
                    if self.sqlite:
                        raw.execute("PRAGMA foreign_keys = ON")

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """One short read transaction; what it returned stays usable after it.

        Raises `StoreError` where the database cannot be read.
        """
        with self._translate_errors(), Session(self._reader, expire_on_commit=False) as session:
            yield session

    @contextlib.contextmanager
    def write(self) -> Iterator[Session]:
        """One short write transaction, alone from its first statement on; kept when the block ends without an error.

        Raises `StoreLockedError`, `StoreFullError` or `StoreReadOnlyError`; then nothing of it was kept.
        """
        if self.read_only:
            raise StoreReadOnlyError(
                "This server only reads: another one on the same data writes.",
                value=self.name,
                fix="Use the other server, or stop it and start this one again.",
            )
        if getattr(self._inside, "write", False):
            raise StoreError("A write was begun inside a write of the same thread.", value=self.name)
        self._inside.write = True
        try:
            with self._translate_errors(), _WriteSession(self._writer) as session:
                self._take_write_lock(session)
                yield session
                session.flush()
                _move_versions(session)
                session.commit()
        finally:
            self._inside.write = False

    def _take_write_lock(self, session: Session) -> None:
        """On SQLite the transaction begins with the lock; elsewhere the row of the version is the lock."""
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
            plain = translate_driver_error(error, self.name)
            if plain is None:
                raise
            raise plain from error
        except (OverflowError, UnicodeEncodeError) as error:  # SQLite's driver says so of parameters
            raise unstorable_value(error) from error

    def backup(self, target: Path) -> Path:
        """Copy a SQLite database that may be in use; the copy is whole and checked, or is not there.

        Raises `StoreError` where it cannot be written, or where the database is not SQLite.
        """
        if not self.sqlite:
            raise StoreError(
                "Only SQLite is copied by the studio.", value=self.name, fix="Use the database's own dump."
            )
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.name, timeout=self.timeout)) as source:
                with contextlib.closing(sqlite3.connect(temporary)) as copy:
                    source.backup(copy)
                    copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
                    found = copy.execute("PRAGMA quick_check").fetchone()[0]
            if found != "ok":
                raise StoreError(f"The copy of the database is damaged: {found}.", value=str(target))
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
    how = connection.get_execution_options().get(_MODE, "BEGIN IMMEDIATE")
    connection.exec_driver_sql(f"PRAGMA query_only = {int(how == 'BEGIN')}")
    connection.exec_driver_sql(how)


def _move_versions(session: _WriteSession) -> None:
    if session.runs:
        moved = update(Run).where(col(Run.id).in_(session.runs)).values(version=col(Run.version) + 1)
        session.connection().execute(moved)
    if session.changed or session.runs:
        value = cast(cast(Setting.value, BigInteger) + 1, String)
        session.connection().execute(update(Setting).where(col(Setting.name) == SCHEMA_VERSION_KEY).values(value=value))


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise StoreError(
            "The database's address cannot be read.",
            value=url.partition("@")[2] or url,
            known=("sqlite:////PATH", "postgresql+psycopg://USER@HOST/NAME"),
            fix="Set RL2F_DATABASE_URL, or leave it out.",
        ) from error
    return parsed


def _check_file(url: URL, read_only: bool) -> None:
    """A file on a disk of this machine; its folder is made where it is missing."""
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise StoreError("The database needs a file.", value=str(url), fix="Use sqlite:////PATH.")
    path = Path(url.database)
    if read_only and not path.is_file():
        raise StoreError("There is no database to read.", value=str(path), fix="Start a server that writes first.")
    kind = file_system(path, [(p.mountpoint, p.fstype) for p in psutil.disk_partitions(all=True)])
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"The database lies on a network file system ({kind}), where SQLite loses data.",
            value=str(path),
            fix="Set RL2F_WORKSPACE to a folder on a local disk, or RL2F_DATABASE_URL to a PostgreSQL server.",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"The database's folder cannot be made: {error.strerror}.", value=str(path)) from error


def file_system(path: Path, mounts: list[tuple[str, str]]) -> str:
    """The kind of file system that holds `path`, or an empty text where it is not known.

    Args:
        path: May not exist yet.
        mounts: Mount point and kind of each file system, later ones over earlier ones.
    """
    there = path.resolve()
    best, kind = -1, ""
    for point, name in mounts:
        depth = len(Path(point).parts)
        if there.is_relative_to(point) and depth >= best:
            best, kind = depth, name
    return kind


def _enable_wal(connection: sqlite3.Connection, timeout: float, name: str) -> None:
    """Turn on the write-ahead log, which stays on in the file; SQLite does not wait for the lock this needs."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    ends = time.monotonic() + timeout
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                raise
            time.sleep(0.02)
            continue
        if mode != "wal":
            raise StoreError(
                f"The file system takes no write-ahead log (SQLite chose {mode!r}).",
                value=name,
                fix="Put the workspace's folder on a local disk.",
            )
        return


__all__ = ["BUSY_TIMEOUT_SECONDS", "SCHEMA_VERSION_KEY", "Database", "StoreVersionError", "file_system"]
