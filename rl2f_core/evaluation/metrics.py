"""Named metrics of a set of dialogues (methods.md §7) and the effect of one control against another (§8).

Conventions, the same for every metric:

- A dialogue is cut to its first T turns. One that failed (`StopReason.FAILED`) is left out of everything but the
  `stop/…` shares; one that was truncated or dropped counts as not solved.
- The parsed answer is the answer. Two answers are the same when their normal forms are the same; two unparsable
  attempts when their stripped texts are; an unparsable attempt never equals a parsable one.
- A *revision* is a wrong attempt and the attempt after it.
- Within t turns, the last answer counts: where a right answer ends the dialogue this is "solved within t turns", and
  where it does not (no oracle) `cum_acc` may fall and `gain` may be negative.
- Where the environment has distances, a right answer lies at 0 and an unparsable one at 1, the farthest.
- Shares carry a Wilson interval whose sample size is corrected for several observations on one task; means carry a
  bootstrap interval over tasks.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rl2f_core.evaluation.statistics import Interval, paired_bootstrap, ratio_bootstrap, wilson_clustered
from rl2f_core.types import Dialogue, StopReason, Turn, TurnStop, Value

REFLECTION_WORDS: tuple[str, ...] = (
    r"check(?:s|ed|ing)?",
    r"re-?check(?:s|ed|ing)?",
    r"verif(?:y|ies|ied|ying)",
    r"wait",
    r"however",
    r"re-?evaluat(?:e|es|ed|ing)",
    r"re-?think(?:s|ing)?",
    r"re-?consider(?:s|ed|ing)?",
    r"let me",
)
"""Patterns of whole words, upper or lower case, that count as reflection."""
_REFLECTION = re.compile(rf"\b(?:{'|'.join(REFLECTION_WORDS)})\b", re.IGNORECASE)
OUTCOMES: dict[str, str] = {
    "right": "well-formed and right",
    "right_ill_formed": "right, but the format is broken",
    "wrong": "well-formed and wrong",
    "wrong_ill_formed": "an answer that can be read and is wrong, and the format is broken",
    "unparsable": "no answer that can be read, though the student ended its message",
    "cut_off": "no answer that can be read, and the token limit cut the message off",
}
"""What an attempt can come to, by `outcome_of`. Exclusive: the shares `outcome/<name>` add up to 1."""
EQUAL_RETURNS = 1e-9
"""Returns of a group that differ by no more than this are equal."""

_Observation = tuple[str, float, float]  # task, numerator, denominator


class Metrics(Value):
    """Named values with intervals. By-turn series are named `name/1` … `name/T`."""

    turns: int
    """Turns allowed, T."""
    tasks: int
    """Tasks with at least one dialogue that did not fail."""
    dialogues: int
    """Dialogues that did not fail."""
    values: dict[str, Interval]
    """By name; a metric without a single observation has the value None."""

    def __getitem__(self, name: str) -> Interval:
        return self.values[name]

    def final(self, name: str = "cum_acc") -> Interval:
        """The series' value at the last turn."""
        return self.values[f"{name}/{self.turns}"]

    def series(self, name: str) -> list[Interval]:
        """`name/1` … `name/T`."""
        return [self.values[f"{name}/{t}"] for t in range(1, self.turns + 1)]

    def flat(self) -> dict[str, float]:
        """Values alone, without those that have none: what a metric event holds."""
        return {name: held.value for name, held in self.values.items() if held.value is not None}


