"""Page Runs in a real browser: watch, stop, resume, reorder, search, tag, delete; the server may go and come back."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from playwright.sync_api import expect

from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.queue.queue import Queue

Visit = Callable[..., Any]
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"> <script>document.title='owned'</script>"
    " ${document.title='owned'} {{document.title='owned'}}"
)
HOSTILE_TAG = "<img src=x onerror=alert(1)> <b>${alert(2)} {{alert(3)}}"


@pytest.fixture
def add(queue: Queue, tiny_config: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    """`add(name, start=True, **changes)`: a run that is deleted after the test."""
    made = []

    def add_one(name: str, start: bool = True, **changes: Any) -> Any:
        run = queue.add(yaml.safe_dump({**tiny_config, **changes, "name": name}), start=start)
        made.append(run.id)
        return run

    yield add_one
    queue.pause()
    for run_id in made:
        if not [run for run in runs.page(queue.db, limit=500).rows if run.id == run_id]:
            continue
        if runs.get(queue.db, run_id).status in ("queued", "starting", "running", "stopping"):
            queue.abort(run_id)
            wait_for_status(queue, run_id, "stopped", "interrupted", "failed", "succeeded")
        queue.delete(run_id)
    queue.resume_dispatch()


def wait_for_status(queue: Queue, run_id: int, *wanted: str, seconds: float = 120) -> str:
    """Until the server has given a run one of these statuses."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status = runs.get(queue.db, run_id).status
        if status in wanted:
            return status
        time.sleep(0.2)
    raise AssertionError(f"run {run_id} is {status}, not {wanted}: {runs.get(queue.db, run_id).detail}")


def row(where: Any, name: str) -> Any:
    """The line of a run in a table, on a page or in a part of one."""
    page = getattr(where, "page", where)
    return where.locator("tr", has=page.get_by_role("link", name=name, exact=True))


def choose(page: Any, label: str, option: str) -> None:
    """Choose an option of a dropdown."""
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=option, exact=True).click()


def test_the_recorded_run_is_listed_and_opens(server: Any, visit: Visit) -> None:
    page = visit("/")
    line = row(page, "recorded")
    assert line.locator(".rl-badge").inner_text() == "succeeded"
    assert "guess_number" in line.inner_text() and "5/5" in line.inner_text()
    line.get_by_role("link", name="recorded", exact=True).click()
    page.wait_for_url(f"{server.url}/run?run={server.run}")


@pytest.mark.slow
def test_filters_stand_in_the_address_and_come_back_with_it(visit: Visit, add: Callable[..., Any]) -> None:
    add("apple", start=False)
    page = visit("/")
    page.get_by_label("Search runs").fill("apple")
    page.wait_for_url(re.compile(r"search=apple"))
    row(page, "recorded").wait_for(state="detached")
    choose(page, "Status", "stopped")
    page.wait_for_url(re.compile(r"status=stopped"))
    page.reload()
    row(page, "apple").wait_for()
    assert page.get_by_label("Search runs").input_value() == "apple"
    expect(row(page, "recorded")).to_have_count(0)
    page.get_by_label("Search runs").fill("nothing like it")
    page.get_by_text("No runs match").wait_for()
    page.get_by_role("button", name="Clear filters").click()
    row(page, "recorded").wait_for()
    assert "?" not in page.url


