"""The loop of labels and detectors in a browser: label hints, train a detector, compare it, use it in a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from detector_report_data import Truth, add_truth
from playwright.sync_api import expect

from jobs.db.engine import Database
from jobs.db.label_models import LeakScore
from jobs.db.queries import runs
from jobs.workspace import Workspace

SAMPLE = 20
WAIT = 900_000
"""Milliseconds: training, rescoring and the run take turns on one core."""


@pytest.fixture
def truth(replay: Any) -> Truth:
    """A run of 60 hints, half of them flagged, half of them leaks."""
    workspace = Workspace(replay.workspace)
    db = Database(workspace.database_url())
    made = add_truth(db, workspace, "twenty-labels", 60, flagged=0.5, precise=0.5, missed=0.5)
    db.close()
    return made


def wait_for_run(page: Any, url: str) -> None:
    page.goto(url)
    page.wait_for_selector(".rl-badge[data-status=succeeded]", timeout=WAIT)


@pytest.mark.slow
def test_twenty_labels_train_a_detector_that_is_compared_and_used_in_a_run(
    replay: Any, page: Any, truth: Truth, tiny_config: dict[str, Any], no_overflow: Callable[[Any], None]
) -> None:
    page.set_default_timeout(60_000)
    page.goto(f"{replay.url}/labels?run={truth.run.id}&selection=stratified&size={SAMPLE}&annotator=anna")
    for i in range(SAMPLE):
        page.wait_for_selector(".lb-state:has-text('not labeled')")
        page.keyboard.press("1" if "A B" in page.inner_text(".lb-hint") else "2")
        page.wait_for_selector(f".lb-meter:has-text('{i + 1} of {SAMPLE} labeled')")
        page.keyboard.press("Control+Enter")
    page.wait_for_selector(".rl-empty-title:has-text('Everything here is labeled')")

    view = f"{replay.url}/labels?view=train&run={truth.run.id}&model=tiny-random&benchmarks=handwritten"
    page.goto(view)
    page.wait_for_selector(".lb-train")
    assert f"{SAMPLE} labeled hints" in page.inner_text(".lb-train")
    assert page.locator("[data-source=run]").count() == 1 and page.locator("[data-source]").count() == 1
    page.get_by_role("button", name="Train detector").click()
    page.wait_for_selector(".lb-message:has-text('Training is queued as run')")
    number = re.search(r"as run (\d+)", page.inner_text(".lb-message"))[1]  # type: ignore[index]
    wait_for_run(page, f"{replay.url}/run?run={number}")

    page.goto(view)
    page.wait_for_selector("[data-row='leaks/v1']")
    no_overflow(page)
    page.get_by_role("button", name="Rescore labeled runs").click()
    page.wait_for_selector(".lb-message:has-text('Rescoring is queued as run')")
    rescored = re.search(r"as run (\d+)", page.inner_text(".lb-message"))[1]  # type: ignore[index]
    wait_for_run(page, f"{replay.url}/run?run={rescored}")
    page.goto(view)
    row = page.locator(f"[data-source='{rescored}']")
    expect(row).to_contain_text("classifier")
    counted = [page.locator(f"[data-source='{name}'] td").last.inner_text() for name in ("run", rescored)]
    assert counted[0] == counted[1] != "0", "both are scored on the same labels"

    page.goto(f"{replay.url}/labels?run={truth.run.id}&selection=informative&annotator=anna")
    page.wait_for_selector(".lb-hint")

    workspace = Workspace(replay.workspace)
    folder = workspace.detectors / "leaks" / "v1"
    page.goto(f"{replay.url}/new")
    page.wait_for_selector(".nr-columns:not([inert]) .rf-row")
    detectors = [{"type": "exact"}, {"type": "classifier", "path": str(folder), "threshold": None, "device": "cpu"}]
    config = {**tiny_config, "name": "guarded", "leak_detection": {"detectors": detectors}}
    page.locator("#nr-yaml textarea").fill(yaml.safe_dump(config, sort_keys=False))
    path = page.locator('#nr-form [data-field="leak_detection.detectors.1.path"]')
    page.wait_for_function("document.querySelector('#nr-summary').innerText.includes('ready')")
    page.locator('button.rf-fold[data-fold="*"]').click()
    expect(path).to_have_value(str(folder))
    assert any("leaks/v1" in each for each in path.locator("option").all_inner_texts())
    page.locator("#nr-start").click()
    page.wait_for_url(re.compile(r"/run\?run=\d+"))
    guarded = int(re.search(r"run=(\d+)", page.url)[1])  # type: ignore[index]
    page.wait_for_selector(".rl-badge[data-status=succeeded]", timeout=WAIT)
    db = Database(workspace.database_url(), read_only=True)
    with db.read() as session:
        from sqlmodel import col, select

        scores = session.scalars(select(LeakScore).where(col(LeakScore.run_id) == guarded)).all()
    assert len(scores) > 10 and runs.get(db, guarded).status == "succeeded"
    assert all(0 <= score.probability <= 1 for score in scores)
    db.close()
