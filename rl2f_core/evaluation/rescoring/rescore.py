"""Run leak detectors on the stored dialogues of a run, group by group, without the policy.

Lines are processed in chunks, so memory does not grow with the file. Detectors without a model run in worker processes,
one per core; detectors with a model process each chunk as a batch in this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from rl2f_core import registry
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError
from rl2f_core.evaluation.rescoring.reward_changes import (
    TERM,
    TOLERANCE,
    RewardChange,
    Tally,
    group_changes,
    with_leak_penalties,
)
from rl2f_core.leaks.base import LeakQuery, can_check_hints, make_detectors, run_cascade
from rl2f_core.learning.methods.base import Method
from rl2f_core.types import Hint, LeakReport, RewardTerm, Task, join_reply

if TYPE_CHECKING:
    from rl2f_core.config.run import BaseRun
    from rl2f_core.models.backends.model_pool import ModelPool

SINGLE_PROCESS_BYTES = 4_000_000
"""Size of an event file below which starting worker processes takes longer than rescoring."""
CHUNK_BYTES = 400_000
"""Size of the chunks for worker processes."""
BATCH = 32
"""Dialogues per batch for detectors with a model."""


class _Verdict(BaseModel):
    observation: str | None = None


class _Turn(BaseModel):
    index: int
    attempt: str
    verdict: _Verdict = _Verdict()
    rewards: tuple[RewardTerm, ...] = ()
    hint: Hint | None = None


class _Dialogue(BaseModel):
    group: str
    turns: tuple[_Turn, ...]


class _Line(BaseModel):
    """The parsed part of a dialogue event, without tokens."""

    id: str
    type: Literal["dialogue"]
    phase: str
    stage: str
    step: int
    checkpoint: str | None = None
    condition: str | None = None
    arm: str | None = None
    outcome: str | None = None
    task: Task
    dialogue: _Dialogue


class _GroupKey(NamedTuple):
    phase: str
    stage: str
    step: int
    checkpoint: str | None
    condition: str | None
    group: str


@dataclass(frozen=True, slots=True)
class Scored:
    """A rescored dialogue."""

    event: str
    key: _GroupKey
    """The dialogue's group."""
    turns: int
    was: dict[int, bool]
    """Turn → whether the run's own detectors flagged its hint; only checked hints."""
    reports: dict[int, LeakReport]
    """Turn → new report on its hint."""
    leaked: dict[int, bool]
    """Turn → whether the student read a leak after it; not if the run's leak action replaced the message."""
    changed: bool
    """The new reports and penalty change some turn's reward."""
    unchecked: int
    """Hints that these detectors cannot check, because the task has no gold answer."""
    has_answer: bool = True
    """The task has a gold answer; otherwise hints without a report are unchecked."""


_Result = tuple[list[Scored | None], int]
"""The dialogue of each line or None, and the number of invalid lines."""
_Chunks = Generator[tuple[list[bytes], int, Callable[[], _Result]]]
"""Lines, their end offset, and a function that returns their result."""


