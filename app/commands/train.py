"""`rl2f train`, `eval` and `preflight`: create a run's folder from a configuration and execute the run."""

from __future__ import annotations

import re
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from app.commands.completion import complete_config
from app.commands.options import Out, Resume, Root, Sets, Targets, find_target
from app.common.console import err, out
from app.common.terminal_progress import TerminalProgress
from rl2f_core.config.loading import apply_override, load_config, parse_config
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError, RL2FError, rl2f_command
from rl2f_core.models.process_group import (
    ProcessGroup,
    current_group,
    init_distributed,
    is_remote_error,
    launched_world_size,
    shutdown_distributed,
)
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink, read_dialogues
from rl2f_core.run.execute import execute, removed_if_not_started
from rl2f_core.run.signals import InterruptHandler

RESUME_COMMANDS = {"eval": "eval", "fork": "fork", "hint_value": "hint-value", "levels": "levels"}
"""Command that resumes a kind of run; `train` resumes the others."""


def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="YAML file or preset; not needed with --resume.", autocompletion=complete_config),
    ] = None,
    sets: Sets = None,
    out: Out = None,
    resume: Resume = None,
) -> None:
    """Run an experiment: preflight, stages, evaluation. Ctrl-C saves and stops after the step; twice stops at once."""
    if resume is not None:
        if sets or out is not None:
            raise ConfigError("--set and --out cannot be combined with --resume.")
        run_dir = RunDir.open(resume)
        if config is not None and load_config(config) != load_config(run_dir.checked_path("config.yaml")):
            raise ConfigError(
                "The configuration file is not the one of the run to resume.",
                value=str(config),
                fix=rl2f_command("train", "--resume", resume),
            )
    elif config is None:
        raise ConfigError("A configuration file is needed.", fix="rl2f train CONFIG, or rl2f train --resume DIR.")
    else:
        execute_new(load_config(config, sets or []), out)
        return
    execute_in(run_dir)


def execute_new(config: BaseRun, out: Path | None) -> None:
    """Create a run's folder, see `create`, and execute the run; a start that fails leaves no run in the folder."""
    execute_in(create(config, out), is_new=True)


def create(config: BaseRun, out: Path | None) -> RunDir:
    """Create a run's folder: `out`, or one below runs/. With several processes, the main process creates it for all."""
    path = _join_group(config).broadcast_from_main(lambda: RunDir.create(out or folder_for(config.name), config).path)
    return RunDir(path)


def _join_group(config: BaseRun) -> ProcessGroup:
    """Return the process group of `accelerate launch`, or of this process alone."""
    if launched_world_size() > 1 and hasattr(config, "model"):
        return init_distributed(config.model.device)
    return current_group()


def folder_for(name: str, parent: Path = Path("runs")) -> Path:
    """Return an unused folder below `parent`, named by `name` and the time."""
    stem = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = parent / stem, 2
    while folder.exists():
        folder, number = parent / f"{stem}-{number}", number + 1
    return folder


def with_overrides(config: BaseRun, sets: list[str] | None) -> BaseRun:
    """Return a configuration with the values of `--set`."""
    data = config.model_dump(mode="json")
    for override in sets or []:
        data = apply_override(data, override)
    return parse_config(data)


def execute_in(run_dir: RunDir, *, is_new: bool = False) -> None:
    """Execute the run in its folder with progress and Ctrl-C, then print its reports and the next commands."""
    config = run_dir.config()
    kind = str(getattr(config, "kind", "train"))
    resume = rl2f_command(RESUME_COMMANDS.get(kind, "train"), "--resume", run_dir.path)
    stop = InterruptHandler()
    try:
        with removed_if_not_started(run_dir) if is_new else nullcontext():
            if not _join_group(config).is_main_process:
                _execute_as_worker(config, run_dir, stop)
                return
            err().print(f"Run {run_dir.path} (seed {config.seed})", markup=False)
            with stop, TerminalProgress() as progress:
                result = execute(config, run_dir, JsonlSink(run_dir.events_path), stop, progress)
        shutdown_distributed()
    except KeyboardInterrupt:
        err().print(f"\nStopped immediately. Resume with: {resume}", markup=False)
        raise typer.Exit(130) from None
    except RL2FError as error:
        if run_dir.config_path.is_file() and not is_remote_error(error):
            err().print(f"The run's folder is {run_dir.path}", markup=False)
        raise
    if result.status == "stopped":
        err().print(f"Stopped and saved. Resume with: {resume}", markup=False)
        raise typer.Exit(130)
    for report in (run_dir.evaluation / "report.md", run_dir.path / "counterfactual" / "report.md"):
        if report.is_file():
            out().print(report.read_text(encoding="utf-8"), markup=False)
    _print_next_steps(run_dir, kind)


