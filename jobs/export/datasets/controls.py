"""Which hints are a teacher's own, and which belong to a control of an evaluation or a fork."""

from __future__ import annotations

from rl2f_core.run.events import CONTROL_TEACHERS, OWN_CONDITIONS, DialogueEvent
from rl2f_core.types import Hint

FALSE_TEACHERS = ("misleading", "shuffled")
"""Controls whose hints are false for the problem, or true only for another one."""


def is_false(hint: Hint) -> bool:
    """Return whether a control wrote the hint that is not true of the problem."""
    return hint.teacher in FALSE_TEACHERS or hint.source_task is not None


def is_control(event: DialogueEvent) -> bool:
    """Return whether a dialogue is of a control: by its condition, or because a control wrote a hint."""
    hints = [turn.hint for turn in event.dialogue.turns if turn.hint is not None]
    by_teacher = any(hint.teacher in CONTROL_TEACHERS for hint in hints)
    return by_teacher or (event.setting or "") not in OWN_CONDITIONS
