"""Elements and actions of the page Runs."""

from __future__ import annotations

import json
import time
from typing import Any

import gradio as gr
import pytest

from app.common.context import Context
from app.common.quantities import duration, number
from app.components.elements.sparkline import sparkline
from app.endpoints.studio import Studio
from app.pages.runs.page import (
    NEW_USER,
    _Page,
    act,
    ended_runs,
    facet_choices,
    is_filtered,
    run_filter,
    sort_choices,
    statuses,
    view,
)
from jobs.db.models import Run
from jobs.db.queries import run_values, runs, scheduled_runs
from rl2f_core.config.presets import preset

EVIL = "<img src=x onerror=alert(1)> ${alert(1)} {{alert(1)}}"


@pytest.fixture
def studio(context: Context) -> Studio:
    return Studio(context)


def add(studio: Studio, name: str, status: str = "failed", **columns: Any) -> int:
    run = Run.model_validate({"name": name, "kind": "eval", "status": status, "folder": f"1-{name}", **columns})
    return runs.add(studio.context.db, run).id or 0


def table(studio: Studio, *selected: int, sort: str = "-ended") -> str:
    page = studio.runs.list_runs(sort="name")
    return json.dumps(view.runs_table(page, selected, sort, filtered=False, writable=True))


def test_numbers_and_durations_are_short() -> None:
    assert [number(each) for each in (None, 0, 0.2374, 23.46, 231.5, 12804.2)] == [
        "–", "0", ".237", "23.5", "232", "12,804"
    ]  # fmt: skip
    texts = {None: "–", 7: "7 s", 90: "1 min 30 s", 840: "14 min", 3900: "1 h 5 min", 7199: "2 h", 180000: "2 d 2 h"}
    assert {seconds: duration(seconds) for seconds in texts} == texts


def test_a_sparkline_needs_two_values_and_describes_itself() -> None:
    assert sparkline([0.5]) is None
    line = sparkline([0.0, 1.0], 100, 20)
    assert line is not None and line[1] == {**line[1], "aria-label": "from 0 to 1"}  # type: ignore[dict-item]
    assert "2.0,17.0 98.0,3.0" in json.dumps(line)


def test_a_refresh_redraws_a_selection_that_changed_while_the_refresh_before_ran(studio: Studio) -> None:
    first, second = add(studio, "one"), add(studio, "two")
    with gr.Blocks():
        page = _Page(studio)
    seen = page.content({}, [first], NEW_USER)[page.shown]
    assert page.table not in page.refresh(seen, {}, [first], NEW_USER)
    assert "2 selected" in json.dumps(page.refresh(seen, {}, [first, second], NEW_USER)[page.table])


def test_a_link_above_the_list_leads_to_the_schedules_below_it(studio: Studio) -> None:
    with gr.Blocks():
        page = _Page(studio)
    assert "#runs-jobs" not in json.dumps(page.content({}, [], NEW_USER)[page.live])
    for name in ("every night", "every hour"):
        scheduled_runs.add(studio.context.db, name=name, trigger="nightly", when="30 2 * * *")
    assert '{"href": "#runs-jobs", "class": "rl-small"}, "2 schedules \\u2193"]' in json.dumps(
        page.content({}, [], NEW_USER)[page.live]
    )
    assert page.jobs.elem_id == "runs-jobs"


def test_a_box_changes_its_own_run_whatever_the_other_boxes_show(studio: Studio) -> None:
    first, second, third = (add(studio, name) for name in ("one", "two", "three"))
    with gr.Blocks():
        page = _Page(studio)

    def select(chosen: list[int], **data: Any) -> list[int]:
        selected: list[int] = page.select(gr.EventData(None, data), {}, chosen)[page.selected]
        return selected

    assert select([first], change="select", run=str(second), value=True) == [first, second]
    assert select([first, second], change="select", run=str(first), value=False) == [second]
    assert sorted(select([second], change="select_all", value=True)) == [first, second, third]
    assert select([9, second], change="select_all", value=False) == [9]


def test_the_bar_of_the_selection_offers_what_all_selected_runs_permit(studio: Studio) -> None:
    failed, done = add(studio, "failed"), add(studio, "done", "succeeded")
    assert "selected" not in table(studio)
    assert "1 selected" in table(studio, failed) and "/compare" not in table(studio, failed)
    both = table(studio, failed, done)
    assert f"/compare?runs={failed},{done}" in both and "Resume 1" in both and "Delete 2" in both


def test_a_sorted_column_says_so_and_turns_round(studio: Studio) -> None:
    add(studio, "a")
    assert '"aria-sort": "descending"' in table(studio, sort="-reward")
    assert '"data-sort": "reward"' in table(studio, sort="-reward")
    assert '"data-sort": "-reward"' in table(studio, sort="name")


def test_names_and_reasons_are_text(studio: Studio) -> None:
    add(studio, EVIL[:90], detail=EVIL)
    page = studio.runs.list_runs()
    rows = view.runs_table(page, [], "name", filtered=False, writable=True)

    def texts(node: Any) -> list[str]:
        return [node] if isinstance(node, str) else [text for child in node[2:] for text in texts(child)]

    assert EVIL in texts(rows) and EVIL[:90] in texts(rows)


def test_a_read_only_page_has_no_actions(studio: Studio) -> None:
    add(studio, "a")
    page = json.dumps(view.runs_table(studio.runs.list_runs(), [], "name", filtered=False, writable=False))
    assert 'data-action": "delete' not in page and "Clone" not in page and "Open" in page
    assert "New run" not in json.dumps(view.head(writable=False))


