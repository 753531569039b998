"""The queue: statuses, adding, slots, order, two tabs, deleting, and a server that dies in the middle of it."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

import pytest
import yaml
from jobs_helpers import (
    counting,
    events,
    log,
    open_queue,
    python,
    statuses,
    training,
    until,
    until_status,
    write_events,
)
from sqlalchemy import select

from jobs.db import settings
from jobs.db.engine import Database
from jobs.db.errors import StoreReadOnlyError, UnknownRunError
from jobs.db.models import LeakLabel, Run
from jobs.db.queries import notes, runs
from jobs.ingest.ingester import ingest
from jobs.queue import run_dirs, trash
from jobs.queue.queue import Queue
from jobs.queue.slots import Slots, free_slots
from jobs.queue.status import transition
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.run.directory import RunDir

pytestmark = pytest.mark.usefixtures("counts")


# -- the state machine -----------------------------------------------------------------------------------------
ALLOWED = """
queued → starting | stopped
starting → running | stopping | failed | interrupted
running → stopping | succeeded | failed | stopped | interrupted
stopping → succeeded | failed | stopped | interrupted
failed → queued
stopped → queued
interrupted → queued
"""
STATUSES = ("queued", "starting", "running", "stopping", "succeeded", "failed", "stopped", "interrupted")


def test_every_change_of_status_that_is_not_listed_is_refused() -> None:
    allowed = {
        (before, after)
        for before, _, afters in (line.partition(" → ") for line in ALLOWED.split("\n") if line)
        for after in afters.split(" | ")
    }
    for before, after in itertools.product(STATUSES, STATUSES):
        run = Run(id=7, name="r", kind="train", folder="f", status=before)
        if (before, after) in allowed:
            transition(run, after)
            assert run.status == after
        else:
            with pytest.raises(RunError, match=f"Run 7 is {before} and cannot become {after}"):
                transition(run, after)
            assert run.status == before


# -- adding ----------------------------------------------------------------------------------------------------
def test_an_added_run_has_a_folder_a_row_and_a_place_in_the_queue(queue: Queue) -> None:
    first = queue.add(counting(name="My run: 1.5"[:6]), parent=None)
    second = queue.add(counting(), name="another one", origin="cli", parent=first.id)
    assert [run.id for run in runs.queued(queue.db)] == [first.id, second.id]
    assert second.folder == f"{second.id}-another-one" and second.origin == "cli" and second.parent == first.id
    folder = queue.workspace.folder(second.folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "meta.json"]
    assert (folder / "config.yaml").read_text() == second.config == queue.clone_yaml(second.id or 0)
    assert second.name == RunDir.open(folder).config().name == "another one"  # type: ignore[attr-defined]


def test_a_training_run_knows_its_stages_and_steps_from_the_start(queue: Queue, tmp_path: Path) -> None:
    run = queue.add(training(tmp_path))
    assert (run.kind, run.environment, run.method, run.total) == ("train", "guess_number", "sft", 3.0)
    assert [(stage.name, stage.steps) for stage in runs.stages(queue.db, run.id or 0)] == [("warm", 3)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (counting(count="many"), "count: .*integer"),
        (counting(nonsense=1), "unknown key"),
        ("a: [", "not valid YAML"),
        ("just words", "mapping"),
        ("kind: unheard-of", "Unknown run kind"),
        (counting(model={"device": "cuda"}), "no CUDA device"),
    ],
)
def test_a_wrong_configuration_leaves_neither_row_nor_folder(queue: Queue, text: str, said: str) -> None:
    settings.put(queue.db, "slots.cuda", "")
    with pytest.raises(ConfigError, match=said):
        queue.add(text)
    assert runs.page(queue.db).total == 0
    assert [path for path in queue.workspace.runs.rglob("*") if path.name != run_dirs.STAGED] == []


def test_where_the_database_takes_no_row_no_folder_stays(queue: Queue) -> None:
    reader = Queue(Database(str(queue.db.url), read_only=True), queue.workspace)
    with pytest.raises(StoreReadOnlyError):
        reader.add(counting())
    assert list((queue.workspace.runs / run_dirs.STAGED).iterdir()) == []
    assert run_dirs.complete_staged(queue.workspace, ()) == []


DYING = """
import os, sys
from jobs_helpers import counting, open_queue
from pathlib import Path
queue = open_queue(Path(sys.argv[1]))
def die(*_):
    os._exit(9)
if sys.argv[2] == "before its name":
    os.rename = die
elif sys.argv[2] == "before its row":
    import sqlalchemy
    sqlalchemy.event.listen(sqlalchemy.Engine, "commit", die)
