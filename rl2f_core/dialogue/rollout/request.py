"""Rollout requests, and the seeds that fix their randomness."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rl2f_core.dialogue.teachers.base import RecordedHint
from rl2f_core.types import Task, Turn


@dataclass(frozen=True, slots=True)
class StudentPolicy:
    """The student's weights."""

    adapter: str | None = None
    """Backend's name of the adapter; None is the base."""
    policy: str = "base"
    """Name of the checkpoint in dialogues."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One dialogue to run."""

    task: Task
    id: str
    group: str
    index: int
    seed: int
    turns: tuple[Turn, ...] = ()
    """Earlier turns, whose tokens stay as sampled. If the last has no hint, one is requested."""
    max_turns: int | None = None
    """Maximum number of turns, earlier ones included; None is the limit of the call."""
    student: StudentPolicy | None = None
    """None is the student of the call."""
    recorded_hints: tuple[tuple[RecordedHint, ...], ...] = ()
    """By turn, see `FeedbackRequest.recorded`."""

    reflections: tuple[str, ...] | None = None
    """Reflections by turn, of which the last repeats, instead of the reflector's; None for the reflector's."""
    corrupt_reflections: bool = False
    """Replace each reflection by the environment's argument for an action that is not the oracle's."""

    def recorded_at(self, turn: int) -> tuple[RecordedHint, ...]:
        """Return the recorded hints for a 0-based turn."""
        return self.recorded_hints[turn] if turn < len(self.recorded_hints) else ()


def turn_seed(seed: int, turn: int | str) -> int:
    """Derive a 63-bit seed for one turn of a dialogue, or for a named part of it."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{turn}".encode()).digest()[:8], "big") >> 1


def derive_seed(*parts: object) -> int:
    """Derive a 31-bit seed from names and numbers, e.g. (run seed, stage, step)."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "big") >> 1
