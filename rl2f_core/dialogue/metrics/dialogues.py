"""Metrics of a set of dialogues, and effects of one condition against another.

Conventions for every metric:

- Only the first T turns of a dialogue count. A failed dialogue (`StopReason.FAILED`) counts only in `stop/…`. A
  dialogue that was dropped or whose context was full counts as not solved.
- Attempts without a verdict and dialogues without a reward (imported ones) are left out of metrics that need them.
- Answers are compared by their normal form, unparsable attempts by their stripped text. An unparsable attempt never
  equals a parsable one.
- A *revision* is an incorrect attempt together with the next attempt.
- `cum_acc/t` uses the last answer within t turns. If a correct answer ends the dialogue, this is "solved by turn t".
  Otherwise (`no_oracle`) `cum_acc` may fall and `gain` may be negative.
- The distance is 0 for a correct answer and 1 for an unparsable one.
- Fractions have a Wilson interval, corrected for several observations per task. Means and differences have a t
  interval over tasks.

The README of `rl2f_core/evaluation` lists all metrics with formulas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import stdev
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from rl2f_core.common.stats.contrast import contrast
from rl2f_core.common.stats.intervals import Interval, mean_interval, paired_difference, wilson_clustered
from rl2f_core.dialogue.metrics.leaks import leak_observations, reads_leak
from rl2f_core.types import Dialogue, FinishReason, FrozenModel, StopReason, Turn

REFLECTION_CONDITIONS = ("reflection_shuffled", "reflection_dropped", "reflection_corrupted")
"""Conditions that replace the reflections and keep the hints."""

REFLECTION_WORDS: tuple[str, ...] = (
    r"check(?:s|ed|ing)?", r"re-?check(?:s|ed|ing)?", r"verif(?:y|ies|ied|ying)", r"wait", r"however",
    r"re-?evaluat(?:e|es|ed|ing)", r"re-?think(?:s|ing)?", r"re-?consider(?:s|ed|ing)?", r"let me",
)  # fmt: skip
"""Patterns of whole words that count as reflection, in any case."""
_REFLECTION = re.compile(rf"\b(?:{'|'.join(REFLECTION_WORDS)})\b", re.IGNORECASE)
OUTCOMES: dict[str, str] = {
    "correct": "correct and well-formed",
    "correct_format_error": "correct, but with a format error",
    "incorrect": "incorrect and well-formed",
    "incorrect_format_error": "a parsable incorrect answer with a format error",
    "unparsable": "no parsable answer, although the student ended its message",
    "truncated": "no parsable answer, and the token limit truncated the message",
}
"""Exclusive outcomes of an attempt with a description. The fractions `outcome/<name>` add up to 1."""

_Observation = tuple[str, float, float]  # task, numerator, denominator
Rates = Mapping[str, tuple[float, float]]
"""Number of solved dialogues and of dialogues, by task."""


class Metrics(FrozenModel):
    """Named values with intervals. Series by turn are named `name/1` … `name/T`."""

    turns: int
    """Allowed turns, T."""
    tasks: int
    """Tasks with at least one dialogue that did not fail."""
    dialogues: int
    """Dialogues that did not fail."""
    values: dict[str, Interval]
    """Intervals by metric; a metric without observations has the value None."""

    def __getitem__(self, name: str) -> Interval:
        return self.values[name]

    def final(self, name: str = "cum_acc") -> Interval:
        """Return the value of a series at the last turn."""
        return self.values[f"{name}/{self.turns}"]

    def flat(self) -> dict[str, float]:
        """Return all values that are not None, without intervals, for a metric event."""
        return {name: interval.value for name, interval in self.values.items() if interval.value is not None}


@dataclass(frozen=True, slots=True)
class Revision:
    """An incorrect attempt and the next attempt."""

    task: str
    before: Turn
    after: Turn
    earlier: frozenset[tuple[str, str]]
    """Answers up to and including `before`."""

    @property
    def changed(self) -> bool:
        """Whether the answer differs from the previous one."""
        return normalized_answer(self.after) != normalized_answer(self.before)

    @property
    def repeated(self) -> bool:
        """Whether the dialogue already contained the answer."""
        return normalized_answer(self.after) in self.earlier

    @property
    def kept(self) -> tuple[int, int]:
        """Number of correct answer parts that `after` retains, and their total number in `before`."""
        old, new = self.before.verdict, self.after.verdict
        retained = [new.parts.get(name) == old.parts[name] for name in old.correct_parts if name in old.parts]
        return sum(retained), len(retained)

    def distance_reduction(self, has_distance: bool) -> float | None:
        """Return by how much the distance to the gold answer falls; None without distances."""
        before, after = answer_distance(self.before), answer_distance(self.after)
        return before - after if has_distance and before is not None and after is not None else None


def normalized_answer(turn: Turn) -> tuple[str, str]:
    """Return the key by which answers are compared: normal form, or stripped text if unparsable."""
    parsed = turn.verdict.parsed
    return ("text", turn.attempt.strip()) if parsed is None else ("parsed", parsed)


def answer_distance(turn: Turn) -> float | None:
    """Return the distance to the gold answer in [0, 1]; None if the verifier gave none."""
    if turn.verdict.correct:
        return 0.0
    return 1.0 if turn.verdict.parsed is None else turn.verdict.distance


def classify_attempt(turn: Turn) -> str:
    """Return the outcome of an attempt, a key of `OUTCOMES`.

    A parsable answer is correct or incorrect even if the token limit truncated the text after it.
    """
    verdict = turn.verdict
    if verdict.correct or verdict.parsed is not None:
        return ("correct" if verdict.correct else "incorrect") + ("" if verdict.well_formed else "_format_error")
    return "truncated" if turn.finish_reason is FinishReason.LENGTH else "unparsable"


def revisions(dialogue: Dialogue, turns: int) -> list[Revision]:
    """Return the revisions within the first `turns` turns."""
    result: list[Revision] = []
    earlier: set[tuple[str, str]] = set()
    for before, after in pairwise(dialogue.turns[:turns]):
        earlier.add(normalized_answer(before))
        if before.verdict.correct is False and after.verdict.correct is not None:
            result.append(Revision(dialogue.task_id, before, after, frozenset(earlier)))
    return result


def reflection_words(text: str) -> int:
    """Count the reflection words in a text."""
    return len(_REFLECTION.findall(text))


@dataclass(frozen=True, slots=True)
class Tally:
    """Observations of one metric, by task."""

    kind: Literal["fraction", "ratio", "mean", "difference"]
    by_task: Rates
    """Sum and number of observations."""

    def interval(self) -> Interval:
        """Return the pooled value with its interval."""
        sums, counts = [s for s, _ in self.by_task.values()], [n for _, n in self.by_task.values()]
        if self.kind == "difference":
            return paired_difference(sums, counts)
        return {"fraction": wilson_clustered, "ratio": ratio_interval, "mean": mean_interval}[self.kind](sums, counts)


def ratio_interval(sums: ArrayLike, counts: ArrayLike) -> Interval:
    """Return `mean_interval` of a ratio in [0, 1] whose counts are not numbers of observations, e.g. bits."""
    interval = mean_interval(sums, counts)
    return interval if interval.high is None else interval.model_copy(update={"high": min(1.0, interval.high)})


@dataclass(frozen=True, slots=True)
class Tallies:
    """Observations of all metrics of one checkpoint under one condition."""

    turns: int
    tasks: int
    """Tasks with at least one dialogue that did not fail."""
    dialogues: int
    """Dialogues that did not fail."""
    values: Mapping[str, Tally | Interval]
    """By metric; an interval if a value is not a sum over tasks."""

    def metrics(self) -> Metrics:
        """Return the values with their intervals."""
        values = {name: v if isinstance(v, Interval) else v.interval() for name, v in self.values.items()}
        return Metrics(turns=self.turns, tasks=self.tasks, dialogues=self.dialogues, values=values)


def compute_metrics(dialogues: Sequence[Dialogue], turns: int) -> Metrics:
    """Compute all metrics for the dialogues of one checkpoint under one condition; see `tally_metrics`."""
    return tally_metrics(dialogues, turns).metrics()


def tally_metrics(dialogues: Sequence[Dialogue], turns: int) -> Tallies:
    """Collect the observations of all metrics for the dialogues of one checkpoint under one condition.

    Args:
        dialogues: Includes failed ones.
        turns: Allowed turns, T.
    """
    valid = [d for d in dialogues if d.stop_reason is not StopReason.FAILED]
    values: dict[str, Tally | Interval] = {
        **_accuracy(valid, turns),
        **_revision_metrics(valid, turns),
        **_attempt_metrics(valid, turns),
        **_reward_metrics(valid, turns),
        **_information_metrics(valid, turns),
    }
    values |= {name: fraction(observed) for name, observed in leak_observations(valid, turns).items()}
    for reason in StopReason:
        values[f"stop/{reason.value}"] = fraction((d.task_id, d.stop_reason is reason) for d in dialogues)
    return Tallies(turns, len({d.task_id for d in valid}), len(valid), values)


def _accuracy(dialogues: Sequence[Dialogue], turns: int) -> dict[str, Tally | Interval]:
    """Compute `cum_acc/t`, `gain`, `correction_rate`, `conditional_solve_rate/t` and `correct_abandoned_rate`.

    - conditional_solve_rate/t = P(first correct at t | attempt t exists, no earlier attempt is correct).
    - correction_rate = P(correct at the end | incorrect at first).
    - gain = cum_acc/T − cum_acc/1: a fraction, or a difference if dialogues continue after correct answers.
    - correct_abandoned_rate = P(incorrect at t + 1 | correct at t): has observations only without an oracle.
    """
    known = [d for d in dialogues if all(turn.verdict.correct is not None for turn in d.turns[:turns])]
    ends = [(d.task_id, bool(solved_within(d, 1)), bool(solved_within(d, turns))) for d in known]
    solved = [(d.task_id, first_solved_turn(d, turns), min(len(d.turns), turns)) for d in known]
    continued = [
        (d.task_id, b.verdict.correct) for d in known for a, b in pairwise(d.turns[:turns]) if a.verdict.correct
    ]

    def solve_rate(at: Iterable[int]) -> Tally:
        return fraction(
            (task, when == t) for task, when, count in solved for t in at if count >= t and not 0 < when < t
        )

    values: dict[str, Tally | Interval] = {}
    for t in range(1, turns + 1):
        values[f"cum_acc/{t}"] = fraction((d.task_id, solved_within(d, t)) for d in dialogues)
        values[f"conditional_solve_rate/{t}"] = solve_rate([t])
    values["conditional_solve_rate"] = solve_rate(range(2, turns + 1))
    if turns == 1:  # no gain is possible
        values["gain"] = Interval(value=0.0 if solved else None, low=0.0, high=0.0 if solved else 1.0, n=len(solved))
        values["correction_rate"] = fraction(())
    else:
        values["gain"] = (
            Tally("difference", sum_by_task((task, float(last) - float(first), 1) for task, first, last in ends))
            if continued
            else fraction((task, last and not first) for task, first, last in ends)
        )
        values["correction_rate"] = fraction((task, last) for task, first, last in ends if not first)
    values["correct_abandoned_rate"] = fraction((task, not correct) for task, correct in continued)
    return values


def _revision_metrics(dialogues: Sequence[Dialogue], turns: int) -> dict[str, Tally]:
    """Compute the metrics over all revisions.

    - plasticity: the answer changed.
    - repeated_answer_rate: the dialogue already contained the answer, at any turn; at least 1 − plasticity.
    - improving_change_rate: of the changed answers, those correct or closer.
    - retention: of the correct answer parts, those retained. Under `hints`, the hint confirmed these parts.
    - regression_rate: the distance grew or a correct part was lost, of the revisions with distance or correct parts.
    - misled_rate: of the revisions after a misleading hint with a false claim that the attempt before does not satisfy,
      those whose next attempt satisfies more of its false claims (`Turn.misled`). Under `contentless` the hint is the
      misleading one that the student did not read: the chance level.
    """
    all_revisions = [r for d in dialogues for r in revisions(d, turns)]
    has_distance = any(
        t.verdict.distance is not None for d in dialogues for t in d.turns[:turns] if t.verdict.parsed is not None
    )
    moves = [(r, r.distance_reduction(has_distance), r.kept) for r in all_revisions]
    regressions = [
        (r, (step is not None and step < 0) or kept < parts)
        for r, step, (kept, parts) in moves
        if step is not None or parts
    ]
    return {
        "plasticity": fraction((r.task, r.changed) for r in all_revisions),
        "repeated_answer_rate": fraction((r.task, r.repeated) for r in all_revisions),
        "improving_change_rate": fraction((r.task, step > 0) for r, step, _ in moves if r.changed and step is not None),
        "retention": _pooled((r.task, kept, parts) for r, _, (kept, parts) in moves),
        "regression_rate": fraction((r.task, worse) for r, worse in regressions),
        "misled_rate": fraction((r.task, r.after.misled) for r in all_revisions if r.after.misled is not None),
    }


def _attempt_metrics(dialogues: Sequence[Dialogue], turns: int) -> dict[str, Tally]:
    """Compute the metrics of attempts, overall and by turn. Token counts skip turns without `token_ids`.

    `truncated_rate` and `format_error_rate` overlap with other fractions, `outcome/…` do not: parse_failure_rate =
    outcome/unparsable + outcome/truncated; format_error_rate = those + outcome/(in)correct_format_error.
    """

    def tokens_and_words(attempts: Iterable[tuple[str, Turn]], suffix: str) -> dict[str, Tally]:
        sized = [(task, turn, len(turn.token_ids)) for task, turn in attempts if turn.token_ids]
        return {
            f"attempt_tokens{suffix}": _mean((task, size, 1) for task, _, size in sized),
            f"reflection_words{suffix}": _mean(
                (task, 1000 * reflection_words(turn.attempt), size) for task, turn, size in sized
            ),
        }

    def rates(attempts: Sequence[tuple[str, Turn]], suffix: str) -> dict[str, Tally]:
        limit, words = FinishReason.LENGTH, tokens_and_words(attempts, suffix)
        verified = [(task, turn.verdict) for task, turn in attempts if turn.verdict.correct is not None]
        return {
            f"attempt_tokens{suffix}": words[f"attempt_tokens{suffix}"],
            f"truncated_rate{suffix}": fraction((task, turn.finish_reason is limit) for task, turn in attempts),
            f"parse_failure_rate{suffix}": fraction((task, verdict.parsed is None) for task, verdict in verified),
            f"format_error_rate{suffix}": fraction((task, not verdict.well_formed) for task, verdict in verified),
            **words,
        }

    attempts = [(d.task_id, turn) for d in dialogues for turn in d.turns[:turns]]
    values = rates(attempts, "")
    for t in range(1, turns + 1):
        values |= rates([(d.task_id, d.turns[t - 1]) for d in dialogues if len(d.turns) >= t], f"/{t}")
    for name, correct in (("correct", True), ("incorrect", False)):
        values |= tokens_and_words((item for item in attempts if item[1].verdict.correct is correct), f"/{name}")
    outcomes = [(task, classify_attempt(turn)) for task, turn in attempts if turn.verdict.correct is not None]
    for name in OUTCOMES:
        values[f"outcome/{name}"] = fraction((task, outcome == name) for task, outcome in outcomes)
    return values


def _reward_metrics(dialogues: Sequence[Dialogue], turns: int) -> dict[str, Tally | Interval]:
    """Compute mean and standard deviation (n − 1) of the undiscounted return, and its mean if no leak was read."""
    known = [d for d in dialogues if any(turn.known_reward is not None for turn in d.turns[:turns])]
    totals = [(d.task_id, math.fsum(turn.reward for turn in d.turns[:turns]), 1) for d in known]
    deviation = stdev(total for _, total, _ in totals) if len(totals) > 1 else None
    clean = [total for d, total in zip(known, totals, strict=True) if not any(reads_leak(t.hint) for t in d.turns)]
    spread = Interval(value=deviation, n=len(totals))
    return {"reward": _mean(totals), "reward_std": spread, "clean_reward": _mean(clean)}


def _information_metrics(dialogues: Sequence[Dialogue], turns: int) -> dict[str, Tally]:
    """Compute the metrics of the information in hints (`rollout.hint_information`), over hints with a known meaning.

    - hint_bits, bits_left: means over hints, overall and for the hint after attempt t (`…/t`, t < T).
    - determined_rate: fraction of hints that newly leave the answer as the only candidate.
    - true_hint_rate: fraction of the hints with a statement that state nothing false.
    - efficiency: Σ bits_used / Σ hint_bits, over hints with bits and a next attempt.  1 if every attempt agrees with
      the hint before it.
    - efficiency_chance: Σ chance_bits / Σ hint_bits over the same hints, without those of unknown chance_bits: the
      efficiency of attempts that ignore hints.
    """
    hints = [(d.task_id, k, turn) for d in dialogues for k, turn in enumerate(d.turns[:turns], 1)]
    known = [(task, k, t.hint_bits, t.bits_left, t) for task, k, t in hints if t.hint_bits is not None]
    used = [
        (d.task_id, after.bits_used, before.hint_bits, before.chance_bits)
        for d in dialogues
        for before, after in pairwise(d.turns[:turns])
        if before.hint_bits and after.bits_used is not None
    ]

    def means(at: Collection[int], suffix: str) -> dict[str, Tally]:
        chosen = [(task, bits, left or 0.0) for task, k, bits, left, _ in known if k in at]
        return {
            f"hint_bits{suffix}": _mean((task, bits, 1) for task, bits, _ in chosen),
            f"bits_left{suffix}": _mean((task, left, 1) for task, _, left in chosen),
        }

    values = means(range(1, turns + 1), "")
    for k in range(1, turns):
        values |= means([k], f"/{k}")
    values["determined_rate"] = fraction((task, turn.determines_answer) for task, _, _, _, turn in known)
    values["true_hint_rate"] = fraction((task, t.hint_true) for task, _, t in hints if t.hint_true is not None)
    values["efficiency"] = _ratio([(task, bits, given) for task, bits, given, _ in used])
    values["efficiency_chance"] = _ratio([(task, bits, given) for task, _, given, bits in used if bits is not None])
    return values


def solved_within(dialogue: Dialogue, turns: int) -> bool | None:
    """Return whether the last answer of the first `turns` attempts counts as correct; None without a verdict on it.

    It does not if a leak ended the dialogue.
    """
    if len(dialogue.turns) <= turns:
        return dialogue.solved
    return dialogue.turns[turns - 1].verdict.correct


def first_solved_turn(dialogue: Dialogue, turns: int) -> int:
    """Return the 1-based turn of the first correct answer within `turns` that counts as solved, or 0."""
    for number, turn in enumerate(dialogue.turns[:turns], 1):
        if turn.verdict.correct and (number < len(dialogue.turns) or dialogue.solved):
            return number
    return 0


# -- effects -------------------------------------------------------------------------------------------------------
def solved_by_task(dialogues: Sequence[Dialogue], turns: int) -> dict[str, tuple[float, float]]:
    """Return each task's dialogues solved within `turns`, and those that did not fail and have a verdict."""
    ends = [(d.task_id, solved_within(d, turns)) for d in dialogues if d.stop_reason is not StopReason.FAILED]
    return sum_by_task((task, float(solved), 1.0) for task, solved in ends if solved is not None)


