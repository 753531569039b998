"""Events, commits of the journal and the run directory: no event is partial, lost or duplicated."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import ConfigError, DataError, DiskFullError, RunError
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import Event, JsonlSink, LogEvent, MetricEvent, StatusEvent, encode, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.journal import Journal
from rl2f_core.types import Hint


def log(name: str, text: str = "") -> LogEvent:
    return LogEvent(id=name, time=1.5, text=text)


def sink_with(path: Path, *events: Event, torn: bytes = b"") -> JsonlSink:
    sink = JsonlSink(path / "events.jsonl")
    sink.emit(events)
    with open(sink.path, "ab") as file:
        file.write(torn)
    return sink


def ids(path: Path) -> list[str]:
    return [event.id for event in read_events(path, strict=True)]


A, B, C, D = (log(name, f"say {name}") for name in "abcd")


# -- reading and writing -------------------------------------------------------------------------------------------
def test_events_round_trip(tmp_path: Path) -> None:
    events: list[Event] = [
        StatusEvent(id="s", time=2.0, status="running"),
        MetricEvent(id="m", time=2.5, stage="rl", step=3, values={"loss/rl": -0.25}),
        log("l", "line\u2028break \x85 \n 🙂 \x00"),
    ]
    sink = sink_with(tmp_path, *events)
    assert list(read_events(sink.path, strict=True)) == events
    assert sink.path.read_bytes().count(b"\n") == 3 and sink.offset() == sink.path.stat().st_size


def test_feedback_is_null_in_files_unless_a_leak_action_replaced_it() -> None:
    read, replaced = Hint(text="Look.", teacher="t"), Hint(text="", teacher="t", feedback="It is 8.")
    assert [hint.feedback for hint in (read, replaced)] == ["Look.", "It is 8."]
    written = [json.loads(hint.model_dump_json())["feedback"] for hint in (read, replaced)]
    assert written == [None, "It is 8."]
    assert [Hint.model_validate_json(hint.model_dump_json()) for hint in (read, replaced)] == [read, replaced]
    assert Hint.model_validate_json('{"text": "Look.", "teacher": "t"}') == read


def test_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    whole = encode(C)
    for cut in range(1, len(whole)):
        sink = sink_with(tmp_path, A, B, torn=whole[:cut])
        assert ids(sink.path) == ["a", "b"]
        sink.path.unlink()


def test_invalid_line_is_skipped_or_raises_if_strict(tmp_path: Path) -> None:
    sink = sink_with(tmp_path, A, torn=b'{"type":"log","id":\n\xff\xfe\n{"type":"dance","id":"x","time":1}\n')
    sink.emit([B])
    assert [event.id for event in read_events(sink.path)] == ["a", "b"]
    with pytest.raises(DataError, match="Line 2 of the event file is invalid"):
        list(read_events(sink.path, strict=True))


def test_missing_event_file_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be opened"):
        list(read_events(tmp_path / "none.jsonl"))
    assert JsonlSink(tmp_path / "none.jsonl").offset() == 0


# -- complete ------------------------------------------------------------------------------------------------------
def test_reconcile_appends_missing_bytes_at_any_offset(tmp_path: Path) -> None:
    written = encode(B) + encode(C)
    for held in range(len(written) + 1):
        folder = tmp_path / str(held)
        folder.mkdir()
        sink = sink_with(folder, A)
        start = sink.offset()
        with open(sink.path, "ab") as file:
            file.write(written[:held])
        for _ in range(2):
            sink.reconcile(start, encode(B) + encode(C))
            assert ids(sink.path) == ["a", "b", "c"], held


def test_reconcile_keeps_later_events_and_truncates_an_incomplete_line(tmp_path: Path) -> None:
    sink = sink_with(tmp_path, A)
    start = sink.offset()
    sink.emit([B, C])
    with open(sink.path, "ab") as file:
        file.write(encode(D)[:9])
    sink.reconcile(start, encode(B))
    assert ids(sink.path) == ["a", "b", "c"] and sink.path.read_bytes().endswith(encode(C))


def test_reconcile_rejects_foreign_events_and_changes_nothing(tmp_path: Path) -> None:
    sink = sink_with(tmp_path, A)
    start = sink.offset()
    sink.emit([D])
    before = sink.path.read_bytes()
    with pytest.raises(DataError, match="does not agree"):
        sink.reconcile(start, encode(B) + encode(C))
    assert sink.path.read_bytes() == before


@pytest.mark.parametrize("wanted", [b"", encode(B)])
def test_reconcile_rejects_a_file_that_is_too_short(tmp_path: Path, wanted: bytes) -> None:
    sink = sink_with(tmp_path, A)
    with pytest.raises(DataError, match="does not agree"):
        sink.reconcile(sink.offset() + 1, wanted)
    assert ids(sink.path) == ["a"]


# -- a full disk ---------------------------------------------------------------------------------------------------
@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes: a small, real full disk."""
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_full_disk_leaves_no_partial_event(tmp_path: Path) -> None:
    sink = sink_with(tmp_path, A)
    before = sink.path.read_bytes()
    with file_limit(len(before) + 20), pytest.raises(DiskFullError, match="Free space, then resume"):
        sink.emit([B, C])
    assert sink.path.read_bytes() == before
    sink.emit([B])
    assert ids(sink.path) == ["a", "b"]


