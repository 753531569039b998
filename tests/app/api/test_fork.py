"""The routes of page Fork: what can be chosen, the job, its result; and what no browser can make it read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fork_data import event_of, make_run
from starlette.testclient import TestClient

from app.common.context import Context
from app.forms import run_form
from jobs.db.queries import runs
from jobs.ingest.ingester import ingest, reindex
from rl2f_core.config.loading import load_config
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute

ROUTES = ("fork", "dialogues")


@pytest.fixture
def place(context: Context) -> dict[str, Any]:
    """A run whose dialogues can be forked, and one of its turns."""
    make_run(context.workspace.folder("1-numbers"))
    reindex(context.db, context.workspace)
    run = runs.find(context.db, folder="1-numbers")
    assert run is not None
    return {"run": run.id, "dialogue": event_of(0), "turn": 0}


def asked(place: dict[str, Any], **changes: Any) -> dict[str, Any]:
    arms = [{"hint": "original"}, {"hint": "contentless"}, {"hint": "edited", "text": "Up."}, {"hint": "empty"}]
    return {**place, "checkpoints": ["base"], "arms": arms, "samples": 3, **changes}


def work(context: Context, run_id: int) -> None:
    """What a worker does."""
    row = runs.get(context.db, run_id)
    run_dir = RunDir.open(context.workspace.folder(row.folder))
    assert execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
    while ingest(context.db, context.workspace, row):
        pass


def test_a_fork_is_chosen_played_and_read(context: Context, client: TestClient, place: dict[str, Any]) -> None:
    shown = client.get("/api/fork/place", params={"run": place["run"], "dialogue": place["dialogue"]}).json()
    assert ([c["label"] for c in shown["checkpoints"]], shown["default"], shown["forks"]) == (["base"], "base", [])
    assert shown["hints"][:2] == ["original", "edited"] and "scripted" in shown["teachers"]
    before = context.workspace.folder("1-numbers").joinpath("events.jsonl").read_bytes()
    made = client.post("/api/fork", json=asked(place, attempts=1, then="contentless")).json()["run"]
    row = runs.get(context.db, made)
    config: Any = load_config(context.workspace.folder(row.folder) / "config.yaml")
    assert (row.kind, row.status, row.parent) == ("fork", "queued", place["run"])
    assert (config.source, config.turns, config.later_hints, config.checkpoints) == (
        "1-numbers",
        1,
        "contentless",
        {"base": None},
    )
    waiting = client.get(f"/api/fork/{made}").json()
    assert (waiting["report"], waiting["source"], waiting["turn"]) == (None, place["run"], 0)
    work(context, made)
    found = client.get(f"/api/fork/{made}").json()
    assert [r["arm"] for r in found["report"]["results"]] == ["original", "contentless", "edited", "empty"]
    assert found["report"]["done"] == found["report"]["total"] == 12
    assert found["report"]["hints"][0]["said"]["edited"]["text"] == "Up."
    listed = client.get("/api/dialogues", params={"run": made, "control": "edited", "phase": "fork"}).json()
    assert listed["total"] == 3
    original = {"run": place["run"], "dialogue": place["dialogue"]}
    (again,) = client.get("/api/fork/place", params=original).json()["forks"]
    assert (again["run"], again["turn"], again["arms"]) == (made, 0, ["original", "contentless", "edited", "empty"])
    runs.update(context.db, made, parent=None)  # as a fork from the command line, whose folder was read later
    assert client.get("/api/fork/place", params=original).json()["forks"] == [again]
    one = client.get("/api/dialogues/one", params=original).json()
    (measured,) = one["turns"][0]["hint"]["worth"]
    assert (measured["run"], measured["value"]) == (made, one["worth"])
    assert context.workspace.folder("1-numbers").joinpath("events.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "status", "what"),
    [
        ({"checkpoints": ["/etc"]}, 404, "no such checkpoint"),
        ({"checkpoints": ["2:rl@1"]}, 404, "no such checkpoint"),
        ({"arms": [{"hint": "edited"}]}, 422, "is required for arms"),
        ({"arms": [{"hint": "teacher", "teacher": {"type": "llm", "adapter": "/etc"}}]}, 422, "by its name"),
        ({"arms": [{"hint": "teacher", "teacher": "nobody"}]}, 422, "cannot be played"),
        ({"dialogue": "dialogue:other"}, 422, "no such dialogue"),
        ({"turn": 1}, 422, "is correct"),
        ({"run": 77}, 404, "no run 77"),
        ({"samples": 100_000}, 422, ""),
        ({"source": "/etc"}, 422, ""),
    ],
)
def test_what_cannot_be_forked_is_refused(
    changes: dict[str, Any], status: int, what: str, context: Context, client: TestClient, place: dict[str, Any]
) -> None:
    answer = client.post("/api/fork", json=asked(place, **changes))
    assert answer.status_code in (status, 400, 422) if status == 422 else answer.status_code == status
    assert what in answer.text
    assert len(runs.page(context.db).rows) == 1


def test_a_stranger_and_a_reading_server_start_nothing(
    context: Context, client: TestClient, make_client: Any, place: dict[str, Any]
) -> None:
    stranger = make_client(context, secret=False, routes=ROUTES)
    assert stranger.post("/api/fork", json=asked(place)).status_code == 403
    context.read_only = True
    assert "read-only" in client.post("/api/fork", json=asked(place)).text
    assert client.get("/api/fork/1").status_code == 404, "a run of another kind"
    assert len(runs.page(context.db).rows) == 1


def test_a_form_reads_only_the_workspaces_own_runs(context: Context, place: dict[str, Any], tmp_path: Path) -> None:
    outside = make_run(tmp_path / "outside")
    (context.workspace.runs / "link").symlink_to(outside.path)
    data = {
        "kind": "fork", "environment": "guess_number", "dialogue": event_of(0), "checkpoints": {"base": None},
        "source": "1-numbers",
    }  # fmt: skip
    assert run_form.check_data(data, context.workspace).ok
    for source in (str(outside.path), "../outside", "link", "..", ".", "", "1-numbers/", "other"):
        checked = run_form.check_data({**data, "source": source}, context.workspace)
        assert not checked.ok and [error.dotted for error in checked.errors] == ["source"], source
    adapters = {**data, "checkpoints": {"x": str(outside.path)}}
    assert [error.dotted for error in run_form.check_data(adapters, context.workspace).errors] == ["checkpoints.x"]