def test_a_queued_run_moves_up_and_down_but_not_beyond_the_ends(studio: Studio) -> None:
    ids = [add(studio, name, "queued") for name in "abc"]
    active = studio.runs.list_active_runs()
    queue = json.dumps(view.live(active, studio.runs.queue_status(), time.time()))
    assert queue.count('"disabled": true') == 2
    assert f'"data-run": {ids[1]}, "data-before": {ids[0]}' in queue
    assert f'"data-run": {ids[0]}, "data-before": {ids[2]}' in queue
    assert f'"data-run": {ids[1]}, "data-before": "end"' in queue


def test_a_run_without_a_heartbeat_is_marked(studio: Studio) -> None:
    now = time.time()
    add(studio, "silent", "running", heartbeat=now - 300, total=10.0, done=2.0, eta=60.0)
    add(studio, "alive", "running", heartbeat=now, total=10.0, done=2.0, eta=60.0)
    cards = json.dumps(view.live(studio.runs.list_active_runs(), studio.runs.queue_status(), now))
    assert cards.count("no heartbeat since") == 1 and cards.count("ETA 1 min") == 1


def test_an_empty_status_means_finished_runs() -> None:
    assert statuses({"status": ""}) == ("succeeded", "failed", "stopped", "interrupted")
    assert statuses({"status": "any"}) is None
    assert statuses({"status": "failed,stopped"}) == ["failed", "stopped"]
    assert not is_filtered({"search": "", "sort": "name"}) and is_filtered({"search": "x", "sort": "name"})


def test_jobs_of_runs_are_shown_only_with_their_kind_or_any_kind() -> None:
    assert not run_filter({}).jobs and run_filter({"kind": "export"}).jobs
    every = run_filter({"kind": "any"})
    assert every.jobs and every.kind == ""


def test_an_order_that_is_no_column_of_runs_is_that_of_a_metric() -> None:
    assert run_filter({"sort": "-hint_effect"}).sort_by == "-hint_effect"
    assert run_filter({"sort": "name"}).sort == "name" and not run_filter({"sort": "name"}).sort_by
    assert sort_choices("-rollout.max_turns")[-1] == ("rollout.max_turns, descending", "-rollout.max_turns")


def test_groups_show_means_and_unfold_to_their_runs(studio: Studio) -> None:
    seeds = [add(studio, f"r{seed}", "succeeded", seed=seed, config=f"seed: {seed}\nkind: eval\n") for seed in (0, 1)]
    for run, reward in zip(seeds, (0.2, 0.4), strict=True):
        with studio.context.db.write() as session:
            run_values.put(session.connection(), run, {"reward": reward})
    page = studio.runs.list_run_groups(columns=["reward"])
    folded = json.dumps(view.runs_table(page, [], "name", filtered=False, writable=True), ensure_ascii=False)
    assert ".300 ± .141" in folded and "seeds 0, 1" in folded and f"/run?run={seeds[0]}" not in folded
    assert f"/compare?runs={seeds[1]},{seeds[0]}&seeds=1" in folded
    with gr.Blocks():
        runs_page = _Page(studio)
    query = {"group": "seed", "open": page.rows[0].key}
    assert [run.id for run in runs_page.members(query)] == seeds[::-1]
    opened = json.dumps(runs_page.listing(query, [])[runs_page.table])
    assert all(f'"/run?run={run}"' in opened for run in seeds)


def test_one_click_shows_the_settings_that_differ_between_the_selected_runs(studio: Studio) -> None:
    chosen = [add(studio, f"r{n}", "succeeded", config=f"seed: 0\nrollout: {{max_turns: {n}}}\n") for n in (3, 5)]
    with gr.Blocks():
        page = _Page(studio)
    event = gr.EventData(None, {"action": "differing"})
    updates = page.browse(event, {}, chosen, NEW_USER, *(default for _, default in page.filters.fields.values()))
    assert updates[page.address] == {"columns": "rollout.max_turns"}
    assert "max_turns" in json.dumps(updates[page.table])


def test_deleted_runs_are_listed_with_a_button_that_restores_them(studio: Studio) -> None:
    run = studio.context.queue.add(preset("quickstart").text, start=False)
    act(studio, {"action": "delete", "run": str(run.id)}, [])
    listed = json.dumps(view.deleted_table(studio.runs.list_deleted_runs(), writable=True))
    assert '"data-action": "restore"' in listed and f'"data-run": {run.id}' in listed
    act(studio, {"action": "restore", "run": str(run.id)}, [])
    assert [row.id for row in studio.runs.list_runs().rows] == [run.id] and not studio.runs.list_deleted_runs()


def test_a_filter_offers_what_there_is_and_keeps_what_is_chosen(studio: Studio) -> None:
    add(studio, "a", environment="guess_number")
    facets = studio.runs.run_facets()
    alone = facet_choices("environment", facets, "")
    assert alone["visible"] == "hidden" and alone["choices"][0] == ("any environment", "")
    assert ("gone", "gone") in facet_choices("environment", facets, "gone")["choices"]


def test_deleted_runs_leave_the_selection(studio: Studio) -> None:
    first, second, third = (add(studio, name) for name in "abc")
    left = act(studio, {"action": "delete", "run": f"{first},{second}"}, [first, third])
    assert left == [third] and [row.id for row in studio.runs.list_runs().rows] == [third]


def test_notifications_tell_of_runs_that_ended_after_the_last_question(studio: Studio) -> None:
    add(studio, "old", ended=time.time() - 60)
    first = ended_runs(studio, None)
    assert first["runs"] == []
    run = add(studio, "new", "succeeded", ended=time.time())
    found = ended_runs(studio, first["time"])
    assert found["runs"] == [{"title": "new", "text": "succeeded", "url": f"/run?run={run}"}]
    assert ended_runs(studio, found["time"])["runs"] == []
