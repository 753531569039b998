"""What to play, and the seeds that fix all its chance."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rl2f_core.types import Task, Turn


@dataclass(frozen=True, slots=True)
class Student:
    """Who answers."""

    adapter: str | None = None
    """The weights, by the backend's name for them; None is the base."""
    policy: str = "base"
    """How they are called in dialogues."""


@dataclass(frozen=True, slots=True)
class Request:
    """One dialogue to play."""

    task: Task
    id: str
    group: str
    index: int
    seed: int
    turns: tuple[Turn, ...] = ()
    """Turns already played, whose sampled tokens stay as they are; the dialogue goes on after them. Where the last one
    has no hint, the teacher is asked for it."""
    max_turns: int | None = None
    """Turns allowed, those already played included; None is what `play` allows."""
    student: Student | None = None
    """Who answers; None is the student of the call."""


def turn_seed(seed: int, turn: int) -> int:
    """A 63-bit seed for one turn of one dialogue."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{turn}".encode()).digest()[:8], "big") >> 1


def derive_seed(*parts: object) -> int:
    """A 31-bit seed from a path of names and numbers, e.g. (run seed, stage, step, task, sample)."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4], "big") >> 1