# -- commits -------------------------------------------------------------------------------------------------------
CONFIG = {
    "environment": {"type": "guess_number", "low": 1, "size": 4},
    "stages": [{"name": "s", "method": "sft", "steps": 1}],
}


def new_run(path: Path) -> RunDir:
    return RunDir.create(path / "run", parse_config(CONFIG))


def journal_of(run_dir: RunDir) -> Journal:
    journal = Journal(run_dir, JsonlSink(run_dir.events_path))
    journal.resume()
    return journal


def weights(text: str) -> Any:
    return lambda folder: (folder / "adapter_model.safetensors").write_text(text)


def commit(journal: Journal, step: int, *events: Event, save: Any = None) -> None:
    journal.emit(events)
    journal.commit({"step": step}, save)


def test_events_become_visible_with_their_commit(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    journal = journal_of(run_dir)
    journal.emit([A])
    assert journal.resume_state is None and not run_dir.events_path.exists()
    commit(journal, 1, B, save=weights("one"))
    assert ids(run_dir.events_path) == ["a", "b"] and journal.pending == []
    again = journal_of(run_dir)
    assert again.resume_state == {"step": 1} and again.state_dir == run_dir.state / "1"
    assert (again.state_dir / "adapter_model.safetensors").read_text() == "one"


def test_only_the_last_commit_is_kept_and_weights_are_linked_if_none_are_given(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    journal = journal_of(run_dir)
    commit(journal, 1, A, save=weights("one"))
    commit(journal, 2, B)
    assert sorted(p.name for p in run_dir.state.iterdir()) == ["2", "CURRENT"]
    assert (run_dir.state / "2" / "adapter_model.safetensors").read_text() == "one"
    assert journal_of(run_dir).resume_state == {"step": 2}


def stages_of_a_commit(run_dir: RunDir, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Copies of the folder as a kill would leave it at every moment of a second commit."""
    copies: list[Path] = []

    def snap(*args: Any) -> None:
        copy = run_dir.path.parent / f"copy{len(copies)}"
        shutil.copytree(run_dir.path, copy)
        copies.append(copy)

    sync, rename, replace = os.fsync, os.rename, os.replace
    monkeypatch.setattr("os.fsync", lambda fd: (snap(), sync(fd), snap())[0])
    monkeypatch.setattr("os.rename", lambda a, b: (snap(), rename(a, b), snap())[0])
    monkeypatch.setattr("os.replace", lambda a, b: (snap(), replace(a, b), snap())[0])
    commit(journal, 2, C, D, save=weights("two"))
    monkeypatch.undo()
    snap()
    return copies


def test_commit_is_atomic_at_any_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = new_run(tmp_path)
    journal = journal_of(run_dir)
    commit(journal, 1, A, B, save=weights("one"))
    outcomes = []
    for copy in stages_of_a_commit(run_dir, journal, monkeypatch):
        killed = RunDir(copy)
        resumed = journal_of(killed)
        assert resumed.resume_state is not None and resumed.state_dir is not None
        step = resumed.resume_state["step"]
        outcomes.append(step)
        assert (resumed.state_dir / "adapter_model.safetensors").read_text() == {1: "one", 2: "two"}[step]
        if step == 1:  # the step is played again, with the same events
            commit(resumed, 2, C, D, save=weights("two"))
        assert ids(killed.events_path) == ["a", "b", "c", "d"]
        assert journal_of(killed).resume_state == {"step": 2}
        assert sorted(p.name for p in killed.state.iterdir()) == ["2", "CURRENT"] or step == 2
    assert outcomes == sorted(outcomes) and {1, 2} == set(outcomes) and len(outcomes) > 8


@pytest.mark.parametrize("limit", [0, 40, 400])
def test_full_disk_undoes_the_commit_and_the_run_can_resume(tmp_path: Path, limit: int) -> None:
    run_dir = new_run(tmp_path)
    journal = journal_of(run_dir)
    commit(journal, 1, A, save=weights("one"))
    with file_limit(limit), pytest.raises(DiskFullError):
        commit(journal, 2, B, log("long", "x" * 4000), save=weights("w" * 300))
    assert [p.name for p in run_dir.state.iterdir() if p.name.startswith(".")] == []
    resumed = journal_of(run_dir)
    assert resumed.resume_state == {"step": 1} and ids(run_dir.events_path) == ["a"]
    commit(resumed, 2, B, save=weights("two"))
    assert ids(run_dir.events_path) == ["a", "b"]


class Full(JsonlSink):
    """Has room for small writes only."""

    def emit(self, events: Sequence[Event]) -> None:
        if any(event.type == "log" for event in events):
            raise DiskFullError("The disk is full.")
        super().emit(events)


class Committing:
    """A kind that commits one step."""

    config_class = RunConfig

    def execute(self, config: Any, context: RunContext) -> bool:
        commit(context.journal, 1, A, B)
        return True


def test_nothing_else_is_appended_if_the_events_of_a_commit_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = new_run(tmp_path)
    monkeypatch.setitem(registry._components["run_kind"], "train", Committing)
    with pytest.raises(DiskFullError):
        execute(run_dir.config(), run_dir, Full(run_dir.events_path), lambda: False)
    assert [e.status for e in read_events(run_dir.events_path) if isinstance(e, StatusEvent)] == ["running"]
    assert json.loads(run_dir.heartbeat_path.read_text())["status"] == "failed"
    assert journal_of(run_dir).resume_state == {"step": 1}
    assert ids(run_dir.events_path)[1:] == ["a", "b"]


# -- damage --------------------------------------------------------------------------------------------------------
DAMAGE = {
    "weights cut": lambda state: (state / "1" / "adapter_model.safetensors").write_bytes(b"on"),
    "weights gone": lambda state: (state / "1" / "adapter_model.safetensors").unlink(),
    "events cut": lambda state: (state / "1" / "events.jsonl").write_bytes(encode(A)[:20]),
    "state cut": lambda state: (state / "1" / "state.json").write_text('{"position": {"ste'),
    "state empty": lambda state: (state / "1" / "state.json").write_text("{}"),
    "state a list": lambda state: (state / "1" / "state.json").write_text("[]"),
    "state not text": lambda state: (state / "1" / "state.json").write_bytes(b"\xff\xfe"),
    "files a list": lambda state: (state / "1" / "state.json").write_text(
        '{"position": {}, "events_from": 0, "files": ["a"]}'
    ),
    "folder gone": lambda state: shutil.rmtree(state / "1"),
    "pointer empty": lambda state: (state / "CURRENT").write_text(""),
    "pointer not text": lambda state: (state / "CURRENT").write_bytes(b"\xff"),
    "pointer elsewhere": lambda state: (state / "CURRENT").write_text("../.."),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_corrupted_state_raises_and_changes_no_event(tmp_path: Path, damage: Any) -> None:
    run_dir = new_run(tmp_path)
    commit(journal_of(run_dir), 1, A, save=weights("one"))
    damage(run_dir.state)
    before = run_dir.events_path.read_bytes()
    with pytest.raises(DataError) as caught:
        journal_of(run_dir)
    assert "state" in str(caught.value) and run_dir.events_path.read_bytes() == before


def test_pointer_can_end_with_a_newline(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    commit(journal_of(run_dir), 1, A)
    (run_dir.state / "CURRENT").write_text("1\n")
    assert journal_of(run_dir).resume_state == {"step": 1}


def test_incomplete_line_before_the_first_commit_is_truncated(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    run_dir.events_path.write_bytes(encode(A) + encode(B)[:12])
    journal = journal_of(run_dir)
    commit(journal, 1, C)
    assert ids(run_dir.events_path) == ["a", "c"]


# -- the folder ----------------------------------------------------------------------------------------------------
def test_run_directory_stores_configuration_and_provenance(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    assert RunDir.open(run_dir.path).config() == parse_config(CONFIG)
    meta = json.loads(run_dir.meta_path.read_text())
    assert meta["seed"] == 0 and meta["packages"]["pydantic"] and "git" in meta and meta["python"].startswith("3.")


def test_the_hardware_of_a_run_is_stored(tmp_path: Path) -> None:
    hardware = json.loads(new_run(tmp_path).meta_path.read_text())["hardware"]
    assert set(hardware) == {"cpu", "cores", "memory_gb", "gpu"}
    assert hardware["cpu"] and hardware["cores"] >= 1 and hardware["memory_gb"] > 0.1


class Busy:
    """A run kind that uses some CPU time."""

    supports_distributed = False

    def execute(self, config: Any, context: RunContext) -> bool:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        return True


def test_the_last_status_contains_the_cpu_time_of_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = new_run(tmp_path)
    config = run_dir.config()
    monkeypatch.setitem(registry._components["run_kind"], "train", Busy)
    execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False)
    running, succeeded = [e for e in read_events(run_dir.events_path, strict=True) if isinstance(e, StatusEvent)]
    assert running.cpu_seconds is not None and running.cpu_seconds < 0.2
    assert succeeded.cpu_seconds is not None and 0.25 <= succeeded.cpu_seconds < 30


def test_existing_run_is_not_overwritten_and_empty_folder_is_not_opened(tmp_path: Path) -> None:
    new_run(tmp_path)
    with pytest.raises(RunError, match="The folder already contains a run"):
        new_run(tmp_path)
    with pytest.raises(RunError, match="The folder contains no run"):
        RunDir.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError):
        RunDir.create(tmp_path / "file", parse_config(CONFIG))


def test_checkpoints_are_resolved_by_name_inside_the_run(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    for number, name in enumerate(("rl@2", "rl@10", "warm@4")):
        folder = run_dir.checkpoints / name
        folder.mkdir(parents=True)
        (folder / "adapter_model.safetensors").write_text(name)
        os.utime(folder / "adapter_model.safetensors", (number, number))
    (run_dir.checkpoints / "half@1").mkdir()
    assert run_dir.checkpoint_names() == ["rl@2", "rl@10", "warm@4"]
    assert run_dir.checkpoint("rl@10").name == "rl@10"
    for name in ("half@1", "rl@3", "../rl@2", "rl@2/.."):
        with pytest.raises(ConfigError, match="no such checkpoint"):
            run_dir.checkpoint(name)


def test_run_is_locked_by_one_process(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    code = (
        "import sys; from rl2f_core.run.directory import RunDir\n"
        "with RunDir(sys.argv[1]).lock():\n    print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run_dir.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another process"):
            run_dir.lock()
        with pytest.raises(RunError, match="another process"):
            execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), lambda: False)
        assert not run_dir.events_path.exists()
    finally:
        process.communicate()
    with run_dir.lock():
        pass


class Raising:
    """A kind that ends by an error."""

    config_class = RunConfig

    def execute(self, config: Any, context: RunContext) -> bool:
        commit(context.journal, 1, A)
        context.journal.emit([B])
        raise {"error": ValueError("no luck"), "ctrl-c": KeyboardInterrupt()}[config.name]


@pytest.mark.parametrize(("name", "status"), [("error", "failed"), ("ctrl-c", "interrupted")])
def test_final_status_is_recorded_without_uncommitted_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, status: str
) -> None:
    run_dir, config = new_run(tmp_path), parse_config(CONFIG).model_copy(update={"name": name})
    monkeypatch.setitem(registry._components["run_kind"], "train", Raising)
    with pytest.raises((ValueError, KeyboardInterrupt)):
        execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False)
    events = list(read_events(run_dir.events_path, strict=True))
    assert [e.status for e in events if isinstance(e, StatusEvent)] == ["running", status]
    assert [e.id for e in events if isinstance(e, LogEvent)] == ["a"]
    with run_dir.lock():
        pass  # it was released


def test_finished_run_is_not_executed_again(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    journal_of(run_dir).commit({"done": True})
    with pytest.raises(RunError, match="finished"):
        execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), lambda: False)


def test_a_run_whose_disk_was_full_after_its_last_commit_ends_with_success_when_it_is_resumed(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path)
    journal_of(run_dir).commit({"done": True})
    run_dir.heartbeat(status="failed", detail="The disk is full.")
    ended = execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), lambda: False)
    assert ended.status == "succeeded" == run_dir.last_status()