class LeakRescorer:
    """Rescores lines of event files.

    Args:
        environment: Configuration of the run's environment.
        detectors: Detector configurations, cheapest first.
        penalty: Weight of the new leak penalty.
        models: For detectors with a model.
    """

    def __init__(
        self,
        environment: ComponentConfig,
        detectors: Sequence[ComponentConfig],
        penalty: float,
        models: ModelPool | None = None,
    ) -> None:
        self.penalty = penalty
        self.environment: Environment = registry.get("environment", environment.type)(environment)
        self.detectors = make_detectors(detectors, self.environment, models)

    def rescore(self, lines: Sequence[bytes]) -> _Result:
        """Return for each line its dialogue or None, and the number of invalid lines."""
        parsed: list[_Line | None] = []
        bad = 0
        for line in lines:
            try:
                parsed.append(_Line.model_validate_json(line) if _is_dialogue(line) else None)
            except ValidationError:
                parsed.append(None)
                bad += 1
        positions, queries, unchecked = [], [], [0] * len(parsed)
        for i, item in enumerate(parsed):
            new = [] if item is None else list(_queries(item))
            if item is not None and new and not can_check_hints(self.detectors, self.environment, item.task):
                unchecked[i], new = len(new), []
            positions += [(i, k) for k, _ in new]
            queries += [query for _, query in new]
        reports: list[dict[int, LeakReport]] = [{} for _ in parsed]
        for (i, k), report in zip(positions, run_cascade(self.detectors, queries), strict=True):
            reports[i][k] = report
        rows = zip(parsed, reports, unchecked, strict=True)
        return [None if line is None else self._scored(line, found, number) for line, found, number in rows], bad

    def _scored(self, line: _Line, reports: dict[int, LeakReport], unchecked: int) -> Scored:
        turns = line.dialogue.turns
        stored = {t.index: t.hint.leak for t in turns if t.hint is not None and t.hint.leak is not None}
        was = {k: leak.leaked for k, leak in stored.items() if leak.is_complete}
        replaced = {t.index for t in turns if t.hint is not None and t.hint.is_replaced}
        leaked = {k: report.leaked and k not in replaced for k, report in reports.items()}
        changed = False
        for turn in turns:
            before = sum(term.value for term in turn.rewards if term.name == TERM)
            after = -self.penalty if leaked.get(turn.index - 1) else 0.0
            changed |= abs(before - after) > TOLERANCE
        key = _GroupKey(
            line.phase,
            line.stage,
            line.step,
            line.checkpoint,
            line.condition or line.arm or line.outcome,
            line.dialogue.group,
        )
        has_answer = not reports or bool(self.environment.gold_answer(line.task))
        return Scored(line.id, key, len(turns), was, reports, leaked, changed, unchecked, has_answer)


def _is_dialogue(line: bytes) -> bool:
    return b'"type":"dialogue"' in line[:2000].replace(b" ", b"")


def _queries(line: _Line) -> Iterator[tuple[int, LeakQuery]]:
    """Yield the teacher's raw messages with the dialogue before them.

    Fallback texts after a teacher error are skipped; a message that was rejected for a leak before the error is not.
    """
    attempts: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    for turn in line.dialogue.turns:
        attempts += (turn.attempt,)
        hint = turn.hint
        if hint is None:
            continue
        if not hint.is_fallback:
            yield turn.index, LeakQuery(line.task, hint.feedback, attempts, hints)
        hints += (join_reply(turn.verdict.observation, hint.text),)


_rescorer: LeakRescorer | None = None


def _start(parent: int, environment: ComponentConfig, detectors: Sequence[ComponentConfig], penalty: float) -> None:
    """Initialize a worker: ignore Ctrl-C, and exit when the parent exits."""
    global _rescorer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    _rescorer = LeakRescorer(environment, detectors, penalty)


def _exit_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _rescore(lines: Sequence[bytes]) -> _Result:
    assert _rescorer is not None
    return _rescorer.rescore(lines)


