"""The audit log: which calls of endpoints are recorded, as whose, and with what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from jobs_helpers import counting, counting_kinds
from json_endpoints import JsonEndpoints
from pydantic import Field

from app.common.context import Context
from app.endpoints.endpoint import endpoint
from app.endpoints.recorder import CALLER, summarize_call
from app.endpoints.studio import Studio
from jobs.db.engine import Database
from jobs.db.errors import StoreReadOnlyError
from jobs.db.models import AuditEntry
from jobs.db.queries import audit_log, tokens
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.errors import RL2FError

HOOK = "https://hooks.example/T0/B0/XyZ"


@pytest.fixture
def studio(context: Context) -> Any:
    """All endpoints of an empty workspace."""
    return JsonEndpoints(Studio(context))


class Group:
    """A stream, and an endpoint with arguments of many types."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @endpoint("run")
    def stream(self, chat: int) -> Iterator[str]:
        """Yield two texts, and fail for a negative chat."""
        yield "a"
        yield "b"
        if chat < 0:
            raise RL2FError("There is no such chat.", value=HOOK)

    @endpoint("label")
    def take(self, number: Annotated[int, Field(ge=0)], text: str = "", settings: Any = None) -> int:
        """Return the number, or fail."""
        return 12 // number


def log(studio: Studio) -> list[tuple[str, str, str, str, str]]:
    """Caller, action, arguments, outcome and detail of all entries, oldest first."""
    rows = reversed(studio.audit.list_actions())
    return [(r["caller"], r["action"], r["arguments"], r["outcome"], r["detail"]) for r in rows]


def test_a_launch_is_recorded_with_its_run_and_queries_are_not(studio: Studio) -> None:
    studio.runs.queue_status()
    with counting_kinds():
        run = studio.launch.launch_run(yaml=(yaml := counting()))["run"]
    studio.runs.list_runs()
    assert log(studio) == [("browser", "launch_run", f"yaml={len(yaml)} characters", "ok", f"run {run}")]


def test_a_failure_is_recorded_with_its_reason_and_without_given_values(studio: Studio) -> None:
    with pytest.raises(RL2FError):
        studio.run.stop_run(77)
    with pytest.raises(RL2FError, match="webhok"):
        studio.launch.launch_run(preset="quickstart", overrides={"alerts.webhok": HOOK})
    with pytest.raises(RL2FError):
        studio.runs.pause_queue(HOOK)  # type: ignore[call-arg]
    with pytest.raises(RL2FError, match="private"):
        studio.runs.import_rollouts("a.jsonl", '{"messages": [{"role": "private"}]}')
    stop, launch, pause, rows = log(studio)
    assert rows[3] == "failed" and "role" in rows[4]
    assert stop[1:4] == ("stop_run", "run=77", "failed") and "no run" in stop[4].lower()
    assert launch[2:4] == ("preset=quickstart, overrides={alerts.webhok}", "failed") and "alerts.webhok" in launch[4]
    assert pause[1:4] == ("pause_queue", "", "failed") and "31 characters" in pause[4]
    assert HOOK not in str(log(studio))


def test_an_unexpected_error_is_recorded_by_its_type_only(context: Context, studio: Studio) -> None:
    with pytest.raises(ZeroDivisionError):
        Group(context).take(0, text=HOOK)
    assert log(studio) == [("browser", "take", "number=0, text=31 characters", "failed", "ZeroDivisionError")]


@pytest.mark.parametrize(
    ("value", "summary"),
    [
        ("rl2f@24", "rl2f@24"),
        ("x" * 31, "x" * 31),
        ("x" * 32, "32 characters"),
        ("rl2f_" + "x" * 43, "48 characters"),
        ("a note", "6 characters"),
        (HOOK, "31 characters"),
        ("a\x1b[2J", "5 characters"),
        ({"stages.0.steps": "secret", HOOK: 1}, "{stages.0.steps, 31 characters}"),
        ([3, 4], "[3, 4]"),
        (["secret", "other"], "2 items"),
        (0.5, "0.5"),
        (True, "True"),
        (object(), "object"),
    ],
)
def test_arguments_are_summarized_without_texts_and_values_of_settings(value: object, summary: str) -> None:
    assert summarize_call({"number": 3, "settings": value}) == f"number=3, settings={summary}"


def test_a_stream_is_recorded_once_at_its_end_for_the_caller_that_started_it(context: Context, studio: Studio) -> None:
    token = CALLER.set("token nightly")
    stream = Group(context).stream(1)
    assert next(stream) == "a" and log(studio) == []
    CALLER.reset(token)
    assert list(stream) == ["b"]
    with pytest.raises(RL2FError):
        list(Group(context).stream(-1))
    abandoned = Group(context).stream(3)
    next(abandoned)
    abandoned.close()
    assert log(studio) == [
        ("token nightly", "stream", "chat=1", "ok", ""),
        ("browser", "stream", "chat=-1", "failed", "There is no such chat. Got: '31 characters'."),
        ("browser", "stream", "chat=3", "ok", ""),
    ]


def test_creating_and_revoking_a_token_is_recorded_without_the_token(studio: Studio, db: Database) -> None:
    _, token = tokens.create(db, ["read", "run"], "nightly")
    tokens.revoke(db, "nightly")
    assert log(studio) == [
        ("command line", "create_token", "name=nightly, scopes=read run", "ok", ""),
        ("command line", "revoke_token", "name=nightly", "ok", ""),
    ]
    assert token not in str(log(studio))


def test_the_log_is_searched_in_every_column_newest_first_and_limited(studio: Studio, db: Database) -> None:
    for i in range(3):
        audit_log.add(db, audit_log.entry("token ci", "stop_run", f"run_id={i}", "refused" if i == 1 else "ok"))
    found = [row["arguments"] for row in studio.audit.list_actions(search="STOP", limit=2)]
    assert found == ["run_id=2", "run_id=1"]
    assert [row["arguments"] for row in studio.audit.list_actions(search="refused")] == ["run_id=1"]
    assert studio.audit.list_actions(search="%") == []


def test_old_entries_are_pruned(studio: Studio, db: Database) -> None:
    with db.write() as session:
        session.add(AuditEntry(time=1000.0, caller="browser", action="stop_run", outcome="ok"))
    audit_log.add(db, audit_log.entry("browser", "start_run"))
    assert audit_log.prune(db, before=2000.0) == 1
    assert [entry[1] for entry in log(studio)] == ["start_run"]


def test_a_read_only_server_refuses_the_action_and_writes_no_entry(workspace: Workspace, db: Database) -> None:
    reader = Database(str(db.url), read_only=True)
    studio = JsonEndpoints(Studio(Context(workspace, reader, Queue(reader, workspace), read_only=True)))
    with pytest.raises(StoreReadOnlyError):
        studio.runs.pause_queue()
    assert log(studio) == []
    reader.close()


def test_an_action_stays_valid_if_the_log_cannot_be_written(
    context: Context, studio: Studio, caplog: pytest.LogCaptureFixture
) -> None:
    locked = Database(str(context.db.url), timeout=0.05)
    with context.db.write():  # another connection has the write lock
        thread = threading.Thread(target=Group(Context(context.workspace, locked, context.queue)).take, args=(3,))
        thread.start()
        thread.join()
    locked.close()
    assert "The audit log misses an entry: browser take" in caplog.text and log(studio) == []
