"""How far a flag can be trusted, in a browser: card, redact and rerun, what the teacher saw, leaks of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from fork_data import LEAKED, add_leak, make_run, obedient, served
from playwright.sync_api import expect
from replay_data import add_run, event, hint, training_events, turn

from jobs.db.engine import Database
from jobs.workspace import Workspace
from rl2f_core.common import prompt_templates
from rl2f_core.run.events import MetricEvent

SLOW = 120_000
"""Milliseconds that a worker may take to start and to end on a busy machine."""
EXACT = {"detectors": ["exact"]}


@pytest.fixture
def numbers(queue: Any) -> Iterator[int]:
    """A run with a flagged hint whose dialogues go on without a model; it and its forks go afterwards."""
    run_dir = make_run(queue.workspace.folder("flagged"), obedient)
    add_leak(run_dir)
    yield from served(queue, run_dir)


@pytest.mark.slow
def test_a_flagged_hint_is_redacted_and_rerun(
    numbers: int, visit: Callable[..., Any], no_overflow: Callable[[Any], None]
) -> None:
    page = visit(f"/dialogues?{urlencode({'run': numbers, 'dialogue': LEAKED})}")
    flagged = page.locator(".dv-turn[data-turn='0'] .dv-hint")
    expect(flagged.locator("mark.tx-found")).to_have_text("low, it is 3")
    flagged.get_by_role("button", name="Redact and rerun").click()
    expect(flagged.locator(".dv-redacted .rl-badge")).to_be_visible()
    expect(flagged.locator(".dv-redacted tr[data-arm]")).to_have_count(2, timeout=SLOW)
    assert flagged.locator(".dv-redacted .tx-block").inner_text() == "Too […]. Really […]."
    rows = [row.split("\t") for row in flagged.locator(".dv-redacted tr[data-arm]").all_inner_texts()]
    # the run's scripted student guesses 1 or 2, so nothing survives; the stored attempt was right
    assert rows[0][:3] == ["hint as read", "✓", "✗"] and rows[1][2] == "✗"
    expect(flagged.locator(".dv-redacted")).to_contain_text("The rerun differs from the stored attempt")
    no_overflow(page)
    page.set_viewport_size({"width": 390, "height": 844})
    no_overflow(page)
    expect(flagged.locator(".dv-redacted .rl-badge")).to_have_count(0, timeout=SLOW)  # the fork has ended


@pytest.mark.slow
def test_a_flag_has_a_card_and_a_model_teacher_its_prompt(
    replay: Any, page: Any, no_overflow: Callable[[Any], None]
) -> None:
    version = prompt_templates.load("socratic").version
    leak = hint("The code is A B A B, so write that.", (12, 19), teacher="llm", prompt_template=version)
    model = event("model/0", [turn(0, "A A A A", "A A A A", leak), turn(1, "A B A B", "A B A B")], 2, "model")
    values = {"reward": 0.5, "cum_acc/1": 0.25, "cum_acc/5": 0.75, "leak_rate": 0.2}
    steps = [MetricEvent(id=f"metric:{n}", time=1.0 + n, stage="rl2f", step=n, values=values) for n in (1, 2, 3)]
    workspace = Workspace(replay.workspace)
    db = Database(workspace.database_url())
    run = add_run(db, workspace, "carded", [*training_events(), model, *steps], teacher="llm", leak_detection=EXACT).id
    db.close()
    page.goto(f"{replay.url}/dialogues?{urlencode({'run': run, 'dialogue': model.id})}")
    card = page.locator(".dv-turn[data-turn='0'] .tx-card")
    expect(card.locator("summary")).to_contain_text("exact: ")
    expect(card.locator("summary")).to_contain_text("unknown here by labels of this workspace")
    card.locator("summary").click()
    expect(card.locator("tbody tr")).to_have_count(5)
    labels = card.locator("tr[data-row='labels of this workspace'] td")
    assert labels.all_inner_texts() == ["0", "unknown here", "unknown here"]
    page.get_by_role("button", name="What the teacher saw").first.click()
    saw = page.locator(".dv-saw")
    expect(saw.locator(".tx-block")).to_have_count(2)
    expect(saw).to_contain_text(f"the template {version} is unchanged")
    assert "A A A A" in saw.locator(".tx-block").last.inner_text()
    no_overflow(page)

    page.goto(f"{replay.url}/run?run={run}")
    leaks = page.locator(".rl-glance .rl-card", has_text="Leaks read by turn")
    expect(leaks).to_contain_text("25 checked hints")
    expect(page.get_by_role("region", name="quality of exact").locator("tbody tr")).to_have_count(5)
    expect(page.locator("#run-charts").get_by_text("no leak read").first).to_be_visible()
    no_overflow(page)
    page.set_viewport_size({"width": 390, "height": 844})
    no_overflow(page)
