"""Observers in their threads: slow, failing and dead ones never stop a run, and what they lose is counted."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from tracking_data import config_with, metric

from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError
from rl2f_core.run import observers
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import Event, JsonlSink, LogEvent, StatusEvent, encode, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.kinds.train import Train
from rl2f_core.run.observers import ObservedSink, Observer


class Recorder(Observer):
    """Keeps events; fails on the metrics of steps in `bad`, and blocks until `gate` is set."""

    name = "recorder"

    def __init__(self, bad: tuple[int, ...] = (), opens: bool = True) -> None:
        self.seen: list[Event] = []
        self.bad, self.opens, self.closed = bad, opens, False
        self.gate = threading.Event()
        self.gate.set()

    def open(self) -> None:
        if not self.opens:
            raise ConnectionError("no route to host")

    def observe(self, event: Event) -> None:
        self.gate.wait()
        if getattr(event, "step", None) in self.bad:
            raise ValueError(f"step {event.step} is bad")  # type: ignore[union-attr]
        self.seen.append(event)

    def close(self) -> None:
        self.closed = True


def sink_with(tmp_path: Path, *watching: Observer) -> ObservedSink:
    sink = ObservedSink(JsonlSink(tmp_path / "events.jsonl"), watching)
    sink.start()
    return sink


def logs(tmp_path: Path) -> list[str]:
    return [e.text for e in read_events(tmp_path / "events.jsonl") if isinstance(e, LogEvent)]


def test_an_observer_receives_all_events_in_order_and_nothing_is_logged(tmp_path: Path) -> None:
    recorder = Recorder()
    sink = sink_with(tmp_path, recorder)
    events = [metric("rl", step, reward=step) for step in range(1, 6)]
    sink.emit(events[:2])
    sink.emit(events[2:])
    sink.close(log=True)
    assert recorder.seen == events
    assert recorder.closed
    assert list(read_events(tmp_path / "events.jsonl")) == events


def test_a_failing_event_is_lost_and_counted_and_the_later_ones_arrive(tmp_path: Path) -> None:
    recorder = Recorder(bad=(2, 3))
    sink = sink_with(tmp_path, recorder)
    for step in range(1, 6):
        sink.emit([metric("rl", step, reward=0)])
    sink.close(log=True)
    assert [e.step for e in recorder.seen] == [1, 4, 5]  # type: ignore[union-attr]
    text = "\n".join(logs(tmp_path))
    assert text.count("recorder: ValueError: step 2 is bad") == 1
    assert "step 3 is bad" not in text  # only the first error of an observer is logged
    assert "recorder: 2 of 5 events were lost" in text


def test_an_observer_that_cannot_be_opened_loses_all_events(tmp_path: Path) -> None:
    recorder = Recorder(opens=False)
    sink = sink_with(tmp_path, recorder)
    sink.emit([metric("rl", 1, reward=0)])
    sink.close(log=True)
    assert recorder.seen == [] and not recorder.closed
    text = "\n".join(logs(tmp_path))
    assert "ConnectionError: no route to host" in text and "1 of 1 events were lost" in text


def test_a_blocked_observer_neither_blocks_the_run_nor_another_observer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observers, "QUEUE_SIZE", 3)
    monkeypatch.setattr(observers, "CLOSE_SECONDS", 0.2)
    blocked, quick = Recorder(), Recorder()
    blocked.gate.clear()
    sink = sink_with(tmp_path, blocked, quick)
    began = time.monotonic()
    for step in range(10):
        sink.emit([metric("rl", step, reward=0)])
        while len(quick.seen) <= step:  # its queue is short, too
            time.sleep(0.001)
    sink.close(log=True)
    assert time.monotonic() - began < 5
    assert len(quick.seen) == 10
    assert logs(tmp_path) == ["recorder: 10 of 10 events were lost"]
    blocked.gate.set()


def test_the_file_of_events_keeps_its_positions_when_errors_are_logged(tmp_path: Path) -> None:
    """A resume compares the bytes after the recorded position with the events of the last commit."""
    sink = sink_with(tmp_path, Recorder(bad=(1,)))
    sink.emit([metric("rl", 1, reward=0)])
    position, last = sink.offset(), [metric("rl", 2, reward=0)]
    deadline = time.monotonic() + 5
    while not logs(tmp_path) and time.monotonic() < deadline:  # the error is logged after the events of a commit
        position = sink.offset()
        sink.emit(last)
    sink.close(log=False)
    JsonlSink(tmp_path / "events.jsonl").reconcile(position, encode(last[0]))
    assert logs(tmp_path) == ["recorder: ValueError: step 1 is bad"]


# -- in a run ------------------------------------------------------------------------------------------------------
@pytest.fixture
def short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training runs emit one metric, and then end as their name says."""

    def execute(kind: Train, config: BaseRun, context: RunContext) -> bool:
        context.journal.emit([metric("rl", 1, reward=1.0, leak_rate=0.5)])
        context.journal.commit({"done": config.name != "stopped"})
        if config.name == "failed":
            raise RuntimeError("out of luck")
        return config.name != "stopped"

    monkeypatch.setattr(Train, "execute", execute)


@pytest.mark.parametrize("name", ["succeeded", "stopped", "failed"])
def test_a_run_reports_its_end_to_the_command_of_its_alerts(name: str, tmp_path: Path, short_run: None) -> None:
    command = ["/bin/sh", "-c", '(cat; echo) >> "$0"', str(tmp_path / "alerts.jsonl")]
    config = config_with(name=name, alerts={"command": command, "leak_rate_above": 0.4})
    run_dir = RunDir.create(tmp_path / "run", config)
    if name == "failed":
        with pytest.raises(RuntimeError):
            execute(config, run_dir, JsonlSink(run_dir.events_path), bool)
    else:
        execute(config, run_dir, JsonlSink(run_dir.events_path), bool)
    alerts = [json.loads(line) for line in (tmp_path / "alerts.jsonl").read_text().splitlines()]
    assert [a["alert"] for a in alerts] == ["leak_rate", "failed" if name == "failed" else "finished"]
    expected = {"failed": "failed: RuntimeError: out of luck"}.get(name, name)
    assert alerts[1]["text"] == f"{name}: {expected}"


def test_a_dead_tracker_does_not_change_how_a_run_ends(tmp_path: Path, short_run: None) -> None:
    config = config_with(name="succeeded", alerts={"command": ["/does/not/exist"]})
    run_dir = RunDir.create(tmp_path / "run", config)
    result = execute(config, run_dir, JsonlSink(run_dir.events_path), bool)
    assert result.status == "succeeded"
    events = list(read_events(run_dir.events_path))
    assert [e.status for e in events if isinstance(e, StatusEvent)] == ["running", "succeeded"]
    warnings = [e for e in events if isinstance(e, LogEvent) and e.level == "warning"]
    assert "alerts: RunError: The alert finished was not sent: command: FileNotFoundError." in warnings[-1].text


def test_a_missing_package_of_a_tracker_ends_the_run_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = config_with(tracking="tensorboard")
    run_dir = RunDir.create(tmp_path / "run", config)
    with pytest.raises(
        ConfigError, match=r"needs packages that are not installed: tensorboard.*pip install tensorboard"
    ):
        execute(config, run_dir, JsonlSink(run_dir.events_path), bool)
    assert not run_dir.events_path.exists()
