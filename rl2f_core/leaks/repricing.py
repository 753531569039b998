"""What other leak verdicts, or another penalty, would do to rewards and advantages. Pure functions.

Only the term `leak_penalty` of a turn's reward is replaced (`rollout.rewards`); the method's own `advantages` then says
what the group's turns would have been trained with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rl2f_core.methods.base import Method
from rl2f_core.types import Dialogue, Group, Reward, Rollout, Task

TERM = "leak_penalty"
TOLERANCE = 1e-9


def reprice(terms: Sequence[Reward], leaked: bool, penalty: float) -> tuple[Reward, ...]:
    """A turn's reward terms with the leak penalty replaced: −`penalty` where the hint before it leaked, else none."""
    kept = tuple(term for term in terms if term.name != TERM)
    return (*kept, Reward(name=TERM, score=-1.0, weight=penalty)) if leaked and penalty else kept


def sign(value: float) -> str:
    """`+`, `-` or `0`, where what is within 1e-9 of 0 is 0."""
    return "0" if abs(value) <= TOLERANCE else "+" if value > 0 else "-"


def repriced(dialogue: Dialogue, leaked: Mapping[int, bool], penalty: float) -> Dialogue:
    """A dialogue with new leak penalties.

    Args:
        dialogue: As it was played.
        leaked: Whether the hint *after* turn k leaked; a turn that is missing has no leaking hint.
        penalty: Weight of the penalty.
    """
    turns = tuple(
        turn.model_copy(update={"rewards": reprice(turn.rewards, leaked.get(turn.index - 1, False), penalty)})
        for turn in dialogue.turns
    )
    return dialogue.model_copy(update={"turns": turns})


@dataclass(frozen=True, slots=True)
class Change:
    """A turn whose reward or advantage is another one."""

    dialogue: str
    """Id of the dialogue's event."""
    turn: int
    tier: str | None
    """What convicts the hint before it now; None where that hint is clean."""
    was_leak: bool
    """The run's own detectors convicted that hint."""
    reward: tuple[float, float]
    """Before and after."""
    advantage: tuple[float, float] | None = None
    """Before and after, where the turn was trained on with one."""

    @property
    def reward_sign(self) -> str | None:
        """E.g. `+ → -`; None where the sign stays."""
        return _turned(self.reward)

    @property
    def advantage_sign(self) -> str | None:
        """As `reward_sign`."""
        return None if self.advantage is None else _turned(self.advantage)


def _turned(pair: tuple[float, float]) -> str | None:
    before, after = map(sign, pair)
    return None if before == after else f"{before} → {after}"


@dataclass(slots=True)
class Tally:
    """Counts over a whole run."""

    dialogues: int = 0
    turns: int = 0
    hints: int = 0
    """Hints that were read again."""
    errors: int = 0
    """Hints that some tier could not judge."""
    flagged: int = 0
    was_checked: int = 0
    """Hints that the run's own detectors had read."""
    was_flagged: int = 0
    newly_flagged: int = 0
    no_longer_flagged: int = 0
    tiers: Counter[str] = field(default_factory=Counter)
    """Flagged hints by tier."""
    rewards_changed: int = 0
    reward_signs: Counter[str] = field(default_factory=Counter)
    """Turns by how the sign of their reward changes, e.g. `+ → -`."""
    groups_changed: int = 0
    """Groups in which some advantage is another one."""
    advantages_changed: int = 0
    advantage_signs: Counter[str] = field(default_factory=Counter)
    stale: int = 0
    """Groups whose stored advantages are not what the run's method gives: their numbers before are the method's."""

    def as_json(self) -> dict[str, Any]:
        """All counts by name."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in held.items()}

    def count(self, changes: Sequence[Change]) -> None:
        """Count the changes of one group."""
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
    tiers: Sequence[Mapping[int, str | None]],
    task: Task,
    method: Method | None,
) -> tuple[list[Change], bool]:
    """The turns of a group whose reward or advantage changes, and whether its stored advantages are stale.

    Args:
        before: The event's id and the dialogue, as played.
        after: The same dialogues, `repriced`.
        tiers: For each dialogue what convicts the hint after turn k now; missing where it is clean.
        task: Of the group.
        method: What trained on it; None where nothing did, and there are no advantages.
    """
    held: list[list[tuple[float, float]] | None] = [None] * len(before)
    stale = False
    if method is not None:
        trainable = [i for i, (_, dialogue) in enumerate(before) if dialogue.trainable]
        old = method.advantages(_group(task, [dialogue for _, dialogue in before]))
        new = method.advantages(_group(task, after))
        for i, was, now in zip(trainable, old, new, strict=True):
            held[i] = list(zip(was, now, strict=True))
            stored = [turn.advantage for turn in before[i][1].turns]
            stale |= any(s is not None and abs(s - w) > 1e-6 for s, w in zip(stored, was, strict=True))
    changes = []
    for (event, old_dialogue), new_dialogue, by, pairs in zip(before, after, tiers, held, strict=True):
        for was_turn, now_turn in zip(old_dialogue.turns, new_dialogue.turns, strict=True):
            k = was_turn.index
            reward = was_turn.reward, now_turn.reward
            pair = None if pairs is None else pairs[k]
            if _differ(*reward) or (pair is not None and _differ(*pair)):
                hint = old_dialogue.turns[k - 1].hint if k else None
                was_leak = hint is not None and hint.leak is not None and hint.leak.leaked
                changes.append(Change(event, k, by.get(k - 1), was_leak, reward, pair))
    return changes, stale


def _group(task: Task, dialogues: Sequence[Dialogue]) -> Group:
    return Group(task, tuple(Rollout(dialogue, ()) for dialogue in dialogues))
