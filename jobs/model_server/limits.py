"""Limits of a model server: options of `rl2f serve` and `rl2f serve-model`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLimits:
    """Limits of one server."""

    max_running: int = 32
    """Sequences that are generated together."""
    max_waiting: int = 256
    """Sequences that wait for the running ones."""
    max_model_len: int = 4096
    """Tokens of a prompt and its completion; the memory of the KV cache is proportional to it."""
    max_body_bytes: int = 4_000_000
    body_seconds: float = 30.0
    """Time for sending a body."""
    request_seconds: float = 600.0
    """Time from the body to the end of the response; the studio's own requests have no limit."""
    idle_seconds: float | None = None
    """Idle time after which the model is unloaded; None keeps it."""
    memory_gb: float = 0.0
    """Maximum memory of the process; 0 means no limit."""
    reserve_gb: float | None = None
    """Memory that must stay free when a model is loaded; None checks nothing."""


STUDIO_LIMITS = ServerLimits(max_model_len=2**31, idle_seconds=600.0, reserve_gb=0.5)
"""Default limits of the studio's model process."""
