"""`rl2f study`: run all arms and seeds of a study, and report its hypotheses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.common.console import err, out
from app.common.terminal_progress import TerminalProgress
from rl2f_core.errors import ConfigError, RL2FError, rl2f_command
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute
from rl2f_core.run.signals import InterruptHandler

if TYPE_CHECKING:
    from rl2f_core.evaluation.study.spec import Study


def study(
    file: Annotated[Path, typer.Argument(help="YAML file of a study, or the name of a shipped one.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder of the study; by default runs/NAME.")] = None,
    workspace: Annotated[
        Path | None, typer.Option(help="Queue the parts in this workspace; `rl2f serve` executes them.")
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop all parts in the workspace.")] = False,
) -> None:
    """Run all arms and seeds of a study and report its hypotheses; the same command again resumes it.

    Finished parts do not run again, and parts of a seed with equal first stages run these once. Ctrl-C saves and stops
    after the step.
    """
    from rl2f_core.evaluation.study.spec import load_study

    if stop and workspace is None:
        raise ConfigError("--stop needs --workspace.", fix="Stop a study in this folder with Ctrl-C.")
    loaded = load_study(file)
    if workspace is None:
        folder = folder or Path("runs") / loaded.name
        _execute_parts(loaded, folder)
        if not _report(folder, {part.name: folder / part.name for part in loaded.parts()}):
            raise typer.Exit(2)
    else:
        from app.commands.options import opened_context
        from jobs import studies

        with opened_context(workspace) as context:
            queue = context.queue
            runs = studies.stop(queue, loaded.name) if stop else studies.launch(queue, loaded)
            for name, run in runs.items():
                err().print(f"{name}: run {run.id}, {run.status}", markup=False)
            folder = studies.folder_of(context.workspace, loaded.name)
            _report(folder, {name: context.workspace.folder(run.folder) for name, run in runs.items()})


def _execute_parts(loaded: Study, folder: Path) -> None:
    """Execute the parts in order; one that fails does not end the study."""
    from rl2f_core.evaluation.study.registration import register_unchanged

    parts = {part.name: RunDir(folder / part.name) for part in loaded.parts()}
    existing = [name for name, run_dir in parts.items() if run_dir.config_path.is_file()]
    for name in existing:
        parts[name].checked_path()
    stored = {name: parts[name].config_path.read_text(encoding="utf-8") for name in existing}
    finished = [name for name, run_dir in parts.items() if run_dir.last_status() == "succeeded"]
    register_unchanged(loaded, folder, stored, finished)
    request = InterruptHandler()
    begun = [name for name, run_dir in parts.items() if run_dir.has_commit()]
    for part in loaded.needed([*finished, *begun]):
        name, run_dir = part.name, parts[part.name]
        config = part.config(part.warm_up)
        if not run_dir.config_path.is_file():
            RunDir.create(run_dir.path, config)
        if name in finished:
            continue
        err().print(f"{name} ({list(parts).index(name) + 1} of {len(parts)})", markup=False)
        try:
            with request, TerminalProgress() as progress:
                result = execute(config, run_dir, JsonlSink(run_dir.events_path), request, progress)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except Exception as error:
            text = error if isinstance(error, RL2FError) else f"{type(error).__name__}: {error}"
            err().print(f"{name} failed: {text}", markup=False)
            continue
        if result.status == "stopped":
            err().print(f"Stopped and saved. Resume with: {rl2f_command('study')} …", markup=False)
            raise typer.Exit(130)


def _report(folder: Path, folders: dict[str, Path]) -> bool:
    """Write and print the report of the finished parts; return whether none is missing."""
    from rl2f_core.evaluation.study.report import stored_study_report, write_study_report

    report, chart = stored_study_report(folder, folders)
    if report.arms:
        write_study_report(report, chart, folder)
        out().print(report.to_markdown(), markup=False, soft_wrap=True)
        err().print(f"Report: {folder / 'report.md'}, {folder / 'report.html'}", markup=False)
    return not report.missing
