"""Studies in a workspace: their parts are runs with the tag `study:NAME`, queued, stopped and resumed together."""

from __future__ import annotations

from pathlib import Path

from jobs.db.models import ACTIVE, Run
from jobs.db.queries import runs
from jobs.db.queries.runs import RunFilter
from jobs.queue.queue import RESUMABLE, Queue
from jobs.workspace import Workspace
from rl2f_core.errors import UnknownNameError
from rl2f_core.evaluation.study.registration import FILE, register
from rl2f_core.evaluation.study.report import StudyReport, stored_study_report
from rl2f_core.evaluation.study.spec import Study, check_unchanged


def folder_of(workspace: Workspace, name: str) -> Path:
    """Return the folder of a study's registration and report."""
    return workspace.root / "studies" / name


def runs_of(queue: Queue, name: str) -> dict[str, Run]:
    """Return the runs of a study by part."""
    tagged = runs.matching(queue.db, RunFilter(tag=f"study:{name}", sort="created"))
    return {run.name.removeprefix(f"{name}-"): run for run in tagged}


def launch(queue: Queue, study: Study) -> dict[str, Run]:
    """Queue the parts that do not exist yet, and resume those that ended without success; return all by name.

    Raises `ConfigError` if the settings of an existing part have changed.
    """
    existing = runs_of(queue, study.name)
    finished = [name for name, run in existing.items() if run.status == "succeeded"]
    parts = study.parts()
    register(study, folder_of(queue.workspace, study.name), sum(p.is_arm and p.name in finished for p in parts))
    for part in parts:
        config = part.config(existing[part.warm_up].folder if part.warm_up else None)
        run = existing.get(part.name)
        if run is None:
            existing[part.name] = queue.add(config, origin="cli", tags=[f"study:{study.name}"])
            continue
        check_unchanged(part, config, run.config)
        if run.status in RESUMABLE:
            existing[part.name] = queue.resume(run.id or 0)
    return existing


def stop(queue: Queue, study: Study) -> dict[str, Run]:
    """Stop all parts that are queued or running; return all by name."""
    found = runs_of(queue, study.name)
    return {name: queue.stop(run.id or 0) if run.status in ACTIVE[:3] else run for name, run in found.items()}


def report(queue: Queue, name: str) -> StudyReport:
    """Return the report of a study from its finished parts. Raises `UnknownNameError`."""
    known = sorted(path.parent.name for path in folder_of(queue.workspace, "").glob(f"*/{FILE}"))
    if name not in known:
        raise UnknownNameError("Unknown study.", value=name, known=known)
    folders = {part: queue.workspace.folder(run.folder) for part, run in runs_of(queue, name).items()}
    return stored_study_report(folder_of(queue.workspace, name), folders)
