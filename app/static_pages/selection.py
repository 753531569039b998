"""Choose the dialogues of a shared run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl2f_core.errors import DataError, rl2f_command
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, read_dialogues
from rl2f_core.types import DEMONSTRATION

GROUP_SIZE = 4
"""Maximum number of dialogues of one training group."""
Unit = tuple[str, str, int, str]
"""Phase, stage, step, and group or task: dialogues that belong together."""


def chosen_dialogues(run_dir: RunDir, limit: int, ids: Sequence[str] = ()) -> list[DialogueEvent]:
    """Return, in order, dialogues with these ids, or else at most `limit` that represent the run.

    These are a group of the first, middle and last step of each stage, and tasks of the evaluation under all
    conditions; then other dialogues, as many as fit. Token ids and logprobs are removed.

    Demonstrations are only returned by their ids. Raises `DataError` if an id is unknown.
    """
    if ids:
        chosen = {event.id: event for event in _dialogues(run_dir) if {event.id, event.dialogue.id} & set(ids)}
        found = {name for event in chosen.values() for name in (event.id, event.dialogue.id)}
        if missing := [name for name in ids if name not in found]:
            raise DataError("The run has no such dialogue.", value=missing, fix=rl2f_command("replay", run_dir.path))
        return list(chosen.values())
    units: dict[Unit, list[str]] = {}
    for event in _dialogues(run_dir):
        if event.dialogue.policy != DEMONSTRATION:
            units.setdefault(_unit(event), []).append(event.id)
    wanted: set[str] = set()
    for unit in _representative(list(units)):
        members = units[unit] if unit[0] == "evaluation" else units[unit][:GROUP_SIZE]
        if len(wanted) + len(members) <= limit:
            wanted |= set(members)
    return [event for event in _dialogues(run_dir) if event.id in wanted]


def _dialogues(run_dir: RunDir) -> Iterator[DialogueEvent]:
    for event in read_dialogues(run_dir.events_path):
        turns = tuple(turn.model_copy(update={"token_ids": (), "logprobs": ()}) for turn in event.dialogue.turns)
        yield event.model_copy(update={"dialogue": event.dialogue.model_copy(update={"turns": turns})})


def _unit(event: DialogueEvent) -> Unit:
    if event.phase == "evaluation":
        return event.phase, event.stage, 0, event.task.id
    return event.phase, event.stage, event.step, event.dialogue.group


def _representative(units: Sequence[Unit]) -> list[Unit]:
    """Return units by importance."""
    first_of_step: dict[str, dict[int, Unit]] = {}
    for unit in units:
        if unit[0] == "train":
            first_of_step.setdefault(unit[1], {}).setdefault(unit[2], unit)
    ordered: list[Unit] = []
    for steps in first_of_step.values():
        numbers = sorted(steps)
        ordered += [steps[n] for n in dict.fromkeys((numbers[0], numbers[len(numbers) // 2], numbers[-1]))]
    ordered += [unit for unit in units if unit[0] == "evaluation"]
    return list(dict.fromkeys([*ordered, *units]))
