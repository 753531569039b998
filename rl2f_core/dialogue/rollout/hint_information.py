"""Information in a hint, in bits, and how much of it the next attempt uses.

The candidates are the answers of the form that the problem asks for (`capabilities.AnswerSpace`). A wrong verdict and a
hint exclude some of them:

    before      candidates that agree with the verdicts so far, including this attempt's, and with the earlier hints
    after       those of them that also agree with all statements of this hint
    respected   those of `before` that agree with the statements that the next attempt agrees with

    hint_bits = log2(|before| / |after|)
    bits_left = log2(|after|)
    bits_used = log2(|before| / |respected|), of the next attempt
    chance_bits = mean of bits_used over all attempts in `before`

So 0 ≤ bits_used ≤ hint_bits. An attempt that agrees with everything shown uses all bits; one that agrees with no
statement of the hint, or cannot be parsed, uses none. Some statements hold by chance, e.g. half of those about places
of a code with two letters. `chance_bits` is what an attempt that ignores the hint uses on average.

A hint counts by the statements that the environment reads in it: the scripted wording, and for `secret_code`
statements in free text. A text without any contributes no bits, and its own `hint_bits` is None. `hint_true` tells
whether all statements hold for the gold answer. A false hint counts as what it claims. A hint that contradicts earlier
ones replaces them: it is counted from the candidates that agree with the verdicts. If none of these agrees with it
either, e.g. because it names a letter that the code cannot have, it contributes no bits and its `hint_bits` is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rl2f_core.environments.base import CONTENTLESS, NO_VERDICT_HINT, Environment
from rl2f_core.environments.candidates import Candidate, Region, contains, count, intersect
from rl2f_core.environments.capabilities import AnswerSpace
from rl2f_core.types import Hint, JsonObject, Task, Turn, Verdict

MAX_STATEMENTS = 6
"""`chance_bits` is None if more statements exclude candidates, because it counts every combination of them."""
DIGITS = 5
"""Decimals of stored bits."""


@dataclass(frozen=True)
class _Shown:
    """A hint, and the candidates before it."""

    before: Region
    excluded: tuple[Candidate, ...]
    """Attempts that verdicts showed to be wrong."""
    statements: tuple[Region, ...]

    def restrict(self, statements: Sequence[Region]) -> tuple[Region, int]:
        """Return the candidates that also agree with `statements`, and their number."""
        region = intersect(self.before, *statements)
        return region, count(region, self.excluded)

    @cached_property
    def size(self) -> int:
        """Number of candidates before the hint."""
        return self.restrict(())[1]

    @cached_property
    def after(self) -> tuple[Region, int]:
        """The candidates after the hint, and their number."""
        return self.restrict(self.statements)


def measure_hints(
    environment: Environment, task: Task, turns: Sequence[Turn], *, verdicts_shown: bool = True
) -> tuple[Turn, ...]:
    """Return the turns with `hint_bits`, `hint_true`, `bits_left`, `chance_bits`, `determines_answer` and `bits_used`.

    Args:
        environment: The task's environment. Without `AnswerSpace`, or with too many candidates, no value is set.
        task: The task.
        turns: The dialogue.
        verdicts_shown: The student knows that an attempt is wrong, because a correct one ends the dialogue.
    """
    space = environment.answer_space(task) if isinstance(environment, AnswerSpace) else None
    if not isinstance(environment, AnswerSpace) or space is None:
        return tuple(turns)
    right = environment.right_answers(task)
    candidates = space
    excluded: tuple[Candidate, ...] = ()
    shown: _Shown | None = None
    measured: list[Turn] = []
    verdicts: list[Verdict] = []
    for turn in turns:
        verdicts.append(turn.verdict)
        parsed = turn.verdict.parsed
        answer = None if parsed is None else environment.answer_values(task, parsed)
        values: JsonObject = {"bits_used": None if shown is None else _bits_used(shown, answer)}
        shown = None
        if turn.hint is not None:
            if verdicts_shown and answer is not None and not turn.verdict.correct:
                excluded = (*excluded, answer)
            statements = _statements(environment, task, verdicts, turn.hint)
            near = environment.right_answers(task, parsed)
            true = (all(contains(s, candidate) for s in statements or ()) for candidate in near)
            values["hint_true"] = any(true) if statements else None
            shown = _read_hint(statements, (candidates, space), excluded)
            if shown is not None:
                candidates, left = shown.after
                values |= _hint_values(shown.size, left, is_right=any(contains(candidates, a) for a in right))
                values["chance_bits"] = _chance_bits(shown)
        measured.append(turn.model_copy(update=values))
    return tuple(measured)


def _statements(
    environment: AnswerSpace, task: Task, verdicts: Sequence[Verdict], hint: Hint
) -> tuple[Region, ...] | None:
    if hint.teacher == "contentless" or hint.text in ("", CONTENTLESS, NO_VERDICT_HINT):
        return ()
    return environment.hint_statements(task, verdicts, hint.text)


def _read_hint(
    statements: tuple[Region, ...] | None, candidates: Sequence[Region], excluded: tuple[Candidate, ...]
) -> _Shown | None:
    """Return the hint with the first of `candidates` that it agrees with; None if its meaning is unknown."""
    if statements is None:
        return None
    hints = (_Shown(before, excluded, statements) for before in candidates)
    return next((hint for hint in hints if hint.after[1]), None)


def _hint_values(before: int, after: int, *, is_right: bool) -> JsonObject:
    return {
        "hint_bits": round(math.log2(before / after), DIGITS),
        "bits_left": round(math.log2(after), DIGITS),
        "determines_answer": after == 1 < before and is_right,
    }


def _bits_used(shown: _Shown, answer: Candidate | None) -> float:
    if answer is None:
        return 0.0
    respected = [statement for statement in shown.statements if contains(statement, answer)]
    return round(math.log2(shown.size / shown.restrict(respected)[1]), DIGITS)


def _chance_bits(shown: _Shown) -> float | None:
    """Return the mean of `_bits_used` over the candidates before the hint.

    The number of candidates that agree with exactly a set of statements follows from the numbers that agree with at
    least a set, by inclusion and exclusion.
    """
    total = shown.size
    statements = [statement for statement in shown.statements if shown.restrict([statement])[1] < total]
    if len(statements) > MAX_STATEMENTS:
        return None
    regions = [shown.before]
    for statement in statements:
        regions += [intersect(region, statement) for region in regions]
    sizes = [count(region, shown.excluded) for region in regions]
    exactly = list(sizes)
    for i in range(len(statements)):
        for chosen in range(len(sizes)):
            if not chosen >> i & 1:
                exactly[chosen] -= exactly[chosen | 1 << i]
    used = (n * math.log2(total / size) for n, size in zip(exactly, sizes, strict=True) if n)
    return round(math.fsum(used) / total, DIGITS)
