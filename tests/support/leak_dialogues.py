"""Dialogues with a teacher, played without a model, for the tests of leaks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from rl2f_core import registry
from rl2f_core.dialogue.teachers.base import FeedbackRequest, Teacher
from rl2f_core.environments.base import Environment
from rl2f_core.leaks.base import LeakQuery, make_detectors, run_cascade
from rl2f_core.leaks.parsing import parse_detectors
from rl2f_core.types import Hint, LeakReport, Turn

WORLDS = ("arithmetic", "binary_matrix", "guess_number", "knights_knaves", "maze", "secret_code", "shortest_path")
TURNS = 4


def build(world: str) -> Environment:
    cls: Any = registry.get("environment", world)
    return cls(cls.Config())


def dialogue(env: Environment, teacher: Teacher, index: int) -> list[LeakQuery]:
    """The hints of one dialogue of the imitated student, each as a detector is asked about it."""
    task, rng = env.task("train", index), random.Random(index)
    turns: list[Turn] = []
    asked: list[LeakQuery] = []
    for position in range(TURNS):
        follow = rng.random() < 0.6
        attempt = env.simulate_attempt(task, [turn.verdict for turn in turns], rng, follow_hint=follow, correct=False)
        if rng.random() < 0.05:
            attempt = "I do not know."
        verdict = env.verify(task, attempt)
        if verdict.correct:
            break
        turn = Turn(index=position, attempt=attempt, verdict=verdict)
        request = FeedbackRequest(task, (*turns, turn), seed=index)
        text = teacher.feedback([request])[0].text
        told = tuple(before.hint.text for before in turns if before.hint is not None)
        asked.append(LeakQuery(task, text, tuple(t.attempt for t in (*turns, turn)), told))
        turns.append(turn.model_copy(update={"hint": Hint(text=text, teacher=teacher.name)}))
    return asked


def flagged(world: str, teacher: str, dialogues: int) -> Iterator[tuple[LeakQuery, LeakReport]]:
    """Every hint of so many dialogues, with the report of the detectors without a model."""
    env = build(world)
    cls: Any = registry.get("teacher", teacher)
    speaker = cls(cls.Config(), env)
    detectors = make_detectors(parse_detectors("exact,mentions"), env)
    for start in range(0, dialogues, 100):
        asked = [q for i in range(start, min(start + 100, dialogues)) for q in dialogue(env, speaker, i)]
        yield from zip(asked, run_cascade(detectors, asked), strict=True)
