"""SmolLM2-135M from the browser: the whole way of a user (launch, watch, replay, label, export, load the export, chat),
and every method from its preset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import expect

WAIT = 600_000
"""Milliseconds: the model is loaded three times, by the run and for the chat."""
CONFIG: dict[str, Any] = {
    "name": "the whole way",
    "model": {"name": "smollm2-135m", "device": "cpu"},
    "environment": {"type": "secret_code", "length": 4, "letters": 2},
    "rollout": {"max_turns": 3, "max_new_tokens": 14},
    "evaluation": {"num_tasks": 2, "conditions": ["hints", "contentless"]},
    "stages": [
        {"name": "warmup", "method": "sft", "steps": 1, "tasks_per_step": 2, "group_size": 2},
        {"name": "rl2f", "method": "rl2f", "steps": 1, "tasks_per_step": 2, "group_size": 4},
    ],
    "preflight": {"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True},
}


@pytest.mark.slow
def test_a_real_model_is_trained_replayed_labelled_exported_and_asked(real: Any, page: Any, tmp_path: Path) -> None:
    from datasets import load_dataset

    server = real
    page.set_default_timeout(WAIT)
    page.goto(f"{server.url}/new")
    page.wait_for_selector(".nr-columns:not([inert]) .rf-row")
    page.locator("#nr-yaml textarea").fill(yaml.safe_dump(CONFIG, sort_keys=False))
    expect(page.locator('[data-field="name"]')).to_have_value("the whole way")
    page.wait_for_function("document.querySelector('#nr-summary').innerText.includes('ready')")
    page.locator("#nr-start").click()
    page.wait_for_url(re.compile(r"/run\?run=\d+"))
    run = re.search(r"run=(\d+)", page.url)[1]  # type: ignore[index]
    page.wait_for_selector(".rl-badge[data-status=succeeded]")
    page.get_by_role("link", name="Evaluation").click()
    page.wait_for_selector(".rl-eval")

    page.goto(f"{server.url}/dialogues?run={run}&stage=warmup&phase=train")
    page.wait_for_selector("text=Find the code")
    first = page.url
    page.keyboard.press("n")
    page.wait_for_function("first => location.href !== first && location.search.includes('dialogue=')", arg=first)

    page.goto(f"{server.url}/labels?run={run}&annotator=ann")
    page.wait_for_selector("#label-stage .lb-card")
    page.keyboard.press("2")
    page.wait_for_selector(".lb-found")

    page.goto(f"{server.url}/exports?runs={run}&include_test=1&include_demonstrations=1")
    page.get_by_text("1 of them with human labels").wait_for()
    page.get_by_role("button", name="Export", exact=True).click()
    done = page.locator(".export-done").first
    done.wait_for()
    folder = server.workspace / "exports" / done.get_attribute("data-folder")
    rows = load_dataset(str(folder), "unpaired_preference", split="train", cache_dir=str(tmp_path / "cache"))
    assert len(rows) > 0 and set(rows["label"]) <= {True, False}

    page.goto(f"{server.url}/chat?checkpoints=base,{run}:rl2f@1")
    page.get_by_label("Tokens", exact=True).fill("12")
    page.fill("#chat-field textarea", "What is the capital of France?")
    page.press("#chat-field textarea", "Enter")
    page.wait_for_selector(".ch-message[data-role=assistant]")
    page.wait_for_selector("#chat-stop", state="detached")
    page.wait_for_selector(".ch-streaming", state="detached")
    answers = page.locator(".ch-message[data-role=assistant] .tx-block").all_inner_texts()
    assert len(answers) == 2 and "Paris" in answers[0]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["methods:dialogue-secret_code", "methods:fresh-secret_code", "cold_start"])
def test_every_method_trains_the_real_model_from_its_preset(real: Any, page: Any, preset: str) -> None:
    """The presets that hold all methods, at one step each."""
    page.set_default_timeout(WAIT)
    page.goto(f"{real.url}/new?preset={preset}")
    page.wait_for_selector(".nr-columns:not([inert]) .rf-row")
    config = yaml.safe_load(page.locator("#nr-yaml textarea").input_value())
    for stage in config["stages"]:
        stage |= {"steps": 1, "tasks_per_step": 1, "group_size": min(2, stage["group_size"])}
    config |= {
        "name": f"small {preset.replace(':', ' ')}",
        "preflight": {"num_tasks": 1, "samples_per_task": 2, "ignore_failure": True},
    }
    config["evaluation"] |= {
        "num_tasks": 1,
        "conditions": config["evaluation"]["conditions"][:2],
    }
    page.locator("#nr-yaml textarea").fill(yaml.safe_dump(config, sort_keys=False))
    expect(page.locator('[data-field="name"]')).to_have_value(config["name"])
    page.wait_for_function("document.querySelector('#nr-summary').innerText.includes('ready')")
    page.locator("#nr-start").click()
    page.wait_for_url(re.compile(r"/run\?run=\d+"))
    page.wait_for_selector(".rl-badge[data-status=succeeded]")
    page.get_by_role("link", name="Evaluation").click()
    table = page.locator(".rl-eval").first
    table.wait_for()
    for stage in config["stages"]:
        assert stage["name"] == "distill" or f"{stage['name']}@1" in table.inner_text()
