"""A finished run made small enough to ship: all its metrics, and a choice of whole groups of its dialogues.

Kept are the configuration, where it came from, every status, metric, checkpoint and log event, the evaluation's report,
and as many dialogues as fit: of each stage the first, middle and last step, some groups of the preflight, evaluation
tasks under *all* controls and checkpoints, then more steps. Left out are weights, the state for a resume, figures (the
app draws its own), and the tokens of evaluation dialogues. No path of the machine that made the run remains.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rl2f_core.config.loading import dump_yaml, parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import DataError, RL2FError, RunError
from rl2f_core.file_io import write_atomically
from rl2f_core.paths import ROOT
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, encode, read_events

MAX_BYTES = 1_950_000
"""Two megabytes with the folders themselves and a word to spare."""
PREFLIGHT_GROUPS = 2
COPIED = ("evaluation/report.json", "evaluation/report.md", "preflight.json", "preflight.txt")
RECORDS = ("heartbeat.json", "exit.json", "progress.json")
"""What a worker left; who it was on its machine is taken out."""
NOTE = "example.json"
"""Says of the folder that it is an example, what was left out, and that its weights are not shipped."""
NO_WEIGHTS = "The weights of this example are not shipped. Train it yourself to chat with it or to evaluate it again."


@dataclass
class _Unit:
    """Dialogues that are kept or left out together."""

    lines: dict[int, bytes] = field(default_factory=dict)
    """Place among the events → line."""

    @property
    def size(self) -> int:
        return sum(map(len, self.lines.values()))


def create_example(
    run_dir: str | Path, out: str | Path, max_bytes: int = MAX_BYTES, model: str = "smollm2-135m"
) -> dict[str, Any]:
    """Write a small copy of a finished training run into the new folder `out`; returns what `example.json` says.

    Args:
        run_dir: The run's folder.
        out: A folder that does not exist.
        max_bytes: The files of the copy have at most this size together.
        model: Stands for the base model where the run names it by a path.

    Raises `RunError` where the run has not ended well or `out` exists, and `DataError` where even its metrics are too
    large, or where a path of this machine would remain.
    """
    source, target = RunDir.open(run_dir), Path(out)
    if target.exists():
        raise RunError("The folder for the example exists.", value=str(target), fix="Remove it, or name another.")
    if source.last_status() != "succeeded":
        raise RunError("Only a finished run can be an example.", value=str(run_dir), fix="Let it run to its end.")
    private = machine_paths(source.path)
    files = _files(source, model)
    kept, units = _read(source, private)
    note = _note(units, {})
    room = max_bytes - sum(map(len, files.values())) - sum(map(len, kept.values())) - 2 * len(_json(note))
    if room < 0:
        raise DataError("The run's metrics alone are too large for an example.", value=max_bytes - room,
                        fix=f"Allow more than {max_bytes} bytes.")  # fmt: skip
    chosen: dict[tuple[str, ...], _Unit] = {}
    for key in _order(list(units)):
        if units[key].size <= room:
            chosen[key] = units[key]
            room -= units[key].size
    lines = dict(kept)
    for unit in chosen.values():
        lines |= unit.lines
    files["events.jsonl"] = b"".join(lines[place] for place in sorted(lines))
    note = _note(units, chosen)
    files[NOTE] = _json(note)
    for name, data in files.items():
        found = private.search(data)
        if found is not None:
            raise DataError(
                "A path of this machine would remain.", value=f"{name}: {found[0].decode(errors='replace')}"
            )
    _write(target, files)
    return note


def machine_paths(run: Path) -> re.Pattern[bytes]:
    """Finds paths that mean something on this machine alone: of the run, the user, and the folders we work in."""
    places = {run.absolute(), run.resolve(), Path.home(), Path.cwd(), Path(tempfile.gettempdir()), Path(sys.prefix)}
    places.add(ROOT)
    texts = sorted((str(p) for p in places if len(p.parts) > 1), key=len, reverse=True)
    return re.compile(rb"(?<![\w.])(?:" + b"|".join(re.escape(t.encode()) for t in texts) + rb")(?![\w-])")


def _files(source: RunDir, model: str) -> dict[str, bytes]:
    """The small files, cleaned: name → content."""
    try:
        data = yaml.safe_load(source.config_path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"The run's configuration cannot be read: {error}.", value=str(source.config_path)) from error
    for dotted, value in _leaves(data):
        if Path(value).is_absolute() and dotted != "model.name":
            raise DataError("The run depends on a file of this machine.", value=f"{dotted}: {value}")
    if Path(data["model"]["name"]).is_absolute():
        data["model"]["name"] = model
    config = parse_config(data)
    if not isinstance(config, RunConfig):
        raise DataError("Only a training run can be an example.", value=data.get("kind"))
    files = {"config.yaml": dump_yaml(config).encode()}
    meta = json.loads(source.meta_path.read_text(encoding="utf-8"))
    files["meta.json"] = _json(meta)
    for name in COPIED:
        path = source.path / name
        if path.is_file():
            files[name] = path.read_bytes()
    for name in RECORDS:
        path = source.path / name
        if path.is_file():
            held = json.loads(path.read_text(encoding="utf-8"))
            files[name] = _json({k: v for k, v in held.items() if not k.startswith("pid")})
    return files


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a configuration with its dotted place."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}.{index}")
    elif isinstance(node, str):
        yield path, node


def _read(source: RunDir, private: re.Pattern[bytes]) -> tuple[dict[int, bytes], dict[tuple[str, ...], _Unit]]:
    """Events that all stay (place → line), and dialogues by unit; a unit that names a path of this machine is none."""
    kept: dict[int, bytes] = {}
    units: dict[tuple[str, ...], _Unit] = {}
    bad: set[tuple[str, ...]] = set()
    for place, event in enumerate(read_events(source.events_path)):
        if not isinstance(event, DialogueEvent):
            kept[place] = encode(event)
            continue
        key = _key(event)
        line = _compact(event)
        units.setdefault(key, _Unit()).lines[place] = line
        if private.search(line):
            bad.add(key)
    return kept, {key: unit for key, unit in units.items() if key not in bad}


def _key(event: DialogueEvent) -> tuple[str, ...]:
    """What a dialogue stays together with: its step, its preflight group, or its task under every control."""
    if event.phase == "evaluation":
        return "evaluation", event.task.id
    if event.phase == "preflight":
        return "preflight", event.stage, event.dialogue.group
    return "train", event.stage, str(event.step)


def _compact(event: DialogueEvent) -> bytes:
    """The event's line without what is default, and without an evaluation's tokens."""
    if event.phase == "evaluation":
        turns = [turn.model_copy(update={"token_ids": (), "logprobs": ()}) for turn in event.dialogue.turns]
        event = event.model_copy(update={"dialogue": event.dialogue.model_copy(update={"turns": tuple(turns)})})
    data = event.model_dump(mode="json", exclude_defaults=True)
    data = {"id": event.id, "time": event.time, "type": event.type, **data}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _order(keys: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Units by importance: three steps of each stage, some of the preflight, the evaluation's tasks, then the rest."""
    steps: dict[str, list[tuple[str, ...]]] = {}
    for key in keys:
        if key[0] == "train":
            steps.setdefault(key[1], []).append(key)
    spread = {stage: list(_spread(held)) for stage, held in steps.items()}
    yield from (key for held in spread.values() for key in held[:3])
    preflight = [key for key in keys if key[0] == "preflight"]
    yield from preflight[:PREFLIGHT_GROUPS]
    yield from (key for key in keys if key[0] == "evaluation")
    yield from (key for held in spread.values() for key in held[3:])
    yield from preflight[PREFLIGHT_GROUPS:]


