"""The dialogue browser's JSON: lists, deep links, steps, the privileged half, tokens, notes, and hostile requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replay_data import HOSTILE, add_run, api_app, odd_events, training_events
from starlette.testclient import TestClient

from app.common.context import Context
from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.labels import label_queries
from jobs.labels.label_queries import LabelAnswer
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

LEAKS = "dialogue:train:rl2f/1/0/3"


@pytest.fixture
def client(context: Context) -> TestClient:
    """The routes alone, without pages and locks."""
    return TestClient(api_app(context), raise_server_exceptions=False)


@pytest.fixture
def run(context: Context) -> Run:
    return add_run(context.db, context.workspace, "small", training_events())


@pytest.fixture
def odd(context: Context) -> Run:
    return add_run(context.db, context.workspace, "odd", odd_events())


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One small run, number 1, with one label, for tests that change nothing."""
    workspace = Workspace(tmp_path_factory.mktemp("read-only")).create()
    db = Database(workspace.database_url())
    db.migrate()
    run = add_run(db, workspace, "small", training_events())
    label_queries.put(db, run.id, LEAKS, 0, "anna", LabelAnswer("leak"))  # type: ignore[arg-type]
    yield TestClient(api_app(Context(workspace, db, Queue(db, workspace))), raise_server_exceptions=False)
    db.close()


def get(client: TestClient, path: str, status: int = 200, **params: Any) -> Any:
    answer = client.get(f"/api/dialogues{path}", params={k: v for k, v in params.items() if v is not None})
    assert answer.status_code == status, answer.text
    return answer.json()


def events(page: dict[str, Any]) -> list[str]:
    return [row["event"].removeprefix("dialogue:train:rl2f/") for row in page["rows"]]


# -- lists -----------------------------------------------------------------------------------------------------------
def test_a_line_says_outcomes_reward_advantage_leak_and_labels(client: TestClient, run: Run, context: Context) -> None:
    label_queries.put(context.db, run.id, LEAKS, 0, "anna", LabelAnswer("leak"))  # type: ignore[arg-type]
    page = get(client, "", run=run.id)
    row = page["rows"][3]
    assert (row["event"], row["outcomes"], row["leak"], row["labels"], row["length"]) == (LEAKS, "01", 2, 1, 2)
    assert row["reward"] == pytest.approx(0.8) and row["advantage"] == pytest.approx(0.375)
    assert (page["total"], page["first"], page["before"], page["after"]) == (24, 1, None, None)


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"solved": "1"}, ["1/0/0", "1/1/0", "2/0/0", "2/1/0", "3/0/0", "3/1/0"]),
        ({"solved": "never", "step_from": 2, "step_to": 2}, ["2/0/2", "2/1/2"]),
        ({"leak": 2, "step_to": 1}, ["1/0/3", "1/1/3"]),
        ({"reward_from": 0.85, "step_from": 3}, ["3/0/0", "3/1/0"]),
        ({"labelled": "true"}, ["1/0/3"]),
        ({"group": "rl2f/3/1"}, ["3/1/0", "3/1/1", "3/1/2", "3/1/3"]),
        ({"search": "no idea", "step_from": 3}, ["3/0/2", "3/1/2"]),
        ({"search": "write that", "step_to": 1}, ["1/0/3", "1/1/3"]),
        ({"task": "secret_code/train/rl2f/1/0", "solved": "2"}, ["1/0/1", "1/0/3"]),
        ({"environment": "nowhere"}, []),
        ({"error": "true"}, []),
    ],
)
def test_filters_are_the_servers(read_only: TestClient, params: dict[str, Any], wanted: list[str]) -> None:
    page = get(read_only, "", run=1, **params)
    assert events(page) == wanted and page["total"] == len(wanted)


def test_pages_are_of_fifty_and_a_deep_link_finds_its_page(client: TestClient, context: Context) -> None:
    many = [event for copy in range(6) for event in _renamed(training_events(), copy)]
    run = add_run(context.db, context.workspace, "many", many)
    first = get(client, "", run=run.id)
    assert len(first["rows"]) == 50 and first["total"] == 144
    second = get(client, "", run=run.id, cursor=first["after"])
    assert second["first"] == 51 and not set(events(first)) & set(events(second))
    wanted = second["rows"][20]["event"]
    found = get(client, "/locate", run=run.id, dialogue=wanted, of=run.id)
    assert events(found) == events(second) and found["first"] == 51
    flagged = get(client, "/locate", run=run.id, dialogue=_flagged(second), of=run.id, leak=2)
    assert flagged["total"] == 36 and all(row["leak"] == 2 for row in flagged["rows"])


