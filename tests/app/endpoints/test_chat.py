"""Endpoints of chats: streamed responses, branches, interactive tasks, refused settings, and hidden task data."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_helpers import RUN_YAML, SAMPLING, add_run, wait_until
from json_endpoints import JsonEndpoints

from app.common.context import Context
from app.endpoints.chat import ChatEndpoints
from app.endpoints.endpoint import ArgumentError
from jobs.chat.checkpoints import ChatSettings
from jobs.chat.service import ChatService
from jobs.db.engine import Database
from jobs.db.errors import StoreReadOnlyError
from jobs.db.queries import chats
from jobs.model_server.process import ModelProcess
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.errors import ConfigError, DataError, RL2FError, RunError
from rl2f_core.run.events import DialogueEvent, read_events

SHORT = {**SAMPLING, "max_new_tokens": 6}
LONG = {**SAMPLING, "max_new_tokens": 1500, "temperature": 5.0}
Start = Callable[..., int]
Update = dict[str, Any]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory, empty_database: bytes) -> Iterator[Context]:
    """A workspace for all tests of this module."""
    workspace = Workspace(tmp_path_factory.mktemp("chat") / "workspace").create()
    workspace.database.write_bytes(empty_database)
    db = Database(workspace.database_url())
    db.migrate()
    yield Context(workspace, db, Queue(db, workspace))
    db.close()


@pytest.fixture(scope="module")
def endpoints(context: Context, model_process: ModelProcess) -> Any:
    service = ChatService(context.db, context.workspace)
    service.process = model_process
    context.chat_service = service
    return JsonEndpoints(ChatEndpoints(context))


@pytest.fixture(scope="module")
def run(context: Context, tiny: Path) -> int:
    return add_run(context.db, context.workspace, tiny, {"rl@3": 1}, RUN_YAML.replace("MODEL", str(tiny)))


@pytest.fixture
def start(endpoints: Any, tiny: Path, run: int) -> Start:
    """`start("base")`: the id of a new chat; the default checkpoints are the base and one of the run."""

    def make(*checkpoints: str, **more: Any) -> int:
        settings = {"model": str(tiny), "device": "cpu", "sampling": SHORT, **more}
        return endpoints.start_chat(checkpoints=list(checkpoints) or ["base", f"{run}:rl@3"], **settings)["id"]

    return make


@pytest.fixture
def start_task(endpoints: Any, tiny: Path, run: int) -> Start:
    """`start_task(index=3)`: the id of a new interactive task of the base model."""

    def make(**more: Any) -> int:
        settings = {"index": 0, "sampling": {"seed": 3}, "device": "cpu", **more}
        return endpoints.start_task_chat(f"run:{run}", str(tiny), **settings)["id"]

    return make


def last(updates: Iterator[Update]) -> Update:
    """Return the last update of a turn."""
    *earlier, update = updates
    assert update["ended"] and not any(each["ended"] for each in earlier)
    return update


# -- responses ---------------------------------------------------------------------------------------------------------
def test_models_checkpoints_and_limits_are_listed(endpoints: Any, run: int, tiny: Path) -> None:
    found = endpoints.list_chat_models()
    assert str(tiny) in found["models"]
    assert [(r["run"], r["model"], r["checkpoints"]) for r in found["runs"]] == [(run, str(tiny), ["rl@3"])]
    limits = endpoints.chat_limits()
    assert limits["sampling"]["temperature"]["maximum"] == 10 and limits["max_text"] == 20_000
    assert limits["max_turns"]["maximum"] == 64 and limits["max_checkpoints"] == 4


@pytest.mark.slow
def test_all_checkpoints_reply_and_each_update_has_the_text_so_far(endpoints: Any, start: Start, run: int) -> None:
    chat = start(sampling={**SAMPLING, "max_new_tokens": 60, "temperature": 3.0})
    updates = list(endpoints.send_message(chat, "Hi."))
    state = endpoints.get_chat(chat)
    assert updates[-1]["messages"] == state["messages"] and updates[-1]["error"] is None
    user, base, tuned = state["messages"]
    assert (user["content"], base["checkpoint"], tuned["checkpoint"]) == ("Hi.", "base", f"{run}:rl@3")
    assert [m["status"] for m in state["messages"]] == ["done"] * 3 and not state["streaming"]
    for response in (base, tuned):
        texts = [m["content"] for update in updates for m in update["messages"] if m["id"] == response["id"]]
        assert texts[0] == "" and texts[-1] == response["content"] and len(set(texts)) > 2
        assert all(response["content"].startswith(text) for text in texts)
        assert response["detail"]["tokens"] > 0 and not {"token_ids", "logprobs"} & set(response["detail"])
    (idle,) = endpoints.follow_chat(chat)
    assert idle == {"status": "", "messages": [], "error": None, "ended": True}
    exported = [json.loads(line) for line in endpoints.export_chat(chat).splitlines()]
    assert [row["checkpoint"] for row in exported] == ["base", f"{run}:rl@3"]


def test_a_chat_continues_the_chosen_reply_after_a_retry(endpoints: Any, start: Start) -> None:
    chat = start("base")
    user, response = last(endpoints.send_message(chat, "One."))["messages"]
    (again,) = last(endpoints.retry_response(chat, response["id"]))["messages"]
    assert again["parent"] == response["parent"] == user["id"] and again["detail"]["seed"] != response["detail"]["seed"]
    sent, _ = last(endpoints.send_message(chat, "Two.", user["id"], {"base": response["id"]}))["messages"]
    assert sent["parent"] == user["id"] and sent["detail"]["after"] == {"base": response["id"]}


def test_an_edited_message_is_a_branch_and_an_edited_reply_is_stored(endpoints: Any, start: Start) -> None:
    chat = start("base")
    user, response = last(endpoints.send_message(chat, "First words."))["messages"]
    branch, answer = last(endpoints.edit_message(chat, user["id"], "Other words."))["messages"]
    assert branch["parent"] is None and branch["content"] == "Other words." and answer["parent"] == branch["id"]
    (edited,) = last(endpoints.edit_message(chat, response["id"], "Better."))["messages"]
    assert edited["content"] == "Better." and edited["detail"] == {"system": "", "edited": True, "of": response["id"]}
    assert len(endpoints.get_chat(chat)["messages"]) == 5


def test_stop_ends_the_replies_and_keeps_their_text(endpoints: Any, start: Start) -> None:
    chat = start("base", sampling=LONG)
    updates = endpoints.send_message(chat, "Go on.")
    next(update for update in updates if update["messages"][-1]["content"])
    with pytest.raises(RunError, match="being written"):
        next(endpoints.send_message(chat, "Too early."))
    assert endpoints.get_chat(chat)["streaming"] and endpoints.chat_memory()["busy"]
    endpoints.stop_responses(chat)
    response = last(updates)["messages"][-1]
    assert response["status"] == "stopped" and response["content"] and response["detail"]["tokens"] < 1500


@pytest.mark.slow
def test_replies_continue_without_a_follower_and_can_be_followed_later(endpoints: Any, start: Start) -> None:
    chat = start("base", sampling={**LONG, "max_new_tokens": 300})
    next(endpoints.send_message(chat, "Go on."))  # closes the generator
    found: list[Update] = []
    followers = [threading.Thread(target=lambda: found.append(last(endpoints.follow_chat(chat)))) for _ in range(2)]
    for follower in followers:
        follower.start()
    for follower in followers:
        follower.join(120)
    messages = endpoints.get_chat(chat)["messages"]
    assert [update["messages"] for update in found] == [messages, messages] and messages[-1]["status"] == "done"


@pytest.mark.slow
def test_an_unloaded_model_is_an_error_and_the_next_message_works(endpoints: Any, start: Start) -> None:
    chat = start("base", sampling=LONG)
    updates = endpoints.send_message(chat, "Go on.")
    next(update for update in updates if update["messages"][-1]["content"])
    memory = endpoints.chat_memory()
    assert memory["running"] and memory["pid"]
    gone = dict.fromkeys(("pid", "model", "served", "url", "requests", "bytes"))
    assert endpoints.unload_chat_model() == {**memory, "running": False, "busy": False, **gone}
    update = last(updates)
    assert update["error"] and "unloaded" in update["error"]["what"] and update["messages"][-1]["status"] == "failed"
    endpoints.change_chat(chat, settings={"sampling": SHORT})
    (response,) = last(endpoints.retry_response(chat, update["messages"][-1]["id"]))["messages"]
    assert response["status"] == "done" and endpoints.chat_memory()["starts"] == memory["starts"] + 1


def test_a_served_checkpoint_gives_openai_clients_the_response_of_the_chat(
    endpoints: Any, start: Start, run: int, tiny: Path
) -> None:
    import openai

    served = endpoints.serve_checkpoint(run, "rl@3")
    client = openai.OpenAI(base_url=served["url"], api_key=served["api_key"], max_retries=0)
    assert served["models"] == [model.id for model in client.models.list()]
    names, before = ["run-1@rl@3", "tiny"], endpoints.chat_memory()
    chat, parent = start(sampling=SHORT), None
    histories: dict[str, list[Any]] = {name: [] for name in names}
    for text in ("What is 1 + 1?", "Sure?"):
        user, base, tuned = last(endpoints.send_message(chat, text, parent))["messages"]
        parent = user["id"]
        for response, (model, history) in zip((tuned, base), histories.items(), strict=True):
            history.append({"role": "user", "content": text})
            reply = client.chat.completions.create(model=model, messages=history, seed=response["detail"]["seed"],
                                                   max_tokens=6, temperature=1, top_p=1)  # fmt: skip
            assert reply.choices[0].message.content == response["content"]
            history.append({"role": "assistant", "content": response["content"]})
    memory = endpoints.chat_memory()
    assert set(names) <= set(memory["served"] or ()) and memory["url"] == served["url"]
    assert (memory["requests"] or 0) - (before["requests"] or 0) == 4 and (memory["bytes"] or 0) > 10**8
    with pytest.raises(RL2FError, match="no such checkpoint"):
        endpoints.serve_checkpoint(run, "rl@4")


# -- interactive tasks -------------------------------------------------------------------------------------------------
def test_privileged_data_of_a_task_are_returned_only_as_its_answer(
    endpoints: Any, start: Start, start_task: Start
) -> None:
    chat = start_task(index=5)
    state = endpoints.get_chat(chat)
    answer = endpoints.get_task_answer(chat)
    assert answer["answer"] and answer["privileged"]
    assert "privileged" not in json.dumps(state) and "config" not in state["chat"]["settings"]
    environment, task = state["chat"]["environment"], state["chat"]["task"]
    assert environment and environment["type"] == "guess_number" and task and task["public"]
    assert state["chat"]["mode"] == "play" and state["messages"][0]["content"]
    with pytest.raises(RunError, match="not an interactive task"):
        endpoints.get_task_answer(start())


@pytest.mark.slow
def test_a_task_is_solved_or_ended_with_hints_and_recorded(endpoints: Any, start_task: Start) -> None:
    chat = start_task()
    (attempt,) = last(endpoints.continue_task_chat(chat))["messages"]
    assert "verdict" in attempt["detail"]["turn"]
    while not attempt["detail"].get("ended"):
        update = last(endpoints.continue_task_chat(chat, {"base": attempt["id"]}))
        hint, attempt = update["messages"]
        assert hint["role"] == "teacher" and hint["detail"]["by"] == "scripted" and attempt["parent"] == hint["id"]
    assert attempt["detail"]["recorded"]["run"]
    with pytest.raises(RunError, match="ended already"):
        endpoints.end_task_chat(chat, attempt["id"])


def test_a_leak_in_a_persons_hint_is_found(endpoints: Any, start_task: Start) -> None:
    chat = start_task()
    answer = endpoints.get_task_answer(chat)["answer"]
    (attempt,) = last(endpoints.continue_task_chat(chat))["messages"]
    hint, second = last(endpoints.continue_task_chat(chat, {"base": attempt["id"]}, "person", f"It is {answer}."))[
        "messages"
    ]
    leak = hint["detail"]["hint"]["leak"]
    assert hint["detail"]["by"] == "person" and leak["leaked"] and answer in hint["content"][slice(*leak["span"])]
    assert endpoints.end_task_chat(chat, second["id"])["detail"]["recorded"]["run"]
    with pytest.raises(DataError, match="hint is empty"):
        next(endpoints.continue_task_chat(chat, {"base": attempt["id"]}, "person"))
    with pytest.raises(ArgumentError, match="argument hint_by"):
        next(endpoints.continue_task_chat(chat, {"base": attempt["id"]}, "oracle"))  # type: ignore[arg-type]


# -- refused requests --------------------------------------------------------------------------------------------------
def test_a_long_message_is_refused_and_not_stored(endpoints: Any, start: Start) -> None:
    chat = start()
    for length in ("30,000", "5,000,000"):
        with pytest.raises(DataError, match=f"{length} characters, and at most 20,000 are taken"):
            next(endpoints.send_message(chat, "x" * int(length.replace(",", ""))))
    assert endpoints.get_chat(chat)["messages"] == []


def test_an_unknown_chat_is_an_error(endpoints: Any) -> None:
    calls: list[Callable[[int], object]] = [
        endpoints.get_chat, endpoints.export_chat, endpoints.get_task_answer, endpoints.delete_chat,
        endpoints.stop_responses, lambda chat: next(endpoints.follow_chat(chat)),
        lambda chat: next(endpoints.send_message(chat, "Hi.")),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(RL2FError, match=r"There is no chat 99\."):
            call(99)
        for number in (-1, 99999999999999999999, "../etc", "1\0"):
            with pytest.raises(ArgumentError, match="argument chat"):
                call(number)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "/etc/passwd"},
        {"model": "../models/x"},
        {"checkpoints": ["/tmp/adapter"]},
        {"checkpoints": ["RUN:../../x@1"]},
        {"checkpoints": ["RUN:rl@4"]},
        {"checkpoints": ["77:rl@3"]},
        {"adapters": {"x": "/tmp"}},
        {"source": "run:77"},
        {"source": "preset:/etc/passwd"},
        {"source": ""},
        {"config": {"environment": {"type": "guess_number"}}},
        {"sampling": {"temperature": -1}},
        {"sampling": {"adapter": "/tmp"}},
    ],
)
def test_no_setting_is_a_path_or_out_of_bounds(endpoints: Any, tiny: Path, run: int, settings: dict[str, Any]) -> None:
    before = endpoints.list_chats()["total"]
    arguments = json.loads(json.dumps({"model": str(tiny), **settings}).replace("RUN", str(run)))
    with pytest.raises(RL2FError):
        endpoints.start_chat(**arguments)
    with pytest.raises(RL2FError):
        endpoints.start_task_chat(**{"source": f"run:{run}", **arguments})
    assert endpoints.list_chats()["total"] == before


def test_a_read_only_server_shows_chats_and_continues_none(workspace: Workspace, db: Database, tiny: Path) -> None:
    kept = chats.create(db, "mine", "chat", ChatSettings(model=str(tiny)).model_dump(mode="json")).id or 0
    reader = Database(workspace.database_url(), read_only=True)
    endpoints = ChatEndpoints(Context(workspace, reader, Queue(db, workspace), read_only=True))
    assert endpoints.get_chat(kept).chat.title == "mine"
    writes: list[Callable[[], object]] = [
        lambda: endpoints.start_chat(str(tiny)),
        lambda: endpoints.start_task_chat("preset:quickstart", str(tiny)),
        lambda: next(endpoints.send_message(kept, "Hi.")),
        lambda: next(endpoints.continue_task_chat(kept)),
        lambda: next(endpoints.retry_response(kept, 1)),
        lambda: next(endpoints.edit_message(kept, 1, "x")),
        lambda: endpoints.end_task_chat(kept, 1),
        lambda: endpoints.rate_response(kept, 1, 2, "tie"),
        lambda: endpoints.change_chat(kept, "x"),
        lambda: endpoints.delete_chat(kept),
    ]
    for write in writes:
        with pytest.raises(StoreReadOnlyError, match="Read-only server"):
            write()
    reader.close()


# -- the list ----------------------------------------------------------------------------------------------------------
def test_a_chat_is_renamed_found_and_deleted(endpoints: Any, start: Start) -> None:
    chat, other = start(), start()
    assert endpoints.change_chat(chat, "A needle in the hay")["title"] == "A needle in the hay"
    with pytest.raises(DataError, match="cannot be empty"):
        endpoints.change_chat(chat, " ")
    with pytest.raises(ConfigError, match="cannot be changed"):
        endpoints.change_chat(chat, settings={"max_turns": 9})
    assert [row["id"] for row in endpoints.list_chats("needle in the")["chats"]] == [chat]
    first = endpoints.list_chats(limit=1)
    assert first["after"] and [row["id"] for row in first["chats"]] != [
        row["id"] for row in endpoints.list_chats(cursor=first["after"], limit=1)["chats"]
    ]
    endpoints.delete_chat(chat)
    listed = [row["id"] for row in endpoints.list_chats(limit=100)["chats"]]
    assert other in listed and chat not in listed
    with pytest.raises(RL2FError, match="There is no chat"):
        endpoints.delete_chat(chat)


def test_a_deleted_chat_stops_its_replies(endpoints: Any, start: Start) -> None:
    chat = start("base", sampling=LONG)
    updates = endpoints.send_message(chat, "Go on.")
    next(update for update in updates if update["messages"][-1]["content"])
    endpoints.delete_chat(chat)
    last(updates)
    wait_until(lambda: not endpoints.chat_memory()["busy"], 60)


def test_two_replies_to_one_message_are_rated(endpoints: Any, start: Start) -> None:
    chat = start()
    user, base, tuned = last(endpoints.send_message(chat, "Judge this."))["messages"]
    rated = endpoints.rate_response(chat, base["id"], tuned["id"], "better")
    assert [m["detail"]["preferences"] for m in rated] == [{str(tuned["id"]): "better"}, {str(base["id"]): "worse"}]
    (pair,) = endpoints.export_chat(chat, "preference").splitlines()
    assert json.loads(pair)["chosen"][0]["content"] == base["content"]
    assert [m["detail"]["preferences"] for m in endpoints.rate_response(chat, base["id"], tuned["id"])] == [{}, {}]
    with pytest.raises(DataError, match="no such response"):
        endpoints.rate_response(chat, user["id"], base["id"], "better")
    with pytest.raises(ArgumentError, match="argument choice"):
        endpoints.rate_response(chat, base["id"], tuned["id"], "best")  # type: ignore[arg-type]


def test_the_idle_time_is_an_option_of_the_server() -> None:
    from typer.testing import CliRunner

    from app.cli import app

    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert "--chat-idle-seconds" in shown and "RL2F_CHAT_IDLE_SECONDS" in shown and "600" in shown
    refused = CliRunner().invoke(app, ["serve", "--chat-idle-seconds", "0"], env={"COLUMNS": "200"})
    assert refused.exit_code == 2


# -- a person plays ------------------------------------------------------------------------------------------------
def test_a_person_plays_a_stateful_task_to_the_end_without_a_model(
    endpoints: Any, context: Context, tiny: Path, run: int
) -> None:
    settings = {"index": 1, "split": "test", "device": "cpu"}
    chat = endpoints.start_task_chat("preset:household", str(tiny), **settings)["id"]
    starts = endpoints.chat_memory()["starts"]
    after, messages = None, []
    plan = endpoints.get_task_answer(chat)["answer"].split(", ")
    for action in ["dance", *plan]:
        listed = endpoints.list_task_actions(chat, after)
        assert listed is not None and (action in listed) == (action != "dance")
        messages += endpoints.take_task_action(chat, action, after)
        after = messages[-1]["id"]
    assert [m["role"] for m in messages] == ["assistant", *["teacher", "assistant"] * len(plan)]
    assert {m["checkpoint"] for m in messages} == {"person"} and endpoints.chat_memory()["starts"] == starts
    verdicts = [m["detail"]["turn"]["verdict"] for m in messages if m["role"] == "assistant"]
    assert [v["well_formed"] for v in verdicts] == [False] + [True] * len(plan)
    assert verdicts[0]["observation"].startswith("This is not a valid action.") and verdicts[-1]["correct"]
    detail = messages[-1]["detail"]
    assert detail["ended"] == "solved" and "not_recorded" not in detail
    event = next(e for e in read_events(context.workspace.folder("chat") / "events.jsonl")
                 if isinstance(e, DialogueEvent) and e.dialogue.policy == "person")  # fmt: skip
    assert [t.verdict.parsed for t in event.dialogue.turns] == ["dance", *plan] and event.dialogue.solved
    assert [t.hint and t.hint.text for t in event.dialogue.turns] == [""] * len(plan) + [None]
    line = json.loads(endpoints.export_chat(chat).splitlines()[-1])
    said = [m["content"] for m in line["messages"] if m["role"] == "user"]
    assert said[1:] == [v["observation"] for v in verdicts[:-1]]
    with pytest.raises(RunError, match="ended already"):
        endpoints.take_task_action(chat, plan[0], after)


def test_only_a_stateful_task_has_actions(endpoints: Any, start: Start, start_task: Start) -> None:
    task = start_task()
    assert endpoints.list_task_actions(task) is None
    with pytest.raises(RunError, match="has no actions"):
        endpoints.take_task_action(task, "left")
    with pytest.raises(RunError, match="not an interactive task"):
        endpoints.list_task_actions(start("base"))


def test_a_person_cannot_act_after_an_attempt_of_a_checkpoint(endpoints: Any, tiny: Path) -> None:
    chat = endpoints.start_task_chat("preset:taxi", str(tiny), index=0, device="cpu")["id"]
    (first,) = endpoints.take_task_action(chat, "pickup")
    with pytest.raises(DataError, match="no such attempt"):
        endpoints.take_task_action(chat, "north", first["id"] + 1000)
    with pytest.raises(DataError, match="action is empty"):
        endpoints.take_task_action(chat, " ")
