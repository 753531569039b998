"""Page New run in a real browser: presets, form and YAML, errors, stages, preflight, schedule, launch."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import expect

from jobs.db.engine import Database
from jobs.db.models import ENDED
from jobs.db.queries import runs
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config

README = Path(__file__).resolve().parents[2] / "README.md"
Visit = Callable[..., Any]
WAIT = 60_000
"""Milliseconds; the machine may be busy with the runs themselves."""


@pytest.fixture
def open_form(visit: Visit, page: Any) -> Visit:
    """`open_form("?preset=quickstart")`: the page with its form drawn."""

    def go(query: str = "?preset=quickstart", tab: Any = None) -> Any:
        tab = tab or page
        tab.set_default_timeout(WAIT)
        visit(f"/new{query}", tab)
        wait_until_open(tab)
        return tab

    return go


def wait_until_open(page: Any) -> None:
    """Wait until the form can be edited."""
    page.wait_for_selector(".nr-columns:not([inert]) .rf-row")


def field(page: Any, path: str) -> Any:
    """The control of a field by its path, e.g. `stages.1.steps`."""
    return page.locator(f'#nr-form [data-field="{path}"]')


def choose(page: Any, path: str, option: str) -> None:
    """Choose an option of a field by its label."""
    field(page, path).select_option(label=option)


def errors_at(page: Any, path: str) -> str:
    """What stands under a field."""
    error = page.locator(f'#nr-form [id="field-{path}"] > .rf-error')
    return error.inner_text() if error.count() else ""


def has_focus(path: str) -> str:
    """JavaScript that tests whether a field has the focus."""
    return f"document.activeElement.closest('[id=\"field-{path}\"]') !== null"


def summary(page: Any, text: str) -> None:
    """Wait until the summary says so."""
    page.wait_for_function("text => document.querySelector('#nr-summary').innerText.includes(text)", arg=text)


def text_of(page: Any) -> str:
    """The YAML beside the form."""
    return page.locator("#nr-yaml textarea").input_value()


def wait_for_yaml(page: Any, text: str) -> None:
    """Wait until the YAML contains a text."""
    page.wait_for_function("text => document.querySelector('#nr-yaml textarea').value.includes(text)", arg=text)


def write(page: Any, text: str) -> None:
    """Type over the YAML and leave it."""
    page.locator("#nr-yaml textarea").fill(text)


def leave(page: Any) -> None:
    """Move the focus out of the YAML."""
    page.locator("#nr-yaml textarea").blur()


def load(page: Any, file: Path) -> None:
    """Choose a file with the button."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Load YAML").click()
    chooser.value.set_files(file)


def tiny_yaml(config: dict[str, Any], **changes: Any) -> str:
    """The YAML of the recorded run, changed."""
    return yaml.safe_dump({**config, **changes}, sort_keys=False)


@pytest.fixture
def paused(queue: Any) -> Iterator[None]:
    """Runs of the server stay queued; they leave the queue afterwards."""
    queue.pause()
    yield
    for run in runs.page(queue.db, limit=100).rows:
        if run.status == "queued":
            queue.stop(run.id)
    queue.resume_dispatch()


def test_a_run_is_launched_from_the_form_and_is_what_the_command_line_takes(
    open_form: Visit, tiny_config: dict[str, Any], tmp_path: Path, paused: None
) -> None:
    page = open_form()
    write(page, tiny_yaml(tiny_config, name="from-the-form"))
    page.wait_for_function("document.querySelector('.nr-command').textContent === 'rl2f train from-the-form.yaml'")
    expect(field(page, "model.name")).to_have_value("tiny-random")
    field(page, "stages.0.steps").fill("1")
    wait_for_yaml(page, "\n  steps: 1\n")
    shown = text_of(page)
    assert yaml.safe_load(shown) == parse_config(yaml.safe_load(shown)).model_dump(mode="json")
    save = page.get_by_role("button", name="Save YAML")
    expect(save).to_have_attribute("data-text", shown)
    with page.expect_download() as saved:
        save.click()
    assert saved.value.suggested_filename == "from-the-form.yaml"
    saved.value.save_as(tmp_path / "run.yaml")
    assert (tmp_path / "run.yaml").read_text() == shown
    page.locator("#nr-start").click()
    page.wait_for_url(re.compile(r"/run\?run=\d+"))
    run = int(re.search(r"run=(\d+)", page.url)[1])  # type: ignore[index]
    open_form(f"?clone={run}")
    assert yaml.safe_load(text_of(page)) == yaml.safe_load(shown)


