"""Training samples from token sequences: which token has which weight, as pure functions.

A dialogue has one sample per token sequence: one in `append` mode, one per turn in `reprompt` mode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from rl2f_core.types import PolicyLoss, Rollout, TokenSequence, TrainingSample


def turn_mask(sequence: TokenSequence, turn: int) -> list[bool]:
    """Return which tokens of a sequence the student generated in a turn."""
    return [s and k == turn for s, k in zip(sequence.student_mask, sequence.turn_ids, strict=True)]


def policy_samples(rollout: Rollout, advantages: Sequence[float], *, kl: bool) -> list[TrainingSample]:
    """Return the samples of a dialogue with rl weight 1 on every student token; other tokens are context.

    Args:
        rollout: A dialogue of the trained policy.
        advantages: One per turn.
        kl: Whether the student's tokens also have kl weight 1.
    """
    samples = []
    for sequence in rollout.sequences:
        if not any(sequence.student_mask):
            continue
        student = [float(s) for s in sequence.student_mask]
        zeros = [0.0] * len(student)
        samples.append(
            TrainingSample(
                token_ids=sequence.token_ids,
                policy_mask=sequence.student_mask,
                logprobs=sequence.logprobs,
                advantages=[
                    advantages[k] if s else 0.0 for s, k in zip(sequence.student_mask, sequence.turn_ids, strict=True)
                ],
                rl_weights=student,
                ce_weights=zeros,
                kl_weights=student if kl else zeros,
                dialogue=rollout.dialogue.id,
            )
        )
    return samples


def sft_samples(rollout: Rollout, turns: Collection[int]) -> list[TrainingSample]:
    """Return samples with ce weight 1 on the student's tokens of the given turns, if there are any."""
    samples = []
    for sequence in rollout.sequences:
        ce = [float(s and k in turns) for s, k in zip(sequence.student_mask, sequence.turn_ids, strict=True)]
        if any(ce):
            samples.append(_ce_sample(sequence.token_ids, ce, rollout.dialogue.id))
    return samples


def revision_distillation_sample(
    rollout: Rollout,
    turn: int,
    advantage: float,
    *,
    weight: float,
    policy_loss: PolicyLoss,
    min_logprob: float | None,
) -> TrainingSample:
    """Return a later attempt as an answer to the bare problem, x_0 → y_k, with rl weight on its tokens.

    Args:
        rollout: A dialogue of the trained policy; the logprobs are those under the prompt of turn k.
        turn: k ≥ 1.
        advantage: Advantage of the attempt.
        weight: rl weight of each token.
        policy_loss: See `TrainingSample.policy_loss`.
        min_logprob: See `TrainingSample.min_logprob`.
    """
    prompt_ids, (token_ids, logprobs) = _initial_prompt(rollout), _attempt(rollout, turn)
    before, n = [0.0] * len(prompt_ids), len(token_ids)
    zeros = [0.0] * (len(prompt_ids) + n)
    return TrainingSample(
        token_ids=(*prompt_ids, *token_ids),
        policy_mask=[False] * len(prompt_ids) + [True] * n,
        logprobs=[*before, *logprobs],
        advantages=before + [advantage] * n,
        rl_weights=before + [weight] * n,
        ce_weights=zeros,
        kl_weights=zeros,
        dialogue=rollout.dialogue.id,
        policy_loss=policy_loss,
        min_logprob=min_logprob,
        off_context=True,
    )


def revision_sft_sample(rollout: Rollout, turn: int) -> TrainingSample:
    """Return a later attempt as an answer to the bare problem, x_0 → y_k, with ce weight 1 on its tokens."""
    return sft_sample(_initial_prompt(rollout), _attempt(rollout, turn)[0], rollout.dialogue.id)


def sft_sample(prompt_ids: Sequence[int], target_ids: Sequence[int], dialogue: str) -> TrainingSample:
    """Return a sample with ce weight 1 on `target_ids` after `prompt_ids`."""
    ce = [0.0] * len(prompt_ids) + [1.0] * len(target_ids)
    return _ce_sample((*prompt_ids, *target_ids), ce, dialogue)


