"""A study from New run to its report on Compare, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect
from study_data import write_results

from jobs import studies
from jobs.db.engine import Database
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

WAIT = 60_000
"""Milliseconds; the machine may be busy."""


@pytest.fixture
def paused(replay: Any) -> Iterator[Queue]:
    """The server's queue, whose runs stay queued; they leave it afterwards."""
    workspace = Workspace(replay.workspace)
    db = Database(workspace.database_url())
    queue = Queue(db, workspace)
    queue.pause()
    yield queue
    for run in studies.runs_of(queue, "tiny").values():
        if run.status == "queued":
            queue.stop(run.id or 0)
    queue.resume_dispatch()
    db.close()


def test_a_study_is_started_stopped_and_resumed_as_one_and_its_report_is_shown(
    replay: Any, paused: Queue, page: Any
) -> None:
    page.goto(f"{replay.url}/new")
    page.get_by_role("combobox", name="Preset", exact=True).click()
    page.get_by_role("option", name="tiny · study").click()
    expect(page.locator("#nr-summary")).to_contain_text("2 arms × 2 seeds = 4 runs", timeout=WAIT)
    expect(page.locator("#nr-form")).to_contain_text("Training on hints raises the hint effect")
    expect(page.locator("#nr-preflight, #nr-schedule")).to_have_count(0)
    text = page.locator("#nr-yaml textarea")
    text.fill(text.input_value().replace("smallest_effect: 0.05", "smallest_effect: 0.06"))
    expect(page.locator("#nr-form")).to_contain_text(".06", timeout=WAIT)
    page.get_by_role("button", name="Start study").click()
    page.wait_for_url("**/compare?study=tiny")
    report = page.locator("#compare-report")
    expect(report).to_contain_text("6 queued", timeout=WAIT)
    expect(report.get_by_role("row", name="The content of hints teaches")).to_contain_text("no result yet")
    report.get_by_role("button", name="Stop all").click()
    expect(report).to_contain_text("6 stopped", timeout=WAIT)
    parts = studies.runs_of(paused, "tiny")
    write_results(Workspace(replay.workspace), parts)
    report.get_by_role("button", name="Resume").click()
    expect(report).to_contain_text("6 queued", timeout=WAIT)

    row = report.get_by_role("row", name="The content of hints teaches")
    expect(row).to_contain_text("+.60", timeout=WAIT)
    expect(row).to_contain_text("rl2f 0 1 − contentless 0 1")
    row.get_by_role("link", name="1").first.click()
    page.wait_for_url(f"**/dialogues?run={parts['rl2f-seed-1'].id}&phase=evaluation&checkpoint=rl2f@3&condition=hints")
    page.goto(f"{replay.url}/compare")
    page.get_by_role("combobox", name="Study", exact=True).click()
    page.get_by_role("option", name="tiny").click()
    expect(page.locator("#compare-evaluations table").first).to_be_visible(timeout=WAIT)
