"""Files, manifest and card of an export; what stops it, and what is left then."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_builders import ENVIRONMENT, event, leaky_events, rows_of, turn, write_run, wrong

from jobs.export.datasets.dataset_types import FORMATS
from jobs.export.datasets.exporter import SCHEMA_VERSION, export, summary
from jobs.export.datasets.settings import ExportFilter, ExportSettings
from jobs.export.datasets.sources import BATCH, FolderSource
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import ConfigError, DataError, DiskFullError, RunError
from rl2f_core.run.context import Progress

ROOT = Path(__file__).resolve().parents[3]


def made(tmp_path: Path, events: Any = None, **settings: Any) -> tuple[dict[str, Any], Path]:
    """An export of one run; its manifest and its folder."""
    run = write_run(tmp_path / "run", leaky_events() if events is None else events)
    manifest = export([FolderSource(run)], ExportSettings(**settings), tmp_path / "out")
    assert manifest is not None
    return manifest, tmp_path / "out"


def clean_run(tmp_path: Path, leaked: bool | None = False) -> FolderSource:
    """A run whose hints all have the same finding."""
    task = ENVIRONMENT.task("train", 0)
    turns = [turn(task, 0, wrong(task), "hint", leaked), turn(task, 1, wrong(task), None)]
    return FolderSource(write_run(tmp_path / "clean", [event(task, turns, name="d")]))


# -- what is written -------------------------------------------------------------------------------------------------
def test_the_manifest_tells_rows_checksums_labels_and_settings(tmp_path: Path) -> None:
    manifest, out = made(tmp_path, seed=3, filter={"step_to": 1})
    assert manifest == json.loads((out / "manifest.json").read_text())
    assert manifest["schema_version"] == SCHEMA_VERSION
    assert manifest["settings"]["seed"] == 3 and manifest["settings"]["filter"]["step_to"] == 1
    for name, entry in manifest["formats"].items():
        assert set(entry["files"]) == {f"{name}.jsonl", f"{name}.parquet"}
        assert entry["rows"] == len(rows_of(out / f"{name}.jsonl"))
        for file, facts in entry["files"].items():
            data = (out / file).read_bytes()
            assert facts == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    # two tasks are in step 1, each with a dialogue of a clean and a leaking hint and one of two clean hints
    assert manifest["labels"] == {
        "hints": 8, "human": {}, "detector": {"leak": 2, "no_leak": 6}, "planted": {}, "without": {},
    }  # fmt: skip
    assert {name: entry["rows"] for name, entry in manifest["formats"].items()} == {
        "unpaired_preference": 8,
        "preference": 2,
        "messages": 4,
    }
    (run,) = manifest["runs"]
    assert run["name"] == "leaky" and run["dialogues"] == 4 and run["environment"]["type"] == "secret_code"
    assert run["detectors"] == ["mentions 1"], "with the version of their weights"
    assert manifest["packages"]["rl2f"] and str(tmp_path) not in json.dumps(manifest)


def test_both_file_types_hold_the_same_rows_in_the_declared_columns(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    _, out = made(tmp_path, formats=list(FORMATS))
    for name, format in FORMATS.items():
        table = pq.read_table(out / f"{name}.parquet")
        assert table.schema.names == list(format.columns)
        assert table.to_pylist() == rows_of(out / f"{name}.jsonl")


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    events = leaky_events(siblings=4)
    first, _ = made(tmp_path / "a", events)
    again, _ = made(tmp_path / "b", events)
    assert first["formats"] == again["formats"]


def test_the_card_has_a_valid_header_and_no_markup_of_strangers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", leaky_events())
    title = "<img src=x> | `a` **b** [l](http://x) & \n---\nfoo: bar"
    manifest = export([FolderSource(run)], ExportSettings(), tmp_path / "out", name=title)
    text = (tmp_path / "out" / "README.md").read_text()
    _, header, body = text.split("---\n", 2)
    data = yaml.safe_load(header)
    assert data["pretty_name"] == title
    assert [c["config_name"] for c in data["configs"]] == list(ExportSettings().formats)
    assert all((tmp_path / "out" / c["data_files"][0]["path"]).is_file() for c in data["configs"])
    assert "<img" not in body and "**b**" not in body
    assert manifest is not None and "Exported 8 dialogues with 16 hints" in summary(manifest)


def test_one_type_as_json_lines_alone_is_just_that(tmp_path: Path) -> None:
    manifest, out = made(tmp_path, formats=["messages", "messages"], files=["jsonl"])
    assert sorted(p.name for p in out.iterdir()) == ["README.md", "manifest.json", "messages.jsonl"]
    assert manifest["formats"]["messages"]["rows"] == 8


def test_a_type_without_rows_is_left_out_with_its_reason(tmp_path: Path) -> None:
    manifest = export([clean_run(tmp_path)], ExportSettings(), tmp_path / "out")
    assert manifest is not None and "preference" not in manifest["formats"]
    assert "No task has both a leaking hint and a teacher's own hint" in manifest["left_out"]["preference"]
    assert "No task has both" in (tmp_path / "out" / "README.md").read_text()
    assert not list((tmp_path / "out").glob("preference.*"))


def test_export_filter_selects_matching_dialogues(tmp_path: Path) -> None:
    task = ENVIRONMENT.task("train", 0)
    turns = [turn(task, 0, wrong(task), "hint"), turn(task, 1, wrong(task), None)]
    events = [
        event(task, turns, name="t", step=3),
        event(task, turns, name="e", step=0, phase="evaluation", checkpoint="rl@2", condition="hints"),
        event(task, turns, name="s", step=0, phase="evaluation", checkpoint="rl@2", condition="shuffled"),
        event(task, turns, name="b", step=0, phase="evaluation", checkpoint="base", condition="hints"),
    ]
    source = FolderSource(write_run(tmp_path / "run", events))

    def taken(**filter: Any) -> set[str]:
        found = [r.event.id for batch in source.batches(ExportFilter(**filter)) for r in batch]
        assert len(found) == source.count(ExportFilter(**filter))
        return {name.rpartition(":")[2] for name in found}

    everything = taken(include_controls=True)
    assert taken() == {"t", "e", "b"} and everything == {"t", "e", "s", "b"}
    assert taken(phase="train") == taken(step_from=1) == taken(step_from=3, step_to=3) == {"t"}
    assert taken(step_to=2) == {"e", "b"} and taken(stage="rl") == taken() and taken(stage="sft") == set()
    assert taken(checkpoint="rl@2", include_controls=True) == {"e", "s"} and taken(checkpoint="rl@2") == {"e"}
    assert taken(condition="hints") == {"e", "b"} and taken(condition="shuffled") == set()
    assert taken(condition="shuffled", include_controls=True) == {"s"}
    assert taken(labeled_only=True) == set()


def test_duplicate_events_and_incomplete_lines_are_skipped(tmp_path: Path) -> None:
    events = leaky_events(tasks=1)
    run = write_run(tmp_path / "run", [*events, *events])
    with open(run / "events.jsonl", "a") as file:
        file.write('{"id":"dialogue:train:x","type":"dial')
    manifest = export([FolderSource(run)], ExportSettings(), tmp_path / "out")
    assert manifest is not None and manifest["dialogues"] == 2


def test_an_unknown_environment_is_exported_with_its_tasks_as_json(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", leaky_events(tasks=1))
    text = (run / "events.jsonl").read_text().replace('"environment":"secret_code"', '"environment":"not_installed"')
    (run / "events.jsonl").write_text(text)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "environment": {"type": "not_installed"}}))
    export([FolderSource(run)], ExportSettings(formats=["messages"]), tmp_path / "out")
    row = rows_of(tmp_path / "out" / "messages.jsonl")[0]
    assert row["messages"][0]["role"] == "user" and '"letters"' in row["messages"][0]["content"]
    assert "code" not in json.loads(row["messages"][0]["content"])  # the public half alone


def test_a_task_of_another_environment_than_the_runs_is_worded_by_its_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", leaky_events(tasks=1), environment={"type": "guess_number"})
    export([FolderSource(run)], ExportSettings(formats=["stepwise_supervision"]), tmp_path / "out")
    row = rows_of(tmp_path / "out" / "stepwise_supervision.jsonl")[0]
    assert row["prompt"] == ENVIRONMENT.prompt(ENVIRONMENT.task("train", 0).public)


# -- nothing to export -----------------------------------------------------------------------------------------------
def test_a_run_without_dialogues_says_what_to_do(tmp_path: Path) -> None:
    source = FolderSource(write_run(tmp_path / "run", []))
    with pytest.raises(DataError, match=r"no dialogues.*Fix: Wait until the first step"):
        export([source], ExportSettings(), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_a_filter_that_takes_nothing_names_itself_and_how_many_there_are(tmp_path: Path) -> None:
    source = FolderSource(write_run(tmp_path / "run", leaky_events()))
    with pytest.raises(DataError, match=r"\{'condition': 'shuffled'\}.*without it there are 8 dialogues"):
        export([source], ExportSettings(filter={"condition": "shuffled"}), tmp_path / "out")


def test_unchecked_hints_have_no_label_but_are_in_messages(tmp_path: Path) -> None:
    source = clean_run(tmp_path, leaked=None)
    with pytest.raises(DataError, match=r"None of the 1 hints in 1 dialogues has a label.*`messages` needs no labels"):
        export([source], ExportSettings(formats=["unpaired_preference", "preference"]), tmp_path / "out")
    manifest = export([source], ExportSettings(), tmp_path / "out")
    assert manifest is not None and list(manifest["formats"]) == ["messages"]


def test_pairs_alone_without_a_leak_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0 hints leak, 1 do not.*export unpaired_preference instead"):
        export([clean_run(tmp_path)], ExportSettings(formats=["preference"]), tmp_path / "out")


def test_a_run_directory_has_no_human_labels(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no human labels"):
        export([clean_run(tmp_path)], ExportSettings(labels="human"), tmp_path / "out")


@pytest.mark.parametrize(
    "wrong_settings",
    [
        {"formats": []},
        {"formats": ["csv"]},
        {"labels": "detector", "annotator": "ann"},
        {"filter": {"step_from": 5, "step_to": 2}},
        {"pairs_per_leak": 0},
        {"nonsense": 1},
        {"runs": []},
        {"name": "../x"},
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(wrong_settings: dict[str, Any]) -> None:

    from jobs import run_kinds

    run_kinds.load()
    with pytest.raises(ConfigError, match=next(iter(wrong_settings))):
        parse_config({"kind": "export", "runs": [1], **wrong_settings})


# -- interruptions ---------------------------------------------------------------------------------------------------
def test_a_folder_with_something_else_in_it_is_never_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    for replace in (False, True):
        with pytest.raises(RunError, match="not empty"):
            export([clean_run(tmp_path / str(replace))], ExportSettings(), out, replace=replace)
    assert [p.name for p in out.iterdir()] == ["thesis.txt"]


def test_an_export_is_replaced_only_when_asked_and_only_by_a_whole_one(tmp_path: Path) -> None:
    _, out = made(tmp_path)
    before = (out / "manifest.json").read_bytes()
    source = clean_run(tmp_path)
    with pytest.raises(RunError, match="not empty"):
        export([source], ExportSettings(), out)
    with pytest.raises(DataError):
        export([source], ExportSettings(formats=["preference"]), out, replace=True)
    assert (out / "manifest.json").read_bytes() == before
    export([source], ExportSettings(formats=["messages"]), out, replace=True)
    assert sorted(p.name for p in out.iterdir()) == ["README.md", "manifest.json", "messages.jsonl", "messages.parquet"]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.slow
def test_a_stopped_export_leaves_nothing_and_can_be_started_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", leaky_events(tasks=BATCH, siblings=2))
    heard: list[float] = []

    class Counting(Progress):
        def update(self, phase: str, done: float, total: float | None, note: str = "") -> None:
            heard.append(done)

    def stop() -> bool:
        return len(heard) == 1

    assert export([FolderSource(run)], ExportSettings(), tmp_path / "out", stop=stop, progress=Counting()) is None
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert heard == [BATCH]
    assert export([FolderSource(run)], ExportSettings(), tmp_path / "out") is not None


KILLED = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from jobs.export.datasets.exporter import export
    from jobs.export.datasets.settings import ExportSettings
    from jobs.export.datasets.sources import FolderSource
    from rl2f_core.run.context import Progress

    class Waiting(Progress):
        def update(self, *args):
            print("at work", flush=True)
            time.sleep(60)

    export([FolderSource(sys.argv[1])], ExportSettings(), Path(sys.argv[2]), progress=Waiting())
    """
)


