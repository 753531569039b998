"""Exports from the workspace's database: people's labels, the run kind `export`, the queue and its worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_builders import ENVIRONMENT, event, leaky_events, rows_of, turn, write_run, wrong

from jobs.db.engine import Database
from jobs.db.queries import runs
from jobs.export import catalog
from jobs.export.datasets.dataset_types import FORMATS
from jobs.export.datasets.exporter import export
from jobs.export.datasets.resolve_sources import open_workspace, workspace_sources
from jobs.export.datasets.settings import ExportFilter, ExportSettings
from jobs.export.datasets.sources import FolderSource, WorkspaceSource
from jobs.ingest.ingester import reindex
from jobs.labels import label_queries
from jobs.labels.label_queries import LabelAnswer
from jobs.queue.queue import Queue
from jobs.run_kinds.export import ExportRun
from jobs.workspace import Workspace
from rl2f_core.errors import RL2FError, RunError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute

ROOT = Path(__file__).resolve().parents[3]


def add(db: Database, workspace: Workspace, name: str = "leaky", events: Any = None) -> int:
    """A recorded run in the workspace; its number."""
    write_run(workspace.folder(name), leaky_events() if events is None else events)
    (number,) = reindex(db, workspace, [name])
    return number


def source(db: Database, workspace: Workspace, number: int) -> WorkspaceSource:
    return WorkspaceSource(db, workspace, runs.get(db, number))


def test_a_label_counts_for_all_equal_hints_after_the_same_conversation(
    db: Database, workspace: Workspace, tmp_path: Path
) -> None:
    """The detector flagged none. The same words after another attempt are another hint."""
    task = ENVIRONMENT.task("train", 0)
    attempts = {"a": wrong(task, 0), "b": wrong(task, 0), "c": wrong(task, 1)}
    events = [event(task, [turn(task, 0, attempt, "Think of A.")], name=name) for name, attempt in attempts.items()]
    number = add(db, workspace, events=events)
    label_queries.put(db, number, events[0].id, 0, "ann", LabelAnswer(label="leak"))
    settings = ExportSettings(formats=["unpaired_preference"], files=["jsonl"])
    manifest = export([source(db, workspace, number)], settings, tmp_path / "out")
    rows = rows_of(tmp_path / "out" / "unpaired_preference.jsonl")
    found = {row["dialogue"].rpartition(":")[2]: (row["label"], row["source"]) for row in rows}
    assert found == {"a": (False, "human"), "b": (False, "human"), "c": (True, "detector")}
    assert manifest is not None and manifest["labels"]["human"] == {"leak": 2}


def test_an_annotator_has_one_vote_for_equal_hints(db: Database, workspace: Workspace, tmp_path: Path) -> None:
    task = ENVIRONMENT.task("train", 0)
    events = [event(task, [turn(task, 0, wrong(task, 0), "Think of A.")], name=name) for name in "ab"]
    number = add(db, workspace, events=events)
    for position, who, label in ((0, "ann", "leak"), (1, "ann", "leak"), (0, "bob", "no_leak")):
        label_queries.put(db, number, events[position].id, 0, who, LabelAnswer(label=label))
    with pytest.raises(RL2FError, match="None of the 2 hints"):
        export([source(db, workspace, number)], ExportSettings(formats=["unpaired_preference"]), tmp_path / "out")


def test_the_newest_label_of_an_annotator_counts_for_equal_hints(
    db: Database, workspace: Workspace, tmp_path: Path
) -> None:
    """The dialogue that comes first was labeled last."""
    task = ENVIRONMENT.task("train", 0)
    events = [event(task, [turn(task, 0, wrong(task, 0), "Think of A.")], name=name) for name in "ab"]
    number = add(db, workspace, events=events)
    for position, label in ((1, "no_leak"), (0, "leak")):
        label_queries.put(db, number, events[position].id, 0, "ann", LabelAnswer(label=label))
    settings = ExportSettings(formats=["unpaired_preference"])
    manifest = export([source(db, workspace, number)], settings, tmp_path / "out")
    assert manifest is not None and manifest["labels"]["human"] == {"leak": 2}


def test_database_and_folder_give_the_same_rows(db: Database, workspace: Workspace, tmp_path: Path) -> None:
    task = ENVIRONMENT.task("test", 0)
    evaluated = event(
        task,
        [
            turn(task, 0, wrong(task), "It […].", True, feedback="It is A."),
            turn(task, 1, "no answer", "again", None),
            turn(task, 2, wrong(task), None),
        ],
        name="e",
        phase="evaluation",
        step=0,
        checkpoint="rl@2",
        condition="hints",
    )
    number = add(db, workspace, events=[*leaky_events(), evaluated])
    for name, made in (("a", source(db, workspace, number)), ("b", FolderSource(workspace.folder("leaky")))):
        assert export([made], ExportSettings(labels="detector", formats=tuple(FORMATS)), tmp_path / name) is not None
    for name in FORMATS:
        one, other = rows_of(tmp_path / "a" / f"{name}.jsonl"), rows_of(tmp_path / "b" / f"{name}.jsonl")
        for row in (*one, *other):
            for key in ("run", "chosen_run", "rejected_run"):
                row.pop(key, None)
        assert one == other and one


def test_the_filter_means_the_same_for_database_and_folder(db: Database, workspace: Workspace) -> None:
    task = ENVIRONMENT.task("test", 0)
    turns = [turn(task, 0, wrong(task), "hint"), turn(task, 1, wrong(task), None)]
    events = [
        event(task, turns, name="t", step=3),
        event(task, turns, name="p", step=0, phase="preflight"),
        event(task, turns, name="e", step=0, phase="evaluation", checkpoint="rl@2", condition="hints"),
        event(task, turns, name="s", step=0, phase="evaluation", checkpoint="rl@2", condition="shuffled"),
    ]
    number = add(db, workspace, events=events)
    database, folder = source(db, workspace, number), FolderSource(workspace.folder("leaky"))
    for wanted in (
        {},
        {"phase": "train"},
        {"step_from": 1},
        {"step_to": 0},
        {"stage": "rl"},
        {"stage": "x"},
        {"checkpoint": "rl@2", "condition": "shuffled"},
        {"include_controls": True},
    ):
        filter = ExportFilter(**wanted)
        found = [[r.event.id for batch in made.batches(filter, 2) for r in batch] for made in (database, folder)]
        assert found[0] == found[1] and len(found[0]) == database.count(filter) == folder.count(filter), wanted


def test_human_labels_are_exported_with_their_source_and_filter(
    db: Database, workspace: Workspace, tmp_path: Path
) -> None:
    number = add(db, workspace)
    first, second = (e.id for e in leaky_events()[:2])
    label_queries.put(db, number, first, 0, "ann", LabelAnswer(label="leak", start=0, end=4, note="a word"))
    label_queries.put(db, number, first, 1, "ann", LabelAnswer(label="leak"))
    label_queries.put(db, number, first, 1, "bob", LabelAnswer(label="no_leak"))
    label_queries.put(db, number, second, 0, "bob", LabelAnswer(label="unsure"))
    manifest = export([source(db, workspace, number)], ExportSettings(), tmp_path / "all")
    assert manifest is not None
    assert manifest["labels"] == {
        "hints": 16,
        "human": {"leak": 1},
        "detector": {"leak": 3, "no_leak": 11},
        "planted": {},
        "without": {"disputed": 1},
    }
    rows = {(r["dialogue"], r["turn"]): r for r in rows_of(tmp_path / "all" / "unpaired_preference.jsonl")}
    assert (rows[first, 0]["label"], rows[first, 0]["source"]) == (False, "human")
    assert (first, 1) not in rows and rows[second, 0]["source"] == "detector"
    message = next(r for r in rows_of(tmp_path / "all" / "messages.jsonl") if r["dialogue"] == first)
    assert message["label_sources"] == ["human", "disputed", ""]
    assert json.loads(message["human_labels"][0]) == [
        {"annotator": "ann", "label": "leak", "start": 0, "end": 4, "note": "a word", "blind": True}
    ]
    settings = ExportSettings(labels="human", annotator="bob", filter={"labeled_only": True}, formats=["messages"])
    narrowed = export([source(db, workspace, number)], settings, tmp_path / "bob")
    assert narrowed is not None and narrowed["dialogues"] == 2
    assert narrowed["labels"]["human"] == {"no_leak": 1} and narrowed["labels"]["without"]["unsure"] == 1


def test_sources_are_named_by_number_and_read_without_writing(db: Database, workspace: Workspace) -> None:
    number = add(db, workspace)
    with open_workspace(workspace.root) as (found, database):
        assert found.root == workspace.root and database.read_only
        assert len(workspace_sources(database, found, [number, number])) == 1
        with pytest.raises(RunError, match="There is no run 99"):
            workspace_sources(database, found, [99])


def test_a_folder_without_a_workspace_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"There is no workspace.*--workspace"):
        with open_workspace(tmp_path):
            pass


# -- as a job --------------------------------------------------------------------------------------------------------
def config(*numbers: int, **more: Any) -> str:
    return yaml.safe_dump({"kind": "export", "name": "my export", "runs": list(numbers), **more})


def finish(queue: Queue, db: Database, number: int, seconds: float = 300) -> Any:
    """Dispatch and reap until the run has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        queue.dispatch()
        queue.reap()
        row = runs.get(db, number)
        if row.status not in ("queued", "starting", "running", "stopping"):
            return row
        time.sleep(0.2)
    raise AssertionError(f"{row.status} {row.detail}")


