"""Effect of other leak reports, or another penalty, on rewards and advantages. Pure functions.

Only the reward term `leak_penalty` changes; the method's own `advantages` computes the new advantages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from rl2f_core.learning.methods.base import Method
from rl2f_core.types import Dialogue, Group, RewardTerm, Rollout, Task

TERM = "leak_penalty"
TOLERANCE = 1e-9


def replace_leak_penalty(terms: Sequence[RewardTerm], leaked: bool, penalty: float) -> tuple[RewardTerm, ...]:
    """Replace the leak penalty in a turn's reward terms: −`penalty` after a leak that the student read."""
    kept = tuple(term for term in terms if term.name != TERM)
    return (*kept, RewardTerm(name=TERM, score=-1.0, weight=penalty)) if leaked and penalty else kept


def sign(value: float) -> str:
    """Return `+`, `-` or `0` (within `TOLERANCE`)."""
    return "0" if abs(value) <= TOLERANCE else "+" if value > 0 else "-"


def with_leak_penalties(dialogue: Dialogue, leaked: Mapping[int, bool], penalty: float) -> Dialogue:
    """Return a dialogue with new leak penalties; `leaked[k]` is whether the student read a leak *after* turn k."""
    turns = tuple(
        turn.model_copy(
            update={"rewards": replace_leak_penalty(turn.rewards, leaked.get(turn.index - 1, False), penalty)}
        )
        for turn in dialogue.turns
    )
    return dialogue.model_copy(update={"turns": turns})


@dataclass(frozen=True, slots=True)
class RewardChange:
    """A turn with a changed reward or advantage."""

    dialogue: str
    """Id of the dialogue event."""
    turn: int
    detector: str | None
    """Detector that now flags the hint before the turn; None if the hint is clean."""
    was_leak: bool
    """The run's own detectors flagged that hint."""
    reward: tuple[float, float]
    """Before and after."""
    advantage: tuple[float, float] | None = None
    """Before and after, if the turn was trained on."""

    @property
    def reward_sign(self) -> str | None:
        """E.g. `+ → -`; None if the sign is unchanged."""
        return _sign_change(self.reward)

    @property
    def advantage_sign(self) -> str | None:
        """Like `reward_sign`."""
        return None if self.advantage is None else _sign_change(self.advantage)


def _sign_change(pair: tuple[float, float]) -> str | None:
    before, after = map(sign, pair)
    return None if before == after else f"{before} → {after}"


@dataclass(slots=True)
class Tally:
    """Counts over a run."""

    dialogues: int = 0
    turns: int = 0
    hints: int = 0
    """Rescored hints."""
    unchecked: int = 0
    """Hints on tasks without a gold answer, which these detectors cannot check."""
    errors: int = 0
    """Hints with a detector error."""
    flagged: int = 0
    was_checked: int = 0
    """Hints that the run's own detectors had checked."""
    was_flagged: int = 0
    newly_flagged: int = 0
    no_longer_flagged: int = 0
    flagged_by: Counter[str] = field(default_factory=Counter)
    """Flagged hints by detector."""
    rewards_changed: int = 0
    reward_signs: Counter[str] = field(default_factory=Counter)
    """Turns by sign change of the reward, e.g. `+ → -`."""
    groups_changed: int = 0
    """Groups with a changed advantage."""
    advantages_changed: int = 0
    advantage_signs: Counter[str] = field(default_factory=Counter)
    stale: int = 0
    """Groups whose stored advantages the method does not reproduce; the values before are then the method's."""

    def as_json(self) -> dict[str, int | dict[str, int]]:
        """Return all counts by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}

    def count(self, changes: Sequence[RewardChange]) -> None:
        """Add the changes of one group."""
        self.groups_changed += any(c.advantage is not None and _differ(*c.advantage) for c in changes)
        for change in changes:
            self.rewards_changed += _differ(*change.reward)
            if change.reward_sign:
                self.reward_signs[change.reward_sign] += 1
            if change.advantage is not None and _differ(*change.advantage):
                self.advantages_changed += 1
                if change.advantage_sign:
                    self.advantage_signs[change.advantage_sign] += 1


def _differ(before: float, after: float) -> bool:
    return abs(before - after) > TOLERANCE


def group_changes(
    before: Sequence[tuple[str, Dialogue]],
    after: Sequence[Dialogue],
    detectors: Sequence[Mapping[int, str | None]],
    task: Task,
    method: Method | None,
) -> tuple[list[RewardChange], bool]:
    """Return a group's turns with a changed reward or advantage, and whether its stored advantages are stale.

    Args:
        before: Event ids and dialogues of the run.
        after: The same dialogues `with_leak_penalties`.
        detectors: For each dialogue, the detector that now flags the hint after turn k.
        task: Task of the group.
        method: Method that trained on the group; None without training, and then without advantages.
    """
    advantages: list[list[tuple[float, float]] | None] = [None] * len(before)
    stale = False
    if method is not None:
        trainable = [i for i, (_, dialogue) in enumerate(before) if dialogue.trainable]
        old = method.advantages(_group(task, [dialogue for _, dialogue in before]))
        new = method.advantages(_group(task, after))
        for i, was, now in zip(trainable, old, new, strict=True):
            advantages[i] = list(zip(was, now, strict=True))
            stored = [turn.advantage for turn in before[i][1].turns]
            stale |= any(s is not None and abs(s - w) > 1e-6 for s, w in zip(stored, was, strict=True))
    changes = []
    for (event, old_dialogue), new_dialogue, by, pairs in zip(before, after, detectors, advantages, strict=True):
        for was_turn, now_turn in zip(old_dialogue.turns, new_dialogue.turns, strict=True):
            k = was_turn.index
            reward = was_turn.reward, now_turn.reward
            pair = None if pairs is None else pairs[k]
            if _differ(*reward) or (pair is not None and _differ(*pair)):
                hint = old_dialogue.turns[k - 1].hint if k else None
                was_leak = hint is not None and hint.leak is not None and hint.leak.leaked
                changes.append(RewardChange(event, k, by.get(k - 1), was_leak, reward, pair))
    return changes, stale


def _group(task: Task, dialogues: Sequence[Dialogue]) -> Group:
    return Group(task, tuple(Rollout(dialogue, ()) for dialogue in dialogues))
