"""Whole runs of a tiny model: reproducible, and unchanged by stops, crashes and resumes.

The tests compare the final adapter, bit for bit, and all events except statuses, without times."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from run_helpers import adapter, assert_same_run, config_of, content, go, statuses

from rl2f_core.config.loading import dump_yaml
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import PreflightError, RunError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import (
    CheckpointEvent,
    DialogueEvent,
    Event,
    JsonlSink,
    LogEvent,
    MetricEvent,
    StatusEvent,
    encode,
    read_events,
)
from rl2f_core.run.journal import Journal

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module", params=[0.1, pytest.param(0.0, marks=pytest.mark.slow)], ids=["with KL", "without KL"])
def kl(request: pytest.FixtureRequest) -> float:
    return request.param


@pytest.fixture(scope="module")
def whole(speaker: Path, kl: float, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    run_dir = RunDir.create(tmp_path_factory.mktemp("whole") / "run", config_of(speaker, kl=kl))
    assert go(run_dir) == "succeeded"
    return run_dir.path


# -- the same again --------------------------------------------------------------------------------------------
def test_run_learns_from_mixed_groups_and_records_metrics(whole: Path, kl: float):
    events = list(read_events(whole / "events.jsonl", strict=True))
    metrics = {(e.stage, e.step): e.values for e in events if isinstance(e, MetricEvent)}
    assert list(metrics) == [("warm", 1), ("warm", 2), ("rl", 1), ("rl", 2), ("rl", 3)]
    assert all(values["grad_norm"] > 0 for values in metrics.values())
    assert all(metrics["rl", step]["groups/frac_mixed"] > 0 for step in (1, 2, 3))
    assert ("kl" in metrics["rl", 3]) == (kl > 0)
    assert [e.name for e in events if isinstance(e, CheckpointEvent)] == ["warm@2", "rl@2", "rl@3"]
    assert len({adapter(whole, name) for name in ("warm@2", "rl@2", "rl@3")}) == 3
    assert all(adapter(whole, e.name) == e.sha256 for e in events if isinstance(e, CheckpointEvent))
    # 2 × 4 dialogues of the preflight; 2 × 2 demonstrations in 2 steps; 2 × 4 in 3 steps
    phases = [(e.phase, e.stage) for e in events if isinstance(e, DialogueEvent)]
    assert phases == [("train", "warm")] * 8 + [("preflight", "rl")] * 8 + [("train", "rl")] * 24
    trained = [e.dialogue for e in events if isinstance(e, DialogueEvent) and (e.phase, e.stage) == ("train", "rl")]
    assert all(turn.advantage is not None for dialogue in trained for turn in dialogue.turns)
    assert statuses(whole) == ["running", "succeeded"]


def test_seconds_of_the_phases_add_up_to_the_step(whole: Path):
    found = [e for e in read_events(whole / "events.jsonl") if isinstance(e, MetricEvent)]
    phases = [{k: v for k, v in e.values.items() if k.startswith("time/")} for e in found]
    always = {f"time/{name}" for name in ("sync", "rollout", "update", "journal", "other")}
    assert [set(values) for values in phases] == [always] * 2 + [always | {"time/waiting"}] * 3
    for (before, event), values in zip(pairwise(found), phases[1:], strict=True):
        if before.stage == event.stage:
            assert sum(values.values()) == pytest.approx(event.time - before.time, abs=0.05)


def test_same_seed_gives_a_bit_identical_run(whole: Path, speaker: Path, kl: float, tmp_path: Path):
    run_dir = RunDir.create(tmp_path / "again", config_of(speaker, kl=kl))
    assert go(run_dir) == "succeeded"
    assert_same_run(run_dir.path, whole)


def test_other_seed_gives_another_run(whole: Path, speaker: Path, tmp_path: Path):
    run_dir = RunDir.create(tmp_path / "other", config_of(speaker, seed=6))
    assert go(run_dir, lambda: "warm@2" in run_dir.checkpoint_names()) == "stopped"
    assert adapter(run_dir.path, "warm@2") != adapter(whole, "warm@2")
    assert content(run_dir.path)[0]["task"] != content(whole)[0]["task"]


@pytest.mark.slow
def test_run_stopped_after_every_step_equals_an_uninterrupted_run(
    whole: Path, speaker: Path, kl: float, tmp_path: Path
):
    run_dir = RunDir.create(tmp_path / "stopped", config_of(speaker, kl=kl))
    ended = []
    while not ended or ended[-1] == "stopped":
        ended.append(go(run_dir, partial(next, iter([False]), True)))
    # warm 2 steps, rl 3: the fifth session runs to the end
    assert ended == ["stopped"] * 4 + ["succeeded"]
    assert_same_run(run_dir.path, whole)
    assert statuses(run_dir.path) == ["running", "stopped"] * 4 + ["running", "succeeded"]
    assert len(list((run_dir.path / "state").iterdir())) == 2, "more stays than CURRENT and the last commit"


def test_finished_run_does_not_start_again(whole: Path):
    before = (whole / "events.jsonl").read_bytes()
    with pytest.raises(RunError, match="finished"):
        go(RunDir.open(whole))
    assert (whole / "events.jsonl").read_bytes() == before


# -- death at exact points -------------------------------------------------------------------------------------
class Killed(BaseException):
    """The process ends here: nothing that it would still do has an effect."""


class Fate:
    """Ends the process before or after the nth of the calls that change what is on disk; afterwards none works."""

    CALLS = ("rename", "replace", "link", "fsync", "truncate")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dead, self.count, self.choose = False, 0, lambda number, name, path, after: False
        self.error: type[BaseException] = Killed
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))
        monkeypatch.setattr(shutil, "rmtree", self._wrap("rmtree", shutil.rmtree))

    def decide(self, choose: Callable[[int, str, Path, bool], bool], error: type[BaseException] = Killed) -> None:
        """`choose(number of the call, its name, the path it changes, after it)`; other errors than Killed hit once."""
        self.dead, self.count, self.choose, self.error = False, 0, choose, error

    def strike(self) -> None:
        """Die here."""
        self.choose = lambda number, name, path, after: False
        self.dead = self.error is Killed
        raise self.error

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Killed
            number, self.count = self.count, self.count + 1
            path = Path(args[1] if name in ("rename", "replace", "link") else args[0] if name == "rmtree" else ".")
            if self.choose(number, name, path, False):
                self.strike()
            result = real(*args, **kwargs)
            if self.choose(number, name, path, True):
                self.strike()
            return result

        return call


class MortalSink(JsonlSink):
    """A sink that a death silences, and that may be cut off inside a write, after `cut` bytes."""

    def __init__(self, path: Path, fate: Fate, cut: int | None = None) -> None:
        super().__init__(path)
        self.fate, self.cut = fate, cut

    def emit(self, events: Sequence[Event]) -> None:
        if self.fate.dead:
            raise Killed
        if self.cut is not None and not isinstance(events[0], StatusEvent):
            data = b"".join(encode(event) for event in events)
            with open(self.path, "ab") as file:
                file.write(data[: self.cut])
            self.fate.strike()
        super().emit(events)


@pytest.fixture
def fate() -> Iterator[Fate]:
    with pytest.MonkeyPatch.context() as patch:
        yield Fate(patch)


def log(step: int) -> LogEvent:
    return LogEvent(id=f"log:{step}", time=1.5, text=f"step {step} " * step)  # a clock's digits differ in number


def save(weights: str, folder: Path) -> None:
    (folder / "w.safetensors").write_text(weights)


def count_to_three(run_dir: RunDir, sink: JsonlSink, *, background: bool = False) -> None:
    """A program in steps, as a trainer is one: three commits with weights and two events each, and one without."""
    journal = Journal(run_dir, sink)
    journal.resume()
    start = journal.resume_state["step"] if journal.resume_state else 0
    held = (journal.state_dir / "w.safetensors").read_text() if journal.state_dir else ""
    for step in range(start, 3):
        held += str(step)
        journal.emit([log(2 * step), log(2 * step + 1)])
        journal.commit({"step": step + 1}, partial(save, held), background=background)
    if start < 4:
        journal.emit([log(6)])
        journal.commit({"step": 4})


def assert_counted(run_dir: RunDir) -> None:
    events = list(read_events(run_dir.events_path, strict=True))
    assert [e.id for e in events] == [f"log:{n}" for n in range(7)]
    folder = run_dir.state / (run_dir.state / "CURRENT").read_text()
    assert (folder / "w.safetensors").read_text() == "012"
    assert json.loads((folder / "state.json").read_text())["position"] == {"step": 4}


@pytest.mark.parametrize("background", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_journal_survives_a_crash_at_every_write(tmp_path: Path, fate: Fate, background: bool):
    first = RunDir(tmp_path / "none")
    count_to_three(first, MortalSink(first.events_path, fate), background=background)
    assert_counted(first)
    calls = fate.count
    assert calls > 4 * 6  # in each commit at least: 3 syncs, rename, replace, and removing the old one
    for number in range(calls):
        for after in (False, True):
            run_dir = RunDir(tmp_path / f"{number} {after}")
            fate.decide(lambda n, name, path, when, number=number, after=after: (n, when) == (number, after))
            with pytest.raises(Killed):
                count_to_three(run_dir, MortalSink(run_dir.events_path, fate), background=background)
            fate.decide(lambda *_: False)
            count_to_three(run_dir, MortalSink(run_dir.events_path, fate), background=background)
            assert_counted(run_dir)


@pytest.mark.parametrize("missing", [False, True])
def test_a_run_of_an_earlier_version_resumes_although_events_have_new_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    def encode_without_level(event: Event) -> bytes:
        return encode(event).replace(b'"level":"info",', b"")

    run_dir = RunDir(tmp_path)
    with monkeypatch.context() as earlier:
        for module in ("events", "journal"):
            earlier.setattr(f"rl2f_core.run.{module}.encode", encode_without_level)
        journal = Journal(run_dir, JsonlSink(run_dir.events_path))
        for number in range(2):
            journal.emit([log(number)])
            journal.commit({"step": number + 1})
    written = run_dir.events_path.read_bytes()
    assert b"level" not in written
    if missing:  # killed before the events of the last commit were appended
        run_dir.events_path.write_bytes(written[: written.index(b"\n") + 1])
    journal = Journal(run_dir, JsonlSink(run_dir.events_path))
    journal.resume()
    assert (journal.resume_state, run_dir.events_path.read_bytes()) == ({"step": 2}, written)


def test_events_of_a_commit_in_the_background_appear_with_its_state(tmp_path: Path):
    run_dir = RunDir(tmp_path)
    journal, begun, release = Journal(run_dir, JsonlSink(run_dir.events_path)), threading.Event(), threading.Event()

    def save_slowly(folder: Path) -> None:
        begun.set()
        assert release.wait(10)
        save("one", folder)

    position = {"step": 1, "curriculum": [1]}
    journal.emit([log(0)])
    journal.commit(position, save_slowly, background=True)
    assert begun.wait(10)
    journal.emit([log(1)])  # of the next step
    position["curriculum"].append(2)
    assert journal.current() is None and not run_dir.events_path.exists()
    release.set()
    journal.wait()
    assert [e.id for e in read_events(run_dir.events_path)] == ["log:0"] and journal.pending == [log(1)]
    again = Journal(run_dir, JsonlSink(run_dir.events_path))
    again.resume()
    assert again.resume_state == {"step": 1, "curriculum": [1]}


def test_error_of_a_commit_in_the_background_is_raised_at_the_next(tmp_path: Path):
    run_dir = RunDir(tmp_path)
    journal = Journal(run_dir, JsonlSink(run_dir.events_path))
    journal.commit({"step": 1}, lambda folder: (folder / "missing" / "w.safetensors").touch(), background=True)
    with pytest.raises(FileNotFoundError):
        journal.commit({"step": 2}, partial(save, "two"))
    assert journal.current() is None and not list(run_dir.state.iterdir())


def test_journal_survives_a_truncated_write_of_events(tmp_path: Path, fate: Fate):
    line = len(encode(log(0)))
    both = line + len(encode(log(1)))
    for cut in (0, 1, line - 1, line, line + 1, both - 1, both):
        run_dir = RunDir(tmp_path / str(cut))
        fate.decide(lambda *_: False)
        with pytest.raises(Killed):
            count_to_three(run_dir, MortalSink(run_dir.events_path, fate, cut))
        assert run_dir.events_path.stat().st_size == cut
        fate.decide(lambda *_: False)
        count_to_three(run_dir, MortalSink(run_dir.events_path, fate))
        assert_counted(run_dir)


@pytest.mark.slow
def test_run_survives_crash_and_ctrl_c_at_critical_points(whole: Path, speaker: Path, kl: float, tmp_path: Path):
    """Each session of one run dies at another point; a KeyboardInterrupt lets the process still write its status."""
    state = tmp_path / "run" / "state"
    run_dir = RunDir.create(tmp_path / "run", config_of(speaker, kl=kl))
    points: list[tuple[str, Path, bool, type[BaseException]]] = [
        ("replace", tmp_path / "run" / "heartbeat.json", False, Killed),
        ("rename", state / "2", False, Killed),
        ("rename", state / "3", True, KeyboardInterrupt),
        ("replace", state / "CURRENT", True, Killed),
        ("replace", state / "CURRENT", True, KeyboardInterrupt),
        ("rename", tmp_path / "run" / "checkpoints" / "rl@2", False, Killed),
        ("rename", tmp_path / "run" / "checkpoints" / "rl@2", True, KeyboardInterrupt),
    ]
    last = str(1 + 2 + 1 + 3 + 1)  # begin and steps of both stages, and the end
    with pytest.MonkeyPatch.context() as patch:
        fate = Fate(patch)
        for wanted, target, late, error in points:
            fate.decide(
                lambda n, name, path, after, w=wanted, t=target, late=late: (name, path, after) == (w, t, late), error
            )
            with pytest.raises(error):
                go(run_dir, sink=MortalSink(run_dir.events_path, fate))
        fate.decide(lambda *_: False)
        with pytest.raises(Killed):
            go(run_dir, sink=MortalSink(run_dir.events_path, fate, cut=700))
        fate.decide(lambda n, name, path, after: (name, path, after) == ("replace", state / "CURRENT", True)
                    and path.read_text() == last)  # fmt: skip
        with pytest.raises(Killed):
            go(run_dir, sink=MortalSink(run_dir.events_path, fate))
        assert statuses(run_dir.path)[-1] == "running"
        fate.decide(lambda *_: False)
        assert go(run_dir, sink=MortalSink(run_dir.events_path, fate)) == "succeeded"
    assert_same_run(run_dir.path, whole)


# -- kill -9 ---------------------------------------------------------------------------------------------------
FORKING = """
import json, os, sys
import accelerate, peft, torch, transformers
import app.cli, app.commands.train, rl2f_core.learning.learner.learner, rl2f_core.learning.training.trainer
from rl2f_core import registry
registry.discover()
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        sys.argv = ["rl2f", *json.loads(line)]
        app.cli.main()
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Forks a process for each command: `rl2f` with everything imported already."""


class Forked:
    """Starts `rl2f` by forking; one command at a time."""

    def __init__(self, log_path: Path) -> None:
        with open(log_path, "wb") as log_file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", FORKING], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log_file, text=True, start_new_session=True,
            )  # fmt: skip

    def start(self, *args: str) -> None:
        print(json.dumps(args), file=self.process.stdin, flush=True)
        self.pid = int(self.process.stdout.readline())

    def wait(self) -> int:
        return int(self.process.stdout.readline())

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


class Started:
    """Starts `rl2f` as a process of its own."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path

    def start(self, *args: str) -> None:
        command = [sys.executable, "-c", "from app.cli import main; main()", *args]
        with open(self.log_path, "ab") as log_file:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log_file, stderr=log_file)
        self.pid = self.process.pid

    def wait(self) -> int:
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def commits(folder: Path) -> int:
    try:
        return int((folder / "state" / "CURRENT").read_text())
    except (OSError, ValueError):
        return 0


