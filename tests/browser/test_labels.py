"""Page Labels in a real browser: by keyboard alone, blind, with marks and undo, the board, hostile words, 390 px."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

SMALL, ODD = 1, 2
LATER, NEVER, LEAKS = (f"dialogue:train:rl2f/1/0/{i}" for i in (1, 2, 3))


@pytest.fixture
def show(replay: Any, page: Any) -> Callable[..., Any]:
    """`show(run=1, labeller="anna")`: open the page of labels there and wait until something stands."""

    def go(tab: Any = None, **query: Any) -> Any:
        tab = tab or page
        tab.goto(f"{replay.url}/labels?{urlencode(query)}", timeout=60_000)
        tab.wait_for_selector(".lb-stage[aria-busy=false]", timeout=60_000)
        return tab

    return go


def stored(replay: Any, event: str, turn: int = 0, run: int = SMALL) -> list[tuple[Any, ...]]:
    from jobs.db.engine import Database
    from jobs.labels import label_queries
    from jobs.workspace import Workspace

    db = Database(Workspace(replay.workspace).database_url(), read_only=True)
    try:
        found = label_queries.of_hint(db, run, event, turn)
        return [(x.annotator, x.label, x.start, x.end, x.note, x.blind) for x in found]
    finally:
        db.close()


def at(page: Any, event: str, turn: int = 0) -> None:
    """Until this hint stands in the address and on the page."""
    page.wait_for_function(
        "([event, turn]) => { const q = new URLSearchParams(location.search);"
        " return q.get('dialogue') === event && q.get('turn') === turn"
        " && document.querySelector('.lb-stage[aria-busy=false] .lb-card'); }",
        arg=[event, str(turn)],
    )


@pytest.mark.slow
def test_hints_are_labelled_blind_and_by_keyboard_alone(show: Callable[..., Any], replay: Any) -> None:
    page = show(run=SMALL)
    page.keyboard.press("1")
    page.keyboard.type("anna")
    page.keyboard.press("Enter")
    page.wait_for_function("new URLSearchParams(location.search).get('labeller') === 'anna'")
    at(page, LATER)
    expect(page.locator(".lb-found")).to_have_count(0)  # blind
    page.keyboard.press("2")
    page.wait_for_selector(".lb-found")
    assert "no leak found" in page.inner_text(".lb-found")
    page.wait_for_selector(".lb-meter:has-text('1 of 24')")
    page.keyboard.press("Control+Enter")
    at(page, NEVER)
    page.keyboard.press("s")
    at(page, NEVER, 1)
    page.keyboard.press("n")
    at(page, LEAKS)
    assert page.locator("mark.tx-found").count() == 0 and "exact" not in page.inner_text(".lb-stage")
    for key in ("]", "]", "]", "]", "}", "}", "}"):
        page.keyboard.press(key)
    assert page.inner_text("mark.tx-pending") == "A B A B,"
    page.keyboard.press("{")
    page.keyboard.press("w")
    page.keyboard.type("1 2 3 names it")
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    page.wait_for_selector(".lb-found")
    assert "exact leak" in page.inner_text(".lb-found")
    assert stored(replay, LEAKS) == [("anna", "leak", 12, 17, "1 2 3 names it", True)]

    page.keyboard.press("3")
    page.wait_for_selector(".lb-answer.rl-primary[data-label=unsure]")
    assert stored(replay, LEAKS)[0][1:] == ("unsure", 12, 17, "1 2 3 names it", False), "no longer blind"
    page.keyboard.press("u")
    page.wait_for_selector(".lb-answer.rl-primary[data-label=leak]")
    page.keyboard.press("u")
    page.wait_for_selector(".lb-found", state="detached")
    assert stored(replay, LEAKS) == []
    page.keyboard.press("p")
    at(page, NEVER, 1)
    page.keyboard.press("a")
    page.wait_for_selector(".lb-privileged .tx-block")
    assert page.inner_text(".lb-privileged .tx-block") == "A B A B"
    page.keyboard.press("e")
    assert "no idea" in page.inner_text(".lb-before")
    page.reload()
    at(page, NEVER, 1)
    page.keyboard.press("Control+Enter")
    assert "Choose first" in page.inner_text(".rl-toasts")


def test_words_are_marked_by_dragging(show: Callable[..., Any], replay: Any) -> None:
    page = show(run=SMALL, labeller="drag", which="flagged")
    assert "not blind" in page.inner_text(".lb-bar")
    page.wait_for_selector(".lb-hint")
    box = page.evaluate("""() => {
      const text = document.querySelector('.lb-hint [data-o]').firstChild, range = document.createRange();
      range.setStart(text, 4); range.setEnd(text, 8);
      const r = range.getBoundingClientRect();
      return [r.left, r.right, r.top + r.height / 2];
    }""")
    page.mouse.move(box[0] + 1, box[2])
    page.mouse.down()
    page.mouse.move(box[1] - 1, box[2], steps=4)
    page.mouse.up()
    page.wait_for_selector("mark.tx-pending")
    assert page.inner_text("mark.tx-pending") == "code"
    page.click(".lb-answer[data-label=leak]")
    page.wait_for_selector(".lb-state:has-text('saved')")
    assert stored(replay, LEAKS) == [("drag", "leak", 4, 8, "", False)]
    page.keyboard.press("Escape")
    page.wait_for_selector("mark.tx-pending", state="detached")
    assert "not saved" in page.inner_text(".lb-state")
    page.keyboard.press("n")
    at(page, "dialogue:train:rl2f/1/1/3")
    assert stored(replay, LEAKS) == [("drag", "leak", None, None, "", False)]


def test_an_emoji_counts_as_one_character(show: Callable[..., Any], replay: Any) -> None:
    page = show(run=ODD, labeller="emoji")
    at(page, "dialogue:train:odd/hostile")
    hint = page.evaluate("""() => {
      const piece = [...document.querySelectorAll('.lb-hint [data-o]')].at(-1), at = piece.textContent.indexOf('emoji');
      const range = document.createRange();
      range.setStart(piece.firstChild, at); range.setEnd(piece.firstChild, at + 5);
      getSelection().removeAllRanges(); getSelection().addRange(range);
      document.querySelector('.lb-hint').dispatchEvent(new MouseEvent('mouseup', {bubbles: true}));
      return document.querySelector('.lb-hint').dataset.length;
    }""")
    page.keyboard.press("1")
    page.wait_for_selector(".lb-found")
    [(_, _, start, end, _, _)] = stored(replay, "dialogue:train:odd/hostile", run=ODD)
    assert (start, end) == (int(hint) - 5, int(hint)), "characters as Python counts them"
    assert page.evaluate("window.pwned") is None
    expect(page.locator(".lb script, .lb img, .lb iframe")).to_have_count(0)


def test_the_board_compares_and_leads_to_the_disagreements(show: Callable[..., Any], replay: Any) -> None:
    from jobs.db.engine import Database
    from jobs.labels import label_queries
    from jobs.workspace import Workspace

    db = Database(Workspace(replay.workspace).database_url())
    for i, (ann, ben) in enumerate([("leak", "leak"), ("leak", "no_leak"), ("no_leak", "no_leak")]):
        event = f"dialogue:train:rl2f/3/{i % 2}/{1 if i == 2 else 3}"
        label_queries.put(db, SMALL, event, 0, "ann <b>", label_queries.LabelAnswer(ann))
        label_queries.put(db, SMALL, event, 0, "ben", label_queries.LabelAnswer(ben))
    db.close()
    page = show(run=SMALL, view="board")
    page.wait_for_selector(".lb-board")
    text = page.inner_text(".lb-board")
    assert "ann <b> and ben" in text and "67 %" in text
    assert "Disagreements" in text and page.locator(".lb-dispute").count() >= 1
    page.click(".lb-dispute >> nth=0")
    page.wait_for_selector(".dv-turn[data-current]")
    assert "/dialogues?" in page.url
    page.go_back()
    page.wait_for_selector(".lb-board")
    page.click(".lb-tabs button >> nth=0")
    page.wait_for_selector(".lb-card")


@pytest.mark.slow
def test_an_end_and_an_empty_queue_say_what_to_do(show: Callable[..., Any]) -> None:
    page = show(run=SMALL, labeller="skipper", which="audit", size=2, seed=1)
    page.keyboard.press("s")
    page.wait_for_function("document.querySelector('.lb-card')")
    page.keyboard.press("s")
    page.wait_for_selector(".rl-empty")
    assert "2 hints skipped" in page.inner_text(".rl-empty")
    page.keyboard.press("p")
    page.wait_for_selector(".lb-card")
    page = show(run=ODD, labeller="skipper", which="flagged", environment="nowhere")
    page.wait_for_selector(".rl-empty")
    assert "No hints here" in page.inner_text(".rl-empty")


def test_an_unknown_hint_is_said_plainly(show: Callable[..., Any], console: Any) -> None:
    console.allow(r"status of 404")
    page = show(run=SMALL, labeller="anna", dialogue="dialogue:nowhere", turn=0)
    page.wait_for_selector(".rl-empty[role=alert]")
    assert "Hint not found" in page.inner_text(".rl-empty")


@pytest.mark.parametrize(("width", "theme"), [pytest.param(1440, "dark", marks=pytest.mark.slow), (390, "light")])
def test_every_view_fits_the_window(
    show: Callable[..., Any],
    new_page: Callable[..., Any],
    no_overflow: Callable[[Any], None],
    width: int,
    theme: str,
) -> None:
    page = show(new_page(width, 844, theme), run=ODD, labeller="narrow")
    page.wait_for_selector(".lb-hint")
    no_overflow(page)
    page.click(".lb-answer[data-label=unsure]")
    page.wait_for_selector(".lb-found")
    no_overflow(page)
    show(page, run=SMALL, view="board")
    page.wait_for_selector(".lb-board, .rl-empty")
    no_overflow(page)
