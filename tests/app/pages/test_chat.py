"""The page Chat without a browser: branches, settings from an address, and messages as elements."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from app.endpoints.chat import ChatEndpoints, ChatInfo, ChatMemory, ChatPage, ChatState
from app.pages.chat import view
from app.pages.chat.settings import check_message, draft, offered_checkpoints, parse_index
from app.pages.chat.tab import ChatTab
from app.pages.chat.tree import MessageTree
from jobs.chat.checkpoints import ChatRun
from jobs.chat.turn import TurnUpdate
from jobs.db.models import MessageSummary
from rl2f_core.errors import ConfigError, DataError

RUNS = [
    ChatRun(run=7, name="seven", model="small", environment="guess", checkpoints=["warm@2", "rl@3"]),
    ChatRun(run=5, name="five", model="other", environment="maze", checkpoints=["rl@9"]),
]
MODELS = ["other", "small"]
BOTH = ["base", "7:rl@3"]


def message(number: int, role: str, parent: int | None = None, checkpoint: str = "", **more: Any) -> MessageSummary:
    base: Any = {"id": number, "chat_id": 1, "role": role, "parent": parent, "checkpoint": checkpoint, "time": 0.0}
    return MessageSummary(**{**base, "content": f"text {number}", **more})


def conversation() -> list[MessageSummary]:
    """Return a question with two responses of the base and one of a checkpoint, and a second question."""
    return [
        message(1, "user"),
        message(2, "assistant", 1, "base"),
        message(3, "assistant", 1, "7:rl@3"),
        message(4, "assistant", 1, "base"),
        message(5, "user", 1, detail={"after": {"base": 2, "7:rl@3": 3}}),
        message(6, "assistant", 5, "base"),
    ]


def task(*, ended: str | None = None) -> list[MessageSummary]:
    """Return a task with an incorrect attempt, a leaking hint and a second attempt."""
    leak = {"leaked": True, "detector": "exact", "evidence": "it names 3", "answer_fraction": 1.0, "action": "flag"}
    hint = {"text": "text 3", "leak": {**leak, "span": [0, 4]}}
    wrong = {"turn": {"verdict": {"correct": False, "parsed": "2"}}}
    last = {"turn": {"verdict": {"correct": False, "parsed": None}}, "tokens": 8, "first": 0.1, "seconds": 0.8}
    return [
        message(1, "user"),
        message(2, "assistant", 1, "base", detail=wrong),
        message(3, "teacher", 2, "base", detail={"hint": hint, "by": "person"}),
        message(4, "assistant", 3, "base", detail={**last, **({"ended": ended} if ended else {})}),
    ]


def tab(messages: list[MessageSummary], mode: str = "chat", **settings: Any) -> ChatTab:
    fields: Any = {"id": 1, "title": "A title", "mode": mode, "created": 0.0, "changed": 0.0}
    given = {"model": "small", "checkpoints": BOTH, "max_turns": 3, "source": "run:7", **settings}
    chat = ChatInfo(**fields, settings=given, environment=None, task=None)
    made = ChatTab(runs=RUNS)
    made.open(ChatState(chat=chat, messages=messages, streaming=False))
    return made


def text(node: object) -> str:
    return json.dumps(node, ensure_ascii=False)


# -- branches ----------------------------------------------------------------------------------------------------------
def test_the_newest_branch_is_shown_and_continued() -> None:
    tree = MessageTree(conversation(), BOTH)
    tree.select(6)
    assert [turn.user.id for turn in tree.turns()] == [1, 5]
    assert {name: each.id for name, each in tree.turns()[0].responses.items()} == {"base": 2, "7:rl@3": 3}
    assert tree.continued() == (5, {"base": 6})


def test_another_alternative_hides_the_turns_that_continue_the_first_one() -> None:
    tree = MessageTree(conversation(), BOTH)
    tree.select(4)
    assert [turn.user.id for turn in tree.turns()] == [1]
    assert tree.continued() == (1, {"base": 4, "7:rl@3": 3})
    assert [each.id for each in tree.siblings(tree.messages[4])] == [2, 4]


def test_a_new_message_is_shown_and_a_changed_one_stays_where_it_is() -> None:
    tree = MessageTree(conversation(), BOTH)
    tree.select(2)
    tree.put(message(7, "assistant", 1, "base", status="streaming", content=""))
    assert tree.turns()[0].responses["base"].id == 7
    tree.select(2)
    tree.put(message(7, "assistant", 1, "base"))
    assert tree.turns()[0].responses["base"].id == 2


def test_a_failed_response_is_not_continued() -> None:
    tree = MessageTree([message(1, "user"), message(2, "assistant", 1, "base", status="failed")], BOTH)
    assert tree.continued() == (1, {})


def test_shown_responses_are_continued_also_if_their_checkpoint_is_not_selected_any_more() -> None:
    tree = MessageTree(conversation(), ["7:rl@3"])
    tree.select(4)
    assert tree.continued() == (1, {"base": 4, "7:rl@3": 3})


def test_the_alternative_of_a_failed_response_is_not_continued_instead() -> None:
    tree = MessageTree(conversation()[:3], BOTH)
    tree.put(message(7, "assistant", 1, "base", status="failed"))
    assert tree.continued() == (1, {"base": 7, "7:rl@3": 3})  # the service refuses it


def test_an_attempt_waits_for_a_hint_until_its_dialogue_ends() -> None:
    assert list(MessageTree(task(), BOTH).waiting()) == ["base"]
    assert MessageTree(task(ended="solved"), BOTH).waiting() == {}
    open_tab = tab(task(), "play")
    assert open_tab.targets() == {"base": 4} and not open_tab.is_over
    open_tab.without_hint.add("base")
    assert open_tab.targets() == {}
    assert tab(task(ended="exhausted"), "play").is_over


# -- turns -------------------------------------------------------------------------------------------------------------
class StoredChat:
    """Endpoints of the chat that a tab shows."""

    def __init__(self, open_tab: ChatTab) -> None:
        assert open_tab.chat is not None
        messages = list(open_tab.tree.messages.values())
        self.state = ChatState(chat=open_tab.chat, messages=messages, streaming=True)

    def get_chat(self, number: int) -> ChatState:
        return self.state

    def list_chats(self, search: str, cursor: str | None) -> object:
        return ChatPage()

    def chat_memory(self) -> object:
        return ChatMemory()


def update(*messages: MessageSummary, ended: bool = False) -> TurnUpdate:
    return TurnUpdate(status="", messages=list(messages), error=None, ended=ended)


def wait_for_update(open_tab: ChatTab) -> None:
    """Wait until the thread of the turn has received an update that the tab has not read."""
    end = time.monotonic() + 30
    while open_tab.turn is not None and open_tab.turn.update is open_tab.turn.shown:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_turn_is_followed_until_it_ends() -> None:
    open_tab = tab([message(1, "user")])
    chat = cast(ChatEndpoints, StoredChat(open_tab))
    streaming = message(2, "assistant", 1, "base", status="streaming", content="so")
    updates: queue.Queue[TurnUpdate] = queue.Queue()
    updates.put(update(streaming))
    open_tab.follow(chat, iter(updates.get, None))
    assert open_tab.is_busy and open_tab.tree.messages[2].content == "so"
    updates.put(update(streaming.model_copy(update={"content": "so far"})))
    wait_for_update(open_tab)
    assert not open_tab.read_turn(chat)  # only text has changed
    assert open_tab.is_busy and open_tab.tree.messages[2].content == "so far"
    updates.put(update(streaming.model_copy(update={"content": "so far.", "status": "done"}), ended=True))
    wait_for_update(open_tab)
    assert open_tab.read_turn(chat)
    assert not open_tab.is_busy and open_tab.tree.messages[2].status == "done" and open_tab.error is None


@pytest.mark.parametrize("started", [False, True])
def test_an_error_ends_the_turn_and_is_shown(started: bool) -> None:
    def updates() -> Iterator[TurnUpdate]:
        if started:
            yield update()
        raise DataError("The disk is full.")

    open_tab = tab([message(1, "user")])
    chat = cast(ChatEndpoints, StoredChat(open_tab))
    open_tab.follow(chat, updates())
    wait_for_update(open_tab)
    open_tab.read_turn(chat)
    assert not open_tab.is_busy and open_tab.error is not None and open_tab.error["what"] == "The disk is full."


def test_a_tab_that_opens_another_chat_leaves_the_turn() -> None:
    open_tab = tab([message(1, "user")])
    updates: queue.Queue[TurnUpdate] = queue.Queue()
    updates.put(update())
    open_tab.follow(cast(ChatEndpoints, StoredChat(open_tab)), iter(updates.get, None))
    open_tab.start_draft()
    updates.put(update(message(2, "assistant", 1, "base"), ended=True))
    assert not open_tab.is_busy and open_tab.tree.messages == {}


# -- settings ----------------------------------------------------------------------------------------------------------
def test_checkpoints_in_the_address_choose_the_base_model() -> None:
    found, error = draft({"checkpoints": "base,5:rl@9"}, MODELS, RUNS, [])
    assert error is None
    assert found["model"] == "other" and found["checkpoints"] == ["base", "5:rl@9"] and found["source"] == "run:5"


def test_a_checkpoint_that_does_not_fit_is_named() -> None:
    found, error = draft({"checkpoints": "7:rl@3,5:rl@9,999:rl@1"}, MODELS, RUNS, [])
    assert found["checkpoints"] == ["7:rl@3"]
    assert error is not None and error["what"].startswith("5:rl@9, 999:rl@1 does not fit this base model")


def test_a_new_chat_has_the_base_and_its_newest_checkpoint() -> None:
    found, error = draft({}, MODELS, RUNS, [])
    assert error is None and found["model"] == "small" and found["checkpoints"] == BOTH
    assert draft({"model": "other"}, MODELS, RUNS, [])[0]["checkpoints"] == ["base", "5:rl@9"]
    assert draft({"checkpoints": "999:rl@1"}, MODELS, RUNS, [])[0]["checkpoints"] == ["base"]


def test_a_task_is_attempted_by_base_and_newest_checkpoint_of_its_run() -> None:
    found, _ = draft({"play": "1", "source": "run:7", "index": "4"}, MODELS, RUNS, ["quickstart"])
    assert found == {"model": "small", "checkpoints": BOTH, "source": "run:7", "index": "4"}
    empty, _ = draft({}, [], [], ["quickstart"])
    assert empty == {"model": "", "checkpoints": ["base"], "source": "preset:quickstart", "index": ""}


def test_only_checkpoints_of_the_base_model_are_offered() -> None:
    assert [value for _, value in offered_checkpoints(RUNS, "small")] == ["base", "7:rl@3", "7:warm@2"]


def test_a_task_number_is_a_whole_number_or_random() -> None:
    assert (parse_index(" 12 "), parse_index("")) == (12, None)
    with pytest.raises(ConfigError, match="not a whole number"):
        parse_index("-1")


@pytest.mark.parametrize(("words", "error"), [(" \n", "empty"), ("x" * 11, "more than 10 characters")])
def test_an_empty_or_long_message_is_refused(words: str, error: str) -> None:
    with pytest.raises(DataError, match=error):
        check_message(words, 10)


# -- elements ----------------------------------------------------------------------------------------------------------
def test_alternatives_and_ratings_are_offered_for_shown_responses() -> None:
    shown = text(view.current(tab(conversation()[:4])))
    assert "2/2" in shown and "base is better" in shown and "7:rl@3 · seven" in shown
    read_only = tab(conversation()[:4])
    read_only.is_writable = False
    assert "Regenerate" not in text(view.current(read_only))


def test_a_rating_is_pressed_and_pressing_it_again_removes_it() -> None:
    rated = [message(1, "user"), message(2, "assistant", 1, "base", detail={"preferences": {"3": "better"}})]
    shown = text(view.current(tab([*rated, message(3, "assistant", 1, "7:rl@3")])))
    assert shown.count('"aria-pressed": "true"') == 1 and '"data-choice": ""' in shown


def test_a_leaking_hint_is_marked_and_explained() -> None:
    shown = text(view.current(tab(task(), "play")))
    assert "⚑ exact leak" in shown and "it names 3" in shown and "100% of the answer" in shown and "tx-found" in shown
    assert "✗ incorrect" in shown and "? unparsable" in shown and "attempt 2 of 3" in shown
    assert "Gold answer" not in shown


def test_an_ended_dialogue_links_to_its_recording() -> None:
    messages = task(ended="exhausted")
    messages[-1].detail["recorded"] = {"run": 3, "event": "e1"}
    shown = text(view.current(tab(messages, "play")))
    assert "no attempts left" in shown and "/dialogues?run=3&dialogue=e1&turn=0" in shown and "End here" not in shown


def test_settings_that_an_earlier_version_did_not_store_have_defaults() -> None:
    shown = text(view.head(tab(conversation())))
    assert "seed 0 · T 0.7 · 256 tokens" in shown


def test_a_streaming_response_has_no_buttons() -> None:
    streaming = [message(1, "user"), message(2, "assistant", 1, "base", status="streaming", content="so far")]
    shown = text(view.current(tab(streaming))[0][-2:])  # type: ignore[index]
    assert "ch-streaming" in shown and "so far" in shown and "Regenerate" not in shown


# -- a person plays ------------------------------------------------------------------------------------------------
def episode(*, ended: str | None = None) -> list[MessageSummary]:
    """Return a task with two actions of a person, an empty hint between them, and a checkpoint's first action."""

    def step(observation: str, **verdict: Any) -> Any:
        base = {"correct": False, "parsed": "go", "well_formed": True, "reward": -1.0, "observation": observation}
        return {"turn": {"verdict": {**base, **verdict}}}

    last = step("You see a wall.", parsed="fly", well_formed=False)
    return [
        message(1, "user"),
        message(2, "assistant", 1, "person", detail=step("You moved.")),
        message(3, "teacher", 2, "person", content="", detail={"hint": {"text": ""}, "by": "environment"}),
        message(4, "assistant", 3, "person", detail={**last, **({"ended": ended} if ended else {})}),
        message(5, "assistant", 1, "base", detail=step("You moved.")),
    ]


