"""Page Compare in a real browser: pick runs, overlay metrics, evaluations side by side, what differs."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"> <script>document.title='owned'</script>"
    " ${document.title='owned'} {{document.title='owned'}}"
)


@pytest.fixture(scope="module")
def pair(replay: Any, add_copy: Callable[..., int]) -> Any:
    """A server with the recorded run and a copy of it under another seed; `second` is the copy's number."""
    replay.second = add_copy(replay, "recorded-seed-1", seed=1)
    return replay


@pytest.fixture
def compare(pair: Any, new_page: Callable[..., Any]) -> Callable[..., Any]:
    """`compare(query, width, theme)`: the page, when it stands."""

    def go(query: str = "", width: int = 1440, theme: str = "light") -> Any:
        page = new_page(width, 900, theme)
        page.set_default_timeout(60_000)  # the machine may be busy with runs
        page.goto(f"{pair.url}/compare{query}")
        page.wait_for_selector("#compare-chips .rl-stack")
        return page

    return go


def lines(page: Any, key: str, count: int) -> list[str]:
    """The names of a plot's lines, once it has so many."""
    drawn = "document.querySelector(`[data-key='${key}'] .rl-plot[data-drawn]`)?.data"
    names = f"({drawn} ?? []).filter(t => t.meta === 'line').map(t => t.name)"
    page.wait_for_function(f"([key, count]) => {names}.length === count", arg=[key, count])
    return page.evaluate(f"key => {names}", key)


def query(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def test_runs_are_picked_and_overlaid_and_the_address_brings_them_back(pair: Any, compare: Callable[..., Any]) -> None:
    page = compare()
    page.wait_for_selector(".rl-empty >> text=Select runs to compare.")
    for number in (pair.run, pair.second):
        page.get_by_label("Runs").click()
        page.get_by_role("option", name=re.compile(rf"^{number} ")).click()
        page.wait_for_selector(f".rl-picked [data-run='{number}']")
    page.wait_for_function("document.querySelectorAll('.rl-picked [data-run]').length === 2")
    lines(page, "reward", 2)
    assert set(query(page)["runs"].split(",")) == {str(pair.run), str(pair.second)}
    page.get_by_label("Metrics").fill("cum_acc/3")
    page.get_by_role("option", name=re.compile("^cum_acc.3 ")).first.click()
    lines(page, "cum_acc/3", 2)
    page.reload()
    lines(page, "cum_acc/3", 2)
    assert query(page)["metric"] == "reward,cum_acc/3"


@pytest.mark.slow
def test_evaluations_stand_side_by_side_and_checkpoints_are_paired(pair: Any, compare: Callable[..., Any]) -> None:
    page = compare(f"?runs={pair.run},{pair.second}")
    page.get_by_role("heading", name="Paired differences").wait_for()
    head = page.locator(".rl-eval").first.locator("th").all_inner_texts()
    assert len(head) == 4 and head[:2] == ["checkpoint", "condition"]
    assert {"hints", "contentless"} <= set(page.locator(".rl-eval").first.locator("td:nth-child(2)").all_inner_texts())
    page.get_by_label("Against").click()
    option = page.get_by_role("option").last
    last = option.get_attribute("aria-label")
    option.click()
    page.wait_for_function("last => new URLSearchParams(location.search).get('base') === last", arg=last)
    page.wait_for_function("last => document.querySelector('input[aria-label=Against]').value === last", arg=last)
    page.locator(f"#compare-differences [data-base='{last}']").wait_for()
    twin = (
        last.replace(f"{pair.second}:", f"{pair.run}:")
        if last.startswith(f"{pair.second}:")
        else last.replace(f"{pair.run}:", f"{pair.second}:")
    )
    row = page.locator("#compare-differences tr", has_text=twin).first
    assert ".00 [−" in row.inner_text() and "too few to tell" in row.inner_text()


@pytest.mark.slow
def test_markup_in_the_name_of_a_run_is_text(pair: Any, compare: Callable[..., Any]) -> None:
    def rename(name: str) -> None:
        with closing(sqlite3.connect(pair.workspace / "rl2f.sqlite")) as db, db:
            db.execute("UPDATE run SET name = ? WHERE id = ?", (name, pair.second))

    rename(HOSTILE)
    page = compare(f"?runs={pair.run},{pair.second}")
    name = f"{pair.second} {HOSTILE}"
    page.get_by_role("heading", name="Paired differences").wait_for()
    lines(page, "reward", 2)
    expect(page.locator("[data-key=reward] svg text", has_text=name[:10]).first).to_be_visible()
    for part in ("#compare-chips", "#compare-evaluations", "#compare-config"):
        expect(page.locator(part).get_by_text(name, exact=True).first).to_have_text(
            re.compile(f"^\\s*{re.escape(name)}$")
        )
    expect(page.locator("main :is(img[src=x], script)")).to_have_count(0)
    assert page.title() == "Compare · RL2F Studio"
    rename("recorded")


@pytest.mark.slow
def test_only_what_differs_in_the_configurations_is_shown(pair: Any, compare: Callable[..., Any]) -> None:
    page = compare(f"?runs={pair.run},{pair.second}")
    page.wait_for_selector(".rl-diff tbody tr")
    rows = page.locator(".rl-diff tbody tr:has(td)").all_inner_texts()
    assert [text.split() for text in rows] == [["seed", "0", "1"]]


@pytest.mark.slow
def test_seeds_become_one_line_when_ticked(pair: Any, compare: Callable[..., Any]) -> None:
    page = compare(f"?runs={pair.run},{pair.second}")
    lines(page, "reward", 2)
    page.get_by_label("Merge seeds").check()
    page.wait_for_function(
        "document.querySelector('[data-key=reward] .rl-plot').data.filter(t => t.meta === 'line').length === 1"
    )
    assert lines(page, "reward", 1) == ["recorded ×2"] and query(page)["seeds"] == "1"


@pytest.mark.slow
def test_a_run_that_is_gone_is_named_and_can_be_taken_away(pair: Any, compare: Callable[..., Any]) -> None:
    page = compare(f"?runs={pair.run},998")
    page.wait_for_selector(".rl-alert >> text=There is no run 998")
    page.get_by_role("button", name="Remove", exact=True).click()
    page.wait_for_selector(".rl-alert", state="detached")
    assert query(page)["runs"] == str(pair.run)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_page_fits(
    pair: Any, compare: Callable[..., Any], no_overflow: Callable[[Any], None], width: int, theme: str
) -> None:
    page = compare(f"?runs={pair.run},{pair.second}&metric=reward,plasticity", width, theme)
    lines(page, "reward", 2)
    page.get_by_role("heading", name="Paired differences").wait_for()
    no_overflow(page)