@pytest.mark.slow
def test_the_queue_runs_an_export_in_a_worker_without_a_device(db: Database, workspace: Workspace) -> None:
    number = add(db, workspace)
    queue = Queue(db, workspace)
    row = queue.add(config(number), parent=number)
    assert (row.kind, row.device, row.parent) == ("export", "none", number)
    ended = finish(queue, db, row.id or 0)
    assert ended.status == "succeeded", ended.detail
    (found,) = catalog.listed(workspace)
    assert found["folder"] == row.folder and found["name"] == "my export"
    assert found["formats"]["messages"]["rows"] == 8
    for name, size in found["files"].items():
        assert catalog.file(workspace, row.folder, name).stat().st_size == size
    assert any("Exported 8 dialogues" in log.text for log in runs.logs(db, row.id or 0))


@pytest.mark.slow
def test_an_export_that_finds_nothing_fails_with_the_fix_and_can_be_tried_again(
    db: Database, workspace: Workspace
) -> None:
    number = add(db, workspace)
    queue = Queue(db, workspace)
    row = queue.add(config(number, labels="human", formats=["unpaired_preference"]))
    failed = finish(queue, db, row.id or 0)
    assert failed.status == "failed" and "Label hints on the page Labels" in failed.detail
    assert list(workspace.exports.iterdir()) == []
    label_queries.put(db, number, leaky_events()[0].id, 0, "ann", LabelAnswer(label="leak"))
    queue.resume(row.id or 0)
    again = finish(queue, db, row.id or 0)
    assert again.status == "succeeded", again.detail
    assert catalog.listed(workspace)[0]["formats"]["unpaired_preference"]["rows"] == 1


