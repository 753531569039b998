"""Reported faults of statistics: demonstrations in defaults, the example run, constants, small samples, tiny ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tracking_data
from event_data import dialogue, small_run, stored_run, turn
from export_builders import leaky_events, write_run
from report_data import built, tasks
from tracking_data import Memory, config_with, run_dir_of
from typer.testing import CliRunner

from app.cli import app
from app.endpoints.dialogues import DialogueEndpoints
from app.experiment import Experiment
from app.plots.run_charts import PlotOptions, overview
from app.static_pages.selection import chosen_dialogues
from jobs.db.engine import Database
from jobs.db.queries import dialogues
from jobs.db.queries.dialogues import DialogueFilter
from jobs.labels import annotation_queue, hint_counts
from jobs.labels.annotation_queue import QueueFilter
from jobs.workspace import Workspace
from rl2f_core.common.paths import EXAMPLE_RUNS
from rl2f_core.common.stats.intervals import Interval
from rl2f_core.evaluation.formatting import interval_text
from rl2f_core.evaluation.plotting import Line, Plot, figure, value_text
from rl2f_core.evaluation.report import Reference, findings, tables
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, Event, read_events
from rl2f_core.types import DEMONSTRATION, ConstantBaseline

EXAMPLE = EXAMPLE_RUNS / "quickstart"


def demonstrations() -> list[Event]:
    """Two dialogues of a warm-up stage, which the environment wrote; both are solved."""
    played = [dialogue(1, 0, i, [turn(0), turn(1, right=True)], stage="warmup") for i in (0, 1)]
    return [e.model_copy(update={"dialogue": e.dialogue.model_copy(update={"policy": DEMONSTRATION})}) for e in played]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A run with eight sampled dialogues and two demonstrations."""
    written = [e.model_copy(update={"id": f"{e.id}/shown", "stage": "warmup", "dialogue": e.dialogue.model_copy(
        update={"policy": DEMONSTRATION, "id": f"{e.dialogue.id}/shown"})}) for e in leaky_events()[:2]]  # fmt: skip
    return write_run(tmp_path / "run", [*written, *leaky_events()])


def test_data_frames_contain_no_demonstrations(written: Path) -> None:
    experiment = Experiment(written)
    assert len(experiment.dialogues()) == 8 and set(experiment.turns().dialogue) == set(experiment.dialogues().id)
    assert len(experiment.dialogues(demonstrations=True)) == 10


def test_replay_lists_no_demonstrations_and_keeps_the_numbers(written: Path) -> None:
    listed = CliRunner().invoke(app, ["replay", str(written)], env={"COLUMNS": "200"}).output
    assert "warmup" not in listed and " 3 " in listed
    assert "warmup" in CliRunner().invoke(app, ["replay", str(written), "--demonstrations"]).output


def test_shared_pages_contain_no_demonstrations(written: Path) -> None:
    chosen = chosen_dialogues(RunDir.open(written), 40)
    assert len(chosen) == 8 and all(event.dialogue.policy != DEMONSTRATION for event in chosen)


def test_trackers_receive_no_demonstrations(tmp_path: Path) -> None:
    config = config_with()
    tracker = Memory(Memory.Config(), config, run_dir_of(tmp_path / "run", config))
    sampled = tracking_data.dialogue(1)
    shown = sampled.model_copy(update={"dialogue": sampled.dialogue.model_copy(update={"policy": DEMONSTRATION})})
    assert tracker.handles(sampled) and not tracker.handles(shown)


