"""Studies in a workspace: their parts are tagged runs that are queued, stopped and resumed together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from jobs_helpers import statuses
from sqlmodel import select

from jobs import studies
from jobs.db.models import Run, RunStatus, Tag
from jobs.db.queries import run_queue as store
from jobs.db.queries import runs
from jobs.db.queries.runs import RunFilter
from jobs.queue.queue import Queue
from jobs.queue.status import transition
from rl2f_core.common.paths import CONFIGS
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.evaluation.study.registration import changes, read_versions
from rl2f_core.evaluation.study.spec import load_study, parse_study

TEXT = (CONFIGS / "studies" / "tiny.yaml").read_text("utf-8")


def test_a_study_is_queued_once_with_its_warm_ups_first(queue: Queue) -> None:
    study = load_study("tiny")
    parts = studies.launch(queue, study)
    assert list(parts) == [part.name for part in study.parts()]
    assert [run.id for run in runs.queued(queue.db)] == [run.id for run in parts.values()]
    warm, first = parts["warm-up-1-seed-1"], parts["rl2f-seed-1"]
    assert f"\nstart_from: {warm.folder}\n" in first.config and warm.folder == f"{warm.id}-tiny-warm-up-1-seed-1"
    assert runs.page(queue.db, RunFilter(tag="study:tiny")).total == 6
    (version,) = read_versions(studies.folder_of(queue.workspace, "tiny"))
    assert version.finished_parts == 0 and version.text == TEXT
    assert [run.id for run in studies.launch(queue, study).values()] == [run.id for run in parts.values()]
    assert len(runs.queued(queue.db)) == 6 and queue.dispatch() == [parts["warm-up-1-seed-0"].id]


@pytest.mark.slow
def test_a_study_in_a_workspace_with_more_than_500_of_its_runs_is_queued_once(queue: Queue) -> None:
    with queue.db.write() as session:
        for i in range(500):
            run = Run(name=f"tiny-{i}", folder=f"run-{i}", kind="train", config="", seed=0, status="succeeded")
            session.add(run)
        session.flush()
        session.add_all(Tag(run_id=number, tag="study:tiny") for number in session.exec(select(Run.id)))
    study = load_study("tiny")
    ids = {run.id for run in studies.launch(queue, study).values()}
    assert {run.id for run in studies.launch(queue, study).values()} == ids and len(runs.queued(queue.db)) == 6


def test_two_simultaneous_starts_queue_each_part_once(queue: Queue) -> None:
    study = load_study("tiny")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: studies.launch(queue, study), range(2)))
    names = [run.name for run in runs.queued(queue.db)]
    assert len(names) == len(set(names)) == len(studies.runs_of(queue, "tiny"))


def test_arms_of_a_study_are_folded_by_seed(queue: Queue) -> None:
    """Their configurations differ in seed, name, and the directory of the warm-up."""
    parts = studies.launch(queue, load_study("tiny"))
    keys = {name: runs.get(queue.db, run.id or 0).group_key for name, run in parts.items()}
    assert keys["rl2f-seed-0"] == keys["rl2f-seed-1"] != keys["contentless-seed-0"] == keys["contentless-seed-1"]


def test_a_study_is_stopped_and_resumed_as_one(queue: Queue) -> None:
    study = load_study("tiny")
    ids = [run.id for run in studies.launch(queue, study).values()]
    assert {run.status for run in studies.stop(queue, "tiny").values()} == {"stopped"}
    assert statuses(queue, *ids) == ["stopped"] * 6
    assert [run.id for run in studies.launch(queue, study).values()] == ids
    assert statuses(queue, *ids) == ["queued"] * 6


def test_stopping_a_study_saves_what_runs_and_keeps_what_has_ended(queue: Queue) -> None:
    study = load_study("tiny")
    names = list(studies.launch(queue, study))
    for name, states in ((names[0], ("starting", "running", "succeeded")), (names[1], ("starting", "running"))):
        with queue.db.write() as session:
            run = store.get_for_update(session, studies.runs_of(queue, "tiny")[name].id or 0)
            for state in states:
                transition(run, state)
    stopped = studies.stop(queue, "tiny")
    assert [stopped[name].status for name in names] == ["succeeded", "stopping", *["stopped"] * 4]
    with pytest.raises(RunError, match="rl2f-seed-0 of the study tiny is stopping"):
        studies.launch(queue, study)
    with queue.db.write() as session:
        transition(store.get_for_update(session, stopped[names[1]].id or 0), "stopped")
    resumed = studies.launch(queue, study)
    assert [resumed[name].status for name in names] == ["succeeded", *["queued"] * 5]


def test_a_changed_hypothesis_is_registered(queue: Queue) -> None:
    studies.launch(queue, load_study("tiny"))
    studies.launch(queue, parse_study(TEXT.replace("smallest_effect: 0.05", "smallest_effect: 0.5")))
    (text,) = changes(read_versions(studies.folder_of(queue.workspace, "tiny")))
    assert "before a part had finished: hypothesis 'The reward in training differs' changed (smallest_effect" in text


def test_a_refused_study_changes_neither_the_registration_nor_the_queue(queue: Queue) -> None:
    studies.launch(queue, load_study("tiny"))
    study = parse_study(TEXT.replace("steps: 3", "steps: 5").replace("    rl2f: {}", "    new: {}\n    rl2f: {}"))
    assert study.parts()[1].name == "new-seed-0"
    with pytest.raises(ConfigError, match=r"settings of a part changed after its start. Got: 'rl2f-seed-0'"):
        studies.launch(queue, study)
    assert [version.text for version in read_versions(studies.folder_of(queue.workspace, "tiny"))] == [TEXT]
    assert len(runs.queued(queue.db)) == 6


def end(queue: Queue, run: Run, *states: RunStatus, begun: bool = False) -> None:
    """Set the states of a run; with `begun` it has copied its warm-up."""
    with queue.db.write() as session:
        for state in states:
            transition(store.get_for_update(session, run.id or 0), state)
    if begun:
        state_dir = queue.workspace.folder(run.folder) / "state"
        state_dir.mkdir()
        (state_dir / "CURRENT").write_text("1")


def test_a_deleted_warm_up_is_trained_again_only_for_arms_that_copy_it(queue: Queue) -> None:
    """Of two arms one has succeeded and one has copied the warm-up; then the second one has to copy it again."""
    study = parse_study(TEXT.replace("seeds: [0, 1]", "seeds: [0]"))
    warm, first, second = studies.launch(queue, study).values()
    for run in (warm, first):
        end(queue, run, "starting", "running", "succeeded")
    end(queue, second, "starting", "running", "stopping", "stopped", begun=True)
    queue.delete(warm.id or 0)
    assert {name: run.id for name, run in studies.launch(queue, study).items()} == {
        "rl2f-seed-0": first.id,
        "contentless-seed-0": second.id,
    }
    assert statuses(queue, first.id or 0, second.id or 0) == ["succeeded", "queued"]

    end(queue, second, "stopped")
    queue.delete(second.id or 0)
    parts = studies.launch(queue, study)
    again, anew = parts["warm-up-1-seed-0"], parts["contentless-seed-0"]
    assert [run.id for run in runs.queued(queue.db)] == [
        again.id,
        anew.id,
    ] and f"start_from: {again.folder}" in anew.config

    queue.restore(warm.id or 0)
    assert {name: run.id for name, run in studies.launch(queue, study).items()} == {n: r.id for n, r in parts.items()}


@pytest.mark.slow
def test_an_arm_that_waited_for_a_deleted_warm_up_copies_the_new_one(queue: Queue) -> None:
    study = load_study("tiny")
    studies.launch(queue, study)
    studies.stop(queue, "tiny")
    old = studies.runs_of(queue, "tiny")
    queue.delete(old["warm-up-1-seed-0"].id or 0)
    parts = studies.launch(queue, study)
    assert f"start_from: {parts['warm-up-1-seed-0'].folder}" in parts["rl2f-seed-0"].config
    assert parts["rl2f-seed-1"].id == old["rl2f-seed-1"].id and len(runs.queued(queue.db)) == 6
