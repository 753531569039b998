"""Metrics of leaks, as the detectors found them at run time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rl2f_core.types import Dialogue, Hint, LeakType, Turn

LEAKY = "leaky"
"""Registered name of the teacher that plants leaks."""


def leak_observations(dialogues: Sequence[Dialogue], turns: int) -> dict[str, list[tuple[str, bool]]]:
    """Return the pairs (task, hit) of each metric over the hints within `turns`.

    - leak_rate, prevented_leak_rate: of the checked hints that are not planted, those with a leak that the student read
      or that a leak action replaced.
    - unchecked_hint_rate: of the hints for detectors, those that one failed to check; none if all were checked. A hint
      with a flag counts as checked, so the more hints are unchecked, the further leak_rate and planted_recall are too
      high.
    - planted_rate: of the hints of teacher `leaky`, those planted.
    - planted_recall: of the checked planted hints, those flagged.
    - copied_answer_rate: of the attempts after a hint that states the answer, the correct ones.
    - clean_hint_solve_rate: of the second attempts after an incorrect one and a hint without a leak, the correct ones.
      Later hints do not count: dialogues that get there are a selection.
    - exported_copy_rate: of the completions of an export that knows no planted leak (correct attempts before a flagged
      leak), those after a hint that states the answer. Without teacher `leaky` there are none.
    """
    pairs = [(d.task_id, before.hint, after) for d in dialogues for before, after in pairwise(d.turns[:turns])]
    hints = [(d.task_id, turn.hint) for d in dialogues for turn in d.turns[:turns] if turn.hint is not None]
    checked = [(task, hint, hint.leak) for task, hint in hints if hint.leak is not None and hint.leak.is_complete]
    unchecked = [(task, not hint.leak.is_complete) for task, hint in hints if hint.leak is not None]
    own = [(task, hint, leak) for task, hint, leak in checked if hint.planted is None]
    return {
        "leak_rate": [(task, hint.read_leak) for task, hint, _ in own],
        "prevented_leak_rate": [(task, leak.leaked and hint.is_replaced) for task, hint, leak in own],
        "unchecked_hint_rate": unchecked if any(failed for _, failed in unchecked) else [],
        "planted_rate": [(task, hint.planted is not None) for task, hint in hints if hint.teacher == LEAKY],
        "planted_recall": [(task, leak.leaked) for task, hint, leak in checked if hint.planted is not None],
        "copied_answer_rate": [
            (task, bool(after.verdict.correct))
            for task, hint, after in pairs
            if hint is not None and states_answer(hint) and after.verdict.correct is not None
        ],
        "clean_hint_solve_rate": [
            (d.task_id, after.verdict.correct)
            for d in dialogues
            for before, after in pairwise(d.turns[: min(turns, 2)])
            if before.verdict.correct is False
            and before.hint is not None
            and not reads_leak(before.hint)
            and after.verdict.correct is not None
        ],
        "exported_copy_rate": [(d.task_id, copied) for d in dialogues for copied in _completions(d.turns[:turns])],
    }


def _completions(turns: Sequence[Turn]) -> Iterator[bool]:
    """Yield for each correct attempt before a flagged leak whether a hint before it states the answer."""
    stated = False
    for turn in turns:
        if turn.verdict.correct:
            yield stated
        if turn.hint is not None and turn.hint.read_leak:
            return
        stated |= turn.hint is not None and states_answer(turn.hint)


def reads_leak(hint: Hint | None) -> bool:
    """Return whether the student read a leak in a hint, planted or flagged."""
    return hint is not None and (hint.read_leak or (hint.planted is not None and not hint.is_replaced))


def states_answer(hint: Hint) -> bool:
    """Return whether the student read a hint with a leak of the whole answer, planted or flagged."""
    flagged = hint.read_leak and hint.leak is not None and hint.leak.leak_type is not LeakType.PARTIAL
    return flagged or (hint.planted not in (None, "partial") and not hint.is_replaced)
