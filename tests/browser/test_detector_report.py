"""Labels and the detector report by keyboard alone: from a random sample to a disagreement's replay and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from detector_report_data import Truth, truth_of
from playwright.sync_api import expect

from jobs.db.engine import Database
from jobs.labels import label_queries, report_queries
from jobs.labels.hint_counts import Scope
from jobs.workspace import Workspace

SAMPLE = 24


@pytest.fixture
def truth(replay: Any) -> Truth:
    return truth_of(replay, "truth")


@pytest.mark.slow
def test_a_sample_is_labeled_and_reported_and_a_disagreement_replayed_by_keyboard_alone(
    replay: Any, page: Any, truth: Truth, no_overflow: Callable[[Any], None]
) -> None:
    def press(*keys: str) -> None:
        for key in keys:
            page.keyboard.press(key)

    page.goto(f"{replay.url}/labels?run={truth.run.id}&selection=stratified&size={SAMPLE}&annotator=anna")
    for i in range(SAMPLE):
        page.wait_for_selector(".lb-state:has-text('not labeled')")
        assert page.locator(".lb-found, mark.tx-found").count() == 0, "blind, though half of them are flagged"
        press("1" if "the code is" in page.inner_text(".lb-hint") else "2")
        page.wait_for_selector(f".lb-meter:has-text('{i + 1} of {SAMPLE} labeled')")
        press("Control+Enter")
    page.wait_for_selector(".rl-empty-title:has-text('Everything here is labeled')")

    press("b")
    page.wait_for_selector(".lb-report")
    db = Database(Workspace(replay.workspace).database_url(), read_only=True)
    kept = report_queries.read(db, Scope(run=truth.run.id))
    e = kept.total.estimates
    assert kept.usage.counted == kept.usage.hints > 3 and e.precision.value is not None and e.recall.value is not None
    said = page.inner_text(".bd-sentence")
    assert f"on {e.n_flagged} labeled flag" in said and f"for all {e.size} hints." in said
    assert f"{e.recall.value:.2f}".lstrip("0") in said
    assert page.locator(".bd-meter").count() == 4 and page.locator(".bd-band").count() >= 4
    assert page.locator("[data-row=exact]").count() == 1 and "few labels" in page.inner_text("[data-row=all]")
    press("ArrowRight")
    page.wait_for_selector("[data-row=llm]")
    assert "group_by=teacher" in page.url and "view=report" in page.url
    page.set_viewport_size({"width": 390, "height": 844})
    no_overflow(page)
    page.set_viewport_size({"width": 1440, "height": 900})

    assert page.locator(".lb-disagreement").count() == len(kept.disagreements) > 1
    press("j", "j", "k", "j")
    second = page.locator(".lb-disagreement").nth(1)
    expect(second).to_be_focused()
    event = second.get_attribute("data-event")
    assert truth.leaks[event, 0] != (page.locator(".lb-disagreement").nth(1).locator("text=⚑").count() > 0)
    press("Enter")
    page.wait_for_selector(".dv-turn[data-current]")
    assert "/dialogues?" in page.url and str(event) in page.url.replace("%2F", "/").replace("%3A", ":")
    page.go_back()  # the browser's own key
    page.wait_for_selector(".lb-report")
    page.wait_for_selector("[data-row=llm]")
    expect(page.locator(f".lb-disagreement[data-event='{event}']")).to_be_focused()

    press("o")
    page.wait_for_selector("dialog[open]:has-text('Access is logged under anna')")
    press("Enter")  # the first choice is to leave it shut
    page.wait_for_selector("dialog[open]", state="detached")
    assert page.locator("[data-set=dev]").count() == 1 and truth.run.id not in [
        access.run_id for access in report_queries.list_accesses(db)
    ]
    press("o")
    page.wait_for_selector("dialog[open]")
    press("Tab", "Enter")
    page.wait_for_selector("[data-set=test] .bd-open")
    unlocked = page.inner_text(".bd-column")  # tests before may have unlocked other runs
    assert (
        "of the test set" in page.inner_text(".bd-sentence") and "Unlocked" in unlocked and "by anna just" in unlocked
    )
    press("ArrowRight", "ArrowRight")
    page.wait_for_selector(".bd-by [data-by=checkpoint][aria-pressed=true]")
    assert page.locator("[data-set=test]").count() == 1
    assert [(o.annotator, o.run_id) for o in report_queries.list_accesses(db) if o.run_id == truth.run.id] == [
        ("anna", truth.run.id)
    ]
    press("b")
    page.wait_for_selector(".rl-empty, .lb-card")
    press("u")
    page.wait_for_selector(".lb-state:has-text('not labeled')")
    assert sum(len(label_queries.of_hint(db, truth.run.id or 0, key, 0)) for key, _ in truth.leaks) == SAMPLE - 1
    press("B")
    page.wait_for_selector(".bd-bench")
    figures = {name: page.locator(f"[data-row={name}] b").all_inner_texts() for name in ("test", "dev")}
    head = page.locator(".bd-head:not([aria-label='recommended cascade']) > p:has(b)")
    assert head.nth(0).locator("b").all_inner_texts() == figures["test"], "the headline is of phrasings held out"
    assert head.nth(1).locator("b").all_inner_texts() == figures["dev"] and "On dev" in head.nth(1).inner_text()
    press("?")
    assert "detector report" in page.inner_text("dialog[open]")
    db.close()
