"""Reward of a turn: a sum of named terms, each stored."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rl2f_core.config.rollout import RewardConfig
from rl2f_core.environments.base import Environment
from rl2f_core.errors import RunError
from rl2f_core.types import Hint, RewardTerm, StopReason, Task, Turn, Verdict

UNFINISHED = "unfinished"
"""Reward term of the last turn of an episode without an end."""


def turn_rewards(
    config: RewardConfig, verdict: Verdict, before: Verdict | None = None, hint_before: Hint | None = None
) -> tuple[RewardTerm, ...]:
    """Compute the reward terms of one attempt.

    Presets: `binary` is 1 if correct, otherwise 0. `format` is correct + 0.1 · (well-formed − 1): 1 / 0 / −0.1 (RLTF,
    arXiv 2602.02482). `logic_rl` is well-formed ±1 plus correct +2, incorrect −1.5, unparsable −2 (arXiv 2502.14768).
    Its answer term requires a good format, so the totals are 3 / −0.5 / −1 / −3. `environment` is the reward of the
    step in a stateful environment, or of the rubric in `verifiers`, with weight `environment_weight`.

    `progress` is the decrease of the distance since the last attempt, d_{k−1} − d_k; an unparsable attempt has
    distance 1. Its sum over a dialogue telescopes, so detours earn nothing. `repeat` is −1 for repeating an incorrect
    answer, but not for repeating an action in a stateful environment. `leak_penalty` is −1 if the student read a leak
    in the hint before; not if a leak action replaced the hint.
    `before` and `hint_before` are the verdict and hint on the previous attempt, if any.
    """
    if config.preset == "environment":
        terms = [RewardTerm(name="environment", score=verdict.reward or 0.0, weight=config.environment_weight)]
    else:
        terms = _PRESETS[config.preset](verdict)
    if config.progress_weight and before is not None and (verdict.distance is not None or before.distance is not None):
        terms.append(
            RewardTerm(name="progress", score=_distance(before) - _distance(verdict), weight=config.progress_weight)
        )
    if config.repeat_answer_penalty and before is not None and verdict.parsed is not None and not verdict.correct:
        repeated = verdict.parsed == before.parsed and verdict.observation is None
        terms.append(RewardTerm(name="repeat", score=-1.0 if repeated else 0.0, weight=config.repeat_answer_penalty))
    if config.leak_penalty and hint_before is not None and hint_before.read_leak:
        terms.append(RewardTerm(name="leak_penalty", score=-1.0, weight=config.leak_penalty))
    return tuple(terms)


def charge_unfinished(
    environment: Environment, task: Task, turns: Sequence[Turn], stop: StopReason
) -> tuple[Turn, ...]:
    """Return a dialogue's turns with `Environment.unfinished_reward` at the last one, if the episode did not end.

    Only preset `environment` has the term, with its weight. A continued dialogue loses the term of its earlier end.
    Raises `RunError` if it is not finite.
    """
    result = [turn.model_copy(update={"rewards": tuple(t for t in turn.rewards if t.name != UNFINISHED)})
              for turn in turns]  # fmt: skip
    weights = [term.weight for turn in result[-1:] for term in turn.rewards if term.name == "environment"]
    score = environment.unfinished_reward(task)
    if score and weights and stop in (StopReason.EXHAUSTED, StopReason.CONTEXT_FULL):
        if not math.isfinite(score):
            name = type(environment).__name__
            fix = "Return a finite reward."
            raise RunError(f"{name}.unfinished_reward is not a finite number.", value=score, fix=fix)
        term = RewardTerm(name=UNFINISHED, score=score, weight=weights[0])
        result[-1] = result[-1].model_copy(update={"rewards": (*result[-1].rewards, term)})
    return tuple(result)


def _distance(verdict: Verdict) -> float:
    return 1.0 if verdict.distance is None else verdict.distance


def _binary(verdict: Verdict) -> list[RewardTerm]:
    return [RewardTerm(name="correct", score=float(bool(verdict.correct)))]


def _format(verdict: Verdict) -> list[RewardTerm]:
    return [*_binary(verdict), RewardTerm(name="format", score=float(verdict.well_formed) - 1.0, weight=0.1)]


def _logic_rl(verdict: Verdict) -> list[RewardTerm]:
    good = verdict.well_formed
    answer = -2.0 if not good or verdict.parsed is None else 2.0 if verdict.correct else -1.5
    return [RewardTerm(name="format", score=1.0 if good else -1.0), RewardTerm(name="answer", score=answer)]


_PRESETS = {"binary": _binary, "format": _format, "logic_rl": _logic_rl}
