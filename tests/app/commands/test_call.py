"""`rl2f call`: endpoints as commands, with their arguments as options and their results as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import app
from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import audit_log
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config

CONFIG = parse_config(
    {"environment": {"type": "guess_number"}, "stages": [{"name": "rl", "method": "rl2f", "steps": 1}]}
)


@pytest.fixture
def first(workspace: Workspace, db: Database) -> Run:
    return Queue(db, workspace).add(CONFIG, name="first")


@pytest.fixture
def call(workspace: Workspace) -> Any:
    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(app, ["call", *arguments, "--workspace", str(workspace.root)])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return run


def test_an_endpoint_is_called_with_options_and_its_result_is_printed(call: Any, first: Run, db: Database) -> None:
    assert call("tag_run", "--run", str(first.id), "--tag", "b", "--tag", "a") == ["a", "b"]
    page = call("list_runs", "--search", "first", "--limit", "1")
    assert page["total"] == 1 and page["rows"][0]["name"] == "first" and page["rows"][0]["tags"] == ["a", "b"]
    assert audit_log.recent(db, 1)[0].caller == "command line"


def test_a_run_is_named_by_number_name_or_folder(call: Any, first: Run, workspace: Workspace) -> None:
    folder = workspace.folder(first.folder)
    assert folder.is_dir()
    for name in (str(first.id), "first", str(folder)):
        assert call("get_run", "--run", name)["run"]["id"] == first.id


def test_a_deleted_run_is_restored_by_its_number(call: Any, first: Run, workspace: Workspace, db: Database) -> None:
    queue, number = Queue(db, workspace), str(first.id)
    queue.stop(first.id or 0)
    assert call("delete_runs", "--run", number)["deleted"] == [first.id]
    assert call("restore_run", "--run", number)["name"] == "first"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "Unknown endpoint. Got: 'nonsense'. Known: abort_preflight"),
        (["get_run", "--run", "7"], "There is no run 7"),
        (["get_run", "--run", "unknown"], "The workspace has no such run"),
        (["list_runs", "--status", "done"], "Option --status: Input should be 'queued'"),
        (["list_runs", "--sort", "size"], "--sort"),
        (["start_export", "--run", "1", "--settings", "{"], "not JSON"),
    ],
)
def test_what_cannot_be_called_is_one_message(
    workspace: Workspace, db: Database, arguments: list[str], said: str
) -> None:
    end = [] if arguments == ["nonsense"] else ["--workspace", str(workspace.root)]
    done = CliRunner().invoke(app, ["call", *arguments, *end])
    assert done.exit_code == 2 and said in done.stderr, done.stderr


def test_help_has_the_descriptions_of_the_endpoint(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["call"], env={"COLUMNS": "200"}).stdout
    assert "launch_run" in listed and "Return one page of the runs" in listed
    shown = CliRunner().invoke(app, ["call", "list_runs", "--help"], env={"COLUMNS": "200"}).stdout
    assert "Return one page of the runs" in shown and "Run kind, e.g. `train`." in shown
