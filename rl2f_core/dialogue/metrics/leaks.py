"""Metrics of leaks, as the detectors found them at run time."""

from __future__ import annotations

from collections.abc import Sequence

from rl2f_core.types import Dialogue

LEAKY = "leaky"
"""Registered name of the teacher that plants leaks."""


def leak_observations(dialogues: Sequence[Dialogue], turns: int) -> dict[str, list[tuple[str, bool]]]:
    """Return the pairs (task, hit) of each metric over the hints within `turns`.

    - leak_rate, prevented_leak_rate: of the checked hints that are not planted, those with a leak that the student read
      or that a leak action replaced.
    - planted_rate: of the hints of teacher `leaky`, those planted.
    - planted_recall: of the checked planted hints, those flagged.
    """
    hints = [(d.task_id, turn.hint) for d in dialogues for turn in d.turns[:turns] if turn.hint is not None]
    checked = [(task, hint, hint.leak) for task, hint in hints if hint.leak is not None]
    own = [(task, hint, leak) for task, hint, leak in checked if hint.planted is None]
    return {
        "leak_rate": [(task, hint.read_leak) for task, hint, _ in own],
        "prevented_leak_rate": [(task, leak.leaked and hint.is_replaced) for task, hint, leak in own],
        "planted_rate": [(task, hint.planted is not None) for task, hint in hints if hint.teacher == LEAKY],
        "planted_recall": [(task, leak.leaked) for task, hint, leak in checked if hint.planted is not None],
    }
