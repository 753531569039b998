"""Lists read page by page in every order, and searches of runs by a setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, get_args

import pytest
from export_builders import leaky_events, write_run
from json_endpoints import JsonEndpoints
from workspace_copies import opened

from app.common.context import Context
from app.endpoints.studio import Studio
from jobs.db.engine import Database
from jobs.db.queries import dialogues
from jobs.db.queries.dialogues import DialogueFilter
from jobs.db.queries.runs import RunSort
from jobs.ingest.ingester import reindex
from jobs.queue.queue import Queue
from jobs.workspace import Workspace

ORDERS = get_args(DialogueFilter.model_fields["order"].annotation)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, empty_database: bytes) -> Iterator[tuple[Workspace, Database]]:
    """Three runs, which the tests only read."""
    workspace = Workspace(tmp_path_factory.mktemp("lists") / "workspace").create()
    with opened(workspace, empty_database) as db:
        for folder in ("1-first", "2-second", "3-third"):
            write_run(workspace.folder(folder), leaky_events())
            reindex(db, workspace, [folder])
        with db._writer.begin() as connection:
            connection.exec_driver_sql("UPDATE dialogue SET best_hint_value = id % 3")
            connection.exec_driver_sql("UPDATE run SET group_key = id, name = folder")
        yield workspace, db


@pytest.fixture
def db(database: tuple[Workspace, Database]) -> Database:
    return database[1]


@pytest.fixture
def studio(database: tuple[Workspace, Database]) -> Studio:
    workspace, db = database
    return Studio(Context(workspace, db, Queue(db, workspace)))


def by_pages(read: Callable[..., Any], limit: int) -> list[Any]:
    """Read a list page by page."""
    rows, cursor = [], None
    while True:
        page = read(cursor=cursor, limit=limit)
        rows += page.rows
        if (cursor := page.after) is None:
            return rows


# -- pages -----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("newest_first", [False, True])
def test_dialogues_of_every_order_are_read_page_by_page(studio: Studio, newest_first: bool) -> None:
    for order in ORDERS:
        filter = {"run": 1, "order": order}
        read = partial(studio.dialogues.list_dialogues, filter, newest_first=newest_first)
        everything = read(limit=100).rows
        assert len(everything) == 8 and by_pages(read, 3) == list(everything), order


@pytest.mark.slow
def test_dialogues_of_every_order_have_neighbors_beyond_the_first_page(studio: Studio, db: Database) -> None:
    for order in ORDERS:
        filter = DialogueFilter(run=1, order=order)
        events = [row.event_id for row in dialogues.matching(db, filter)]
        adjacent = partial(JsonEndpoints(studio).dialogues.adjacent_dialogue, 1, events[4], filter=filter)
        assert [adjacent(target)["event_id"] for target in ("previous", "next")] == [events[3], events[5]], order
        page = dialogues.page_containing(db, filter, events[4], limit=3)
        assert page.first == 4 and [row.event_id for row in page.rows] == events[3:6], order


@pytest.mark.slow
def test_runs_and_groups_of_every_order_are_read_page_by_page(studio: Studio) -> None:
    for list_rows in (studio.runs.list_runs, studio.runs.list_run_groups):
        for sort in get_args(RunSort):
            read = partial(list_rows, sort=sort)
            everything = read().rows
            assert len(everything) == 3 and by_pages(read, 1) == list(everything), sort


# -- searches --------------------------------------------------------------------------------------------------------
def test_a_condition_on_the_exact_name_of_a_setting_compares_no_other_setting(studio: Studio) -> None:
    def found(search: str) -> list[int]:
        return sorted(row.id for row in studio.runs.list_runs(search=search).rows)

    everything = [1, 2, 3]
    assert found("seed>=1") == [] and found("seed=0") == everything, "evaluation.seed is 1234"
    assert found("name=tiny-random") == [] and found("name=leaky") == everything, "model.name"
    assert found("seed!=1234") == everything
    assert found("evaluation.seed>=1") == everything
    assert found("tasks_per_step=2") == everything, "the end of a path"
