"""API tokens of programs. The database contains their hashes; `create` returns the token once."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable

from sqlalchemy import select, update
from sqlmodel import col

from jobs.db.engine import Database
from jobs.db.errors import NotFoundError, StoreError
from jobs.db.models import ApiToken
from jobs.db.queries import audit_log
from rl2f_core.errors import DataError, rl2f_command

PREFIX = "rl2f_"
MAX_NAME_CHARS = 100
USE_INTERVAL_SECONDS = 60.0
"""Minimum time between two updates of a token's last use."""


class UnknownTokenError(NotFoundError):
    """The token does not exist or was revoked."""


def create(db: Database, scopes: Iterable[str], name: str = "") -> tuple[ApiToken, str]:
    """Create a token; returns its row, and the token, which cannot be read later.

    Args:
        db: The workspace's database.
        scopes: What the token permits, e.g. `["read", "run"]`.
        name: Unique name; by default `token-N`.

    Raises `DataError` if the name is invalid or in use.
    """
    if name and (name.isdigit() or name.strip() != name or not name.isprintable() or len(name) > MAX_NAME_CHARS):
        raise DataError(
            "The name of the token is invalid.",
            value=name,
            fix=f"Use up to {MAX_NAME_CHARS} printable characters, at least one of them not a digit.",
        )
    token = PREFIX + secrets.token_urlsafe(32)
    with db.write() as session:
        used = set(session.scalars(select(col(ApiToken.name))))
        if name in used:
            raise DataError(
                "Another token has this name.",
                value=name,
                fix=f"Choose another name, or revoke the other token: {rl2f_command('token', 'revoke', name)}",
            )
        name = name or next(n for i in range(1, len(used) + 2) if (n := f"token-{i}") not in used)
        row = ApiToken(name=name, digest=_digest(token), scopes=" ".join(scopes), created=time.time())
        summary = f"name={name}, scopes={row.scopes}"
        session.add_all([row, audit_log.entry(audit_log.COMMAND_LINE, "create_token", summary)])
    return row, token


def list_all(db: Database) -> list[ApiToken]:
    """Return all tokens, oldest first."""
    return db.fetch_all(select(ApiToken).order_by(col(ApiToken.id)))


def revoke(db: Database, name: str) -> ApiToken:
    """Delete the token of a name or id. Raises `UnknownTokenError`."""
    with db.write() as session:
        rows = list(session.scalars(select(ApiToken)))
        row = next((row for row in rows if name in (row.name, str(row.id))), None)
        if row is None:
            known = [row.name for row in rows]
            raise UnknownTokenError("There is no such token.", value=name, known=known, fix="See `rl2f token list`.")
        session.delete(row)
        session.add(audit_log.entry(audit_log.COMMAND_LINE, "revoke_token", f"name={row.name}"))
    return row


def find(db: Database, token: str) -> ApiToken | None:
    """Return the row of a token and record its use; None if the token is unknown or was revoked."""
    digest = _digest(token)
    row = next((row for row in list_all(db) if hmac.compare_digest(row.digest, digest)), None)
    if row is not None:
        _record_use(db, row)
    return row


def _record_use(db: Database, row: ApiToken) -> None:
    now = time.time()
    if db.read_only or now - (row.last_used or 0.0) < USE_INTERVAL_SECONDS:
        return
    # a busy database must not refuse a valid token
    with contextlib.suppress(StoreError), db.write() as session:
        session.execute(update(ApiToken).where(col(ApiToken.id) == row.id).values(last_used=now))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
