"""`python -m tests.benchmarks.study`: two arms and some seeds of the quickstart, as a study and as separate runs.

Both sides start from nothing, go through the queue of a workspace, and end when the last run has its report.  The study
trains and evaluates what its arms share once per seed.  Both sides must give the same events and adapters.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from jobs import studies
from jobs.db.engine import Database
from jobs.db.queries import runs
from jobs.db.settings import put
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.common.paths import CONFIGS
from rl2f_core.config.loading import parse_config
from rl2f_core.evaluation.study.spec import Study, is_arm, parse_study
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, MetricEvent, read_events

from .report import busy, parser, ratio, spread, table
from .worker import processor_seconds

WANTED = 1.8
"""Least ratio, from the project's requirements."""
SIDES = ("study", "apart")


def study_of(args: argparse.Namespace) -> Study:
    """The quickstart with and without content of hints; `--part` shortens its stages and its evaluation alike."""
    data = yaml.safe_load((CONFIGS / "quickstart" / "quickstart.yaml").read_text("utf-8"))
    for stage in data["stages"]:
        stage["steps"] = max(1, round(stage["steps"] * args.part))
    data["evaluation"]["num_tasks"] = max(1, round(data["evaluation"]["num_tasks"] * args.part))
    data["model"] = {"name": args.model, "device": args.device, "dtype": args.dtype}
    data["preflight"] = {"ignore_failure": True}
    arms = {"rl2f": {}, "contentless": {"stages.1.teacher": "contentless"}}
    return parse_study(yaml.safe_dump({**data, "seeds": [*range(args.seeds)], "matrix": {"arm": arms}}))


def measure(study: Study, side: str, folder: Path, slots: int) -> tuple[dict[str, Any], dict[str, Path]]:
    """Seconds by the clock and of processors from an empty workspace to the last report; folders of the arms."""
    workspace = Workspace(folder).create()
    db = Database(workspace.database_url())
    db.migrate()
    put(db, "slots.cpu", str(slots))
    queue = Queue(db, workspace)
    start, spent = time.perf_counter(), processor_seconds()
    if side == "study":
        parts = studies.launch(queue, study)
    else:
        parts = {part.name: queue.add(parse_config(part.data)) for part in study.parts() if part.is_arm}
    try:
        while True:
            queue.dispatch()
            queue.sync_workers()
            queue.reap()
            now = {name: runs.get(db, run.id or 0) for name, run in parts.items()}
            if failed := [f"{run.name}: {run.detail}" for run in now.values() if run.status == "failed"]:
                raise RuntimeError(failed[0])
            if all(run.status == "succeeded" for run in now.values()):
                break
            time.sleep(1)
    finally:
        for run in runs.active(db):
            queue.abort(run.id or 0)
        db.close()
    answer = {"seconds": time.perf_counter() - start, "cpu_seconds": processor_seconds() - spent}
    return answer, {name: workspace.folder(run.folder) for name, run in now.items() if is_arm(name)}


def content(folder: Path) -> dict[str, Any]:
    """Dialogues and their numbers by id, and the bytes of the adapters.

    Without log-probabilities: their last digit depends on what is evaluated together.
    """
    found: dict[str, Any] = {}
    for event in read_events(folder / "events.jsonl", strict=True):
        if isinstance(event, DialogueEvent):
            found[event.id] = event.dialogue.model_dump(mode="json", exclude={"turns": {"__all__": {"logprobs"}}})
        elif isinstance(event, MetricEvent):
            found[event.id] = {k: v for k, v in event.values.items() if k in ("loss", "reward", "grad_norm", "cum_acc")}
    run_dir = RunDir(folder)
    for name in run_dir.checkpoint_names():
        found[name] = (run_dir.checkpoint(name) / "adapter_model.safetensors").read_bytes()
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run both sides and print what was found."""
    options = parser("tests.benchmarks.study", __doc__, repeats=1)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--part", type=float, default=0.25, help="part of the quickstart's steps and test problems")
    options.add_argument("--slots", type=int, default=os.cpu_count() or 1, help="concurrent runs")
    args = options.parse_args(argv)
    study, load = study_of(args), os.getloadavg()[0]
    if warning := busy(load, os.cpu_count() or 1):
        print(warning, flush=True)
    sides: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    differences: list[str] = []
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as made:
            folders = {}
            for side, found in sides.items():
                answer, folders[side] = measure(study, side, Path(made) / side, args.slots)
                found.append(answer)
                print(f"{side}: {answer['seconds']:.0f} s, {answer['cpu_seconds']:.0f} CPU-s", flush=True)
            for name, folder in folders["study"].items():
                ours, theirs = content(folder), content(folders["apart"][name])
                ids = dict.fromkeys([*ours, *theirs])
                differences += [f"{name} {key}" for key in ids if ours.get(key) != theirs.get(key)]
    rates = {key: [[1 / answer[key] for answer in found] for found in sides.values()]
             for key in ("seconds", "cpu_seconds")}  # fmt: skip
    result = {"ratio": ratio(*rates["seconds"]), "cpu_ratio": ratio(*rates["cpu_seconds"])}
    lines = [[side, spread([answer["seconds"] for answer in found]).text(0)] for side, found in sides.items()]
    print(table([["side", "seconds"], *lines]))
    verdict = "reached" if result["ratio"].median >= WANTED else "NOT reached"
    print(f"study: 2 arms of {args.seeds} seeds are {result['ratio'].text(2)} times as fast as separate runs with "
          f"{args.slots} slots, {result['cpu_ratio'].text(2)} by CPU time; at least {WANTED} wanted, {verdict}; "
          f"events and adapters are {'DIFFERENT' if differences else 'equal'}")  # fmt: skip
    if args.out:
        kept = {name: value._asdict() for name, value in result.items()}
        settings = {name: value for name, value in vars(args).items() if name != "out"}
        found_all = {"settings": settings, "load": load, "answers": sides, "equal": not differences, **kept}
        args.out.write_text(json.dumps(found_all, indent=1))
    if differences:
        raise SystemExit(f"The study and the separate runs differ in {len(differences)}, first: {differences[:3]}")


if __name__ == "__main__":
    main()