@pytest.mark.slow
def test_a_killed_export_leaves_no_export_and_the_next_one_clears_up(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", leaky_events())
    out = tmp_path / "exports" / "out"
    process = subprocess.Popen([sys.executable, "-c", KILLED, run, out], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"at work\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    left = [p.name for p in out.parent.iterdir()]
    assert left == [f".out.{process.pid}.tmp"] and not out.exists()
    export([FolderSource(run)], ExportSettings(), out)
    assert [p.name for p in out.parent.iterdir()] == ["out"]


FULL = textwrap.dedent(
    """
    import resource, signal, sys
    from pathlib import Path
    from jobs.export.datasets.exporter import export
    from jobs.export.datasets.settings import ExportSettings
    from jobs.export.datasets.sources import FolderSource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    source = FolderSource(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        settings = ExportSettings(files=[sys.argv[3]], formats=["messages"])
        export([source], settings, Path(sys.argv[2]))
    except Exception as error:
        print(type(error).__name__, error)
    """
)


@pytest.mark.parametrize("kind", ["jsonl", pytest.param("parquet", marks=pytest.mark.slow)])
def test_a_full_disk_raises_and_leaves_no_files(tmp_path: Path, kind: str) -> None:
    run = write_run(tmp_path / "run", leaky_events(tasks=1200 if kind == "parquet" else 50, siblings=2))
    command = [sys.executable, "-c", FULL, run, tmp_path / "exports" / "out", kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.startswith(f"{DiskFullError.__name__} The disk is full."), done.stdout + done.stderr
    assert list((tmp_path / "exports").iterdir()) == []


MEASURED = textwrap.dedent(
    """
    import re, sys
    from pathlib import Path
    from jobs.export.datasets.exporter import export
    from jobs.export.datasets.settings import ExportSettings
    from jobs.export.datasets.sources import FolderSource

    manifest = export([FolderSource(sys.argv[1])], ExportSettings(), Path(sys.argv[2]))
    # getrusage would tell the peak of the process that started this one
    peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
    print(peak // 1024, manifest["dialogues"])
    """
)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_dialogues(tmp_path: Path) -> None:
    peaks = []
    for tasks in (2_000, 10_000):
        run = write_run(tmp_path / f"run{tasks}", leaky_events(tasks=tasks, siblings=2))
        command = [sys.executable, "-c", MEASURED, run, tmp_path / f"out{tasks}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peak, dialogues = done.stdout.split()
        assert int(dialogues) == 2 * tasks
        peaks.append(int(peak))
    assert peaks[1] < peaks[0] + 50, peaks  # MB, for five times as many dialogues


def test_a_temporary_folder_of_a_living_export_is_left_alone(tmp_path: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        other = tmp_path / f".out.{sleeper.pid}.tmp"
        other.mkdir()
        made(tmp_path)
        assert other.is_dir() and not (tmp_path / f".out.{os.getpid()}.tmp").exists()
    finally:
        sleeper.kill()
        sleeper.wait()