@dataclass(slots=True)
class Rescore:
    """Rescores the dialogues of a run.

    Args:
        events: The run's event file.
        config: The run's configuration.
        detectors: Detector configurations, cheapest first.
        penalty: Weight of the new leak penalty; None is the run's.
        models: For detectors with a model.
        workers: Worker processes; None is one per core, 1 is only this process.
    """

    events: Path
    config: BaseRun
    detectors: Sequence[ComponentConfig]
    penalty: float | None = None
    models: ModelPool | None = None
    workers: int | None = None
    tally: Tally = field(default_factory=Tally)
    bad: int = 0
    """Invalid lines."""
    stopped: bool = False
    _seen: set[str] = field(default_factory=set)

    def run(
        self,
        stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Iterator[tuple[list[Scored], list[RewardChange]]]:
        """Yield each group's dialogues and changed turns, in the order of the file.

        Args:
            stop: Checked between chunks; True stops and sets `stopped`.
            on_progress: Called with (bytes processed, all bytes).

        Raises `DataError` if the file cannot be opened.
        """
        penalty = self.config.reward.leak_penalty if self.penalty is None else self.penalty
        methods = self._methods()
        group: list[tuple[bytes, Scored]] = []
        for chunk, (scored, bad) in self._chunks(penalty, stop, on_progress):
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
        """Return the on-policy methods by stage."""
        stages = getattr(self.config, "stages", ())
        methods: dict[str, Method[Any]] = {
            stage.name: registry.get("method", stage.method.type)(stage.method) for stage in stages
        }
        return {name: method for name, method in methods.items() if method.on_policy}

    @staticmethod
    def _trained(item: Scored, methods: dict[str, Method]) -> bool:
        return item.key.phase == "train" and item.key.stage in methods

    def _group(
        self, group: list[tuple[bytes, Scored]], penalty: float, methods: dict[str, Method]
    ) -> tuple[list[Scored], list[RewardChange]]:
        """Count a group and return its changes."""
        from rl2f_core.run.events import DialogueEvent

        items = [item for _, item in group]
        for item in items:
            self._count(item)
        changed = [pair for pair in group if pair[1].changed]
        if not changed:
            return items, []
        trained = self._trained(items[0], methods)
        pairs = group if trained else changed
        events = [DialogueEvent.model_validate_json(line) for line, _ in pairs]
        changes, stale = group_changes(
            [(event.id, event.dialogue) for event in events],
            [
                with_leak_penalties(event.dialogue, item.leaked, penalty)
                for event, (_, item) in zip(events, pairs, strict=True)
            ],
            [{k: r.detector for k, r in item.reports.items() if r.leaked} for _, item in pairs],
            events[0].task,
            methods[items[0].key.stage] if trained else None,
        )
        self.tally.stale += stale
        self.tally.count(changes)
        return items, changes

    def _count(self, item: Scored) -> None:
        tally = self.tally
        tally.dialogues += 1
        tally.turns += item.turns
        tally.hints += len(item.reports)
        tally.unchecked += item.unchecked
        for turn, report in item.reports.items():
            was = item.was.get(turn)
            tally.errors += not report.is_complete
            tally.flagged += report.leaked
            tally.was_checked += was is not None
            tally.was_flagged += bool(was)
            tally.newly_flagged += report.leaked and was is False
            tally.no_longer_flagged += bool(was) and not report.leaked
            if report.leaked:
                tally.flagged_by[report.detector or "?"] += 1

    def _chunks(
        self, penalty: float, stop: Callable[[], bool], on_progress: Callable[[int, int], None]
    ) -> Iterator[tuple[list[bytes], _Result]]:
        """Yield chunks of lines with their dialogues, in order."""
        try:
            size = self.events.stat().st_size
        except OSError as error:
            raise DataError("The event file cannot be opened.", value=str(self.events)) from error
        requires_model = any(registry.get("leak_detector", part.type).requires_model for part in self.detectors)
        workers = self.workers or _cores()
        if requires_model or workers == 1 or (self.workers is None and size < SINGLE_PROCESS_BYTES):
            rescorer = LeakRescorer(self.config.environment, self.detectors, penalty, self.models)
            source = _lines(self.events, BATCH if requires_model else None)
            results: _Chunks = ((lines, end, partial(rescorer.rescore, lines)) for lines, end in source)
        else:
            results = self._submit_chunks(workers, penalty)
        with contextlib.closing(results):
            for lines, end, result in results:
                if stop():
                    self.stopped = True
                    return
                yield lines, result()
                on_progress(end, size)

    def _submit_chunks(self, workers: int, penalty: float) -> _Chunks:
        """Yield chunks whose results come from worker processes."""
        arguments = (os.getpid(), self.config.environment, tuple(self.detectors), penalty)
        with contextlib.ExitStack() as stack:
            pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, arguments)
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            waiting: deque[tuple[list[bytes], int, Callable[[], _Result]]] = deque()
            for lines, end in _lines(self.events):
                waiting.append((lines, end, pool.submit(_rescore, lines).result))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft()
            yield from waiting


def _cores() -> int:
    """Return the number of usable cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _lines(path: Path, count: int | None = None) -> Iterator[tuple[list[bytes], int]]:
    """Yield complete lines, up to `count` or about `CHUNK_BYTES` bytes at a time, with their end offset."""
    with open(path, "rb") as file:
        lines: list[bytes] = []
        end = size = 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            lines.append(line)
            end += len(line)
            size += len(line)
            if size >= CHUNK_BYTES or len(lines) == count:
                yield lines, end
                lines, size = [], 0
        if lines:
            yield lines, end
