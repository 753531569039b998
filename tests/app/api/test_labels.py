"""The label queue's JSON: blind until answered, put, undo, progress, the board, and hostile requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from replay_data import add_run, api_app, odd_events, training_events
from starlette.testclient import TestClient

from app.common.context import Context
from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.labels import label_queries
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

LATER, NEVER, LEAKS = (f"dialogue:train:rl2f/1/0/{i}" for i in (1, 2, 3))


@pytest.fixture
def client(context: Context) -> TestClient:
    """The routes alone, without pages and locks."""
    return TestClient(api_app(context), raise_server_exceptions=False)


@pytest.fixture
def run(context: Context) -> Run:
    return add_run(context.db, context.workspace, "small", training_events())


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One small run, number 1, without labels, for tests that change nothing."""
    workspace = Workspace(tmp_path_factory.mktemp("untouched")).create()
    db = Database(workspace.database_url())
    db.migrate()
    add_run(db, workspace, "small", training_events())
    yield TestClient(api_app(Context(workspace, db, Queue(db, workspace))), raise_server_exceptions=False)
    db.close()


def get(client: TestClient, path: str, status: int = 200, **params: Any) -> Any:
    answer = client.get(f"/api/labels{path}", params=params)
    assert answer.status_code == status, answer.text
    return answer.json()