@pytest.mark.slow
def test_an_error_stands_at_its_field_and_keeps_the_run_from_starting(open_form: Visit) -> None:
    page = open_form()
    field(page, "stages.1.steps").fill("0")
    summary(page, "1 error")
    assert errors_at(page, "stages.1.steps") == "must be at least 1, not 0"
    assert field(page, "stages.1.steps").get_attribute("aria-invalid") == "true"
    assert "steps: 0" in text_of(page) and page.locator(".nr-lines b").count() == 1
    page.locator("#nr-start").click()
    page.wait_for_function(has_focus("stages.1.steps"))
    assert "/new" in page.url
    field(page, "stages.1.steps").fill("many")
    summary(page, "whole number")
    field(page, "stages.1.steps").fill("5")
    summary(page, "ready")
    assert errors_at(page, "stages.1.steps") == ""


@pytest.mark.slow
def test_an_error_in_a_folded_part_opens_it_and_the_summary_leads_there(open_form: Visit) -> None:
    page = open_form()
    assert not field(page, "lora.rank").is_visible()
    write(page, text_of(page).replace("rank: 16", "rank: -4"))
    summary(page, "lora.rank")
    field(page, "lora.rank").wait_for()
    page.get_by_text("must be at least 1, not -4").last.wait_for()
    assert "at least 1" in errors_at(page, "lora.rank")
    page.locator(".nr-errors button").click()
    page.wait_for_function(has_focus("lora.rank"))


@pytest.mark.slow
def test_form_and_yaml_follow_each_other(open_form: Visit) -> None:
    page = open_form()
    write(page, text_of(page).replace("length: 4", "length: 5").replace("type: scripted", "type: contentless"))
    expect(field(page, "environment.length")).to_have_value("5")
    expect(field(page, "teacher.type")).to_have_value("contentless")
    field(page, "teacher.text").wait_for()
    leave(page)
    wait_for_yaml(page, "text: ")  # defaults are written out
    choose(page, "environment.type", "guess_number")
    wait_for_yaml(page, "type: guess_number")
    assert "letters:" not in text_of(page)
    expect(field(page, "environment.size")).to_have_value("16")
    choose(page, "environment.type", "secret_code")
    expect(field(page, "environment.length")).to_have_value("5")  # what was chosen before is not forgotten
    summary(page, "ready")


@pytest.mark.slow
def test_an_older_answer_that_arrives_late_does_not_replace_a_newer_one(open_form: Visit) -> None:
    page = open_form()
    held: list[tuple[Any, Any]] = []

    def hold_the_first(route: Any) -> None:
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    page.route("**/queue/join*", hold_the_first)
    field(page, "stages.1.steps").fill("7")
    page.wait_for_timeout(300)  # the edits are two events
    field(page, "name").fill("newer")
    wait_for_yaml(page, "name: newer")
    command = page.locator(".nr-command")
    expect(command).to_have_text("rl2f train newer.yaml")
    [(route, answer)] = held
    with page.expect_response("**/queue/join*"):
        route.fulfill(response=answer)
    page.wait_for_timeout(500)  # an answer in the wrong order would be drawn now
    expect(command).to_have_text("rl2f train newer.yaml")
    expect(page.get_by_role("button", name="Save YAML")).to_have_attribute("data-text", text_of(page))
    stored = page.evaluate("JSON.parse(localStorage.getItem('rl2f.drafts'))['preset:quickstart'].yaml")
    assert stored == text_of(page)


@pytest.mark.slow
def test_broken_yaml_says_the_line_and_keeps_the_text(open_form: Visit) -> None:
    page = open_form()
    good = text_of(page)
    broken = good.replace("seed: 0", "seed: [0", 1)
    write(page, broken)
    summary(page, "cannot be read")
    assert re.match(r"Line \d+: The YAML is broken", page.locator(".nr-broken").inner_text())
    assert page.locator(".nr-stale").is_visible() and page.locator(".nr-lines b").count() == 1
    leave(page)
    page.locator(".nr-broken button").click()
    assert text_of(page) == broken
    page.reload()
    wait_until_open(page)
    summary(page, "cannot be read")
    assert text_of(page) == broken  # a reload keeps it too
    write(page, good)
    summary(page, "ready")
    assert not page.locator(".nr-stale").is_visible()


