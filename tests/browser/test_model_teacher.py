"""A run with a model teacher from the form to the replay: its endpoint, its prompt, what it cost and what failed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from openai_server import Say, serving
from playwright.sync_api import expect

from rl2f_core.common import prompt_templates

WAIT = 60_000
"""Milliseconds; the machine may be busy with the run itself."""


@pytest.mark.slow
def test_a_run_with_an_endpoint_as_teacher_is_chosen_started_and_read(
    visit: Callable[..., Any], page: Any, tiny_config: dict[str, Any]
) -> None:
    page.set_default_timeout(WAIT)
    stage = {"name": "rl", "method": "rl2f", "steps": 1, "tasks_per_step": 1, "group_size": 2}
    config = {
        **tiny_config,
        "name": "taught",
        "stages": [stage],
        "rollout": {**tiny_config["rollout"], "max_seq_len": 1024},
    }
    config["evaluation"]["checkpoints"] = []

    def field(path: str) -> Any:
        return page.locator(f'#nr-form [data-field="{path}"]')

    def choose(path: str, option: str) -> None:
        field(path).select_option(label=option)

    with serving(lambda n, body: Say("Think <b>again</b>.") if n % 2 else Say(status=404)) as endpoint:
        visit("/new", page)
        page.wait_for_selector("#nr-form .rf-row")
        page.locator("#nr-yaml textarea").fill(yaml.safe_dump(config))
        expect(field("name")).to_have_value("taught", timeout=WAIT)
        types = field("teacher.type").locator("option").all_inner_texts()
        assert "llm" in types and "human" not in types
        choose("teacher.type", "llm")
        choose("teacher.llm.type", "openai_api")
        choose("teacher.style", "next_step")
        field("teacher.llm.base_url@").fill("http://169.254.169.254/v1")
        page.wait_for_function("document.querySelector('#nr-form').innerText.includes('RL2F_ENDPOINTS')")
        field("teacher.llm.base_url@").fill(endpoint.url)
        page.wait_for_function("document.querySelector('#nr-summary').innerText.includes('ready')")
        page.locator("#nr-start").click()
        page.wait_for_url(re.compile(r"/run\?run=\d+"))
        run = re.search(r"run=(\d+)", page.url)[1]  # type: ignore[index]
        page.wait_for_selector(".rl-badge[data-status=succeeded]")
    facts = page.locator(".rl-run-facts").inner_text()
    assert re.search(r"teacher: \d+ hints, [1-9]\d* failed \(\d", facts)
    visit(f"/dialogues?run={run}&phase=train", page)
    page.wait_for_selector(".dv-hint")
    shown = page.locator(".dv-hint").all_inner_texts()
    page.keyboard.press("n")
    page.locator(".dl-list > :nth-child(2) .dl-row[aria-current]").wait_for()
    expect(page.locator(".dv-head h2")).to_have_text("rl/1/0/1", timeout=WAIT)
    text = "\n".join([*shown, *page.locator(".dv-hint").all_inner_texts()])
    assert prompt_templates.load("next_step").version in text and "11 + 7 tokens" in text
    assert "Teacher error: HTTP 404" in text and "Think <b>again</b>." in text
