"""Shrink a finished run to an example small enough to ship: all metrics, and some groups of dialogues.

Included are the configuration, provenance, all status, metric, checkpoint and log events, the evaluation report, and
as many dialogues as fit: evaluation tasks under *all* conditions and checkpoints, the first, middle and last step of
each stage, some preflight groups, then more steps. One adapter can be included, in bfloat16. Excluded are other
weights, training state, figures, and the tokens of evaluation dialogues. No path of the machine remains.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import yaml

from jobs.export.private_paths import check_private, machine_paths, write_folder
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.loading import dump_yaml, parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import AdapterError, DataError, RL2FError, RunError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import CheckpointEvent, DialogueEvent, encode, read_events
from rl2f_core.types import JsonObject

MAX_BYTES = 5_950_000
"""Below six megabytes together with the directories, without the adapter."""
MAX_ADAPTER_BYTES = 10_000_000
PREFLIGHT_GROUPS = 2
"""Number of preflight groups that precede the remaining steps."""
COPIED = ("evaluation/report.json", "evaluation/report.md", "preflight.json", "preflight.txt")
RECORDS = ("heartbeat.json", "exit.json", "progress.json")
"""A worker's status files; process ids are removed."""
NOTE = "example.json"
"""Marks the directory as an example, and lists what is excluded."""
NO_WEIGHTS = "The weights of this example are not shipped. Train it yourself to chat with it or to evaluate it again."
WEIGHTS = "The adapter {} is shipped in bfloat16; the run saved it in {}. The other checkpoints are not shipped."
T = TypeVar("T")
Lines = dict[int, bytes]
"""Position among the events → line."""
Key = tuple[str, ...]
"""Identifies dialogues that are included or excluded together."""


def create_example(
    run_dir: str | Path,
    out: str | Path,
    max_bytes: int = MAX_BYTES,
    model: str = "smollm2-135m",
    checkpoint: str | None = None,
) -> JsonObject:
    """Write a small copy of a finished training run to the new directory `out`; return the content of `example.json`.

    Args:
        run_dir: The run directory.
        out: A directory that does not exist.
        max_bytes: Maximum total size of the files without the adapter.
        model: Name of the base model, if the run refers to it by a path.
        checkpoint: Name of the checkpoint whose adapter is included, in bfloat16; its event gets the new digest.

    Raises `RunError` if the run has not succeeded or `out` exists, `ConfigError` if there is no such checkpoint,
    `DataError` if its metrics alone are too large, or if a path of this machine would remain, and `AdapterError` if the
    adapter is unreadable or has more than `MAX_ADAPTER_BYTES`.
    """
    source, target = RunDir.open(run_dir), Path(out)
    if target.exists():
        raise RunError("The folder for the example exists.", value=str(target), fix="Remove it, or name another.")
    if source.last_status() != "succeeded":
        raise RunError("Only a finished run can be an example.", value=str(run_dir), fix="Let it run to its end.")
    private = machine_paths(source.path)
    files = _small_files(source, model)
    adapter, weights = ({}, NO_WEIGHTS) if checkpoint is None else _adapter_files(source, checkpoint, model)
    digests = {Path(name).parent.name: hashlib.sha256(data).hexdigest() for name, data in adapter.items()}
    lines, units = _read(source, private, digests)
    note_bytes = len(_json(_note(units, {}, weights)))
    available = max_bytes - sum(map(len, files.values())) - _size(lines) - 2 * note_bytes
    if available < 0:
        raise DataError("The run's metrics alone are too large for an example.", value=max_bytes - available,
                        fix=f"Allow more than {max_bytes} bytes.")  # fmt: skip
    chosen: dict[Key, Lines] = {}
    for key in _order(list(units)):
        size = _size(units[key])
        if size <= available:
            chosen[key] = units[key]
            lines |= units[key]
            available -= size
    note = _note(units, chosen, weights)
    files |= adapter
    files["events.jsonl"] = b"".join(lines[position] for position in sorted(lines))
    files[NOTE] = _json(note)
    for name, data in files.items():
        check_private(name, data, private)
    write_folder(target, files)
    return note


def _size(lines: Lines) -> int:
    return sum(map(len, lines.values()))


def _small_files(source: RunDir, model: str) -> dict[str, bytes]:
    """Return the content of all files but the events, without private data."""
    try:
        data = load_yaml(source.config_path.read_text(encoding="utf-8"))
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
    config = config.model_copy(update={"start_from": None})  # the example contains the stages of that run
    files = {"config.yaml": dump_yaml(config).encode()}
    files["meta.json"] = _json(source.meta())
    for name in COPIED:
        if (source.path / name).is_file():
            files[name] = (source.path / name).read_bytes()
    for name in RECORDS:
        if (source.path / name).is_file():
            record = json.loads((source.path / name).read_text(encoding="utf-8"))
            files[name] = _json({k: v for k, v in record.items() if not k.startswith("pid")})
    return files


