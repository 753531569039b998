"""A small finished run as events, and a tracker that keeps what it receives."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import yaml
from export_builders import CONFIG, ENVIRONMENT, answer, event, turn, wrong

from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import Event, MetricEvent, StatusEvent
from rl2f_core.run.tracking.base import Messages, Tracker, TrackerConfig
from rl2f_core.types import JsonObject

STAGES = [
    {"name": "warm", "method": "sft", "steps": 2, "tasks_per_step": 2, "group_size": 2},
    {"name": "rl", "method": "rl2f", "steps": 3, "tasks_per_step": 2, "group_size": 2},
]


def config_with(**changes: Any) -> RunConfig:
    """The configuration of a run with two stages of 2 and 3 steps."""
    config = parse_config({**CONFIG, "stages": STAGES, **changes})
    assert isinstance(config, RunConfig)
    return config


def run_dir_of(folder: Path, config: RunConfig) -> RunDir:
    return RunDir.create(folder, config)


def metric(stage: str, step: int, **values: float) -> MetricEvent:
    return MetricEvent(id=f"metric:{stage}:{step}", stage=stage, step=step, values=values, time=1000.0 + step)


def dialogue(step: int, number: int = 0, index: int = 0) -> Any:
    """A dialogue of stage rl: a wrong attempt, a hint, a correct attempt."""
    task = ENVIRONMENT.task("train", 100 * step + number)
    turns = [
        turn(task, 0, wrong(task), "Try the other letter."),
        turn(task, 1, f"<answer>{answer(task)}</answer>", None),
    ]
    return event(task, turns, name=f"rl/{step}/{number}/{index}", index=index, step=step)


def status(value: str) -> StatusEvent:
    return StatusEvent(id=f"status:{value}", status=value)  # type: ignore[arg-type]


def replay(tracker: Tracker, events: Sequence[Event]) -> None:
    """Give events to a tracker as its thread would."""
    tracker.open()
    for each in events:
        if tracker.handles(each):
            tracker.observe(each)
    tracker.close()


class Memory(Tracker):
    """Keeps in lists what it receives."""

    class Config(TrackerConfig):
        """Keeps everything."""

        type: Literal["memory"] = "memory"

    name = "memory"
    packages = ()

    def start(self, id: str | None) -> str:
        self.received: list[tuple[Any, ...]] = []
        return id or self.new_id()

    def log_metrics(self, values: dict[str, float], step: int, time: float) -> None:
        self.received.append(("metrics", step, values))

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[str]], step: int) -> None:
        self.received.append(("table", step, name))

    def log_dialogue(self, name: str, messages: Messages, facts: JsonObject, step: int) -> None:
        self.received.append(("dialogue", step, name, messages, facts))


@contextmanager
def webhook(statuses: Sequence[int] = ()) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A local server that keeps the JSON bodies it receives; answers `statuses` in order, then 200."""
    bodies: list[dict[str, Any]] = []
    answers = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            bodies.append(yaml.safe_load(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers.pop(0) if answers else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook/SECRET", bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
