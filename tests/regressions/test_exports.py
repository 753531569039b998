"""Exports: which dialogues are data for training, and what labels and cards claim."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from export_builders import ENVIRONMENT, answer, event, rows_of, turn, write_run, wrong
from json_endpoints import JsonEndpoints
from rescore_data import pair, run_folder
from typer.testing import CliRunner

from app.cli import app
from app.common.context import Context
from app.endpoints.exports import ExcludedDialogues, ExportCount, ExportEndpoints
from app.experiment import Experiment
from app.pages.exports.page import DEFAULTS, command_line, export_settings
from app.pages.exports.view import count_text
from jobs.db.engine import Database
from jobs.db.queries import runs
from jobs.export.datasets.dataset_types import FORMATS
from jobs.export.datasets.exporter import export, summary
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource, WorkspaceSource
from jobs.imports.importer import import_file
from jobs.ingest.ingester import reindex
from jobs.labels import label_queries
from jobs.labels.fitting import labeled_examples
from jobs.labels.label_queries import LabelAnswer
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.common.paths import EXAMPLE_RUNS
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import DataError, RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, read_events
from rl2f_core.run.execute import execute
from rl2f_core.types import Hint, LeakReport, Task

TYPES = list(FORMATS)
QUICKSTART = EXAMPLE_RUNS / "quickstart"
OPTIONS = ("include_test", "include_demonstrations", "include_base")
STAGES: dict[str, list[dict[str, Any]]] = {
    "rl": [{"name": "rl", "method": "rl2f", "steps": 2}],
    "warm-up": [{"name": "warm", "method": "sft", "steps": 2}, {"name": "rl", "method": "rl2f", "steps": 2}],
    "from base": [{"name": "warm", "method": "sft", "steps": 2},
                  {"name": "rl", "method": "rl2f", "steps": 2, "init_from": "base"}],
}  # fmt: skip


# -- which dialogues are training data --------------------------------------------------------------------------------
def solved(name: str, policy: str = "rl@1", split: Any = "train", number: int = 0, **more: Any) -> DialogueEvent:
    """A leaking, a clean and no hint, each after an attempt of a policy; the last attempt is correct."""
    task = ENVIRONMENT.task(split, number)
    turns = [
        turn(task, 0, wrong(task, 0), "Look again."),
        turn(task, 1, wrong(task, 0), "Look once more."),
        turn(task, 2, f"<answer>{answer(task)}</answer>", f"It is {answer(task)}.", True),
    ]
    made = event(task, turns, name=name, **more)
    return made.model_copy(update={"dialogue": made.dialogue.model_copy(update={"policy": policy})})


def evaluated(name: str, policy: str, split: Any = "test") -> DialogueEvent:
    return solved(name, policy, split, phase="evaluation", step=0, checkpoint=policy, condition="hints")


KINDS: dict[str, tuple[DialogueEvent, str | None]] = {
    "trained": (solved("trained"), None),
    "test": (evaluated("test", "rl@2"), "include_test"),
    "validation": (evaluated("validation", "rl@2", "validation"), "include_test"),
    "base on test": (evaluated("base on test", "base"), "include_test"),
    "chat on test": (solved("chat on test", "7:rl@2", "test", phase="chat", checkpoint="7:rl@2"), "include_test"),
    "demonstration": (solved("demonstration", "demonstration"), "include_demonstrations"),
    "person": (solved("person", "person", phase="chat", checkpoint="person"), "include_demonstrations"),
    "edited": (solved("edited", "7:rl@2, edited", phase="chat", checkpoint="7:rl@2"), "include_demonstrations"),
    "solution": (solved("solution", "demonstration", phase="distill", outcome="kept"), "include_demonstrations"),
    "base": (solved("base", "base", phase="preflight", step=0), "include_base"),
    "start": (solved("start", "rl@0"), "include_base"),
}
"""Name → a dialogue, and the option that it needs."""


def exported(tmp_path: Path, events: Sequence[DialogueEvent], out: str = "out", **settings: Any) -> Any:
    """Manifest and rows of an export of all types."""
    run = tmp_path / "run"
    if not run.exists():
        write_run(run, events)
    manifest = export([FolderSource(run)], ExportSettings(**{"formats": TYPES, "files": ["jsonl"], **settings}),
                      tmp_path / out)  # fmt: skip
    assert manifest is not None
    return manifest, {name: rows_of(tmp_path / out / f"{name}.jsonl") for name in manifest["formats"]}


def names(rows: Sequence[dict[str, Any]]) -> set[str]:
    """The names of dialogues in rows of a type."""
    keys = [key for key in ("dialogue", "chosen_dialogue", "rejected_dialogue") if rows and key in rows[0]]
    return {row[key].rpartition(":")[2] for row in rows for key in keys}


def test_every_type_has_by_default_only_sampled_turns_of_trained_policies_on_training_tasks(tmp_path: Path) -> None:
    _, rows = exported(tmp_path, [made for made, _ in KINDS.values()])
    assert {type: names(rows[type]) for type in TYPES} == {type: {"trained"} for type in TYPES}


@pytest.mark.parametrize("kind", [name for name, (_, option) in KINDS.items() if option])
def test_an_excluded_dialogue_is_included_by_its_option_and_named_by_columns_of_every_type(
    tmp_path: Path, kind: str
) -> None:
    made, option = KINDS[kind]
    events = [solved("trained"), made]
    _, rows = exported(tmp_path, events, formats=["messages"])
    assert "trained" in names(rows["messages"]) and kind not in names(rows["messages"])
    manifest, rows = exported(tmp_path, events, "again", filter={option: True})
    for type in set(TYPES) - {"preference"}:
        row = next(row for row in rows[type] if names([row]) == {kind})
        assert (row["split"], row["policy"]) == (made.task.split, made.dialogue.policy), type
    pairs = {(row["split"], row["chosen_policy"], row["rejected_policy"]) for row in rows["preference"]}
    assert ("train", "rl@1", "rl@1") in pairs
    expected = {"split": made.task.split, "policy": made.dialogue.policy, "dialogues": 1}
    assert expected in manifest["policies"]
    card = (tmp_path / "again" / "README.md").read_text()
    assert re.search(rf"\| {made.task.split} \| {re.escape(made.dialogue.policy)}(?: to .*)? \| \d", card)


@pytest.mark.parametrize(
    ("stages", "is_base"), [("rl", True), ("warm-up", False), ("from base", True)], ids=["first", "later", "from base"]
)
def test_the_weights_before_the_first_training_step_are_the_untrained_base(
    tmp_path: Path, stages: str, is_base: bool
) -> None:
    write_run(tmp_path / "run", [solved("start", "rl@0"), solved("later")], stages=STAGES[stages])
    _, rows = exported(tmp_path, [])
    assert names(rows["messages"]) == ({"later"} if is_base else {"start", "later"})


def test_a_checkpoint_without_an_adapter_is_the_untrained_base_and_one_of_another_program_is_not(
    tmp_path: Path,
) -> None:
    config = {"kind": "levels", "environment": "secret_code", "adapters": {"plain": None, "tuned": "x"}}
    events = [evaluated("plain", "plain", "train"), evaluated("tuned", "tuned", "train")]
    config |= {"split": "train", "model": {"name": "tiny-random"}}
    run_dir = RunDir.create(tmp_path / "run", parse_config(config))
    JsonlSink(run_dir.events_path).emit(events)
    _, rows = exported(tmp_path, [])
    assert names(rows["messages"]) == {"tuned"}
    imported = RunDir.create(tmp_path / "b" / "run", parse_config({"kind": "imported", "model": {"name": "unknown"}}))
    JsonlSink(imported.events_path).emit([solved("theirs", "base"), evaluated("scored", "gpt")])
    _, rows = exported(tmp_path / "b", [])
    assert names(rows["messages"]) == {"theirs"}


def test_an_imported_export_keeps_its_splits_and_policies(db: Database, workspace: Workspace, tmp_path: Path) -> None:
    events = [solved("trained"), evaluated("test", "rl@2"), solved("shown", "demonstration")]
    exported(tmp_path, events, formats=["messages"], filter=dict.fromkeys(OPTIONS, True))
    run = import_file(db, workspace, tmp_path / "out" / "messages.jsonl")
    source = WorkspaceSource(db, workspace, run)
    assert +source.tally(ExportSettings().filter) == {None: 1, "include_test": 1, "include_demonstrations": 1}
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "split": split}
            for split in ("train_sft", "val", "dev", "")]  # fmt: skip
    (tmp_path / "others.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = import_file(db, workspace, tmp_path / "others.jsonl")
    splits = {split for split, _ in WorkspaceSource(db, workspace, run).count_policies(ExportSettings().filter)}
    assert splits == {"train", "validation", "test"}


def test_a_fork_of_a_test_task_needs_both_options(tmp_path: Path) -> None:
    fork = solved("fork", "rl@2", "test", phase="fork", step=0, checkpoint="rl@2", arm="original")
    events = [solved("trained"), fork]
    _, rows = exported(tmp_path, events, filter={"include_controls": True})
    assert names(rows["messages"]) == {"trained"}
    _, rows = exported(tmp_path, events, "again", filter={"include_controls": True, "include_test": True})
    assert names(rows["messages"]) == {"trained", "fork"}


def test_the_quickstart_has_no_test_task_no_base_and_no_demonstration(tmp_path: Path) -> None:
    types = [type for type in TYPES if type != "preference"]
    manifest = export([FolderSource(QUICKSTART)], ExportSettings(formats=types, files=["jsonl"]), tmp_path / "out")
    assert manifest is not None
    for type in types:
        rows = rows_of(tmp_path / "out" / f"{type}.jsonl")
        assert rows and {row["split"] for row in rows} == {"train"}, type
        assert {row["policy"].partition("@")[0] for row in rows} == {"rl2f"}, type


@pytest.mark.slow
def test_the_quickstart_with_all_options_has_all_dialogues_under_hints(tmp_path: Path) -> None:
    settings = {"formats": ["messages"], "files": ["jsonl"], "filter": dict.fromkeys(OPTIONS, True)}
    manifest = export([FolderSource(QUICKSTART)], ExportSettings(**settings), tmp_path / "out")
    stored = [e for e in read_events(QUICKSTART / "events.jsonl") if isinstance(e, DialogueEvent)]
    own = Counter((e.task.split, e.dialogue.policy) for e in stored if e.condition in (None, "hints"))
    assert manifest is not None
    assert {(row["split"], row["policy"]): row["dialogues"] for row in manifest["policies"]} == own
    assert own["test", "base"] and own["train", "demonstration"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "this export contains held-out tasks" in card
    assert f"| train | demonstration | {own['train', 'demonstration']} |" in card


# -- the same through every door ---------------------------------------------------------------------------------------
def refused(call: Callable[[], object]) -> str:
    with pytest.raises(RL2FError) as error:
        call()
    return str(error.value)


def by_command_line(run: Path, out: Path, *options: str) -> str:
    done = CliRunner().invoke(app, ["export", str(run), "--out", str(out), *options])
    return "" if done.exit_code == 0 else done.stderr


def test_the_command_line_refuses_an_evaluation_run_and_takes_its_fix(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [evaluated("base", "base"), evaluated("test", "rl@2")])
    assert "--include-test" in by_command_line(run, tmp_path / "out") and not (tmp_path / "out").exists()
    assert by_command_line(run, tmp_path / "out", "--include-test") == ""
    assert len(rows_of(tmp_path / "out" / "messages.jsonl")) == 2


def test_python_refuses_an_evaluation_run_and_takes_its_fix(tmp_path: Path) -> None:
    run = Experiment(write_run(tmp_path / "run", [evaluated("test", "rl@2")]))
    assert "filter.include_test" in refused(lambda: run.export(tmp_path / "out"))
    assert run.export(tmp_path / "out", filter={"include_test": True})["dialogues"] == 1


@pytest.fixture
def context(workspace: Workspace, db: Database) -> Context:
    """The services of a server over an empty workspace."""
    return Context(workspace, db, Queue(db, workspace))


def test_the_endpoint_refuses_an_evaluation_run_before_it_queues_anything(context: Context) -> None:
    write_run(context.workspace.folder("run"), [evaluated("test", "rl@2"), solved("person", "person")])
    (number,) = reindex(context.db, context.workspace)
    exports = JsonEndpoints(ExportEndpoints(context))
    message = refused(lambda: exports.start_export([number]))
    assert "--include-test --include-demonstrations" in message and len(runs.page(context.db).rows) == 1
    assert exports.start_export([number], {"filter": {"include_test": True}})["run"]
    assert exports.count_export([number])["dialogues"] == 0
    assert exports.count_export([number], {"include_test": True})["dialogues"] == 1
    found = exports.count_export([number])["excluded"]
    assert {each["field"]: each["dialogues"] for each in found} == {"include_test": 1, "include_demonstrations": 1}


def test_a_queued_export_fails_with_the_fix_and_writes_only_training_tasks(db: Database, workspace: Workspace) -> None:
    for name, events in (("mixed", [solved("trained"), evaluated("test", "rl@2")]), ("eval", [evaluated("e", "rl@2")])):
        write_run(workspace.folder(name), events)
    first, second = sorted(reindex(db, workspace))
    numbers = {runs.get(db, number).folder: number for number in (first, second)}
    Queue(db, workspace)

    def run(name: str) -> Any:
        config = parse_config({"kind": "export", "name": name, "runs": [numbers[name]], "formats": ["messages"]})
        run_dir = RunDir.create(workspace.folder(f"export-{name}"), config)
        return execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False)

    assert run("mixed").status == "succeeded"
    assert names(rows_of(workspace.exports / "export-mixed" / "messages.jsonl")) == {"trained"}
    assert "--include-test" in refused(lambda: run("eval"))
    assert [path.name for path in workspace.exports.iterdir()] == ["export-mixed"]


def test_the_page_counts_what_it_excludes_and_offers_the_options() -> None:
    form = {**DEFAULTS, "runs": [1]}
    assert not any(export_settings(form)["filter"][name] for name in OPTIONS)
    chosen = {**form, **dict.fromkeys(OPTIONS, True)}
    assert all(export_settings(chosen)["filter"][name] for name in OPTIONS)
    assert command_line(chosen).endswith("--include-test --include-demonstrations --include-base")
    excluded = [ExcludedDialogues(field="include_test", dialogues=135, what="of validation or test tasks")]
    text = str(count_text(form, ExportCount(dialogues=0, labeled=0, excluded=excluded)))
    assert "135 dialogues of validation or test tasks excluded" in text


def test_one_evaluation_run_among_others_is_refused_by_its_name(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", [solved("trained")], name="first")
    second = write_run(tmp_path / "second", [evaluated("test", "rl@2")], name="second")
    settings = ExportSettings(formats=["messages"])
    with pytest.raises(DataError, match=r"Run second .*1 of validation or test tasks.*--include-test"):
        export([FolderSource(first), FolderSource(second)], settings, tmp_path / "out")


def test_a_fit_of_the_detector_still_reads_all_labels(db: Database, workspace: Workspace) -> None:
    events = [solved("trained"), *(evaluated(str(number), "rl@2") for number in range(3))]
    events += [solved("shown", "demonstration")]
    write_run(workspace.folder("run"), events)
    (number,) = reindex(db, workspace)
    for each in events:
        label_queries.put(db, number, each.id, 0, "ann", LabelAnswer(label="leak"))
    read = {key.event for key in labeled_examples(workspace, db, [number])}
    source = WorkspaceSource(db, workspace, runs.get(db, number))
    assert source.count(ExportSettings().filter) == 1
    assert read == {e.id for e in events if not_held_out(e.task)}


def not_held_out(task: Task) -> bool:
    from jobs.labels.holdout import is_test, task_hash

    return not is_test(task_hash(task.environment, task.public, task.privileged))


# -- labels and cards -------------------------------------------------------------------------------------------------
def determined(name: str) -> DialogueEvent:
    made = solved(name)
    bits = {"hint_bits": 1.0, "bits_left": 0.0, "determines_answer": True}
    turns = (made.dialogue.turns[0].model_copy(update=bits), *made.dialogue.turns[1:])
    return made.model_copy(update={"dialogue": made.dialogue.model_copy(update={"turns": turns})})


@pytest.mark.parametrize("type", ["stepwise_supervision", "unpaired_preference"])
def test_a_label_claims_that_no_leak_is_flagged_and_not_that_nothing_is_given_away(type: Any) -> None:
    column = {"stepwise_supervision": "labels", "unpaired_preference": "label"}[type]
    meaning = FORMATS[type].columns[column][1]
    assert "gives nothing away" not in meaning and "no leak is flagged" in meaning
    assert "can still determine the answer" in meaning and "determines_answer" in FORMATS[type].columns


def test_the_card_counts_the_hints_without_a_leak_that_determine_the_answer(tmp_path: Path) -> None:
    manifest, rows = exported(tmp_path, [determined("a"), solved("b", number=1)])
    card = (tmp_path / "out" / "README.md").read_text()
    assert "1 of the 4 hints labeled *no leak* do" in card and "of 3 this is unknown" in card
    assert manifest["no_leak_that_determines_answer"] == 1
    assert [row["determines_answer"] for row in rows["unpaired_preference"]].count(True) == 1
    assert [row["determines_answer"] for row in rows["stepwise_supervision"]] == [[True, False, False], [False] * 3]
    assert [row["determines_answer"] for row in rows["prompt_completion"]] == [True, False]


def one(name: str, hint: str, leaked: bool, attempt: int = 0, teacher: str = "scripted", **more: Any) -> DialogueEvent:
    """An attempt and one hint on the first training task."""
    task = ENVIRONMENT.task("train", 0)
    said = Hint(text=hint, teacher=teacher, leak=LeakReport(leaked=leaked))
    only = turn(task, 0, wrong(task, attempt), None).model_copy(update={"hint": said})
    return event(task, [only], name=name, **more)


CONTENTLESS = "That is not correct. Try again."


@pytest.mark.parametrize(
    ("teacher", "hint"),
    [("contentless", CONTENTLESS), ("scripted", CONTENTLESS), ("shuffled", "Of another task."), ("misleading", "No.")],
    ids=["contentless", "contentless text of another teacher", "shuffled", "misleading"],
)
def test_no_preference_pair_chooses_a_hint_of_a_control(tmp_path: Path, teacher: str, hint: str) -> None:
    events = [one("leak", "It leaks.", True), one("control", hint, False, teacher=teacher)]
    _, rows = exported(tmp_path, events, filter={"include_controls": True})
    assert "preference" not in rows


@pytest.mark.parametrize("attempt", [0, 1], ids=["same attempt", "another attempt"])
def test_the_prompt_of_a_preference_pair_has_the_attempt_that_the_chosen_hint_answers(
    tmp_path: Path, attempt: int
) -> None:
    _, rows = exported(tmp_path, [one("leak", "It leaks.", True), one("own", "Look.", False, attempt)])
    (row,) = rows["preference"]
    assert row["prompt"][-1]["content"].endswith(f"Attempt:\n{wrong(ENVIRONMENT.task('train', 0), attempt)}")


def test_stepwise_supervision_is_no_default_of_any_door_and_its_card_says_that_trl_does_not_read_it() -> None:
    assert "stepwise_supervision" not in ExportSettings().formats and "stepwise_supervision" not in DEFAULTS["formats"]
    assert "No trainer of TRL 1.16" in FORMATS["stepwise_supervision"].about
    trainers = FORMATS["messages"].about, FORMATS["prompt_completion"].about
    assert all("SFTTrainer" in text for text in trainers) and "assistant_only_loss" in trainers[0]


def test_the_installed_trl_has_no_trainer_of_stepwise_supervision() -> None:
    spec = find_spec("trl")
    assert spec is not None and spec.origin is not None
    assert not [file for word in ("prm", "stepwise") for file in Path(spec.origin).parent.rglob(f"*{word}*")]


@pytest.mark.parametrize("type", TYPES)
def test_no_column_has_text_of_the_retired_kind(type: Any) -> None:
    format = FORMATS[type]
    text = " ".join([format.short, format.about, *(about for _, about in format.columns.values())])
    assert not re.search(r"\bspoke\b|gives? nothing away|nobody|verifier's word|row a (?:conversation|hint|pair)", text)


def test_a_hint_that_a_detector_failed_on_has_no_label(tmp_path: Path, db: Database, workspace: Workspace) -> None:
    task = ENVIRONMENT.task("train", 0)
    report = LeakReport(leaked=False, error="The endpoint is down.")
    failed = turn(task, 0, wrong(task), None).model_copy(
        update={"hint": Hint(text="Look.", teacher="scripted", leak=report)}
    )
    events = [event(task, [failed], name="failed"), solved("trained")]
    write_run(workspace.folder("run"), events)
    (number,) = reindex(db, workspace)
    settings = ExportSettings(formats=["unpaired_preference", "messages"], files=["jsonl"])
    for name, source in (
        ("folder", FolderSource(workspace.folder("run"))),
        ("database", WorkspaceSource(db, workspace, runs.get(db, number))),
    ):
        manifest = export([source], settings, tmp_path / name)
        assert manifest is not None and manifest["labels"]["without"] == {"unlabeled": 1}
        assert names(rows_of(tmp_path / name / "unpaired_preference.jsonl")) == {"trained"}
        row = next(row for row in rows_of(tmp_path / name / "messages.jsonl") if names([row]) == {"failed"})
        assert (row["leaks"][0]["state"], row["hint_labels"]) == ("unchecked", [""])


# -- findings of `rl2f leaks RUN` -------------------------------------------------------------------------------------
def rescore(target: Path, folder: Path, detector: str = "exact") -> None:
    config = parse_config({"kind": "rescore", "run": target.name, "detectors": [detector], "workers": 1})
    run_dir = RunDir.create(folder, config)
    assert execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"


def kto(source: Any, out: Path) -> tuple[Any, dict[str, bool]]:
    settings = ExportSettings(formats=["unpaired_preference", "messages"], files=["jsonl"])
    manifest = export([source], settings, out)
    rows = rows_of(out / "unpaired_preference.jsonl") if "unpaired_preference" in (manifest or {})["formats"] else []
    return manifest, {row["completion"][0]["content"]: row["label"] for row in rows}


@pytest.mark.parametrize("was", [False, None], ids=["missed at run time", "not checked at run time"])
def test_an_export_uses_the_findings_of_the_newest_rescoring(
    tmp_path: Path, db: Database, workspace: Workspace, was: bool | None
) -> None:
    run_folder(workspace.folder("target"), pair(1, was=was))
    rescore(workspace.folder("target"), workspace.folder("again"))
    reindex(db, workspace)
    row = runs.find(db, folder="target")
    assert row is not None
    for name, source in (
        ("folder", FolderSource(workspace.folder("target"))),
        ("database", WorkspaceSource(db, workspace, row)),
    ):
        manifest, labels = kto(source, tmp_path / name)
        assert labels == {"The number is 8.": False, "Too low.": True}
        assert manifest["runs"][0]["rescoring"] == "again" and manifest["runs"][0]["detectors"] == ["exact"]
        assert "those of again (exact)" in summary(manifest)
        assert "| exact | again | 2 |" in (tmp_path / name / "README.md").read_text()
        leaks = [row["leaks"][0]["state"] for row in rows_of(tmp_path / name / "messages.jsonl")]
        assert sorted(leaks) == ["clean", "leak"]


def test_a_dialogue_newer_than_the_rescoring_keeps_the_finding_of_the_run(workspace: Workspace, tmp_path: Path) -> None:
    target = run_folder(workspace.folder("target"), pair(1))
    rescore(target, workspace.folder("again"))
    later = [each.model_copy(update={"time": time.time()}) for each in pair(2, was=True, hint="A later leak.")]
    JsonlSink(target / "events.jsonl").emit(later)
    _, labels = kto(FolderSource(target), tmp_path / "out")
    assert labels["A later leak."] is False and labels["The number is 8."] is False


def test_a_rescoring_of_a_deleted_run_is_not_used_for_its_successor_in_the_same_folder(
    workspace: Workspace, tmp_path: Path
) -> None:
    """The dialogues have the same ids and positions."""
    rescore(run_folder(workspace.folder("target"), pair(1)), workspace.folder("again"))
    shutil.rmtree(workspace.folder("target"))
    later = [each.model_copy(update={"time": time.time()}) for each in pair(1, hint="A clean hint.")]
    _, labels = kto(FolderSource(run_folder(workspace.folder("target"), later)), tmp_path / "out")
    assert labels["A clean hint."] is True


def test_a_rescoring_of_another_run_with_the_same_name_is_not_used(tmp_path: Path) -> None:
    first, second = (run_folder(tmp_path / name / "target", pair(1)) for name in ("a", "b"))
    rescore(first, tmp_path / "a" / "again")
    assert kto(FolderSource(second), tmp_path / "out")[1]["The number is 8."] is True


def test_an_export_without_findings_names_the_command_that_computes_them(tmp_path: Path) -> None:
    imported = RunDir.create(tmp_path / "run", parse_config({"kind": "imported", "model": {"name": "unknown"}}))
    task = ENVIRONMENT.task("train", 0)
    JsonlSink(imported.events_path).emit([event(task, [turn(task, 0, wrong(task), "It leaks.", None)], name="d")])
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0 and "1 hints have no label. Run detectors on them (`rl2f leaks RUN`)" in done.stdout
    assert "| no detector | 1 |" in (tmp_path / "out" / "README.md").read_text()
    message = refused(lambda: kto_only(tmp_path / "run", tmp_path / "kto"))
    assert "rl2f leaks RUN" in message


def test_hints_of_an_imported_dialogue_without_an_answer_stay_without_a_label_after_a_rescoring(
    workspace: Workspace, tmp_path: Path
) -> None:
    imported = RunDir.create(workspace.folder("run"), parse_config({"kind": "imported", "model": {"name": "unknown"}}))
    task = ENVIRONMENT.task("train", 0).model_copy(update={"environment": "imported", "privileged": {}})
    hint = Hint(text="It is A B.", teacher="imported")
    attempt = turn(ENVIRONMENT.task("train", 0), 0, "A A", None).model_copy(update={"hint": hint})
    JsonlSink(imported.events_path).emit([event(task, [attempt], name="d")])
    rescore(imported.path, workspace.folder("again"))
    manifest, labels = kto(FolderSource(imported.path), tmp_path / "out")
    assert manifest["labels"]["without"] == {"unlabeled": 1} and labels == {}


def kto_only(run: Path, out: Path) -> object:
    return export([FolderSource(run)], ExportSettings(formats=["unpaired_preference"]), out)
