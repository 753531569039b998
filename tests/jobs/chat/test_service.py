"""Conversations with a real model process: answers, branches, played tasks, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_helpers import RUN_YAML, add_run, wait_until

from jobs.chat import tree
from jobs.chat.chat_export import lines
from jobs.chat.service import ChatService
from jobs.chat.turn import Turn
from jobs.db.engine import Database
from jobs.db.models import ChatMessage, Run
from jobs.db.queries import chats, dialogues, runs
from jobs.model_server.limits import ServerLimits
from jobs.model_server.process import ModelProcess
from jobs.workspace import Workspace
from rl2f_core.dialogue.rollout.engine import turn_seed
from rl2f_core.dialogue.teachers import human
from rl2f_core.errors import ConfigError, DataError, RL2FError, RunError
from rl2f_core.run.events import DialogueEvent, read_events

SHORT = {"max_new_tokens": 8, "temperature": 1.0, "top_p": 1.0, "seed": 3}
LONG = {"max_new_tokens": 1500, "temperature": 5.0, "top_p": 1.0, "seed": 3}


class Talk:
    """A service over a workspace with one trained run; waits for answers."""

    def __init__(self, root: Path, model: Path, process: ModelProcess) -> None:
        self.workspace = Workspace(root).create()
        self.db = Database(self.workspace.database_url())
        self.db.migrate()
        self.service = ChatService(self.db, self.workspace)
        self.service.process = process
        self.model = str(model)
        config = RUN_YAML.replace("MODEL", self.model)
        self.run = add_run(self.db, self.workspace, model, {"warm@1": 1, "warm@2": 1, "rl@3": 2}, config)

    def name(self, checkpoint: str) -> str:
        return f"{self.run}:{checkpoint}"

    def new(self, *checkpoints: str, **more: Any) -> int:
        checkpoints = ["base", *map(self.name, checkpoints)]
        data = {"model": self.model, "checkpoints": checkpoints, "sampling": SHORT, "device": "cpu", **more}
        made = self.service.create(data).id
        assert made is not None
        return made

    def like(self, **changes: Any) -> Run:
        """A run like the trained one, but for some columns."""
        held = runs.get(self.db, self.run).model_dump(exclude={"id"})
        return runs.add(self.db, Run(**{**held, **changes}))

    def play(self, *checkpoints: str, **more: Any) -> int:
        chat = self.new(*checkpoints, **{"source": f"run:{self.run}", "index": 0, **more})
        self.service.play_turn(chat, {})
        self.wait(chat)
        return chat

    def wait(self, chat: int) -> list[ChatMessage]:
        wait_until(lambda: self.service.live(chat) is None, 300)
        return chats.messages(self.db, chat)

    def send(self, chat: int, text: str, parent: int | None = None, **more: Any) -> list[ChatMessage]:
        self.service.send(chat, text, parent, **more)
        return self.wait(chat)

    def last(self, chat: int, role: str = "assistant", checkpoint: str = "base") -> ChatMessage:
        return [m for m in chats.messages(self.db, chat) if m.role == role and m.checkpoint in (checkpoint, "")][-1]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory, tiny: Path, model_process: ModelProcess) -> Iterator[Talk]:
    made = Talk(tmp_path_factory.mktemp("talk") / "workspace", tiny, model_process)
    yield made
    made.db.close()


def text_of(turn: Turn) -> str:
    """The text of the last message so far."""
    last = turn.state().messages[-1]
    return last.content if last.role == "assistant" else ""


def number(message: ChatMessage) -> int:
    assert message.id is not None
    return message.id


# -- chatting ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_equal_checkpoints_respond_equally_and_the_base_differently(talk: Talk) -> None:
    chat = talk.new("warm@1", "warm@2", "rl@3")
    user, base, one, two, other = talk.send(chat, "What is 12 + 34?")
    assert [m.checkpoint for m in (base, one, two, other)] == ["base", *map(talk.name, ("warm@1", "warm@2", "rl@3"))]
    assert one.detail["token_ids"] == two.detail["token_ids"]
    assert len({tuple(m.detail["token_ids"]) for m in (base, one, other)}) == 3
    assert all(m.parent == user.id and m.status == "done" for m in (base, one, two, other))
    assert base.detail["tokens"] == len(base.detail["token_ids"]) and base.detail["seconds"] > 0
    assert chats.get(talk.db, chat).title == "What is 12 + 34?"


@pytest.mark.slow
def test_adapters_change_between_turns_while_the_base_stays(talk: Talk) -> None:
    chat = talk.new()
    user = talk.send(chat, "One.")[0]
    loads = talk.service.process.state()["loads"]
    talk.service.change(chat, changes={"checkpoints": ["base", talk.name("rl@3")]})
    messages = talk.send(chat, "Two.", number(user))
    assert [m.checkpoint for m in messages[-2:]] == ["base", talk.name("rl@3")]
    assert all(m.status == "done" for m in messages)
    assert talk.service.process.state()["loads"] == loads


@pytest.mark.slow
def test_a_message_is_branched_and_the_original_stays(talk: Talk) -> None:
    chat = talk.new()
    one, first = talk.send(chat, "One.")
    talk.service.edit(chat, number(one), "Uno.")
    messages = talk.wait(chat)
    assert [(m.role, m.parent) for m in messages[2:]] == [("user", None), ("assistant", messages[2].id)]
    assert [m.content for m in messages if m.role == "user"] == ["One.", "Uno."]
    assert messages[1].content == first.content


@pytest.mark.slow
def test_a_regenerated_response_differs_and_can_be_continued(talk: Talk) -> None:
    chat = talk.new()
    one, first = talk.send(chat, "One.")
    talk.service.regenerate(chat, number(first))
    again = talk.wait(chat)[-1]
    assert (again.parent, again.checkpoint) == (one.id, "base")
    assert again.detail["token_ids"] != first.detail["token_ids"] and again.detail["seed"] != first.detail["seed"]
    messages = talk.send(chat, "Two.", number(one), after={"base": number(first)})
    two = messages[-2]
    assert two.detail["after"] == {"base": first.id}
    known = tree.by_id(messages)
    assert [m.id for m in tree.conversation(known, two, "base")] == [one.id, first.id, two.id]


@pytest.mark.slow
def test_an_edited_response_is_part_of_the_next_prompt(talk: Talk) -> None:
    chat = talk.new()
    one, first = talk.send(chat, "One.")
    changed = talk.service.edit(chat, number(first), "I said nothing.")
    assert isinstance(changed, ChatMessage)
    assert (changed.content, changed.parent, changed.detail["of"]) == ("I said nothing.", one.id, first.id)
    kept = talk.send(chat, "Two.", number(one), after={"base": number(first)})[-1]
    told = talk.send(chat, "Two.", number(one), after={"base": number(changed)})[-1]
    assert told.detail["prompt_tokens"] != kept.detail["prompt_tokens"]
    assert told.detail["seed"] == kept.detail["seed"] == turn_seed(3, 1)


def test_a_stopped_response_keeps_its_text(talk: Talk) -> None:
    chat = talk.new(sampling=LONG)
    turn = talk.service.send(chat, "Go on.", None)
    wait_until(lambda: text_of(turn))
    with pytest.raises(RunError, match="being written"):
        talk.service.send(chat, "Too early.", None)
    talk.service.stop(chat)
    answer = talk.wait(chat)[-1]
    assert answer.status == "stopped" and answer.content and answer.detail["tokens"] < 1500
    assert len(chats.messages(talk.db, chat)) == 2


def test_a_late_subscriber_receives_the_whole_text(talk: Talk) -> None:
    chat = talk.new(sampling={**LONG, "max_new_tokens": 300})
    turn = talk.service.send(chat, "Go on.", None)
    wait_until(lambda: len(text_of(turn)) > 20)
    now = turn.state()
    answer = talk.wait(chat)[-1]
    wait_until(lambda: turn.state().ended)
    assert not now.ended and answer.content.startswith(now.messages[-1].content)
    assert turn.state().messages == [tree.without_tokens(message) for message in chats.messages(talk.db, chat)]
    assert [message.id for message in now.messages] == [answer.parent, answer.id]


@pytest.mark.slow
def test_a_killed_model_is_a_failed_answer_and_the_next_message_works(talk: Talk) -> None:
    chat = talk.new(sampling=LONG)
    turn = talk.service.send(chat, "Go on.", None)
    wait_until(lambda: text_of(turn))
    os.kill(talk.service.process.state()["pid"], signal.SIGKILL)
    user, failed = talk.wait(chat)
    assert failed.status == "failed" and failed.detail["error"]["kind"] == "process"
    assert "was killed" in failed.detail["error"]["what"]
    talk.service.change(chat, changes={"sampling": SHORT})
    with pytest.raises(RunError, match="There is no response to continue"):
        talk.service.send(chat, "And?", number(user))
    talk.service.regenerate(chat, number(failed))
    assert talk.wait(chat)[-1].status == "done"


def test_a_failed_checkpoint_is_skipped_and_the_others_continue(talk: Talk) -> None:
    chat = talk.new("rl@3")
    user, _, other = talk.send(chat, "One.")
    chats.write(talk.db, number(other), status="failed")
    messages = talk.send(chat, "Two.", number(user))
    assert [m.checkpoint for m in messages[4:]] == ["base"]


def test_deleting_a_chat_stops_its_responses(talk: Talk) -> None:
    chat = talk.new(sampling=LONG)
    turn = talk.service.send(chat, "Go on.", None)
    wait_until(lambda: text_of(turn))
    talk.service.remove(chat)
    wait_until(lambda: talk.service.live(chat) is None)
    assert chats.messages(talk.db, chat) == []


# -- what is refused -----------------------------------------------------------------------------------------------
def test_a_message_of_five_megabytes_is_refused_and_not_stored(talk: Talk) -> None:
    chat = talk.new()
    with pytest.raises(DataError, match=r"has 5,000,000 characters, and at most 20,000 are taken"):
        talk.service.send(chat, "x" * 5_000_000, None)
    with pytest.raises(DataError, match="empty"):
        talk.service.send(chat, " \n", None)
    assert chats.messages(talk.db, chat) == []


@pytest.mark.parametrize(
    "checkpoint",
    [
        "../../etc",
        "base/../x",
        "RUN:../../../etc@1",
        "RUN:warm@1/..",
        "/tmp/adapter",
        "RUN:warm",
        "warm@1",
        "RUN:warm@1\n",
    ],
)
def test_a_path_is_not_a_checkpoint(talk: Talk, checkpoint: str) -> None:
    with pytest.raises(ConfigError, match="not a checkpoint"):
        talk.service.create({"model": talk.model, "checkpoints": [checkpoint.replace("RUN", str(talk.run))]})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoints": ["RUN:warm@9"]}, "no such checkpoint.*rl@3, warm@1"),
        ({"checkpoints": ["999:warm@1"]}, "There is no run 999"),
        ({"model": "/etc"}, "not known to the workspace"),
        ({"model": "org/other"}, "not known to the workspace"),
        ({"checkpoints": ["base", "base"]}, "named twice"),
        ({"checkpoints": []}, "checkpoints"),
        ({"checkpoints": ["base", "RUN:warm@1", "RUN:warm@2", "RUN:rl@3", "RUN:rl@4"]}, "checkpoints"),
        ({"sampling": {**SHORT, "temperature": -1}}, r"sampling\.temperature"),
        ({"sampling": {**SHORT, "temperature": float("nan")}}, r"sampling\.temperature"),
        ({"sampling": {**SHORT, "max_new_tokens": 10**9}}, r"sampling\.max_new_tokens"),
        ({"sampling": {**SHORT, "top_p": 0}}, r"sampling\.top_p"),
        ({"sampling": {**SHORT, "seed": -1}}, r"sampling\.seed"),
        ({"folder": "/tmp"}, "folder"),
        ({"source": "run:../x"}, "Unknown source of a task"),
        ({"source": "preset:../../pyproject"}, "no such preset"),
        ({"source": "preset:quickstart", "split": "all"}, "split"),
        ({"source": "preset:quickstart", "index": -1}, "index"),
    ],
)
def test_wrong_settings_are_errors_with_the_field_or_the_known_values(
    talk: Talk, change: dict[str, Any], words: str
) -> None:
    data = json.loads(json.dumps({"model": talk.model, **change}).replace("RUN", str(talk.run)))
    with pytest.raises(RL2FError) as caught:
        talk.service.create(data)
    import re

    assert re.search(words, str(caught.value)), str(caught.value)


def test_a_checkpoint_of_another_base_is_refused(talk: Talk) -> None:
    other = talk.like(folder="o", model="other")
    with pytest.raises(RunError, match="was trained on other"):
        talk.service.create({"model": talk.model, "checkpoints": [f"{other.id}:warm@1"]})


def test_a_checkpoint_whose_row_points_out_of_the_workspace_is_not_read(talk: Talk, tmp_path: Path) -> None:
    from chat_helpers import save_adapter

    from jobs.db.models import Checkpoint

    outside = save_adapter(Path(talk.model), tmp_path / "outside", 1)
    with talk.db.write() as session:
        path = os.path.relpath(outside, talk.workspace.folder(runs.get(talk.db, talk.run).folder))
        session.add(Checkpoint(run_id=talk.run, name="bad@1", stage="bad", step=1, path=path, sha256="0", time=0))
    with pytest.raises(RL2FError, match="not on the disk any more"):
        talk.new("bad@1")


# -- played tasks --------------------------------------------------------------------------------------------------
def turns_of(messages: list[ChatMessage], leaf: ChatMessage) -> list[Any]:
    return tree.turns(tree.chain(tree.by_id(messages), leaf))


@pytest.mark.slow
def test_an_interactive_task_with_the_scripted_teacher_is_recorded(talk: Talk) -> None:
    chat = talk.play("rl@3")
    while leaf_of := [m for m in chats.messages(talk.db, chat) if m.role == "assistant" and not m.detail.get("ended")]:
        latest = {m.checkpoint: number(m) for m in leaf_of}
        over = {m.checkpoint for m in chats.messages(talk.db, chat) if m.detail.get("ended")}
        open_ = {checkpoint: n for checkpoint, n in latest.items() if checkpoint not in over}
        if not open_:
            break
        talk.service.play_turn(chat, open_)
        talk.wait(chat)
    messages = chats.messages(talk.db, chat)
    ends = [m for m in messages if "recorded" in m.detail]
    assert sorted(m.checkpoint for m in ends) == sorted(["base", talk.name("rl@3")])
    run = runs.find(talk.db, folder="chat")
    assert run is not None and (run.kind, run.status, run.origin) == ("chat", "succeeded", "app")
    for end in ends:
        assert end.detail["recorded"]["run"] == run.id
        view = dialogues.get(talk.db, run.id or 0, end.detail["recorded"]["event"])
        assert (view.row.phase, view.row.checkpoint, view.row.stop_reason) == (
            "chat",
            end.checkpoint,
            end.detail["ended"],
        )
        attempts = [m.content for m in tree.chain(tree.by_id(messages), end) if m.role == "assistant"]
        assert [turn.attempt for turn in view.turns] == attempts
        assert all(turn.token_ids and (not turn.hint or turn.hint.teacher == "scripted") for turn in view.turns)
    hints = [m for m in messages if m.role == "teacher"]
    assert hints and all(m.detail["hint"]["leak"]["leaked"] is False for m in hints)


def test_the_student_prompt_equals_the_one_in_training(talk: Talk) -> None:
    """The same seed, task and hints, played by the engine of training and here: the same tokens."""
    from rl2f_core.config.loading import load_config
    from rl2f_core.dialogue.rollout.build import build_engine
    from rl2f_core.dialogue.rollout.engine import RolloutRequest
    from rl2f_core.models.backends.hf.backend import HFBackend

    chat = talk.play()
    for _ in range(2):
        leaf = talk.last(chat)
        if not leaf.detail.get("ended"):
            talk.service.play_turn(chat, {"base": number(leaf)})
            talk.wait(chat)
    path = talk.workspace.root / "config.yaml"
    path.write_text(RUN_YAML.replace("MODEL", talk.model))
    config = load_config(path)
    engine = build_engine(config, HFBackend(HFBackend.Config(), config.model))
    (rollout,) = engine.run([RolloutRequest(engine.environment.task("test", 0), "d", "g", 0, 3)])
    played = turns_of(chats.messages(talk.db, chat), talk.last(chat))
    assert [t.token_ids for t in played] == [t.token_ids for t in rollout.dialogue.turns]
    assert [t.hint.text for t in played[:-1]] == [t.hint.text for t in rollout.dialogue.turns[:-1] if t.hint]
    assert [t.rewards for t in played] == [t.rewards for t in rollout.dialogue.turns]
    assert talk.last(chat).detail["ended"] == rollout.dialogue.stop_reason


def test_a_persons_hint_is_screened_for_leaks(talk: Talk) -> None:
    chat = talk.play()
    answer = talk.service.answer(chat)["answer"]
    first = talk.last(chat)
    text = f"<|im_end|>It is {answer}."
    talk.service.play_turn(chat, {"base": number(first)}, "person", text)
    messages = talk.wait(chat)
    hint = next(m for m in messages if m.role == "teacher")
    report = hint.detail["hint"]["leak"]
    assert hint.detail["by"] == "person" and hint.detail["hint"]["teacher"] == "human"
    assert report["leaked"] is True and report["detector"] in ("exact", "mentions")
    start, end = report["span"]
    assert answer in hint.content[start:end] and "<|im_end|>" not in hint.content
    again = talk.service.edit(chat, number(hint), "Try the other half.")
    assert not isinstance(again, ChatMessage)
    branch = [m for m in talk.wait(chat) if m.role == "teacher" and m.parent == first.id]
    assert [m.content for m in branch] == [hint.content, "Try the other half."]
    assert branch[1].detail["hint"]["leak"]["leaked"] is False


def test_a_leak_that_ends_dialogues_ends_this_one(talk: Talk) -> None:
    config = RUN_YAML.replace("MODEL", talk.model) + "leak_detection: {action: drop}\n"
    run = talk.like(folder="d", config=config)
    chat = talk.play(source=f"run:{run.id}")
    text = f"The answer is {talk.service.answer(chat)['answer']}."
    talk.service.play_turn(chat, {"base": number(talk.last(chat))}, "person", text)
    hint = talk.wait(chat)[-1]
    assert (hint.role, hint.content, hint.detail["ended"]) == ("teacher", "", "dropped")
    assert hint.detail["hint"]["feedback"] == text and hint.detail["recorded"]
    events = read_events(talk.workspace.folder("chat") / "events.jsonl")
    kept = {e.id: e for e in events if isinstance(e, DialogueEvent)}[hint.detail["recorded"]["event"]]
    said = kept.dialogue.turns[0].hint
    assert said is not None and said.teacher == human.NAME == "human"  # a person's dialogue is data like any other
    with pytest.raises(DataError, match="no such attempt"):
        talk.service.play_turn(chat, {"base": number(hint)})


def test_a_written_attempt_is_verified_and_marked_as_edited(talk: Talk) -> None:
    chat = talk.play()
    first = talk.last(chat)
    right = f"<answer>{talk.service.answer(chat)['answer']}</answer>"
    made = talk.service.edit(chat, number(first), right)
    assert isinstance(made, ChatMessage)
    assert made.detail["turn"]["verdict"]["correct"] is True and made.detail["ended"] == "solved"
    events = read_events(talk.workspace.folder("chat") / "events.jsonl")
    kept = {e.id: e for e in events if isinstance(e, DialogueEvent)}[made.detail["recorded"]["event"]]
    assert kept.dialogue.policy == "base, edited" and kept.dialogue.turns[0].token_ids == ()
    wrong = talk.service.edit(chat, number(first), "no idea")
    assert isinstance(wrong, ChatMessage)
    assert wrong.detail["turn"]["verdict"]["parsed"] is None and "ended" not in wrong.detail


def test_an_open_dialogue_can_be_ended_and_is_recorded_once(talk: Talk) -> None:
    chat = talk.play()
    first = talk.last(chat)
    kept = talk.service.finish(chat, number(first))
    assert kept.detail["ended"] == "exhausted" and kept.detail["recorded"]
    with pytest.raises(RunError, match="ended already"):
        talk.service.finish(chat, number(first))
    with pytest.raises(RunError, match="has ended"):
        talk.service.play_turn(chat, {"base": number(first)})


def test_tasks_of_two_configurations_have_different_ids(talk: Talk) -> None:
    plain = talk.play()
    wide = runs.get(talk.db, talk.run).config.replace("size: 4", "size: 64")
    run = talk.like(folder="w", config=wide)
    other = talk.play(source=f"run:{run.id}")
    tasks = set()
    for chat in (plain, other):
        noted = talk.service.finish(chat, number(talk.last(chat))).detail["recorded"]
        tasks.add(dialogues.get(talk.db, noted["run"], noted["event"]).event.task.id)
    assert len(tasks) == 2 and all(task.startswith("guess_number/test/0~") for task in tasks)


def test_the_problem_cannot_be_changed_and_modes_do_not_mix(talk: Talk) -> None:
    played, chatted = talk.play(), talk.new()
    with pytest.raises(RunError, match="prompt of the task"):
        talk.service.edit(played, number(chats.messages(talk.db, played)[0]), "Easier, please.")
    with pytest.raises(RunError, match="an interactive task"):
        talk.service.send(played, "Hi.", None)
    with pytest.raises(RunError, match="not an interactive task"):
        talk.service.play_turn(chatted, {})
    with pytest.raises(RunError, match="has attempts already"):
        talk.service.play_turn(played, {})


# -- export and settings -------------------------------------------------------------------------------------------
def test_every_branch_is_a_line_and_every_judgement_a_pair(talk: Talk) -> None:
    chat = talk.new("rl@3", system="Be short.")
    one, base, tuned = talk.send(chat, "One.")
    talk.send(chat, "Two.", number(one))
    talk.service.regenerate(chat, number(base))
    talk.wait(chat)
    talk.service.rate(chat, number(tuned), number(base), "better")
    row, messages = talk.service.read(chat)
    found = [json.loads(line) for line in lines(row, messages, "messages")]
    assert [[m["role"] for m in f["messages"]] for f in found] == [
        ["system", "user", "assistant", "user", "assistant"],
        ["system", "user", "assistant", "user", "assistant"],
        ["system", "user", "assistant"],
    ]
    assert found[0]["messages"][0]["content"] == "Be short."
    (pair,) = [json.loads(line) for line in lines(row, messages, "preference")]
    assert pair["prompt"] == found[0]["messages"][:2]
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == (tuned.content, base.content)
    with pytest.raises(ConfigError, match="no such format"):
        list(lines(row, messages, "csv"))


def test_an_interactive_task_is_exported_with_hints_as_user_messages(talk: Talk) -> None:
    chat = talk.play()
    talk.service.play_turn(chat, {"base": number(talk.last(chat))})
    talk.wait(chat)
    row, messages = talk.service.read(chat)
    (found,) = [json.loads(line) for line in lines(row, messages, "messages")]
    assert [m["role"] for m in found["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert found["correct"] == talk.last(chat).detail["turn"]["verdict"]["correct"]


def test_the_service_passes_its_limits_to_the_process(talk: Talk) -> None:
    limits = ServerLimits(idle_seconds=5, memory_gb=2)
    assert ChatService(talk.db, talk.workspace, limits).process.limits == limits
    standard = ChatService(talk.db, talk.workspace).process.limits
    assert (standard.idle_seconds, standard.memory_gb, standard.reserve_gb) == (600.0, 0.0, 0.5)