@pytest.fixture
def mixed(tmp_path: Path) -> Any:
    """A database with a run of two demonstrations and the dialogues of `small_run`."""
    workspace = Workspace(tmp_path / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    run = stored_run(db, workspace, [*demonstrations(), *small_run()])
    yield db, run.id
    db.close()


def test_lists_contain_demonstrations_only_of_a_chosen_stage_or_on_request(mixed: tuple[Database, int]) -> None:
    db, run = mixed
    sampled = dialogues.count(db, DialogueFilter(run=run))
    assert dialogues.count(db, DialogueFilter(run=run, stage="warmup")) == 2
    assert dialogues.count(db, DialogueFilter(run=run, demonstrations=True)) == sampled + 2
    listed = DialogueEndpoints(SimpleNamespace(db=db)).list_dialogues({"run": run}).rows  # type: ignore[arg-type]
    assert len(listed) == sampled and all(row.stage != "warmup" for row in listed)


def _queued(db: Database, run: int) -> int:
    return len(annotation_queue.queue(db, "ada", QueueFilter(run=run), limit=500))


def _counted(db: Database, run: int) -> int:
    return sum(
        sum(hint_counts.count_runtime(db, hint_counts.Scope(run=run, test=test)).values()) for test in (False, True)
    )


@pytest.mark.parametrize("count", [_queued, _counted])
def test_sampling_frames_of_labels_contain_no_demonstrations(
    mixed: tuple[Database, int], count: Callable[[Database, int], int]
) -> None:
    db, run = mixed
    with db.read() as session:
        query = "SELECT count(*) FROM turns WHERE hint != '' AND policy != ?"
        hints = session.connection().exec_driver_sql(query, (DEMONSTRATION,)).scalar()
    assert count(db, run) == hints and hints > 0


# -- the example run ---------------------------------------------------------------------------------------------------
def test_the_example_stores_all_dialogues_of_its_evaluation() -> None:
    note = json.loads((EXAMPLE / "example.json").read_text(encoding="utf-8"))
    report = json.loads((EXAMPLE / "evaluation" / "report.json").read_text(encoding="utf-8"))
    events = [e for e in read_events(EXAMPLE / "events.jsonl") if isinstance(e, DialogueEvent)]
    stored = {e.task.id for e in events if e.phase == "evaluation"}
    assert len(stored) == report["tasks"] == note["evaluation_tasks"]["shipped"] == note["evaluation_tasks"]["played"]


def test_steps_without_stored_dialogues_are_marked_and_open_nothing() -> None:
    rows = [SimpleNamespace(stage="rl", step=s, number=s, time=s, tokens=s, values={"reward": 0.5 * s}) for s in (1, 2)]
    (chart, *_) = overview(rows, PlotOptions(sizes={("rl", 1): {}}))
    (trace,) = [trace for trace in chart.figure["data"] if trace.get("meta") == "line"]
    assert [None if at is None else at[:2] for at in trace["customdata"]] == [["rl", 1], None]
    assert "not stored" not in trace["text"][0] and "dialogues not stored" in trace["text"][1]


# -- numbers -----------------------------------------------------------------------------------------------------------
def test_a_constant_with_rounding_errors_is_a_flat_line_with_a_sensible_range() -> None:
    plot = Plot([Line("reward", [1, 2, 3], [-0.3, -0.3 + 1e-16, -0.30000000000000004])])
    low, high = figure(plot)["layout"]["yaxis"]["range"]
    assert low < -0.31 and high > -0.29


def test_a_small_sample_is_too_few_to_tell_in_every_line() -> None:
    reference = Reference(turn=3, with_hints=1.0, without_hints=0.6)
    changes = {"references": (reference,), "constant_baseline": ConstantBaseline(answer="A A A", score=0.05)}
    report = built().model_copy(update=changes)
    cells = [cell for _, _, rows in tables(report) for row in rows for cell in row]
    text = "\n".join([*findings(report), *cells])
    assert report.tasks < 10 and "too few to tell" in text and "indistinguishable" not in text


@pytest.mark.parametrize(
    ("low", "text"), [(-2e-6, "[>−.0001, "), (2e-6, "[<.0001, "), (0.003, "[.003, "), (0, "[.00, ")]
)
def test_ends_of_intervals_have_no_exponent(low: float, text: str) -> None:
    assert text in interval_text(Interval(value=0.1, low=low, high=0.2, n=20)) and "e" not in value_text(low, "share")


# -- reports over several configurations -----------------------------------------------------------------------------
def reported(folder: Path, runs: dict[str, tuple[dict[str, Any], dict[str, int], int]]) -> list[list[str]]:
    """Return the rows of `rl2f report` with the solve rate of the last turn.

    Args:
        folder: Where the runs are written.
        runs: Settings, number of 8 solved problems by checkpoint, and seed, by folder.
    """
    for name, (settings, solved, seed) in runs.items():
        write_run(folder / name, [], seed=seed, **settings)
        by_checkpoint = {c: {"hints": tasks(*[1] * n, *[0] * (8 - n))} for c, n in solved.items()}
        (folder / name / "evaluation").mkdir(exist_ok=True)
        (folder / name / "evaluation" / "report.json").write_text(built(by_checkpoint, seed).to_json())
    done = CliRunner().invoke(app, ["report", *(str(folder / name) for name in runs)])
    assert done.exit_code == 0, done.output
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.output.splitlines()]
    return [[row[0], *row[3:-2]] for row in cells if row[1:3] == ["hints", "cum_acc/3"]]


ONE, OTHER = {"name": "one"}, {"name": "other", "lora": {"rank": 4}}


def test_a_report_names_equal_checkpoints_of_different_configurations_apart(tmp_path: Path) -> None:
    assert reported(tmp_path, {
        "a": (ONE, {"base": 0, "rl@2": 8}, 0), "b": (ONE, {"base": 0, "rl@2": 6}, 1),
        "c": (OTHER, {"base": 0, "rl@2": 4}, 0), "d": (OTHER, {"base": 0, "rl@2": 2}, 1),
    }) == [["base", ".00", ".00"], ["rl@2 of one", "1.00", ".75"], ["rl@2 of other", ".50", ".25"]]  # fmt: skip


def test_a_report_averages_no_seeds_of_different_configurations(tmp_path: Path) -> None:
    rows = reported(tmp_path, {"a": (ONE, {"rl@2": 8}, 0), "b": (OTHER, {"rl@2": 4}, 1)})
    assert rows == [["rl@2 of one", "1.00", "–"], ["rl@2 of other", "–", ".50"]]


def test_a_report_keeps_a_repeated_run_with_other_results(tmp_path: Path) -> None:
    rows = reported(tmp_path, {"a": (ONE, {"rl@2": 8}, 0), "b": (ONE, {"rl@2": 4}, 0), "c": (ONE, {"rl@2": 8}, 0)})
    assert [(name.partition("(")[0], name[-2:], rate) for name, rate in rows] == [
        ("rl@2 of one", "ne", "1.00"), ("rl@2 of one ", "b)", ".50"), ("rl@2 of one ", "c)", "1.00")
    ]  # fmt: skip


def test_a_report_joins_arms_with_different_checkpoints_and_seeds_of_one_configuration(tmp_path: Path) -> None:
    assert reported(tmp_path, {
        "a": ({"name": "rl-seed-0"}, {"base": 0, "rl@2": 8}, 0),
        "b": ({"name": "rl-seed-1"}, {"base": 0, "rl@2": 6}, 1),
        "c": (OTHER, {"base": 0, "rlvr@2": 4}, 0), "d": (OTHER, {"base": 0, "rlvr@2": 2}, 1),
    }) == [["base", ".00", ".00"], ["rl@2", "1.00", ".75"], ["rlvr@2", ".50", ".25"]]  # fmt: skip
