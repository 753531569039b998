"""Page Labels in a real browser: by keyboard, blind, with marks and undo, the report, hostile text, 390 px."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect
from replay_data import add_run, event, hint, turn

from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.labels import label_queries
from jobs.labels.label_queries import LabelAnswer
from jobs.workspace import Workspace

SMALL, ODD = 1, 2
HOSTILE = (
    "Look. <img src=x onerror=window.pwned=1> <script>window.pwned=2</script>"
    " ${window.pwned=3} {{window.pwned=4}} [x](javascript:window.pwned=5)"
)
LATER, NEVER, LEAKS = (f"dialogue:train:rl2f/1/0/{i}" for i in (1, 2, 3))


@pytest.fixture
def show(replay: Any, page: Any) -> Callable[..., Any]:
    """`show(run=1, annotator="anna")`: open the page and wait for its first content."""

    def go(tab: Any = None, **query: Any) -> Any:
        tab = tab or page
        tab.goto(f"{replay.url}/labels?{urlencode({'selection': 'all', **query})}", timeout=60_000)
        tab.wait_for_selector("#label-stage :is(.lb-card, .lb-report, .rl-empty)", timeout=60_000)
        return tab

    return go


@pytest.fixture
def database(replay: Any) -> Iterator[Database]:
    """The database of the server's workspace."""
    db = Database(Workspace(replay.workspace).database_url())
    yield db
    db.close()


def stored(replay: Any, event: str, turn: int = 0, run: int = SMALL) -> list[tuple[Any, ...]]:
    db = Database(Workspace(replay.workspace).database_url(), read_only=True)
    try:
        found = label_queries.of_hint(db, run, event, turn)
        return [(x.annotator, x.label, x.start, x.end, x.note, x.blind) for x in found]
    finally:
        db.close()


def assert_inert(page: Any) -> None:
    """No text became markup or was executed."""
    assert page.evaluate("window.pwned") is None
    expect(page.locator(".rl-view :is(img, script, iframe, a[href^=javascript])")).to_have_count(0)


def at(page: Any, event: str, turn: int = 0) -> None:
    """Wait until the address and the page show this hint."""
    page.wait_for_function(
        "([event, turn]) => { const q = new URLSearchParams(location.search);"
        " return q.get('dialogue') === event && q.get('turn') === turn"
        " && document.querySelector(`.lb-card[data-event='${event}'][data-turn='${turn}']`); }",
        arg=[event, str(turn)],
    )


@pytest.mark.slow
def test_hints_are_labeled_blind_and_by_keyboard_alone(show: Callable[..., Any], replay: Any) -> None:
    page = show(run=SMALL)
    page.keyboard.press("1")
    page.keyboard.type("anna")
    page.keyboard.press("Enter")
    page.wait_for_function("new URLSearchParams(location.search).get('annotator') === 'anna'")
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
    assert page.locator("mark.tx-found").count() == 0 and "exact" not in page.inner_text("#label-stage")
    for key in ("]", "]", "]", "]", "}", "}", "}"):
        page.keyboard.press(key)
    assert page.inner_text(".lb-span") == "A B A B,"
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
    page.wait_for_selector(".lb-message:has-text('Choose first')")


@pytest.mark.slow
def test_words_are_marked_by_dragging(show: Callable[..., Any], replay: Any) -> None:
    page = show(run=SMALL, annotator="drag", selection="flagged")
    assert "not blind" in page.inner_text(".lb-meter")
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
    page.wait_for_selector(".lb-marked")
    assert page.inner_text(".lb-span") == "code"
    page.click(".lb-answer[data-label=leak]")
    page.wait_for_selector(".lb-state:has-text('saved')")
    assert stored(replay, LEAKS) == [("drag", "leak", 4, 8, "", False)]
    page.keyboard.press("Escape")
    page.wait_for_selector(".lb-marked", state="hidden")
    page.wait_for_selector(".lb-changed:has-text('not saved')")
    page.keyboard.press("n")
    at(page, "dialogue:train:rl2f/1/1/3")
    assert stored(replay, LEAKS) == [("drag", "leak", None, None, "", False)]


@pytest.mark.slow
def test_an_emoji_counts_as_one_character(show: Callable[..., Any], replay: Any) -> None:
    page = show(run=ODD, annotator="emoji")
    at(page, "dialogue:train:odd/hostile")
    hint = page.evaluate("""() => {
      const piece = [...document.querySelectorAll('.lb-hint [data-o]')].at(-1), at = piece.textContent.indexOf('emoji');
      const range = document.createRange();
      range.setStart(piece.firstChild, at); range.setEnd(piece.firstChild, at + 5);
      getSelection().removeAllRanges(); getSelection().addRange(range);
      document.querySelector('.lb-hint').dispatchEvent(new MouseEvent('mouseup', {bubbles: true}));
      return Number(piece.dataset.o) + Array.from(piece.textContent).length;
    }""")
    page.keyboard.press("1")
    page.wait_for_selector(".lb-found")
    [(_, _, start, end, _, _)] = stored(replay, "dialogue:train:odd/hostile", run=ODD)
    assert (start, end) == (hint - 5, hint), "characters as Python counts them"
    assert_inert(page)


