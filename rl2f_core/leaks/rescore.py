"""Stored dialogues read again by any detectors, without the policy: a stream of groups from a run's event file.

Lines are read in chunks, so that memory does not grow with the file. Detectors that ask no model work in processes of
their own, one a core; those that ask one read a chunk as a batch, in this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from rl2f_core import registry
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError
from rl2f_core.leaks.base import LeakDetector, LeakQuery, first_leaks
from rl2f_core.leaks.repricing import TERM, TOLERANCE, Change, Tally, group_changes, repriced
from rl2f_core.methods.base import Method
from rl2f_core.types import Hint, LeakReport, Reward, Task

if TYPE_CHECKING:
    from rl2f_core.backends.pool import Models
    from rl2f_core.config import BaseConfig, BaseRun

ALONE = 4_000_000
"""Bytes of events that are read in one process: starting others takes longer."""
CHUNK = 400_000
"""Bytes of lines that a process is given at once."""
BATCH = 32
"""Dialogues whose hints are shown to a model at once."""


# -- one line ------------------------------------------------------------------------------------------------------
class _Turn(BaseModel):
    model_config = ConfigDict(extra="ignore")
    index: int
    attempt: str
    rewards: tuple[Reward, ...] = ()
    hint: Hint | None = None


class _Dialogue(BaseModel):
    model_config = ConfigDict(extra="ignore")
    group: str
    turns: tuple[_Turn, ...]


class _Line(BaseModel):
    """What is read of a dialogue event; tokens, the bulk of it, are not."""

    model_config = ConfigDict(extra="ignore")
    id: str
    type: Literal["dialogue"]
    phase: str
    stage: str
    step: int
    checkpoint: str | None = None
    control: str | None = None
    task: Task
    dialogue: _Dialogue


@dataclass(frozen=True, slots=True)
class Scored:
    """A dialogue whose hints were read again."""

    event: str
    key: tuple[Any, ...]
    """Shared by the dialogues of a group."""
    turns: int
    was: dict[int, bool]
    """Turn → whether the run's own detectors convicted its hint; missing where none read it."""
    reports: dict[int, LeakReport]
    """Turn → what is said of its hint now."""
    changed: bool
    """Some turn's reward is another one under the new verdicts and the new penalty."""

    @property
    def leaked(self) -> dict[int, bool]:
        """Turn → whether its hint leaks."""
        return {turn: report.leaked for turn, report in self.reports.items()}


class Reader:
    """Reads lines of event files with one environment's detectors.

    Args:
        environment: The run's environment, as its config.
        detectors: Their configs, cheapest first.
        penalty: Weight of the new leak penalty.
        models: For detectors that ask one.
    """

    def __init__(
        self, environment: Any, detectors: Sequence[BaseConfig], penalty: float, models: Models | None = None
    ) -> None:
        self.penalty = penalty
        made: Any = registry.get("environment", environment.type)
        self.environment: Environment = made(environment)
        self.detectors: list[LeakDetector] = [
            registry.get("leak", part.type)(part, self.environment, models)  # type: ignore[attr-defined]
            for part in detectors
        ]

    def read(self, lines: Sequence[bytes]) -> tuple[list[Scored | None], int]:
        """For each line its dialogue or None where it holds none, and how many lines could not be read."""
        parsed: list[_Line | None] = []
        bad = 0
        for line in lines:
            try:
                parsed.append(_Line.model_validate_json(line) if _is_dialogue(line) else None)
            except ValidationError:
                parsed.append(None)
                bad += 1
        places, queries = [], []
        for i, item in enumerate(parsed):
            for k, query in _queries(item) if item is not None else ():
                places.append((i, k))
                queries.append(query)
        found: list[dict[int, LeakReport]] = [{} for _ in parsed]
        for (i, k), report in zip(places, first_leaks(self.detectors, queries), strict=True):
            found[i][k] = report
        return [None if p is None else self._scored(p, r) for p, r in zip(parsed, found, strict=True)], bad

    def _scored(self, line: _Line, reports: dict[int, LeakReport]) -> Scored:
        turns = line.dialogue.turns
        was = {t.index: t.hint.leak.leaked for t in turns if t.hint is not None and t.hint.leak is not None}
        changed = False
        for turn in turns:
            before = sum(term.value for term in turn.rewards if term.name == TERM)
            report = reports.get(turn.index - 1)
            after = -self.penalty if report is not None and report.leaked else 0.0
            changed |= abs(before - after) > TOLERANCE
        key = (line.phase, line.stage, line.step, line.checkpoint, line.control, line.dialogue.group)
        return Scored(line.id, key, len(turns), was, reports, changed)