def _renamed(made: list[Any], copy: int) -> list[Any]:
    return [e.model_copy(update={"id": f"{e.id}/{copy}", "step": e.step + 3 * copy}) for e in made]


def _flagged(page: dict[str, Any]) -> str:
    return next(row["event"] for row in page["rows"] if row["leak"] == 2)


def test_next_and_previous_step_go_to_its_first_dialogue(client: TestClient, run: Run) -> None:
    def move(event: str, to: str, **more: Any) -> str | None:
        row = get(client, "/move", run=run.id, dialogue=f"dialogue:train:rl2f/{event}", of=run.id, to=to, **more)["row"]
        return row and row["event"].removeprefix("dialogue:train:rl2f/")

    assert move("1/1/2", "next_step") == "2/0/0"
    assert move("3/1/2", "next_step") is None
    assert move("3/1/2", "previous_step") == "2/0/0"
    assert move("1/1/2", "previous_step") is None
    assert move("1/0/3", "next_step", leak=2) == "2/0/3", "within the filter"
    assert (move("2/0/1", "first"), move("2/0/1", "last")) == ("1/0/0", "3/1/3")


def test_facets_name_what_there_is(client: TestClient, run: Run, odd: Run) -> None:
    found = get(client, "/facets", run=odd.id)
    assert found["facets"]["phases"] == ["evaluation", "train"] and found["facets"]["controls"] == ["contentless"]
    assert {listed["id"]: listed["name"] for listed in found["runs"]} == {run.id: "small", odd.id: "odd"}
    assert get(client, "/facets")["facets"]["steps"] == [0, 4]


# -- one dialogue ----------------------------------------------------------------------------------------------------
def test_a_dialogue_comes_turn_by_turn_as_the_student_read_it(client: TestClient, run: Run) -> None:
    found = get(client, "/one", run=run.id, dialogue=LEAKS)
    assert found["problem"]["rendered"] and "4 letters" in found["problem"]["text"]
    assert "<answer>" in found["problem"]["system"]
    first, last = found["turns"]
    assert (first["sign"], first["parsed"], first["tokens"]) == ("0", "A A A A", 4)
    assert [(t["name"], t["score"], t["weight"]) for t in first["terms"]] == [("correct", 0, 1), ("format", -1, 0.1)]
    assert first["hint"]["findings"] == [
        {"source": "run", "tier": "exact", "start": 12, "end": 19, "share": 1, "evidence": "A B A B", "action": "flag"}
    ]  # fmt: skip
    assert first["hint"]["text"][12:19] == "A B A B"
    assert first["changes"] is None
    assert [piece for piece in last["changes"] if piece[0] != "="] == [["-", "A"], ["+", "B"], ["-", "A"], ["+", "B"]]
    assert [(s["index"], s["solved_at"]) for s in found["siblings"]] == [(0, 1), (1, 2), (2, None), (3, 2)]


def test_a_changed_hint_comes_as_written_and_as_read(client: TestClient, odd: Run) -> None:
    redacted = get(client, "/one", run=odd.id, dialogue="dialogue:train:odd/redacted")["turns"][0]["hint"]
    assert (redacted["text"], redacted["read"]) == ("Say A B A B now.", "Say […] now.")
    assert redacted["findings"][0]["action"] == "redact"
    dropped = get(client, "/one", run=odd.id, dialogue="dialogue:train:odd/dropped")["turns"][0]["hint"]
    assert (dropped["text"], dropped["read"]) == ("Say A B A B now.", "")


def test_the_privileged_half_is_sent_only_when_asked_for(client: TestClient, run: Run) -> None:
    never = "dialogue:train:rl2f/1/0/2"
    for path in ("/one", "/group"):
        sent = get(client, path, run=run.id, dialogue=never)
        if path == "/group":
            sent = {"dialogues": [each for each in sent["dialogues"] if each["event"] == never]}
        assert "A B A B" not in json.dumps(sent), "neither the answer nor the verifier's words that name it"
    asked = get(client, "/privileged", run=run.id, dialogue=never)
    assert asked["answer"] == "A B A B" and asked["privileged"] == {"code": "A B A B"}
    assert asked["details"] == ["1 of 4 places are right; the code is A B A B"] * 3


