"""Limits of the chat's model process: options of `rl2f serve`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChatLimits:
    """Limits of the model process."""

    idle_seconds: float = 600.0
    """Idle time after which it ends."""
    memory_gb: float = 0.0
    """Maximum memory; 0 is no limit."""
    reserve_gb: float = 0.5
    """Memory that must stay free when a model is loaded."""
