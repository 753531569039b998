"""A model server over real HTTP, in a thread of the test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
from web_server import serving_app

from app.model_server.served_models import ServedModels, find_models, load_backend
from app.model_server.server import ModelServer, ServerLimits
from rl2f_core.config.model import ModelConfig


def served(run: Path, checkpoints: Sequence[str], *, base: bool = True) -> ServedModels:
    """Checkpoints of a run on the CPU in float32."""
    models = find_models([(run, name) for name in checkpoints], base=base)
    return dataclasses.replace(models, base=ModelConfig(name=models.base.name, dtype="float32", device="cpu"))


@contextmanager
def serving(
    models: ServedModels, limits: ServerLimits | None = None, api_key: str | None = None
) -> Iterator[tuple[ModelServer, httpx2.Client]]:
    """Serve models on a free port; yields the server and a client."""
    server = ModelServer(models, load_backend(models), limits, api_key)
    with closing(server), serving_app(lambda port: server.app()) as url:
        with httpx2.Client(base_url=url, timeout=120, trust_env=False) as client:
            yield server, client