def kill_and_resume(launcher: Forked | Started, config: RunConfig, folder: Path, kills: int, seed: int) -> None:
    """An uninterrupted run and one that is killed at random moments between its start and its last commits."""
    log_path = folder / "log.txt"
    (folder / "run.yaml").write_text(dump_yaml(config))
    launcher.start("train", str(folder / "run.yaml"), "--out", str(folder / "whole"))
    assert launcher.wait() == 0, log_path.read_text()[-3000:]
    total = commits(folder / "whole")
    rng = random.Random(seed)
    killed, pace, hits = folder / "killed", 0.05, 0
    first, again = [str(folder / "run.yaml"), "--out", str(killed)], ["--resume", str(killed)]
    for target in sorted(rng.randrange(total - 3) for _ in range(kills)):
        launcher.start("train", *(again if killed.exists() else first))
        deadline, seen, changes = time.monotonic() + 600, None, [0.0]
        while (now := commits(killed)) < target or not (killed / "heartbeat.json").exists():
            assert time.monotonic() < deadline, log_path.read_text()[-3000:]
            if now != seen:
                seen, changes = now, [*changes, time.monotonic()]
            time.sleep(0.001)
        if len(changes) > 3:  # before a session's first commit it loads, which takes longer
            pace = changes[-1] - changes[-2]
        time.sleep(rng.random() * pace)
        os.kill(launcher.pid, signal.SIGKILL)
        hits += launcher.wait() == -signal.SIGKILL
        if statuses(killed)[-1:] == ["succeeded"]:
            break  # on a busy machine the kill may come too late
    else:
        launcher.start("train", *again)
        assert launcher.wait() == 0, log_path.read_text()[-3000:]
    assert hits >= kills // 2, "most kills came too late"
    assert_same_run(killed, folder / "whole", f"rl@{config.stages[1].steps}")
    assert statuses(killed)[-1] == "succeeded"


