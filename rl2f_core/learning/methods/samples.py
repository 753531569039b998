"""Training samples from token sequences: which token has which weight, as pure functions.

A dialogue has one sample per token sequence: one in `append` mode, one per turn in `reprompt` mode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from rl2f_core.types import PolicyLoss, Rollout, TokenRewards, TokenSequence, TrainingSample


def turn_mask(sequence: TokenSequence, turn: int) -> list[bool]:
    """Return which tokens of a sequence the student generated in a turn."""
    return [s and k == turn for s, k in zip(sequence.student_mask, sequence.turn_ids, strict=True)]


def unweighted_sample(token_ids: Sequence[int], dialogue: str) -> TrainingSample:
    """Return a sample whose tokens the policy did not sample and have no weight."""
    zeros = [0.0] * len(token_ids)
    return TrainingSample(token_ids, [False] * len(zeros), zeros, zeros, zeros, zeros, zeros, dialogue=dialogue)


def policy_samples(rollout: Rollout, advantages: Sequence[float], *, kl: bool) -> list[TrainingSample]:
    """Return the samples of a dialogue with rl weight 1 on every student token; other tokens are context.

    `advantages` has one number per turn. With `kl` the student's tokens also have kl weight 1.
    """
    samples = []
    for sequence in rollout.sequences:
        mask = sequence.student_mask
        if not any(mask):
            continue
        sample = dataclasses.replace(
            unweighted_sample(sequence.token_ids, rollout.dialogue.id),
            policy_mask=mask,
            logprobs=sequence.logprobs,
            advantages=[advantages[k] if s else 0.0 for s, k in zip(mask, sequence.turn_ids, strict=True)],
            rl_weights=[float(s) for s in mask],
            allowed_tokens=sequence.allowed_tokens,
        )
        samples.append(dataclasses.replace(sample, kl_weights=sample.rl_weights) if kl else sample)
    return samples


def sft_samples(rollout: Rollout, turns: Collection[int]) -> list[TrainingSample]:
    """Return samples with ce weight 1 on the student's tokens of the given turns, if there are any."""
    samples = []
    for sequence in rollout.sequences:
        ce = [float(s and k in turns) for s, k in zip(sequence.student_mask, sequence.turn_ids, strict=True)]
        if any(ce):
            samples.append(
                dataclasses.replace(unweighted_sample(sequence.token_ids, rollout.dialogue.id), ce_weights=ce)
            )
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

    The logprobs are those under the prompt of `turn`, k ≥ 1.
    """
    token_ids, logprobs = _attempt(rollout, turn)
    return off_context_sample(
        *(_initial_prompt(rollout), token_ids, logprobs, rollout.dialogue.id),
        advantage=advantage, weight=weight, policy_loss=policy_loss, min_logprob=min_logprob,
    )  # fmt: skip


def off_context_sample(
    prompt_ids: Sequence[int],
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    dialogue: str,
    *,
    advantage: float,
    weight: float = 1.0,
    policy_loss: PolicyLoss = "awr",
    min_logprob: float | None = None,
) -> TrainingSample:
    """Return `token_ids` after `prompt_ids` with rl weight on them; the policy loss awr needs no `logprobs`."""
    before, n = [0.0] * len(prompt_ids), len(token_ids)
    return dataclasses.replace(
        unweighted_sample((*prompt_ids, *token_ids), dialogue),
        policy_mask=[False] * len(prompt_ids) + [True] * n,
        logprobs=[*before, *logprobs],
        advantages=before + [advantage] * n,
        rl_weights=before + [weight] * n,
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
    return dataclasses.replace(unweighted_sample((*prompt_ids, *target_ids), dialogue), ce_weights=ce)


def token_reward_sample(
    rollout: Rollout, gamma: float, turn_gamma: float, baselines: Sequence[float], *, kl: bool
) -> TrainingSample:
    """Return a dialogue as one sample with token rewards, whose advantages need the whole batch.

    Args:
        rollout: A dialogue of the trained policy with one sequence. A turn's reward is at its last token.
        gamma: Discount from a token to the next.
        turn_gamma: Additional discount from the last token of a turn to the first of the next.
        baselines: One per turn, subtracted from its return: b_k − turn_gamma · b_{k+1} from its reward, which needs
            gamma 1 unless all are 0.
        kl: Whether the student's tokens also have kl weight 1.
    """
    sequence = rollout.sequences[0]
    (sample,) = policy_samples(rollout, [0.0] * len(baselines), kl=kl)
    rewards, discounts = [0.0] * len(sample.token_ids), [gamma * s for s in sample.rl_weights]
    for turn, baseline, following in zip(rollout.dialogue.turns, baselines, [*baselines[1:], 0.0], strict=True):
        last = max((i for i, in_turn in enumerate(turn_mask(sequence, turn.index)) if in_turn), default=None)
        if last is not None:
            rewards[last] = turn.reward - (baseline - turn_gamma * following)
            discounts[last] = gamma * turn_gamma
    return dataclasses.replace(sample, token_rewards=TokenRewards(rewards, discounts))


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

    Its tokens have rl weight 1 with `rl`, and `kl` as kl weight. `reference_prompt_ids` is empty if `kl` is 0.
    """
    sequence = rollout.sequences[0]
    attempt = [float(in_turn) for in_turn in turn_mask(sequence, 0)]
    return dataclasses.replace(
        unweighted_sample(sequence.token_ids, rollout.dialogue.id),
        policy_mask=sequence.student_mask,
        logprobs=sequence.logprobs,
        advantages=[advantage * w for w in attempt],
        rl_weights=[float(rl) * w for w in attempt],
        kl_weights=[kl * w for w in attempt],
        reference_prompt_ids=tuple(reference_prompt_ids) or None,
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