@pytest.mark.slow
def test_tags_and_notes_are_kept_and_markup_in_them_is_text(visit: Visit, add: Callable[..., Any]) -> None:
    add("marked", start=False)
    page = visit("/")
    row(page, "marked").get_by_label("Actions of marked").click()
    page.get_by_role("button", name="Tags and notes…").click()
    page.get_by_label("New tags").fill(f"good, {HOSTILE_TAG}")
    page.get_by_label("New note").fill(HOSTILE)
    page.get_by_role("button", name="Save").click()
    row(page, "marked").get_by_text(HOSTILE).wait_for()
    expect(row(page, "marked").get_by_role("button", name=f"#{HOSTILE_TAG}")).to_be_visible()
    row(page, "marked").get_by_label("Actions of marked").click()
    page.get_by_role("button", name="Tags and notes…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label(HOSTILE_TAG, exact=True)).to_be_checked()
    expect(dialog.get_by_text(HOSTILE, exact=True)).to_be_visible()
    expect(dialog.locator("img, script, b")).to_have_count(0)
    page.keyboard.press("Escape")
    row(page, "marked").get_by_role("button", name="#good").click()
    page.wait_for_url(re.compile(r"tag=good"))
    row(page, "recorded").wait_for(state="detached")
    expect(page.locator(":is(#runs-list, .runs-filters) :is(img, script, b)")).to_have_count(0)
    assert re.fullmatch(r"(\(\d+\) )?Runs · RL2F Studio", page.title()), "at most a count of notifications"


@pytest.mark.slow
def test_markup_in_an_imported_name_and_reason_is_text(visit: Visit, queue: Queue) -> None:
    texts = dict.fromkeys(("name", "detail", "model", "environment"), HOSTILE)
    run = runs.add(queue.db, Run(kind="eval", status="failed", folder="imported", **texts))
    page = visit("/")
    page.get_by_role("link", name=HOSTILE, exact=True).wait_for()
    assert row(page, HOSTILE).get_by_text(HOSTILE, exact=True).count() == 4
    expect(page.locator(":is(#runs-list, .runs-filters) :is(img, script)")).to_have_count(0)
    assert page.title() == "Runs · RL2F Studio"
    runs.remove(queue.db, run.id or 0)


@pytest.mark.slow
def test_the_dialog_of_tags_and_notes_is_operated_by_keyboard_alone(visit: Visit, add: Callable[..., Any]) -> None:
    add("typed", start=False)
    page = visit("/?search=typed")
    menu = row(page, "typed").get_by_label("Actions of typed")

    def open_dialog() -> Any:
        menu.focus()
        page.keyboard.press("Enter")
        row(page, "typed").get_by_role("button", name="Tags and notes…").focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Tags and notes of typed")
        expect(dialog.locator(":focus")).to_have_count(1)
        return dialog

    dialog = open_dialog()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(menu).to_be_focused()

    dialog = open_dialog()
    fields = dialog.locator("input, textarea, button")
    for _ in range(fields.count() + 2):
        page.keyboard.press("Tab")  # after the last field, the browser's own controls have the focus
        assert page.evaluate("document.activeElement.closest('dialog') || document.activeElement === document.body")
    dialog.get_by_label("New tags").focus()
    page.keyboard.type("keys, hands")
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(menu).to_be_focused()
    expect(row(page, "typed").locator(".runs-tag")).to_have_text(["#hands", "#keys"])

    dialog = open_dialog()
    dialog.get_by_label("hands").focus()
    page.keyboard.press("Space")
    dialog.get_by_label("New note").focus()
    page.keyboard.type("short-lived")
    dialog.get_by_role("button", name="Save").focus()
    page.keyboard.press("Enter")
    row(page, "typed").get_by_text("short-lived").wait_for()
    expect(row(page, "typed").locator(".runs-tag")).to_have_text(["#keys"])

    dialog = open_dialog()
    dialog.get_by_label("Delete").focus()
    page.keyboard.press("Space")
    dialog.get_by_role("button", name="Save").focus()
    page.keyboard.press("Enter")
    row(page, "typed").get_by_text("short-lived").wait_for(state="detached")


@pytest.mark.slow
def test_typing_a_search_adds_one_entry_to_the_history(visit: Visit, add: Callable[..., Any]) -> None:
    add("apple", start=False)
    page = visit("/")
    before = page.evaluate("history.length")
    for text in ("app", "appl", "apple"):
        page.get_by_label("Search runs").fill(text)
        page.wait_for_url(re.compile(rf"search={text}$"))
    assert page.evaluate("history.length") == before + 1
    row(page, "recorded").wait_for(state="detached")
    choose(page, "Status", "stopped")
    page.wait_for_url(re.compile(r"search=apple&status=stopped"))
    page.go_back()
    expect(page.get_by_label("Status", exact=True)).to_have_value("finished")
    assert page.get_by_label("Search runs").input_value() == "apple"
    page.go_back()
    row(page, "recorded").wait_for()
    assert page.get_by_label("Search runs").input_value() == "" and "?" not in page.url
    page.go_forward()
    row(page, "recorded").wait_for(state="detached")
    assert page.get_by_label("Search runs").input_value() == "apple"


@pytest.mark.slow
def test_the_queue_is_paused_reordered_and_left(visit: Visit, queue: Queue, add: Callable[..., Any]) -> None:
    page = visit("/")
    queue.pause()
    for name in ("first", "second", "third"):
        add(name)
    part = page.get_by_role("region", name="Queue")
    names = part.locator("tbody .runs-main > a")
    row(part, "third").wait_for()
    assert names.all_inner_texts() == ["first", "second", "third"]
    part.get_by_role("button", name="Move third up").click()
    page.wait_for_function(
        "document.querySelectorAll('[data-part=queue] tbody .runs-main > a')[1].textContent === 'third'"
    )
    part.get_by_role("button", name="Move first down").click()
    page.wait_for_function(
        "document.querySelectorAll('[data-part=queue] tbody .runs-main > a')[0].textContent === 'third'"
    )
    assert [run.name for run in runs.queued(queue.db)] == ["third", "first", "second"]
    part.get_by_role("button", name="Remove second from the queue").click()
    row(part, "second").wait_for(state="detached")
    assert "paused" in part.inner_text()
    assert runs.active(queue.db) == []


@pytest.mark.slow
def test_a_run_is_watched_stopped_and_resumed(
    visit: Visit, queue: Queue, add: Callable[..., Any], tiny_config: dict[str, Any]
) -> None:
    stages = [{**tiny_config["stages"][1], "name": "long", "steps": 400}]
    page = visit("/")
    run = add("halted", stages=stages)
    card = page.locator(f"article[data-run='{run.id}']")
    card.wait_for(timeout=60_000)
    card.get_by_text(re.compile(r"^step \d+/400$")).wait_for(timeout=120_000)
    page.wait_for_function(
        "id => Number(document.querySelector(`article[data-run='${id}'] [role=progressbar]`)?.ariaValueNow) > 0",
        arg=run.id,
        timeout=120_000,
    )
    assert "reward" in card.inner_text() and page.title().startswith("(1)")
    card.get_by_role("button", name="Stop").click()
    row(page, "halted").wait_for(timeout=60_000)
    assert row(page, "halted").locator(".rl-badge").inner_text() == "stopped"
    before = runs.get(queue.db, run.id).done
    assert 0 < before < 400
    row(page, "halted").get_by_label("Actions of halted").click()
    page.get_by_role("button", name="Resume").click()
    card.wait_for(timeout=60_000)
    page.wait_for_function(
        """([id, done]) => {
          const card = document.querySelector(`article[data-run='${id}']`);
          return Number(/step (\\d+)/.exec(card?.innerText)?.[1]) > done;
        }""",
        arg=[run.id, before],
        timeout=120_000,
    )
    card.get_by_role("button", name="Abort").click()
    page.get_by_role("dialog").get_by_role("button", name="Abort").click()
    row(page, "halted").wait_for(timeout=60_000)
    assert row(page, "halted").locator(".rl-badge").inner_text() in ("interrupted", "stopped")


@pytest.mark.slow
def test_runs_are_deleted_only_after_asking(visit: Visit, queue: Queue, add: Callable[..., Any]) -> None:
    ids = [add(name, start=False).id for name in ("waste one", "waste two")]
    page = visit("/?search=waste")
    for name in ("waste one", "waste two"):
        page.get_by_label(f"Select {name}").check()
    page.get_by_text("2 selected").wait_for()
    assert page.get_by_role("link", name="Compare", exact=True).last.get_attribute("href") in (
        f"/compare?runs={ids[0]},{ids[1]}",
        f"/compare?runs={ids[1]},{ids[0]}",
    )
    page.get_by_role("button", name="Delete 2…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert {runs.get(queue.db, number).status for number in ids} == {"stopped"}
    page.get_by_role("button", name="Delete 2…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("2 runs deleted. Restore with the status “deleted”.").wait_for()
    page.get_by_text("No runs match").wait_for()
    assert not {run.id for run in runs.page(queue.db, limit=500).rows} & set(ids)


@pytest.mark.slow
def test_runs_are_chosen_and_opened_by_keyboard_alone(server: Any, visit: Visit) -> None:
    page = visit("/?search=recorded")
    row(page, "recorded").wait_for()
    page.keyboard.press("j")
    expect(page.locator("tr:focus-within")).to_have_count(1)
    page.keyboard.press("x")
    assert page.get_by_label("Select recorded").is_checked()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"/run\?run={server.run}"))


@pytest.mark.slow
def test_another_tab_is_told_what_this_one_did(
    visit: Visit, new_page: Callable[..., Any], console: Any, add: Callable[..., Any]
) -> None:
    console.allow(r"status of (404|409)")
    add("shared", start=False)
    first, second = visit("/?search=shared"), visit("/?search=shared", new_page())
    row(second, "shared").get_by_label("Actions of shared").click()
    # a tab in the background is not refreshed
    second.evaluate("Object.defineProperty(document, 'visibilityState', { value: 'hidden', configurable: true })")
    row(first, "shared").get_by_label("Actions of shared").click()
    first.get_by_role("region", name="Finished").get_by_role("button", name="Delete…").click()
    first.get_by_role("dialog").get_by_role("button", name="Delete").click()
    first.get_by_text("No runs match").wait_for()
    second.get_by_role("button", name="Resume").click()
    second.get_by_text("There is no run").wait_for()
    second.get_by_text("No runs match").wait_for()


@pytest.mark.slow
def test_a_schedule_is_shown_with_its_next_time_switched_and_deleted(visit: Visit, queue: Queue) -> None:
    from jobs.db.queries import scheduled_runs

    made = scheduled_runs.add(queue.db, name="every night", trigger="nightly", when="30 2 * * *")
    page = visit("/")
    line = page.locator(f"tr[data-schedule='{made.id}']")
    page.set_viewport_size({"width": 390, "height": 400})
    page.get_by_role("link", name=re.compile("schedule")).click()
    expect(line).to_be_in_viewport()
    line.get_by_text(re.compile(r"^in \d+ (h|min)$")).wait_for()
    line.get_by_role("checkbox").click()
    line.get_by_text("off", exact=True).wait_for()
    assert scheduled_runs.get(queue.db, made.id or 0).enabled is False
    line.get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    line.wait_for(state="detached")
    assert made.id not in [schedule.id for schedule in scheduled_runs.all_schedules(queue.db)]


@pytest.mark.slow
def test_an_open_page_outlives_the_server(start_server: Callable[..., Any], page: Any, console: Any) -> None:
    console.allow(r"ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE")
    console.allow(r"Connection|network|fetch")  # Gradio's own words on the same
    own = start_server()
    page.goto(own.url)
    row(page, "recorded").wait_for()
    own.stop(signal.SIGKILL)
    page.get_by_text("Connection to the server was lost").wait_for()
    again = start_server(workspace=own.workspace, port=own.port)
    page.get_by_text("Connection to the server was lost").wait_for(state="detached", timeout=60_000)
    row(page, "recorded").get_by_label("Actions of recorded").click()
    page.get_by_role("button", name="Tags and notes…").click()
    page.get_by_label("New note").fill("still here")
    page.get_by_role("button", name="Save").click()
    row(page, "recorded").get_by_text("still here").wait_for()
    again.stop()


@pytest.mark.slow
def test_a_new_user_sees_three_steps_until_they_are_done(server: Any, visit: Visit) -> None:
    page = visit("/")
    steps = page.get_by_role("region", name="first steps")
    expect(steps.get_by_role("listitem")).to_have_count(3)
    assert steps.get_by_role("link", name="Label a hint").get_attribute("href") == "/labels"
    steps.get_by_role("button", name="Read a dialogue").click()
    page.wait_for_url(re.compile(r"/dialogues\?run=\d+&dialogue="))
    page.goto(server.url)
    expect(steps.get_by_role("listitem").filter(has_text="Read a dialogue (done)")).to_have_count(1)
    steps.get_by_role("button", name="Hide").click()
    steps.wait_for(state="detached")
    page.reload()
    row(page, "recorded").wait_for()
    expect(steps).to_have_count(0)


@pytest.mark.slow
def test_the_end_of_a_run_is_notified_on_request(visit: Visit, new_page: Callable[..., Any], queue: Queue) -> None:
    tab = new_page(permissions=["notifications"])
    tab.add_init_script(
        """window.shown = [];
        window.Notification = class {
          static permission = "granted";
          static requestPermission() { return Promise.resolve("granted"); }
          constructor(title, options) { window.shown.push(`${title}: ${options.body}`); }
        };"""
    )
    page = visit("/", tab)
    page.get_by_role("button", name="Notify me").click()
    page.get_by_role("button", name="Notifications on").wait_for()
    page.wait_for_timeout(1000)
    now = time.time()
    run = runs.add(queue.db, Run(name="over", kind="eval", status="failed", folder="over", ended=now, created=now))
    page.wait_for_function("shown.includes('over: failed')", timeout=30_000)
    runs.remove(queue.db, run.id or 0)


@pytest.mark.slow
def test_seeds_are_folded_compared_and_a_deleted_run_comes_back(
    server: Any, visit: Visit, queue: Queue, add: Callable[..., Any]
) -> None:
    own = {"type": "guess_number", "size": 7}  # no run of another test is in these groups
    short = [add(f"short {seed}", start=False, seed=seed, environment=own).id for seed in (0, 1)]
    add("long", start=False, environment=own, rollout={"max_turns": 5, "max_new_tokens": 8, "max_seq_len": 512})
    page = visit("/?search=kind%3Dtrain")
    choose(page, "Rows", "grouped by seed")
    page.wait_for_url(re.compile("group=seed"))
    group = page.locator("tr", has=page.get_by_role("button", name="short 1"))
    expect(group).to_contain_text("seeds 0, 1")
    expect(row(page, "short 0")).to_have_count(0)
    page.get_by_role("button", name="short 1").click()
    expect(row(page, "short 0")).to_be_visible()
    page.reload()
    expect(row(page, "short 0")).to_be_visible()
    group.get_by_role("checkbox").check()
    page.locator("tr", has=page.get_by_role("button", name="long")).get_by_role("checkbox").check()
    page.get_by_text("3 selected").wait_for()
    page.get_by_role("button", name="Show differing settings").click()
    page.wait_for_url(re.compile("columns="))
    expect(page.get_by_role("button", name="max_turns", exact=True)).to_be_visible()
    page.locator("a.runs-compare").click()
    page.wait_for_url(re.compile("/compare.*seeds=1"))
    expect(page.get_by_role("status").filter(has_text="retry budget (rollout.max_turns)")).to_be_visible()
    queue.delete(short[0])
    page = visit("/?status=deleted")
    page.get_by_role("button", name="Restore short 0").click()
    page.get_by_text("short 0 was restored").wait_for()
    assert runs.get(queue.db, short[0]).name == "short 0"


@pytest.mark.slow
def test_columns_sort_the_list(visit: Visit, add: Callable[..., Any]) -> None:
    for name in ("zebra one", "alpha one"):
        add(name, start=False)
    page = visit("/?search=one")
    names = page.get_by_role("region", name="Finished").locator("tbody .runs-name")
    head = page.get_by_role("columnheader", name="Run")
    for first, direction in (("alpha one", "ascending"), ("zebra one", "descending")):
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", direction, timeout=30_000)
        expect(names.first).to_have_text(first, timeout=30_000)
    assert "sort=-name" in page.url
    page.go_back()
    expect(names.first).to_have_text("alpha one")