def _spread(items: list[Any]) -> Iterator[Any]:
    """First, last, middle, then the middles between, so that any beginning of the order is spread evenly."""
    if not items:
        return
    yield items[0]
    if len(items) > 1:
        yield items[-1]
    gaps = [(0, len(items) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        if high - low > 1:
            middle = (low + high) // 2
            yield items[middle]
            gaps += [(low, middle), (middle, high)]


def _note(units: dict[tuple[str, ...], _Unit], chosen: dict[tuple[str, ...], _Unit]) -> dict[str, Any]:
    def count(held: Iterable[_Unit]) -> int:
        return sum(len(unit.lines) for unit in held)

    return {
        "example": True,
        "weights": NO_WEIGHTS,
        "dialogues": {"shipped": count(chosen.values()), "played": count(units.values())},
        "evaluation_tasks": {
            "shipped": sum(key[0] == "evaluation" for key in chosen),
            "played": sum(key[0] == "evaluation" for key in units),
        },
        "steps": sorted(f"{key[1]}@{key[2]}" for key in chosen if key[0] == "train"),
        "left_out": "weights, the state for a resume, figures, and the tokens of evaluation dialogues",
    }


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def _write(target: Path, files: dict[str, bytes]) -> None:
    """All files or none."""
    scratch = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        for name, data in files.items():
            write_atomically(scratch / name, data)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_example(folder: Path) -> bool:
    """Whether a run's folder is a shipped example, whose weights are not there."""
    return (folder / NOTE).is_file()


def main(arguments: list[str]) -> int:
    """`python -m jobs.export.example_run RUN OUT`: shrink a run's folder and say what was kept."""
    if len(arguments) != 2:
        print("Usage: python -m jobs.export.example_run RUN OUT", file=sys.stderr)
        return 2
    try:
        print(json.dumps(create_example(arguments[0], arguments[1]), indent=2))
    except RL2FError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
