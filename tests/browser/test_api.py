"""Page API: endpoints with examples that work as they are copied, with the address that the browser uses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from jobs.db.queries import tokens


@pytest.mark.slow
def test_the_examples_of_an_endpoint_work_as_they_are_copied(
    server: Any, visit: Callable[..., Any], queue: Any, no_overflow: Callable[[Any], None]
) -> None:
    _, token = tokens.create(queue.db, ["read"], "examples")
    page = visit("/?view=api")
    expect(page).to_have_url(re.compile(r"/api$"))
    shown = page.locator("#api-endpoint")
    expect(shown.get_by_role("heading", level=2)).to_contain_text("list_runs")
    expect(page.locator("#api-connect")).to_contain_text("rl2f token new")
    page.get_by_label("Filter").fill("preset yaml")
    expect(page.locator("#api-list").get_by_role("link")).to_contain_text(["get_preset"])
    page.locator("#api-list").get_by_role("link", name="get_preset", exact=True).click()
    expect(shown.get_by_role("heading", level=2)).to_contain_text("get_preset")
    expect(shown.get_by_role("cell", name="name", exact=True)).to_be_visible()
    python, curl, shell = (text.replace("rl2f_…", token) for text in shown.locator("pre").all_inner_texts())
    assert server.url in python and server.url in curl and shell == "rl2f call get_preset"
    done = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=True)
    assert "name: quickstart" in done.stdout
    done = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True)
    assert "name: quickstart" in json.loads(done.stdout.partition("data: ")[2].splitlines()[0])[0]
    visit("/api?endpoint=nothing")
    expect(shown.get_by_role("alert")).to_have_text("No endpoint is named nothing.")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        no_overflow(page)
