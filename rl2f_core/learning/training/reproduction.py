"""Execute the steps with retained training states again, and compare the results with the recorded ones.

A step follows from the run's configuration, the stage, the step and its training state. On the machine that trained
the run, the comparison is bit for bit; other machines and library versions round differently.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rl2f_core.common.file_io import read_json, sha256
from rl2f_core.config.run import RunConfig
from rl2f_core.dialogue.dataset_store import DATASETS
from rl2f_core.errors import DataError, RunError, shorten
from rl2f_core.learning.training.retained_states import EVENTS, RESULT, STATE, retained_dir, weights_digest
from rl2f_core.learning.training.trainer import Trainer
from rl2f_core.run.context import Progress, RunContext
from rl2f_core.run.directory import RunDir, provenance
from rl2f_core.run.events import Event, encode
from rl2f_core.run.journal import Journal
from rl2f_core.types import FrozenModel, JsonObject

TOLERANCE = 1e-4
"""Default relative difference of numbers that counts as within tolerance; absolute below 1."""
CLOCK_METRICS = ("time/", "tokens_per_second/", "system/")
"""Prefixes of metrics that depend on the machine."""
PARTS = ("files", "events", "tokens", "rewards", "advantages", "metrics", "weights")
Outcome = Literal["identical", "within tolerance", "differs"]


class PartResult(FrozenModel):
    """Comparison of one part of a step."""

    outcome: Outcome
    detail: str = ""
    """The first difference."""


class StepResult(FrozenModel):
    """Comparison of one step."""

    name: str
    """`stage@step`."""
    parts: dict[str, PartResult]
    """By name in `PARTS`. `files` and `events` compare the stored files with the digests of the time of writing; the
    other parts compare recorded and repeated values. A step whose files are damaged is not executed."""

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of all parts."""
        return _worst(part.outcome for part in self.parts.values())


class Reproduction(FrozenModel):
    """Comparison of all retained steps of a run."""

    run: str
    """Name of the run directory."""
    tolerance: float
    events: PartResult
    """Comparison of the event file with the digests of its beginning."""
    checkpoints: PartResult
    """Comparison of the checkpoints' weights with their recorded digests."""
    steps: list[StepResult]
    environment: dict[str, list[str | None]]
    """Recorded and current value of each package version and hardware property that differs."""

    @property
    def outcome(self) -> Outcome:
        """The worst outcome."""
        return _worst([self.events.outcome, self.checkpoints.outcome, *(step.outcome for step in self.steps)])


def _worst(outcomes: Iterable[Outcome]) -> Outcome:
    order: tuple[Outcome, ...] = ("identical", "within tolerance", "differs")
    return max(outcomes, key=order.index)


def reproduce(
    run_dir: RunDir, tolerance: float = TOLERANCE, progress: Progress | None = None, *, files_only: bool = False
) -> Reproduction:
    """Execute the retained steps of a run again in a temporary directory, and compare them; the run is unchanged.

    Args:
        run_dir: The run.
        tolerance: Relative difference of numbers that counts as within tolerance; absolute below 1.
        progress: Receives the number of executed steps.
        files_only: Execute nothing; compare only the stored files with the digests of the time of writing.

    Raises `RunError` if the run is not a training run, or retained no state.
    """
    config, progress = run_dir.config(), progress or Progress()
    if not isinstance(config, RunConfig) or config.kind != "train":
        raise RunError("Only training runs have training states.", value=str(run_dir.path))
    records = _read_records(run_dir.events_path)
    names = [f"{stage}@{step}" for stage, step in config.retained_steps()]
    folders = {name: retained_dir(run_dir) / name for name in names}
    reached = [name for name in names if folders[name].is_dir() or f"metric:{name.replace('@', ':')}" in records]
    if not reached:
        raise RunError(
            "The run retained no training states.",
            value=str(run_dir.path),
            fix="Set retain_states, e.g. to 0.05, in the configuration of a new run.",
        )
    steps = []
    for number, name in enumerate(reached):
        progress.update("reproduce", number, len(reached), name)
        step, position = _check_step(folders[name], config, records)
        if position and not files_only:
            events, weights = _execute(run_dir, config, folders[name], position, progress)
            step = _with_comparison(step, folders[name], records, events, weights, tolerance)
        steps.append(step)
    return Reproduction(
        run=run_dir.path.resolve().name,
        tolerance=tolerance,
        events=_check_event_file(run_dir, [folders[name] / STATE for name in reached]),
        checkpoints=_check_checkpoints(run_dir, records.values()),
        steps=steps,
        environment=_changed_environment(run_dir, config),
    )


