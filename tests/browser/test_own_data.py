"""Own data in a real browser: upload a file with broken rows, see them, train on the rest, find the dialogues."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import expect

from jobs.db.engine import Database
from jobs.db.models import ENDED
from jobs.db.queries import runs
from jobs.workspace import Workspace

BROKEN = [
    "How many days has a week?,seven", "How many hours has a day?,", ",12", "?!,4", "How many legs has a cat?,4,four",
    "What is 2 plus 2?,5", "How many wheels has a car?", "How many months has a year?,1 dozen",
    "How many minutes has an hour?,<b>60</b>", "How many sides has a square?,NaN",
]  # fmt: skip
"""Ten rows that cannot be used; one contradicts an earlier row."""


def questions(folder: Path) -> Path:
    """A CSV file of 40 valid rows, then ten broken ones."""
    path = folder / "sums & more.csv"
    good = [f"What is {n} plus {n}?,{2 * n}" for n in range(1, 41)]
    path.write_text("\n".join(["item,result", *good, *BROKEN]) + "\n")
    return path


def table(page: Any, style: str) -> list[list[str]]:
    """The cells of a table of the card."""
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    rows = page.locator(f"#nr-data .{style} tbody tr")
    rows.first.wait_for()
    return rows.evaluate_all(script)


def choose(page: Any, name: str, option: str) -> None:
    """Choose an option of a dropdown of the card."""
    page.locator(f"#nr-data-{name} input").click()
    page.get_by_role("listbox").get_by_role("option", name=option, exact=True).click()
    expect(page.get_by_role("listbox")).to_have_count(0)


def open_page(page: Any, server: Any) -> None:
    """Open the page New run."""
    page.set_default_timeout(60_000)
    page.goto(f"{server.url}/new?preset=quickstart")
    page.wait_for_selector(".nr-columns:not([inert]) .rf-row")


def use_questions(page: Any, server: Any, folder: Path) -> None:
    """Upload the questions, choose their columns, and use them in the form."""
    page.locator("#nr-data-file input[type=file]").set_input_files(questions(folder))
    report = page.locator("#nr-data-report")
    expect(report).to_contain_text("No column of sums-more-")  # "item" and "result" are no known names
    expect(page.locator("#nr-data-use")).to_be_disabled()
    choose(page, "problem", "item")
    choose(page, "answer", "result")
    choose(page, "checker", "numeric, with a tolerance")
    expect(report).to_contain_text("50 rows, 40 valid, 10 bad")
    page.locator("#nr-data-use").click()
    page.wait_for_function("document.querySelector('#nr-yaml textarea').value.includes('bad_rows: skip')")
    expect(page.locator("#nr-summary")).to_contain_text("ready")


def train_on_questions(page: Any, server: Any, config: dict[str, Any], folder: Path) -> None:
    """Use the questions in a configuration, start it and look for its dialogues."""
    open_page(page, server)
    page.locator("#nr-yaml textarea").fill(yaml.safe_dump(config, sort_keys=False))
    page.wait_for_function("document.querySelector('#nr-yaml textarea').value.includes('own-data')")
    page.locator("#nr-own-data").click()
    use_questions(page, server, folder)
    page.locator("#nr-start").click()
    page.wait_for_url(re.compile(r"/run\?run=\d+"))
    run = int(re.search(r"run=(\d+)", page.url)[1])  # type: ignore[index]

    db = Database(Workspace(server.workspace).database_url())
    try:
        end = time.monotonic() + 500
        while (row := runs.get(db, run)).status not in ENDED and time.monotonic() < end:
            time.sleep(0.3)
        assert row.status == "succeeded", row.detail
    finally:
        db.close()
    page.goto(f"{server.url}/dialogues?run={run}")
    expect(page.locator("body")).to_contain_text(re.compile(r"What is \d+ plus \d+\?"))


def small(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Two training steps without an evaluation."""
    stages = [{"name": "rl", "method": "rl2f", "steps": 2, "tasks_per_step": 2, "group_size": 2}]
    return {**config, "name": "own-data", "stages": stages, "evaluation": {"checkpoints": []}, **changes}


@pytest.mark.slow
def test_an_uploaded_file_is_checked_and_used_in_the_form(
    page: Any, server: Any, tmp_path: Path, no_overflow: Callable[[Any], None]
) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"no parquet file")
    before = sorted((server.workspace / "data").glob("*"))
    open_page(page, server)
    page.locator("#nr-own-data").click()
    page.locator("#nr-data-file input[type=file]").set_input_files(tmp_path / "broken.parquet")
    expect(page.locator("#nr-data-report")).to_contain_text("Parquet file cannot be read")
    assert sorted((server.workspace / "data").glob("*")) == before

    use_questions(page, server, tmp_path)
    environment = yaml.safe_load(page.locator("#nr-yaml textarea").input_value())["environment"]
    assert environment["columns"] == {"problem": "item", "answer": "result"} and environment["checker"] == "numeric"
    stored, source = Path(environment["path"]), tmp_path / "sums & more.csv"
    assert stored.parent == server.workspace / "data" and stored.read_bytes() == source.read_bytes()
    page.locator("#nr-own-data").click()
    rows = table(page, "nr-bad-rows")
    assert [int(row[0]) for row in rows] == list(range(41, 51))
    assert rows[0][1:] == ["result", "is not an answer that the checker numeric can read"]
    assert rows[1][1:] == ["result", "is empty"] and rows[2][1:] == ["item", "is empty"]
    assert rows[3][1:] == ["item", "has no word"] and rows[4][1:] == ["–", "has 3 fields, the header has 2"]
    assert rows[5][1:] == ["result", "differs from row 2, the same problem"]
    assert table(page, "nr-first-rows")[0] == ["What is 1 plus 1?", "2"]
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        no_overflow(page)


@pytest.mark.slow
def test_the_tiny_model_trains_on_the_valid_rows_of_an_uploaded_file(
    page: Any, server: Any, tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    train_on_questions(page, server, small(tiny_config), tmp_path)


@pytest.mark.slow
def test_smollm2_trains_on_the_valid_rows_of_an_uploaded_file(
    page: Any, real: Any, tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    model = {"name": "smollm2-135m", "device": "cpu"}
    rollout = {"max_turns": 2, "max_new_tokens": 16, "max_seq_len": 512}
    train_on_questions(page, real, small(tiny_config, model=model, rollout=rollout), tmp_path)
