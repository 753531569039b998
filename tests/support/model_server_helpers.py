"""A model server over real HTTP, in a thread of the test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
from web_server import serving_app

from jobs.model_server.limits import ServerLimits
from jobs.model_server.models import find_models
from jobs.model_server.protocol import ModelSource
from jobs.model_server.server import ModelServer


def served(run: Path, checkpoints: Sequence[str], *, base: bool = True) -> dict[str, ModelSource]:
    """Checkpoints of a run on the CPU in float32."""
    models = find_models([(run, name) for name in checkpoints], base=base)
    changes = {"dtype": "float32", "device": "cpu"}
    return {name: source.model_copy(update=changes) for name, source in models.items()}


@contextmanager
def serving(
    models: dict[str, ModelSource], limits: ServerLimits = ServerLimits(), api_key: str | None = None
) -> Iterator[tuple[ModelServer, httpx2.Client]]:
    """Serve models on a free port; yields the server and a client."""
    server = ModelServer(limits, models, api_key)
    server.load_models()
    with closing(server), serving_app(lambda port: server.app()) as url:
        with httpx2.Client(base_url=url, timeout=120, trust_env=False) as client:
            yield server, client