# -- stored files ----------------------------------------------------------------------------------------------------
def _read_records(path: Path) -> dict[str, bytes]:
    """Return the lines of an event file by event id, without lines that are not JSON."""
    lines: dict[str, bytes] = {}
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    lines[str(json.loads(line)["id"])] = line
                except (ValueError, KeyError, TypeError):
                    continue
    except OSError as error:
        raise DataError("The event file cannot be opened.", value=str(path)) from error
    return lines


def _check_event_file(run_dir: RunDir, states: Sequence[Path]) -> PartResult:
    """Compare the beginnings of the event file with their digests; name the range of bytes that changed."""
    marks = [read_json(path).get("events") for path in states]
    if (retained_dir(run_dir) / EVENTS).exists():
        marks.append(read_json(retained_dir(run_dir) / EVENTS))
    try:
        sizes = sorted({(int(mark["bytes"]), str(mark["sha256"])) for mark in marks})  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return PartResult(outcome="differs", detail="a digest of the event file is missing or damaged")
    digest, start = hashlib.sha256(), 0
    with open(run_dir.events_path, "rb") as file:
        for size, expected in sizes:
            digest.update(file.read(size - start))
            if file.tell() < size or (size and digest.hexdigest() != expected):
                return PartResult(outcome="differs", detail=f"events.jsonl changed between bytes {start} and {size}")
            start = size
    return PartResult(outcome="identical")


def _check_checkpoints(run_dir: RunDir, lines: Iterable[bytes]) -> PartResult:
    """Compare the weights of all checkpoints that exist with their recorded digests."""
    for line in lines:
        event = json.loads(line)
        if event.get("type") != "checkpoint":
            continue
        file = run_dir.checkpoints / Path(str(event.get("name"))).name / "adapter_model.safetensors"
        if file.is_file() and sha256(file) != event.get("sha256"):
            return PartResult(outcome="differs", detail=f"checkpoint {event.get('name')} does not match its checksum")
    return PartResult(outcome="identical")


def _check_files(folder: Path, config: RunConfig) -> tuple[PartResult, JsonObject]:
    """Check the files of a retained state; return also its resume position."""
    state = read_json(folder / STATE)
    stage, _, step = folder.name.rpartition("@")
    index = [s.name for s in config.stages].index(stage)
    position, files = state.get("position"), state.get("files")
    valid = isinstance(position, dict) and (position.get("stage"), position.get("step")) == (index, int(step) - 1)
    if not valid or not isinstance(files, dict) or not files:
        return PartResult(outcome="differs", detail=f"{STATE} is missing or damaged"), {}
    for name, expected in files.items():
        file = folder / Path(name).name
        if not file.is_file() or sha256(file) != expected:
            return PartResult(outcome="differs", detail=f"{name} is missing or does not match its checksum"), {}
    return PartResult(outcome="identical"), dict(position or {})


def _check_lines(result: JsonObject, records: Mapping[str, bytes]) -> PartResult:
    """Compare the recorded event lines of a step with their digests."""
    digests = result.get("events")
    if not isinstance(digests, dict) or not isinstance(result.get("weights"), dict):
        return PartResult(outcome="differs", detail=f"{RESULT} is missing or damaged")
    for name, expected in digests.items():
        line = records.get(name)
        if line is None or hashlib.sha256(line).hexdigest() != expected:
            reason = "is missing" if line is None else "does not match its checksum"
            return PartResult(outcome="differs", detail=f"event {name} {reason}")
    return PartResult(outcome="identical")


