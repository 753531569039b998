"""Page Dialogues in a real browser: replay by keyboard, deep links, groups, labels, hostile words, a narrow window."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import expect
from replay_data import HOSTILE

SMALL, ODD = 1, 2
SLOW = 60_000
"""Milliseconds that a page may take on a busy machine."""
STEP = "dialogue:train:rl2f/{}/{}/{}"


@pytest.fixture
def show(replay: Any, page: Any) -> Callable[..., Any]:
    """`show(run=1, dialogue=…)`: open the page of dialogues there and wait until a dialogue stands."""

    def go(tab: Any = None, **query: Any) -> Any:
        tab = tab or page
        tab.goto(f"{replay.url}/dialogues?{urlencode(query)}", timeout=60_000)
        tab.wait_for_selector(".dl-row, .rl-empty", state="attached", timeout=60_000)
        return tab

    return go


def choose(page: Any, label: str, option: str) -> None:
    """Choose an option of a filter."""
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=option, exact=True).click()


def query(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def wait_for(page: Any, **wanted: str | None) -> None:
    """Until the address says so."""
    page.wait_for_function(
        "wanted => Object.entries(wanted).every(([k, v]) => new URLSearchParams(location.search).get(k) === v)",
        arg=wanted,
    )


def labels_of(replay: Any, event: str, turn: int = 0) -> list[tuple[str, str, int | None, int | None, str]]:
    from jobs.db.engine import Database
    from jobs.labels import label_queries
    from jobs.workspace import Workspace

    db = Database(Workspace(replay.workspace).database_url(), read_only=True)
    try:
        found = label_queries.of_hint(db, SMALL, event, turn)
        return [(x.annotator, x.label, x.start, x.end, x.note) for x in found]
    finally:
        db.close()


def test_a_run_is_replayed_by_keyboard_alone(show: Callable[..., Any]) -> None:
    page = show(run=SMALL)
    page.wait_for_selector(".dv-turn")
    wait_for(page, dialogue=STEP.format(1, 0, 0), turn="0")
    for key in ("n", "n", "n"):
        page.keyboard.press(key)
    wait_for(page, dialogue=STEP.format(1, 0, 3), turn="0")
    page.keyboard.press("j")  # without the server, in the dialogue that is shown
    assert query(page)["turn"] == "1"
    expect(page.locator(".dv-turn[data-current][data-turn='1'] .dv-moved")).to_have_count(1)
    assert page.inner_text(".dv-turn[data-current] .dv-moved").split("\n") == ["A A A A", "→", "A B A B"]
    assert page.inner_text(".dv-turn[data-current] .dv-diff ins >> nth=0") == "B"
    page.keyboard.press("k")
    assert page.inner_text(".dv-turn[data-turn='0'] mark.tx-found") == "A B A B"
    wait_for(page, turn="0")
    page.keyboard.press("t")
    page.wait_for_selector(".dv-token")
    assert "log p -2.5000" in page.get_attribute(".dv-token >> nth=1", "title")
    page.keyboard.press("p")
    wait_for(page, dialogue=STEP.format(1, 0, 2), turn="0", tokens="1")
    page.keyboard.press("t")
    page.wait_for_selector(".dv-token", state="detached")

    assert "A B A B" not in page.inner_text(".dv"), "the answer is hidden"
    page.keyboard.press("a")
    page.wait_for_selector(".dv-answer")
    assert page.inner_text(".dv-answer .tx-block") == "A B A B"
    page.keyboard.press("N")
    wait_for(page, dialogue=STEP.format(2, 0, 0))
    page.wait_for_selector(".dv-answer", state="detached")
    page.get_by_role("button", name="Show gold answer").wait_for()
    page.keyboard.press("P")
    wait_for(page, dialogue=STEP.format(1, 0, 0))
    page.keyboard.press("G")
    wait_for(page, dialogue=STEP.format(3, 1, 3))
    page.keyboard.press("g")
    wait_for(page, dialogue=STEP.format(1, 0, 0))
    page.keyboard.press("m")
    page.wait_for_selector("[data-font=reading] .dv")
    page.keyboard.press("e")
    page.wait_for_selector("details[data-fold=system][open]")
    page.keyboard.press("x")
    page.wait_for_selector("details[data-fold=system]:not([open])")
    page.keyboard.press("?")
    assert "next turn" in page.inner_text("dialog")
    page.keyboard.press("Escape")

    page.keyboard.press("/")
    page.keyboard.type("no idea n")
    page.wait_for_function("document.querySelectorAll('.dl-row').length === 0 || location.search.includes('search')")
    assert page.get_by_label("search").input_value() == "no idea n", "keys are letters while typing"


@pytest.mark.slow
def test_all_dialogues_stand_in_a_table_that_is_sorted_by_its_titles(show: Callable[..., Any]) -> None:
    page = show(run=SMALL)
    page.wait_for_selector(".dv-turn")
    page.keyboard.press("l")
    wait_for(page, view="table", dialogue=None)
    table = page.get_by_role("region", name="dialogues")
    assert table.locator("tbody tr").count() == 24 and not page.locator("#dl-pane").is_visible()
    table.get_by_role("button", name="turns", exact=True).click()
    wait_for(page, order="-turns")
    expect(table.locator("th[aria-sort=descending]")).to_have_text("turns ↓")
    lengths = table.locator("tbody tr > td:nth-child(4)").all_inner_texts()
    assert lengths == sorted(lengths, key=int, reverse=True)
    table.locator(".dl-open").nth(1).click()
    page.wait_for_selector(".dv-turn")
    page.go_back()
    wait_for(page, view="table", order="-turns", dialogue=None)
    table.locator("tbody tr").first.wait_for()


@pytest.mark.slow
def test_a_link_opens_exactly_this_turn_with_its_filters(show: Callable[..., Any]) -> None:
    dialogue = STEP.format(3, 0, 3)
    wanted = {"run": str(SMALL), "leak": "2", "step": "2–3", "dialogue": dialogue, "turn": "1", "tokens": "1"}
    page = show(**wanted)
    for _ in range(2):
        page.wait_for_selector(".dv-token")
        page.wait_for_selector(".dl-row[aria-current]")
        assert page.get_attribute(".dl-row[aria-current]", "data-event") == dialogue
        assert page.get_attribute(".dv-turn[data-current]", "data-turn") == "1"
        assert page.locator(".dl-row").count() == 4 and "1–4 of 4" in page.inner_text(".dl-pager")
        assert query(page) == wanted
        page.reload()
        page.wait_for_selector(".dl-row")


@pytest.mark.slow
def test_filters_are_in_the_address_and_can_be_cleared(show: Callable[..., Any]) -> None:
    page = show(run=SMALL)
    expect(page.locator(".dl-row")).to_have_count(24, timeout=SLOW)
    choose(page, "leak", "⚑ leaked")
    expect(page.locator(".dl-row")).to_have_count(6, timeout=SLOW)
    wait_for(page, leak="2", dialogue=STEP.format(1, 0, 3))
    page.get_by_label("step", exact=True).fill("2")
    page.get_by_label("step", exact=True).press("Enter")
    expect(page.locator(".dl-row")).to_have_count(2, timeout=SLOW)
    page.get_by_label("step", exact=True).fill("two")
    page.get_by_label("step", exact=True).press("Enter")
    page.get_by_text("is a number, or a range").first.wait_for()
    page.get_by_label("step", exact=True).fill("2")
    choose(page, "solved", "at turn 1")
    page.wait_for_selector(".rl-empty")
    assert "No dialogue matches" in page.inner_text(".rl-empty")
    page.click("text=Clear filters")
    expect(page.locator(".dl-row")).to_have_count(24, timeout=SLOW)
    page.get_by_label("search").fill("write that")
    expect(page.locator(".dl-row")).to_have_count(6, timeout=SLOW)
    wait_for(page, search="write that", leak=None, run="1")


@pytest.mark.slow
def test_the_page_opens_on_the_students_own_attempts(show: Callable[..., Any]) -> None:
    page = show(run=SMALL)
    wait_for(page, phase="train", stage="rl2f")
    assert page.get_by_label("phase", exact=True).input_value() == "train"
    page.get_by_role("button", name="Clear", exact=True).click()
    wait_for(page, phase=None, stage=None, all="1")
    page.reload()
    expect(page.locator(".dl-row")).to_have_count(24, timeout=SLOW)
    wait_for(page, phase=None)
    expect(page.get_by_role("link", name="Dialogues").and_(page.locator("[aria-current=page]"))).to_have_count(1)


@pytest.mark.slow
def test_a_bar_of_the_rewards_opens_its_dialogues(show: Callable[..., Any]) -> None:
    page = show(run=SMALL, dialogue=STEP.format(2, 0, 0))
    page.wait_for_selector(".dv-turn")
    page.get_by_text("Rewards of this step").click()
    bars = page.locator("#dl-histogram .point path")
    bars.first.wait_for()
    bars.first.click(force=True)
    wait_for(page, step="2", stage="rl2f", phase="train")
    page.wait_for_function("new URLSearchParams(location.search).get('reward')")
    page.wait_for_function("(n => n > 0 && n < 8)(document.querySelectorAll('.dl-row').length)")


@pytest.mark.slow
def test_the_group_stands_side_by_side(show: Callable[..., Any], no_overflow: Callable[[Any], None]) -> None:
    page = show(run=SMALL, dialogue=STEP.format(2, 1, 2))
    page.wait_for_selector(".dv-turn")
    page.keyboard.press("v")
    page.wait_for_selector(".gv-grid")
    heads = page.locator(".gv-head")
    expect(heads).to_have_count(4)
    assert "reward −.30" in heads.nth(2).inner_text() and heads.nth(2).get_attribute("aria-current") == "true"
    assert "3 of 4" in page.inner_text(".dv") and ".55" in page.inner_text(".dv")
    wait_for(page, view="group")
    no_overflow(page)
    page.reload()
    page.wait_for_selector(".gv-grid")
    page.locator(".gv-head").nth(0).click()
    page.wait_for_selector(".dv-turn")
    wait_for(page, view=None, dialogue=STEP.format(2, 1, 0))


@pytest.mark.slow
def test_a_hint_is_flagged_with_span_and_note_and_the_flag_taken_back(show: Callable[..., Any], replay: Any) -> None:
    event = STEP.format(2, 0, 3)
    page = show(run=SMALL, dialogue=event)
    page.wait_for_selector(".dv-labels .dv-label >> visible=true")
    page.keyboard.press("1")
    expect(page.locator(".dv-name >> visible=true")).to_be_focused()  # it asks who labels
    page.keyboard.type("anna")
    page.fill(".dv-note >> visible=true", "names <b>all</b>")
    page.keyboard.press("Escape")
    page.wait_for_selector(".dv-labels button >> visible=true")
    page.evaluate("""() => {
      const [before, mark] = document.querySelectorAll('.dv-hint .tx-block [data-o]');
      const range = document.createRange();
      range.setStart(before.firstChild, 4);
      range.setEnd(mark.firstChild, 3);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
    }""")
    page.wait_for_timeout(200)  # the browser reports a selection later
    page.keyboard.press("1")
    page.wait_for_selector(".tx-label")
    assert labels_of(replay, event) == [("anna", "leak", 4, 15, "names <b>all</b>")]
    assert "".join(page.locator(".tx-labeled").all_inner_texts()) == "code is A B"
    expect(page.locator(".dl-row[aria-current] .dl-labeled")).to_have_count(1)
    page.keyboard.press("2")
    page.wait_for_selector(".tx-label[data-label=no_leak]")
    page.keyboard.press("u")
    page.wait_for_selector(".tx-label[data-label=leak]")
    page.keyboard.press("u")
    page.wait_for_selector(".tx-label", state="detached")
    assert labels_of(replay, event) == []


@pytest.mark.slow
def test_a_label_counts_that_is_chosen_while_the_name_is_still_typed(show: Callable[..., Any], replay: Any) -> None:
    event = STEP.format(2, 0, 3)
    page = show(run=SMALL, dialogue=event)
    page.click(".dv-label[data-label=unsure] >> visible=true")
    expect(page.locator(".dv-name >> visible=true")).to_be_focused()
    page.keyboard.type("eve")
    page.click(".dv-label[data-label=unsure] >> visible=true")
    page.wait_for_selector(".dv-label[data-label=unsure][aria-pressed=true] >> visible=true")
    assert ("eve", "unsure") in [found[:2] for found in labels_of(replay, event)]


@pytest.mark.slow
def test_another_phase_resets_the_filters_of_the_one_before(show: Callable[..., Any]) -> None:
    page = show(run=SMALL, phase="evaluation", stage="evaluation", checkpoint="rl@3", condition="hints")
    choose(page, "phase", "train")
    wait_for(page, phase="train", stage=None, checkpoint=None, condition=None)
    page.wait_for_selector(".dl-row")


@pytest.mark.slow
def test_another_stage_resets_the_filters_that_exclude_it(show: Callable[..., Any]) -> None:
    page = show(run=SMALL, phase="evaluation", stage="evaluation", checkpoint="rl@3", condition="hints")
    choose(page, "stage", "rl2f")
    wait_for(page, phase=None, stage="rl2f", checkpoint=None, condition=None)
    page.wait_for_selector(".dl-row")


@pytest.mark.slow
def test_notes_are_kept_and_shown_as_they_are(show: Callable[..., Any]) -> None:
    page = show(run=SMALL, dialogue=STEP.format(1, 1, 1))
    page.get_by_label("note", exact=True).wait_for()
    page.get_by_label("note", exact=True).fill("see <img src=x onerror=alert(1)>")
    page.get_by_label("note", exact=True).press("Control+Enter")
    page.wait_for_selector(".dv-note-row")
    assert "see <img src=x onerror=alert(1)>" in page.inner_text(".dv-note-row")
    page.click(".dv-note-row [aria-label='delete the note']")
    page.click("dialog .rl-danger")
    page.wait_for_selector(".dv-note-row", state="detached")


@pytest.mark.slow
def test_hostile_words_do_nothing_and_hidden_characters_are_seen(
    show: Callable[..., Any], no_overflow: Callable[[Any], None]
) -> None:
    page = show(run=ODD, dialogue="dialogue:train:odd/hostile")
    page.wait_for_selector(".dv-turn")
    shown = page.inner_text(".dv-turn[data-turn='0'] .tx-block >> nth=0")
    assert '<script>window.pwned = "script"</script>' in shown and "![logo](http://example.invalid/a.png)" in shown
    named = page.locator(".dv-turn[data-turn='0'] .tx-block >> nth=0").locator(".tx-invisible").all_inner_texts()
    assert named == ["RLO", "PDF", "ZWSP"]
    assert "\u202e" not in page.inner_text("main") and "\u200b" not in page.inner_text("main") and "😀" in HOSTILE
    assert page.locator(".rl-view :is(script, img, iframe, a[href^=javascript])").count() == 0
    page.keyboard.press("v")
    page.wait_for_selector(".gv-grid")
    assert page.evaluate("window.pwned") is None
    page.keyboard.press("v")
    page.wait_for_selector(".dv-turn")

    page = show(run=ODD, dialogue="dialogue:train:odd/long")
    page.wait_for_selector(".tx-more")
    no_overflow(page)
    page.click(".tx-more >> nth=0")
    page.wait_for_function("document.querySelector('.dv-turn .tx-block').textContent.length >= 100000")
    no_overflow(page)
    page = show(run=ODD, dialogue="dialogue:train:odd/failed")
    page.wait_for_selector(".dv-end .tx-block")
    assert page.inner_text(".dv-end .tx-block") == "ValueError: <b>broke</b>"


@pytest.mark.slow
def test_what_is_not_there_is_said_plainly(show: Callable[..., Any], console: Any) -> None:
    console.allow(r"status of 404")
    page = show(run=SMALL, dialogue="dialogue:nowhere")
    page.wait_for_selector("#dl-replay [role=alert]")
    assert "no such dialogue" in page.inner_text("#dl-replay [role=alert]")
    expect(page.locator(".dl-row")).to_have_count(24, timeout=SLOW)  # the list remains
    page = show(run=999)
    page.wait_for_selector("#dl-replay [role=alert]")
    assert "There is no run 999" in page.inner_text("#dl-replay")


@pytest.mark.slow
def test_in_a_narrow_window_list_and_dialogue_are_two_views(
    show: Callable[..., Any], new_page: Callable[..., Any], no_overflow: Callable[[Any], None]
) -> None:
    page = show(new_page(390, 844, "dark"), run=SMALL)
    assert page.locator(".dl-row").first.is_visible() and not page.locator("#dl-pane").is_visible()
    no_overflow(page)
    page.click(".dl-row >> nth=3")
    page.wait_for_selector(".dv-turn")
    assert not page.locator(".dl-list").is_visible()
    no_overflow(page)
    page.click("[aria-label='next dialogue']")
    wait_for(page, dialogue=STEP.format(1, 1, 0))
    page.click("text=← List")
    expect(page.locator(".dl-row").first).to_be_visible()
    wait_for(page, dialogue=None)
    page.click(".dl-row >> nth=2")
    page.wait_for_selector(".dv-turn")
    page.keyboard.press("v")
    page.wait_for_selector(".gv-grid")
    no_overflow(page)
    page.go_back()
    page.wait_for_selector(".dl-row >> visible=true")
    assert re.search(r"run=1\b", page.url)


@pytest.mark.slow
def test_the_copied_link_is_the_address(show: Callable[..., Any], new_page: Callable[..., Any]) -> None:
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    show(page, run=SMALL, dialogue=STEP.format(1, 0, 2), turn=2)
    page.wait_for_selector(".dv-turn")
    page.keyboard.press("c")
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert query(page)["turn"] == "2"
    page.reload()
    expect(page.locator(".dv-turn[data-current][data-turn='2']")).to_be_in_viewport(ratio=0.9)


def hold_first_action(page: Any) -> list[Any]:
    """Hold the request of the next action; it is in the returned list, from which a test continues it."""
    held: list[Any] = []

    def delay(route: Any) -> None:
        body = json.loads(route.request.post_data or "{}")
        if held or not body.get("event_data"):  # a timer has none
            route.continue_()
        else:
            held.append(route)

    page.route("**/queue/join*", delay)
    return held


@pytest.mark.slow
def test_every_key_during_a_slow_answer_counts(show: Callable[..., Any]) -> None:
    page = show(run=SMALL)
    wait_for(page, dialogue=STEP.format(1, 0, 0))
    held = hold_first_action(page)
    for key in ("n", "n", "n"):
        page.keyboard.press(key)
    wait_for(page, dialogue=STEP.format(1, 0, 2))
    held[0].continue_()
    wait_for(page, dialogue=STEP.format(1, 0, 3), turn="0")
    expect(page.locator(".dl-row[aria-current]")).to_have_attribute("data-event", STEP.format(1, 0, 3))


@pytest.mark.slow
def test_the_turn_that_was_selected_stays_current_when_an_earlier_answer_arrives(show: Callable[..., Any]) -> None:
    page = show(run=SMALL, dialogue=STEP.format(3, 0, 3), turn=1)
    page.wait_for_selector(".dv-turn[data-current][data-turn='1']")
    held = hold_first_action(page)
    page.keyboard.press("k")
    page.keyboard.press("t")
    page.wait_for_timeout(300)
    page.keyboard.press("j")
    held[0].continue_()
    page.wait_for_selector(".dv-token-view")
    current = page.locator(".dv-turn[data-current]")
    expect(current).to_have_count(1)
    expect(current).to_have_attribute("data-turn", "1")


@pytest.mark.slow
def test_a_label_is_not_given_to_a_dialogue_that_is_not_shown(show: Callable[..., Any], replay: Any) -> None:
    """The key 1 is pressed before the answer to n: it labels nothing, because n changes the dialogue first."""
    event = STEP.format(3, 0, 3)
    page = show(run=SMALL, dialogue=event)
    page.wait_for_selector(".dv-labels .dv-label >> visible=true")
    page.fill(".dv-name >> visible=true", "zoe")
    page.press(".dv-name >> visible=true", "Escape")
    page.wait_for_timeout(500)
    page.keyboard.press("n")
    page.keyboard.press("1")
    wait_for(page, dialogue=STEP.format(3, 1, 0))
    page.wait_for_timeout(500)
    assert labels_of(replay, event) == labels_of(replay, STEP.format(3, 1, 0)) == []


@pytest.mark.slow
def test_keys_work_after_an_action_failed(show: Callable[..., Any], console: Any) -> None:
    console.allow("status of 500")
    page = show(run=SMALL)
    wait_for(page, dialogue=STEP.format(1, 0, 0))
    page.route("**/queue/join*", lambda route: route.fulfill(status=500, json={"error": None}), times=1)
    page.keyboard.press("n")
    page.keyboard.press("n")
    wait_for(page, dialogue=STEP.format(1, 0, 1))


@pytest.mark.slow
def test_a_filter_is_one_request(show: Callable[..., Any]) -> None:
    page = show(run=SMALL)
    wait_for(page, dialogue=STEP.format(1, 0, 0))
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if "/queue/join" in request.url else None)
    choose(page, "leak", "⚑ leaked")
    wait_for(page, leak="2")
    expect(page.locator(".dl-row")).to_have_count(6, timeout=SLOW)
    assert len(sent) == 1


@pytest.mark.slow
def test_a_message_names_the_end_of_the_list(show: Callable[..., Any]) -> None:
    page = show(run=SMALL, dialogue=STEP.format(3, 1, 3))
    page.wait_for_selector(".dv-turn")
    for _ in range(2):
        page.keyboard.press("n")
        expect(page.get_by_role("status").get_by_text("This is the last dialogue of the list.")).to_be_visible()
    page.keyboard.press("p")
    expect(page.locator(".dl-message")).to_have_count(0)


@pytest.mark.slow
def test_a_narrow_window_says_why_the_list_is_empty(show: Callable[..., Any], new_page: Callable[..., Any]) -> None:
    page = show(new_page(390, 844), run=SMALL, search="zebra")
    expect(page.get_by_text("No dialogue matches these filters").locator("visible=true")).to_have_count(1)


@pytest.mark.slow
def test_the_replay_shows_the_bits_of_each_hint(show: Callable[..., Any]) -> None:
    """15 codes are left after A A B A; `A ? ? ?` determines A B A B, which it does not state: log2(15) = 3.91 bits.

    The hint of the last dialogue states the code in other than the scripted words: it has a mark, and no bits.
    """
    page = show(run=SMALL, dialogue=STEP.format(1, 0, 1))
    hint = page.locator(".dv-turn[data-turn='0'] .dv-hint")
    chip = hint.locator(".dv-bits")
    expect(chip).to_have_text("3.91 bits", timeout=SLOW)
    assert ".00 bits left" in chip.get_attribute("title")
    assert "the next attempt uses 3.91 bits" in chip.get_attribute("title")
    expect(hint.get_by_text("determines the answer")).to_have_count(1)
    expect(hint.locator(".tx-found")).to_have_count(0)
    page = show(run=SMALL, dialogue=STEP.format(1, 0, 3))
    expect(page.locator(".dv-turn[data-turn='0'] .tx-found")).to_have_count(1, timeout=SLOW)
    expect(page.locator(".dv-bits")).to_have_count(0)
    expect(page.get_by_text("determines the answer")).to_have_count(0)
