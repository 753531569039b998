"""Start of a training run from the end of another one, whose stages are its first ones (`RunConfig.start_from`)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rl2f_core import registry
from rl2f_core.common.file_io import read_json
from rl2f_core.config.run import RunConfig
from rl2f_core.dialogue.dataset_store import DATASETS
from rl2f_core.errors import ConfigError, RunError, rl2f_command
from rl2f_core.models.process_group import current_group
from rl2f_core.run.context import RunContext
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, Event, LogEvent, MetricEvent, StatusEvent, read_events
from rl2f_core.run.journal import Journal
from rl2f_core.types import JsonObject

_UNUSED = ("name", "start_from", "alerts", "tracking", "preflight")
"""Settings that do not change what the first stages learn; the preflight does by the positions of tasks alone."""


def settings_of_first_stages(config: RunConfig, count: int) -> JsonObject:
    """Return all settings on which the first `count` stages of a run depend.

    Rewards count only if one of the stages learns from rollouts.
    """
    stages = config.stages[:count]
    data = {key: value for key, value in config.model_dump(mode="json").items() if key not in _UNUSED}
    data["evaluation"].pop("checkpoints")
    if not any(registry.get("method", stage.method.type).on_policy for stage in stages):
        del data["reward"]
    positions = [config.first_task(stage) for stage in stages]
    return {**data, "stages": data["stages"][:count], "positions of tasks": positions}


def adopt_stages(config: RunConfig, context: RunContext, name: str) -> None:
    """Copy checkpoints, datasets, events and training state of a finished run into a new one, and commit them.

    The new run then continues as if it had trained these stages. With equal rewards it also takes over the evaluations
    of the checkpoints that it evaluates itself (`adopted_evaluations`).

    Raises `RunError` if the other run is not finished, and `ConfigError` naming the settings that differ.
    """
    journal, run_dir = context.journal, context.run_dir
    source = run_dir.resolve_run(name)
    earlier, state = source.config(), Journal(source, journal.events).current()
    position = read_json(state / "state.json").get("position", {}) if state is not None else {}
    if state is None or not isinstance(earlier, RunConfig) or not position.get("done"):
        fix = f"Finish it first: {rl2f_command('train', '--resume', source.path)}"
        raise RunError("The run in start_from is not a finished training run.", value=name, fix=fix)
    count = len(earlier.stages)
    ours, theirs = settings_of_first_stages(config, count), settings_of_first_stages(earlier, count)
    different = [key for key in ours if ours[key] != theirs.get(key)] + ["retain_states"] * bool(config.retain_states)
    if different:
        fix = f"Set them as in {source.config_path} (retain_states: 0), or leave start_from out."
        raise ConfigError("The run in start_from has other settings than these first stages.", value=different, fix=fix)

    same = [name for name in earlier.evaluated_checkpoints() if name in config.evaluated_checkpoints()]
    evaluated = same if config.reward == earlier.reward else []

    def copy_files() -> None:
        evaluations = [source.evaluated_dialogues(name) for name in evaluated]
        for folder in (source.checkpoints, source.path / DATASETS, *evaluations):
            if folder.is_dir():
                shutil.copytree(folder, run_dir.path / folder.relative_to(source.path), dirs_exist_ok=True)

    def copy_state(target: Path) -> None:
        for file in state.iterdir() if current_group().is_main_process else ():
            if file.suffix == ".safetensors" or file.name == "adapter_config.json":
                shutil.copy2(file, target / file.name)

    current_group().run_on_main(copy_files)
    journal.emit(event for event in read_events(source.events_path) if _is_adopted(event, evaluated))
    journal.commit({"stage": count, "step": 0}, copy_state)
    journal.resume()


def _is_adopted(event: Event, evaluated: Sequence[str]) -> bool:
    """Return whether an event belongs to the first stages or to an evaluation of one of these checkpoints.

    Metrics and report of the evaluation are made again from its dialogues.
    """
    if isinstance(event, DialogueEvent) and event.phase == "evaluation":
        return event.checkpoint in evaluated
    if isinstance(event, MetricEvent):
        return not event.is_evaluation
    is_report = isinstance(event, LogEvent) and event.id.startswith("evaluation:")
    return not isinstance(event, StatusEvent) and not is_report


def adopted_evaluations(run_dir: RunDir) -> list[str]:
    """Return `CHECKPOINT/CONDITION` of all evaluations in the events of a run, in their order."""
    events = read_events(run_dir.events_path, having=b'"phase":"evaluation"')
    return [*dict.fromkeys(f"{e.checkpoint}/{e.condition}" for e in events if isinstance(e, DialogueEvent))]
