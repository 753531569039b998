"""Rows from token streams: which tokens carry which weight. Pure functions."""

from __future__ import annotations

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
