"""From a configuration to the things that play: environment, teacher, guard, backend, engine."""

from __future__ import annotations

import json
from typing import Any

from rl2f_core import registry
from rl2f_core.backends.auto import choose
from rl2f_core.backends.base import Backend
from rl2f_core.backends.pool import Models
from rl2f_core.config import BaseRun, write_atomically
from rl2f_core.environments.base import NEUTRAL, Environment
from rl2f_core.leaks.guard import LeakGuard
from rl2f_core.ranks import here
from rl2f_core.rollout.engine import RolloutEngine
from rl2f_core.rollout.render import Renderer
from rl2f_core.rollout.shared import SharedEngine
from rl2f_core.rollout.spread import SpreadBackend, SpreadEngine, spread
from rl2f_core.run import Progress, RunDir
from rl2f_core.teachers.base import Teacher


def build_environment(config: Any) -> Environment:
    """The environment of its config."""
    return registry.get("environment", config.type)(config)


def build_backend(config: BaseRun, run_dir: RunDir | None = None, progress: Progress | None = None) -> Backend:
    """The backend of a run, with its base model loaded; where the run has actors, with these behind it.

    Args:
        config: Of the run; its `backend` may be `auto`.
        run_dir: The run, whose `meta.json` is told which backend it is and why.
        progress: Hears of it.
    """
    chosen = choose(config.backend, config.model)
    if run_dir is not None and here().main:
        _note(run_dir, {"type": chosen.config.type, "reason": chosen.reason})
    if progress is not None:
        progress.say(f"Backend {chosen.config.type}: {chosen.reason}.")
    backend: Backend = registry.get("backend", chosen.config.type)(chosen.config, config.model)
    return spread(backend, config) if config.resources.actors else backend


def _note(run_dir: RunDir, backend: dict[str, str]) -> None:
    """Write the backend into the run's `meta.json`, where there is one."""
    try:
        meta = json.loads(run_dir.meta_path.read_text())
    except (OSError, ValueError):
        return
    write_atomically(run_dir.meta_path, json.dumps({**meta, "backend": backend}, indent=2))


def build_engine(config: BaseRun, backend: Backend, teacher: Any = None, models: Models | None = None) -> RolloutEngine:
    """An engine over a backend.

    Args:
        config: Of the run.
        backend: With the base model loaded.
        teacher: A teacher's config; None is the run's own.
        models: Those of another engine over this backend, so that none is loaded twice.
    """
    environment = build_environment(config.environment)
    models = models or Models(backend, config.backend)
    teacher = teacher or config.teacher
    engine = _kind(backend)(
        environment=environment,
        teacher=registry.get("teacher", teacher.type)(teacher, environment, models),
        guard=LeakGuard.from_config(config.leaks, environment, models),
        backend=backend,
        renderer=Renderer(backend.tokenizer, environment.system()),
        config=config.rollout,
        reward=config.reward,
    )
    _ = engine.history  # a template that does not fit ends the run before it begins, not at its first hint
    return engine


def _kind(backend: Backend) -> type[RolloutEngine]:
    """Who plays: actors, the processes of this run together, or this one alone."""
    if isinstance(backend, SpreadBackend):
        return SpreadEngine
    return RolloutEngine if here().count == 1 else SharedEngine


def build_teacher(config: Any, engine: RolloutEngine) -> Teacher:
    """A teacher that can speak in an engine in place of its own, with the same models."""
    made: Any = registry.get("teacher", config.type)
    return made(config, engine.environment, engine.teacher.models)  # type: ignore[no-any-return]


def build_control(name: str, engine: RolloutEngine) -> Teacher:
    """The teacher of a control (methods.md §8).

    Where a model teaches in the engine, `shuffled` shuffles its hints; where right answers do not end a dialogue,
    `contentless` does not say whether the attempt is right.
    """
    own: Any = engine.teacher.config
    settings: dict[str, Any] = {}
    if name == "shuffled" and own.type in ("llm", "self_critique"):
        settings = {"source": own}
    elif name == "contentless" and not engine.oracle_stop:
        settings = {"text": NEUTRAL}
    made: Any = registry.get("teacher", name)
    return build_teacher(made.Config(**settings), engine)