def test_an_export_that_was_stopped_starts_again_and_one_that_ended_before_its_last_word_is_made_anew(
    db: Database, workspace: Workspace
) -> None:
    from rl2f_core.config.loading import parse_config

    number = add(db, workspace)
    Queue(db, workspace)  # knows the kinds
    run_dir = RunDir.create(workspace.folder("7-export"), parse_config(yaml.safe_load(config(number))))
    sink = JsonlSink(run_dir.events_path)
    assert execute(run_dir.config(), run_dir, sink, lambda: True).status == "stopped"
    assert list(workspace.exports.iterdir()) == []
    target = workspace.exports / "7-export"
    export([source(db, workspace, number)], ExportSettings(formats=["messages"]), target)  # killed after the rename
    assert execute(run_dir.config(), run_dir, sink, lambda: False).status == "succeeded"
    assert (target / "preference.jsonl").is_file()
    assert [p.name for p in workspace.exports.iterdir()] == ["7-export"]


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_no_export_and_resumes(db: Database, workspace: Workspace) -> None:
    number = add(db, workspace, events=leaky_events(tasks=400, siblings=2))
    queue = Queue(db, workspace)
    row = queue.add(config(number))
    queue.dispatch()
    end = time.monotonic() + 120
    while not list(workspace.exports.glob(".*.tmp")) and time.monotonic() < end:
        time.sleep(0.01)
    pid = runs.get(db, row.id or 0).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    killed = finish(queue, db, row.id or 0)
    assert killed.status == "interrupted", killed.detail
    assert catalog.listed(workspace) == []
    queue.resume(row.id or 0)
    assert finish(queue, db, row.id or 0).status == "succeeded"
    assert [p.name for p in workspace.exports.iterdir()] == [row.folder]


