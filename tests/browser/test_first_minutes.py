"""The README's section *The first ten minutes* as a script: what it names is on the pages, and its keys work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

README = Path(__file__).resolve().parents[2] / "README.md"


def section() -> str:
    """The text of the section."""
    found = re.search(r"## The first ten minutes\n(.*?)\nThe same from a shell", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def wait_for(page: Any, **wanted: str) -> None:
    """Wait until the address has these values and a dialogue."""
    page.wait_for_function(
        "wanted => { const query = new URLSearchParams(location.search);"
        " return query.has('dialogue') && Object.entries(wanted).every(([key, value]) => query.get(key) === value); }",
        arg=wanted,
    )


@pytest.mark.slow
def test_the_steps_of_the_readme_can_be_done_as_they_are_written(replay: Any, page: Any) -> None:
    steps = [" ".join(step.split()) for step in re.split(r"^\d\. ", section(), flags=re.MULTILINE)[1:]]
    assert len(steps) == 5
    seen = ""

    page.goto(replay.url)
    page.locator("[data-part=list] a.runs-name", has_text="small").click()
    page.wait_for_url(re.compile(r"/run\?run=1"))
    expect(page.locator("body")).to_contain_text("Did the hints help?")
    seen += page.inner_text("body")
    assert "*Did the hints help?*" in steps[0]

    page.locator("nav.rl-tabs").get_by_role("link", name="Dialogues").click()
    page.wait_for_selector(".dv-turn")
    wait_for(page, turn="0")
    for dialogue in "123":
        page.keyboard.press("n")
        wait_for(page, dialogue=f"dialogue:train:rl2f/1/0/{dialogue}", turn="0")
    page.wait_for_selector(".dv-turn[data-turn='1']")
    for key, turn in (("j", "1"), ("k", "0")):
        page.keyboard.press(key)
        wait_for(page, turn=turn)
    page.keyboard.press("p")
    wait_for(page, dialogue="dialogue:train:rl2f/1/0/2", turn="0")
    assert all(f"`{key}`" in steps[1] for key in "npjk?")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next dialogue")
    page.keyboard.press("Escape")

    page.locator("[data-change=annotator]").first.fill("Ada")
    page.keyboard.press("Tab")
    page.locator(".dv-turn[data-current]").first.focus()
    page.keyboard.press("2")
    expect(page.locator(".dv-turn[data-current] [data-label][aria-pressed=true]")).to_have_count(1)
    assert all(f"`{key}`" in steps[2] for key in "123")

    page.keyboard.press("f")
    page.wait_for_url(re.compile(r"/fork\?"))
    expect(page.locator("body")).to_contain_text("contentless")
    expect(page.locator("body")).to_contain_text("misleading")
    seen += page.title() + page.inner_text("body")
    assert steps[4].startswith("Press `f`")

    page.goto(f"{replay.url}/new")
    page.wait_for_selector(".nr-columns:not([inert]) .rf-row")
    page.locator("#nr-preset input").click()
    (preset,) = re.findall(r"preset `([^`]+)`", steps[3])
    page.get_by_role("option", name=re.compile(rf"^{re.escape(preset)} ·")).click()
    expect(page.locator("#nr-summary")).to_contain_text("ready")
    page.wait_for_function("document.querySelector('#nr-yaml textarea').value.includes('name: first_look')")
    seen += page.inner_text("body")
    for name in re.findall(r"\*([^*]+)\*", " ".join(section().split())):
        assert name in seen, f"The README names {name}, which no page shows."
