"""Fits of detector `mentions` to people's labels."""

from __future__ import annotations

import json

import pytest
from detector_report_data import CODES, Truth, add_truth, in_test
from replay_data import add_run, event, hint, turn
from typer.testing import CliRunner
from workspace_copies import opened

from app.cli import app
from jobs.db.engine import Database
from jobs.labels import annotation_queue, report_queries
from jobs.labels.annotation_queue import QueueFilter
from jobs.labels.fitting import DEFAULT_ON_DRAWS, ON_DRAWS, blind_draws, draw_quality, fit_labels, labeled_examples
from jobs.labels.hint_counts import Scope
from jobs.labels.label_queries import LabelAnswer, put
from jobs.workspace import Workspace
from rl2f_core.errors import DataError
from rl2f_core.leaks.mentions.model import cross_validated, probabilities, read_weights
from rl2f_core.leaks.mentions.training import LABELS
from rl2f_core.leaks.parsing import parse_detectors


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, empty_database: bytes) -> tuple[Workspace, Truth]:
    """A run with 80 hints; those of a stratified sample of 60 are labeled truly."""
    workspace = Workspace(tmp_path_factory.mktemp("prepared") / "workspace").create()
    with opened(workspace, empty_database) as db:
        made = add_truth(db, workspace, hints=80, flagged=0.4, precise=0.9, missed=0.3)
        label_all(db, made, QueueFilter(selection="stratified", run=made.run.id, size=60))
    return workspace, made


@pytest.fixture
def truth(workspace: Workspace, prepared: tuple[Workspace, Truth]) -> Truth:
    """The run in the copy, and which of its hints leak; to be read only."""
    return prepared[1]


def label_all(db: Database, truth: Truth, filter: QueueFilter) -> None:
    """Label a queue truly, as on the page."""
    for item in annotation_queue.queue(db, "anna", filter, 100):
        put(db, *item.key, "anna", LabelAnswer(label=truth.label(item.key)), filter)


def number(truth: Truth) -> int:
    return truth.run.id or 0


# -- labels ----------------------------------------------------------------------------------------------------------
def test_labels_on_the_test_set_of_tasks_are_no_examples(truth: Truth, db: Database, workspace: Workspace) -> None:
    found = labeled_examples(workspace, db, [number(truth)])
    assert 10 < len(found) < 60
    for key, example in found.items():
        assert example.leak == truth.leaks[key.event, key.turn]
        assert (example.source, example.weight) == (LABELS, 1.0)
    assert not any(in_test(CODES[int(key.event.split("/")[-1])]) for key in found)


def test_a_disputed_label_is_no_example(truth: Truth, db: Database, workspace: Workspace) -> None:
    before = labeled_examples(workspace, db, [number(truth)])
    key, example = next(iter(before.items()))
    put(db, key.run, key.event, key.turn, "ben", LabelAnswer(label="no_leak" if example.leak else "leak"))
    assert labeled_examples(workspace, db, [number(truth)]).keys() == before.keys() - {key}


# -- versions --------------------------------------------------------------------------------------------------------
def test_each_fit_is_a_new_version_that_detectors_can_read(truth: Truth, db: Database, workspace: Workspace) -> None:
    fits = [fit_labels(workspace, db, [number(truth)]) for _ in range(2)]
    assert [fit.name for fit in fits] == ["mentions/v1", "mentions/v2"]
    files = workspace.fitted_detectors()
    assert files == [workspace.detectors / "mentions" / f"v{n}.json" for n in (1, 2)]
    exact, mentions = parse_detectors(f"exact,mentions:path={files[0]}")
    assert (exact.type, mentions.type, mentions.path) == ("exact", "mentions", str(files[0]))  # type: ignore[attr-defined]
    assert [read_weights(file) for file in files] == fits and fits[0].weights == fits[1].weights
    (workspace.detectors / "mentions" / "v10.json").write_text(files[0].read_text())
    assert fit_labels(workspace, db, [number(truth)]).name == "mentions/v11"


def test_labels_without_a_mention_of_the_answer_are_refused(db: Database, workspace: Workspace) -> None:
    run = add_run(db, workspace, "vague", [event("d", [turn(0, "x", None, hint("Look again."))])])
    put(db, run.id or 0, "dialogue:train:d", 0, "anna", LabelAnswer(label="no_leak"))
    with pytest.raises(DataError, match="mention the answer"):
        fit_labels(workspace, db, [run.id or 0])
    assert workspace.fitted_detectors() == []


# -- quality on blind random draws -----------------------------------------------------------------------------------
def test_the_report_compares_cross_validated_with_default_weights_on_the_same_draws(
    truth: Truth, db: Database, workspace: Workspace
) -> None:
    examples, default = labeled_examples(workspace, db, [number(truth)]), read_weights()
    fit = fit_labels(workspace, db, [number(truth)])
    hints, strata = list(examples.values()), blind_draws(db, number(truth), examples)
    held_out = dict(zip(examples, cross_validated(hints, default), strict=True))
    unchanged = dict(zip(examples, probabilities(default, hints), strict=True))
    assert fit.report[ON_DRAWS] == draw_quality(strata, held_out, fit.threshold)
    assert fit.report[DEFAULT_ON_DRAWS] == draw_quality(strata, unchanged, default.threshold)
    assert fit.report[ON_DRAWS].hints == fit.report[DEFAULT_ON_DRAWS].hints == len(examples)
    assert fit.report[LABELS].hints == len(examples)


def test_the_draws_represent_all_hints_of_their_strata(truth: Truth, db: Database, workspace: Workspace) -> None:
    strata = blind_draws(db, number(truth), labeled_examples(workspace, db, [number(truth)]))
    estimates = report_queries.read(db, Scope(run=number(truth))).total.estimates
    sizes, draws = zip(*strata, strict=True)
    assert sizes == (estimates.size - estimates.flagged, estimates.flagged)
    assert [len(hints) for hints in draws] == [estimates.n_unflagged, estimates.n_flagged]
    assert [sum(bool(hint.is_leak) for hint in hints) for hints in draws] == [
        estimates.false_negatives, estimates.true_positives,
    ]  # fmt: skip


@pytest.mark.parametrize("selection", ["flagged", "random_unflagged"])
def test_labels_that_leave_out_a_stratum_give_no_draws(selection: str, db: Database, workspace: Workspace) -> None:
    made = add_truth(db, workspace, hints=40, flagged=0.5, precise=0.9, missed=0.3)
    label_all(db, made, QueueFilter(selection=selection, run=made.run.id, size=15))
    fit = fit_labels(workspace, db, [number(made)])
    assert LABELS in fit.report and ON_DRAWS not in fit.report and DEFAULT_ON_DRAWS not in fit.report


# -- command ---------------------------------------------------------------------------------------------------------
def test_the_command_fits_to_labels_of_a_run(truth: Truth, workspace: Workspace) -> None:
    args = ["leaks", "fit", "--run", str(number(truth)), "--workspace", str(workspace.root)]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.stderr
    (file,) = workspace.fitted_detectors()
    assert "mentions/v1: threshold" in done.stdout and f"mentions:path={file}" in done.stderr
    assert json.loads(file.read_text())["report"][ON_DRAWS]["hints"] > 0


def test_the_command_needs_labels_or_a_file() -> None:
    assert CliRunner().invoke(app, ["leaks", "fit"]).exit_code != 0