def test_markup_in_a_hint_and_its_labels_stays_text(show: Callable[..., Any], replay: Any, database: Database) -> None:
    leak = hint(HOSTILE, (6, 60))
    made = event("odd/markup", [turn(0, HOSTILE, None, leak), turn(1, HOSTILE, None, leak)], 4, "odd/markup")
    changed = {"public": {"question": HOSTILE}, "privileged": {"code": HOSTILE}}
    made = made.model_copy(update={"task": made.task.model_copy(update=changed)})
    run = add_run(database, Workspace(replay.workspace), "markup-labels", [made]).id or 0
    others = [HOSTILE[:60], f"{HOSTILE[:50]} two"]
    for annotator, label in zip(others, ("leak", "no_leak"), strict=True):
        label_queries.put(database, run, made.id, 1, annotator, LabelAnswer(label=label, start=0, end=9, note=HOSTILE))
    page = show(run=run, dialogue=made.id, turn=1, annotator=HOSTILE[6:60])
    page.keyboard.press("e")
    page.keyboard.press("a")
    page.locator(".lb-privileged .tx-block").wait_for()
    texts = page.locator(".lb-card .tx-block").all_inner_texts()
    assert HOSTILE in texts[0] and texts[1:4] == [HOSTILE] * 3, "task, attempt, hint, attempt"
    assert HOSTILE in texts[4] and texts[5] == HOSTILE, "gold answer, hint to label"
    page.fill(".lb-note", HOSTILE)
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    found = page.locator(".lb-found")
    expect(found).to_contain_text(HOSTILE[6:60])
    assert found.locator(".tx-label").all_text_contents() == [
        f"⚑ leak · {HOSTILE[:30]}…", f"✓ no leak · {HOSTILE[:30]}…"]  # fmt: skip
    assert page.locator(".lb-note").input_value() == HOSTILE
    assert_inert(page)

    page.keyboard.press("b")
    people = page.get_by_role("region", name="annotators", exact=True).locator("tbody th")
    expect(people.filter(has_text=HOSTILE[:40])).to_have_count(2)
    expect(page.get_by_role("region", name="pairs of annotators")).to_contain_text(f"{HOSTILE[:30]}… and")
    expect(page.locator(".lb-disagreement .tx-label").first).to_contain_text("<img")
    page.keyboard.press("o")
    page.wait_for_selector(f"dialog[open]:has-text('Access is logged under {HOSTILE[6:30]}')")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_label("test set", exact=True)).to_contain_text(f"last by {HOSTILE[6:46]}…")
    assert_inert(page)


@pytest.mark.slow
def test_markup_in_a_mistake_of_the_benchmark_stays_text(show: Callable[..., Any], home: Path) -> None:
    page = show(view="benchmark")
    page.wait_for_selector(".bd-bench")
    (cached,) = (home / "leak-benchmark").glob("*.json")
    scores = json.loads(cached.read_text())
    texts = dict.fromkeys(("kind", "problem", "answer", "hint", "detector", "evidence"), HOSTILE)
    wrong = {**texts, "environment": "arithmetic", "leak": True, "attempts": [HOSTILE], "hints": [HOSTILE]}
    try:
        cached.write_text(json.dumps({**scores, "wrong": [wrong]}))
        page.reload()
        page.click(".bd-wrong > summary")
        assert page.locator(".bd-wrong .tx-block").all_inner_texts() == [HOSTILE] * 4
        last = page.locator(".bd-wrong p").inner_text()
        assert last == f"gold answer: {HOSTILE} · {HOSTILE}: {HOSTILE}"
        assert_inert(page)
    finally:
        cached.write_text(json.dumps(scores))


@pytest.mark.slow
def test_the_benchmark_recommends_a_cascade_within_the_typed_budget(show: Callable[..., Any]) -> None:
    page = show(view="benchmark", precision=0.5)
    expect(page.locator("[data-recommended]")).to_have_count(1)
    speed = page.get_by_label("Hints/s, at least")
    speed.fill("1000000000")
    speed.press("Enter")
    expect(page.get_by_label("recommended cascade")).to_contain_text("No recorded cascade is within this budget")
    assert "speed=1000000000.0" in page.url
    page.get_by_role("radio", name="Detector report").check()
    expect(speed).to_be_hidden()