def test_the_group_comes_side_by_side(client: TestClient, run: Run) -> None:
    found = get(client, "/group", run=run.id, dialogue=LEAKS)["dialogues"]
    assert [d["event"][-1] for d in found] == ["0", "1", "2", "3"]
    assert [len(d["turns"]) for d in found] == [1, 2, 3, 2]


def test_hostile_words_come_back_as_they_were(client: TestClient, odd: Run) -> None:
    answer = client.get("/api/dialogues/one", params={"run": odd.id, "dialogue": "dialogue:train:odd/hostile"})
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()["turns"][0]["attempt"] == HOSTILE.replace("\0", "\ufffd")
    assert len(get(client, "/one", run=odd.id, dialogue="dialogue:train:odd/long")["turns"][1]["attempt"]) == 100_001
    empty = get(client, "/one", run=odd.id, dialogue="dialogue:train:odd/empty")
    assert empty["turns"] == [] and empty["error"] == "no room"


def test_a_problem_whose_environment_is_not_known_comes_as_data(client: TestClient, context: Context, run: Run) -> None:
    text = runs.get(context.db, run.id).config.replace("type: secret_code", "type: gone")  # type: ignore[arg-type]
    runs.update(context.db, run.id, config=text)  # type: ignore[arg-type]
    found = get(client, "/one", run=run.id, dialogue=LEAKS)["problem"]
    assert not found["rendered"] and json.loads(found["text"]) == {"letters": ["A", "B"], "length": 4}
    asked = get(client, "/privileged", run=run.id, dialogue=LEAKS)
    assert asked["answer"] is None and asked["privileged"] == {"code": "A B A B"}


# -- tokens ----------------------------------------------------------------------------------------------------------
def test_tokens_come_as_ids_where_there_is_no_tokenizer(client: TestClient, run: Run) -> None:
    found = get(client, "/tokens", run=run.id, dialogue=LEAKS, turn=0)
    assert [t["id"] for t in found["tokens"]] == [36, 390, 38, 2]
    assert [t["logprob"] for t in found["tokens"]] == pytest.approx([-0.1, -2.5, -0.01, -0.2])
    assert {t["text"] for t in found["tokens"]} == {None}


@pytest.mark.slow
def test_tokens_come_as_text_by_the_runs_own_tokenizer(client: TestClient, context: Context, tiny: Path) -> None:
    from tokenizers import Tokenizer

    text = "Höhe 😀 12"
    ids = tuple(Tokenizer.from_file(str(tiny / "tokenizer.json")).encode(text, add_special_tokens=False).ids)
    made = training_events()[:1]
    turn = made[0].dialogue.turns[0].model_copy(update={"token_ids": (*ids, 2), "logprobs": ()})  # type: ignore[union-attr]
    dialogue = made[0].dialogue.model_copy(update={"turns": (turn,)})  # type: ignore[union-attr]
    run = add_run(
        context.db,
        context.workspace,
        "tiny",
        [made[0].model_copy(update={"dialogue": dialogue})],
        model={"name": str(tiny)},
    )
    tokens = get(client, "/tokens", run=run.id, dialogue=made[0].id, turn=0)["tokens"]
    assert "".join(t["text"] for t in tokens[:-1]) == text, "characters of several tokens are whole"
    assert tokens[-1]["text"].startswith("<") and tokens[-1]["logprob"] is None
    assert len(tokens) == len(ids) + 1


def test_a_broken_tokenizer_file_falls_back_to_ids(
    client: TestClient, context: Context, tiny: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "tokenizer.json").write_text("{}")
    run = add_run(context.db, context.workspace, "broken", training_events()[:1], model={"name": str(folder)})
    tokens = get(client, "/tokens", run=run.id, dialogue="dialogue:train:rl2f/1/0/0", turn=0)["tokens"]
    assert [t["text"] for t in tokens] == [None] * 4


