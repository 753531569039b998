"""The frame of the pages: changing the page in one document, the header, menus, and fields to choose from."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

LOOK = """(node) => {
  const { height } = node.getBoundingClientRect();
  const { borderTopColor, borderTopWidth, borderRadius, backgroundColor, fontSize } = getComputedStyle(node);
  return [Math.round(height), borderTopColor, borderTopWidth, borderRadius, backgroundColor, fontSize].join(" ");
}"""


def _go(page: Any, name: str) -> None:
    page.locator(".nav-holder").get_by_role("link", name=name, exact=True).click()


def test_pages_change_in_one_document_and_history_deep_links_and_reload_work(server: Any, visit: Any) -> None:
    page = visit("/")
    page.evaluate("window.document_of_the_test = 1")
    page.locator(f".runs-table a[href^='/run?run={server.run}']").first.click()
    page.locator(".rl-run-head").wait_for()
    run = page.url
    _go(page, "Compare")
    page.locator("#compare-runs").wait_for()
    assert page.title() == "Compare · RL2F Studio"
    expect(page.locator(".nav-holder a.active")).to_have_text("Compare")
    page.go_back()
    page.locator(".rl-run-head").wait_for()
    assert page.url == run
    page.go_back()
    page.locator(".runs-table").first.wait_for()
    page.go_forward()
    page.locator(".rl-run-head").wait_for()
    assert page.url == run
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_have_count(1)  # no page that was left answers
    page.keyboard.press("Escape")
    assert page.evaluate("window.document_of_the_test") == 1
    page.reload()
    page.locator(".rl-run-head").wait_for()
    assert page.url == run
    with page.context.expect_page() as other:
        page.locator(".nav-holder a", has_text="Chat").click(modifiers=["Control"])
    other.value.close()
    assert page.url == run


def _wait_for(page: Any, name: str) -> None:
    page.wait_for_function("name => document.title.startsWith(name) && document.querySelector('.rl-skip')", arg=name)


@pytest.mark.slow
def test_a_page_change_while_the_next_page_mounts_ends_on_the_last_page(visit: Any) -> None:
    page = visit("/compare")
    for name in ("Exports", "Chat"):
        _go(page, name)
        _wait_for(page, name)
    slow = """() => { const real = fetch; window.fetch = async (...args) => {
      const answer = await real(...args);
      if (String(args[0]?.url ?? args[0]).includes('/info')) await new Promise((done) => setTimeout(done, 500));
      return answer;
    }; }"""
    twice = """(move) => { history[move](); const id = setInterval(() => {
      if (gradio_config.current_page !== 'exports') return;
      clearInterval(id);
      history[move]();
    }); }"""
    page.route(
        lambda url: url.endswith(("/compare", "/chat")),
        lambda route: (time.sleep(1), route.continue_()),  # the page that mounts goes on until then
    )
    for move, name in (("back", "Compare"), ("forward", "Chat")):
        page.evaluate(slow)
        page.evaluate(twice, move)
        expect(page.locator(".nav-holder a.active")).to_have_text(name)
        page.locator(".rl-frame-tools").wait_for()
        assert page.title() == f"{name} · RL2F Studio"


@pytest.mark.slow
def test_a_page_change_during_an_event_shows_no_error(visit: Any) -> None:
    page = visit("/new")
    page.evaluate("""() => { window.errors = []; (function look() {
      const shown = document.querySelector(".toast-body")?.innerText;
      if (shown) window.errors.push(shown);
      requestAnimationFrame(look);
    })(); }""")
    page.get_by_label("Preset").first.click()
    page.locator("[role=option]").nth(3).click()
    _go(page, "Compare")
    _wait_for(page, "Compare")
    page.wait_for_timeout(500)
    assert page.evaluate("window.errors") == []


@pytest.mark.slow
def test_a_restarted_server_sends_the_whole_page(visit: Any) -> None:
    page = visit("/compare")
    page.evaluate("window.document_of_the_test = 1; window.gradio_config.app_id = 1")
    _go(page, "Exports")
    page.wait_for_function("location.pathname === '/exports' && !window.document_of_the_test")


@pytest.mark.slow
def test_the_header_stays_in_view_and_a_narrow_one_shows_that_it_scrolls(
    visit: Any, new_page: Callable[..., Any]
) -> None:
    page = visit("/new", new_page(width=390, height=700))
    page.locator("#nr-form .rf-row input").first.wait_for()
    page.evaluate("scrollTo(0, 600)")
    page.wait_for_function("scrollY > 500")
    assert page.locator(".nav-holder").evaluate("(node) => node.getBoundingClientRect().top") == 0
    nav = page.locator(".nav-holder nav")
    assert nav.evaluate("(node) => node.scrollWidth > node.clientWidth")
    assert "local" in nav.evaluate("(node) => getComputedStyle(node).backgroundAttachment")
    expect(page.locator(".nav-holder a.active")).to_be_in_viewport(ratio=1)


@pytest.mark.slow
def test_escape_closes_a_menu_and_returns_the_focus(visit: Any) -> None:
    page = visit("/")
    menu = page.locator(".runs-table details.rl-menu").first
    menu.locator("summary").click()
    expect(menu).to_have_attribute("open", "")
    menu.locator(".rl-menu-items > *").first.focus()
    page.keyboard.press("Escape")
    expect(menu).not_to_have_attribute("open", re.compile(""))
    expect(menu.locator("summary")).to_be_focused()


@pytest.mark.slow
def test_the_panel_of_filters_closes_on_escape_and_on_a_click_elsewhere(visit: Any) -> None:
    page = visit("/dialogues?all=1")
    panel = page.locator("#dl-more")
    field = panel.get_by_label("task", exact=True)
    for leave in (lambda: page.keyboard.press("Escape"), lambda: page.locator("#dl-header h1").click()):
        panel.get_by_role("button", name="More filters").click()
        field.click()
        expect(field).to_be_visible()
        leave()
        expect(field).not_to_be_visible()


@pytest.mark.slow
def test_selects_and_comboboxes_look_alike(visit: Any) -> None:
    page = visit("/new?preset=quickstart")
    page.locator("#nr-form select.rl-field").first.wait_for()
    select = page.locator("#nr-form select.rl-field").first.evaluate(LOOK)
    assert page.locator("#nr-preset .wrap:has(> .wrap-inner)").evaluate(LOOK) == select