@pytest.mark.slow
def test_hints_of_controls_are_shown_only_on_request(show: Callable[..., Any], replay: Any, database: Database) -> None:
    run = evaluated(database, Workspace(replay.workspace)).id
    page = show(run=run, annotator="own")
    page.wait_for_selector(".lb-meter:has-text('0 of 6')")
    page.get_by_label("Include controls").check()
    page.wait_for_selector(".lb-meter:has-text('0 of 12')")
    page = show(run=run, view="report", group_by="condition", annotator="own")
    rows = page.locator(".bd-table tbody tr[data-row]")
    expect(page.locator("[data-row=hints]")).to_have_count(1)
    assert rows.count() == 2, "all and hints"
    page.get_by_label("Include controls").check()
    expect(page.locator("[data-row=shuffled]")).to_have_count(1)
    assert "include_controls=1" in page.url


def evaluated(db: Database, workspace: Workspace) -> Run:
    """An evaluation with six own hints of the teacher and six of a control, all labeled."""
    made = []
    for index in range(6):
        for condition in ("hints", "shuffled"):
            key, said = f"{condition}/{index}", hint(f"Look {index}.", teacher="scripted")
            more = {"phase": "evaluation", "checkpoint": "base", "condition": condition}
            made.append(event(key, [turn(0, "x", None, said)], 0, key, **more))
    run = add_run(db, workspace, "evaluated", made)
    for each in made:
        label_queries.put(db, run.id or 0, each.id, 0, "ben", LabelAnswer(label="leak"))
    return run


@pytest.mark.slow
def test_the_report_compares_and_leads_to_the_disagreements(show: Callable[..., Any], database: Database) -> None:
    for i, (ann, ben) in enumerate([("leak", "leak"), ("leak", "no_leak"), ("no_leak", "no_leak")]):
        key = f"dialogue:train:rl2f/3/{i % 2}/{1 if i == 2 else 3}"
        label_queries.put(database, SMALL, key, 0, "ann <b>", LabelAnswer(label=ann))
        label_queries.put(database, SMALL, key, 0, "ben", LabelAnswer(label=ben))
    page = show(run=SMALL, view="report")
    page.wait_for_selector(".lb-report")
    text = page.inner_text(".lb-report")
    assert "ann <b> and ben" in text and ".67 [" in text
    assert "Disagreements" in text and page.locator(".lb-disagreement").count() >= 1
    page.click(".lb-disagreement >> nth=0")
    page.wait_for_selector(".dv-turn[data-current]")
    assert "/dialogues?" in page.url
    page.go_back()
    page.wait_for_selector(".lb-report")
    page.get_by_role("radio", name="Label").check()
    page.wait_for_selector(".lb-card")


@pytest.mark.slow
def test_an_end_and_an_empty_queue_say_what_to_do(show: Callable[..., Any]) -> None:
    page = show(run=SMALL, annotator="skipper", selection="random_unflagged", size=2, seed=1)
    first = page.evaluate("location.search")
    page.keyboard.press("s")
    page.wait_for_function("q => location.search !== q && document.querySelector('.lb-card')", arg=first)
    page.keyboard.press("s")
    page.wait_for_selector(".rl-empty")
    assert "2 hints skipped" in page.inner_text(".rl-empty")
    page.keyboard.press("p")
    page.wait_for_selector(".lb-card")
    page.keyboard.press("n")
    page.get_by_role("link", name="Review skipped").click()
    page.wait_for_url(re.compile("unlabeled_only=1"))
    page.wait_for_selector(".lb-meter:has-text('0 of 2')")
    page = show(run=ODD, annotator="skipper", selection="flagged", environment="nowhere")
    page.wait_for_selector(".rl-empty")
    assert "Unknown environment" in page.inner_text(".rl-empty") and "Known: " in page.inner_text(".rl-empty")


@pytest.mark.slow
def test_an_unknown_hint_is_reported_plainly(show: Callable[..., Any]) -> None:
    page = show(run=SMALL, annotator="anna", dialogue="dialogue:nowhere", turn=0)
    page.wait_for_selector(".rl-empty[role=alert]")
    assert "Hint not found" in page.inner_text(".rl-empty")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1440, "dark"), (390, "light")])
def test_every_view_fits_the_window(
    show: Callable[..., Any],
    new_page: Callable[..., Any],
    no_overflow: Callable[[Any], None],
    width: int,
    theme: str,
) -> None:
    page = show(new_page(width, 844, theme), run=ODD, annotator="narrow")
    page.wait_for_selector(".lb-hint")
    no_overflow(page)
    page.click(".lb-answer[data-label=unsure]")
    page.wait_for_selector(".lb-found")
    no_overflow(page)
    show(page, run=SMALL, view="report")
    page.wait_for_selector(".lb-report, .rl-empty")
    no_overflow(page)
