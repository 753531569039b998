"""Page Audit log: actions of the browser and of programs, as text, filtered by an address."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from jobs.db.queries import audit_log, tokens

NAME = "<img src=x onerror=alert(1)>"


def test_the_page_shows_actions_as_text_and_filters_them(
    visit: Callable[..., Any], queue: Any, no_overflow: Callable[[Any], None]
) -> None:
    tokens.create(queue.db, ["read"], NAME)
    audit_log.add(queue.db, audit_log.entry(f"token {NAME}", "launch_run", "preset=quickstart", detail="run 7"))
    page = visit("/audit")
    table = page.locator("#audit-log")
    cell = lambda text: table.get_by_role("cell", name=text, exact=True)  # noqa: E731
    expect(cell(f"token {NAME}")).to_be_visible()
    expect(cell("create_token").first).to_be_visible()
    assert table.locator("img").count() == 0
    if path := os.environ.get("RL2F_SCREENSHOTS"):
        page.screenshot(path=f"{path}/audit.png")
    expect(table.get_by_role("link", name="launch_run")).to_have_attribute("href", "/run?run=7")
    page.get_by_label("Filter").fill("quickstart")
    expect(cell("create_token")).to_have_count(0)
    expect(cell("run 7")).to_be_visible()
    expect(page).to_have_url(re.compile(r"/audit\?search=quickstart$"))
    visit("/audit?search=create_token")
    expect(cell("create_token").first).to_be_visible()
    expect(cell("run 7")).to_have_count(0)
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        no_overflow(page)
