"""Which hints are a teacher's own, and which belong to a control of an evaluation or a fork."""

from __future__ import annotations

from jobs.export.datasets.export_records import ExportRecord
from rl2f_core.run.events import OWN_CONDITIONS
from rl2f_core.types import Hint

FALSE_TEACHERS = ("misleading", "shuffled")
"""Controls whose hints are false for the problem, or true only for another one."""
CONTROL_TEACHERS = ("contentless", "neutral_text", *FALSE_TEACHERS)


def is_false(hint: Hint) -> bool:
    """Return whether a control wrote the hint that is not true of the problem."""
    return hint.teacher in FALSE_TEACHERS or hint.source_task is not None


def is_control(record: ExportRecord) -> bool:
    """Return whether a dialogue is of a control: by its condition, or because a control wrote a hint."""
    by_teacher = any(turn.hint is not None and turn.hint.teacher in CONTROL_TEACHERS for turn in record.turns)
    return by_teacher or (record.event.setting or "") not in OWN_CONDITIONS