def put(client: TestClient, run: Run, event: str = LEAKS, label: str = "leak", status: int = 200, **more: Any) -> Any:
    body = {"run": run.id, "event": event, "turn": 0, "labeller": "anna", "label": label, **more}
    answer = client.put("/api/labels", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def hint(client: TestClient, run: Run, event: str = LEAKS, **more: Any) -> Any:
    return get(client, "/hint", run=run.id, event=event, turn=0, labeller="anna", **more)


# -- blind -----------------------------------------------------------------------------------------------------------
def test_no_finding_is_sent_before_the_labeller_has_answered(client: TestClient, run: Run) -> None:
    put(client, run, labeller="bob")
    blind = hint(client, run)
    assert (blind["open"], blind["finding"], blind["others"], blind["read"], blind["mine"]) == (False, *[None] * 4)
    assert "exact" not in json.dumps(blind) and "bob" not in json.dumps(blind)
    queue = get(client, "/queue", run=run.id, labeller="anna")
    assert set(queue["items"][0]) == {"run", "event", "turn", "label", "level"}

    answered = put(client, run)
    assert answered["open"] and answered["mine"]["blind"] is True
    assert answered["finding"]["leaked"] and answered["finding"]["findings"][0]["start"] == 12
    assert [other["labeller"] for other in answered["others"]] == ["bob"]


def test_a_labeller_may_ask_to_see_the_finding_first(client: TestClient, run: Run) -> None:
    seen = hint(client, run, blind=False)
    assert seen["open"] and seen["finding"]["findings"][0]["tier"] == "exact" and seen["mine"] is None
    assert put(client, run, blind=False)["mine"]["blind"] is False


def test_a_redacted_hint_is_shown_as_written_and_does_not_betray_its_redaction(
    client: TestClient, context: Context
) -> None:
    odd = add_run(context.db, context.workspace, "odd", odd_events())
    blind = hint(client, odd, "dialogue:train:odd/redacted")
    assert blind["hint"] == "Say A B A B now." and "[…]" not in json.dumps(blind, ensure_ascii=False)
    assert put(client, odd, "dialogue:train:odd/redacted")["read"] == "Say […] now."


def test_a_hint_comes_with_the_dialogue_before_it_and_without_what_came_after(client: TestClient, run: Run) -> None:
    second = get(client, "/hint", run=run.id, event=NEVER, turn=1, labeller="anna")
    assert [(t["attempt"], t["hint"]) for t in second["before"]] == [
        ("no idea", "Correct so far: A ? ? ?"), ("<answer>B B B B</answer>", None)
    ]  # fmt: skip
    assert "4 letters" in second["problem"]["text"]
    assert "A B A B" not in json.dumps(hint(client, run, LATER)), "neither the answer nor the attempt that found it"


# -- answers ---------------------------------------------------------------------------------------------------------
def test_put_undo_and_progress(client: TestClient, run: Run) -> None:
    put(client, run, LATER, "no_leak")
    put(client, run, LEAKS, "leak", start=12, end=19, note="all of it")
    put(client, run, LEAKS, "unsure")
    assert get(client, "/progress", run=run.id, labeller="anna") == {"done": 2, "total": 24, "capped": False}
    first = client.post("/api/labels/undo", json={"labeller": "anna"}).json()
    assert (first["undone"]["event"], first["undone"]["label"]) == (LEAKS, "unsure")
    assert [(x["label"], x["start"], x["note"]) for x in first["labels"]] == [("leak", 12, "all of it")]
    client.post("/api/labels/undo", json={"labeller": "anna"})
    last = client.post("/api/labels/undo", json={"labeller": "anna"}).json()
    assert last["undone"]["event"] == LATER and last["labels"] == []
    assert client.post("/api/labels/undo", json={"labeller": "anna"}).json() == {"undone": None}
    assert get(client, "/progress", run=run.id, labeller="anna")["done"] == 0


def test_the_queue_follows_its_filters_and_goes_on(client: TestClient, run: Run) -> None:
    first = get(client, "/queue", run=run.id, labeller="anna", limit=5)
    assert (len(first["items"]), first["done"], first["total"]) == (5, 0, 24)
    last = first["items"][-1]
    at = {"at_run": last["run"], "at_event": last["event"], "at_turn": last["turn"]}
    more = get(client, "/queue", run=run.id, labeller="anna", limit=50, **at)
    assert len(more["items"]) == 19
    back = get(client, "/queue", run=run.id, labeller="anna", limit=50, way="before", **at)
    assert back["items"] == first["items"][:4]
    assert get(client, "/queue", which="flagged", labeller="anna")["total"] == 6
    audit = get(client, "/queue", which="audit", size=7, seed=5, labeller="anna", limit=50)
    assert audit["total"] == len(audit["items"]) == 7
    put(client, run, LATER, "no_leak")
    assert get(client, "/queue", run=run.id, labeller="anna", todo=True, limit=1)["items"][0]["event"] == NEVER
    assert get(client, "/queue", run=run.id, limit=1)["items"][0]["label"] is None, "without a name nothing is mine"


def test_facets_name_runs_environments_and_labellers(client: TestClient, run: Run) -> None:
    put(client, run)
    found = get(client, "/facets")
    assert found["environments"] == ["secret_code"] and found["labellers"] == ["anna"]
    assert [each["name"] for each in found["runs"]] == ["small"]


# -- the board -------------------------------------------------------------------------------------------------------
def test_the_board_counts_compares_and_names_the_disagreements(client: TestClient, run: Run) -> None:
    flagged = [f"dialogue:train:rl2f/{step}/{task}/3" for step in (1, 2) for task in (0, 1)]
    for event, anna, bob in zip(
        flagged, ["leak"] * 3 + ["no_leak"], ["leak", "leak", "no_leak", "no_leak"], strict=True
    ):
        put(client, run, event, anna)
        put(client, run, event, bob, labeller="bob")
    put(client, run, LATER, "leak")
    put(client, run, NEVER, "no_leak", blind=False)
    board = get(client, "/board", run=run.id)
    used = board["used"]
    assert (used["hints"], used["counted"], used["undecided"], used["unblind"], used["picked"]) == (6, 0, 1, 1, 4)
    assert board["labellers"][0] == {"name": "anna", "leak": 4, "no_leak": 2, "unsure": 0, "blind": 5, "n": 6}
    # four common hints, equal on three; anna 3 leaks of 4, bob 2 of 4: p_e = (3·2 + 1·2)/16 = 1/2, so κ = 1/2
    assert board["pairs"][0]["n"] == 4 and board["pairs"][0]["observed"]["value"] == 0.75
    assert board["pairs"][0]["kappa"]["value"] == pytest.approx(0.5)
    assert board["disputed"] == 3
    assert {(d["event"], d["between"], d["against"]) for d in board["disputes"]} == {
        (flagged[2], True, False), (flagged[3], False, True), (LATER, False, True)
    }  # fmt: skip


def test_the_board_of_nothing_has_no_numbers(client: TestClient, run: Run) -> None:
    board = get(client, "/board")
    assert (board["used"]["hints"], board["labellers"], board["pairs"], board["disputes"]) == (0, [], [], [])
    assert board["total"]["estimates"]["precision"]["value"] is None


# -- what is wrong ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"run": 99}, 404),
        ({"event": "dialogue:nowhere"}, 404),
        ({"turn": 9}, 404),
        ({"turn": 1}, 400),
        ({"turn": -1}, 400),
        ({"label": "<script>"}, 400),
        ({"labeller": ""}, 400),
        ({"labeller": "a\nb\0"}, 400),
        ({"start": 5, "end": 500}, 400),
        ({"start": 5}, 400),
        ({"start": "x", "end": 6}, 400),
        ({"note": "x" * 5000}, 400),
        ({"surprise": 1}, 400),
    ],
)
def test_a_label_that_cannot_be_is_refused_with_a_reason(
    untouched: TestClient, change: dict[str, Any], status: int
) -> None:
    body = {"run": 1, "event": LEAKS, "turn": 0, "labeller": "anna", "label": "leak", **change}
    answer = untouched.put("/api/labels", json=body)
    error = answer.json()["error"]
    assert answer.status_code == status and set(error) == {"what", "value", "known", "fix"} and error["what"]
    assert get(untouched, "/facets")["labellers"] == []