else:
    unlink = os.unlink
    os.unlink = lambda path, *a, **k: die() if str(path).endswith(".staged.json") else unlink(path, *a, **k)
queue.add(counting())
"""


@pytest.mark.parametrize(
    ("moment", "kept"),
    [
        pytest.param("before its name", False, marks=pytest.mark.slow),
        ("before its row", False),
        ("after its row", True),
    ],
)
@pytest.mark.slow
def test_a_process_that_dies_while_adding_a_run_leaves_no_partial_run(queue: Queue, moment: str, kept: bool) -> None:
    dying = python(DYING, str(queue.workspace.root), moment)
    assert dying.wait(60) == 9, dying.communicate()[1]
    assert runs.page(queue.db).total == int(kept)
    assert list(queue.workspace.runs.rglob("config.yaml"))  # there is something to sweep up
    queue.recover()
    left = sorted(path.parent.name for path in queue.workspace.runs.rglob("config.yaml"))
    assert left == (["1-counting"] if kept else [])
    assert not list(queue.workspace.runs.rglob(run_dirs.STAGED_MARKER))
    run = queue.add(counting())  # the next one is not in its way
    assert run.folder == f"{run.id}-counting"


def test_recovery_keeps_the_staged_directory_of_a_living_process(queue: Queue) -> None:
    from rl2f_core.config.loading import parse_yaml

    staged = run_dirs.create_staged(queue.workspace, parse_yaml(counting()))
    placed = run_dirs.publish(
        queue.workspace, run_dirs.create_staged(queue.workspace, parse_yaml(counting())), "9-counting"
    )
    assert run_dirs.complete_staged(queue.workspace, ()) == []
    assert staged.is_dir() and placed.is_dir()


@pytest.mark.slow
def test_a_run_added_without_start_waits_for_a_resume(queue: Queue) -> None:
    run = queue.add(counting(), start=False)
    assert run.status == "stopped" and queue.dispatch() == []
    queue.resume(run.id or 0)
    assert until_status(queue, run.id, "succeeded").sessions == 1


# -- slots and order -------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_concurrent_runs_are_limited_by_slots(queue: Queue) -> None:
    settings.put(queue.db, "slots.cpu", "2")
    ids = [queue.add(counting(count=5, seconds=0.1)).id for _ in range(3)]
    light = queue.add(counting(kind="light-count"))
    assert light.device == "none"
    assert queue.dispatch() == [*ids[:2], light.id]  # the light one needs no slot
    assert queue.dispatch() == [] and statuses(queue, *ids) == ["starting", "starting", "queued"]
    until_status(queue, ids[2], "succeeded")
    assert statuses(queue, *ids, light.id)[2:] == ["succeeded", "succeeded"]


def test_no_device_is_given_twice_while_a_run_holds_an_unknown_one() -> None:
    """A run that an earlier version started has only the class of its slot in its row."""
    slots = Slots(cpu=1, cuda=("0", "3"), light=2)
    assert free_slots(slots, ["cuda"]).acquire("cuda") is None
    assert free_slots(slots, ["cuda:0"]).acquire("cuda") == "cuda:3"
    assert free_slots(slots, ["elsewhere:cuda"]).acquire("cuda") == "cuda:0"


@pytest.mark.slow
def test_every_cuda_device_takes_one_run(queue: Queue) -> None:
    settings.put(queue.db, "slots.cuda", "0,3")
    made = [queue.add(counting(count=600, seconds=0.1)) for _ in range(3)]
    beside = queue.add(counting(model={"device": "cpu"}))
    assert [run.device for run in (*made, beside)] == ["cuda", "cuda", "cuda", "cpu"]
    assert queue.dispatch() == [made[0].id, made[1].id, beside.id]

    def device(run: Run) -> str:
        found: list[str] = until(lambda: re.findall("devices '(.*?)'", log(queue, run)))
        return found[-1]

    def devices(*there: Run) -> list[str]:
        return sorted(map(device, there))

    assert devices(made[0], made[1]) == ["0", "3"] and devices(beside) == [""]
    queue.abort(made[1].id or 0)
    other = open_queue(queue.workspace.root)  # a server that knows only what is written
    assert other.dispatch() == [made[2].id] and devices(made[2]) == ["3"]
    other.db.close()


def test_waiting_runs_can_be_put_in_another_order(queue: Queue) -> None:
    a, b, c = (queue.add(counting()).id or 0 for _ in range(3))

    def order() -> list[int | None]:
        return [run.id for run in runs.queued(queue.db)]

    queue.move(c, before=a)
    assert order() == [c, a, b]
    queue.move(c, before=None)
    assert order() == [a, b, c]
    queue.move(a, before=c)
    assert order() == [b, a, c]
    queue.stop(a)
    with pytest.raises(RunError, match=f"Run {a} is not queued any more"):
        queue.move(c, before=a)
    with pytest.raises(RunError, match=f"Run {a} cannot be moved: it is stopped"):
        queue.move(a, before=c)
    assert order() == [b, c]
    assert queue.dispatch() == [b]


def test_a_run_waits_for_the_run_whose_stages_it_copies(queue: Queue, tmp_path: Path) -> None:
    warm = queue.add(counting(name="warm"), start=False)
    user = queue.add(training(tmp_path, start_from=warm.folder))
    with pytest.raises(RunError, match=f"needed by run {user.id}"):
        queue.delete(warm.id or 0)
    queue.resume(warm.id or 0)
    assert queue.dispatch() == [warm.id]  # the second one in the queue
    waiting = runs.get(queue.db, user.id or 0)
    assert (waiting.status, waiting.detail) == ("queued", "waits for the run in start_from")
    queue.abort(warm.id or 0)
    until_status(queue, warm.id, "interrupted", "stopped", "failed", "succeeded", dispatch=False)
    assert queue.dispatch() == [user.id]


def test_a_paused_queue_starts_nothing(queue: Queue) -> None:
    run = queue.add(counting())
    queue.pause()
    assert queue.paused and queue.dispatch() == []
    again = open_queue(queue.workspace.root)  # also after a restart
    assert again.paused and again.dispatch() == []
    again.db.close()
    queue.resume_dispatch()
    assert not queue.paused and queue.dispatch() == [run.id]


# -- two tabs --------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_second_of_two_concurrent_requests_is_an_error(queue: Queue) -> None:
    run = queue.add(counting(count=600, seconds=0.1))
    until_status(queue, run.id, "running")
    other = open_queue(queue.workspace.root)
    with pytest.raises(RunError, match="cannot be resumed: it is running"):
        other.resume(run.id or 0)
    with pytest.raises(RunError, match="cannot be deleted: it is running"):
        other.delete(run.id or 0)
    queue.stop(run.id or 0)
    with pytest.raises(RunError, match="cannot be stopped: it is stopping"):
        other.stop(run.id or 0)
    other.abort(run.id or 0)  # who asked for a stop may still abort
    until_status(queue, run.id, "interrupted", "stopped", dispatch=False)
    for act in (other.stop, other.abort):
        with pytest.raises(RunError, match=r"cannot be (stopped|aborted): it is"):
            act(run.id or 0)
    queue.delete(run.id or 0)
    for act in (other.stop, other.abort, other.resume, other.delete, other.clone_yaml):
        with pytest.raises(UnknownRunError, match=f"There is no run {run.id}"):
            act(run.id or 0)
    other.db.close()


def test_a_run_that_a_command_line_works_on_is_not_resumed(queue: Queue) -> None:
    run = queue.add(counting(), start=False)
    with RunDir.open(queue.workspace.folder(run.folder)).lock():
        with pytest.raises(RunError, match="by another process"):
            queue.resume(run.id or 0)
    assert statuses(queue, run.id) == ["stopped"]


# -- deleting --------------------------------------------------------------------------------------------------
def test_a_deleted_run_is_only_in_the_trash(queue: Queue) -> None:
    run = queue.add(counting(), start=False)
    write_events(queue, run)
    assert ingest(queue.db, queue.workspace, run) == 1 and len(events(queue, run.id)) == 1
    queue.delete(run.id or 0)
    assert not queue.workspace.folder(run.folder).exists() and events(queue, run.id) == []
    (name,) = run_dirs.list_trash(queue.workspace)
    assert name.endswith(run.folder) and (queue.workspace.trash / name / "events.jsonl").is_file()
    assert abs(run_dirs.list_trash(queue.workspace)[name] - time.time()) < 60


def test_a_deleted_run_is_restored_with_what_people_entered_and_its_dialogues(queue: Queue) -> None:
    run = queue.add(counting(), start=False)
    write_events(queue, run)
    runs.set_tags(queue.db, run.id, ["good"])
    notes.add(queue.db, run.id, "my best run")
    label = LeakLabel(run_id=run.id, event_id="dialogue:0", turn=0, annotator="Ada", label="leak", time=1.0)
    with queue.db.write() as session:
        session.add(label)
    queue.delete(run.id)
    (deleted,) = trash.deleted_runs(queue.workspace)
    assert (deleted.run, deleted.labels, deleted.notes, deleted.tags) == (run.id, 1, 1, ["good"])
    other = queue.add(counting(), start=False)
    assert queue.restore(run.id).id == run.id != other.id and trash.deleted_runs(queue.workspace) == []
    queue.sync_workers()
    again = runs.get(queue.db, run.id)
    assert (again.name, again.status, again.created) == (run.name, "stopped", run.created)
    assert events(queue, run.id) == ["dialogue:0"] and runs.tags(queue.db, run.id) == ["good"]
    assert [note.text for note in notes.of_run(queue.db, run.id)] == ["my best run"]
    with queue.db.read() as session:
        (stored,) = session.scalars(select(LeakLabel))
    assert (stored.event_id, stored.annotator, stored.label) == ("dialogue:0", "Ada", "leak")
    assert not (queue.workspace.folder(run.folder) / trash.RECORD).exists()


def test_a_run_that_is_not_in_the_trash_is_not_restored(queue: Queue) -> None:
    run = queue.add(counting(), start=False)
    with pytest.raises(RunError, match=f"Run {run.id} is not in the trash"):
        queue.restore(run.id)
    queue.delete(run.id)
    with queue.db.write() as session:
        session.add(Run(**run.model_dump()))
    with pytest.raises(RunError, match="exists already"):
        queue.restore(run.id)
    assert [item.run for item in trash.deleted_runs(queue.workspace)] == [run.id]


def test_a_run_that_another_needs_is_not_deleted(queue: Queue, tmp_path: Path) -> None:
    run = queue.add(counting(), start=False)
    start = str(queue.workspace.folder(run.folder) / "checkpoints" / "rl@2")
    user = queue.add(training(tmp_path, lora={"rank": 2, "init_adapter": start}))
    with pytest.raises(RunError, match=f"needed by run {user.id}"):
        queue.delete(run.id or 0)
    assert queue.workspace.folder(run.folder).is_dir()
    queue.stop(user.id or 0)
    queue.delete(run.id or 0)
    assert not queue.workspace.folder(run.folder).exists()


def test_a_run_in_use_is_not_deleted(queue: Queue) -> None:
    """By a command line that has its lock, or by a queued export of several runs."""
    one, other = (queue.add(counting(), start=False) for _ in range(2))
    folder = queue.workspace.folder(one.folder)
    with RunDir(folder).lock(), pytest.raises(RunError, match="in use by another process"):
        queue.delete(one.id)
    user = queue.add(yaml.safe_dump({"kind": "export", "name": "both", "runs": [one.id, other.id]}))
    with pytest.raises(RunError, match=f"needed by run {user.id}"):
        queue.delete(one.id)
    assert folder.is_dir()


def test_an_error_of_one_run_does_not_keep_the_others_from_their_end(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = (queue.add(counting(), start=False) for _ in range(2))
    with queue.db.write() as session:
        for number in (bad.id, good.id):
            session.get(Run, number).status = "running"

    def is_dead(run: Run) -> bool:
        if run.id == bad.id:
            raise ValueError("unreadable")
        return True

    monkeypatch.setattr(queue.workers, "is_dead", is_dead)
    assert queue.reap() == [good.id] and queue.reap() == []
    assert statuses(queue, bad.id, good.id) == ["running", "interrupted"]
    assert caplog.text.count("could not be followed") == 1  # it is logged once


def test_a_delete_that_was_cut_off_is_finished_by_the_next_server(queue: Queue) -> None:
    gone, lost = (queue.add(counting(), start=False) for _ in range(2))
    run_dirs.move_to_trash(queue.workspace, gone.folder)
    (queue.workspace.folder(lost.folder)).rename(
        queue.workspace.root / "elsewhere"
    )  # not by us: its row says what there was
    queue.recover()
    assert [run.id for run in runs.page(queue.db).rows] == [lost.id]
    queue.delete(lost.id or 0)
    assert runs.page(queue.db).total == 0


def test_events_of_an_ended_run_that_were_never_read_are_read_after_a_start(queue: Queue) -> None:
    run = queue.add(counting(), start=False)
    write_events(queue, run)
    queue.sync_workers()
    assert events(queue, run.id) == []  # nobody looks at ended runs
    queue.recover()
    queue.sync_workers()
    assert events(queue, run.id) == ["dialogue:0"]


def test_an_event_without_a_time_is_skipped_and_does_not_keep_a_run_from_its_end(queue: Queue) -> None:
    run = queue.add(counting(), start=False)
    write_events(queue, run)
    with (queue.workspace.folder(run.folder) / "events.jsonl").open("a") as file:
        file.write('{"id":"a","time":NaN,"type":"log","text":"x"}\n')
    ingest(queue.db, queue.workspace, run)
    assert runs.get(queue.db, run.id).invalid_lines == 1 and events(queue, run.id) == ["dialogue:0"]
