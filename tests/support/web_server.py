"""A web app over real HTTP, in a thread of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp


@contextmanager
def serving_app(make: Callable[[int], ASGIApp]) -> Iterator[str]:
    """Serve the app that `make` returns for a free port; yields the URL. Early requests wait for the start."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        web = uvicorn.Server(uvicorn.Config(make(port), log_level="warning", ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            web.should_exit = True
            thread.join()