def token_reward_sample(
    rollout: Rollout, gamma: float, turn_gamma: float, baselines: Sequence[float] | None = None, *, kl: bool = False
) -> TrainingSample:
    """Return a dialogue as one sample with token rewards, whose advantages need the whole batch.

    Args:
        rollout: A dialogue of the trained policy with one sequence. A turn's reward is at its last token.
        gamma: Discount from a token to the next.
        turn_gamma: Additional discount from the last token of a turn to the first of the next.
        baselines: One per turn, subtracted from the returns of its tokens; None subtracts nothing.
        kl: Whether the student's tokens also have kl weight 1.
    """
    sequence, turns = rollout.sequences[0], rollout.dialogue.turns
    (sample,) = policy_samples(rollout, [-b for b in baselines] if baselines else [0.0] * len(turns), kl=kl)
    rewards, discounts = [0.0] * len(sample.token_ids), [gamma * s for s in sample.rl_weights]
    for turn in turns:
        last = max((i for i, in_turn in enumerate(turn_mask(sequence, turn.index)) if in_turn), default=None)
        if last is not None:
            rewards[last] = turn.reward
            discounts[last] = gamma * turn_gamma
    return dataclasses.replace(sample, token_rewards=rewards, token_discounts=discounts)


def mean_advantage_per_turn(rollout: Rollout, sample: TrainingSample) -> list[float]:
    """Return each turn's mean advantage in a sample of the whole dialogue; 0 for a turn without tokens."""
    totals, counts = ([0.0] * len(rollout.dialogue.turns) for _ in range(2))
    for turn, weight, advantage in zip(
        rollout.sequences[0].turn_ids, sample.rl_weights, sample.advantages, strict=True
    ):
        if weight:
            totals[turn] += advantage
            counts[turn] += 1
    return [total / max(1, count) for total, count in zip(totals, counts, strict=True)]


def first_attempt_sample(
    rollout: Rollout, advantage: float, *, rl: bool, kl: float, reference_prompt_ids: Sequence[int]
) -> TrainingSample:
    """Return the first sequence with weight on its first attempt, to compare with a reference under another prompt.

    Args:
        rollout: A dialogue of the trained policy.
        advantage: Advantage of the attempt.
        rl: Whether its tokens have rl weight 1.
        kl: Their kl weight; 0 for none.
        reference_prompt_ids: Prompt of the reference; empty if `kl` is 0.
    """
    sequence = rollout.sequences[0]
    attempt = [float(in_turn) for in_turn in turn_mask(sequence, 0)]
    zeros = [0.0] * len(attempt)
    return TrainingSample(
        token_ids=sequence.token_ids,
        policy_mask=sequence.student_mask,
        logprobs=sequence.logprobs,
        advantages=[advantage * w for w in attempt],
        rl_weights=attempt if rl else zeros,
        ce_weights=zeros,
        kl_weights=[kl * w for w in attempt],
        reference_prompt_ids=tuple(reference_prompt_ids) or None,
        dialogue=rollout.dialogue.id,
    )


def _initial_prompt(rollout: Rollout) -> tuple[int, ...]:
    """Return the tokens of the first prompt, x_0."""
    sequence = rollout.sequences[0]
    return sequence.token_ids[: sequence.student_mask.index(True)]


def _attempt(rollout: Rollout, turn: int) -> tuple[list[int], list[float]]:
    """Return the tokens of an attempt and their logprobs under the prompt that they were sampled from."""
    pairs = [
        (token, logprob)
        for sequence in rollout.sequences
        for token, logprob, in_turn in zip(
            sequence.token_ids, sequence.logprobs, turn_mask(sequence, turn), strict=True
        )
        if in_turn
    ]
    return [token for token, _ in pairs], [logprob for _, logprob in pairs]


def _ce_sample(token_ids: Sequence[int], ce: Sequence[float], dialogue: str) -> TrainingSample:
    zeros = [0.0] * len(token_ids)
    return TrainingSample(token_ids, [False] * len(zeros), zeros, zeros, zeros, ce, zeros, dialogue=dialogue)