@dataclass(frozen=True, slots=True)
class Revision:
    """A wrong attempt, and what the student did next."""

    task: str
    before: Turn
    after: Turn
    earlier: frozenset[tuple[str, str]]
    """The answers given up to and with `before`."""

    @property
    def changed(self) -> bool:
        """The answer is another one than just before."""
        return answer_of(self.after) != answer_of(self.before)

    @property
    def repeated(self) -> bool:
        """The answer had been given before in this dialogue."""
        return answer_of(self.after) in self.earlier

    @property
    def kept(self) -> tuple[int, int]:
        """How many right parts of `before` stand unchanged in `after`, and how many there were."""
        old, new = self.before.verdict, self.after.verdict
        held = [new.parts.get(name) == old.parts[name] for name in old.right_parts if name in old.parts]
        return sum(held), len(held)

    def approach(self, has_distance: bool) -> float | None:
        """The fall of the distance to the answer (positive is closer), or None where there is no distance."""
        if not has_distance:
            return None
        before, after = distance_of(self.before), distance_of(self.after)
        return None if before is None or after is None else before - after


def answer_of(turn: Turn) -> tuple[str, str]:
    """What a turn's answer is compared by: its normal form, or its stripped text where it is unparsable."""
    parsed = turn.verdict.parsed
    return ("text", turn.attempt.strip()) if parsed is None else ("parsed", parsed)


def distance_of(turn: Turn) -> float | None:
    """Distance to the answer in [0, 1]: 0 where right, 1 where unparsable, None where the verifier gave none."""
    if turn.verdict.correct:
        return 0.0
    if turn.verdict.parsed is None:
        return 1.0
    return turn.verdict.distance


def outcome_of(turn: Turn) -> str:
    """Which one of `OUTCOMES` an attempt came to.

    An answer that can be read is judged as one, even where the limit cut off what came after it.
    """
    verdict = turn.verdict
    if verdict.correct or verdict.parsed is not None:
        return ("right" if verdict.correct else "wrong") + ("" if verdict.well_formed else "_ill_formed")
    return "cut_off" if turn.stop is TurnStop.LENGTH else "unparsable"


def revisions(dialogue: Dialogue, turns: int) -> list[Revision]:
    """Every wrong attempt within the first `turns` that has a next one there."""
    played = dialogue.turns[:turns]
    found: list[Revision] = []
    earlier: set[tuple[str, str]] = set()
    for before, after in pairwise(played):
        earlier.add(answer_of(before))
        if not before.verdict.correct:
            found.append(Revision(dialogue.task_id, before, after, frozenset(earlier)))
    return found


def reflection_words(text: str) -> int:
    """How many reflection words stand in a text."""
    return len(_REFLECTION.findall(text))


def measure(dialogues: Sequence[Dialogue], turns: int, *, resamples: int = 2000, seed: int = 0) -> Metrics:
    """All metrics of the dialogues of one checkpoint under one control.

    `turns` is T. `resamples` 0 leaves out the intervals of means (cheap, for training steps).

    Names: `cum_acc/t`, `gain`, `correction_rate`, `hazard/t`, `hazard` (turns 2…T together), `plasticity`,
    `repeat_rate`, `useful_change`, `retention`, `away_rate`, `misled_rate`, `given_up`, `leak_rate`; of attempts,
    overall and by turn: `length` (tokens), `truncated`, `unparsable`, `ill_formed`, `reflection_words` (per 1,000
    tokens), the first and the last also as `…/right` and `…/wrong`; `outcome/<name>` by `OUTCOMES`, which add up to 1;
    `reward` and `reward_std` of whole dialogues; `stop/<reason>`.
    """
    valid = [d for d in dialogues if d.stop is not StopReason.FAILED]

    def mean(observations: Iterable[_Observation]) -> Interval:
        return ratio_bootstrap(*_by_task(observations), resamples, seed)

    values = {
        **_accuracy(valid, turns, mean),
        **_revision_metrics(valid, turns),
        **_attempt_metrics(valid, turns, mean),
        **_reward_metrics(valid, turns, mean),
    }
    hints = [(d.task_id, turn.hint.leak) for d in valid for turn in d.turns[:turns] if turn.hint is not None]
    values["leak_rate"] = _share((task, leak.leaked) for task, leak in hints if leak is not None)
    for reason in StopReason:
        values[f"stop/{reason.value}"] = _share((d.task_id, d.stop is reason) for d in dialogues)
    return Metrics(turns=turns, tasks=len({d.task_id for d in valid}), dialogues=len(valid), values=values)