def solve_rate_difference(a: Rates, b: Rates) -> Interval:
    """Return the mean solve rate of `a` minus that of `b`, paired over their common tasks."""
    return _contrast((a, b), (1, -1))


def hint_effect(hints: Sequence[Dialogue], contentless: Sequence[Dialogue], turns: int) -> Interval:
    """Return cum_acc/T(hints) − cum_acc/T(contentless), paired over common tasks.

    It compares any two sets of dialogues, e.g. `shuffled` with `contentless`.
    """
    return solve_rate_difference(solved_by_task(hints, turns), solved_by_task(contentless, turns))


def compared_with(condition: str) -> str:
    """Return the condition that an effect is relative to: with replaced reflections `hints`, else `contentless`."""
    return "hints" if condition in REFLECTION_CONDITIONS else "contentless"


def reference_note(condition: str) -> str:
    """Return ` (against hints)` for an effect that is not relative to contentless feedback, otherwise nothing."""
    return "" if compared_with(condition) == "contentless" else f" (against {compared_with(condition)})"


def effects(by_condition: Mapping[str, Sequence[Dialogue]], turns: int) -> dict[str, Interval]:
    """Return every condition's effect against that of `compared_with`, if that is present."""
    return {
        name: hint_effect(dialogues, by_condition[compared_with(name)], turns)
        for name, dialogues in by_condition.items()
        if name != compared_with(name) in by_condition
    }


