"""Calls in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def call_in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function where no event loop runs; the browser tests leave one running in the main thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args, **kwargs).result()