def _accuracy(
    dialogues: Sequence[Dialogue], turns: int, mean: Callable[[Iterable[_Observation]], Interval]
) -> dict[str, Interval]:
    """`cum_acc/t`, `gain`, `correction_rate`, `hazard/t`, `given_up`.

    hazard/t = P(first right at t | attempt t was made, none before was right): what ended earlier is no more at risk.
    correction_rate = P(right at the end | wrong at first). gain = cum_acc/T − cum_acc/1: a share where right answers
    end dialogues, and else a difference that may be negative. given_up = P(wrong at t + 1 | right at t), which has
    observations only without an oracle.
    """
    ends = [(d.task_id, right_within(d, 1), right_within(d, turns)) for d in dialogues]
    at = [(d.task_id, first_right(d, turns), min(len(d.turns), turns)) for d in dialogues]
    kept = [
        (d.task_id, b.verdict.correct) for d in dialogues for a, b in pairwise(d.turns[:turns]) if a.verdict.correct
    ]
    values = {}
    for t in range(1, turns + 1):
        values[f"cum_acc/{t}"] = _share((d.task_id, right_within(d, t)) for d in dialogues)
        values[f"hazard/{t}"] = _share((task, when == t) for task, when, made in at if made >= t and not 0 < when < t)
    later = range(2, turns + 1)
    values["hazard"] = _share((task, when == t) for task, when, made in at for t in later
                              if made >= t and not 0 < when < t)  # fmt: skip
    if turns == 1:  # nothing can be gained, by definition
        values["gain"] = Interval(value=0.0 if at else None, low=0.0, high=0.0 if at else 1.0, n=len(at))
        values["correction_rate"] = _share(())
    else:
        values["gain"] = (
            mean((task, float(last) - float(first), 1) for task, first, last in ends) if kept
            else _share((task, last and not first) for task, first, last in ends)
        )  # fmt: skip
        values["correction_rate"] = _share((task, last) for task, first, last in ends if not first)
    values["given_up"] = _share((task, not right) for task, right in kept)
    return values


def _revision_metrics(dialogues: Sequence[Dialogue], turns: int) -> dict[str, Interval]:
    """`plasticity` and what must stand beside it, over all revisions.

    - plasticity: the answer changed. repeat_rate: the answer was given before in this dialogue (at any turn, so that
      going round in circles shows; never below 1 − plasticity).
    - useful_change: of the changed, those right or closer to the answer.
    - retention: of the parts that were right before, those kept. Under `hints` these are the parts that the hint
      confirmed; under other controls it is what is kept without being told.
    - away_rate: of the revisions where distance or right parts exist, those in which the distance grew or a right part
      was lost. misled_rate: the same after a hint of the teacher `misleading`; compare it with the away_rate of
      `contentless`, which is what chance does.
    """
    found = [r for d in dialogues for r in revisions(d, turns)]
    has_distance = any(
        t.verdict.distance is not None for d in dialogues for t in d.turns[:turns] if t.verdict.parsed is not None
    )
    moves = [(r, r.approach(has_distance), r.kept) for r in found]
    away = [
        (r, (step is not None and step < 0) or kept < parts)
        for r, step, (kept, parts) in moves
        if step is not None or parts
    ]
    return {
        "plasticity": _share((r.task, r.changed) for r in found),
        "repeat_rate": _share((r.task, r.repeated) for r in found),
        "useful_change": _share((r.task, step > 0) for r, step, _ in moves if r.changed and step is not None),
        "retention": _pooled((r.task, kept, parts) for r, _, (kept, parts) in moves),
        "away_rate": _share((r.task, lost) for r, lost in away),
        "misled_rate": _share(
            (r.task, lost) for r, lost in away if r.before.hint is not None and r.before.hint.teacher == "misleading"
        ),
    }


