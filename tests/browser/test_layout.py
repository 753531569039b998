"""Every page at both widths and in both themes: nothing wider than the window, nothing in the console."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from app.web.page_registry import pages

PAGES = [page.path for page in pages()]
LISTED = [page.path for page in pages() if page.in_navigation]
DARK = "document.body.classList.contains('dark')"


@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", [pytest.param(path, marks=[pytest.mark.slow] * (path != "")) for path in PAGES])
def test_a_page_fits_in_both_themes_and_does_not_complain(
    server: Any,
    visit: Callable[..., Any],
    new_page: Callable[..., Any],
    no_overflow: Callable[[Any], None],
    path: str,
    width: int,
) -> None:
    page = new_page(width=width)
    visit(f"/{path}?run={server.run}" if path else "/", page)
    assert page.title().endswith("RL2F Studio")
    assert page.locator(".nav-holder a").count() == len(LISTED)
    assert page.locator(".nav-holder a.active").count() == (path in LISTED)
    for theme in ("light", "dark"):
        assert page.evaluate("document.body.classList.contains('dark')") is (theme == "dark")
        no_overflow(page)
        if folder := os.environ.get("RL2F_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.wait_for_timeout(1500)
            page.screenshot(path=f"{folder}/{path or 'runs'}-{width}-{theme}.png", full_page=True)
        page.get_by_role("button", name="Light or dark").click()


@pytest.mark.slow
def test_a_page_starts_in_the_theme_of_the_system(visit: Callable[..., Any], new_page: Callable[..., Any]) -> None:
    page = visit("/", new_page(theme="dark"))
    assert page.evaluate("document.body.classList.contains('dark')")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["run", "dialogues", "new", "compare", "chat"])
def test_an_address_that_names_nothing_says_so_and_links_back(
    visit: Callable[..., Any], console: Any, path: str
) -> None:
    console.allow(r"status of 404")
    query = {"new": "clone", "compare": "runs", "chat": "chat"}.get(path, "run")
    page = visit(f"/{path}?{query}=99999")
    told = page.get_by_text("There is no", exact=False).first
    told.wait_for()
    assert page.locator("gradio-app a[href^='/']").count() >= 1


@pytest.mark.slow
def test_the_theme_is_kept_from_page_to_page(visit: Callable[..., Any]) -> None:
    page = visit("/")
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate(DARK)
    visit("/compare")
    assert page.evaluate(DARK)
    page.keyboard.press("T")
    assert not page.evaluate(DARK)


@pytest.mark.slow
def test_the_key_list_opens_and_stays_away_while_typing(visit: Callable[..., Any]) -> None:
    page = visit("/")
    page.keyboard.press("?")
    page.get_by_role("heading", name="Keys").wait_for()
    assert page.locator("dialog kbd").count() > 5
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    page.keyboard.press("/")
    page.keyboard.type("?jn")
    expect(page.locator("dialog")).to_have_count(0)
    assert page.locator(".search :is(input, textarea)").first.input_value() == "?jn"


@pytest.mark.slow
def test_the_first_tab_stop_skips_the_navigation(visit: Callable[..., Any]) -> None:
    page = visit("/?sort=name")
    page.keyboard.press("Tab")
    link = page.get_by_role("link", name="Skip to the page")
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport(ratio=1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    assert page.url.endswith("/?sort=name")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


def test_a_wrong_address_is_a_page_with_the_way_back(server: Any, page: Any, console: Any) -> None:
    console.allow(r"status of 404")
    page.goto(f"{server.url}/nowhere")
    page.get_by_text("There is no page /nowhere.").wait_for()
    page.get_by_role("link", name="Runs").click()
    page.wait_for_url(f"{server.url}/")
