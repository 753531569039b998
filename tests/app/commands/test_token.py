"""`rl2f token`: tokens are created, listed and revoked, also while a server runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from app.cli import app
from jobs.db.engine import Database
from jobs.db.queries import tokens
from jobs.workspace import Workspace

Rl2f = Callable[..., Result]


@pytest.fixture
def rl2f(workspace: Workspace) -> Rl2f:
    """Run `rl2f token ARGUMENTS` over the test's workspace."""
    return lambda *args: CliRunner().invoke(app, ["token", *args, "--workspace", str(workspace.root)])


def test_a_new_token_is_printed_once_and_only_its_hash_is_stored(
    rl2f: Rl2f, workspace: Workspace, db: Database
) -> None:
    made = rl2f("new", "--scope", "run", "--scope", "label", "--name", "ci")
    token = made.stdout.strip()
    assert made.exit_code == 0 and token.startswith("rl2f_") and len(token) > 40
    assert "read run label" in made.stderr and token not in made.stderr
    assert (row := tokens.find(db, token)) is not None and (row.name, row.scopes) == ("ci", "read run label")
    files = [workspace.database, Path(f"{workspace.database}-wal")]
    assert not any(token.encode() in file.read_bytes() for file in files if file.exists())
    assert token not in rl2f("list").output


def test_the_list_shows_name_scopes_and_last_use(rl2f: Rl2f, db: Database) -> None:
    assert "rl2f token new" in rl2f("list").stderr
    token = rl2f("new", "--scope", "read").stdout.strip()
    listed = rl2f("list").stdout
    assert "token-1" in listed and "read" in listed and "never" in listed
    tokens.find(db, token)
    assert "never" not in rl2f("list").stdout


@pytest.mark.parametrize("by", ["name", "id"])
def test_a_revoked_token_is_unknown(rl2f: Rl2f, db: Database, by: str) -> None:
    token = rl2f("new", "--scope", "read", "--name", "ci").stdout.strip()
    (row,) = tokens.list_all(db)
    assert rl2f("revoke", row.name if by == "name" else str(row.id)).exit_code == 0
    assert tokens.find(db, token) is None and tokens.list_all(db) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "--scope", "admin"], "Known: read, run, label"),
        (["new"], "--scope"),
        (["new", "--scope", "read", "--name", "7"], "not a digit"),
        (["new", "--scope", "read", "--name", "a\nb"], "printable"),
        (["new", "--scope", "read", "--name", "taken"], "rl2f token revoke taken"),
        (["revoke", "nobody"], "Known: taken"),
    ],
)
def test_invalid_input_names_the_fix(rl2f: Rl2f, arguments: list[str], message: str) -> None:
    rl2f("new", "--scope", "read", "--name", "taken")
    result = rl2f(*arguments)
    assert result.exit_code == 2 and message in result.output


def test_the_last_use_is_written_at_most_once_a_minute(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    _, token = tokens.create(db, ["read"])
    uses = []
    for now in (1000.0, 1030.0, 1061.0):
        monkeypatch.setattr(tokens.time, "time", lambda now=now: now)
        tokens.find(db, token)
        uses.append(tokens.list_all(db)[0].last_used)
    assert uses == [1000.0, 1000.0, 1061.0]


def test_a_read_only_server_accepts_a_token_without_recording_its_use(db: Database) -> None:
    _, token = tokens.create(db, ["read"])
    reader = Database(str(db.url), read_only=True)
    assert tokens.find(reader, token) is not None and tokens.list_all(db)[0].last_used is None
    reader.close()


def test_names_of_revoked_tokens_are_free_again(db: Database) -> None:
    names = [tokens.create(db, ["read"])[0].name for _ in range(2)]
    tokens.revoke(db, "token-1")
    assert [*names, tokens.create(db, ["read"])[0].name] == ["token-1", "token-2", "token-1"]
