"""A run of teacher `leaky` with planted hints that are counted by hand."""

from __future__ import annotations

from detector_report_data import CODES, in_test
from replay_data import event, hint, turn

from rl2f_core.run.events import DialogueEvent, Event

DEV_CODE = next(code for code in CODES if not in_test(code))
"""A task of the dev set, so that all hints below are in one report."""


def dev(one: DialogueEvent) -> DialogueEvent:
    task = one.task.model_copy(
        update={"public": {"letters": ["A", "B"], "length": 7}, "privileged": {"code": DEV_CODE}}
    )
    return one.model_copy(update={"task": task})


def planted_events() -> list[Event]:
    """Ten hints of teacher `leaky`: five planted (three roman, two latex) of which three are flagged, one own flagged.

    The planted ones are in training, but one of an evaluated checkpoint.
    """
    rows: list[tuple[str | None, str | None]] = [
        ("roman", "exact"), ("roman", "mentions"), ("roman", None), ("latex", "mentions"), ("latex", None),
        (None, "exact"), (None, None), (None, None), (None, None), (None, None),
    ]  # fmt: skip
    events: list[Event] = []
    for i, (kind, detector) in enumerate(rows):
        said = hint(f"Hint {i}", (0, 4) if detector else None, teacher="leaky", planted=kind)
        if detector and said.leak:
            said = said.model_copy(update={"leak": said.leak.model_copy(update={"detector": detector})})
        more = {"phase": "evaluation", "checkpoint": "rl2f@40", "condition": "hints"} if i == 4 else {}
        events.append(dev(event(f"d/{i}", [turn(0, "x", None, said)], 1, "g", i, **more)))
    return events
