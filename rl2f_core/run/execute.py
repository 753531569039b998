"""Execute a run of any kind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from rl2f_core import registry
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.named_variables import check_variables
from rl2f_core.config.run import BaseRun
from rl2f_core.errors import ConfigError, RL2FError, RunError
from rl2f_core.models.process_group import ProcessGroup, current_group, init_distributed, launched_world_size
from rl2f_core.run.alerts import Alerts
from rl2f_core.run.context import Progress, RunContext, ShouldStop
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import EventSink, LogEvent, Status, StatusEvent, read_events
from rl2f_core.run.journal import Journal
from rl2f_core.run.observers import ObservedSink, Observer


def execute(
    config: BaseRun, run_dir: RunDir, events: EventSink, stop: ShouldStop, progress: Progress | None = None
) -> StatusEvent:
    """Execute a run, from its last commit if any; return the final status event.

    Args:
        config: Configuration of any run kind.
        run_dir: Directory of the run.
        events: Destination of events, usually `JsonlSink(run_dir.events_path)`.
        stop: Called between steps; True in any process ends the run after a commit, with status `stopped`.
        progress: Receives phase, count and messages.

    Raises `ConfigError` if an environment variable that the configuration names is not set, if the run kind does not
    support a multi-process launch, or if the package of its tracker is missing.
    """
    kind = registry.get("run_kind", config.kind)()
    ranks = _process_group(config)
    check_variables(config.model_dump(mode="json"))
    run_dir = RunDir(run_dir.path, ranks)
    observed = ObservedSink(events, observers_of(config, run_dir))
    journal = Journal(run_dir, observed)
    progress = progress if ranks.is_main_process else None
    session = f"{time.time_ns():x}"
    cpu_start = sum(os.times()[:4])

    def status(value: Status, detail: str = "") -> StatusEvent:
        cpu_seconds = round(sum(os.times()[:4]) - cpu_start, 2)
        event = StatusEvent(id=f"status:{session}:{value}", status=value, detail=detail, cpu_seconds=cpu_seconds)
        observed.notify([event])
        if ranks.is_main_process and not journal.flush_pending:
            events.emit([event])
        run_dir.heartbeat(status=value, detail=detail)
        return event

    with run_dir.lock():
        journal.resume()
        if journal.resume_state is not None and journal.resume_state.get("done"):
            if run_dir.last_status() in ("running", "interrupted", "failed"):  # e.g. by a full disk
                return status("succeeded", "ended after its last commit")
            raise RunError("The run is finished.", value=str(run_dir.path), fix="Evaluate it, or start a new one.")
        if ranks.is_main_process:
            observed.start()
        try:
            status("running", "resumed" if journal.resume_state else "")
            try:
                finished = kind.execute(config, RunContext(journal, ranks.any_rank(stop), progress or Progress()))
                journal.wait()
            except BaseException as error:
                with contextlib.suppress(Exception):  # as below
                    journal.wait()
                with contextlib.suppress(RL2FError, OSError):  # raise the error that ended the run instead
                    status(*_status_of_error(error))
                raise
            return status("succeeded" if finished else "stopped")
        finally:
            observed.close(log=not journal.flush_pending)


@contextlib.contextmanager
def removed_if_not_started(run_dir: RunDir) -> Iterator[None]:
    """Remove the files of a new run if an error ends the block before anything but status and log was stored."""
    try:
        yield
    except Exception:
        events = read_events(run_dir.events_path) if run_dir.events_path.is_file() else ()
        is_stored = any(not isinstance(event, StatusEvent | LogEvent) for event in events)
        if current_group().is_main_process and not is_stored and not run_dir.has_commit():
            files = (run_dir.config_path, run_dir.meta_path, run_dir.events_path, run_dir.heartbeat_path)
            for path in (*files, run_dir.path / "lock"):
                path.unlink(missing_ok=True)
            for folder in (run_dir.state, run_dir.path):
                with contextlib.suppress(OSError):  # missing, or with other files
                    folder.rmdir()
        raise


def _process_group(config: BaseRun) -> ProcessGroup:
    """Return the process group of the launch. Raises `ConfigError` if the run kind does not support it."""
    if launched_world_size() == 1:
        return current_group()
    if not registry.get("run_kind", config.kind).supports_distributed:
        raise ConfigError(
            "This run kind does not support multi-process launch.",
            value=config.kind,
            fix="Start it without `accelerate launch`.",
        )
    return init_distributed(config.model.device)


def _status_of_error(error: BaseException) -> tuple[Status, str]:
    """Return the status of a run that an error ends, and its detail."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", "ended by a second Ctrl-C"
    return "failed", f"{type(error).__name__}: {error}"[:2000]


def observers_of(config: BaseConfig, run_dir: RunDir) -> list[Observer]:
    """Return the tracker and the alerts of a run. Raises `ConfigError` if the tracker's package is missing."""
    observers: list[Observer] = []
    if not isinstance(config, BaseRun):
        return observers
    if config.tracking is not None:
        observers.append(registry.get("tracker", config.tracking.type)(config.tracking, config, run_dir))
    if config.alerts.webhook is not None or config.alerts.command:
        observers.append(Alerts(config))
    return observers