def _attempt_metrics(
    dialogues: Sequence[Dialogue], turns: int, mean: Callable[[Iterable[_Observation]], Interval]
) -> dict[str, Interval]:
    """Counts of attempts, overall and by turn. Lengths and words leave out turns without `token_ids`.

    `truncated` and `ill_formed` overlap with other shares; `outcome/…` do not: unparsable = outcome/unparsable +
    outcome/cut_off, ill_formed = those two + outcome/right_ill_formed + outcome/wrong_ill_formed.
    """

    def counts(attempts: Sequence[tuple[str, Turn]], suffix: str) -> dict[str, Interval]:
        timed = [(task, turn, len(turn.token_ids)) for task, turn in attempts if turn.token_ids]
        return {
            f"length{suffix}": mean((task, size, 1) for task, _, size in timed),
            f"truncated{suffix}": _share((task, turn.stop is TurnStop.LENGTH) for task, turn in attempts),
            f"unparsable{suffix}": _share((task, turn.verdict.parsed is None) for task, turn in attempts),
            f"ill_formed{suffix}": _share((task, not turn.verdict.well_formed) for task, turn in attempts),
            f"reflection_words{suffix}": mean(_reflection(timed)),
        }

    attempts = [(d.task_id, turn) for d in dialogues for turn in d.turns[:turns]]
    values = counts(attempts, "")
    for t in range(1, turns + 1):
        values |= counts([(d.task_id, d.turns[t - 1]) for d in dialogues if len(d.turns) >= t], f"/{t}")
    timed = [(task, turn, len(turn.token_ids)) for task, turn in attempts if turn.token_ids]
    for name, right in (("right", True), ("wrong", False)):
        chosen = [item for item in timed if item[1].verdict.correct is right]
        values[f"length/{name}"] = mean((task, size, 1) for task, _, size in chosen)
        values[f"reflection_words/{name}"] = mean(_reflection(chosen))
    found = [(task, outcome_of(turn)) for task, turn in attempts]
    for name in OUTCOMES:
        values[f"outcome/{name}"] = _share((task, outcome == name) for task, outcome in found)
    return values


def _reflection(timed: Sequence[tuple[str, Turn, int]]) -> list[_Observation]:
    """Numerators and denominators of words per 1,000 tokens."""
    return [(task, 1000 * reflection_words(turn.attempt), size) for task, turn, size in timed]


def _reward_metrics(
    dialogues: Sequence[Dialogue], turns: int, mean: Callable[[Iterable[_Observation]], Interval]
) -> dict[str, Interval]:
    """`reward`: mean over dialogues of Σ_k r_k, undiscounted; `reward_std`: its standard deviation (n − 1)."""
    totals = [(d.task_id, math.fsum(turn.reward for turn in d.turns[:turns]), 1) for d in dialogues]
    center = mean(totals)
    deviation = None
    if len(totals) > 1 and center.value is not None:
        middle = center.value
        deviation = math.sqrt(math.fsum((r - middle) ** 2 for _, r, _ in totals) / (len(totals) - 1))
    return {"reward": center, "reward_std": Interval(value=deviation, n=len(totals))}


def right_within(dialogue: Dialogue, turns: int) -> bool:
    """Whether the last answer of the first `turns` attempts counts as right; one that a leak ended does not."""
    if len(dialogue.turns) <= turns:
        return dialogue.solved
    return dialogue.turns[turns - 1].verdict.correct


def first_right(dialogue: Dialogue, turns: int) -> int:
    """1-based turn of the first right answer within `turns`, or 0; a dialogue that counts as not solved at its only
    right answer has none."""
    for number, turn in enumerate(dialogue.turns[:turns], 1):
        if turn.verdict.correct and (number < len(dialogue.turns) or dialogue.solved):
            return number
    return 0