@pytest.mark.slow
def test_the_record_of_an_export_comes_back_when_the_database_is_made_anew(db: Database, workspace: Workspace) -> None:
    number = add(db, workspace)
    config_of = RunDir.create(workspace.folder("5-export"), ExportRun(runs=(number,)))  # type: ignore[arg-type]
    execute(config_of.config(), config_of, JsonlSink(config_of.events_path), lambda: False)
    code = (
        "import sys; from jobs.db.engine import Database; from jobs.ingest.ingester import reindex;"
        "from jobs.db.queries import runs;"
        "from jobs.workspace import Workspace; workspace = Workspace(sys.argv[1]);"
        "db = Database('sqlite:///' + sys.argv[2]);"
        "db.migrate(); print([(runs.get(db, n).kind, runs.get(db, n).status) for n in reindex(db, workspace)])"
    )
    command = [sys.executable, "-c", code, workspace.root, workspace.root / "new.sqlite"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[('export', 'succeeded'), ('train', 'succeeded')]", done.stderr


# -- what is handed out ----------------------------------------------------------------------------------------------
def test_only_files_of_finished_exports_are_handed_out(db: Database, workspace: Workspace) -> None:
    number = add(db, workspace)
    export([source(db, workspace, number)], ExportSettings(formats=["messages"]), workspace.exports / "1-good")
    for name in ("messages.jsonl", "messages.parquet", "manifest.json", "README.md"):
        assert catalog.file(workspace, "1-good", name).is_file()
    (workspace.exports / "1-good" / "notes.txt").write_text("not in the manifest")
    (workspace.exports / "1-good" / "preference.jsonl").symlink_to(workspace.database)
    (workspace.exports / "half").mkdir()
    (workspace.exports / ".hidden.1.tmp").mkdir()
    (workspace.exports / "link").symlink_to(workspace.exports / "1-good")
    (workspace.exports / "broken").mkdir()
    (workspace.exports / "broken" / "manifest.json").write_text('{"formats": {"x": {"files": {"../../secret": {}}}}')
    assert [each["folder"] for each in catalog.listed(workspace)] == ["1-good"]
    for folder, name in [
        ("1-good", "notes.txt"),
        ("1-good", "preference.jsonl"),
        ("1-good", "../../rl2f.sqlite"),
        ("1-good", "messages.csv"),
        ("..", "rl2f.sqlite"),
        ("../runs/leaky", "config.yaml"),
        ("half", "manifest.json"),
        ("link", "messages.jsonl"),
        (".hidden.1.tmp", "manifest.json"),
        ("broken", "../../secret"),
        ("", "manifest.json"),
        ("1-good\0", "manifest.json"),
    ]:
        with pytest.raises(RL2FError, match="no such"):
            catalog.file(workspace, folder, name)


def test_a_finished_export_can_be_deleted_and_nothing_else(db: Database, workspace: Workspace) -> None:
    number = add(db, workspace)
    export([source(db, workspace, number)], ExportSettings(), workspace.exports / "1-good")
    for folder in ("..", "../runs", "", "nothing", "/tmp"):
        with pytest.raises(RL2FError, match="no such export"):
            catalog.remove(workspace, folder)
    catalog.remove(workspace, "1-good")
    assert list(workspace.exports.iterdir()) == [] and workspace.folder("leaky").is_dir()