@pytest.mark.slow
def test_stages_are_added_duplicated_moved_and_removed(open_form: Visit) -> None:
    page = open_form()
    fields = '#nr-form [data-field^="stages."][data-field$=".name"]'
    names = f"[...document.querySelectorAll('{fields}')].map(n => n.value).join()"

    def become(wanted: str) -> None:
        page.wait_for_function(f"wanted => {names} === wanted", arg=wanted)

    become("warmup,rl2f")
    page.get_by_label("duplicate stage 2").click()
    become("warmup,rl2f,rl2f-2")
    page.get_by_label("move stage 3 up").click()
    become("warmup,rl2f-2,rl2f")
    page.get_by_label("remove stage 1").click()
    become("rl2f-2,rl2f")
    page.locator('#nr-form [data-key="stages+"]').click()
    become("rl2f-2,rl2f,rl2f-3")
    wait_for_yaml(page, "name: rl2f-3")
    summary(page, "ready")
    assert [stage["name"] for stage in yaml.safe_load(text_of(page))["stages"]] == ["rl2f-2", "rl2f", "rl2f-3"]


@pytest.mark.slow
def test_what_was_not_started_survives_a_reload_and_can_be_discarded(open_form: Visit) -> None:
    page = open_form("?preset=guess_number")
    field(page, "seed").fill("77")
    wait_for_yaml(page, "seed: 77")
    page.reload()
    page.wait_for_selector(".nr-notice")
    wait_for_yaml(page, "seed: 77")
    expect(field(page, "seed")).to_have_value("77")
    page.get_by_label("Preset", exact=True).click()
    page.get_by_role("listbox").get_by_role("option", name=re.compile("^arithmetic ·")).click()
    page.wait_for_url(re.compile("preset=arithmetic"))
    wait_for_yaml(page, "name: arithmetic")
    page.go_back()
    wait_for_yaml(page, "seed: 77")
    page.locator(".nr-notice button").click()
    expect(field(page, "seed")).to_have_value("0")
    page.reload()
    wait_until_open(page)
    expect(field(page, "seed")).to_have_value("0")
    assert page.locator(".nr-notice").count() == 0


@pytest.mark.slow
def test_a_past_run_is_cloned_and_a_missing_one_is_said(open_form: Visit, server: Any, console: Any) -> None:
    page = open_form(f"?clone={server.run}")
    expect(field(page, "name")).to_have_value("recorded")
    assert "A copy of run" in page.locator(".nr-about").inner_text()
    console.allow("404")
    page.goto(f"{server.url}/new?clone=99999")
    page.wait_for_selector("[role=alert] .rl-empty-title")
    assert "There is no run 99999" in page.locator(".rl-empty").inner_text()


@pytest.mark.slow
def test_script_in_a_configuration_is_shown_as_text(open_form: Visit, tiny_config: dict[str, Any]) -> None:
    script = "<img src=x onerror=document.title='owned'> ${document.title='owned'} {{1}}"
    page = open_form()
    stages = [{**tiny_config["stages"][1], "name": script}]
    write(page, tiny_yaml(tiny_config, name=script, teacher=script, stages=stages, **{script: script}))
    expect(field(page, "name")).to_have_value(script)
    summary(page, script)
    expect(page.locator(".rf-unknown code")).to_have_text(f'{script}: "{script}"')
    expect(page.locator(".rf-itemhead b")).to_have_text(f"1 · {script}")
    expect(field(page, "teacher.type").locator("option").first).to_have_text(f"{script} (unknown)")
    assert any("<img" in text for text in page.locator("#nr-form .rf-error").all_inner_texts())
    assert page.locator(".nr-columns :is(img, script)").count() == 0 and page.title() != "owned"


