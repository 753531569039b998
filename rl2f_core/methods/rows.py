"""Rows from token streams: which tokens carry which weight. Pure functions.

A dialogue has one row for each of its streams: one where it only grew, one a turn where turns had fresh prompts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from rl2f_core.types import Rollout, Sample, Weighting


def policy_rows(rollout: Rollout, advantages: Sequence[float], *, kl: bool) -> list[Sample]:
    """All of a dialogue: rl weight 1 on every student token, its turn's advantage; the rest is context.

    Args:
        rollout: A dialogue the trained policy played.
        advantages: One a turn.
        kl: Also give the student's tokens kl weight 1.
    """
    rows = []
    for stream in rollout.streams:
        if not any(stream.student):
            continue
        student = [float(s) for s in stream.student]
        zeros = [0.0] * len(student)
        rows.append(
            Sample(
                token_ids=stream.token_ids,
                sampled=stream.student,
                logprobs=stream.logprobs,
                advantages=[advantages[k] if s else 0.0 for s, k in zip(stream.student, stream.turn, strict=True)],
                rl=student,
                ce=zeros,
                kl=student if kl else zeros,
                dialogue=rollout.dialogue.id,
            )
        )
    return rows


def imitation_rows(rollout: Rollout, turns: Collection[int]) -> list[Sample]:
    """ce weight 1 on the student's tokens of the given turns; no row where a stream has none of them."""
    rows = []
    for stream in rollout.streams:
        ce = [float(s and k in turns) for s, k in zip(stream.student, stream.turn, strict=True)]
        if any(ce):
            rows.append(_told(stream.token_ids, ce, rollout.dialogue.id))
    return rows


def distilled_row(
    rollout: Rollout, turn: int, advantage: float, *, weight: float, weighting: Weighting, floor: float | None
) -> Sample:
    """A later attempt as an answer to the bare problem, x_0 → y_k, with rl weight on the attempt's tokens as sampled.

    Args:
        rollout: A dialogue the trained policy played; the log-probabilities are those under the prompt of turn k.
        turn: k ≥ 1.
        advantage: Of the attempt.
        weight: rl weight of each token.
        weighting: See `Sample.weighting`.
        floor: See `Sample.floor`.
    """
    opening, (said, logprobs) = _opening(rollout), _said(rollout, turn)
    before, n = [0.0] * len(opening), len(said)
    zeros = [0.0] * (len(opening) + n)
    return Sample(
        token_ids=(*opening, *said),
        sampled=[False] * len(opening) + [True] * n,
        logprobs=[*before, *logprobs],
        advantages=before + [advantage] * n,
        rl=before + [weight] * n,
        ce=zeros,
        kl=zeros,
        dialogue=rollout.dialogue.id,
        weighting=weighting,
        floor=floor,
        foreign=True,
    )


def answer_row(rollout: Rollout, turn: int) -> Sample:
    """A later attempt as an answer to the bare problem, x_0 → y_k, with ce weight 1 on the attempt's tokens."""
    return told_row(_opening(rollout), _said(rollout, turn)[0], rollout.dialogue.id)


def told_row(context: Sequence[int], words: Sequence[int], dialogue: str) -> Sample:
    """ce weight 1 on `words` after `context`."""
    return _told((*context, *words), [0.0] * len(context) + [1.0] * len(words), dialogue)


def _opening(rollout: Rollout) -> tuple[int, ...]:
    """Tokens of the first prompt, x_0."""
    stream = rollout.streams[0]
    return stream.token_ids[: stream.student.index(True)]


def _said(rollout: Rollout, turn: int) -> tuple[list[int], list[float]]:
    """Tokens of an attempt as they were sampled, and their log-probabilities under the prompt that asked for it."""
    held = [
        (token, logprob)
        for stream in rollout.streams
        for token, logprob, student, k in zip(
            stream.token_ids, stream.logprobs, stream.student, stream.turn, strict=True
        )
        if student and k == turn
    ]
    return [token for token, _ in held], [logprob for _, logprob in held]


def _told(token_ids: Sequence[int], ce: Sequence[float], dialogue: str) -> Sample:
    """A row of words that somebody gave: cross-entropy alone."""
    zeros = [0.0] * len(token_ids)
    return Sample(token_ids, [False] * len(zeros), zeros, zeros, zeros, ce, zeros, dialogue=dialogue)


def reward_row(
    rollout: Rollout, gamma: float, turn_gamma: float, baselines: Sequence[float] | None = None, *, kl: bool = False
) -> Sample:
    """The whole dialogue as one row whose student tokens carry rewards, to be credited with the whole batch.

    Args:
        rollout: A dialogue of one stream that the trained policy played; the reward of a turn stands on its last token.
        gamma: Discount from a token to the next.
        turn_gamma: A further discount from the last token of a turn to the first of the next.
        baselines: One a turn, subtracted from the returns of its tokens; None subtracts nothing.
        kl: Also give the student's tokens kl weight 1.
    """
    stream, turns = rollout.streams[0], rollout.dialogue.turns
    (row,) = policy_rows(rollout, [-b for b in baselines] if baselines else [0.0] * len(turns), kl=kl)
    rewards, discounts = [0.0] * len(row.token_ids), [gamma * s for s in row.rl]
    for turn in turns:
        tokens = [i for i, (s, k) in enumerate(zip(stream.student, stream.turn, strict=True)) if s and k == turn.index]
        if tokens:
            rewards[tokens[-1]] = turn.reward
            discounts[tokens[-1]] = gamma * turn_gamma
    return dataclasses.replace(row, rewards=rewards, discounts=discounts)


def turn_means(rollout: Rollout, row: Sample) -> list[float]:
    """The mean advantage of each turn's tokens in a row that lies along the dialogue; 0 for a turn without tokens."""
    stream = rollout.streams[0]
    sums = [[0.0, 0] for _ in rollout.dialogue.turns]
    for i, weight in enumerate(row.rl):
        if weight:
            held = sums[stream.turn[i]]
            held[0], held[1] = held[0] + row.advantages[i], held[1] + 1
    return [total / max(1, count) for total, count in sums]


def attempt_row(
    rollout: Rollout, turn: int, advantage: float, *, rl: bool, kl: float, context: Sequence[int]
) -> Sample:
    """The first stream as a row where one of its attempts carries weight, and whose reference reads another beginning.

    Args:
        rollout: A dialogue the trained policy played.
        turn: Number of the attempt.
        advantage: Of its tokens.
        rl: Give its tokens rl weight 1.
        kl: Their kl weight; 0 for none.
        context: What the reference reads before the attempt; empty where `kl` is 0.
    """
    stream = rollout.streams[0]
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