@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        ("/queue", {"which": "'; DROP TABLE turn; --"}, 400),
        ("/queue", {"run": "x"}, 400),
        ("/queue", {"size": 0, "which": "audit"}, 400),
        ("/queue", {"seed": 2**40}, 400),
        ("/queue", {"at_run": 1, "at_event": "nowhere"}, 404),
        ("/queue", {"labeller": "x" * 500}, 400),
        ("/queue", {"limit": 1000}, 400),
        ("/hint", {"run": 1, "event": "nowhere", "turn": 0}, 404),
        ("/hint", {"run": 77, "event": LEAKS, "turn": 0}, 404),
        ("/hint", {"run": 1, "event": LEAKS, "turn": 1}, 404),
        ("/hint", {"run": 1, "event": LEAKS, "turn": 99}, 404),
        ("/board", {"run": "1e9"}, 400),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(
    untouched: TestClient, path: str, params: dict[str, Any], status: int
) -> None:
    assert get(untouched, path, status, **params)["error"]["what"]


def test_hostile_notes_and_names_are_kept_as_they_are(client: TestClient, run: Run) -> None:
    hostile = '<img src=x onerror="alert(1)"> ![x](http://example.invalid)'
    found = put(client, run, note=hostile, labeller="<b>eve</b>")
    assert found["mine"]["note"] == hostile and found["mine"]["labeller"] == "<b>eve</b>"


def test_a_run_deleted_in_another_tab_is_said_to_be_gone(client: TestClient, run: Run, context: Context) -> None:
    put(client, run)
    runs.remove(context.db, run.id)  # type: ignore[arg-type]
    assert "no run" in get(client, "/hint", 404, run=run.id, event=LEAKS, turn=0)["error"]["what"]
    assert put(client, run, status=404)["error"]["what"]
    assert client.post("/api/labels/undo", json={"labeller": "anna"}).json() == {"undone": None}


def test_a_read_only_server_stores_no_label(client: TestClient, run: Run, context: Context) -> None:
    second = Database(context.workspace.database_url(), read_only=True)
    other = TestClient(api_app(Context(context.workspace, second, context.queue, read_only=True)))
    assert get(other, "/queue", run=run.id)["total"] == 24
    assert put(other, run, status=503)["error"]["what"].startswith("This server only reads")
    second.close()
    assert label_queries.annotators(context.db) == []