def effect_difference(a: Mapping[str, Sequence[Dialogue]], b: Mapping[str, Sequence[Dialogue]], turns: int) -> Interval:
    """Return the hint effect of `a` minus that of `b` (both by condition), paired over common tasks."""
    return paired_effect_difference(
        [solved_by_task(c[name], turns) for c in (a, b) for name in ("hints", "contentless")]
    )


def paired_effect_difference(rates: Sequence[Rates]) -> Interval:
    """Return (r₀ − r₁) − (r₂ − r₃) of four solve rates by task, over the tasks that all have."""
    return _contrast(rates, (1, -1, -1, 1))


def _contrast(rates: Sequence[Rates], signs: Sequence[int]) -> Interval:
    """Return the mean over common tasks of the signed sum of solve rates."""
    shared = sorted(set.intersection(*(set(rate) for rate in rates)))
    solved = np.array([[rate[task] for task in shared] for rate in rates], dtype=float).reshape(len(rates), -1, 2)
    return contrast(solved[..., 0], solved[..., 1], signs)


# -- pooling -------------------------------------------------------------------------------------------------------
def sum_by_task(observations: Iterable[_Observation]) -> dict[str, tuple[float, float]]:
    """Return the sums of numerators and of denominators of each task."""
    sums: dict[str, tuple[float, float]] = {}
    for task, numerator, denominator in observations:
        total, count = sums.get(task, (0.0, 0.0))
        sums[task] = total + numerator, count + denominator
    return sums


def _pooled(observations: Iterable[_Observation]) -> Tally:
    return Tally("fraction", sum_by_task(observations))


def _ratio(observations: Sequence[_Observation]) -> Tally:
    """Return a ratio of sums; denominators are scaled to add up to the number of observations."""
    scale = len(observations) / math.fsum(given for _, _, given in observations) if observations else 1.0
    return Tally("ratio", sum_by_task((task, part * scale, given * scale) for task, part, given in observations))


def _mean(observations: Iterable[_Observation]) -> Tally:
    return Tally("mean", sum_by_task(observations))


def fraction(observations: Iterable[tuple[str, bool | None]]) -> Tally:
    """Return a fraction of pairs (task, hit) without unknown hits; the observations of one task are a cluster."""
    return _pooled((task, float(hit), 1.0) for task, hit in observations if hit is not None)
