"""From a configuration to the things that play: environment, teacher, guard, backend, engine."""

from __future__ import annotations

from typing import Any

from rl2f_core import registry
from rl2f_core.backends.base import Backend
from rl2f_core.backends.pool import Models
from rl2f_core.config import BaseRun
from rl2f_core.environments.base import Environment
from rl2f_core.leaks.guard import LeakGuard
from rl2f_core.rollout.engine import RolloutEngine
from rl2f_core.rollout.render import Renderer


def build_environment(config: Any) -> Environment:
    """The environment of its config."""
    return registry.get("environment", config.type)(config)


def build_backend(config: BaseRun) -> Backend:
    """The backend of a run, with its base model loaded."""
    return registry.get("backend", config.backend.type)(config.backend, config.model)


def build_engine(config: BaseRun, backend: Backend, teacher: Any = None) -> RolloutEngine:
    """An engine over a backend; `teacher` is a teacher's config, by default the run's own."""
    environment = build_environment(config.environment)
    models = Models(backend, config.backend)
    teacher = teacher or config.teacher
    return RolloutEngine(
        environment=environment,
        teacher=registry.get("teacher", teacher.type)(teacher, environment, models),
        guard=LeakGuard.from_config(config.leaks, environment, models),
        backend=backend,
        renderer=Renderer(backend.tokenizer, environment.system()),
        config=config.rollout,
        reward=config.reward,
    )
