"""Groups of runs by seed or by a value, and columns, orders and conditions by settings and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from event_data import config
from workspace_copies import opened

from jobs.db.engine import Database
from jobs.db.paging import Page
from jobs.db.queries import run_groups, run_values, runs
from jobs.db.queries.run_groups import GroupMean
from jobs.db.queries.runs import RunFilter
from jobs.workspace import Workspace
from rl2f_core.config.loading import dump_yaml


def add(db: Database, name: str, seed: int, turns: int = 3, **metrics: float) -> int:
    """Add a run whose configuration differs in name, seed and turns, with metrics."""
    made = config(name=name, seed=seed, rollout={"max_turns": turns})
    status: Any = {"status": "succeeded", "ended": 100.0 + seed}
    run = runs.add(db, runs.of_config(made, dump_yaml(made), name, **status))
    with db.write() as session:
        run_values.put(session.connection(), run.id, metrics)
    return run.id


def ids(db: Database, **filter: Any) -> list[int]:
    return [run.id for run in runs.page(db, RunFilter(**filter)).rows]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, empty_database: bytes) -> tuple[bytes, list[int]]:
    """A database with the runs of `five`, and their numbers."""
    workspace = Workspace(tmp_path_factory.mktemp("prepared") / "workspace").create()
    with opened(workspace, empty_database) as db:
        made = add_five(db)
    return workspace.database.read_bytes(), made


@pytest.fixture
def db(request: pytest.FixtureRequest, workspace: Workspace, empty_database: bytes) -> Iterator[Database]:
    """A copy of the prepared database for a test that uses `five`, an empty one for any other."""
    prepared = "prepared" in request.fixturenames
    with opened(workspace, request.getfixturevalue("prepared")[0] if prepared else empty_database) as database:
        yield database


@pytest.fixture
def five(db: Database, prepared: tuple[bytes, list[int]]) -> list[int]:
    """The numbers of three seeds of a configuration, and two of another."""
    return list(prepared[1])


def add_five(db: Database) -> list[int]:
    """Add the runs of `five`."""
    made = [add(db, f"short {seed}", seed, hint_effect=effect) for seed, effect in enumerate((0.1, 0.2, 0.6))]
    return made + [add(db, f"long {seed}", seed, 5, hint_effect=0.5) for seed in (0, 1)]


def test_runs_that_differ_only_in_seed_and_name_are_one_group_with_mean_and_spread(
    db: Database, five: list[int]
) -> None:
    first, second = run_groups.page(db, columns=["hint_effect", "rollout.max_turns", "environment.type"]).rows
    assert (first.name, first.runs, first.seeds) == ("long 1", five[:2:-1], [0, 1])
    assert second.runs == five[2::-1] and second.statuses == {"succeeded": 3} and second.ended == 102.0
    effect = second.values["hint_effect"]
    assert isinstance(effect, GroupMean) and effect.count == 3
    assert (effect.mean, effect.sd) == (pytest.approx(0.3), pytest.approx(0.07**0.5))
    assert second.values["rollout.max_turns"] == GroupMean(mean=3.0, sd=0.0, count=3)
    assert first.values["environment.type"] == "guess_number"
    assert ids(db, group=second.key, sort="created") == five[:3]


def test_groups_are_made_by_any_setting_and_runs_without_it_are_a_group_too(db: Database, five: list[int]) -> None:
    alone = runs.add(db, runs.Run(name="no config", kind="train", folder="x")).id
    found = {group.key: group.runs for group in run_groups.page(db, by="rollout.max_turns").rows}
    assert found == {
        "rollout.max_turns=3": five[2::-1],
        "rollout.max_turns=5": five[:2:-1],
        "rollout.max_turns=": [alone],
    }
    assert ids(db, group="rollout.max_turns=5") == five[:2:-1]
    assert run_groups.page(db).rows[0].runs == [alone]


@pytest.mark.parametrize("by", [None, "seed", "rollout.max_turns"])
def test_pages_hold_each_row_once_forwards_and_backwards_whatever_the_order(db: Database, by: str | None) -> None:
    for number in range(7):
        values = {"hint_effect": (number % 3) / 3} if number % 4 else {}
        add(db, f"r{number}", 0, 2 + number // 2 if by != "seed" else 2 + number, **values)

    def listed(cursor: str | None, limit: int = 2) -> tuple[Page[Any], list[object]]:
        if by is None:
            page: Page[Any] = runs.page(db, filter, cursor, limit)
            return page, [run.id for run in page.rows]
        page = run_groups.page(db, filter, by, cursor=cursor, limit=limit)
        return page, [group.key for group in page.rows]

    sorts: list[dict[str, Any]] = [{"sort_by": "hint_effect"}, {"sort_by": "-hint_effect"}, {"sort": "name"}, {}]
    for sort in sorts:
        filter = RunFilter(**sort)
        whole = listed(None, 50)[1]
        page, rows = listed(None)
        pages = [rows]
        while page.after:
            page, rows = listed(page.after)
            pages.append(rows)
        assert [row for rows in pages for row in rows] == whole and len(set(whole)) == len(whole) == page.total
        for rows in pages[-2::-1]:
            page, before = listed(page.before)
            assert before == rows


@pytest.mark.parametrize(
    ("search", "wanted"),
    [
        ("hint_effect>0.15", [2, 3, 4, 5]),
        ("hint_effect>0.15 max_turns=3", [2, 3]),
        ("rollout.max_turns>=5", [4, 5]),
        ("max_turns!=3 short", []),
        ("tag=good", [1]),
        ("tag!=good long", [4, 5]),
        ("environment=guess_number seed=1", [2, 5]),
        ("environment.type=GUESS_number", [1, 2, 3, 4, 5]),
        ("loss=", [1, 2, 3, 4, 5]),
        ("hint_effect!= name=short", []),
    ],
)
def test_a_word_of_a_search_compares_a_metric_a_setting_or_a_tag(
    search: str, wanted: list[int], db: Database, five: list[int]
) -> None:
    runs.set_tags(db, five[0], ["good"])
    assert [five.index(run) + 1 for run in ids(db, search=search, sort="created")] == wanted


def test_the_settings_that_differ_between_runs_are_named(db: Database, five: list[int]) -> None:
    assert run_values.differing(db, five[:3]) == []
    assert run_values.differing(db, five) == ["rollout.max_turns"]


def test_the_hint_effect_belongs_to_the_newest_evaluated_checkpoint() -> None:
    """Of problems 0 … 3, hints solve the first two of checkpoint rl@9, contentless feedback the first."""
    by_task = {c: {f"t{i}": {1: 1} if i < n else {None: 1} for i in range(4)} for c, n in (("hints", 2), ("blank", 1))}
    outcomes = {("base", "hints"): by_task["blank"], ("base", "contentless"): by_task["blank"],
                ("rl@9", "hints"): by_task["hints"], ("rl@9", "contentless"): by_task["blank"]}  # fmt: skip
    values = run_values.evaluation_values(
        [
            ("base:hints", {"cum_acc/1": 0.1, "cum_acc/10": 0.3}),
            ("base:contentless", {"cum_acc/10": 0.25}),
            ("rl@9:hints", {"cum_acc/1": 0.2, "cum_acc/10": 0.8, "stop/solved": 1.0}),
            ("rl@9:contentless", {"cum_acc/10": 0.5}),
        ],
        outcomes,
    )
    assert values == {"evaluation/cum_acc/1": 0.2, "evaluation/cum_acc/10": 0.8, "solve_rate": 0.8,
                      "hint_effect": pytest.approx(0.25)}  # fmt: skip


def test_jobs_of_runs_are_hidden_on_request(db: Database, five: list[int]) -> None:
    job = runs.add(db, runs.Run(name="files", kind="export", folder="e", parent=five[0])).id
    assert job in ids(db) and job not in ids(db, jobs=False)
