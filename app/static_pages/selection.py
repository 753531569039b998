"""Choose the dialogues of a shared run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rl2f_core.errors import DataError, rl2f_command
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, read_dialogues
from rl2f_core.types import DEMONSTRATION

GROUP_SIZE = 4
"""Maximum number of dialogues of one training group."""


def chosen_dialogues(run_dir: RunDir, limit: int, ids: Sequence[str] = ()) -> list[DialogueEvent]:
    """Return, in order, dialogues with these ids, or else at most `limit` that represent the run.

    At most half of these are a group of the first, middle and last step of each stage; then follow tasks of the
    evaluation or fork under all conditions, and then other dialogues. Token ids and logprobs are removed.

    Demonstrations are only returned by their ids. Raises `DataError` if an id is unknown.
    """
    if ids:
        chosen = {event.id: event for event in _dialogues(run_dir) if {event.id, event.dialogue.id} & set(ids)}
        found = {name for event in chosen.values() for name in (event.id, event.dialogue.id)}
        if missing := [name for name in ids if name not in found]:
            raise DataError("The run has no such dialogue.", value=missing, fix=rl2f_command("replay", run_dir.path))
        return list(chosen.values())
    places = [_Place.of(event) for event in _dialogues(run_dir) if event.dialogue.policy != DEMONSTRATION]
    training, compared = _of_training(places), _of_comparisons(places)
    ranked = [*training[: limit // 2], *compared, *training, *(place.id for place in places)]
    chosen_ids = set(list(dict.fromkeys(ranked))[:limit])
    return [event for event in _dialogues(run_dir) if event.id in chosen_ids]


def _dialogues(run_dir: RunDir) -> Iterator[DialogueEvent]:
    for event in read_dialogues(run_dir.events_path):
        turns = tuple(turn.model_copy(update={"token_ids": (), "logprobs": ()}) for turn in event.dialogue.turns)
        yield event.model_copy(update={"dialogue": event.dialogue.model_copy(update={"turns": turns})})


class _Place(NamedTuple):
    """A dialogue of a run without its content."""

    id: str
    stage: str
    """Empty outside training."""
    step: int
    group: str
    setting: str | None
    """Condition or arm; None outside evaluations and forks."""
    task: str
    sample: int

    @classmethod
    def of(cls, event: DialogueEvent) -> _Place:
        stage, dialogue = event.stage if event.phase == "train" else "", event.dialogue
        return cls(event.id, stage, event.step, dialogue.group, event.setting, event.task.id, dialogue.index)


def _of_training(places: Sequence[_Place]) -> list[str]:
    """Return the ids of a group of the first, middle and last step of each stage."""
    stages: dict[str, dict[int, list[_Place]]] = {}
    for place in places:
        if place.stage:
            stages.setdefault(place.stage, {}).setdefault(place.step, []).append(place)
    ids: list[str] = []
    for steps in stages.values():
        numbers = sorted(steps)
        for step in (steps[number] for number in dict.fromkeys((numbers[0], numbers[len(numbers) // 2], numbers[-1]))):
            ids += [place.id for place in step if place.group == step[0].group][:GROUP_SIZE]
    return ids


def _of_comparisons(places: Sequence[_Place]) -> list[str]:
    """Return the ids of the dialogues of evaluations and forks: first one sample of each task under all conditions."""
    compared = [place for place in places if place.setting is not None]
    tasks = {task: number for number, task in enumerate(dict.fromkeys(place.task for place in compared))}
    return [place.id for place in sorted(compared, key=lambda place: (place.sample, tasks[place.task]))]
