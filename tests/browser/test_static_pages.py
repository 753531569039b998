"""Shared pages, opened from disk in light and dark colors, on a wide and a narrow screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from app.static_pages.folder import write_pages

EXAMPLE = Path(__file__).resolve().parents[2] / "data" / "example_runs" / "quickstart"
pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_shared_run_opens_from_disk_without_requests_or_errors(browser: Any, tmp_path: Path, theme: str) -> None:
    folder = tmp_path / "out"
    write_pages(EXAMPLE, folder, limit=12)
    context = browser.new_context(color_scheme=theme, offline=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file://") else problems.append(request.url))
    try:
        page.goto((folder / "index.html").as_uri())
        page.wait_for_function("document.querySelectorAll('.plot .main-svg').length > 10")
        assert page.locator(".plot:not(:has(.main-svg))").count() == 0
        assert page.get_by_role("columnheader", name="cum_acc/3").count() > 0
        assert page.locator("body").evaluate("node => getComputedStyle(node).backgroundColor") == (
            "rgb(255, 255, 255)" if theme == "light" else "rgb(14, 16, 20)"
        )
        page.get_by_role("link", name="Dialogues").click()
        _replay(page)
        for name in ("index.html", "dialogues.html"):
            page.goto((folder / name).as_uri())
            violations = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]}).response["violations"]
            assert [v["id"] for v in violations] == []
            page.set_viewport_size({"width": 390, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            page.set_viewport_size({"width": 1280, "height": 800})
    finally:
        context.close()
    assert problems == []


def _replay(page: Any) -> None:
    """Select dialogues and turns with the keyboard and the list."""
    shown = page.locator("article:visible")
    assert shown.count() == 1
    first = shown.get_attribute("id")
    page.keyboard.press("n")
    assert shown.get_attribute("id") == "d2" != first
    assert page.locator("#list a[aria-current]").get_attribute("href") == "#d2"
    page.keyboard.press("j")
    assert shown.locator(".turn").nth(1).get_attribute("class") == "turn current"
    page.keyboard.press("p")
    assert shown.get_attribute("id") == first
    page.locator("#list a").nth(4).click()
    page.wait_for_selector("#d5.current")
    page.reload()
    assert shown.get_attribute("id") == "d5"
