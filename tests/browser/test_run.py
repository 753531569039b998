"""Page Run in a real browser: watch a run, open the dialogues of a point, find a series, two tabs, both themes."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from playwright.sync_api import expect

WAIT = 60_000
"""Milliseconds; the machine may be busy with runs."""
DRAWN = "[...document.querySelectorAll('.rl-charts [data-key] .rl-plot')].filter(n => n.dataset.drawn).length"


def open_tab(page: Any, name: str) -> None:
    """Open a tab of the run."""
    page.get_by_role("navigation", name="run").get_by_role("link", name=name, exact=True).click()
    page.locator(f"#run-{name.lower()} .rl-view > *").first.wait_for()


@pytest.fixture
def patient(new_page: Callable[..., Any]) -> Callable[..., Any]:
    """`new_page` with more patience."""

    def make(*args: Any, **options: Any) -> Any:
        page = new_page(*args, **options)
        page.set_default_timeout(WAIT)
        return page

    return make


@pytest.fixture
def page(patient: Callable[..., Any]) -> Any:
    """The tab that `visit` uses."""
    return patient()


def plot(page: Any, key: str) -> Any:
    """A plot that has been drawn, scrolled to."""
    card = page.locator(f'.rl-chart[data-key="{key}"]')
    card.scroll_into_view_if_needed()
    page.wait_for_function("key => document.querySelector(`[data-key='${key}'] .rl-plot`)?.dataset.drawn", arg=key)
    return card.locator(".rl-plot")


def click_point(page: Any, key: str, number: int) -> None:
    """Click on a point of the first line of a plot."""
    node = plot(page, key)
    x, y = node.evaluate(
        """(node, i) => {
          const trace = node.data.find(t => t.meta === 'line');
          const box = node.getBoundingClientRect(), l = node._fullLayout;
          return [box.left + l._size.l + l.xaxis.d2p(trace.x[i]), box.top + l._size.t + l.yaxis.d2p(trace.y[i])];
        }""",
        number,
    )
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y)
    page.wait_for_selector(f'[data-key="{key}"] .hoverlayer .legend')
    page.mouse.click(x, y)


def query(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def test_a_finished_run_answers_four_questions_and_shows_its_curves(server: Any, visit: Callable[..., Any]) -> None:
    page = visit(f"/run?run={server.run}")
    page.wait_for_selector(".rl-badge[data-status=succeeded]")
    for title in ("Did the hints help?", "Solved by turn", "Revisions after feedback", "Groups"):
        assert page.get_by_role("heading", name=title).first.is_visible()
    assert "contentless" in page.locator(".rl-glance").inner_text()
    plot(page, "reward")
    keys = page.eval_on_selector_all(".rl-charts .rl-chart", "nodes => nodes.map(n => n.dataset.key)")
    assert keys[:4] == ["reward", "cum_acc/", "revisions", "groups"]
    assert "frac_reward_zero_std" in page.locator('[data-key="groups"]').inner_text()
    stages = page.locator(".rl-stages li").all_inner_texts()
    assert "warm sft, demonstrations" in stages[0] and "2/2" in stages[0] and "rl rl2f" in stages[1]
    open_tab(page, "Evaluation")
    assert page.locator(".rl-eval").first.locator("tbody tr").count() >= 4
    conclusions = page.locator(".rl-conclusions")
    questions = ["Did the hints help?", "Compared with what?", "Can I believe it?"]
    assert conclusions.locator("dt").all_inner_texts() == questions
    conclusions.get_by_text("Effects of hints and controls").click()
    assert "hint effect of" in conclusions.locator("details[open]").inner_text()
    assert "hint_effect" not in page.locator("main").inner_text()


@pytest.mark.slow
def test_a_chart_is_enlarged_made_logarithmic_saved_pinned_and_hidden(visit: Callable[..., Any], server: Any) -> None:
    page = visit(f"/run?run={server.run}")

    def press(key: str, title: str) -> None:
        plot(page, key).hover()
        page.locator(f"[data-key='{key}'] .modebar-btn[data-title^='{title}']").click()

    press("cum_acc/", "Enlarge")
    page.locator(".rl-chart.rl-large[data-key='cum_acc/']").wait_for()
    page.keyboard.press("Escape")
    page.locator(".rl-chart.rl-large").wait_for(state="detached")
    press("cum_acc/", "Logarithmic")
    axis = "document.querySelector(`[data-key='cum_acc/'] .rl-plot`)._fullLayout.yaxis.type"
    page.wait_for_function(f"() => {axis} === 'log'")
    with page.expect_download() as saved:
        press("cum_acc/", "CSV")
    header = Path(saved.value.path()).read_text().splitlines()[0]
    assert header.startswith('"step of rl","t = 1"')
    with page.expect_download() as saved:
        press("cum_acc/", "SVG")
    assert Path(saved.value.path()).read_text().startswith("<svg")
    press("groups", "Pin")
    page.wait_for_function("() => document.querySelector('.rl-charts').firstChild.dataset.key === 'groups'")
    press("revisions", "Hide")
    page.locator("[data-key=revisions]").wait_for(state="detached")
    page.reload()
    plot(page, "groups")
    keys = page.eval_on_selector_all("#run-charts .rl-chart", "nodes => nodes.map(n => n.dataset.key)")
    assert keys[:2] == ["groups", "reward"] and "revisions" not in keys
    page.get_by_role("button", name="Show Revisions after feedback").click()
    page.locator("[data-key=revisions]").wait_for()


@pytest.mark.slow
def test_plots_off_the_screen_are_drawn_when_they_get_there(
    server: Any, patient: Callable[..., Any], visit: Callable[..., Any]
) -> None:
    page = visit(f"/run?run={server.run}", patient(390, 700))
    plot(page, "reward")
    every = page.locator(".rl-charts [data-key]").count()
    assert page.evaluate(DRAWN) < every
    page.locator(".rl-charts [data-key]").nth(every - 1).scroll_into_view_if_needed()
    last = page.locator(".rl-charts [data-key]").nth(every - 1).get_attribute("data-key")
    plot(page, last)


@pytest.mark.slow
def test_a_click_on_a_point_opens_the_dialogues_of_that_step(server: Any, visit: Callable[..., Any]) -> None:
    page = visit(f"/run?run={server.run}")
    click_point(page, "reward", 1)
    page.wait_for_url(re.compile(r"/dialogues\?"))
    found = query(page)
    assert (found["run"], found["stage"], found["step"]) == (str(server.run), "rl", "2")
    page.wait_for_selector(".dl-list [role=listitem]")


@pytest.mark.slow
def test_any_series_is_found_by_its_words_and_stays_with_the_address(server: Any, visit: Callable[..., Any]) -> None:
    page = visit(f"/run?run={server.run}")
    plot(page, "reward")
    field = page.get_by_label("Search more series")
    options = page.locator("#run-series [role=option]")
    field.click()
    expect(options).not_to_have_count(0)  # the series are loaded on focus
    field.fill("gradient")
    expect(options).to_have_count(1)
    assert "grad_norm" in options.inner_text()
    field.press("Enter")
    plot(page, "grad_norm")
    assert query(page)["more"] == "grad_norm"
    page.reload()
    plot(page, "grad_norm")
    page.locator('[data-key="grad_norm"] .rl-icon').click()
    page.wait_for_selector('[data-key="grad_norm"]', state="detached")
    assert "more" not in query(page)
    field.fill("no such words anywhere")
    expect(options).to_have_count(0)


@pytest.mark.slow
def test_x_and_smoothing_are_chosen_and_stand_in_the_address(server: Any, visit: Callable[..., Any]) -> None:
    page = visit(f"/run?run={server.run}&smooth=0")
    node = plot(page, "reward")
    plain = node.evaluate("n => n.data.find(t => t.meta === 'line').y")
    assert not node.evaluate("n => n.data.some(t => t.meta === 'raw')")
    page.get_by_label("Along x").click()
    page.get_by_role("option", name="time", exact=True).click()
    page.wait_for_function(
        "document.querySelector('[data-key=reward] .rl-plot').layout.xaxis.title.text.includes('since the start')"
    )
    page.get_by_label("number input for Smoothing").fill("0.9")
    page.wait_for_function("document.querySelector('[data-key=reward] .rl-plot').data.some(t => t.meta === 'raw')")
    smoothed = node.evaluate("n => n.data.find(t => t.meta === 'line').y")
    assert smoothed[1] == pytest.approx((0.9 * plain[0] + plain[1]) / 1.9)
    assert query(page) == {"run": str(server.run), "x": "time", "smooth": "0.9"}


@pytest.mark.slow
def test_plots_take_the_colours_of_the_theme_at_once(server: Any, visit: Callable[..., Any]) -> None:
    page = visit(f"/run?run={server.run}")
    node = plot(page, "reward")
    line = "n => getComputedStyle([...n.querySelectorAll('.js-line')].at(-1)).stroke"
    wanted = "() => getComputedStyle(document.documentElement).getPropertyValue('--rl-student').trim()"
    light = node.evaluate(line)
    drawn = node.get_attribute("data-drawn")
    before = page.evaluate(wanted)
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_function(
        "before => document.querySelector('[data-key=reward] .rl-plot').dataset.drawn > before", arg=drawn
    )
    assert page.evaluate(wanted) != before and node.evaluate(line) != light


@pytest.mark.slow
def test_a_run_is_watched_from_the_queue_to_its_end_without_a_reload(
    queue: Any, visit: Callable[..., Any], tiny_config: dict[str, Any]
) -> None:
    config = {**tiny_config, "name": "watched", "evaluation": {**tiny_config["evaluation"], "num_tasks": 2}}
    run = queue.add(yaml.safe_dump(config)).id
    page = visit(f"/run?run={run}")
    page.evaluate("window.here = true")
    page.wait_for_selector(".rl-badge[data-status=succeeded]", timeout=400_000)
    plot(page, "reward")
    cores = plot(page, "system/cpu_cores").evaluate("n => n.data.find(t => t.meta === 'line').y")
    assert len([y for y in cores if y is not None and y > 0]) == 5  # every step of both stages
    plot(page, "system/memory_gb")
    open_tab(page, "Evaluation")
    page.wait_for_selector(".rl-eval")
    assert page.evaluate("window.here") is True
    open_tab(page, "Log")
    page.wait_for_selector("#run-log pre:visible")
    assert page.locator("#run-head button[data-action]").all_inner_texts() == ["Delete"]


@pytest.mark.slow
def test_notes_are_text_whatever_they_hold(server: Any, visit: Callable[..., Any]) -> None:
    page = visit(f"/run?run={server.run}")
    text = '<img src=x onerror="window.pwned=1"> **bold**'
    page.get_by_label("A note on this run").fill(text)
    page.get_by_role("button", name="Save note").click()
    page.wait_for_selector(".rl-note p")
    assert page.locator(".rl-note p").last.inner_text() == text
    assert page.evaluate("window.pwned") is None and page.locator(".rl-note img").count() == 0
    page.get_by_placeholder("add a tag").fill("<i>x</i>")
    page.get_by_placeholder("add a tag").press("Enter")
    page.wait_for_selector(".rl-tags .rl-chip >> text=<i>x</i>")


EVIL = """<img src=x onerror="window.pwned=1">${window.pwned=1}{{7*7}}<script>window.pwned=1</script>"""


def poison(workspace: Path, run: int) -> None:
    """Put `EVIL` into every text that the page shows of a copy of the recorded run."""
    folder = workspace / "runs" / "poisoned"
    (folder / "log.txt").write_text(f"{EVIL}\n")
    (folder / "meta.json").write_text(json.dumps({"machine": EVIL, "packages": {EVIL: EVIL}}))
    report = folder / "evaluation" / "report.json"
    report.write_text(json.dumps({**json.loads(report.read_text()), "title": EVIL}))
    changes = {
        "run": "name = :evil, detail = :evil, environment = :evil, model = :evil, status = 'failed', "
        "config = '# ' || :evil || char(10) || config WHERE id = :run",
        "stage": "name = name || :evil, method = :evil WHERE run_id = :run",
        "metric": "stage = stage || :evil WHERE number >= 0 AND run_id = :run",
        "checkpoint": "name = name || :evil, stage = :evil WHERE run_id = :run",
        "log": "text = :evil || char(10) || :evil WHERE run_id = :run",
    }
    with closing(sqlite3.connect(workspace / "rl2f.sqlite")) as db:
        for table, change in changes.items():
            db.execute(f"UPDATE {table} SET {change}", {"evil": EVIL, "run": run})
        db.execute("INSERT INTO note (run_id, author, text, time) VALUES (?, ?, ?, 1)", [run, EVIL, EVIL])
        db.execute("INSERT INTO tag (run_id, tag) VALUES (?, ?)", [run, EVIL])
        db.commit()


@pytest.mark.slow
def test_markup_and_templates_are_text_on_every_tab(
    replay: Any, add_copy: Callable[..., int], patient: Callable[..., Any]
) -> None:
    run = add_copy(replay, "poisoned")
    poison(replay.workspace, run)
    page = patient()
    shown = {
        "overview": ["#run-head h1", ".rl-alert", ".rl-stages", ".rl-checkpoints", ".rl-note", ".rl-tags"],
        "evaluation": ["#run-evaluation-title"],
        "checkpoints": ["#run-saved tbody"],
        "config": ["#run-yaml .cm-content", "#run-environment dl"],
        "log": ["#run-output .rl-notes", "#run-output .rl-follow pre"],
    }
    for tab, places in shown.items():
        page.goto(f"{replay.url}/run?run={run}&tab={tab}")
        for place in places:
            expect(page.locator(place).first).to_contain_text(EVIL, timeout=WAIT)
        if tab == "overview":
            plot(page, "entropy")  # its axis and marks name the stages
        assert page.evaluate("window.pwned") is None and page.locator("img[src=x]").count() == 0


@pytest.mark.slow
def test_a_run_deleted_in_another_tab_and_an_unknown_one_are_one_plain_message(
    server: Any, queue: Any, tiny_config: dict[str, Any], patient: Callable[..., Any], console: Any
) -> None:
    console.allow("404")
    run = queue.add(yaml.safe_dump({**tiny_config, "name": "given up"}), start=False).id
    first, second = patient(), patient()
    for tab in (first, second):
        tab.goto(f"{server.url}/run?run={run}")
        tab.wait_for_selector("button[data-action=delete]")
    first.locator("button[data-action=delete]").click()
    first.get_by_role("dialog").get_by_role("button", name="Delete").click()
    first.wait_for_url(re.compile(rf"{server.url}/$"))
    second.wait_for_selector(f".rl-empty >> text=Run {run} was deleted.", timeout=30_000)
    for address, words in (("999", "There is no run 999."), ("x", "is not the number of a run.")):
        second.goto(f"{server.url}/run?run={address}")
        second.wait_for_selector(f".rl-empty >> text={words}")
        assert second.get_by_role("link", name="All runs").get_attribute("href") == "/"


@pytest.mark.slow
def test_the_error_of_an_action_is_shown_and_checkpoints_without_files_have_no_actions(
    server: Any, visit: Callable[..., Any], add_copy: Callable[..., int], console: Any
) -> None:
    console.allow("status of 4")
    run = add_copy(server, "lost-files", seed=5)
    page = visit(f"/run?run={run}&tab=checkpoints")
    row = page.locator("#run-checkpoints tbody tr").first
    name = row.get_attribute("data-key")
    shutil.rmtree(server.workspace / "runs" / "lost-files" / "checkpoints" / name)
    row.get_by_role("link", name="Evaluate").click()
    expect(page.locator(".rl-empty")).to_contain_text("There is no such checkpoint", timeout=WAIT)
    expect(page.locator(".rl-empty")).to_contain_text(name)
    page.go_back()
    row = page.locator(f"#run-checkpoints tr[data-key='{name}']")
    expect(row).to_contain_text("its files were not kept", timeout=WAIT)
    expect(row.get_by_role("link", name="Evaluate")).to_have_count(0)
    page.locator("button[data-action=delete]").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url(re.compile(rf"{server.url}/$"))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_page_fits(
    server: Any,
    visit: Callable[..., Any],
    patient: Callable[..., Any],
    no_overflow: Callable[[Any], None],
    width: int,
    theme: str,
) -> None:
    page = visit(f"/run?run={server.run}", patient(width, 900, theme))
    plot(page, "reward")
    no_overflow(page)
    beyond = "n => n.querySelector('.main-svg').getBoundingClientRect().width - n.clientWidth"
    inside = page.eval_on_selector_all(".rl-plot", f"nodes => nodes.filter(n => n.dataset.drawn).map({beyond})")
    assert inside and max(inside) <= 1
    for name in ("Evaluation", "Checkpoints", "Config", "Log"):
        open_tab(page, name)
        no_overflow(page)


@pytest.mark.slow
def test_tabs_are_links_with_an_address_of_their_own(server: Any, visit: Callable[..., Any]) -> None:
    page = visit(f"/run?run={server.run}&tab=config")
    page.locator("#run-yaml .cm-content").get_by_text("guess_number").first.wait_for()
    page.locator("#run-environment").get_by_text("torch").wait_for()
    assert not page.locator("#run-charts").is_visible()
    open_tab(page, "Checkpoints")
    assert query(page)["tab"] == "checkpoints"
    page.locator("#run-checkpoints").get_by_text("rl@3", exact=True).wait_for()
    page.go_back()
    page.locator("#run-yaml .cm-content").wait_for()
    assert query(page)["tab"] == "config" and not page.locator("#run-checkpoints").is_visible()
    open_tab(page, "Evaluation")
    link = page.locator("#run-tables a").first.get_attribute("href")
    assert link.startswith(f"/dialogues?run={server.run}&phase=evaluation&checkpoint=")
    dialogues = page.get_by_role("navigation", name="run").get_by_role("link", name="Dialogues")
    assert dialogues.get_attribute("href") == f"/dialogues?run={server.run}"


@pytest.mark.slow
def test_a_question_mark_explains_a_metric_with_its_formula(server: Any, visit: Callable[..., Any]) -> None:
    page = visit(f"/run?run={server.run}")
    plot(page, "reward")
    tips = page.locator("#run-overview .rl-help:visible")
    assert tips.count() >= page.locator("#run-charts .rl-chart").count() + 4
    summary = page.locator("#run-cards").get_by_label("Explain Did the hints help?")
    summary.focus()
    page.keyboard.press("Enter")
    page.locator("#run-cards").get_by_text("cum_acc/T(condition) − cum_acc/T(contentless)").wait_for()
    page.locator("#run-charts").get_by_label("Explain Reward").click()
    page.locator("#run-charts").get_by_text("mean of Σₜ rₜ").wait_for()
    expect(page.locator(".rl-help[open]")).to_have_count(1)
