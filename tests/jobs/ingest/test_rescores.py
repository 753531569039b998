"""Findings of rescoring runs in the database: the same in whatever order runs are ingested, rebuilt or deleted."""

from __future__ import annotations

import shutil

import pytest
from event_data import read_all
from rescore_data import pair, run_folder
from sqlmodel import col, select

from jobs.db.dialogue_models import RescoredHint, RescoreSummary
from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import dialogues, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.ingest import ingester
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute

TOLD = "dialogue:train:rl2f/1/0/0"


@pytest.fixture
def scanned(workspace: Workspace) -> Workspace:
    """A workspace with two folders and no rows: a run, and its rescoring."""
    run_folder(workspace.folder("b-target"), [*pair(1), *pair(2)])
    config = parse_config({"kind": "rescore", "run": "b-target", "detectors": ["exact"], "workers": 1})
    run_dir = RunDir.create(workspace.folder("a-again"), config)
    assert execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
    return workspace


def held(db: Database) -> tuple[list[tuple[str, str | None, int | None]], list[tuple[int, int, int, int]]]:
    """Findings of later runs as (source, tier, start), and scans as (run, target, checked, flagged)."""
    with db.read() as session:
        scans = session.execute(select(RescoreSummary, Run.id).join(Run, col(Run.folder) == RescoreSummary.target))
        summaries = [(s.run_id, target or 0, s.checked, s.flagged) for s, target in scans]
    views = [dialogues.get(db, row.run_id, row.event_id) for row in dialogues.page(db, DialogueFilter()).rows]
    found = [reports for view in views for reports in view.findings.values()]
    findings = [(s, r.detector, r.span and r.span[0]) for reports in found for s, r in reports.items() if s != "run"]
    return findings, summaries


def number(db: Database, folder: str) -> int:
    run = runs.find(db, folder=folder)
    assert run is not None and run.id is not None
    return run.id


@pytest.mark.parametrize("order", [("a-again", "b-target"), ("b-target", "a-again")])
def test_either_may_be_ingested_first(order: tuple[str, str], db: Database, scanned: Workspace) -> None:
    for folder in order:
        assert ingester.import_run(db, scanned, folder) is not None
    again, target = number(db, "a-again"), number(db, "b-target")
    assert held(db) == ([(str(again), "exact", 14)] * 2, [(again, target, 4, 2)])
    view = dialogues.get(db, target, TOLD)
    assert [(s, f.detector, f.leak_type) for s, f in view.findings[0].items()] == [(str(again), "exact", "exact")]
    assert view.turns[0].hint and not view.turns[0].hint.read_leak  # what the run itself found stays
    assert view.row.leak_state == 1


def test_a_rebuild_of_either_or_of_all_gives_the_same(db: Database, scanned: Workspace) -> None:
    ingester.reindex(db, scanned)
    before = held(db)
    assert len(before[0]) == 2
    for folders in (("b-target",), ("a-again",), ()):
        ingester.reindex(db, scanned, folders)
        assert held(db) == before
    row = runs.get(db, number(db, "a-again"))
    assert read_all(db, scanned, row) == 0 and row.invalid_lines == 0


def test_a_deleted_run_takes_its_findings_and_a_deleted_target_its_scan(db: Database, scanned: Workspace) -> None:
    ingester.reindex(db, scanned)
    target = number(db, "b-target")
    runs.remove(db, target)
    assert held(db) == ([], [])
    ingester.reindex(db, scanned)  # its folder is still there: what was said of it waited
    assert len(held(db)[0]) == 2
    runs.remove(db, number(db, "a-again"))
    assert held(db) == ([], [])
    with db.read() as session:
        assert session.execute(select(RescoreSummary)).first() is None
        assert session.execute(select(RescoredHint)).first() is None


def test_findings_of_a_rescoring_that_never_ended_go_with_it(db: Database, scanned: Workspace) -> None:
    file = scanned.folder("a-again") / "events.jsonl"
    file.write_bytes(b"".join(line for line in file.read_bytes().splitlines(True) if b'"leak_rescore"' not in line))
    ingester.reindex(db, scanned)
    assert [len(found) for found in held(db)] == [2, 0]
    runs.remove(db, number(db, "a-again"))
    assert held(db) == ([], [])


def test_a_rescoring_of_a_run_that_is_not_here_is_kept_and_shows_nothing(db: Database, scanned: Workspace) -> None:
    shutil.rmtree(scanned.folder("b-target"))
    ingester.reindex(db, scanned)
    assert held(db) == ([], [])


def test_a_rescoring_without_a_model_of_its_own_can_wait_in_the_queue_and_be_exported_from(
    db: Database, scanned: Workspace
) -> None:
    from jobs.export.datasets.sources import WorkspaceSource

    row = Queue(db, scanned).add("kind: rescore\nrun: b-target\npenalty: 2\n")
    assert (row.kind, row.device, row.model, row.status) == ("rescore", "cpu", "", "queued")
    assert WorkspaceSource(db, scanned, row).about()["model"] is None
