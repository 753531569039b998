"""Runs: list, filters, order, tags, stages; notes, settings and metrics beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from event_data import config, dialogue, metric, small_run, stored_run
from workspace_copies import opened

from jobs.db import settings
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError, UnknownDialogueError, UnknownRunError
from jobs.db.models import Run
from jobs.db.paging import Page
from jobs.db.queries import metrics, notes, runs
from jobs.db.queries.runs import RunFilter
from jobs.workspace import Workspace
from rl2f_core.config.loading import dump_yaml
from rl2f_core.errors import ConfigError, DataError, RunError


def add(db: Database, number: int, **values: Any) -> int:
    given = {"name": f"run {number}", "kind": "train", "folder": f"{number}-run", "created": float(number), **values}
    run = runs.add(db, Run(**given))
    assert run.id is not None
    return run.id


def some(db: Database) -> None:
    """Five runs that differ in everything a filter asks for."""
    add(db, 1, name="Quick start", status="succeeded", environment="guess_number", method="rl2f", reward=0.5, ended=9.0)
    add(db, 2, name="ablation", status="failed", environment="arithmetic", method="rlvr", reward=-0.5, ended=3.0)
    add(db, 3, name="quick again", status="queued", environment="arithmetic", method="rl2f", position=2.0)
    add(db, 4, name="Zebra", status="running", kind="eval", environment="guess_number", reward=0.9)
    add(db, 5, name="100% done_now", status="queued", environment="arithmetic", position=1.0, model="tiny")


def ids(page: Page[Run]) -> list[int]:
    return [run.id or 0 for run in page.rows]


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory, empty_database: bytes) -> Iterator[Database]:
    """The five runs, two with tags and one with a note; to be read only."""
    with opened(Workspace(tmp_path_factory.mktemp("tagged")), empty_database) as db:
        some(db)
        runs.set_tags(db, 1, ["good", "seen"])
        runs.set_tags(db, 2, ["good"])
        notes.add(db, 2, "Remarkable failure")
        yield db


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        ({}, [5, 4, 3, 2, 1]),
        ({"sort": "created"}, [1, 2, 3, 4, 5]),
        ({"sort": "name"}, [5, 2, 3, 1, 4]),
        ({"sort": "-name"}, [4, 1, 3, 2, 5]),
        ({"sort": "reward"}, [2, 1, 4, 3, 5]),
        ({"sort": "-reward"}, [4, 1, 2, 5, 3]),
        ({"sort": "-ended"}, [1, 2, 5, 4, 3]),
        ({"sort": "environment"}, [2, 3, 5, 1, 4]),
        ({"status": ("queued", "running")}, [5, 4, 3]),
        ({"kind": "eval"}, [4]),
        ({"environment": "arithmetic", "method": "rl2f"}, [3]),
        ({"tag": "good"}, [2, 1]),
        ({"search": "QUICK"}, [3, 1]),
        ({"search": "quick arith"}, [3]),
        ({"search": "remarkable"}, [2]),
        ({"search": "goo"}, [2, 1]),
        ({"search": "tiny"}, [5]),
        ({"search": "#4"}, [4]),
        ({"search": "100%"}, [5]),
        ({"search": "%"}, [5]),
        ({"search": "e_n"}, [5]),
        ({"search": "\0 ❆"}, []),
    ],
    ids=str,
)
def test_filters_and_orders_of_runs(filter: dict[str, Any], wanted: list[int], tagged: Database) -> None:
    page = runs.page(tagged, RunFilter(**filter))
    assert (ids(page), page.total) == (wanted, len(wanted))


@pytest.mark.parametrize("sort", ["created", "-created", "name", "-name", "reward", "-reward", "ended", "-environment"])
def test_pages_hold_each_run_once_whatever_the_order(sort: str, db: Database) -> None:
    some(db)
    add(db, 6, name="zebra", reward=0.9, ended=3.0)
    whole = ids(runs.page(db, RunFilter(sort=sort)))
    for limit in (1, 2, 3):
        cursor, flat, pages = None, [], []
        while True:
            page = runs.page(db, RunFilter(sort=sort), cursor, limit)
            flat += ids(page)
            pages.append(ids(page))
            if page.after is None:
                break
            cursor = page.after
        assert flat == whole and page.total == 6, limit
        back = []
        while page.before is not None:
            page = runs.page(db, RunFilter(sort=sort), page.before, limit)
            back.insert(0, ids(page))
        assert [*back, pages[-1]] == pages, limit


def test_an_unknown_order_and_a_place_of_another_list_are_plain_errors(db: Database) -> None:
    some(db)
    with pytest.raises(ValueError, match=r"Input should be 'created'.*'name'"):
        RunFilter(sort="colour")  # type: ignore[arg-type]
    place = runs.page(db, RunFilter(sort="name"), limit=2).after
    with pytest.raises(DataError, match="cursor of the list is invalid"):
        runs.page(db, RunFilter(sort="created"), place)


def test_the_version_of_a_run_increases_when_a_job_of_it_is_added_starts_or_ends(db: Database) -> None:
    parent = add(db, 1)
    seen = [runs.version(db, parent)]
    job = add(db, 2, kind="eval", parent=parent)
    seen.append(runs.version(db, parent))
    runs.update(db, job, status="running")
    seen.append(runs.version(db, parent))
    runs.update(db, job, done=3.0)
    assert runs.version(db, parent) == seen[-1]
    runs.update(db, job, status="succeeded")
    seen.append(runs.version(db, parent))
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("unknown", [99, 0, -1, 2**40, 2**70])
def test_an_unknown_run_is_a_plain_error_everywhere(unknown: int, db: Database) -> None:
    asked: list[Any] = [runs.get, runs.stages, runs.checkpoints, runs.logs, runs.tags, metrics.steps, metrics.names]
    asked += [lambda db, i: runs.update(db, i, name="x"), runs.remove, lambda db, i: notes.add(db, i, "x")]
    asked += [lambda db, i: runs.set_tags(db, i, []), runs.version, metrics.evaluations]
    for ask in asked:
        with pytest.raises(UnknownRunError, match=rf"There is no run {unknown}\..*Fix:") as caught:
            ask(db, unknown)
        assert isinstance(caught.value, RunError) and isinstance(caught.value, NotFoundError)


def test_a_run_is_found_by_its_folder(db: Database) -> None:
    some(db)
    found = runs.find(db, folder="3-run")
    assert found is not None and found.id == 3
    assert runs.find(db, folder="../3-run") is None


def test_a_new_run_has_the_stages_and_the_length_of_its_configuration(db: Database) -> None:
    made = config()
    run = runs.add(db, runs.of_config(made, dump_yaml(made), "1-small", device="cpu"))
    assert (run.name, run.kind, run.environment, run.model, run.method) == (
        "small", "train", "guess_number", "tiny", "rl2f",
    )  # fmt: skip
    assert [(s.index, s.name, s.method, s.steps, s.done) for s in runs.stages(db, run.id or 0)] == [
        (0, "warmup", "sft", 2, 0), (1, "rl2f", "rl2f", 3, 0),
    ]  # fmt: skip
    assert (run.total, run.done) == (5.0, 0.0)


def test_a_change_moves_the_version_and_an_unknown_column_is_refused(db: Database) -> None:
    run_id = add(db, 1)
    before = runs.get(db, run_id)
    after = runs.update(db, run_id, name="new", eta=12.5)
    assert (after.name, after.eta) == ("new", 12.5) and after.version > before.version
    assert runs.get(db, run_id).version == after.version
    with pytest.raises(ConfigError, match="no such column"):
        runs.update(db, run_id, colour="red")


def test_of_two_changes_of_the_same_run_neither_is_lost(db: Database) -> None:
    run_id = add(db, 1)
    other = Database(str(db.url))
    runs.update(db, run_id, name="first tab")
    runs.update(other, run_id, detail="second tab")
    other.close()
    run = runs.get(db, run_id)
    assert (run.name, run.detail) == ("first tab", "second tab")


def test_the_queue_is_in_order_and_active_runs_are_those_with_a_worker(db: Database) -> None:
    some(db)
    assert [run.id for run in runs.queued(db)] == [5, 3]
    add(db, 7, status="stopping")
    add(db, 8, status="starting")
    assert [run.id for run in runs.active(db)] == [4, 6, 7]


def test_tags_are_replaced_trimmed_and_sorted(db: Database) -> None:
    one, two = add(db, 1), add(db, 2)
    runs.set_tags(db, one, [" b ", "a", "", "a", "x" * 100])
    runs.set_tags(db, two, ["c"])
    assert runs.tags(db, one) == ["a", "b", "x" * 60]
    runs.set_tags(db, one, ["b", "d"])
    assert runs.tags(db, one) == ["b", "d"]
    assert runs.all_tags(db) == ["b", "c", "d"]
    assert runs.tags_of(db, [one, two, 99]) == {one: ["b", "d"], two: ["c"], 99: []}


def test_what_runs_can_be_filtered_by(db: Database) -> None:
    some(db)
    assert runs.facets(db) == {
        "statuses": ["failed", "queued", "running", "succeeded"], "kinds": ["eval", "train"],
        "environments": ["arithmetic", "guess_number"], "methods": ["rl2f", "rlvr"], "models": ["tiny"],
    }  # fmt: skip


def test_notes_stand_on_a_run_a_dialogue_or_a_turn(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, [dialogue(1)])
    event = "dialogue:train:rl2f/1/0/0"
    notes.add(db, run.id or 0, "on the run", author="ada")
    notes.add(db, run.id or 0, "on a turn \ud800", event=event, turn=1)
    found = notes.of_run(db, run.id or 0)
    assert [(n.text, n.author, n.event_id, n.turn) for n in found] == [
        ("on the run", "ada", None, None), ("on a turn ?", "", event, 1),
    ]  # fmt: skip
    notes.delete(db, found[0].id or 0)
    assert len(notes.of_run(db, run.id or 0)) == 1
    with pytest.raises(NotFoundError, match="no such note"):
        notes.delete(db, found[0].id or 0)


def test_a_note_on_what_is_not_there_or_without_text_is_refused(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, [dialogue(1)])
    with pytest.raises(UnknownDialogueError):
        notes.add(db, run.id or 0, "x", event="nothing")
    with pytest.raises(NotFoundError, match=r"no such turn.*Known: 0, 1"):
        notes.add(db, run.id or 0, "x", event="dialogue:train:rl2f/1/0/0", turn=2)
    for text in ("", "  \n", "x" * 5_000_000):
        with pytest.raises(DataError, match="between 1 and"):
            notes.add(db, run.id or 0, text)
    assert notes.of_run(db, run.id or 0) == []


def test_settings_are_put_and_put_again(db: Database) -> None:
    assert settings.get(db, "slots.cpu", "1") == "1"
    settings.put(db, "slots.cpu", "2")
    settings.put(db, "slots.cpu", "3")
    assert settings.get(db, "slots.cpu", "1") == "3"


def test_metrics_are_steps_evaluations_and_names(db: Database, workspace: Workspace) -> None:
    events = [*small_run(), metric(0, "evaluation:base:hints", gain=0.25), metric(3, "extra", rare=1.0)]
    run = stored_run(db, workspace, events)
    steps = metrics.steps(db, run.id or 0)
    assert [(m.stage, m.step) for m in steps] == [
        ("warmup", 1), ("warmup", 2), ("rl2f", 1), ("rl2f", 2), ("rl2f", 3), ("extra", 3),
    ]  # fmt: skip
    assert [m.values["gain"] for m in metrics.evaluations(db, run.id or 0)] == [0.25]
    assert metrics.names(db, run.id or 0) == ["rare", "reward", "time/rollout", "time/update", "tokens/sampled"]


def test_rewards_of_demonstrations_are_no_result_of_a_run(db: Database, workspace: Workspace) -> None:
    shown = [metric(i, "warmup", reward=1.0, **{"tokens/demonstrated": 9.0, "time/update": 3.0}) for i in (1, 2)]
    warming = stored_run(db, workspace, shown, "1-warming")
    assert warming.reward is None and warming.tokens_per_second
    run = stored_run(db, workspace, [*shown, metric(1, reward=0.25), metric(2, reward=0.5)], "2-learning")
    assert run.reward == 0.5
    assert metrics.sparkline(db, [run.id or 0, warming.id or 0]) == {run.id: [0.25, 0.5], warming.id: []}


def test_a_sparkline_has_both_ends_and_at_most_so_many_points(db: Database, workspace: Workspace) -> None:
    long = stored_run(db, workspace, [metric(i, reward=float(i), **{"a/b": 2.0}) for i in range(1, 101)], "1-long")
    short = stored_run(
        db, workspace, [metric(1, reward=0.5), metric(2, "evaluation:base:hints", reward=9.0)], "2-short"
    )
    empty = stored_run(db, workspace, [], "3-empty")
    found = metrics.sparkline(db, [long.id or 0, short.id or 0, empty.id or 0, 99], points=10)
    line = found[long.id or 0]
    assert (len(line), line[0], line[-1]) == (10, 1.0, 100.0) and line == sorted(line)
    assert (found[short.id or 0], found[empty.id or 0], found[99]) == ([0.5], [], [])
    assert metrics.sparkline(db, [long.id or 0], "a/b", 3) == {long.id: [2.0] * 3}
    assert metrics.sparkline(db, [long.id or 0], 'no"such') == {long.id: []}
    assert metrics.sparkline(db, [long.id or 0], points=1) == {long.id: [100.0]}
