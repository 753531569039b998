"""Chats, their model process and the run of interactive tasks, from other processes than the studio's."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_helpers import RUN_YAML, SAMPLING, add_run, wait_until
from typer.testing import CliRunner, Result

from app.cli import app
from app.common.context import Context
from app.endpoints.chat import ChatEndpoints
from jobs.chat import dialogue_log, tree
from jobs.chat import turn as chat_turn
from jobs.chat.chat_export import lines
from jobs.chat.checkpoints import ChatSettings, resolve_checkpoints
from jobs.chat.service import ChatService
from jobs.db.engine import Database
from jobs.db.errors import StoreReadOnlyError
from jobs.db.models import ChatMessage, LeakLabel, Run
from jobs.db.queries import chats, dialogues, runs
from jobs.ingest.ingester import reindex
from jobs.model_server.models import base_info
from jobs.model_server.process import ModelProcess
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.models.tokenizer import encode_chat
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import Dialogue, StopReason, Task

LONG = {**SAMPLING, "max_new_tokens": 200, "temperature": 5.0}
Call = Callable[..., Result]


@pytest.fixture
def call(workspace: Workspace, db: Database) -> Call:
    """`call("replay", "1")`: the result of a command on the workspace."""
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--workspace", str(workspace.root)])


def streaming_chat(db: Database) -> int:
    """A chat whose response the studio is writing."""
    chat = chats.create(db, "t", "chat", {"model": "m"}).id or 0
    response = ChatMessage(role="assistant", checkpoint="base", content="so far", status="streaming", time=1.0)
    chats.add(db, chat, [response])
    return chat


# -- the process of the studio -----------------------------------------------------------------------------------------
def test_a_command_does_not_close_the_responses_that_the_studio_is_writing(db: Database, call: Call) -> None:
    chat = str(streaming_chat(db))
    for command in (["get_chat"], ["export_chat"], ["change_chat", "--title", "renamed"]):
        assert call("call", command[0], "--chat", chat, *command[1:]).exit_code == 0
    assert json.loads(call("call", "get_chat", "--chat", chat).stdout)["streaming"]
    (message,) = chats.messages(db, int(chat))
    assert message.status == "streaming" and "error" not in message.detail


def test_only_the_server_with_the_lock_closes_abandoned_responses(workspace: Workspace, db: Database) -> None:
    chat = streaming_chat(db)
    Queue(db, workspace).recover()
    (message,) = chats.messages(db, chat)
    assert message.status == "failed" and message.content == "so far"


PROCESS_BOUND: list[list[str]] = [
    ["send_message", "--chat", "1", "--text", "Hi."],
    ["continue_task_chat", "--chat", "1"],
    ["retry_response", "--chat", "1", "--response", "1"],
    ["edit_message", "--chat", "1", "--message", "1", "--text", "Hi."],
    ["follow_chat", "--chat", "1"],
    ["stop_responses", "--chat", "1"],
    ["chat_memory"],
    ["serve_checkpoint", "--run", "1", "--checkpoint", "rl@1"],
    ["unload_chat_model"],
]


@pytest.mark.parametrize("arguments", PROCESS_BOUND, ids=lambda arguments: arguments[0])
def test_what_needs_the_model_process_is_refused_in_a_command(db: Database, call: Call, arguments: list[str]) -> None:
    streaming_chat(db)
    runs.add(db, Run(name="trained", kind="train", folder="trained", status="succeeded"))
    result = call("call", *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    for part in ("process of the studio", "no studio has this workspace", "rl2f serve --workspace", "rl2f token new"):
        assert part in result.stderr


def test_the_refusal_names_the_studio_that_runs_on_the_workspace(
    workspace: Workspace, db: Database, call: Call
) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": 0.0, "address": "http://127.0.0.1:7999"}
    workspace.lock.write_text(json.dumps(owner))
    running = call("call", "chat_memory").stderr
    assert "the studio is at http://127.0.0.1:7999" in running and 'Client("http://127.0.0.1:7999"' in running
    assert "rl2f serve" not in running
    workspace.lock.write_text(json.dumps({**owner, "pid": 2**22 + 1}))
    assert "no studio has this workspace" in call("call", "chat_memory").stderr


def test_a_read_only_server_does_not_report_on_the_model_process_of_another(workspace: Workspace, db: Database) -> None:
    chat = streaming_chat(db)
    endpoints = ChatEndpoints(Context(workspace, db, Queue(db, workspace), read_only=True, lock_owner="It is at URL."))
    assert endpoints.get_chat(chat).streaming
    with pytest.raises(StoreReadOnlyError, match="It is at URL"):
        endpoints.chat_memory()
    with pytest.raises(StoreReadOnlyError, match="It is at URL"):
        next(endpoints.follow_chat(chat))


# -- with a model ------------------------------------------------------------------------------------------------------
class Chats:
    """A chat service over a workspace with one trained run."""

    def __init__(self, root: Path, model: Path, process: ModelProcess) -> None:
        self.workspace, self.model = Workspace(root).create(), str(model)
        self.db = Database(self.workspace.database_url())
        self.db.migrate()
        self.service = ChatService(self.db, self.workspace)
        self.service.process = process
        self.run = add_run(self.db, self.workspace, model, {"rl@3": 2}, RUN_YAML.replace("MODEL", self.model))
        self.tuned = f"{self.run}:rl@3"

    def new(self, *checkpoints: str, **settings: Any) -> int:
        data = {"model": self.model, "checkpoints": checkpoints or ("base", self.tuned), "device": "cpu"}
        return self.service.create({**data, "sampling": SAMPLING, **settings}).id or 0

    def wait(self, chat: int) -> list[ChatMessage]:
        wait_until(lambda: self.service.live(chat) is None)
        return chats.messages(self.db, chat)


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory, tiny: Path, model_process: ModelProcess) -> Iterator[Chats]:
    talk = Chats(tmp_path_factory.mktemp("chats") / "workspace", tiny, model_process)
    yield talk
    talk.db.close()


@pytest.mark.slow
def test_responses_end_when_another_process_deletes_the_chat(talk: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_turn, "FLUSH_INTERVAL_SECONDS", 0)
    write, to_delete = chats.write, set[int]()

    def write_later(*args: Any, **values: Any) -> ChatMessage | None:
        while to_delete:
            chats.remove(talk.db, to_delete.pop())
        return write(*args, **values)

    monkeypatch.setattr(chats, "write", write_later)

    def generated(*, is_deleted: bool) -> int:
        chat = talk.new(sampling=LONG)
        if is_deleted:
            to_delete.add(chat)
        turn = talk.service.send(chat, "Go on.", None)
        talk.wait(chat)
        return sum(len(slot.token_ids) for slot in turn.slots)

    assert 0 < generated(is_deleted=True) < generated(is_deleted=False)


def rows_of(talk: Chats, chat: int, kind: str = "messages") -> list[Any]:
    """The exported rows of a chat."""
    return list(map(json.loads, lines(*talk.service.read(chat), kind)))


def test_an_exported_prompt_has_the_system_message_of_its_time_and_edits_are_marked(talk: Chats) -> None:
    chat = talk.new("base", system="Old.")
    talk.service.send(chat, "One.", None)
    _, first = talk.wait(chat)
    talk.service.change(chat, changes={"system": "New."})
    talk.service.regenerate(chat, first.id or 0)
    talk.wait(chat)
    talk.service.edit(chat, first.id or 0, "Written by a person.")
    rows = rows_of(talk, chat)
    assert [row["messages"][0]["content"] for row in rows] == ["Old.", "New.", "Old."]
    assert [row["checkpoint"] for row in rows] == ["base", "base", "base, edited"]
    _, one, two, edited = chats.messages(talk.db, chat)
    with pytest.raises(DataError, match="same prompt"):
        talk.service.rate(chat, one.id or 0, two.id or 0, "better")
    talk.service.rate(chat, edited.id or 0, one.id or 0, "better")
    (pair,) = rows_of(talk, chat, "preference")
    assert pair["prompt"] == rows[0]["messages"][:-1] and pair["checkpoints"] == ["base, edited", "base"]


def test_an_exported_attempt_has_the_reprompt_that_the_student_read(talk: Chats) -> None:
    columns = runs.get(talk.db, talk.run).model_dump(exclude={"id"})
    config = columns["config"].replace("max_turns: 3", "max_turns: 3, prompting: reprompt")
    run = runs.add(talk.db, Run(**{**columns, "config": config, "folder": "reprompt"}))
    chat = talk.new("base", source=f"run:{run.id}", index=0)
    talk.service.play_turn(chat, {})
    first = talk.wait(chat)[-1]
    talk.service.play_turn(chat, {"base": first.id or 0})
    attempts = {m.id: m for m in talk.wait(chat) if m.role == "assistant"}
    rows = rows_of(talk, chat)
    assert [row["message"] for row in rows] == list(attempts) and len(rows) == 2
    tokenizer = base_info(talk.model).tokenizer
    for row in rows:
        read = attempts[row["message"]].detail["prompt_tokens"]
        assert len(encode_chat(tokenizer, row["messages"][:-1])) == read


def test_a_message_continues_the_named_response_of_any_checkpoint(talk: Chats) -> None:
    chat = talk.new("base")
    talk.service.send(chat, "One.", None)
    one, first = (message.id or 0 for message in talk.wait(chat))
    talk.service.regenerate(chat, first)
    second = talk.wait(chat)[-1].id or 0
    talk.service.change(chat, changes={"checkpoints": [talk.tuned]})
    for named, continued in (({"base": first}, first), ({}, second)):
        user = talk.service.send(chat, "Two.", one, named).slots[0].parent or 0
        *_, response = talk.wait(chat)
        assert response.checkpoint == talk.tuned and response.parent == user
        assert tree.by_id(chats.messages(talk.db, chat))[user].detail["after"] == {"base": continued}
        talk.service.edit(chat, user, "Two again.")
        assert talk.wait(chat)[-2].detail["after"] == {"base": continued}


def test_a_message_that_continues_no_response_of_its_parent_is_refused(talk: Chats) -> None:
    chat = talk.new()
    talk.service.send(chat, "One.", None)
    one, base, tuned = (message.id or 0 for message in talk.wait(chat))
    talk.service.send(chat, "Two.", one)
    later = talk.wait(chat)[-1].id or 0
    chats.write(talk.db, tuned, status="failed")
    wrong = ({"base": 999999}, {"base": one}, {talk.tuned: base}, {"zzz": base}, {"base": later}, {talk.tuned: tuned})
    before = len(chats.messages(talk.db, chat))
    for parent, after in [*((one, after) for after in wrong), (None, {"base": base})]:
        with pytest.raises(DataError, match=r"no such response|continues no response"):
            talk.service.send(chat, "Two.", parent, after)
    assert len(chats.messages(talk.db, chat)) == before


def test_a_hint_reaches_the_attempt_of_a_checkpoint_that_is_not_selected_any_more(talk: Chats) -> None:
    chat = talk.new("base", source=f"run:{talk.run}", index=0)
    talk.service.play_turn(chat, {})
    attempt = talk.wait(chat)[-1].id or 0
    talk.service.change(chat, changes={"checkpoints": [talk.tuned]})
    talk.service.play_turn(chat, {"base": attempt})
    hint, response = talk.wait(chat)[-2:]
    assert (hint.role, hint.parent, response.checkpoint) == ("teacher", attempt, "base")


def test_a_checkpoint_and_its_base_have_the_dtype_of_the_run(talk: Chats) -> None:
    def dtypes(*checkpoints: str) -> list[str]:
        settings = ChatSettings(model=talk.model, checkpoints=checkpoints)
        return [source.dtype for _, source in resolve_checkpoints(talk.db, talk.workspace, settings).values()]

    assert dtypes("base") == ["auto"]
    assert dtypes("base", talk.tuned) == dtypes(talk.tuned, "base") == ["float32", "float32"]


@pytest.mark.parametrize("is_task", [False, True])
def test_a_changed_sampling_parameter_leaves_the_others(talk: Chats, is_task: bool) -> None:
    source = {"source": f"run:{talk.run}", "index": 0} if is_task else {}
    given = {"max_new_tokens": 9, "temperature": 2.0, "top_p": 0.5, "seed": 4}
    chat = talk.new("base", sampling=given, **source)
    changed = talk.service.change(chat, changes={"sampling": {"seed": 5}}).settings["sampling"]
    assert changed == {**given, "seed": 5}
    with pytest.raises(ConfigError, match="sampling"):
        talk.service.change(chat, changes={"sampling": "greedy"})


# -- ratings without a model -------------------------------------------------------------------------------------------
def conversation(db: Database) -> tuple[int, dict[str, int]]:
    """A chat of two checkpoints with two turns; its messages by text."""
    chat = chats.create(db, "t", "chat", {"model": "m"}).id or 0
    numbers: dict[str, int] = {}

    def say(text: str, parent: int | None, checkpoint: str = "", status: str = "done", **detail: Any) -> int:
        role = "assistant" if checkpoint else "user"
        row = ChatMessage(parent=parent, role=role, checkpoint=checkpoint, content=text, status=status, time=1.0)
        row.detail = detail
        numbers[text or status] = chats.add(db, chat, [row])[0].id or 0
        return numbers[text or status]

    one = say("one", None)
    after = {"base": say("a", one, "base"), "1:rl@1": say("b", one, "1:rl@1")}
    say("failed", one, "base", "failed")
    say("busy", one, "base", "streaming")
    say("", one, "base", "stopped")
    two = say("two", one, after=after)
    say("c", two, "base")
    say("d", two, "1:rl@1")
    say("again", two, "base")
    return chat, numbers


@pytest.mark.parametrize(
    ("one", "other"),
    [("a", "failed"), ("a", "busy"), ("a", "stopped"), ("a", "c"), ("a", "a"), ("a", "one"), ("c", "d")],
)
def test_only_finished_responses_to_the_same_prompt_are_rated(
    workspace: Workspace, db: Database, one: str, other: str
) -> None:
    chat, numbers = conversation(db)
    service = ChatService(db, workspace)
    for pair in ((numbers[one], numbers[other]), (numbers[other], numbers[one])):
        with pytest.raises(DataError, match=r"same prompt|no such response"):
            service.rate(chat, *pair, "better")
    service.rate(chat, numbers["a"], numbers["b"], "better")
    service.rate(chat, numbers["again"], numbers["c"], "better")


def test_ratings_of_earlier_versions_between_different_prompts_are_not_exported(
    workspace: Workspace, db: Database
) -> None:
    chat, numbers = conversation(db)
    chats.prefer(db, numbers["c"], numbers["d"], "better")
    chats.prefer(db, numbers["stopped"], numbers["a"], "better")
    chats.prefer(db, numbers["b"], numbers["a"], "better")
    rows = [json.loads(line) for line in lines(*ChatService(db, workspace).read(chat), "preference")]
    assert [(row["chosen"][0]["content"], row["checkpoints"]) for row in rows] == [("b", ["1:rl@1", "base"])]


# -- the run of interactive tasks --------------------------------------------------------------------------------------
def recorded(db: Database, workspace: Workspace, number: int) -> int:
    """Record an interactive task; return its run."""
    task = Task(id=f"t/{number}", environment="guess_number", split="test", level="", public={}, privileged={})
    dialogue = Dialogue(
        id=f"chat-{number}", task_id=task.id, group="", index=0, turns=(), stop_reason=StopReason.EXHAUSTED,
        policy="base", seed=0,
    )  # fmt: skip
    event = DialogueEvent.of("chat", "chat", number, task, dialogue, checkpoint="base")
    return dialogue_log.record(db, workspace, event).id or 0


def ids_of(db: Database, run: int) -> list[str]:
    """The dialogues of a run."""
    views = dialogues.next_views(db, dialogues.DialogueFilter(run=run), after=0, limit=9)
    return [view.event.dialogue.id for view in views]


def test_a_deleted_run_is_restored_beside_a_new_one_with_its_folder(workspace: Workspace, db: Database) -> None:
    queue, first = Queue(db, workspace), recorded(db, workspace, 1)
    with db.write() as session:
        session.add(LeakLabel(run_id=first, event_id="e", turn=0, annotator="Ada", label="leak", time=1.0))
    queue.delete(first)
    second = recorded(db, workspace, 2)
    restored = queue.restore(first)
    queue.sync_workers()
    assert (restored.id, restored.folder) == (first, "chat-2") and second != first
    assert recorded(db, workspace, 3) == second
    assert (ids_of(db, first), ids_of(db, second)) == (["chat-1"], ["chat-2", "chat-3"])


def test_commands_read_the_run_of_interactive_tasks(workspace: Workspace, db: Database, call: Call) -> None:
    run = str(recorded(db, workspace, 1))
    assert "chat-1" in call("replay", run).stdout
    assert "chat: rebuilt" in call("reindex", "chat").output
    for command in (["share", run], ["leaks", "rescore", run], ["results", "collect", run, "--out", "x"]):
        result = call(*command)
        assert result.exit_code == 2 and "dialogues of interactive tasks and no config.yaml" in result.output, command
    assert not os.path.exists("x")


def test_the_run_of_interactive_tasks_is_read_into_a_new_database(
    workspace: Workspace, db: Database, tmp_path: Path
) -> None:
    recorded(db, workspace, 1)
    new = Database(f"sqlite:///{tmp_path / 'new.sqlite'}")
    new.migrate()
    (number,) = reindex(new, workspace)
    run = runs.get(new, number)
    assert (run.name, run.kind, run.status, run.origin) == ("Chat", "chat", "succeeded", "app")
    assert ids_of(new, number) == ["chat-1"]
    new.close()
