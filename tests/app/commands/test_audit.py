"""`rl2f audit`: entries newest first, as a table or JSON, filtered."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from app.cli import app
from jobs.db.engine import Database
from jobs.db.queries import audit_log, tokens
from jobs.workspace import Workspace


def test_entries_are_listed_newest_first_and_searched(workspace: Workspace, db: Database) -> None:
    def audit(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["audit", *arguments, "--workspace", str(workspace.root)])
        assert done.exit_code == 0, done.output
        return done.output

    assert "There are no entries." in audit()
    tokens.create(db, ["read"], "ci")
    audit_log.add(db, audit_log.entry("token ci", "launch_run", "preset=\x1b[2J", "refused", "It needs the scope run."))
    lines = audit().splitlines()
    assert "launch_run" in lines[1] and "create_token" in lines[2] and "name=ci, scopes=read" in lines[2]
    assert "\x1b" not in lines[1] and "refused" in lines[1]
    assert "launch_run" not in audit("--search", "create") and "create_token" not in audit("--limit", "1")
    (entry,) = json.loads(audit("--search", "token ci", "--json"))["entries"]
    assert (entry["action"], entry["outcome"]) == ("launch_run", "refused")
