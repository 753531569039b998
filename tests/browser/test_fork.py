"""Page Fork in a real browser, by keyboard alone: from a turn in the replay to its branches, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from fork_data import event_of, make_run, served
from playwright.sync_api import expect
from replay_data import add_run, event, hint, turn

from jobs.db.engine import Database
from jobs.workspace import Workspace

SLOW = 120_000
"""Milliseconds that a worker may take to start and to end on a busy machine."""
HOSTILE = (
    "Too low. <img src=x onerror=window.pwned=1> <script>window.pwned=2</script>"
    " ${window.pwned=3} {{window.pwned=4}} [x](javascript:window.pwned=5)"
)


@pytest.fixture
def numbers(queue: Any) -> Iterator[int]:
    """A run whose dialogues go on without a model, in the shared server's workspace; it and its forks go afterwards."""
    yield from served(queue, make_run(queue.workspace.folder("numbers")))


def settle(page: Any) -> None:
    """Until the page shows the fork."""
    page.locator("#fork-top .rl-head").wait_for()
    expect(page.locator("#fork-start")).to_be_enabled()


def query(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


@pytest.mark.slow
def test_a_turn_goes_on_under_other_hints_by_keyboard_alone(
    numbers: int, visit: Callable[..., Any], no_overflow: Callable[[Any], None], queue: Any
) -> None:
    original = queue.workspace.folder("numbers") / "events.jsonl"
    before = original.read_bytes()
    page = visit(f"/dialogues?run={numbers}")
    page.locator(".dv-turn[data-turn='0'][data-current]").wait_for()
    page.keyboard.press("n")
    page.locator(".dl-row[aria-current]").nth(0).wait_for()
    page.wait_for_function("id => new URLSearchParams(location.search).get('dialogue') === id", arg=event_of(1))
    page.locator(".dv-turn[data-turn='1']").wait_for()
    page.keyboard.press("j")
    page.locator(".dv-turn[data-turn='1'][data-current]").wait_for()
    page.keyboard.press("f")
    page.wait_for_url(re.compile(r"/fork\?"))
    settle(page)
    assert (query(page)["dialogue"], query(page)["turn"]) == (event_of(1), "1")
    page.keyboard.press("?")
    page.get_by_text("switch a hint on or off").first.wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")

    page.keyboard.press("5")
    page.keyboard.press("3")
    page.keyboard.press("w")
    expect(page.locator("#fork-text textarea")).to_be_focused()
    assert page.locator("#fork-text textarea").input_value() == "Too low.", "it begins with the hint as it was"
    page.keyboard.press("Control+A")
    page.keyboard.type(HOSTILE)
    page.keyboard.press("Escape")
    page.keyboard.press("-")
    page.keyboard.press("-")
    expect(page.get_by_label("Samples per hint")).to_have_value("4")
    page.wait_for_function("new URLSearchParams(location.search).get('samples') === '4'")
    assert query(page)["arms"] == "original,edited,empty,contentless,misleading"
    page.keyboard.press("r")
    page.locator(".fk-status .rl-badge[data-status=succeeded]").wait_for(timeout=SLOW)
    rows = page.locator(".fk-table tbody tr")
    expect(rows).to_have_count(5)
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == [
        "original hint", "edited", "empty", "contentless", "misleading"]  # fmt: skip
    assert rows.nth(0).inner_text().split("\t")[1:3] == [".00 [.00, .49]", "· .00 [−.82, +.82]"]
    assert "original hint .00 [.00, .49]" in (page.locator(".fk-plot").get_attribute("aria-label") or "")
    fork = query(page)["fork"]
    expect(page.locator(f".fk-past[aria-current] b:text('{fork}')")).to_have_count(1)

    for key in ("j", "j", "j", "Enter"):  # the original, as it was, edited
        page.keyboard.press(key)
    page.locator(".fk-inside .fk-leaf").nth(3).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator("#fork-result .fk-turn").nth(1).wait_for()
    assert page.locator("#fork-result .fk-turn .tx-block").all_inner_texts() == [HOSTILE, "<answer>2</answer>"]
    expect(page.locator(".fk-quote").nth(1)).to_contain_text(HOSTILE[:80])
    assert_inert(page)
    no_overflow(page)
    page.set_viewport_size({"width": 390, "height": 844})
    no_overflow(page)
    page.set_viewport_size({"width": 1440, "height": 900})

    page.keyboard.press("o")
    page.wait_for_url(re.compile(r"/dialogues\?"))
    page.locator(".dv-turn[data-turn='2'][data-current]").wait_for()
    assert (query(page)["run"], query(page)["turn"]) == (fork, "2")
    assert page.locator(".dv-turn[data-turn='1'] .tx-block[data-from=teacher]").inner_text() == HOSTILE
    page.go_back()
    settle(page)
    page.locator("#fork-result .fk-turn").nth(1).wait_for()
    assert query(page)["fork"] == fork, "the address brings back result and open branches"
    page.keyboard.press("b")
    page.wait_for_url(re.compile(r"/dialogues\?"))
    page.locator(".dv-turn[data-turn='1'] .dv-value").wait_for()
    assert page.locator(".dv-value").all_inner_texts() == ["hint value .00 [−.82, +.82]"]
    page.goto(f"{page.url}&order=-hint_value")
    expect(page.locator(".dl-row")).to_have_count(1)
    assert original.read_bytes() == before, "the original is never changed"


@pytest.mark.slow
def test_markup_in_a_dialogue_stays_text(replay: Any, page: Any) -> None:
    workspace = Workspace(replay.workspace)
    db = Database(workspace.database_url())
    leak = hint(HOSTILE, (9, 60))
    told = event(HOSTILE, [turn(0, HOSTILE, None, leak), turn(1, HOSTILE, None, leak)], 4, "odd/markup")
    task = told.task.model_copy(update={"public": {"letters": [HOSTILE, "B"], "length": 4}})
    run = add_run(db, workspace, "markup", [told.model_copy(update={"task": task})])
    db.close()
    page.goto(f"{replay.url}/fork?{urlencode({'run': run.id, 'dialogue': told.id, 'turn': 1})}")
    settle(page)
    texts = page.locator(".fk-before .tx-block").all_inner_texts()
    assert len(texts) == 5 and texts[1:] == [HOSTILE] * 4 and HOSTILE in texts[0], "task, attempts, hints"
    assert HOSTILE[9:60] in page.locator(".fk-before .tx-finding").first.inner_text()
    assert page.locator(".fk-back").inner_text().startswith(HOSTILE[:60])
    assert page.locator("#fork-text textarea").input_value() == HOSTILE
    page.locator("#fork-text textarea").press_sequentially("!")
    page.wait_for_function("new URLSearchParams(location.search).get('arms')?.includes('edited')")
    page.get_by_role("button", name="Preview").click()
    assert "window.pwned=5" in page.locator(".fk-config .tx-block").inner_text()
    expect(page.locator("#fork-body .tx-finding")).to_contain_text(HOSTILE[9:60])
    assert_inert(page)


def assert_inert(page: Any) -> None:
    """No text became markup or was executed."""
    assert page.evaluate("window.pwned") is None
    expect(page.locator(".rl-view :is(img, script, a[href^=javascript])")).to_have_count(0)


@pytest.mark.slow
def test_without_a_dialogue_the_page_says_how_to_open_one(visit: Callable[..., Any]) -> None:
    page = visit("/fork")
    page.get_by_text("What if the hint had been different?").wait_for()
    assert page.get_by_role("link", name="Dialogues", exact=True).last.get_attribute("href") == "/dialogues"
    expect(page.locator("#fork-start")).to_be_hidden()


def test_a_preview_screens_the_hint_and_starts_nothing(numbers: int, visit: Callable[..., Any], queue: Any) -> None:
    from jobs.db.queries import outcomes

    page = visit(f"/fork?run={numbers}&dialogue={event_of(1)}&turn=1")
    settle(page)
    page.get_by_label("Edited hint").fill("The number is 4.")
    page.get_by_label("Edited hint").blur()
    page.wait_for_function("new URLSearchParams(location.search).get('arms')?.includes('edited')")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("alert").get_by_text("Edited hint: mentions leak").wait_for()
    page.get_by_text("80 dialogues: 5 hints × 1 checkpoint × 16 samples").wait_for()
    assert page.locator(".fk-config .tx-block").inner_text().startswith("name: fork numbers")
    assert outcomes.child_runs(queue.db, numbers) == []


@pytest.mark.slow
def test_a_correct_attempt_cannot_be_forked(numbers: int, visit: Callable[..., Any]) -> None:
    page = visit(f"/fork?run={numbers}&dialogue={event_of(1)}&turn=2")
    page.get_by_role("alert").get_by_text("This attempt is correct").wait_for()
    expect(page.locator("#fork-start")).to_be_disabled()
    page.get_by_role("link", name="Previous turn").click()
    page.wait_for_url(re.compile("turn=1"))
    settle(page)
