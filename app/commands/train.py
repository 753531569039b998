"""`rl2f train`, `eval` and `preflight`: a configuration becomes a run's folder, and the run is executed in it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rl2f_core.config.run import BaseRun
    from rl2f_core.run.directory import RunDir
    from rl2f_core.run.signals import InterruptHandler
    from rl2f_core.run_kinds.eval import Target

Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override one value; may be repeated.")]
RESUMED = {"eval": "eval", "fork": "fork", "hint_value": "hint-value", "levels": "levels"}
"""The command that goes on with a kind of run; `train` with all others."""
Out = Annotated[Path | None, typer.Option(help="Folder of the run; by default one below runs/.")]


def train(
    config: Annotated[Path | None, typer.Argument(help="YAML file; not needed with --resume.")] = None,
    sets: Sets = None,
    out: Out = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
) -> None:
    """Run an experiment: preflight, stages, evaluation. Ctrl-C stops after the step and saves; twice ends at once."""
    from rl2f_core.config.loading import load_config
    from rl2f_core.errors import ConfigError
    from rl2f_core.run.directory import RunDir

    if resume is not None:
        if sets or out is not None:
            raise ConfigError("--set and --out do not go with --resume: a run goes on as it was configured.")
        run_dir = RunDir.open(resume)
        if config is not None and load_config(config) != run_dir.config():
            raise ConfigError(
                "The configuration file is not the one of the run to resume.",
                value=str(config),
                fix=f"rl2f train --resume {resume}",
            )
    elif config is None:
        raise ConfigError("A configuration file is needed.", fix="rl2f train CONFIG, or rl2f train --resume DIR.")
    else:
        run_dir = create(load_config(config, sets or []), out)
    execute_in(run_dir)


def create(config: BaseRun, out: Path | None) -> RunDir:
    """A run's new folder: `out`, or one below runs/. Where `accelerate launch` started several processes, all get the
    one that the main process makes."""
    from rl2f_core.distributed.process_group import current_group, init_distributed, launched_world_size
    from rl2f_core.run.directory import RunDir

    ranks = (
        init_distributed(config.model.device)
        if launched_world_size() > 1 and hasattr(config, "model")
        else current_group()
    )
    return RunDir(ranks.broadcast_from_main(lambda: RunDir.create(out or folder_for(config.name), config).path))


def folder_for(name: str, parent: Path = Path("runs")) -> Path:
    """A folder below `parent` that is not there yet, by name and time."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")
    folder = parent / f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}"
    taken = 2
    while folder.exists():
        folder = folder.with_name(f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}-{taken}")
        taken += 1
    return folder


def execute_in(run_dir: RunDir) -> None:
    """Execute the run in its folder with bars and Ctrl-C, then print what it found and the next command."""
    from app.common.console import err, out
    from app.common.terminal_progress import TerminalProgress
    from rl2f_core.distributed.process_group import (
        current_group,
        init_distributed,
        is_remote_error,
        launched_world_size,
        shutdown_distributed,
    )
    from rl2f_core.errors import RL2FError
    from rl2f_core.run.events import JsonlSink
    from rl2f_core.run.execute import execute
    from rl2f_core.run.signals import InterruptHandler

    config = run_dir.config()
    kind = str(getattr(config, "kind", "train"))
    again = f"rl2f {RESUMED.get(kind, 'train')} --resume {run_dir.path}"
    stop = InterruptHandler()
    try:
        ranks = (
            init_distributed(config.model.device)
            if launched_world_size() > 1 and hasattr(config, "model")
            else current_group()
        )
        if not ranks.is_main_process:
            _follow(config, run_dir, stop)
            return
        err().print(f"Run {run_dir.path} (seed {config.seed})", markup=False)
        with stop, TerminalProgress() as progress:
            ended = execute(config, run_dir, JsonlSink(run_dir.events_path), stop, progress)
        shutdown_distributed()
    except KeyboardInterrupt:
        err().print(f"\nEnded at once. Go on with: {again}", markup=False)
        raise typer.Exit(130) from None
    except RL2FError as error:
        if not is_remote_error(error):
            err().print(f"The run's folder is {run_dir.path}", markup=False)
        raise
    if ended.status == "stopped":
        err().print(f"Stopped and saved. Go on with: {again}", markup=False)
        raise typer.Exit(130)
    for report in (run_dir.evaluation / "report.md", run_dir.path / "counterfactual" / "report.md"):
        if report.is_file():
            out().print(report.read_text(encoding="utf-8"), markup=False)
    next_steps(run_dir, kind)


