"""Control `shuffled`: a recorded hint on another problem.

The hint has the form, length and frequency of a real one and is true for another problem. It comes from a dialogue of
the same run and checkpoint under true hints, after the same turn. The other problem has the same level, and its names
(`Environment.hint_names`) are replaced by those of the student's problem, so the hint is not recognizably foreign.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rl2f_core import registry
from rl2f_core.config.components import by_name, wrapped_by
from rl2f_core.config.fields import BASIC_FIELD, ComponentConfig
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, RecordedHint, Teacher
from rl2f_core.environments.base import Environment
from rl2f_core.types import Dialogue, Task

MAX_CANDIDATES = 8
"""Recorded hints per turn; each rejected by a leak action is replaced by the next."""


@registry.register("teacher")
class ShuffledTeacher(Teacher):
    """Returns a recorded hint of `FeedbackRequest.recorded`; each `retry` uses the next one.

    Without a match, `Feedback.error` is set, and the student reads the contentless hint.
    """

    unavailable_reason: ClassVar[str] = (
        "shuffled hints come from recorded dialogues: list shuffled in evaluation.conditions, use the arm shuffled, or "
        "set it as the teacher of a stage"
    )

    class Config(ComponentConfig):
        """Recorded hints on other problems, in evaluations, forks and training stages."""

        type: Literal["shuffled"] = "shuffled"
        """Name of the teacher."""
        base: Annotated[ComponentConfig, wrapped_by("shuffled")] = Field(
            by_name("scripted"), json_schema_extra=BASIC_FIELD
        )
        """In a training stage: the teacher whose hints are recorded, in one further dialogue per task of the step."""

    config: Config

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        """Return one recorded hint per request. `Feedback.source_task` names the other task."""
        return [self._choose(request) for request in requests]

    def _choose(self, request: FeedbackRequest) -> Feedback:
        if request.retry < len(request.recorded):
            hint = request.recorded[request.retry]
            return Feedback(hint.text, source_task=hint.source_task)
        number, level = len(request.turns), request.task.level
        message = f"No recorded dialogue on another problem of level {level!r} has a hint after attempt {number}."
        return Feedback("", error=message)


@dataclass(frozen=True, slots=True)
class _Source:
    """A recorded dialogue with what decides whether its hints fit a problem."""

    task: Task
    names: tuple[str, ...]
    canonical: str
    answer: str
    hints: tuple[RecordedHint | None, ...]
    """By turn; None if the student read no hint of the teacher."""


class RecordedHints:
    """The hints of recorded dialogues, to be matched with other problems.

    Args:
        environment: Environment of all tasks.
        recorded: Dialogues, each with its task. Matches depend on their order.
        teacher: Registered name of the teacher whose hints count.
    """

    def __init__(self, environment: Environment, recorded: Sequence[tuple[Task, Dialogue]], teacher: str) -> None:
        self.environment = environment
        self._sources: dict[tuple[str, str, int], list[_Source]] = defaultdict(list)
        problems: dict[str, tuple[tuple[str, ...], str, str]] = {}
        for task, dialogue in recorded:
            if task.id not in problems:
                problems[task.id] = self._describe(task)
            source = _Source(task, *problems[task.id], _hints_by_turn(dialogue, teacher))
            if any(source.hints):
                self._sources[self._key(task, source.names)].append(source)

    def match(self, task: Task, seed: int) -> tuple[tuple[RecordedHint, ...], ...]:
        """Return up to `MAX_CANDIDATES` recorded hints for each turn of a dialogue on `task`, best first.

        A source fits if its task is another problem (`canonical`) of the same level and sub-environment with as many
        names, and another answer (if any) once its names are replaced. Dialogues whose problem has the same names come
        first. The rest of the order is random by `seed` and task, the same for all turns, so the hints of consecutive
        turns come from one dialogue while it has any.
        """
        names, canonical, answer = self._describe(task)
        listed = self._sources.get(self._key(task, names), [])
        rng = random.Random(f"shuffled/{seed}/{task.id}")
        order = [(source.names != names, i, source) for i, source in enumerate(rng.sample(listed, len(listed)))]
        candidates: list[list[RecordedHint]] = []
        for _, _, source in sorted(order, key=lambda item: item[:2]):
            if source.canonical == canonical or (answer and _rename(source.answer, source.names, names) == answer):
                continue
            for turn, hint in enumerate(source.hints):
                while len(candidates) <= turn:
                    candidates.append([])
                if hint is not None and len(candidates[turn]) < MAX_CANDIDATES:
                    text = _rename(hint.text, source.names, names)
                    candidates[turn].append(RecordedHint(text, hint.source_task))
        return tuple(map(tuple, candidates))

    def _describe(self, task: Task) -> tuple[tuple[str, ...], str, str]:
        environment = self.environment
        return environment.hint_names(task), environment.canonical(task), environment.gold_answer(task)

    def _key(self, task: Task, names: tuple[str, ...]) -> tuple[str, str, int]:
        return self.environment.sub_environment_of(task), task.level, len(names)


def _hints_by_turn(dialogue: Dialogue, teacher: str) -> tuple[RecordedHint | None, ...]:
    """Return what the student read after each turn.

    None for other teachers, for planted leaks, and for replacements after an error.
    """
    return tuple(
        RecordedHint(hint.text, dialogue.task_id)
        if hint is not None
        and hint.teacher == teacher
        and hint.planted is None
        and hint.error is None
        and hint.text.strip()
        else None
        for hint in (turn.hint for turn in dialogue.turns)
    )


def _rename(text: str, names: tuple[str, ...], others: tuple[str, ...]) -> str:
    """Replace whole words of `names` by the words of `others` at the same position."""
    if names == others:
        return text
    mapping = dict(zip(names, others, strict=True))
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda match: mapping[match[0]], text)