class Actions(StoredChat):
    """Endpoints of a stateful task; they keep the actions that were taken."""

    taken: tuple[tuple[str, int | None], ...] = ()

    def list_task_actions(self, number: int, after: int | None) -> list[str]:
        return [f"go on from {after}", "stop"]

    def take_task_action(self, number: int, action: str, after: int | None) -> list[MessageSummary]:
        self.taken = (*self.taken, (action, after))
        return [
            message(9, "assistant", 4, "person", detail={"turn": {"verdict": {"correct": True}}, "ended": "solved"})
        ]


def test_only_checkpoints_receive_hints_and_the_person_is_no_checkpoint() -> None:
    open_tab = tab(episode(), "play")
    assert open_tab.targets() == {"base": 5} and open_tab.sampled() == ["base"]
    assert not tab(episode(ended="solved"), "play").is_over  # the checkpoint has not ended
    assert tab(episode(ended="solved")[:4], "play").is_over


def test_an_episode_shows_actions_rewards_and_observations_without_empty_hints() -> None:
    shown = text(view.current(tab(episode(), "play")))
    assert '"m2"' in shown and '"m3"' not in shown and '["b", {"class": "rl-student"}, "You"]' in shown
    assert "reward -1" in shown and "? invalid" in shown and "You see a wall." in shown
    assert "choose an action" in shown and shown.count('"Regenerate"') == 1


def test_a_person_acts_after_the_last_attempt_of_the_shown_branch() -> None:
    open_tab = tab(episode(), "play")
    chat = Actions(open_tab)
    open_tab.read_actions(cast(ChatEndpoints, chat))
    assert open_tab.actions == ["go on from 4", "stop"]
    open_tab.act(cast(ChatEndpoints, chat), "go on from 2")  # a button of an older state
    assert chat.taken == ()
    open_tab.act(cast(ChatEndpoints, chat), "stop")
    assert chat.taken == (("stop", 4),)


def test_an_ended_episode_has_no_actions_and_a_chat_has_none_at_all() -> None:
    open_tab = tab(episode(ended="exhausted"), "play")
    open_tab.read_actions(cast(ChatEndpoints, Actions(open_tab)))
    assert open_tab.actions == []
    plain = tab(conversation())
    plain.read_actions(cast(ChatEndpoints, Actions(plain)))
    assert plain.actions is None
