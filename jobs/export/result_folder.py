"""Copy the results of finished runs to folders that can be published, such as `data/results/quickstart/seed-0`.

config.yaml         resolved configuration, without paths of this machine
environment.json    command, commit, versions, seed, hardware, wall and CPU time
report.json, .md    evaluation, fork or hint values
training.json       metrics of the training steps by stage, one list per metric

The arms of a study are in ARM/seed-N beside its registration.json.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

from jobs.export.private_paths import check_private, machine_paths
from rl2f_core.common.file_io import checked_path, write_atomically
from rl2f_core.common.paths import ROOT
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.loading import dump_yaml, parse_recorded
from rl2f_core.errors import DataError, RunError, rl2f_command
from rl2f_core.evaluation.study.registration import FILE as REGISTRATION
from rl2f_core.evaluation.study.spec import is_arm
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import MetricEvent, StatusEvent, read_events
from rl2f_core.types import JsonObject

REPORT_FOLDERS = ("evaluation", "counterfactual")
"""Folders of a run directory that may contain report.json and report.md."""
DIGITS = 4
"""Significant digits of training metrics."""


def collect(runs: Sequence[str | Path], out: str | Path) -> list[Path]:
    """Copy the results of finished runs to `out`, of several runs to `out/seed-N`; return the folders.

    Existing files are replaced. Nothing is written if one run cannot be copied.

    Raises `RunError` if a run has not succeeded, and `DataError` if one has no report, if two have the same seed, or if
    a path of this machine would remain.
    """
    sources = [RunDir.open(run) for run in runs]
    targets = [Path(out)] if len(sources) == 1 else [Path(out) / f"seed-{run.config().seed}" for run in sources]
    if len(set(targets)) < len(targets):
        names = [target.name for target in targets]
        raise DataError("Two runs have the same seed.", value=names, fix="Collect them into different folders.")
    contents = [_files(source, target) for source, target in zip(sources, targets, strict=True)]
    for target, files in zip(targets, contents, strict=True):
        for name, data in files.items():
            write_atomically(target / name, data)
    return targets


def collect_study(study: Path, out: Path) -> list[Path]:
    """Copy the results of the finished arms of a study to `out/ARM/seed-N`, and its registration."""
    parts = {run: run.name.rpartition("-seed-") for run in sorted(study.glob("*-seed-*"))}
    arms = {run: out / arm / f"seed-{seed}" for run, (arm, _, seed) in parts.items() if is_arm(arm)}
    folders = [collect([run], arms[run])[0] for run in arms if RunDir(run).last_status() == "succeeded"]
    write_atomically(out / REGISTRATION, checked_path(study, REGISTRATION).read_bytes())
    return folders


def _files(source: RunDir, target: Path) -> dict[str, bytes]:
    """Return the content of a result folder by file name."""
    if source.last_status() != "succeeded":
        raise RunError(
            "The run is not finished.",
            value=str(source.path),
            fix=rl2f_command("train", "--resume", source.path),
        )
    folders = [source.path / name for name in REPORT_FOLDERS]
    folder = next((folder for folder in folders if (folder / "report.json").is_file()), None)
    if folder is None:
        raise DataError("The run has no report.", value=str(source.path), fix=rl2f_command("eval", source.path))
    environment, training = _recorded(source, target)
    files = {
        "config.yaml": _portable_config(source).encode(),
        "environment.json": _json(environment, indent=2),
        "report.json": (folder / "report.json").read_bytes(),
        "report.md": (folder / "report.md").read_bytes(),
        **({"training.json": _json(training)} if training else {}),
    }
    private = machine_paths(source.path)
    for name, data in files.items():
        check_private(name, data, private)
    return files


def _recorded(source: RunDir, target: Path) -> tuple[JsonObject, JsonObject]:
    """Return environment.json and training.json of a run."""
    meta = source.meta()
    sessions: list[StatusEvent] = []  # first event of each session
    ends: list[float] = []
    cpu: list[float | None] = []  # None for a session without a last status: the process was killed
    stages: dict[str, list[MetricEvent]] = {}
    for event in read_events(source.events_path):
        if isinstance(event, MetricEvent):
            stages.setdefault(event.stage, []).append(event)
        if isinstance(event, StatusEvent) and event.status == "running":
            sessions.append(event)
            ends.append(event.time)
            cpu.append(None)
        elif sessions:
            ends[-1] = max(ends[-1], event.time)
            cpu[-1] = event.cpu_seconds if isinstance(event, StatusEvent) else cpu[-1]
    known = [seconds for seconds in cpu if seconds is not None]
    folder = target.resolve()
    name = folder.relative_to(ROOT).as_posix() if folder.is_relative_to(ROOT) else folder.name
    environment = {
        "command": rl2f_command("train", f"{name}/config.yaml"),
        "commit": meta.get("git"),
        "seed": meta.get("seed"),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(meta["created"])) if "created" in meta else None,
        "python": meta.get("python"),
        "packages": meta.get("packages"),
        "machine": meta.get("machine"),
        "hardware": meta.get("hardware"),
        "sessions": len(sessions),
        "wall_seconds": round(sum(end - start.time for start, end in zip(sessions, ends, strict=True)), 2),
        "cpu_seconds": round(sum(known), 2) if len(known) == len(cpu) else None,
    }
    return environment, {stage: _columns(events) for stage, events in stages.items()}


def _columns(events: Sequence[MetricEvent]) -> JsonObject:
    """Return one list per metric, with None where a step has no value; the last event of a step counts."""
    rows = {event.step: event.values for event in events}
    names = dict.fromkeys(name for values in rows.values() for name in values)
    columns = {
        name: [None if (x := row.get(name)) is None else float(f"{x:.{DIGITS}g}") for row in rows.values()]
        for name in names
    }
    return {"step": list(rows), **columns}


def _portable_config(source: RunDir) -> str:
    """Return the configuration with relative paths, and the base model by its name."""
    data = load_yaml(source.config_path.read_text(encoding="utf-8"))
    data["model"]["name"] = re.sub("^/.*/", "", data["model"]["name"])
    return dump_yaml(parse_recorded(_relative(data, source.path.resolve())))


def _relative(node: object, run: Path) -> object:
    """Return configuration data with paths below the parent of the runs' folder relative to it."""
    if isinstance(node, dict):
        return {key: _relative(value, run) for key, value in node.items()}
    if isinstance(node, list):
        return [_relative(value, run) for value in node]
    if isinstance(node, str) and Path(node).is_absolute():
        path, base = Path(node), run.parent.parent
        if not path.is_relative_to(base):
            raise DataError("The run depends on a file of this machine.", value=node)
        return path.relative_to(base).as_posix()
    return node


def _json(data: object, indent: int | None = None) -> bytes:
    separators = (",", ":") if indent is None else None
    return json.dumps(data, indent=indent, separators=separators, ensure_ascii=False).encode() + b"\n"
