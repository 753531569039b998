"""Losses, advantages and their metrics, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from two_tokens import set_logit, two_token_learner

from rl2f_core.learning.learner.losses import LossConfig, LossNormalizers, TokenBatch, loss
from rl2f_core.types import POLICY_LOSSES, TokenRewards, TrainingSample, ValueTargets


def row(token: int, **columns: Any) -> TrainingSample:
    """Fifteen tokens of context and one sampled token, with weights and numbers for the latter alone."""
    zeros = [0.0] * 16
    names = {f"{term}_weights": term for term in ("rl", "ce", "kl")} | {
        "logprobs": "logprob",
        "advantages": "advantage",
    }
    sample = TrainingSample([40] * 15 + [token], [False] * 15 + [True], zeros, zeros, zeros, zeros, zeros)
    at_last = {name: [*zeros[:15], columns.pop(short)] for name, short in names.items() if short in columns}
    return replace(sample, **at_last, **columns)


# -- a minibatch in parts --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("micro_batch_tokens", [1024, 16], ids=["together", "a row each"])
@pytest.mark.parametrize("form", ["k3", "sampled_token", "full_logits", "topk_logits"])
def test_only_some_micro_batches_have_a_kl_term(tiny: Path, form: str, micro_batch_tokens: int) -> None:
    learner, options, stage = two_token_learner(tiny, "base", form, log(3))  # the reference has (3/4, 1/4)
    learner.begin_stage(options, stage)
    set_logit(learner, 0.0)  # the policy has (1/2, 1/2)
    rows = [row(100, kl=1.0), row(100, rl=1.0, advantage=-1.0, logprob=log(0.5)), row(101, ce=1.0)]
    now = stage.model_copy(update={"micro_batch_tokens": micro_batch_tokens}).resolve(0, 1.0)
    found = learner.update(rows, options, now)
    kl = {"k3": 1.5 - 1 - log(1.5), "sampled_token": log(0.5 / 0.75) * log(0.5)}
    exact = 0.5 * log(0.5 / 0.75) + 0.5 * log(0.5 / 0.25)
    # −ρA = 1 and −log π = log 2
    assert found["loss"] == pytest.approx(1 + log(2) + kl.get(form, exact), abs=1e-4)
    assert found["kl"] == pytest.approx({"k3": kl["k3"], "sampled_token": log(0.5 / 0.75)}.get(form, exact), abs=1e-4)


# -- metrics of the ratio --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("policy_loss", "ratio", "advantage", "clipped"),
    [
        ("ppo", 0.5, 1.0, 0), ("ppo", 1.5, -1.0, 0), ("ppo", 0.5, -1.0, 1), ("ppo", 1.5, 1.0, 1),
        ("ppo", 1.1, 1.0, 0), ("ppo", 0.5, 0.0, 0), ("ppo", 1.5, 0.0, 0),
        ("cispo", 0.5, 1.0, 1), ("cispo", 1.5, -1.0, 1), ("cispo", 1.1, 1.0, 0), ("cispo", 1.5, 0.0, 0),
        ("importance_sampling", 1.5, 1.0, 0), ("awr", 0.5, -1.0, 0),
    ],
)  # fmt: skip
def test_tokens_count_as_clipped_only_if_the_clip_changes_their_objective(
    policy_loss: Any, ratio: float, advantage: float, clipped: int
) -> None:
    one, zero, code = torch.ones(1), torch.zeros(1), torch.tensor([POLICY_LOSSES.index(policy_loss)])
    batch = TokenBatch(-one, advantage * one, one, zero, zero, policy_loss_N=code)
    logp_N = (log(ratio) - one).requires_grad_()
    total, sums = loss(logp_N, batch, LossNormalizers(1, 0, 0), LossConfig(epsilon=0.2, epsilon_high=0.2))
    total.backward()
    assert sums["clipped"] == clipped
    if policy_loss == "ppo" and advantage:
        assert logp_N.grad is not None and bool(logp_N.grad == 0) == clipped
    plain = loss(logp_N, replace(batch, policy_loss_N=None), LossNormalizers(1, 0, 0), LossConfig())[1]
    assert policy_loss != "ppo" or plain["clipped"] == clipped


def test_ratios_of_tokens_without_advantage_start_at_one_under_truncated_importance_sampling(tiny: Path) -> None:
    """The sampler has probability 1/4 and the learner 1/2: a ratio of 2, which is not one of π and π_old."""
    learner, options, stage = two_token_learner(tiny, "base", "k3", log(3))
    learner.begin_stage(options, stage)
    set_logit(learner, 0.0)
    rows = [row(100, rl=1.0, kl=1.0, advantage=a, logprob=log(0.25)) for a in (1.0, 0.0)]
    now = stage.model_copy(update={"importance_sampling_clip_max": 3.0, "learning_rate": 1e-12}).resolve(0, 1.0)
    found = learner.update(rows, options, now)
    assert (found["ratio/mean"], found["approx_kl"]) == pytest.approx((1, 0), abs=1e-5)
    assert found["sampling/kl"] == pytest.approx(2 - 1 - log(2), abs=1e-5)
    # −(2 · 1 + 0) / 2 + k3 with the reference 3/4
    assert found["loss"] == pytest.approx(-1 + 1.5 - 1 - log(1.5), abs=1e-4)


# -- updates without gradient ----------------------------------------------------------------------------------------
def test_token_rewards_without_advantage_make_no_update(tiny: Path) -> None:
    """After an update Adam's momentum would move the weights; the target of a value head is a gradient."""
    learner, _, stage = two_token_learner(tiny, "base", "k3", 0.0)
    options, now = LossConfig(), stage.resolve(0, 1.0)
    learner.begin_stage(options, stage)
    learner.update([row(100, rl=1.0, advantage=1.0, logprob=log(0.5))], options, now)
    before, zeros = learner.snapshot(), [0.0] * 16
    equal = row(100, rl=1.0, logprob=log(0.5), token_rewards=TokenRewards(zeros, zeros))
    assert learner.update([equal], options, now)["optimizer_updates"] == 0
    assert all(torch.equal(before[name], weights) for name, weights in learner.snapshot().items())
    assert options.trains(replace(equal, value_targets=ValueTargets(zeros, zeros)))


def test_masked_tokens_are_not_trained_tokens(tiny: Path) -> None:
    """Tokens have log ½ = −0.69, so a limit of −0.5 masks them and one of −1 does not."""
    learner, _, stage = two_token_learner(tiny, "base", "k3", 0.0)
    options, now = LossConfig(), stage.resolve(0, 1.0)
    learner.begin_stage(options, stage)
    masked, kept = (row(100, rl=1.0, advantage=1.0, policy_loss="awr", min_logprob=limit) for limit in (-0.5, -1.0))
    found = learner.update([masked, masked], options, now)
    assert (found["tokens/trained"], found["optimizer_updates"], found["off_context/masked_frac"]) == (0, 0, 1)
    learner, _, _ = two_token_learner(tiny, "base", "k3", 0.0)
    learner.begin_stage(options, stage)
    found = learner.update([masked, kept, row(100, rl=1.0, logprob=log(0.5))], options, now)
    assert (found["tokens/trained"], found["optimizer_updates"], found["off_context/masked_frac"]) == (1, 1, 0.5)