@pytest.mark.slow
def test_a_file_is_loaded_and_keeps_its_comments_when_the_form_is_edited(
    open_form: Visit, tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    page = open_form()
    file = tmp_path / "mine.yaml"
    file.write_text("# a comment\n" + tiny_yaml(tiny_config, name="from-a-file"))
    load(page, file)
    expect(field(page, "name")).to_have_value("from-a-file")
    wait_for_yaml(page, "reprompt_template: ")  # a default
    field(page, "seed").fill("77")
    wait_for_yaml(page, "seed: 77")
    assert text_of(page).startswith("# a comment\n")
    wanted = parse_config({**yaml.safe_load(file.read_text()), "seed": 77}).model_dump(mode="json")
    assert yaml.safe_load(text_of(page)) == wanted
    file.write_text("#" * 200_001)
    load(page, file)
    page.get_by_text("too large for a configuration").wait_for()
    assert yaml.safe_load(text_of(page)) == wanted


@pytest.mark.slow
def test_paths_are_refused_in_the_form_and_through_the_yaml(open_form: Visit) -> None:
    page = open_form()
    offered = field(page, "model.name").locator("option").all_inner_texts()
    assert {"smollm2-135m", "tiny-random"} <= set(offered)
    choose(page, "model.name", "another from the hub …")
    field(page, "model.name@").fill("../../etc")
    summary(page, "not a known model")
    field(page, "model.name@").fill("org/name")
    summary(page, "ready")
    write(page, text_of(page).replace("init_adapter: null", "init_adapter: /etc"))
    summary(page, "lora.init_adapter")
    page.locator('[id="field-lora.init_adapter"] > .rf-error').wait_for()
    assert "not a checkpoint of a known run" in errors_at(page, "lora.init_adapter")


@pytest.mark.slow
def test_a_preflight_shows_its_verdict_and_the_histogram(open_form: Visit, tiny_config: dict[str, Any]) -> None:
    page = open_form()
    write(page, tiny_yaml(tiny_config, name="looked-at"))
    summary(page, "ready")
    page.locator("#nr-preflight").click()
    page.wait_for_selector("#nr-result [data-status]")
    assert re.search(r"preflight=\d+", page.url)
    page.wait_for_selector("#nr-result .nr-verdict", timeout=3 * WAIT)
    page.wait_for_selector("#nr-result .bars path", timeout=WAIT)
    words = page.locator("#nr-result").inner_text()
    assert re.search("✓ Worth starting|✗ Not worth starting", words) and "mixed groups" in words
    assert not page.locator(".nr-outdated").is_visible()
    field(page, "seed").fill("5")
    page.wait_for_selector(".nr-outdated:visible")
    page.reload()
    page.wait_for_selector("#nr-result .nr-verdict")


@pytest.mark.slow
def test_a_run_is_scheduled_and_the_next_three_times_are_shown(
    open_form: Visit, tiny_config: dict[str, Any], queue: Any
) -> None:
    from jobs.db.queries import scheduled_runs

    page = open_form()
    write(page, tiny_yaml(tiny_config, name="every-night"))
    summary(page, "ready")
    page.locator("#nr-schedule").click()
    page.get_by_role("button", name="every night").click()
    page.wait_for_function("document.querySelectorAll('#nr-next li').length === 3")
    page.get_by_label("Cron fields").fill("61 2 * * *")
    page.wait_for_selector("#nr-next .rf-error")
    assert page.locator("#nr-plan-save").is_disabled()
    page.get_by_label("Cron fields").fill("30 3 * * *")
    page.get_by_label("Time zone").fill("")
    page.get_by_label("Time zone").press_sequentially("Europe/Berlin")
    page.get_by_role("option", name="Europe/Berlin", exact=True).click()
    page.wait_for_function("/3:30/.test(document.querySelector('#nr-next').innerText)")
    page.locator("#nr-plan-save").click()
    page.get_by_text("Scheduled:").wait_for()
    (kept,) = [schedule for schedule in scheduled_runs.all_schedules(queue.db) if schedule.name == "every-night"]
    assert (kept.trigger, kept.when, kept.timezone) == ("cron", "30 3 * * *", "Europe/Berlin")
    scheduled_runs.remove(queue.db, kept.id or 0)


@pytest.mark.slow
def test_the_environment_of_the_readme_is_chosen_run_and_replayed_without_a_change_elsewhere(
    start_server: Callable[..., Any],
    server_environment: dict[str, str],
    tiny_config: dict[str, Any],
    page: Any,
    tmp_path: Path,
) -> None:
    code = next(b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "class Backward" in b)
    (tmp_path / "backward.py").write_text(code)
    server_environment["RL2F_PLUGINS"] = str(tmp_path / "backward.py")
    try:
        server = start_server()
    finally:
        del server_environment["RL2F_PLUGINS"]
    page.set_default_timeout(WAIT)
    page.goto(f"{server.url}/new")
    wait_until_open(page)
    stages = [{**tiny_config["stages"][1], "steps": 1}]
    evaluation = {"num_tasks": 2, "conditions": ["hints"]}
    write(page, tiny_yaml(tiny_config, name="words", teacher="contentless", stages=stages, evaluation=evaluation))
    expect(field(page, "name")).to_have_value("words")
    choose(page, "environment.type", "backward")
    field(page, "environment.letters").fill("5")
    assert "Letters of a word." in page.locator('[id="field-environment.letters"]').inner_text()
    summary(page, "ready")
    page.locator("#nr-start").click()
    page.wait_for_url(re.compile(r"/run\?run=\d+"))
    run_id = int(re.search(r"run=(\d+)", page.url)[1])  # type: ignore[index]
    database = Database(Workspace(server.workspace).database_url(), read_only=True)
    try:
        end = time.monotonic() + 300
        while runs.get(database, run_id).status not in ENDED and time.monotonic() < end:
            time.sleep(0.5)
        assert runs.get(database, run_id).status == "succeeded", runs.get(database, run_id).detail
    finally:
        database.close()
    page.goto(f"{server.url}/dialogues?run={run_id}")
    page.wait_for_selector("text=Write this word backward:")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_page_fits_the_window_with_everything_open(
    width: int, theme: str, open_form: Visit, new_page: Callable[..., Any], no_overflow: Callable[[Any], None]
) -> None:
    page = open_form(tab=new_page(width=width, height=900 if width > 500 else 844, theme=theme))
    no_overflow(page)
    write(page, text_of(page).replace("rank: 16", "rank: -4").replace("name: rl2f", f"name: {'long' * 30}"))
    summary(page, "lora.rank")
    while page.locator("#nr-form .rf-fold[aria-expanded=false]").count():
        opened = page.locator("#nr-form .rf-fold[aria-expanded=true]")
        before = opened.count()
        page.locator("#nr-form .rf-fold[aria-expanded=false]").first.click()
        expect(opened).to_have_count(before + 1)
    no_overflow(page)
    expect(page.locator("#nr-start")).to_be_visible()


@pytest.mark.slow
def test_a_revision_method_with_schedules_goes_from_its_preset_to_its_dialogues(
    open_form: Visit, visit: Visit, server: Any, tiny_config: dict[str, Any], no_overflow: Callable[[Any], None]
) -> None:
    page = open_form("?preset=rltf:binary_matrix-sd")
    page.get_by_label("Variant").click()
    variants = page.get_by_role("listbox").get_by_role("option")
    expect(variants).to_have_count(25)
    variants.filter(has_text=re.compile(r"^\W*shortest path · sd$")).click()
    expect(field(page, "environment.type")).to_have_value("shortest_path")
    parts = [{"environment": {"type": "guess_number", "size": 4, "low": 1}}, {"environment": {"type": "secret_code"}}]
    stages = [{"name": "rl", "method": "rl2f", "steps": 2, "tasks_per_step": 2, "group_size": 2}]
    changes = {"environment": {"type": "mixture", "environments": parts}, "stages": stages}
    rollout = {**tiny_config["rollout"], "max_turns": 2, "prompting": "reprompt"}
    write(page, tiny_yaml(tiny_config, name="fresh", rollout=rollout, **changes))
    expect(field(page, "environment.type")).to_have_value("mixture")
    choose(page, "stages.0.method.type", "rltf_sd")
    choose(page, "stages.0.learning_rate|", "a schedule")
    summary(page, "ready")
    page.locator('#nr-form [data-key="stages.0.learning_rate.points+"]').click()
    summary(page, "stages.0.learning_rate.points")
    page.locator('[id="field-stages.0.learning_rate.points"] > .rf-error').wait_for()
    assert "steps must increase" in errors_at(page, "stages.0.learning_rate.points")
    field(page, "stages.0.learning_rate.points.1.step").fill("1")
    field(page, "stages.0.learning_rate.points.1.value").fill("1e-5")
    summary(page, "ready")
    page.set_viewport_size({"width": 390, "height": 844})
    no_overflow(page)
    page.locator("#nr-start").click()
    page.wait_for_url(re.compile(r"/run\?run=\d+"))
    run_id = int(re.search(r"run=(\d+)", page.url)[1])  # type: ignore[index]
    page.wait_for_selector(".rl-badge[data-status=succeeded]", timeout=5 * WAIT)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.wait_for_selector('.rl-chart[data-key="solved/"]')
    page.get_by_role("navigation", name="run").get_by_role("link", name="Evaluation", exact=True).click()
    parts = page.locator("#run-part label")
    expect(parts).to_have_count(3)  # the mixture and its two environments
    parts.nth(1).click()
    page.wait_for_url(re.compile("part="))
    expect(page.locator("#run-tables .rl-eval").first).to_contain_text("contentless")
    page.locator("#run-accuracy .rl-plot[data-drawn]").first.wait_for()
    visit(f"/dialogues?run={run_id}&phase=train", page)
    reprompt = page.locator("details", has_text="reprompted with").first
    reprompt.locator("summary").click()
    expect(reprompt).to_contain_text("Your previous attempt:")
