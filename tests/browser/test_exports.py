"""Page Exports in a real browser: from the form to a data set that loads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from jobs.db.models import Run
from jobs.db.queries import runs

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"> <script>document.title='owned'</script>"
    " ${document.title='owned'} {{document.title='owned'}}"
)
SLOW = 120_000
"""Milliseconds that a worker may take to start and to end on a busy machine."""


def finished(tab: Any) -> Any:
    return tab.locator(".export-done")


def test_an_export_is_started_watched_taken_and_loaded(
    server: Any, visit: Callable[..., Any], no_overflow: Callable[[Any], None], tmp_path: Path
) -> None:
    tab = visit(f"/exports?runs={server.run}&phase=evaluation&include_test=1")
    tab.get_by_text("dialogues, 0 of them with human labels").wait_for()
    before = finished(tab).count()
    tab.get_by_role("button", name="Export", exact=True).click()
    tab.locator(".export-done").nth(before).wait_for(timeout=SLOW)
    newest = finished(tab).first
    assert f"{server.run} · recorded" in newest.inner_text()
    with tab.expect_download() as taking:
        newest.get_by_role("row", name="unpaired_preference").get_by_role("link").first.click()
    taken = tmp_path / "taken.jsonl"
    taking.value.save_as(taken)
    assert taking.value.suggested_filename.endswith("unpaired_preference.jsonl")
    with tab.expect_download() as taking:
        newest.get_by_role("link", name="manifest").click()
    manifest = json.loads(Path(taking.value.path()).read_text())
    facts = manifest["formats"]["unpaired_preference"]["files"]["unpaired_preference.jsonl"]
    assert facts["sha256"] == hashlib.sha256(taken.read_bytes()).hexdigest()
    assert manifest["settings"]["filter"]["phase"] == "evaluation"
    no_overflow(tab)

    from datasets import load_dataset

    rows = load_dataset("json", data_files=str(taken), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(rows) == manifest["formats"]["unpaired_preference"]["rows"]
    folder = server.workspace / "exports" / newest.get_attribute("data-folder")
    whole = load_dataset(str(folder), "messages", split="train", cache_dir=str(tmp_path / "cache"))
    assert len(whole) == manifest["formats"]["messages"]["rows"] and set(whole["phase"]) == {"evaluation"}

    newest.get_by_role("button", name="Delete").click()
    tab.get_by_role("dialog").get_by_role("button", name="Delete").click()
    tab.wait_for_function("n => document.querySelectorAll('.export-done').length === n", arg=before)
    assert not folder.exists()


@pytest.mark.slow
def test_the_form_is_in_the_address_and_survives_a_reload(server: Any, visit: Callable[..., Any]) -> None:
    tab = visit(f"/exports?run={server.run}")
    tab.get_by_text(f"{server.run} · recorded").first.wait_for()
    tab.get_by_role("checkbox", name="Messages").uncheck()
    tab.get_by_role("checkbox", name="Prompt and completion").check()
    tab.get_by_role("radio", name="Detectors only").check()
    expect(tab.get_by_label("Annotator")).to_have_count(0)
    tab.get_by_role("button", name="Which dialogues").click()
    tab.get_by_label("Steps").fill("2-")
    tab.get_by_label("Steps").fill("two")
    tab.get_by_label("Steps").blur()
    tab.get_by_role("alert").get_by_text("The step is a number, or a range").wait_for()
    tab.get_by_label("Steps").fill("2-3")
    tab.get_by_label("Steps").blur()
    tab.get_by_role("alert").get_by_text("The step is a number, or a range").wait_for(state="hidden")
    tab.get_by_text("More", exact=True).click()  # ends the typing, and is not lost
    tab.get_by_role("checkbox", name="Include the answer in the prompts").check()
    tab.get_by_role("alert").get_by_text("Every prompt contains the answer").wait_for()
    address = tab.url.partition("?")[2]
    for part in (f"runs={server.run}", "labels=detector", "steps=2-3", "privileged=1"):
        assert part in address.split("&")
    tab.reload()
    tab.get_by_label("Steps").wait_for()
    assert tab.url.partition("?")[2] == address
    assert tab.get_by_label("Steps").input_value() == "2-3"
    assert not tab.get_by_role("checkbox", name="Messages").is_checked()
    assert tab.get_by_role("radio", name="Detectors only").is_checked()
    tab.get_by_text("Command", exact=True).click()
    command = tab.locator("#export-command .cm-content").inner_text()
    assert command.startswith(f"rl2f export {server.run} --out") and "--steps 2-3" in command
    assert "--privileged" in command


@pytest.mark.slow
def test_an_export_without_labels_is_explained_before_and_after(server: Any, visit: Callable[..., Any]) -> None:
    tab = visit(f"/exports?runs={server.run}&labels=human&formats=unpaired_preference&name=nobody")
    tab.get_by_role("link", name="Label some first").wait_for()
    tab.get_by_role("button", name="Export", exact=True).click()
    job = tab.locator(".export-job", has_text="nobody")
    job.get_by_text("Label hints on the page Labels").wait_for(timeout=SLOW)
    assert job.locator('.rl-badge[data-status="failed"]').count() == 1
    job.get_by_role("button", name="Dismiss").click()
    job.wait_for(state="detached")
    tab.get_by_role("button", name="Which dialogues").click()
    tab.get_by_label("Steps").fill("99-99")
    tab.get_by_label("Steps").blur()
    tab.get_by_text("0 dialogues, 0 of them").wait_for()
    assert tab.get_by_role("button", name="Export", exact=True).is_disabled()


@pytest.mark.slow
def test_a_link_to_a_run_that_is_gone_says_so(visit: Callable[..., Any], console: Any) -> None:
    console.allow("404")
    tab = visit("/exports?runs=987654")
    tab.get_by_text("There is no run 987654").wait_for()
    tab.get_by_text("Choose a run.", exact=True).wait_for()
    assert "runs=" not in tab.url


@pytest.mark.slow
def test_names_of_runs_and_exports_are_text(server: Any, visit: Callable[..., Any], queue: Any) -> None:
    folder = server.workspace / "exports" / "900-strange"
    folder.mkdir(parents=True)
    manifest = {
        "name": HOSTILE,
        "created": 1.0,
        "dialogues": 1,
        "labels": {"hints": 1, "human": {}, "detector": {}, "without": {HOSTILE: 1}},
        "runs": [{"run": HOSTILE, "name": HOSTILE}],
        "formats": {"messages": {"rows": 1, "files": {"messages.jsonl": {"bytes": 1}}}},
        "left_out": {HOSTILE: HOSTILE},
        "settings": {"labels": "both", "privileged": False},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    texts = {"name": HOSTILE, "detail": HOSTILE}
    job = runs.add(queue.db, Run(kind="export", status="failed", folder="hostile", **texts)).id or 0
    run = runs.add(queue.db, Run(name=HOSTILE, kind="eval", status="failed", folder="hostile-run")).id or 0
    tab = visit(f"/exports?runs={run}")
    export, failed = tab.locator("[data-folder='900-strange']"), tab.locator(".export-job", has_text="onerror")
    expect(export.get_by_text(HOSTILE, exact=True)).to_have_text(HOSTILE)
    for text in (f"from {HOSTILE} · 1 dialogue · 1 hint · 1 {HOSTILE}", f"No {HOSTILE}: {HOSTILE}"):
        expect(export.get_by_text(text, exact=True)).to_be_visible()
    expect(failed.get_by_text(HOSTILE, exact=True)).to_have_count(2)
    expect(tab.get_by_text(f"{run} · {HOSTILE}", exact=True).first).to_be_visible()
    expect(tab.locator("main :is(img[src=x], script, b b)")).to_have_count(0)
    assert tab.title() == "Exports · RL2F Studio"
    (folder / "manifest.json").unlink()
    folder.rmdir()
    for number in (job, run):
        runs.remove(queue.db, number)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_page_fits_the_window(
    server: Any,
    visit: Callable[..., Any],
    new_page: Callable[..., Any],
    no_overflow: Callable[[Any], None],
    width: int,
    theme: str,
) -> None:
    query = f"runs={server.run}&phase=evaluation&include_test=1&privileged=1"
    tab = visit(f"/exports?{query}", new_page(width=width, height=900, theme=theme))
    tab.get_by_role("button", name="Export", exact=True).wait_for()
    no_overflow(tab)