# -- effects -------------------------------------------------------------------------------------------------------
def solved_by_task(dialogues: Sequence[Dialogue], turns: int) -> dict[str, float]:
    """Share of each task's dialogues that are solved within `turns`; failed dialogues are left out."""
    by_task: dict[str, list[bool]] = defaultdict(list)
    for dialogue in dialogues:
        if dialogue.stop is not StopReason.FAILED:
            by_task[dialogue.task_id].append(right_within(dialogue, turns))
    return {task: sum(held) / len(held) for task, held in by_task.items()}


def hint_effect(
    hints: Sequence[Dialogue], contentless: Sequence[Dialogue], turns: int, *, resamples: int = 2000, seed: int = 0
) -> Interval:
    """cum_acc/T(hints) − cum_acc/T(contentless), paired over the tasks that both have (methods.md §8).

    Any two sets of dialogues can be compared so, e.g. `shuffled` against `contentless`.
    """
    a, b = solved_by_task(hints, turns), solved_by_task(contentless, turns)
    shared = sorted(a.keys() & b.keys())
    return paired_bootstrap([a[t] for t in shared], [b[t] for t in shared], resamples, seed)


def effects(
    by_control: Mapping[str, Sequence[Dialogue]], turns: int, *, resamples: int = 2000, seed: int = 0
) -> dict[str, Interval]:
    """Every control's effect against `contentless`, in the given order; empty where `contentless` was not played."""
    if "contentless" not in by_control:
        return {}
    return {
        name: hint_effect(held, by_control["contentless"], turns, resamples=resamples, seed=seed)
        for name, held in by_control.items()
        if name != "contentless"
    }


def effect_difference(
    a: Mapping[str, Sequence[Dialogue]],
    b: Mapping[str, Sequence[Dialogue]],
    turns: int,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """hint_effect of checkpoint `a` minus that of `b`, paired over the tasks that all four sets have."""
    sets = [solved_by_task(c[name], turns) for c in (a, b) for name in ("hints", "contentless")]
    shared = sorted(set.intersection(*(set(s) for s in sets)))
    first = [sets[0][t] - sets[1][t] for t in shared]
    second = [sets[2][t] - sets[3][t] for t in shared]
    return paired_bootstrap(first, second, resamples, seed)


# -- groups --------------------------------------------------------------------------------------------------------
def group_outcomes(
    returns: Sequence[Sequence[float]], solved: Sequence[Sequence[bool]] | None = None
) -> dict[str, float]:
    """What the groups of one step could teach, as shares of the groups; empty groups are left out.

    `returns[g]` are the returns of group g's dialogues. A group of unequal returns is mixed; one of equal returns
    carries no gradient and is all right or all wrong where its dialogues agree on that. Without `solved` a dialogue
    counts as right when its return is above 0. No group at all gives an empty dict.

    `frac_reward_zero_std` is TRL's name for `groups/frac_zero_variance`.
    """
    if solved is None:
        solved = [[value > 0 for value in group] for group in returns]
    held = [(group, right) for group, right in zip(returns, solved, strict=True) if group]
    if not held:
        return {}
    equal = [right for group, right in held if max(group) - min(group) <= EQUAL_RETURNS]
    n = len(held)
    return {
        "groups/frac_mixed": 1 - len(equal) / n,
        "groups/frac_all_right": sum(all(right) for right in equal) / n,
        "groups/frac_all_wrong": sum(not any(right) for right in equal) / n,
        "groups/frac_zero_variance": len(equal) / n,
        "frac_reward_zero_std": len(equal) / n,
    }


# -- pooling -------------------------------------------------------------------------------------------------------
def _by_task(observations: Iterable[_Observation]) -> tuple[list[float], list[float]]:
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for task, numerator, denominator in observations:
        sums[task][0] += numerator
        sums[task][1] += denominator
    return [s[0] for s in sums.values()], [s[1] for s in sums.values()]


def _pooled(observations: Iterable[_Observation]) -> Interval:
    return wilson_clustered(*_by_task(observations))


def _share(observations: Iterable[tuple[str, bool]]) -> Interval:
    return _pooled((task, float(hit), 1.0) for task, hit in observations)
