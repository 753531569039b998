"""`rl2f leaks train`: train the leak detector `classifier`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.leaks.benchmark import format_interval
from app.commands.options import AsJson, Root, Sets, migrated
from app.commands.train import folder_for
from app.common.console import err, out, table
from app.common.terminal_progress import TerminalProgress
from rl2f_core.config.loading import apply_override, parse_config
from rl2f_core.errors import ConfigError, rl2f_command
from rl2f_core.file_io import write_atomically
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute, removed_if_not_started
from rl2f_core.run.signals import InterruptHandler
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rl2f_core.leaks.classifier.quality import Quality
    from rl2f_core.leaks.classifier.stored import DetectorFile


def train(
    detector: Annotated[str, typer.Option("--name", help="Name of the detector; each training is a new version.")] = (
        "leaks"
    ),
    run: Annotated[
        list[int] | None, typer.Option("--run", help="Also use the labels of this run of the workspace; repeatable.")
    ] = None,
    model: Annotated[str, typer.Option(help="Base model.")] = "smollm2-135m",
    layers: Annotated[int, typer.Option(min=0, help="Layers of the base model that are used; 0 for all.")] = 12,
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the training examples; only with --set trained_layers=N.")
    ] = 3,
    precision: Annotated[float, typer.Option(help="Precision that the threshold reaches on held-out tasks.")] = 0.95,
    leave_out: Annotated[
        str | None, typer.Option(metavar="kind=NAME|environment=NAME", help="Train without it, and score on it.")
    ] = None,
    leave_each: Annotated[
        str | None,
        typer.Option(metavar="kind|environment", help="Leave out each hand-written one in turn; see --table."),
    ] = None,
    table_file: Annotated[
        Path | None, typer.Option("--table", help="JSON file of --leave-each; entries that it has are not repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of split, augmentation, weights and order.")] = 0,
    sets: Sets = None,
    output: Annotated[
        Path | None, typer.Option("--out", help="Folder of all detectors; by default detectors/ beside runs/.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="File of the calibration plot (PNG).")] = None,
    as_json: AsJson = False,
    workspace: Root = None,
) -> None:
    """Train a leak detector on the dev halves of the benchmarks and on people's labels.

    The result is DETECTORS/NAME/vN with the weights and detector.json: threshold, data hashes, seeds, and quality on
    held-out tasks. Use it as `--detector exact,equivalent,classifier:path=FOLDER`, or in leak_detection.detectors.
    """
    from jobs import run_kinds

    run_kinds.load()
    data: JsonObject = {
        "kind": "train_detector", "detector": detector, "runs": run or [], "model": {"name": model},
        "layers": layers or None, "epochs": epochs, "precision": precision, "leave_out": leave_out, "seed": seed,
        "out": None if output is None else str(output.resolve()),
    }  # fmt: skip
    for override in sets or []:
        data = apply_override(data, override)
    if leave_each is not None:
        _leave_each(data, leave_each, table_file)
        return
    stored, folder = _execute(data, workspace if run or workspace else None, in_workspace=bool(run or workspace))
    if figure is not None:
        write_calibration_plot(stored, figure)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **stored.model_dump(mode="json")}, indent=2))
    else:
        show(stored)
    err().print(f"Detector: {folder}", markup=False)
    cascade = f"exact,equivalent,classifier:path={folder}"
    score = rl2f_command("leaks", "benchmark", "--detectors", cascade)
    err().print(f"Score it: {score}", markup=False)


def _execute(data: JsonObject, workspace: Path | None, *, in_workspace: bool) -> tuple[DetectorFile, Path]:
    """Train as a run, of the workspace if it uses one; return the detector and its folder."""
    from jobs.run_kinds.train_detector import SUMMARY
    from rl2f_core.leaks.classifier.stored import read_detector

    config = parse_config(data)
    if in_workspace:
        with migrated(workspace) as (opened, _):
            runs = opened.runs
    else:
        runs = Path("runs")
    run_dir = RunDir.create(folder_for(f"train-detector-{data['detector']}", runs), config)
    with removed_if_not_started(run_dir), InterruptHandler() as stop, TerminalProgress() as progress:
        result = execute(config, run_dir, JsonlSink(run_dir.events_path), stop, progress)
    if result.status == "stopped":
        err().print("Stopped; no detector was stored.", markup=False)
        raise typer.Exit(130)
    folder = Path(json.loads((run_dir.path / SUMMARY).read_text(encoding="utf-8"))["folder"])
    if in_workspace:
        _import(run_dir.path, workspace)
    return read_detector(folder), folder


def _import(folder: Path, workspace: Path | None) -> None:
    from jobs.ingest import ingester

    with migrated(workspace) as (opened, db):
        ingester.import_run(db, opened, folder.name, origin="cli")


def _leave_each(data: JsonObject, what: str, file: Path | None) -> None:
    """Train once without each kind or environment of the hand-written dev half, and write the table after each."""
    from jobs.run_kinds.train_detector import TrainDetectorRun
    from rl2f_core.leaks.classifier import examples
    from rl2f_core.leaks.classifier.train import LEAVE_OUT, TrainingConfig
    from rl2f_core.leaks.classifier.train import train as train_detector

    if what not in LEAVE_OUT or file is None:
        raise ConfigError("--leave-each is kind or environment, and needs --table FILE.", value=what, known=LEAVE_OUT)
    settings = TrainDetectorRun.model_validate({**data, "leave_out": None}).model_dump()
    found = [e for e in examples.handwritten() if e.leak or what == "environment"]
    names = sorted({e.kind if what == "kind" else e.environment.name for e in found})
    rows: dict[str, JsonObject] = json.loads(file.read_text(encoding="utf-8"))["left_out"] if file.exists() else {}
    features: dict[tuple[int, ...], NDArray[np.float32]] = {}
    with InterruptHandler() as stop, TerminalProgress() as progress, tempfile.TemporaryDirectory() as folder:
        for name in names:
            key = f"{what}={name}"
            if key in rows:
                continue
            config = TrainingConfig(**{k: settings[k] for k in TrainingConfig.model_fields} | {"leave_out": key})
            target = Path(folder) / what / name
            target.mkdir(parents=True)
            progress.message(f"Without {key} ({names.index(name) + 1} of {len(names)})")
            stored = train_detector(config, target, on_progress=progress.update, stop=stop, features=features)
            if stored is None:
                raise typer.Exit(130)
            quality = stored.left_out[key].overall
            rows[key] = {
                "n": quality.counts.tp + quality.counts.fn, "threshold": stored.threshold,
                **quality.model_dump(mode="json"), "heldout": stored.report.overall.model_dump(mode="json"),
            }  # fmt: skip
            table_data = {"version": 1, "settings": stored.settings, "left_out": rows}
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps(table_data, indent=1) + "\n")
    columns = ("left out", "leaks", "recall", "precision", "area under ROC")
    out().print(table(*columns, rows=(_left_out_row(key, row) for key, row in rows.items())))
    err().print(f"Table: {file}", markup=False)


def _left_out_row(key: str, row: JsonObject) -> tuple[str, ...]:
    values = [row[name]["value"] for name in ("recall", "precision", "area")]
    return key, str(row["n"]), *("–" if value is None else f"{value:.3f}" for value in values)


def write_calibration_plot(stored: DetectorFile, file: Path) -> None:
    """Write the reliability diagram of a detector as a PNG."""
    from rl2f_core.evaluation.chart_data import calibration_chart
    from rl2f_core.evaluation.figure_files import to_png

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(to_png(calibration_chart(stored.model_dump(mode="json"))))


def show(stored: DetectorFile) -> None:
    """Print the quality of a trained detector as tables."""
    console, report = out(), stored.report
    groups: Mapping[str, Mapping[str, Quality]] = {
        "held-out hints": {"all": report.overall, **report.by_source},
        "threshold of the other half": report.cross_fitted,
        "environment": report.by_environment,
        "register": report.by_register,
        **{f"left out: {key}": {"all": left.overall} for key, left in stored.left_out.items()},
    }
    for title, scores in groups.items():
        if scores:
            console.print()
            columns = (title, "leaks", "others", "precision", "recall", "area under ROC")
            console.print(table(*columns, rows=(_row(name, quality) for name, quality in scores.items())))
    console.print(f"\n{stored.cpu_seconds:,.0f} CPU-seconds.")


def _row(name: str, quality: Quality) -> tuple[str, ...]:
    c = quality.counts
    figures = map(format_interval, (quality.precision, quality.recall, quality.area))
    return name, str(c.tp + c.fn), str(c.fp + c.tn), *figures
