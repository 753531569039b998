"""A model server over real HTTP, in a thread of the test."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import uvicorn

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
    web = uvicorn.Server(uvicorn.Config(server.app(), log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with httpx2.Client(base_url=url, timeout=120, trust_env=False) as client:
                yield server, client
        finally:
            web.should_exit = True
            thread.join()
            server.close()
