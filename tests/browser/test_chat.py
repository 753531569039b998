"""Page Chat in a browser: base beside a checkpoint, stop, branches, ratings, and an interactive task."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from playwright.sync_api import TimeoutError, expect

Visit = Callable[..., Any]
SLOW = 120_000
"""Milliseconds: the model process has to start."""
HOSTILE = (
    "<img src=x onerror=alert(1)> **bold** ![x](http://example.org/x.png) <script>alert(2)</script>"
    " ${document.title='owned'} {{document.title='owned'}} [x](javascript:alert(3))"
)


def field(page: Any) -> Any:
    return page.locator("#chat-field textarea")


def send(page: Any, text: str) -> None:
    field(page).fill(text)
    field(page).press("Enter")


def ended(page: Any) -> None:
    """Until nothing is being written."""
    page.wait_for_function("!document.querySelector('#chat-stop, .ch-streaming')", timeout=SLOW)


def stop(page: Any) -> None:
    """Stop a response; on a slow machine it may have ended before, then stop one of a new chat, which is empty."""
    button = page.locator("#chat-stop")
    for _ in range(3):
        if button.count() == 0:
            page.click("#chat-new")
            page.wait_for_selector("h1:has-text('New chat')")
            send(page, "Again.")
            button.wait_for(timeout=SLOW)
        with contextlib.suppress(TimeoutError):  # it went while it was clicked
            button.click(timeout=10_000)
        ended(page)
        if page.locator(".ch-numbers:has-text('stopped')").count():
            return
    pytest.fail("No response was stopped.")


def responses(page: Any) -> list[str]:
    return page.locator(".ch-message[data-role=assistant] .tx-block").all_inner_texts()


@pytest.fixture
def chat(visit: Visit, server: Any) -> Callable[..., Any]:
    """`chat("Hello.", tokens=8)`: a new chat of the base and a checkpoint with one message sent."""

    def start(text: str, tokens: int = 8, temperature: float = 1.0, wait: bool = True) -> Any:
        page = visit(f"/chat?checkpoints=base,{server.run}:rl@3")
        for label, value in (("Tokens", tokens), ("Temperature", temperature)):
            page.get_by_label(label, exact=True).fill(str(value))
            page.get_by_label(label, exact=True).blur()
        send(page, text)
        page.wait_for_selector(".ch-message[data-role=assistant]", timeout=SLOW)
        if wait:
            ended(page)
        return page

    return start


@pytest.mark.slow
def test_base_and_checkpoint_respond_side_by_side_and_remain_after_a_reload(
    chat: Callable[..., Any], server: Any, no_overflow: Callable[[Any], None]
) -> None:
    page = chat("What is 12 + 34?")
    names = page.locator(".ch-message[data-role=assistant] .ch-who b").all_inner_texts()
    assert names == ["base", f"{server.run}:rl@3 · recorded"]
    boxes = [page.locator(".ch-message[data-role=assistant]").nth(i).bounding_box() for i in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    before = responses(page)
    assert len(before) == 2 and re.search(r"chat\?chat=\d+$", page.url)
    assert page.locator(".ch-numbers").first.inner_text().startswith(("1", "2", "3", "4", "5", "6", "7", "8"))
    page.reload()
    page.wait_for_selector(".ch-message[data-role=assistant]")
    assert responses(page) == before
    assert page.locator(".ch-item[aria-current]").inner_text().startswith("What is 12 + 34?")
    no_overflow(page)


@pytest.mark.slow
def test_the_stop_key_ends_a_response_and_keeps_it(chat: Callable[..., Any]) -> None:
    page = chat("Go on.", tokens=1800, temperature=5.0, wait=False)
    page.wait_for_function("document.querySelector('.ch-streaming')?.textContent.length > 5", timeout=SLOW)
    page.keyboard.press("Control+.")
    ended(page)
    page.wait_for_selector(".ch-numbers:has-text('stopped')")
    assert all(len(text) > 5 for text in responses(page))


@pytest.mark.slow
def test_responses_continue_without_the_tab_and_are_followed_again(chat: Callable[..., Any]) -> None:
    page = chat("Go on.", tokens=1800, temperature=5.0, wait=False)
    page.wait_for_selector(".ch-streaming", timeout=SLOW)
    address = page.url
    page.goto(address.partition("/chat")[0] + "/exports")
    page.goto(address)
    page.wait_for_function("document.querySelector('.ch-streaming')?.textContent.length > 5", timeout=SLOW)
    length = len(responses(page)[0])
    page.wait_for_function(f"document.querySelector('.ch-streaming')?.textContent.length > {length}", timeout=SLOW)
    page.click("#chat-new")
    page.wait_for_selector("h1:has-text('New chat')")
    expect(page.locator(".ch-message, #chat-stop")).to_have_count(0)
    page.locator(".ch-item").first.click()
    page.click("#chat-stop")
    ended(page)
    page.wait_for_selector(".ch-numbers:has-text('stopped')")


@pytest.mark.slow
def test_four_tabs_stream_at_once_while_a_fifth_opens_and_stop_works_in_each(
    new_page: Callable[..., Any], visit: Visit, server: Any
) -> None:
    """A browser opens six connections to a server; what a tab holds open, the others do not have."""
    streaming = "document.querySelector('.ch-streaming')?.textContent.length"
    tabs = [visit(f"/chat?checkpoints=base,{server.run}:rl@3", new_page()) for _ in range(4)]
    for page in tabs:
        page.get_by_label("Tokens", exact=True).fill("1900")
        page.get_by_label("Temperature", exact=True).fill("5")
    for number, page in enumerate(tabs):
        send(page, f"Tab {number}.")
    for page in tabs:
        page.wait_for_function(f"{streaming} > 0", timeout=SLOW)
    lengths = [page.evaluate(streaming) for page in tabs]
    assert None not in lengths
    for page, length in zip(tabs, lengths, strict=True):
        page.wait_for_function(f"{streaming} > {length}")  # all four at once
    fifth = visit("/chat", new_page())
    fifth.get_by_label("Search chats").fill("Tab 3.")
    expect(fifth.locator(".ch-item")).to_have_count(1)
    for page in tabs:
        stop(page)
        expect(page.locator("#chat-stop, .ch-streaming")).to_have_count(0)


@pytest.mark.slow
def test_seven_tabs_of_a_browser_open(new_page: Callable[..., Any], visit: Visit) -> None:
    """A browser opens six connections to a server; none is held by a tab that waits."""
    for _ in range(7):
        visit("/chat", new_page())


@pytest.mark.slow
def test_a_message_is_branched_and_both_branches_can_be_seen(chat: Callable[..., Any]) -> None:
    page = chat("First words.")
    original = responses(page)
    page.locator(".ch-message[data-role=user] button:has-text('Edit')").click()
    page.fill("#chat-editor textarea", "Other words.")
    page.click("#chat-editor button:has-text('Create branch')")
    page.wait_for_selector(".ch-message[data-role=user]:has-text('Other words.')")
    page.wait_for_selector(".ch-message[data-role=assistant]", timeout=SLOW)
    ended(page)
    user = page.locator(".ch-message[data-role=user]")
    assert "2/2" in user.locator(".ch-switch").inner_text()
    user.get_by_label("previous branch").click()
    user.locator(".ch-switch:has-text('1/2')").wait_for()
    assert "First words." in user.inner_text() and "1/2" in user.locator(".ch-switch").inner_text()
    assert responses(page) == original
    page.reload()
    page.wait_for_selector(".ch-message[data-role=assistant]")
    assert "First words." in page.locator(".ch-message[data-role=user]").inner_text()


@pytest.mark.slow
def test_a_response_is_regenerated_and_the_chat_continues_from_the_shown_one(chat: Callable[..., Any]) -> None:
    page = chat("One.")
    first = page.locator(".ch-message[data-role=assistant]").first
    original = responses(page)[0]
    first.locator("button:has-text('Regenerate')").click()
    page.wait_for_selector(".ch-switch:has-text('2/2')", timeout=SLOW)
    ended(page)
    first.get_by_label("previous branch").click()
    first.locator(".ch-switch:has-text('1/2')").wait_for()
    assert responses(page)[0] == original
    send(page, "Two.")
    page.wait_for_function("document.querySelectorAll('.ch-turn').length === 2", timeout=SLOW)
    ended(page)
    assert responses(page)[0] == original and len(responses(page)) == 4


@pytest.mark.slow
def test_responses_are_rated_and_a_second_click_removes_the_rating(chat: Callable[..., Any]) -> None:
    page = chat("Judge this.")
    tie = page.get_by_label("a tie")
    tie.click()
    page.wait_for_selector("[aria-label='a tie'][aria-pressed=true]")
    page.get_by_label("base is better").click()
    page.wait_for_selector("[aria-label='base is better'][aria-pressed=true]")
    assert tie.get_attribute("aria-pressed") == "false"
    page.get_by_label("base is better").click()
    page.wait_for_selector("[aria-label='base is better'][aria-pressed=false]")


def test_markup_in_messages_stays_text(visit: Visit, stored_chat: Callable[[str, str], int]) -> None:
    page = visit(f"/chat?chat={stored_chat(HOSTILE, HOSTILE)}")
    message = page.locator(".ch-message[data-role=assistant]").first
    expect(message.locator(".tx-block")).to_have_text(HOSTILE.replace("**", ""), use_inner_text=True)
    assert page.locator(".ch-message[data-role=user] .tx-block").inner_text() == HOSTILE
    message.locator("button:has-text('Edit')").click()
    page.fill("#chat-editor textarea", HOSTILE + " again")
    page.click("#chat-editor button:has-text('Create branch')")
    message.locator(".ch-switch:has-text('2/2')").wait_for()
    edited = HOSTILE.replace("**", "") + " again"
    assert message.locator(".tx-block").inner_text() == edited
    page.reload()
    page.wait_for_selector(".ch-message[data-role=assistant]")
    assert message.locator(".tx-block").inner_text() == edited
    expect(page.locator("#chat :is(img, script, strong, a[href*=javascript])")).to_have_count(0)
    assert page.title() == "Chat · RL2F Studio"


@pytest.mark.slow
def test_five_megabytes_are_refused_in_plain_words_before_they_get_into_the_field(visit: Visit) -> None:
    page = visit("/chat")
    field(page).focus()
    page.evaluate("text => document.execCommand('insertText', false, text)", "x" * 5_000_000)  # as a paste does
    assert len(field(page).input_value()) == 20_001
    field(page).press("Enter")
    page.wait_for_selector(".ch-error:has-text('The message has more than 20,000 characters')")
    assert page.locator(".ch-message").count() == 0 and page.url.endswith("/chat")


@pytest.mark.slow
def test_an_interactive_task_ends_after_scripted_hints_and_is_replayed(visit: Visit, server: Any) -> None:
    page = visit(f"/chat?play=1&source=run:{server.run}&index=0")
    page.click("#chat-send:has-text('Start task')")
    page.wait_for_selector(".ch-message[data-role=user]:has-text('Task')")
    page.wait_for_selector(".ch-verdict", timeout=SLOW)
    ended(page)
    for _ in range(2):
        hint = page.locator("#chat-scripted")
        if hint.count():
            count = page.locator(".ch-message[data-role=teacher]").count()
            hint.click()
            page.wait_for_function(f"document.querySelectorAll('[data-role=teacher]').length > {count}", timeout=SLOW)
            ended(page)
    page.wait_for_function("document.querySelectorAll('.ch-end a').length === 2", timeout=SLOW)
    expect(page.locator("#chat-scripted")).to_have_count(0)
    page.locator(".ch-end a").first.click()
    page.wait_for_url("**/dialogues?**")
    page.wait_for_selector(".tx-block")


@pytest.mark.slow
def test_a_person_plays_a_stateful_task_with_the_buttons_of_its_actions(visit: Visit) -> None:
    page = visit("/chat?play=1&source=preset:household&index=1")
    page.click("#chat-send:has-text('Start task')")
    page.wait_for_selector("#chat-actions button")
    page.click("button:has-text('Show gold answer')")
    plan = page.locator(".ch-foot .tx-inline").first.inner_text().split(", ")
    for count, chosen in enumerate(plan, 1):
        page.locator("#chat-actions").get_by_role("button", name=chosen, exact=True).click()
        expect(page.locator(".ch-message[data-role=assistant]")).to_have_count(count)
    expect(page.locator(".ch-end")).to_contain_text("✓ solved")
    expect(page.locator("#chat-actions button")).to_have_count(0)
    observation = page.get_by_role("group", name="observation").first
    assert "monospace" in observation.evaluate("node => getComputedStyle(node).fontFamily")
    page.locator(".ch-end a").first.click()
    page.wait_for_url("**/dialogues?**")
    page.wait_for_selector(".tx-block")


@pytest.mark.slow
def test_a_persons_hint_that_leaks_is_told(visit: Visit, server: Any) -> None:
    page = visit(f"/chat?play=1&checkpoints=base&source=run:{server.run}&index=3")
    page.click("#chat-send:has-text('Start task')")
    page.wait_for_selector(".ch-verdict", timeout=SLOW)
    ended(page)
    expect(page.locator(".ch-foot .tx-inline")).to_have_count(0)
    page.click("button:has-text('Show gold answer')")
    answer = page.locator(".ch-foot .tx-inline").first.inner_text()
    send(page, f"The answer is {answer}.")
    page.wait_for_selector(".tx-finding.rl-leak", timeout=SLOW)
    assert answer in page.locator(".tx-found").first.inner_text()
    ended(page)


@pytest.mark.slow
def test_a_checkpoint_is_served_beside_the_chats_until_it_is_stopped(
    visit: Visit, server: Any, no_overflow: Callable[[Any], None]
) -> None:
    page = visit(f"/run?run={server.run}&tab=checkpoints")
    page.get_by_label("Serve rl@3").click()
    page.click("text=Serve in the studio")
    box = page.locator("#served-models")
    box.wait_for(timeout=SLOW)
    models, address, key, _ = box.locator("td.rl-mono").all_inner_texts()
    client = openai.OpenAI(base_url=address, api_key=key, max_retries=0)
    assert [model.id for model in client.models.list()] == models.split(", ")
    client.completions.create(model=models.split(", ")[0], prompt="Hi.", max_tokens=1)
    expect(box).to_contain_text("requests: 1", timeout=SLOW)
    no_overflow(page)
    page.click("text=Stop serving")
    expect(box).to_have_count(0)
    with pytest.raises(openai.APIConnectionError):
        client.models.list()


@pytest.mark.slow
def test_a_chat_is_found_renamed_and_deleted_after_a_confirmation(chat: Callable[..., Any]) -> None:
    page = chat("A needle in the hay.")
    page.get_by_label("More").click()
    page.click(".rl-menu-items >> text=Rename")
    page.fill("#chat-editor textarea", "Haystack 77")
    page.click("#chat-editor button:has-text('Rename')")
    page.wait_for_selector("h1:has-text('Haystack 77')")
    page.get_by_label("More").click()
    with page.expect_download() as taking:
        page.click("text=Export messages (JSONL)")
    rows = [json.loads(line) for line in Path(taking.value.path()).read_text().splitlines()]
    assert [row["messages"][0]["content"] for row in rows] == ["A needle in the hay."] * 2
    page.get_by_label("Search chats").fill("needle in the")
    page.wait_for_function("document.querySelectorAll('.ch-item').length === 1")
    page.get_by_label("More").click()
    page.click(".rl-menu-items >> text=Delete")
    page.click("dialog button:has-text('Cancel')")
    expect(page.locator("h1:has-text('Haystack 77')")).to_have_count(1)
    page.get_by_label("More").click()
    page.click(".rl-menu-items >> text=Delete")
    page.click("dialog button:has-text('Delete')")
    page.wait_for_selector("h1:has-text('New chat')")
    page.wait_for_selector("text=Nothing found.")


@pytest.mark.slow
def test_an_address_that_names_nothing_says_so(visit: Visit) -> None:
    page = visit("/chat?chat=99999")
    page.wait_for_selector("text=There is no chat 99999.")
    page = visit("/chat?checkpoints=999:rl@1")
    page.wait_for_selector(".ch-error:has-text('999:rl@1 does not fit this base model')")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_every_state_of_the_page_fits_the_window(
    new_page: Callable[..., Any], visit: Visit, chat: Callable[..., Any], no_overflow: Callable[[Any], None],
    width: int, theme: str,
) -> None:  # fmt: skip
    talk = chat("A long word: " + "x" * 300)
    page = new_page(width=width, theme=theme)
    for path in ("/chat", "/chat?play=1", talk.url.partition("/chat")[1] + talk.url.partition("/chat")[2]):
        visit(path, page)
        page.wait_for_selector("#chat-send")
        no_overflow(page)
