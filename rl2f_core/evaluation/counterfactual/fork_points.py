"""Fork points: turns of stored dialogues, read from a run's event file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rl2f_core.dialogue.teachers.base import RecordedHint
from rl2f_core.dialogue.teachers.shuffled import RecordedHints
from rl2f_core.environments.base import Environment
from rl2f_core.errors import DataError, rl2f_command
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, read_dialogues
from rl2f_core.types import DEMONSTRATION, Dialogue, Hint, Task, Turn


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A turn of a stored dialogue."""

    event: str
    """Id of the dialogue's event."""
    task: Task
    dialogue: Dialogue
    turn: int
    """0-based; the fork continues after its attempt."""
    phase: str
    checkpoint: str | None = None
    """Checkpoint of an evaluation dialogue."""
    oracle: bool = True
    """Whether a correct answer ends the dialogue; see `RolloutEngine.stop_on_correct`."""
    recorded_hints: tuple[tuple[RecordedHint, ...], ...] = ()
    """By turn, for arm `shuffled`; see `RolloutRequest.recorded_hints`."""

    def prefix(self, hint: Hint | None) -> tuple[Turn, ...]:
        """Return the turns up to this one, with `hint` as its hint and without advantages."""
        turns = [turn.model_copy(update={"advantage": None}) for turn in self.dialogue.turns[: self.turn + 1]]
        turns[-1] = turns[-1].model_copy(update={"hint": hint})
        return tuple(turns)


def fork_point_at(event: DialogueEvent, turn: int, first: int = 0) -> ForkPoint:
    """Return the fork point at a 0-based turn. Raises `DataError` if missing, or if the dialogue ended with it.

    Args:
        event: The dialogue.
        turn: 0-based turn.
        first: Number of the first turn in errors.
    """
    turns, number = event.dialogue.turns, turn + first
    if not 0 <= turn < len(turns):
        raise DataError("The dialogue has no such turn.", value=number, known=[str(t.index + first) for t in turns])
    if turns[turn].verdict.correct and turns[turn].hint is None:
        raise DataError("The attempt of this turn is correct, so it has no hint.", value=number,
                        known=[str(t.index + first) for t in turns if not t.verdict.correct or t.hint is not None],
                        fix="Fork at an incorrect attempt.")  # fmt: skip
    if turns[turn].verdict.done:
        raise DataError("The episode ended at this turn, so it cannot continue.", value=number,
                        fix="Fork at an earlier turn.")  # fmt: skip
    oracle = event.condition != "no_oracle"
    return ForkPoint(event.id, event.task, event.dialogue, turn, event.phase, event.checkpoint, oracle)


def find_dialogue(run_dir: RunDir, event: str) -> DialogueEvent:
    """Return the dialogue with an event id. Raises `DataError` if there is none, or if a link leaves the run."""
    needle = json.dumps(event, ensure_ascii=False).encode()
    for candidate in read_dialogues(run_dir.checked_path("events.jsonl"), having=needle):
        if candidate.id == event:
            return candidate
    raise DataError(
        "The run has no such dialogue.", value=event, fix=f"`{rl2f_command('replay', run_dir.path)}` lists them."
    )


def hinted_turns(run_dir: RunDir, phase: str, checkpoint: str | None = None) -> list[ForkPoint]:
    """Return all turns of a run with a hint, in order, without demonstrations.

    Args:
        run_dir: The source run.
        phase: `evaluation` (only the condition `hints`) or `train`.
        checkpoint: Only dialogues of this checkpoint; None for any.
    """
    needle = f'"phase":"{phase}"'.encode()
    points: list[ForkPoint] = []
    seen: set[str] = set()
    for event in read_dialogues(run_dir.checked_path("events.jsonl"), having=needle):
        if (
            event.phase != phase
            or event.condition not in (None, "hints")
            or event.id in seen
            or event.dialogue.policy == DEMONSTRATION
            or (checkpoint is not None and event.checkpoint != checkpoint)
        ):
            continue
        seen.add(event.id)
        points += [
            fork_point_at(event, turn.index)
            for turn in event.dialogue.turns
            if turn.hint is not None and not turn.verdict.correct and turn.hint.error is None
            and not (turn.hint.leak is not None and turn.hint.leak.action == "drop")
        ]  # fmt: skip
    return points


def match_recorded_hints(
    origins: Sequence[ForkPoint], run_dir: RunDir, environment: Environment, teacher: str
) -> list[ForkPoint]:
    """Return the fork points with the recorded hints that arm `shuffled` uses.

    They come from the run's dialogues of the same phase and checkpoint, under `hints` in an evaluation.
    """
    recorded: dict[tuple[str, str | None], RecordedHints] = {}
    for phase, checkpoint in dict.fromkeys((origin.phase, origin.checkpoint) for origin in origins):
        points = {point.event: point for point in hinted_turns(run_dir, phase, checkpoint)}
        pairs = [(point.task, point.dialogue) for point in points.values()]
        recorded[phase, checkpoint] = RecordedHints(environment, pairs, teacher)
    return [replace(o, recorded_hints=recorded[o.phase, o.checkpoint].match(o.task, o.dialogue.seed)) for o in origins]


def sample_fork_points(origins: Iterable[ForkPoint], count: int, seed: int) -> list[ForkPoint]:
    """Return a uniform sample of at most `count` fork points, in their order."""
    listed = list(origins)
    if len(listed) <= count:
        return listed
    chosen = random.Random(f"hints/{seed}").sample(range(len(listed)), count)
    return [listed[i] for i in sorted(chosen)]
