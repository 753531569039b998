"""Studies in a workspace: their parts are runs with the tag `study:NAME`, queued, stopped and resumed together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from jobs.db.errors import NotFoundError
from jobs.db.models import Run
from jobs.db.queries import metrics, runs
from jobs.db.queries.runs import RunFilter
from jobs.queue.queue import RESUMABLE, STOPPABLE, Queue, start_folder
from jobs.workspace import Workspace
from rl2f_core.errors import RunError
from rl2f_core.evaluation.report_file import read_report
from rl2f_core.evaluation.study.registration import FILE, read_versions, register_unchanged
from rl2f_core.evaluation.study.report import FinishedPart, StudyReport, build_study_report
from rl2f_core.evaluation.study.spec import Study, parse_study
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject

TAG = "study:"
"""Prefix of the tag of a study's runs."""


def folder_of(workspace: Workspace, name: str) -> Path:
    """Return the folder of a study's registration and report."""
    return workspace.root / "studies" / name


def runs_of(queue: Queue, name: str) -> dict[str, Run]:
    """Return the runs of a study by part."""
    tagged = runs.matching(queue.db, RunFilter(tag=f"{TAG}{name}", sort="created"))
    return {run.name.removeprefix(f"{name}-"): run for run in tagged}


def launch(queue: Queue, study: Study) -> dict[str, Run]:
    """Queue the parts that do not exist, and resume those that ended without success; return all by name.

    A warm-up that no arm copies any more is left out. An arm that would copy a deleted one is queued as a new run.
    Nothing is registered or queued if it raises: `ConfigError` if the settings of an existing part have changed, or if
    there is no device for a new one, and `RunError` while a part is stopping, from which others may start.
    """
    with FileLock(queue.workspace.root / "studies.lock"):  # two callers would queue every part twice
        return _launch(queue, study)


def _launch(queue: Queue, study: Study) -> dict[str, Run]:
    existing = runs_of(queue, study.name)
    if stopping := [name for name, run in existing.items() if run.status == "stopping"]:
        raise RunError(
            f"{stopping[0]} of the study {study.name} is stopping.", fix="Resume the study when it has ended."
        )
    for part in study.parts():
        if part.name not in existing:
            queue.check_device(part.config(part.warm_up))
    finished = [name for name, run in existing.items() if run.status == "succeeded"]
    stored = {name: run.config for name, run in existing.items()}
    register_unchanged(study, folder_of(queue.workspace, study.name), stored, finished)
    begun = [name for name, run in existing.items() if RunDir(queue.workspace.folder(run.folder)).has_commit()]
    for part in study.needed([*finished, *begun]):
        run, warm_up = existing.get(part.name), existing.get(part.warm_up or "")
        if (
            run
            and warm_up
            and run.status in RESUMABLE
            and part.name not in begun
            and start_folder(run) != warm_up.folder
        ):
            queue.delete(run.id or 0)
            run = None
        if run is None:
            config = part.config(warm_up.folder if warm_up else None)
            existing[part.name] = queue.add(config, origin="cli", tags=[f"{TAG}{study.name}"])
        elif run.status in RESUMABLE:
            existing[part.name] = queue.resume(run.id or 0)
    return existing


def stop(queue: Queue, name: str) -> dict[str, Run]:
    """Stop all parts that are queued or running, the last one first; return all by name. Raises `NotFoundError`."""
    parts = runs_of(queue, load(queue, name).name)
    for name, run in reversed(parts.items()):
        if run.status in STOPPABLE:
            with suppress(RunError):  # it has ended in the meantime
                parts[name] = queue.stop(run.id or 0)
    return parts


def names(queue: Queue) -> list[str]:
    """Return the names of the studies that were started here, sorted."""
    return sorted(path.parent.name for path in folder_of(queue.workspace, "").glob(f"*/{FILE}"))


def load(queue: Queue, name: str) -> Study:
    """Return the newest version of a study that was started here. Raises `NotFoundError`."""
    if name not in (known := names(queue)):
        raise NotFoundError("Unknown study.", value=name, known=known)
    return parse_study(read_versions(folder_of(queue.workspace, name))[-1].text)


def report(queue: Queue, study: Study, parts: Mapping[str, Run], link: Callable[[int, str, str], str]) -> StudyReport:
    """Return the report of a study from its finished parts.

    Args:
        queue: The queue.
        study: The study.
        parts: Its runs by part.
        link: Returns the address of the dialogues of a run, checkpoint and condition.
    """
    names = [part.name for part in study.parts() if part.is_arm]
    finished = {name: _finished(queue, parts[name]) if name in parts else None for name in names}
    versions = read_versions(folder_of(queue.workspace, study.name))
    return build_study_report(study, versions, finished, lambda part, *at: link(parts[part].id or 0, *at))


def _finished(queue: Queue, run: Run) -> FinishedPart | None:
    """Return the results of a run; its steps are in the database, and faster to read than its events."""
    folder, training = queue.workspace.folder(run.folder), defaultdict[str, list[JsonObject]](list)
    if (result := read_report(folder)) is None:
        return None
    for row in metrics.steps(queue.db, run.id or 0):
        training[row.stage].append({"step": row.step, **row.values})
    return FinishedPart(folder, result, training)