# -- one step --------------------------------------------------------------------------------------------------------
class _EventList:
    """Event sink in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, events: Sequence[Event]) -> None:
        """Append events."""
        self.events += events

    def offset(self) -> int:
        """Return the number of events."""
        return len(self.events)

    def reconcile(self, position: int, expected: bytes) -> None:
        """Do nothing: a list has no incomplete events."""


def _check_step(folder: Path, config: RunConfig, records: Mapping[str, bytes]) -> tuple[StepResult, JsonObject]:
    """Check the stored files of a step; return also its resume position, which is empty if a file is damaged."""
    files, position = _check_files(folder, config)
    events = _check_lines(read_json(folder / RESULT), records)
    return StepResult(name=folder.name, parts={"files": files, "events": events}), position


def _with_comparison(
    step: StepResult,
    folder: Path,
    records: Mapping[str, bytes],
    events: Sequence[Event],
    weights: JsonObject,
    tolerance: float,
) -> StepResult:
    """Add the comparison of the repeated events and weights with the recorded ones."""
    result = read_json(folder / RESULT)
    digests = result.get("events")
    recorded = [json.loads(records[name]) for name in (digests if isinstance(digests, dict) else ()) if name in records]
    parts = {**step.parts, **compare(recorded, [json.loads(encode(event)) for event in events], tolerance)}
    parts["weights"] = _compare_weights(result.get("weights"), weights, tolerance)
    return step.model_copy(update={"parts": parts})


def _execute(
    run_dir: RunDir, config: RunConfig, folder: Path, position: JsonObject, progress: Progress
) -> tuple[list[Event], JsonObject]:
    """Execute the step after a training state in a temporary directory; return its events and `weights_digest`."""
    with tempfile.TemporaryDirectory(prefix="rl2f-reproduce-") as scratch:
        copy = RunDir(scratch)
        if (run_dir.path / DATASETS).is_dir():
            shutil.copytree(run_dir.path / DATASETS, copy.path / DATASETS)
        reflector = run_dir.reflector_folder(config) if position["stage"] else None  # the first stage may train it
        if reflector is not None and reflector.parent == run_dir.checkpoints:
            shutil.copytree(reflector, copy.checkpoints / reflector.name)
        sink = _EventList()
        journal = Journal(copy, sink)
        journal.resume_state, journal.state_dir = position, folder
        trainer = Trainer(config, RunContext(journal, progress=progress))
        trainer.run_next_step()
        journal.wait()
        events, weights = [*sink.events, *journal.pending], weights_digest(trainer.learner)
        del trainer
        gc.collect()  # two base models may not fit
    return events, weights


def compare(
    recorded: Sequence[JsonObject], repeated: Sequence[JsonObject], tolerance: float = TOLERANCE
) -> dict[str, PartResult]:
    """Compare the events of a step, as JSON: tokens, rewards, advantages and metrics.

    Texts of attempts, hints and verdicts count as tokens. Metrics that depend on the machine are excluded.
    """
    ours, theirs = _by_id(repeated), _by_id(recorded)
    missing = sorted(ours.keys() ^ theirs.keys())
    if missing:
        detail = f"event {missing[0]} is only in the {'repeated' if missing[0] in ours else 'recorded'} step"
        return dict.fromkeys(PARTS[2:6], PartResult(outcome="differs", detail=detail))

    def part(values: Callable[[JsonObject], Iterator[tuple[str, object]]]) -> PartResult:
        pairs = ((f"{name}{where}", a, b) for name in theirs for where, a, b in _pair(values, theirs[name], ours[name]))
        return _compare_values(pairs, tolerance)

    return {"tokens": part(_tokens), "rewards": part(_rewards), "advantages": part(_advantages),
            "metrics": part(_metrics)}  # fmt: skip


def _by_id(events: Sequence[JsonObject]) -> dict[str, JsonObject]:
    return {str(event["id"]): event for event in events if event["type"] in ("dialogue", "metric")}


def _pair(
    values: Callable[[JsonObject], Iterator[tuple[str, object]]], recorded: JsonObject, repeated: JsonObject
) -> Iterator[tuple[str, object, object]]:
    """Yield position, recorded and repeated value; None for a value that one side lacks."""
    before, after = dict(values(recorded)), dict(values(repeated))
    for where in before | after:
        yield where, before.get(where), after.get(where)


def _turns(event: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    for turn in event.get("dialogue", {}).get("turns", ()):
        yield f" turn {turn['index'] + 1}", turn


def _tokens(event: JsonObject) -> Iterator[tuple[str, object]]:
    for where, turn in _turns(event):
        yield from ((f"{where} token {k}", token) for k, token in enumerate(turn.get("token_ids", ())))
        yield f"{where} attempt", turn["attempt"]
        yield f"{where} hint", (turn.get("hint") or {}).get("text")
        yield f"{where} answer", turn["verdict"].get("parsed")


def _rewards(event: JsonObject) -> Iterator[tuple[str, object]]:
    for where, turn in _turns(event):
        yield from ((f"{where} reward {t['name']}", t["score"] * t["weight"]) for t in turn.get("rewards", ()))


def _advantages(event: JsonObject) -> Iterator[tuple[str, object]]:
    for where, turn in _turns(event):
        yield f"{where} advantage", turn.get("advantage")


def _metrics(event: JsonObject) -> Iterator[tuple[str, object]]:
    for name, value in event.get("values", {}).items():
        if not name.startswith(CLOCK_METRICS):
            yield f" {name}", value


def _compare_values(pairs: Iterable[tuple[str, object, object]], tolerance: float) -> PartResult:
    """Return the worst outcome with the first difference of that outcome."""
    result = PartResult(outcome="identical")
    for where, recorded, repeated in pairs:
        if recorded == repeated:
            continue
        values = f"{shorten(repr(recorded), 60)}, repeated: {shorten(repr(repeated), 60)}"
        if not (
            isinstance(recorded, float)
            and isinstance(repeated, float)
            and math.isclose(recorded, repeated, rel_tol=tolerance, abs_tol=tolerance)
        ):
            return PartResult(outcome="differs", detail=f"{where}: recorded {values}")
        if result.outcome == "identical":
            result = PartResult(outcome="within tolerance", detail=f"{where}: recorded {values}")
    return result


def _compare_weights(recorded: object, repeated: JsonObject, tolerance: float) -> PartResult:
    """Compare digests of weights; within tolerance if all norms are."""
    before = recorded if isinstance(recorded, dict) else {}
    if before.get("sha256") == repeated["sha256"]:
        return PartResult(outcome="identical")
    stored = before.get("norms")
    norms: JsonObject = stored if isinstance(stored, dict) else {}
    names = dict.fromkeys([*norms, *repeated["norms"]])
    result = _compare_values(((f"norm of {n}", norms.get(n), repeated["norms"].get(n)) for n in names), tolerance)
    detail = result.detail or "the SHA-256 of the weights differs, their norms are equal"
    return PartResult(outcome=_worst([result.outcome, "within tolerance"]), detail=detail)


def _changed_environment(run_dir: RunDir, config: RunConfig) -> dict[str, list[str | None]]:
    """Return the recorded and current package versions and hardware properties that differ."""
    before, now = read_json(run_dir.meta_path), provenance(config)
    changed: dict[str, list[str | None]] = {}
    for section in ("packages", "hardware"):
        old, new = before.get(section) or {}, now.get(section) or {}
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                changed[name] = [None if v is None else str(v) for v in (old.get(name), new.get(name))]
    return changed