def _is_dialogue(line: bytes) -> bool:
    return b'"type":"dialogue"' in line[:2000].replace(b" ", b"")


def _queries(line: _Line) -> Iterator[tuple[int, LeakQuery]]:
    """The hints as the teacher wrote them, each with what the student had seen and written before it.

    Words that stand in for a message that could not be had are no hint; a message that was refused for a leak before
    the next one could not be had is.
    """
    attempts: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    for turn in line.dialogue.turns:
        attempts += (turn.attempt,)
        hint = turn.hint
        if hint is None:
            continue
        written = hint.original if hint.original is not None or hint.error is not None else hint.text
        if written is not None:
            yield turn.index, LeakQuery(line.task, written, attempts, hints)
        hints += (hint.text,)


# -- other processes -----------------------------------------------------------------------------------------------
_reader: Reader | None = None


def _start(parent: int, environment: Any, detectors: Sequence[BaseConfig], penalty: float) -> None:
    """Prepare a process: it leaves Ctrl-C to its parent, and does not outlive it."""
    global _reader
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    _reader = Reader(environment, detectors, penalty)


def _die_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _read(lines: Sequence[bytes]) -> tuple[list[Scored | None], int]:
    assert _reader is not None
    return _reader.read(lines)


# -- a whole file --------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Rescore:
    """A run's dialogues read again.

    Args:
        events: The run's event file.
        config: The run's configuration: environment, reward, and the methods of its stages.
        detectors: Configs of the detectors, cheapest first.
        penalty: Weight of the leak penalty that rewards are reckoned with; None is the run's own.
        models: For detectors that ask one.
        workers: Processes; None is one a core, and 1 reads in this one.
    """

    events: Path
    config: BaseRun
    detectors: Sequence[BaseConfig]
    penalty: float | None = None
    models: Models | None = None
    workers: int | None = None
    tally: Tally = field(default_factory=Tally)
    bad: int = 0
    """Lines that could not be read."""
    stopped: bool = False
    _seen: set[str] = field(default_factory=set)

    def run(
        self, stop: Callable[[], bool] = lambda: False, advanced: Callable[[int, int], None] = lambda done, total: None
    ) -> Iterator[tuple[list[Scored], list[Change]]]:
        """Each group's dialogues with the turns that change, in the order of the file.

        Args:
            stop: Asked between chunks; true ends it, and `stopped` says so.
            advanced: Called with (bytes read, bytes in all).

        Raises `DataError` where the file cannot be opened.
        """
        penalty = self.config.reward.leak_penalty if self.penalty is None else self.penalty
        methods = self._methods()
        group: list[tuple[bytes, Scored]] = []
        for chunk, (scored, bad) in self._chunks(penalty, stop, advanced):
            self.bad += bad
            for line, item in zip(chunk, scored, strict=True):
                if item is None or item.event in self._seen:
                    continue
                self._seen.add(item.event)
                if group and group[0][1].key != item.key:
                    yield self._group(group, penalty, methods)
                    group = []
                needed = item.changed or self._trained(item, methods)
                group.append((line if needed else b"", item))
        if group and not self.stopped:
            yield self._group(group, penalty, methods)

    def _methods(self) -> dict[str, Method]:
        """The methods of the run's stages that learn from their own dialogues."""
        stages = getattr(self.config, "stages", ())
        made = {stage.name: registry.get("method", stage.method.type)(stage.method) for stage in stages}
        return {name: method for name, method in made.items() if method.on_policy}

    @staticmethod
    def _trained(item: Scored, methods: dict[str, Method]) -> bool:
        return item.key[0] == "train" and item.key[1] in methods

    def _group(
        self, group: list[tuple[bytes, Scored]], penalty: float, methods: dict[str, Method]
    ) -> tuple[list[Scored], list[Change]]:
        """Count a group, and say what changes in it."""
        from rl2f_core.events import DialogueEvent

        items = [item for _, item in group]
        for item in items:
            self._count(item)
        changed = [pair for pair in group if pair[1].changed]
        if not changed:
            return items, []
        trained = self._trained(items[0], methods)
        wanted = group if trained else changed
        events = [DialogueEvent.model_validate_json(line) for line, _ in wanted]
        changes, stale = group_changes(
            [(event.id, event.dialogue) for event in events],
            [repriced(event.dialogue, item.leaked, penalty) for event, (_, item) in zip(events, wanted, strict=True)],
            [{k: r.tier for k, r in item.reports.items() if r.leaked} for _, item in wanted],
            events[0].task,
            methods[items[0].key[1]] if trained else None,
        )
        self.tally.stale += stale
        self.tally.count(changes)
        return items, changes

    def _count(self, item: Scored) -> None:
        tally = self.tally
        tally.dialogues += 1
        tally.turns += item.turns
        tally.hints += len(item.reports)
        for turn, report in item.reports.items():
            was = item.was.get(turn)
            tally.errors += report.error is not None
            tally.flagged += report.leaked
            tally.was_checked += was is not None
            tally.was_flagged += bool(was)
            tally.newly_flagged += report.leaked and was is False
            tally.no_longer_flagged += bool(was) and not report.leaked
            if report.leaked:
                tally.tiers[report.tier or "?"] += 1

    # -- chunks ------------------------------------------------------------------------------------------------
    def _chunks(
        self, penalty: float, stop: Callable[[], bool], advanced: Callable[[int, int], None]
    ) -> Iterator[tuple[list[bytes], tuple[list[Scored | None], int]]]:
        """Chunks of lines with what was read in them, in order."""
        try:
            size = self.events.stat().st_size
        except OSError as error:
            raise DataError("The event file cannot be opened.", value=str(self.events)) from error
        asks = any(registry.get("leak", part.type).asks_model for part in self.detectors)  # type: ignore[attr-defined]
        workers = self.workers or _cores()
        if asks or workers == 1 or (self.workers is None and size < ALONE):
            reader = Reader(self.config.environment, self.detectors, penalty, self.models)
            limits = (BATCH, CHUNK) if asks else (None, CHUNK)
            for lines, end in _lines(self.events, *limits):
                if stop():
                    self.stopped = True
                    return
                yield lines, reader.read(lines)
                advanced(end, size)
            return
        waiting: deque[tuple[list[bytes], int, Future[Any]]] = deque()
        arguments = (os.getpid(), self.config.environment, tuple(self.detectors), penalty)
        with contextlib.ExitStack() as stack:
            pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, arguments)
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            source = _lines(self.events, None, CHUNK)
            exhausted = False
            while True:
                while not exhausted and len(waiting) < 2 * workers + 1:
                    chunk = next(source, None)
                    if chunk is None:
                        exhausted = True
                        break
                    waiting.append((*chunk, pool.submit(_read, chunk[0])))
                if not waiting:
                    return
                if stop():
                    self.stopped = True
                    return
                lines, end, future = waiting.popleft()
                yield lines, future.result()
                advanced(end, size)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _lines(path: Path, count: int | None, limit: int) -> Iterator[tuple[list[bytes], int]]:
    """Whole lines, up to `count` or about `limit` bytes at a time, and where they end; a torn last one is left out."""
    with open(path, "rb") as file:
        lines: list[bytes] = []
        end = size = 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            lines.append(line)
            end += len(line)
            size += len(line)
            if size >= limit or len(lines) == count:
                yield lines, end
                lines, size = [], 0
        if lines:
            yield lines, end
