"""Where a fork begins: turns of stored dialogues, found in a run's event file, which is only ever read."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from rl2f_core.errors import DataError
from rl2f_core.events import DialogueEvent
from rl2f_core.run import RunDir
from rl2f_core.types import DEMONSTRATION, Dialogue, Hint, Task, Turn


@dataclass(frozen=True, slots=True)
class Origin:
    """A turn of a stored dialogue."""

    event: str
    """Id of the dialogue's event."""
    task: Task
    dialogue: Dialogue
    turn: int
    """0-based; the dialogue goes on after its attempt."""
    phase: str
    checkpoint: str | None = None
    """Which checkpoint spoke, in an evaluation."""
    oracle: bool = True
    """A right answer ended the dialogue; see `RolloutEngine.oracle_stop`."""

    def prefix(self, hint: Hint | None) -> tuple[Turn, ...]:
        """The turns up to and with this one, whose hint becomes `hint`; what was trained on them is left out."""
        turns = [turn.model_copy(update={"advantage": None}) for turn in self.dialogue.turns[: self.turn + 1]]
        turns[-1] = turns[-1].model_copy(update={"hint": hint})
        return tuple(turns)


def origin_at(event: DialogueEvent, turn: int) -> Origin:
    """A turn (0-based) of a dialogue. Raises `DataError` where there is none, or a right attempt ended the dialogue."""
    turns = event.dialogue.turns
    if not 0 <= turn < len(turns):
        raise DataError("The dialogue has no such turn.", value=turn + 1, known=[str(t.index + 1) for t in turns])
    if turns[turn].verdict.correct and turns[turn].hint is None:
        raise DataError("The attempt of this turn is right, so no hint stands after it.", value=turn + 1,
                        known=[str(t.index + 1) for t in turns if not t.verdict.correct or t.hint is not None],
                        fix="Fork at a wrong attempt.")  # fmt: skip
    oracle = event.control != "no_oracle"
    return Origin(event.id, event.task, event.dialogue, turn, event.phase, event.checkpoint, oracle)


def find_dialogue(run_dir: RunDir, event: str) -> DialogueEvent:
    """The dialogue of an event's id. Raises `DataError` where the run has none of it."""
    needle = json.dumps(event, ensure_ascii=False).encode()
    for found in _dialogues(run_dir, needle):
        if found.id == event:
            return found
    raise DataError("The run has no such dialogue.", value=event, fix=f"`rl2f replay {run_dir.path}` lists them.")


def hinted(run_dir: RunDir, phase: str, checkpoint: str | None = None) -> list[Origin]:
    """All turns of a run that a hint stands after, in order; those of demonstrations are left out.

    Args:
        phase: `evaluation` (dialogues under `hints` alone) or `train`.
        checkpoint: Only dialogues that this checkpoint played; None is any.
    """
    needle = f'"phase":"{phase}"'.encode()
    found: list[Origin] = []
    seen: set[str] = set()
    for event in _dialogues(run_dir, needle):
        wanted = event.phase == phase and event.control in (None, "hints") and event.id not in seen
        if (
            not wanted
            or event.dialogue.policy == DEMONSTRATION
            or (checkpoint is not None and event.checkpoint != checkpoint)
        ):
            continue
        seen.add(event.id)
        found += [
            origin_at(event, turn.index)
            for turn in event.dialogue.turns
            if turn.hint is not None and not turn.verdict.correct and turn.hint.error is None
            and not (turn.hint.leak is not None and turn.hint.leak.action == "drop")
        ]  # fmt: skip
    return found


def draw(origins: Iterable[Origin], count: int, seed: int) -> list[Origin]:
    """`count` of the turns (all where there are fewer), each as likely as any other, in their own order."""
    listed = list(origins)
    if len(listed) <= count:
        return listed
    chosen = random.Random(f"hints/{seed}").sample(range(len(listed)), count)
    return [listed[i] for i in sorted(chosen)]


def _dialogues(run_dir: RunDir, needle: bytes) -> Iterator[DialogueEvent]:
    """The dialogue events whose line holds some bytes; lines that cannot be read are left out.

    Most lines of a large file are so never parsed.
    """
    try:
        file = open(run_dir.events_path, "rb")
    except OSError as error:
        raise DataError("The run has no event file.", value=str(run_dir.events_path)) from error
    with file:
        for line in file:
            if needle not in line or not line.endswith(b"\n"):
                continue
            try:
                yield DialogueEvent.model_validate_json(line)
            except ValidationError:
                continue