def _execute_as_worker(config: BaseRun, run_dir: RunDir, stop: InterruptHandler) -> None:
    """Execute a run in another process than the main one; prints only errors of this process."""
    try:
        with stop:
            execute(config, run_dir, JsonlSink(run_dir.events_path), stop)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except RL2FError as error:
        if not is_remote_error(error):
            err().print(f"Process {current_group().rank}: {error}", markup=False)
        raise typer.Exit(2) from error
    shutdown_distributed()


def _print_next_steps(run_dir: RunDir, kind: str) -> None:
    """Print the folders of the results, and commands that read them."""
    from rl2f_core.dialogue.metrics.teacher_costs import add_costs, costs_text, teacher_costs

    events = read_dialogues(run_dir.events_path, having=b'"usage":{')
    costs = add_costs(teacher_costs([event.dialogue]) for event in events)
    lines = [f"Teacher: {costs_text(costs)}"] if costs else []
    folders = {
        "Checkpoints": run_dir.checkpoints,
        "Evaluation": run_dir.evaluation,
        "Report and figure": run_dir.path / "counterfactual",
    }
    lines += [f"{label}: {path}" for label, path in folders.items() if path.is_dir() and any(path.iterdir())]
    if kind == "preflight":
        lines.append(f"Report: {run_dir.path / 'preflight.txt'}")
    else:
        lines.append(f"Read the dialogues: {rl2f_command('replay', run_dir.path)}")
    if kind == "train":
        lines.append(f"Compare checkpoints again: {rl2f_command('eval', run_dir.path)}")
    for line in lines:
        err().print(line, markup=False)


def evaluate(
    targets: Targets = None,
    on: Annotated[
        str, typer.Option(help="Environments, separated by commas: registered names, presets, or YAML files.")
    ] = "",
    sets: Sets = None,
    out: Out = None,
    resume: Resume = None,
    workspace: Root = None,
) -> None:
    """Compare checkpoints on the same tasks under all conditions; writes JSON, a Markdown table and figures.

    The target RUN means the last checkpoint of each of its stages. The base model is always included. The settings are
    those of the first target's run; change one with e.g. --set evaluation.num_tasks=200. With --on, e.g.
    --on math,maze, checkpoints are compared on several environments, with as many tasks of each, and a heatmap.
    """
    from rl2f_core.run.kinds.eval import eval_config

    if resume is not None:
        if targets or sets or on or out is not None:
            raise ConfigError("Targets, --on, --set and --out cannot be combined with --resume.")
        execute_in(RunDir.open(resume))
        return
    names = [name.strip() for name in on.split(",") if name.strip()]
    config = eval_config([find_target(target, workspace) for target in targets or []], names)
    execute_new(with_overrides(config, sets), out)


def preflight(
    config: Annotated[
        Path, typer.Argument(help="YAML file or preset of a training run.", autocompletion=complete_config)
    ],
    sets: Sets = None,
    out: Out = None,
    dry: Annotated[
        bool, typer.Option("--dry", help="Check the configuration with a tiny random model in a few seconds.")
    ] = False,
) -> None:
    """Report whether a run is worth starting: parse rate, solve rate, mixed groups, lengths, time and memory."""
    from rl2f_core.run.kinds.preflight import preflight_config

    loaded = load_config(config, sets or [])
    if dry:
        _dry_run(loaded, out)
        return
    execute_new(preflight_config(loaded), out)


def _dry_run(config: BaseRun, folder: Path | None) -> None:
    """Execute the small version in `folder`, or in a temporary directory."""
    from rl2f_core.run.kinds.dry_run import dry_run

    with tempfile.TemporaryDirectory() as temporary, TerminalProgress() as progress:
        summary = dry_run(config, folder or Path(temporary) / "dry", progress)
    out().print(summary, markup=False)
