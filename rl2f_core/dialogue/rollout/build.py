"""Build environment, teacher, backend and engine from a configuration."""

from __future__ import annotations

import dataclasses
import json
from typing import cast

from rl2f_core import registry
from rl2f_core.common.file_io import read_json, write_atomically
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.config.run import BaseRun
from rl2f_core.dialogue.rollout.engine import REFLECTOR, RolloutEngine
from rl2f_core.dialogue.rollout.enumeration import system_message
from rl2f_core.dialogue.rollout.leak_guard import LeakGuard
from rl2f_core.dialogue.rollout.ray_workers import RayBackend, RayRolloutEngine, RolloutWorkerGroup
from rl2f_core.dialogue.teachers.base import Teacher
from rl2f_core.environments.base import NO_VERDICT_HINT, Environment
from rl2f_core.models.backends.auto import resolve_backend
from rl2f_core.models.backends.base import Backend
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.models.process_group import current_group
from rl2f_core.models.renderer import ChatRenderer
from rl2f_core.run.context import Progress
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject


def build_environment(config: ComponentConfig) -> Environment:
    """Build the environment of a config."""
    return registry.get("environment", config.type)(config)


def build_backend(config: BaseRun, run_dir: RunDir | None = None, progress: Progress | None = None) -> Backend:
    """Build the backend of a run and its rollout workers, if any.

    The `meta.json` of `run_dir` records the choice of the backend and its reason; a message to `progress` does if there
    is CUDA, and how decode steps are computed.
    """
    choice = resolve_backend(config.backend, config.model)
    if run_dir is not None and current_group().is_main_process:
        _record_backend(run_dir, {"type": choice.config.type, "reason": choice.reason})
    if progress is not None and choice.is_notable:
        progress.message(f"Backend {choice.config.type}: {choice.reason}.")
    backend: Backend = registry.get("backend", choice.config.type)(choice.config, config.model)
    if progress is not None and choice.is_notable and backend.decode_path:
        progress.message(f"Decode steps: {backend.decode_path}.")
    if not config.resources.rollout_workers:
        return backend
    return cast(Backend, RayBackend(backend, RolloutWorkerGroup(config, build_backend, build_engine)))


def _record_backend(run_dir: RunDir, backend: dict[str, str]) -> None:
    """Add the backend to the run's `meta.json`, if it exists."""
    if meta := read_json(run_dir.meta_path):
        write_atomically(run_dir.meta_path, json.dumps({**meta, "backend": backend}, indent=2))


def build_engine(
    config: BaseRun, backend: Backend, teacher: ComponentConfig | None = None, models: ModelPool | None = None
) -> RolloutEngine:
    """Build the engine of a run, by default with the run's teacher.

    `models` are those of another engine with this backend, so that none is loaded twice.
    """
    environment = build_environment(config.environment)
    models = models or ModelPool(backend, config.backend)
    teacher = teacher or config.teacher
    engine = (RayRolloutEngine if isinstance(backend, RayBackend) else RolloutEngine)(
        environment=environment,
        teacher=registry.get("teacher", teacher.type)(teacher, environment, models),
        guard=LeakGuard.from_config(config.leak_detection, environment, models),
        backend=backend,
        renderer=ChatRenderer(backend.tokenizer, system_message(environment, config.rollout)),
        config=config.rollout,
        reward=config.reward,
    )
    _ = engine.prompts  # raise for an invalid reprompt template now, not at the first hint
    return engine


def load_reflector(config: BaseRun, backend: Backend, run_dir: RunDir) -> None:
    """Load the reflector of a run into the backend, if it has a trained one.

    Raises `ConfigError` or `AdapterError` if its checkpoint is missing or does not fit the base model.
    """
    folder = run_dir.reflector_folder(config)
    if folder is not None:
        backend.load_adapter(REFLECTOR, folder)


def build_teacher(config: ComponentConfig, engine: RolloutEngine) -> Teacher:
    """Build another teacher for an engine, with the same models."""
    return registry.get("teacher", config.type)(config, engine.environment, engine.teacher.models)


def with_teacher(engine: RolloutEngine, config: ComponentConfig) -> RolloutEngine:
    """Return the engine with another teacher, from its configuration."""
    return dataclasses.replace(engine, teacher=build_teacher(config, engine))


def build_control(name: str, engine: RolloutEngine) -> Teacher:
    """Build the teacher of a control.

    `contentless` does not reveal the verdict if a correct attempt does not end the dialogue. `shuffled` takes its hints
    from `RolloutRequest.recorded_hints`. `leaking` is the teacher `leaky`, which states the answer in each hint.
    """
    if name == "leaking":
        config = registry.get("teacher", "leaky").Config(base="contentless", rate=1, kinds=("verbatim",))
        return build_teacher(config, engine)
    reveals = name == "contentless" and not engine.stop_on_correct
    settings: JsonObject = {"text": NO_VERDICT_HINT} if reveals else {}
    return build_teacher(registry.get("teacher", name).Config(**settings), engine)