def _adapter_files(source: RunDir, checkpoint: str, model: str) -> tuple[dict[str, bytes], str]:
    """Return the files of an adapter in bfloat16, the weights last, and a sentence about them."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save

    folder = source.checkpoint(checkpoint)
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise AdapterError(f"The adapter cannot be read: {error}.", value=str(folder)) from error
    data = save({name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}, {"format": "pt"})
    if len(data) > MAX_ADAPTER_BYTES:
        raise AdapterError(f"The adapter has more than {MAX_ADAPTER_BYTES} bytes in bfloat16.", value=len(data))
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})
    path = f"{source.checkpoints.name}/{checkpoint}"
    files = {
        f"{path}/adapter_config.json": _json({**config, "base_model_name_or_path": model}),
        f"{path}/adapter_model.safetensors": data,
    }
    return files, WEIGHTS.format(checkpoint, ", ".join(dtypes))


def _leaves(node: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the value of every string in a configuration."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}.{index}")
    elif isinstance(node, str):
        yield path, node


def _read(source: RunDir, private: re.Pattern[bytes], digests: Mapping[str, str]) -> tuple[Lines, dict[Key, Lines]]:
    """Return the lines that are always included, and those of dialogues by unit, without units with private paths.

    `digests` contains the new digests of checkpoints.
    """
    lines: Lines = {}
    units: dict[Key, Lines] = {}
    for position, event in enumerate(read_events(source.events_path)):
        if isinstance(event, DialogueEvent):
            units.setdefault(_key(event), {})[position] = _compact(event)
            continue
        if isinstance(event, CheckpointEvent) and event.name in digests:
            event = event.model_copy(update={"sha256": digests[event.name]})
        lines[position] = encode(event)
    return lines, {key: unit for key, unit in units.items() if not any(map(private.search, unit.values()))}


def _key(event: DialogueEvent) -> Key:
    """Return the unit of a dialogue: its step, its preflight group, or its evaluation task under all conditions."""
    if event.phase == "evaluation":
        return "evaluation", event.task.id
    if event.phase == "preflight":
        return "preflight", event.stage, event.dialogue.group
    return "train", event.stage, str(event.step)


def _compact(event: DialogueEvent) -> bytes:
    """Encode an event without default values, and without the tokens of an evaluation."""
    if event.phase == "evaluation":
        turns = [turn.model_copy(update={"token_ids": (), "logprobs": ()}) for turn in event.dialogue.turns]
        event = event.model_copy(update={"dialogue": event.dialogue.model_copy(update={"turns": tuple(turns)})})
    data = event.model_dump(mode="json", exclude_defaults=True)
    data = {"id": event.id, "time": event.time, "type": event.type, **data}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _order(keys: list[Key]) -> Iterator[Key]:
    """Yield units by importance: evaluation tasks, three steps per stage, some preflight groups, then the rest."""
    steps: dict[str, list[Key]] = {}
    for key in keys:
        if key[0] == "train":
            steps.setdefault(key[1], []).append(key)
    spread = [list(_spread(stage)) for stage in steps.values()]
    preflight = [key for key in keys if key[0] == "preflight"]
    yield from (key for key in keys if key[0] == "evaluation")
    yield from (key for stage in spread for key in stage[:3])
    yield from preflight[:PREFLIGHT_GROUPS]
    yield from (key for stage in spread for key in stage[3:])
    yield from preflight[PREFLIGHT_GROUPS:]


def _spread(items: list[T]) -> Iterator[T]:
    """Yield the first, last and middle item, then the middles of the gaps, so that any prefix is evenly spread."""
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


def _note(units: dict[Key, Lines], chosen: dict[Key, Lines], weights: str) -> JsonObject:
    def count_tasks(keys: Iterable[Key]) -> int:
        return sum(key[0] == "evaluation" for key in keys)

    return {
        "example": True,
        "weights": weights,
        "dialogues": {"shipped": sum(map(len, chosen.values())), "played": sum(map(len, units.values()))},
        "evaluation_tasks": {"shipped": count_tasks(chosen), "played": count_tasks(units)},
        "steps": sorted(f"{key[1]}@{key[2]}" for key in chosen if key[0] == "train"),
        "left_out": "the state for a resume, figures, and the tokens of evaluation dialogues",
    }


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def main(arguments: list[str]) -> int:
    """Run `python .ci/example_run.py RUN OUT [CHECKPOINT] [--max-bytes N]`: write the example and print its note."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run")
    parser.add_argument("out")
    parser.add_argument("checkpoint", nargs="?", help="checkpoint whose adapter is included")
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES, help="of all files but the adapter")
    args = parser.parse_args(arguments)
    try:
        print(json.dumps(create_example(args.run, args.out, args.max_bytes, checkpoint=args.checkpoint), indent=2))
    except RL2FError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
