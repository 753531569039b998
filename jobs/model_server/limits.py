"""Limits of a model server: options of `rl2f serve` and `rl2f serve-model`."""

from __future__ import annotations

from pydantic import Field

from rl2f_core.types import FrozenModel

MAX_MODEL_LEN = 10_000_000


class ServerLimits(FrozenModel):
    """Limits of one server."""

    max_running: int = Field(32, ge=1, le=1024)
    """Sequences that are generated together."""
    max_waiting: int = Field(256, ge=0, le=100_000)
    """Sequences that may wait; more requests get status 429."""
    max_model_len: int = Field(4096, ge=16, le=MAX_MODEL_LEN)
    """Maximum tokens of a prompt and its completion."""
    max_body_bytes: int = 4_000_000
    body_seconds: float = 30.0
    """Time for sending a body."""
    request_seconds: float = Field(600, ge=0.1, le=1e6)
    """Seconds after which a request ends."""
    idle_seconds: float | None = None
    """Idle time after which the model is unloaded; None keeps it."""
    memory_gb: float = 0.0
    """Maximum memory of the process; 0 means no limit."""
    reserve_gb: float | None = None
    """Memory that must stay free when a model is loaded; None checks nothing."""


STUDIO_LIMITS = ServerLimits(max_model_len=MAX_MODEL_LEN, idle_seconds=600.0, reserve_gb=0.5)
"""Default limits of the studio's model process."""
