"""Rows from token streams: which tokens carry which weight. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rl2f_core.types import Rollout, Sample


def policy_row(rollout: Rollout, advantages: Sequence[float], *, kl: bool) -> Sample:
    """The whole dialogue as one row: rl weight 1 on every student token, its turn's advantage; the rest is context.

    Args:
        rollout: A dialogue the trained policy played.
        advantages: One a turn.
        kl: Also give the student's tokens kl weight 1.
    """
    stream = rollout.stream
    student = [float(s) for s in stream.student]
    return Sample(
        token_ids=stream.token_ids,
        sampled=stream.student,
        logprobs=stream.logprobs,
        advantages=[advantages[k] if s else 0.0 for s, k in zip(stream.student, stream.turn, strict=True)],
        rl=student,
        ce=[0.0] * len(student),
        kl=student if kl else [0.0] * len(student),
        dialogue=rollout.dialogue.id,
    )


def imitation_row(rollout: Rollout, turns: Sequence[int]) -> Sample:
    """The dialogue as one row with ce weight 1 on the student's tokens of the given turns."""
    stream = rollout.stream
    wanted = set(turns)
    zeros = [0.0] * len(stream.token_ids)
    return Sample(
        token_ids=stream.token_ids,
        sampled=[False] * len(zeros),
        logprobs=zeros,
        advantages=zeros,
        rl=zeros,
        ce=[float(s and k in wanted) for s, k in zip(stream.student, stream.turn, strict=True)],
        kl=zeros,
        dialogue=rollout.dialogue.id,
    )


def reward_row(
    rollout: Rollout, gamma: float, turn_gamma: float, baselines: Sequence[float] | None = None, *, kl: bool = False
) -> Sample:
    """The whole dialogue as one row whose student tokens carry rewards, to be credited with the whole batch.

    Args:
        rollout: A dialogue the trained policy played; the reward of a turn stands on its last token.
        gamma: Discount from a token to the next.
        turn_gamma: A further discount from the last token of a turn to the first of the next.
        baselines: One a turn, subtracted from the returns of its tokens; None subtracts nothing.
        kl: Also give the student's tokens kl weight 1.
    """
    stream, turns = rollout.stream, rollout.dialogue.turns
    row = policy_row(rollout, [-b for b in baselines] if baselines else [0.0] * len(turns), kl=kl)
    rewards, discounts = [0.0] * len(row.token_ids), [gamma * s for s in row.rl]
    for turn in turns:
        tokens = [i for i, (s, k) in enumerate(zip(stream.student, stream.turn, strict=True)) if s and k == turn.index]
        if tokens:
            rewards[tokens[-1]] = turn.reward
            discounts[tokens[-1]] = gamma * turn_gamma
    return dataclasses.replace(row, rewards=rewards, discounts=discounts)


def turn_means(rollout: Rollout, row: Sample) -> list[float]:
    """The mean advantage of each turn's tokens in a row that lies along the dialogue; 0 for a turn without tokens."""
    stream = rollout.stream
    sums = [[0.0, 0] for _ in rollout.dialogue.turns]
    for i, weight in enumerate(row.rl):
        if weight:
            held = sums[stream.turn[i]]
            held[0], held[1] = held[0] + row.advantages[i], held[1] + 1
    return [total / max(1, count) for total, count in sums]


def attempt_row(
    rollout: Rollout, turn: int, advantage: float, *, rl: bool, kl: float, context: Sequence[int]
) -> Sample:
    """The dialogue as a row where one attempt alone carries weight, and whose reference reads another beginning.

    Args:
        rollout: A dialogue the trained policy played.
        turn: Number of the attempt.
        advantage: Of its tokens.
        rl: Give its tokens rl weight 1.
        kl: Their kl weight; 0 for none.
        context: What the reference reads before the attempt; empty where `kl` is 0.
    """
    stream = rollout.stream
    own = [float(s and k == turn) for s, k in zip(stream.student, stream.turn, strict=True)]
    zeros = [0.0] * len(own)
    return Sample(
        token_ids=stream.token_ids,
        sampled=stream.student,
        logprobs=stream.logprobs,
        advantages=[advantage * w for w in own],
        rl=own if rl else zeros,
        ce=zeros,
        kl=[kl * w for w in own],
        context=tuple(context) or None,
        dialogue=rollout.dialogue.id,
    )
