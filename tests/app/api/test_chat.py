"""The routes of the chat: what they refuse, what they hide, and a stream that a tab can follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_helpers import RUN_YAML, SAMPLING, add_run
from starlette.testclient import TestClient

from app.common.context import Context
from jobs.chat.checkpoints import ChatSettings
from jobs.db.engine import Database
from jobs.db.queries import chats
from jobs.workspace import Workspace

API = "/api/chat"
ROUTES = ("chat",)


@pytest.fixture
def run(db: Database, workspace: Workspace, tiny: Path) -> int:
    return add_run(db, workspace, tiny, {"rl@3": 1}, RUN_YAML.replace("MODEL", str(tiny)))


@pytest.fixture
def new(client: TestClient, tiny: Path, run: int) -> Callable[..., int]:
    """`new(source=…)`: the id of a new conversation."""

    def make(**more: Any) -> int:
        data = {"model": str(tiny), "device": "cpu", "sampling": {**SAMPLING, "max_new_tokens": 6}, **more}
        answer = client.post(f"{API}/chats", json={"settings": data})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["chat"]["id"])

    return make


def told(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"what", "value", "known", "fix"}
    return str(error["what"])


def test_the_options_name_models_checkpoints_presets_and_limits(client: TestClient, run: int, tiny: Path) -> None:
    found = client.get(f"{API}/options").json()
    assert str(tiny) in found["models"] and "quickstart" in found["presets"]
    assert [(r["run"], r["model"], r["checkpoints"]) for r in found["runs"]] == [(run, str(tiny), ["rl@3"])]
    assert found["sampling"]["temperature"]["maximum"] == 10 and found["max_text"] == 20_000
    assert found["model"]["running"] is False


def test_a_message_is_answered_and_a_tab_follows_it_to_its_end(client: TestClient, new: Any, run: int) -> None:
    chat = new(checkpoints=["base", f"{run}:rl@3"])
    assert client.post(f"{API}/chats/{chat}/send", json={"text": "Hi."}).status_code == 200
    with client.stream("GET", f"{API}/chats/{chat}/stream") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
    assert events[-1] == {"type": "end"}
    data = client.get(f"{API}/chats/{chat}").json()
    assert [m["status"] for m in data["messages"]] == ["done"] * 3 and data["live"] is False
    for message in data["messages"][1:]:
        written = "".join(e["text"] for e in events if e["type"] in ("text", "delta") and e["message"] == message["id"])
        assert message["content"].startswith(written)
        assert "token_ids" not in message["detail"] and message["detail"]["tokens"] > 0
    with client.stream("GET", f"{API}/chats/{chat}/stream") as stream:
        assert [line for line in stream.iter_lines() if line] == ['data: {"type": "end"}']
    text = client.get(f"{API}/chats/{chat}/export").text
    assert [json.loads(line)["checkpoint"] for line in text.splitlines()] == ["base", f"{run}:rl@3"]


def test_the_privileged_half_of_a_task_is_sent_only_when_asked_for(client: TestClient, new: Any, run: int) -> None:
    chat = new(source=f"run:{run}", index=5)
    data = client.get(f"{API}/chats/{chat}").json()
    asked = client.get(f"{API}/chats/{chat}/answer").json()
    assert asked["answer"] and asked["privileged"]
    assert "privileged" not in json.dumps(data) and "config" not in data["chat"]["settings"]
    assert data["chat"]["environment"]["type"] == "guess_number" and data["chat"]["task"]["public"]
    assert data["messages"][0]["content"]


def test_five_megabytes_are_refused_before_anything_is_kept(client: TestClient, new: Any, db: Database) -> None:
    chat = new()
    assert "too large" in told(client.post(f"{API}/chats/{chat}/send", json={"text": "x" * 5_000_000}), 413)
    assert "at most 20,000 are taken" in told(client.post(f"{API}/chats/{chat}/send", json={"text": "x" * 30_000}), 400)
    assert chats.messages(db, chat) == []


@pytest.mark.parametrize("path", ["chats/99", "chats/99/stream", "chats/99/export", "chats/99/answer", "chats/-1"])
def test_an_unknown_chat_is_not_found(client: TestClient, path: str) -> None:
    answer = client.get(f"{API}/{path}")
    if path.endswith("stream"):
        assert answer.text == 'data: {"type": "end"}\n\n'
    else:
        assert told(answer, 404).startswith("There is no chat")


@pytest.mark.parametrize("path", ["chats/..%2f..%2fetc", "chats/1%00", "chats/99999999999999999999"])
def test_what_is_no_number_is_refused(client: TestClient, path: str) -> None:
    assert client.get(f"{API}/{path}").status_code in (400, 404)


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"model": "/etc/passwd"}, 400),
        ({"model": "../models/x"}, 400),
        ({"checkpoints": ["/tmp/adapter"]}, 400),
        ({"checkpoints": ["RUN:../../x@1"]}, 400),
        ({"checkpoints": ["RUN:rl@4"]}, 400),
        ({"checkpoints": ["77:rl@3"]}, 404),
        ({"adapters": {"x": "/tmp"}}, 400),
        ({"source": "run:77"}, 404),
        ({"source": "preset:/etc/passwd"}, 400),
        ({"config": {"environment": {"type": "guess_number"}}}, 400),
        ({"sampling": {"temperature": -1}}, 400),
    ],
)
def test_no_field_takes_a_path_or_what_is_out_of_bounds(
    client: TestClient, tiny: Path, run: int, settings: dict[str, Any], status: int
) -> None:
    data = json.loads(json.dumps({"model": str(tiny), **settings}).replace("RUN", str(run)))
    assert told(client.post(f"{API}/chats", json={"settings": data}), status)
    assert client.get(f"{API}/chats").json()["rows"] == []


def test_a_strangers_program_changes_nothing(context: Context, db: Database, make_client: Any, tiny: Path) -> None:
    stranger = make_client(context, secret=False)
    kept = chats.create(db, "t", "chat", ChatSettings(model=str(tiny)).model_dump(mode="json")).id
    for method, path in (("POST", "chats"), ("POST", f"chats/{kept}/send"), ("DELETE", f"chats/{kept}")):
        assert stranger.request(method, f"{API}/{path}", json={"text": "x"}).status_code == 403
    assert stranger.post(f"{API}/model/unload").status_code == 403
    assert [c.id for c in chats.page(db).rows] == [kept]


def test_a_read_only_server_shows_conversations_and_continues_none(
    workspace: Workspace, db: Database, context: Context, make_client: Any, tiny: Path
) -> None:
    kept = chats.create(db, "mine", "chat", ChatSettings(model=str(tiny)).model_dump(mode="json")).id
    reader = Database(workspace.database_url(), read_only=True)
    client = make_client(Context(workspace, reader, context.queue, read_only=True))
    assert client.get(f"{API}/chats/{kept}").json()["chat"]["title"] == "mine"
    for path, body in (("send", {"text": "Hi."}), ("play", {}), ("messages/1/edit", {"text": "x"})):
        answer = client.post(f"{API}/chats/{kept}/{path}", json=body)
        assert answer.status_code in (400, 409, 503) and "read-only" in answer.json()["error"]["what"]
    reader.close()


def test_the_idle_time_is_an_option_of_the_server() -> None:
    from typer.testing import CliRunner

    from app.cli import app

    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert "--chat-idle-seconds" in shown and "RL2F_CHAT_IDLE_SECONDS" in shown and "600" in shown
    refused = CliRunner().invoke(app, ["serve", "--chat-idle-seconds", "0"], env={"COLUMNS": "200"})
    assert refused.exit_code == 2


def test_a_chat_is_renamed_searched_judged_and_deleted(client: TestClient, new: Any, db: Database) -> None:
    chat, other = new(), new()
    assert client.patch(f"{API}/chats/{chat}", json={"title": "Mine"}).json()["chat"]["title"] == "Mine"
    assert "cannot be empty" in told(client.patch(f"{API}/chats/{chat}", json={"title": " "}), 400)
    assert "cannot be changed" in told(client.patch(f"{API}/chats/{chat}", json={"settings": {"max_turns": 9}}), 400)
    assert [c["id"] for c in client.get(f"{API}/chats", params={"search": "mine"}).json()["rows"]] == [chat]
    assert "Only two answers" in told(
        client.post(f"{API}/chats/{chat}/prefer", json={"one": 1, "other": 2, "choice": "better"}), 400
    )
    assert client.delete(f"{API}/chats/{chat}").status_code == 200
    assert [c["id"] for c in client.get(f"{API}/chats").json()["rows"]] == [other]
    told(client.delete(f"{API}/chats/{chat}"), 404)
