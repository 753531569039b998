"""A second server on a workspace is read-only: its pages show everything and have no active button that changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow
ENABLED = "selector => [...document.querySelectorAll(selector)].filter(each => !each.disabled).length"
RUNS = "a.runs-new, [data-action=notes], [data-action=delete], a[href*='/new?clone']"
LABELS = "[data-action=label], [data-action=save_next], [data-action=undo]"
NEW_RUN = "#nr-start, #nr-preflight, #nr-schedule"
CHAT = "#chat-new, #chat-send, #chat-field textarea, [data-action=edit], [data-action=retry], [data-action=delete]"


@pytest.fixture(scope="module")
def reader(server: Any, start_server: Callable[..., Any]) -> Any:
    """A second server on the workspace of the first one."""
    return start_server(server.workspace)


@pytest.fixture
def chat(stored_chat: Callable[..., int]) -> int:
    """The id of a chat with a message and a response."""
    return stored_chat("A question", "A response")


def show(page: Any, server: Any, path: str, content: str) -> Any:
    """Open a page of a server and wait for its content."""
    page.goto(server.url + path)
    page.wait_for_selector(content)
    return page


def test_a_chat_is_shown_without_a_field(new_page: Callable[..., Any], server: Any, reader: Any, chat: int) -> None:
    path, content = f"/chat?chat={chat}", ".ch-message:has-text('A response')"
    writable = show(new_page(), server, path, content)
    assert writable.evaluate(ENABLED, CHAT) == 7  # two messages can be edited
    page = show(new_page(), reader, path, content)
    expect(page.locator(".rl-banner")).to_contain_text("This server is read-only")
    expect(page.locator(".rl-banner")).to_contain_text(server.url)
    expect(page.locator("#chat-note")).to_have_text("Read-only server: chats can be read, not continued.")
    expect(page.locator(CHAT)).to_have_count(0)
    expect(page.locator(".ch-message button:has-text('Copy')")).to_have_count(2)
    page.get_by_label("More").click()
    expect(page.locator(".ch-head .rl-menu-items > *:visible")).to_have_text(
        ["Export messages (JSONL)", "Export ratings (JSONL)", "Copy link"]
    )


@pytest.mark.parametrize(
    ("path", "content", "changes"),
    [
        ("/", "a.runs-name", RUNS),
        ("/labels?run={run}&annotator=anna", ".lb-card", LABELS),
        ("/new?preset=quickstart", "[data-action=fold]", NEW_RUN),
    ],
)
def test_no_button_that_changes_something_is_active(
    new_page: Callable[..., Any], server: Any, reader: Any, path: str, content: str, changes: str
) -> None:
    path = path.format(run=server.run)
    writable = show(new_page(), server, path, content)
    writable.wait_for_function(f"({ENABLED})({changes!r}) >= 3")
    page = show(new_page(), reader, path, content)
    expect(page.locator(".rl-banner")).to_contain_text("This server is read-only")
    assert page.evaluate(ENABLED, changes) == 0
