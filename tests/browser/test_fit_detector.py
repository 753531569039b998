"""The loop of labels and detectors in a browser: label hints, fit the detector, compare it, use it in a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from detector_report_data import Truth, truth_of
from playwright.sync_api import expect

from jobs.db.engine import Database
from jobs.db.queries import runs
from jobs.workspace import Workspace

SAMPLE = 20
WAIT = 240_000
"""Milliseconds: rescoring and the run take turns on one core."""


@pytest.fixture
def truth(replay: Any) -> Truth:
    return truth_of(replay, "twenty-labels")


@pytest.mark.slow
def test_twenty_labels_fit_a_detector_that_is_compared_and_used_in_a_run(
    replay: Any, page: Any, truth: Truth, tiny_config: dict[str, Any], no_overflow: Callable[[Any], None]
) -> None:
    page.set_default_timeout(60_000)
    page.goto(f"{replay.url}/labels?run={truth.run.id}&selection=stratified&size={SAMPLE}&annotator=anna")
    for i in range(SAMPLE):
        page.wait_for_selector(".lb-state:has-text('not labeled')")
        page.keyboard.press("1" if "the code is" in page.inner_text(".lb-hint") else "2")
        page.wait_for_selector(f".lb-meter:has-text('{i + 1} of {SAMPLE} labeled')")
        page.keyboard.press("Control+Enter")
    page.wait_for_selector(".rl-empty-title:has-text('Everything here is labeled')")

    view = f"{replay.url}/labels?view=fit&run={truth.run.id}"
    page.goto(view)
    page.wait_for_selector(".lb-fit")
    assert f"{SAMPLE} labeled hints" in page.inner_text(".lb-fit")
    assert page.locator("[data-source=run]").count() == 1 and page.locator("[data-source]").count() == 1
    page.get_by_role("button", name="Fit", exact=True).click()
    page.wait_for_selector(".lb-message:has-text('old → new: precision')")
    old, new = (
        page.locator(f"[data-row='mentions/v1 {name}']") for name in ("blind draws, default weights", "blind draws")
    )
    counts = [row.locator("td").nth(3).inner_text() for row in (old, new)]
    assert counts[0] == counts[1] != "0", "both are scored on the same labels"
    no_overflow(page)

    page.get_by_role("button", name="Rescore labeled runs").click()
    page.wait_for_selector(".lb-message:has-text('Rescoring is queued as run')")
    rescored = re.search(r"as run (\d+)", page.inner_text(".lb-message"))[1]  # type: ignore[index]
    page.goto(f"{replay.url}/run?run={rescored}")
    page.wait_for_selector(".rl-badge[data-status=succeeded]", timeout=WAIT)
    page.goto(view)
    expect(page.locator(f"[data-source='{rescored}']")).to_contain_text("mentions v1")
    counted = [page.locator(f"[data-source='{name}'] td").last.inner_text() for name in ("run", rescored)]
    assert counted[0] == counted[1] != "0", "both are scored on the same labels"

    page.goto(f"{replay.url}/labels?run={truth.run.id}&selection=informative&annotator=anna")
    page.wait_for_selector(".lb-hint")

    workspace = Workspace(replay.workspace)
    file = workspace.detectors / "mentions" / "v1.json"
    page.goto(f"{replay.url}/new")
    page.wait_for_selector(".nr-columns:not([inert]) .rf-row")
    config = {**tiny_config, "name": "guarded",
              "leak_detection": {"detectors": [{"type": "mentions", "path": str(file)}]}}  # fmt: skip
    page.locator("#nr-yaml textarea").fill(yaml.safe_dump(config, sort_keys=False))
    path = page.locator('#nr-form [data-field="leak_detection.detectors.0.path"]')
    page.wait_for_function("document.querySelector('#nr-summary').innerText.includes('ready')")
    page.locator('button.rf-fold[data-fold="*"]').click()
    expect(path).to_have_value(str(file))
    assert any("mentions/v1" in each for each in path.locator("option").all_inner_texts())
    page.locator("#nr-start").click()
    page.wait_for_url(re.compile(r"/run\?run=\d+"))
    guarded = int(re.search(r"run=(\d+)", page.url)[1])  # type: ignore[index]
    page.wait_for_selector(".rl-badge[data-status=succeeded]", timeout=WAIT)
    db = Database(workspace.database_url(), read_only=True)
    used = yaml.safe_load(runs.get(db, guarded).config)["leak_detection"]["detectors"]
    assert [each["path"] for each in used] == [str(file)]
    db.close()
