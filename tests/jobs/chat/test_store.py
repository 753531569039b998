"""Conversations in the database: the tree and its branches, the list, judgements, and what reads them backwards."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jobs.chat import tree
from jobs.db.engine import Database
from jobs.db.models import Chat, ChatMessage
from jobs.db.queries import chats
from rl2f_core.errors import DataError


def new(db: Database, title: str = "t") -> int:
    made = chats.create(db, title, "chat", {}).id
    assert made is not None
    return made


def say(db: Database, chat: int, role: str, text: str, parent: int | None = None, **more: Any) -> int:
    made = ChatMessage(chat_id=chat, parent=parent, role=role, content=text, time=time.time(), **more)
    (kept,) = chats.add(db, chat, [made])
    assert kept.id is not None
    return kept.id


def words(messages: list[ChatMessage]) -> list[str]:
    return [m.content for m in messages]


def test_each_branch_has_its_own_history(db: Database) -> None:
    chat = new(db)
    one = say(db, chat, "user", "one")
    base = say(db, chat, "assistant", "base one", one, checkpoint="base")
    tuned = say(db, chat, "assistant", "tuned one", one, checkpoint="3:a@1")
    again = say(db, chat, "assistant", "base one again", one, checkpoint="base")
    two = say(db, chat, "user", "two", one, detail={"after": {"base": base, "3:a@1": tuned}})
    other = say(db, chat, "user", "two edited", one, detail={"after": {"base": again, "3:a@1": tuned}})
    known = tree.by_id(chats.messages(db, chat))
    assert words(tree.conversation(known, known[two], "base")) == ["one", "base one", "two"]
    assert words(tree.conversation(known, known[other], "base")) == ["one", "base one again", "two edited"]
    assert words(tree.conversation(known, known[other], "3:a@1")) == ["one", "tuned one", "two edited"]
    assert [m.id for m in tree.responses(known, one, "base")] == [base, again]


def test_a_later_checkpoint_continues_the_responses_of_the_first(db: Database) -> None:
    chat = new(db)
    one = say(db, chat, "user", "one")
    a = say(db, chat, "assistant", "a1", one, checkpoint="base")
    two = say(db, chat, "user", "two", one, detail={"after": {"base": a}})
    b = say(db, chat, "assistant", "b2", two, checkpoint="3:a@1")
    three = say(db, chat, "user", "three", two, detail={"after": {"3:a@1": b}})
    known = tree.by_id(chats.messages(db, chat))
    assert words(tree.conversation(known, known[three], "3:a@1")) == ["one", "a1", "two", "b2", "three"]


def test_a_played_dialogue_is_the_chain_of_its_branch(db: Database) -> None:
    chat = new(db)
    root = say(db, chat, "user", "problem")
    first = say(db, chat, "assistant", "1", root, checkpoint="base")
    hint = say(db, chat, "teacher", "low", first, checkpoint="base")
    say(db, chat, "teacher", "high", first, checkpoint="base")
    leaf = say(db, chat, "assistant", "2", hint, checkpoint="base")
    known = tree.by_id(chats.messages(db, chat))
    assert words(tree.chain(known, known[leaf])) == ["problem", "1", "low", "2"]


def test_a_cycle_in_the_tree_is_an_error(db: Database) -> None:
    loop = {
        1: ChatMessage(id=1, chat_id=1, parent=2, role="user"),
        2: ChatMessage(id=2, chat_id=1, parent=1, role="teacher"),
    }
    with pytest.raises(DataError, match="broken"):
        tree.chain(loop, loop[1])


def test_the_list_has_the_last_changed_first_and_pages_both_ways(db: Database) -> None:
    numbers = [new(db, f"chat {i}") for i in range(7)]
    say(db, numbers[2], "user", "newest change")
    first = chats.page(db, limit=3)
    assert [c.id for c in first.rows] == [numbers[2], numbers[6], numbers[5]]
    assert first.total == 7 and first.before is None
    second = chats.page(db, cursor=first.after, limit=3)
    assert [c.id for c in second.rows] == [numbers[4], numbers[3], numbers[1]]
    assert [c.id for c in chats.page(db, cursor=second.before, limit=3).rows] == [c.id for c in first.rows]
    assert chats.page(db, cursor=second.after, limit=3).after is None


@pytest.mark.parametrize(("search", "found"), [("BETA", [1]), ("needle", [0]), ("100%", [2]), ("_", []), ("gone", [])])
def test_the_search_looks_into_titles_and_messages_and_takes_signs_as_they_are(
    db: Database, search: str, found: list[int]
) -> None:
    numbers = [new(db, title) for title in ("alpha", "beta", "at 100% of it")]
    say(db, numbers[0], "user", "a needle in hay")
    assert [numbers.index(c.id or 0) for c in chats.page(db, search).rows] == found


def test_a_chat_is_renamed_and_deleted_with_its_messages(db: Database) -> None:
    chat = new(db)
    say(db, chat, "user", "x")
    assert chats.change(db, chat, title="  my \n chat ").title == "my chat"
    with pytest.raises(DataError, match="cannot be empty"):
        chats.change(db, chat, title="  ")
    chats.remove(db, chat)
    assert chats.messages(db, chat) == [] and chats.page(db).rows == []
    for act in (chats.get, chats.remove):
        with pytest.raises(chats.UnknownChatError, match=f"There is no chat {chat}"):
            act(db, chat)
    with pytest.raises(chats.UnknownChatError):
        say(db, chat, "user", "to nobody")
    assert chats.write(db, 1, content="late") is None


def test_a_preference_is_stored_on_both_responses_and_can_be_removed(db: Database) -> None:
    chat = new(db)
    one = say(db, chat, "user", "one")
    a, b = (say(db, chat, "assistant", name, one, checkpoint=name) for name in ("base", "3:a@1"))
    first, second = chats.prefer(db, a, b, "better")
    assert first.detail["preferences"] == {str(b): "better"} and second.detail["preferences"] == {str(a): "worse"}
    chats.prefer(db, b, a, "tie")
    assert [m.detail["preferences"] for m in chats.messages(db, chat)[1:]] == [{str(b): "tie"}, {str(a): "tie"}]
    first, second = chats.prefer(db, a, b, None)
    assert first.detail["preferences"] == second.detail["preferences"] == {}


def test_unfinished_responses_of_a_dead_server_are_failed_with_their_text(db: Database) -> None:
    chat = new(db)
    left = say(db, chat, "assistant", "half a sen", None, checkpoint="base", status="streaming")
    ended = say(db, chat, "assistant", "done", None, checkpoint="base")
    chats.close_abandoned(db)
    known = tree.by_id(chats.messages(db, chat))
    found = known[left]
    assert (found.status, found.content) == ("failed", "half a sen")
    assert "ended while" in found.detail["error"]["what"]
    assert known[ended].status == "done"


def test_the_browser_gets_no_tokens(db: Database) -> None:
    detail = {"token_ids": [1], "logprobs": [-1.0], "tokens": 1, "turn": {"token_ids": [1], "logprobs": [], "index": 0}}
    shown = tree.without_tokens(ChatMessage(id=1, chat_id=1, role="assistant", content="x", detail=detail, time=0.0))
    assert shown.detail == {"tokens": 1, "turn": {"index": 0}} and shown.content == "x"


def test_deleting_a_chat_leaves_the_others(db: Database) -> None:
    keep, drop = new(db), new(db)
    say(db, keep, "user", "stays")
    say(db, drop, "user", "goes")
    chats.remove(db, drop)
    assert words(chats.messages(db, keep)) == ["stays"]
    with db.read() as session:
        assert session.get(Chat, keep) is not None