def _follow(config: BaseRun, run_dir: RunDir, stop: InterruptHandler) -> None:
    """Work on a run that the main process speaks for; only what it does not know is told."""
    from app.common.console import err
    from rl2f_core.distributed.process_group import current_group, is_remote_error, shutdown_distributed
    from rl2f_core.errors import RL2FError
    from rl2f_core.run.events import JsonlSink
    from rl2f_core.run.execute import execute

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


def next_steps(run_dir: RunDir, kind: str) -> None:
    """Where the results lie and what can be done with them."""
    from app.common.console import err
    from rl2f_core.metrics.teacher_costs import add_costs, costs_text, teacher_costs
    from rl2f_core.run.events import DialogueEvent, read_events

    console = err()
    events = read_events(run_dir.events_path, having=b'"usage":{')
    spent = add_costs(teacher_costs([e.dialogue]) for e in events if isinstance(e, DialogueEvent))
    if spent:
        console.print(f"Teacher: {costs_text(spent)}", markup=False)
    folders = {"Checkpoints": run_dir.checkpoints, "Evaluation": run_dir.evaluation,
               "Report and figure": run_dir.path / "counterfactual"}  # fmt: skip
    for label, path in folders.items():
        if path.is_dir() and any(path.iterdir()):
            console.print(f"{label}: {path}", markup=False)
    if kind == "preflight":
        console.print(f"Report: {run_dir.path / 'preflight.txt'}", markup=False)
    else:
        console.print(f"Read the dialogues: rl2f replay {run_dir.path}", markup=False)
    if kind == "train":
        console.print(f"Compare checkpoints again: rl2f eval {run_dir.path}", markup=False)


def evaluate(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TARGET…", help="A run's folder, RUN:CHECKPOINT, or a checkpoint's folder."),
    ] = None,
    sets: Sets = None,
    out: Out = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the evaluation in this folder.")] = None,
) -> None:
    """Compare checkpoints on the same tasks under all controls; writes JSON, a Markdown table and figures.

    A run stands for the last checkpoint of each stage; the base model is always compared too. The settings are those
    of the first target's run; --set evaluation.num_tasks=200 changes one.
    """
    from rl2f_core.config.loading import apply_override, parse_config
    from rl2f_core.errors import ConfigError
    from rl2f_core.run.directory import RunDir

    if resume is not None:
        if targets or sets or out is not None:
            raise ConfigError("Targets, --set and --out do not go with --resume: it goes on as it was configured.")
        execute_in(RunDir.open(resume))
        return
    from rl2f_core.run_kinds.eval import eval_config

    data = eval_config([as_target(target) for target in targets or []]).model_dump(mode="json")
    for override in sets or []:
        data = apply_override(data, override)
    execute_in(create(parse_config(data), out))


def as_target(text: str) -> Target:
    """A run's folder and a checkpoint's name from `RUN`, `RUN:NAME` or `RUN/checkpoints/NAME`; RUN may hold colons."""
    path = Path(text)
    if path.parent.name == "checkpoints" and (path / "adapter_config.json").is_file():
        return path.parent.parent, path.name
    folder, colon, name = text.rpartition(":")
    return (text, None) if not colon or path.is_dir() else (folder, name)


def preflight(
    config: Annotated[Path, typer.Argument(help="YAML file of a training run.")],
    sets: Sets = None,
    out: Out = None,
    dry: Annotated[
        bool, typer.Option("--dry", help="Only build everything and play it once on a tiny random model; seconds.")
    ] = False,
) -> None:
    """Say whether a run is worth starting: parsable share, solve rate, useful groups, lengths, time and memory."""
    from rl2f_core.config.loading import load_config, parse_config

    if dry:
        _dry(load_config(config, sets or []), out)
        return
    data = load_config(config, sets or []).model_dump(mode="json")
    name = f"preflight {data['name']}"[:100]
    execute_in(create(parse_config({**data, "kind": "preflight", "name": name}), out))


def _dry(config: BaseRun, out: Path | None) -> None:
    """Play the small version in `out`, or in a folder that is removed again."""
    import tempfile

    from app.common.console import out as console
    from app.common.terminal_progress import TerminalProgress
    from rl2f_core.run_kinds.dry_run import dry_run

    with tempfile.TemporaryDirectory() as folder, TerminalProgress() as progress:
        said = dry_run(config, out or Path(folder) / "dry", progress)
    console().print(said, markup=False)
