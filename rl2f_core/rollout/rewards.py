"""The reward of a turn: a sum of named terms, each stored (methods.md §1)."""

from __future__ import annotations

from rl2f_core.config import RewardConfig
from rl2f_core.types import Hint, Reward, Verdict


def turn_rewards(
    config: RewardConfig, verdict: Verdict, before: Verdict | None = None, hint_before: Hint | None = None
) -> tuple[Reward, ...]:
    """The named terms of one attempt.

    Presets: `binary` is 1 if correct, else 0.  `format` is correct + 0.1 · (well-formed − 1): 1 / 0 / −0.1 (RLTF,
    arXiv 2602.02482).  `logic_rl` is well-formed ±1 plus right +2, wrong −1.5, unparsable −2 (arXiv 2502.14768); its
    answer term counts only inside a good format, so the totals are 3 / −0.5 / −1 / −3.

    `progress` is the fall of the distance since the last attempt, d_{k−1} − d_k, negative where it rose; an unparsable
    attempt counts as the farthest, 1.  Summed over a dialogue it telescopes, so it moves credit to the turn that
    earned it without paying for detours.  `repeat` is −1 where a wrong answer is given twice in a row.

    Args:
        config: Preset and weights.
        verdict: On this attempt.
        before: On the attempt before it; None at the first.
        hint_before: The hint that this attempt answers.
    """
    terms = _PRESETS[config.preset](verdict)
    if config.progress and before is not None and (verdict.distance is not None or before.distance is not None):
        terms.append(Reward(name="progress", score=_distance(before) - _distance(verdict), weight=config.progress))
    if config.repeat_penalty and before is not None and verdict.parsed is not None and not verdict.correct:
        repeated = verdict.parsed == before.parsed
        terms.append(Reward(name="repeat", score=-1.0 if repeated else 0.0, weight=config.repeat_penalty))
    if config.leak_penalty and hint_before is not None and hint_before.leak is not None and hint_before.leak.leaked:
        terms.append(Reward(name="leak_penalty", score=-1.0, weight=config.leak_penalty))
    return tuple(terms)


def _distance(verdict: Verdict) -> float:
    return 1.0 if verdict.distance is None else verdict.distance


def _binary(verdict: Verdict) -> list[Reward]:
    return [Reward(name="correct", score=float(verdict.correct))]


def _format(verdict: Verdict) -> list[Reward]:
    return [*_binary(verdict), Reward(name="format", score=float(verdict.well_formed) - 1.0, weight=0.1)]


def _logic_rl(verdict: Verdict) -> list[Reward]:
    good = verdict.well_formed
    answer = -2.0 if not good or verdict.parsed is None else 2.0 if verdict.correct else -1.5
    return [Reward(name="format", score=1.0 if good else -1.0), Reward(name="answer", score=answer)]


_PRESETS = {"binary": _binary, "format": _format, "logic_rl": _logic_rl}
