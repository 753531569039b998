"""What hints were worth in the database: whatever run is read first, in the list, and beside the hint."""

from __future__ import annotations

import pytest
from event_data import append, config, dialogue, folder, read_all, status, stored_run, turn

from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import dialogues, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.ingest.ingester import ingest, reindex
from jobs.workspace import Workspace
from rl2f_core.run.events import Event, HintValueEvent

EVENT = "dialogue:train:rl2f/1/0/{}"


def value(index: int, worth: float, turn: int = 0, checkpoint: str = "rl2f@1", n: int = 8, time: float = 5.0) -> Event:
    """A measurement of a hint of dialogue `index` of the run in the folder `1-small`."""
    return HintValueEvent(
        id=f"hint_value:{checkpoint}:{index}:{turn}:{n}", time=time, source="1-small", dialogue=EVENT.format(index),
        turn=turn, checkpoint=checkpoint, value=worth, low=worth - 0.1, high=worth + 0.1, n=n, turns=1,
        arms={"original": 0.5 + worth, "contentless": 0.5},
    )  # fmt: skip


def played(count: int) -> list[Event]:
    return [dialogue(1, 0, index, [turn(0), turn(1), turn(2, right=True)]) for index in range(count)]


def measuring(db: Database, workspace: Workspace, *events: Event, name: str = "2-values") -> Run:
    made = folder(workspace, name, [status("running"), *events])
    run = runs.add(db, runs.of_config(config(), (made / "config.yaml").read_text(), name, status="succeeded"))
    read_all(db, workspace, run)
    return run


def worths(db: Database, run: Run) -> list[float | None]:
    return [row.best_hint_value for row in dialogues.page(db, DialogueFilter(run=run.id)).rows]


@pytest.mark.parametrize("first", ["dialogues", "values"])
def test_whichever_run_is_read_first_a_dialogue_shows_its_best_hint(
    first: str, db: Database, workspace: Workspace
) -> None:
    events = [value(0, 0.25), value(0, 0.5, turn=1), value(2, -0.125)]
    if first == "dialogues":
        run = stored_run(db, workspace, played(3))
        before = runs.get(db, run.id or 0).version
        measuring(db, workspace, *events)
        assert runs.get(db, run.id or 0).version > before, "open pages see that something changed"
    else:
        measuring(db, workspace, *events)
        run = stored_run(db, workspace, played(3))
    assert worths(db, run) == [0.5, None, -0.125]
    view = dialogues.get(db, run.id or 0, EVENT.format(0))
    assert [[w.value for w in view.hint_values[turn.index]] for turn in view.turns] == [[0.25], [0.5], []]
    assert view.hint_values[0][0].arms == {"original": 0.75, "contentless": 0.5}
    for name in ("1-small", "2-values"):
        reindex(db, workspace, [name])
        assert worths(db, run) == [0.5, None, -0.125]
    assert dialogues.facets(db, run.id)["measured"] is True


def test_of_several_measurements_that_of_the_same_weights_counts_then_the_largest(
    db: Database, workspace: Workspace
) -> None:
    run = stored_run(db, workspace, played(2))
    own = [value(0, 0.1, n=8), value(1, 0.3, checkpoint="base", n=4)]
    fork = measuring(db, workspace, *own)
    measuring(
        db, workspace, value(0, 0.9, checkpoint="base", n=64), value(1, 0.2, checkpoint="base", n=16), name="3-more"
    )
    assert worths(db, run) == [0.1, 0.2]
    view = dialogues.get(db, run.id or 0, EVENT.format(0))
    assert [w.value for w in view.hint_values[0]] == [0.1, 0.9], "the one that counts comes first"
    runs.remove(db, fork.id or 0)
    assert worths(db, run) == [0.9, 0.2]


def test_events_that_come_twice_count_once_and_a_broken_one_is_left_out(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, played(1))
    fork = measuring(db, workspace, value(0, 0.25))
    bad = value(0, 0.5, turn=1).model_dump_json().replace('"n":8', f'"n":{2**40}')
    append(workspace.folder("2-values") / "events.jsonl", value(0, 0.25), bad.encode() + b"\n")
    assert ingest(db, workspace, fork) == 2
    assert worths(db, run) == [0.25] and runs.get(db, fork.id or 0).invalid_lines == 1


@pytest.mark.parametrize("order", ["-hint_value", "hint_value"])
def test_the_list_is_sorted_by_worth_in_pages_that_know_where_they_are(
    order: str, db: Database, workspace: Workspace
) -> None:
    run = stored_run(db, workspace, played(9))
    values = [0.1, 0.5, 0.3, 0.5, -0.2, 0.0, 0.4]
    measuring(db, workspace, *(value(i, v) for i, v in enumerate(values)))
    wanted = sorted(range(7), key=lambda i: (values[i], i) if order == "hint_value" else (-values[i], i))
    filter = DialogueFilter(run=run.id, order=order)
    page = dialogues.page(db, filter, limit=3)
    seen, back = [page], []
    while seen[-1].after:
        seen.append(dialogues.page(db, filter, seen[-1].after, limit=3))
    assert [row.event_id for p in seen for row in p.rows] == [EVENT.format(i) for i in wanted]
    assert [(p.total, p.first) for p in seen] == [(7, 1), (7, 4), (7, 7)]
    back = dialogues.page(db, filter, seen[1].before, limit=3)
    assert [row.event_id for row in back.rows] == [row.event_id for row in page.rows]
    for place, index in enumerate(wanted):
        held = dialogues.page_containing(db, filter, EVENT.format(index), limit=3)
        assert [row.event_id for row in held.rows] == [EVENT.format(i) for i in wanted[place // 3 * 3 :][:3]]
    last = dialogues.page(db, filter, limit=1, newest_first=True).rows[0]
    assert last.best_hint_value == values[wanted[-1]]