# -- notes -----------------------------------------------------------------------------------------------------------
def test_notes_are_kept_on_a_dialogue_or_a_turn_and_deleted(client: TestClient, run: Run) -> None:
    body = {"run": run.id, "dialogue": LEAKS, "text": "look <b>here</b>", "author": "anna"}
    added = client.post("/api/dialogues/notes", json=body).json()
    client.post("/api/dialogues/notes", json={**body, "turn": 1, "text": "and here"})
    found = get(client, "/one", run=run.id, dialogue=LEAKS)["notes"]
    assert [(n["turn"], n["text"]) for n in found] == [(None, "look <b>here</b>"), (1, "and here")]
    assert client.delete(f"/api/dialogues/notes/{added['id']}").status_code == 200
    assert client.delete(f"/api/dialogues/notes/{added['id']}").status_code == 404
    assert len(get(client, "/one", run=run.id, dialogue=LEAKS)["notes"]) == 1


@pytest.mark.parametrize(
    ("change", "status"),
    [({"text": " "}, 400), ({"turn": 2}, 400), ({"dialogue": "none"}, 404), ({"run": 99}, 404), ({"more": 1}, 400)],
)
def test_a_note_that_cannot_be_is_refused(client: TestClient, run: Run, change: dict[str, Any], status: int) -> None:
    body = {"run": run.id, "dialogue": LEAKS, "text": "x", **change}
    answer = client.post("/api/dialogues/notes", json=body)
    assert answer.status_code == status and answer.json()["error"]["what"]


# -- what is wrong ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        ("/one", {"run": 99, "dialogue": LEAKS}, 404),
        ("/one", {"run": 1, "dialogue": "nothing"}, 404),
        ("/one", {"run": "../../etc/passwd", "dialogue": LEAKS}, 400),
        ("/one", {"run": 10**30, "dialogue": LEAKS}, 400),
        ("/one", {"run": -1, "dialogue": LEAKS}, 400),
        ("/one", {"run": 1}, 400),
        ("/group", {"run": 1, "dialogue": "nothing"}, 404),
        ("/privileged", {"run": 1, "dialogue": "nothing"}, 404),
        ("/tokens", {"run": 1, "dialogue": LEAKS, "turn": 5}, 404),
        ("/locate", {"run": 1, "dialogue": "nothing", "of": 1}, 404),
        ("/facets", {"run": 99}, 404),
        ("/version", {"run": 99}, 404),
        ("", {"run": 1, "cursor": "x"}, 400),
        ("", {"run": 1, "solved": "1; DROP TABLE dialogue"}, 400),
        ("", {"run": 1, "reward_from": "nan"}, 400),
        ("", {"run": 1, "reward_to": "inf"}, 400),
        ("", {"run": 1, "leak": 7}, 400),
        ("", {"run": 1, "search": "x" * 2000}, 400),
        ("/move", {"run": 1, "dialogue": LEAKS, "of": 1, "to": "nowhere"}, 400),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(
    read_only: TestClient, path: str, params: dict[str, Any], status: int
) -> None:
    error = get(read_only, path, status, **params)["error"]
    assert set(error) == {"what", "value", "known", "fix"} and error["what"]


@pytest.mark.parametrize("search", ['"', "'; --", "AND OR NOT NEAR(", "\0", "*", "a" * 300, "😀", "%_\\", "\ud800"])
def test_any_words_may_be_searched_for(read_only: TestClient, search: str) -> None:
    text = search.encode("utf-8", "replace").decode()
    assert get(read_only, "", run=1, search=text)["total"] is not None


def test_reading_needs_no_secret_and_changing_does(context: Context, run: Run, make_client: Any) -> None:
    stranger = make_client(context, secret=False)
    page = stranger.get("/api/dialogues", params={"run": run.id})
    assert page.json()["total"] == 24 and page.headers["x-content-type-options"] == "nosniff"
    body = {"run": run.id, "dialogue": LEAKS, "text": "x"}
    assert stranger.post("/api/dialogues/notes", json=body).status_code == 403
    assert stranger.delete("/api/dialogues/notes/1").status_code == 403
    labelled = {"run": run.id, "event": LEAKS, "turn": 0, "labeller": "eve", "label": "leak"}
    assert stranger.put("/api/labels", json=labelled).status_code == 403
    assert label_queries.annotators(context.db) == []
