"""Upgrade a database to the newest schema revision.

The revisions are in `migrations/versions/`. Alembic stores a database's revision in its table `alembic_version`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from jobs.db import audit_models, label_models, models, server_models
from jobs.db.errors import StoreError, StoreVersionError

SCRIPTS = Path(__file__).parent / "migrations"
VERSIONS = SCRIPTS / "versions"
TABLE_MODULES = (models, label_models, audit_models, server_models)
"""Modules with tables; their import adds the tables to `MODELS`."""
MODELS = models.SQLModel.metadata
_POSTGRES_LOCK_ID = 7245


def _is_compared(_: sa.schema.SchemaItem, name: str | None, kind: str, reflected: bool, __: object) -> bool:
    """Exclude SQLite's full-text table and its auxiliary tables, which no model describes."""
    return not (kind == "table" and reflected and str(name).startswith(models.FULL_TEXT))


COMPARISON: dict[str, Any] = {"include_object": _is_compared, "compare_type": True}
"""Alembic's options to compare a schema with the models."""


def _config() -> Config:
    config = Config()
    for name, value in (("script_location", SCRIPTS), ("version_locations", VERSIONS)):
        config.set_main_option(name, str(value).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    return config


def _scripts() -> ScriptDirectory:
    return _load_scripts(tuple(sorted(VERSIONS.glob("*.py"))))


@functools.cache
def _load_scripts(_: tuple[Path, ...]) -> ScriptDirectory:
    """Return the revisions, which Alembic reads from these files."""
    return ScriptDirectory.from_config(_config())


def head_revision() -> str:
    """Return the newest revision that this program knows."""
    return str(_scripts().get_current_head())


def current_revision(connection: sa.Connection) -> str | None:
    """Return the revision of the database, or None if it is empty.

    Raises `StoreError` if the database has tables of these names but no revision.
    """
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is None and set(sa.inspect(connection).get_table_names()) & set(MODELS.tables):
        raise StoreError(
            "The database contains tables of another application: it has no schema version.",
            fix="Use a separate database for the workspace.",
        )
    return revision


def upgrade(connection: sa.Connection, name: str) -> None:
    """Run all missing revisions in the connection's transaction, which holds the write lock on SQLite.

    Raises `StoreVersionError` if the database is newer than this program.
    """
    if connection.dialect.name == "postgresql":  # serialize servers that start at the same time
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_POSTGRES_LOCK_ID})")
    if _known_revision(connection, name) == head_revision():
        return
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            raise StoreError("The schema upgrade left rows that reference missing rows.", value=broken[:3])


def check_readable(connection: sa.Connection, name: str) -> None:
    """Raise `StoreVersionError` unless the database has the newest revision."""
    revision, head = _known_revision(connection, name), head_revision()
    if revision != head:
        raise StoreVersionError(
            f"The database has version {revision or 0}, and this program reads version {head}.",
            value=name,
            fix="Start a server with write access: it upgrades the database.",
        )


def _known_revision(connection: sa.Connection, name: str) -> str | None:
    """Return the revision of the database. Raise `StoreVersionError` if this program does not know it."""
    revision = current_revision(connection)
    known = [script.revision for script in _scripts().walk_revisions()]
    if revision is not None and revision not in known:
        raise StoreVersionError(
            f"A newer version of RL2F Studio created the database (schema {revision}, this program knows {known[0]}).",
            value=name,
            fix="Install the newer version, or restore a backup.",
        )
    return revision
