"""Create the schema of an empty database from the models; upgrade an older one to the newest revision.

The revisions are in `migrations/versions/`. Alembic stores a database's revision in its table `alembic_version`. A
revision that changes tables of `EVENT_TABLES` calls `rebuild_event_tables`, since the run folders have their content.
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
from sqlmodel import SQLModel

from jobs.db import dialogue_models, models
from jobs.db.columns import table_of
from jobs.db.dialogue_models import FULL_TEXT
from jobs.db.errors import StoreError, StoreVersionError

SCRIPTS = Path(__file__).parent / "migrations"
VERSIONS = SCRIPTS / "versions"
MODELS = SQLModel.metadata
"""The tables of both modules of models."""
EVENT_TABLES = tuple(
    table_of(model)
    for model in (
        dialogue_models.TaskRow,
        dialogue_models.DialogueRow,
        dialogue_models.RecordRow,
        dialogue_models.TurnRow,
        dialogue_models.RescoredHint,
        dialogue_models.RescoreSummary,
        dialogue_models.HintCount,
    )
)
"""Tables of dialogues, which the ingester fills from the run folders."""
NUMBERED = ("run", "note", "chat", "chatmessage", "scheduledrun", "apitoken")
"""Tables that never use the id of a deleted row again."""
_POSTGRES_LOCK_ID = 7245
for _name in NUMBERED:
    MODELS.tables[_name].dialect_options["sqlite"]["autoincrement"] = True


def _is_compared(_: sa.schema.SchemaItem, name: str | None, kind: str, reflected: bool, __: object) -> bool:
    """Exclude SQLite's full-text table and its auxiliary tables, which no model describes."""
    return not (kind == "table" and reflected and str(name).startswith(FULL_TEXT))


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


def upgrade(connection: sa.Connection, name: str) -> bool:
    """Create the schema, or run all missing revisions; return whether the schema was an older one.

    Both happen in the connection's transaction, which holds the write lock on SQLite.

    Raises `StoreVersionError` if the database is newer than this program.
    """
    if connection.dialect.name == "postgresql":  # serialize servers that start at the same time
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_POSTGRES_LOCK_ID})")
    revision = _known_revision(connection, name)
    if revision == head_revision():
        return False
    config = _config()
    config.attributes["connection"] = connection
    if revision is None:
        MODELS.create_all(connection)
        _create_texts_and_view(connection)
        connection.execute(sa.insert(table_of(models.Setting)).values(name="store.version", value="0"))
        command.stamp(config, "head")
    else:
        command.upgrade(config, "head")
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            raise StoreError("The schema upgrade left rows that reference missing rows.", value=broken[:3])
    return revision is not None


def rebuild_event_tables(connection: sa.Connection) -> None:
    """Replace the tables of dialogues by empty ones of the models, so that the events of all runs are read again."""
    connection.exec_driver_sql("DROP VIEW IF EXISTS turns")
    for name in (FULL_TEXT, *(table.name for table in reversed(EVENT_TABLES))):
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
    MODELS.create_all(connection, tables=EVENT_TABLES)
    _create_texts_and_view(connection)
    connection.exec_driver_sql("UPDATE run SET events_offset = 0, invalid_lines = 0, version = version + 1")


def _create_texts_and_view(connection: sa.Connection) -> None:
    """Create the table of texts, and the view `turns` for people who open the database with SQL."""
    is_sqlite = connection.dialect.name == "sqlite"
    kind = "VIRTUAL TABLE" if is_sqlite else "TABLE"
    columns = (
        " USING fts5(task, attempts, hints, tokenize = 'unicode61 remove_diacritics 2')"
        if is_sqlite
        else " (rowid INTEGER PRIMARY KEY, task TEXT, attempts TEXT, hints TEXT)"
    )
    connection.exec_driver_sql(f"CREATE {kind} {FULL_TEXT}{columns}")

    def text(path: str) -> str:
        if is_sqlite:
            return f"""json_extract(record.content, '$.turns[' || turn."index" || '].{path}')"""
        return f"""record.content::json #>> ARRAY['turns', turn."index"::text, '{"', '".join(path.split("."))}']"""

    connection.exec_driver_sql(
        'CREATE VIEW turns AS SELECT dialogue.run_id, dialogue.event_id, turn."index" AS turn, dialogue.phase, '
        "dialogue.stage, dialogue.step, dialogue.policy, turn.correct, turn.reward, turn.teacher, "
        "turn.leak_checked AS checked, turn.leak_found AS leaked, turn.detector, turn.planted, turn.hint_bits, "
        f"{text('attempt')} AS attempt, {text('verdict.parsed')} AS parsed, {text('hint.text')} AS hint, "
        f"COALESCE({text('hint.feedback')}, {text('hint.text')}) AS feedback "
        "FROM turn JOIN dialogue ON dialogue.id = turn.dialogue_id JOIN record ON record.dialogue_id = dialogue.id"
    )


def is_newest(connection: sa.Connection, name: str) -> bool:
    """Return whether the database has the newest revision."""
    return _known_revision(connection, name) == head_revision()


def check_readable(connection: sa.Connection, name: str) -> None:
    """Raise `StoreVersionError` unless the database has the newest revision."""
    revision, head = _known_revision(connection, name), head_revision()
    if revision != head:
        raise StoreVersionError(
            f"The database has version {revision or 0}, and this program reads version {head}.",
            value=name,
            fix="Run `rl2f reindex`, or start a server: both upgrade the database.",
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