@pytest.mark.slow
@pytest.mark.parametrize("kills", [5, 100])
def test_sigkill_at_random_times_does_not_change_the_result(speaker: Path, tmp_path: Path, kills: int):
    with closing(Forked(tmp_path / "log.txt")) as launcher:
        kill_and_resume(launcher, config_of(speaker, steps=(3, 7)), tmp_path, kills=kills, seed=1)


@pytest.mark.slow
def test_sigkill_of_the_command_in_training_and_evaluation(speaker: Path, tmp_path: Path):
    more: Any = {
        "evaluation": {"num_tasks": 3, "conditions": ["hints", "contentless"]},
        "steps": (4, 8),
    }
    with closing(Started(tmp_path / "log.txt")) as launcher:
        kill_and_resume(launcher, config_of(speaker, kl=0.0, **more), tmp_path, kills=10, seed=2)


# -- a stage that is not worth starting ------------------------------------------------------------------------
@pytest.mark.slow
def test_refused_stage_keeps_its_dialogues_and_is_refused_again(tiny: Path, tmp_path: Path):
    strict = {"num_tasks": 2, "samples_per_task": 2}
    run_dir = RunDir.create(tmp_path / "run", config_of(tiny, steps=(1, 1), preflight=strict))
    for _ in range(2):
        with pytest.raises(PreflightError, match="0 of 4 first attempts are parsable"):
            go(run_dir)
    found = content(run_dir.path)
    assert [e["id"] for e in found].count("preflight:rl") == 1
    assert sum(e.get("phase") == "preflight" for e in found) == 4
    assert statuses(run_dir.path) == ["running", "failed"] * 2
    # whoever overrides it in the folder goes on from there, without a second preflight
    run_dir.config_path.write_text(
        dump_yaml(config_of(tiny, steps=(1, 1), preflight={**strict, "ignore_failure": True}))
    )
    assert go(run_dir) == "succeeded"
    assert [e["id"] for e in content(run_dir.path)].count("preflight:rl") == 1
