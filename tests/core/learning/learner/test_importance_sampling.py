"""Truncated importance sampling between sampler and learner. Numbers by hand."""

from __future__ import annotations

import dataclasses
from math import exp, log
from pathlib import Path

import pytest
import torch

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.learning.learner.importance_sampling import (
    needs_old_logprobs,
    sampler_mismatch,
    truncated_ratio,
    with_old_logprobs,
)
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig, loss
from rl2f_core.learning.learner.micro_batch import loss_normalizers, micro_batches
from rl2f_core.types import TrainingSample

CPU = torch.device("cpu")
STAGE = StageConfig(name="s", method="sft", steps=1, learning_rate=1e-9)
CORRECTED = STAGE.model_copy(update={"importance_sampling_clip_max": 2.0})


def row(
    logprobs: list[float], advantages: list[float], foreign: bool = False, floor: float | None = None
) -> TrainingSample:
    """Two prompt tokens, then sampled ones with μ's log-probabilities; the last of them carries no weight."""
    n = len(logprobs)
    zeros = [0.0] * (n + 2)
    return TrainingSample(
        [50, 60, *range(70, 70 + n)],
        [False, False, *[True] * n],
        [0, 0, *logprobs],
        [0, 0, *advantages],
        [0, 0, *[1.0] * (n - 1), 0.0],
        zeros,
        zeros,
        off_context=foreign,
        min_logprob=floor,
    )


def test_the_weight_is_the_ratio_of_learner_to_sampler_and_at_most_the_cap() -> None:
    assert truncated_ratio(log(0.3), log(0.2), 2.0) == pytest.approx(1.5)
    assert truncated_ratio(log(0.1), log(0.4), 2.0) == pytest.approx(0.25)
    assert truncated_ratio(log(0.5), log(0.2), 2.0) == 2.0 and truncated_ratio(
        log(0.5), log(0.2), None
    ) == pytest.approx(2.5)
    assert truncated_ratio(0.0, -2000.0, 3.0) == 3.0  # a ratio that overflows


def test_the_correction_weighs_advantages_and_lets_the_ratio_start_at_one() -> None:
    sampler = [log(0.2), log(0.4), log(0.2), log(0.9)]
    learner = [log(0.3), log(0.1), log(0.5)]
    held = with_old_logprobs(row(sampler, [1.0, -2.0, 1.0, 7.0]), learner, 2.0)
    # weights 1.5, 0.25 and min(2.5, 2); the last token has no rl weight and stays as it was
    assert held.advantages == pytest.approx([0, 0, 1.5, -0.5, 2.0, 7.0])
    assert held.logprobs == pytest.approx([0, 0, *learner, log(0.9)])
    assert held.rl_weights == [0, 0, 1, 1, 1, 0]
    plain = row(sampler, [1.0, -2.0, 1.0, 7.0])
    assert (
        with_old_logprobs(plain, learner) == plain and not needs_old_logprobs(plain) and needs_old_logprobs(plain, 2.0)
    )


def test_the_corrected_objective_is_the_weight_times_the_clipped_one() -> None:
    sampler, old, new = (
        [log(0.2), log(0.4), log(0.2), 0.0],
        [log(0.3), log(0.1), log(0.5)],
        [log(0.45), log(0.09), log(0.5)],
    )
    held = with_old_logprobs(row(sampler, [1.0, -2.0, 1.0, 0.0]), old, 2.0)
    (batch,) = micro_batches([held], 100, 0, CPU)
    logp_N = torch.tensor(new, requires_grad=True)
    found, sums = loss(logp_N, batch.tokens, loss_normalizers([held]), LossConfig())
    found.backward()
    # ρ = π / π_old: 1.5 (clipped to 1.2), 0.9, 1; weights 1.5, 0.25, 2: 1.5·1.2 + 0.25·(−2·0.9) + 2·1 = 3.35
    assert found.item() == pytest.approx(-3.35 / 3)
    # d/d log π is w·ρ·A where nothing is clipped: 0, 0.25·0.9·−2, 2
    assert logp_N.grad.tolist() == pytest.approx([0, 0.45 / 3, -2 / 3])  # type: ignore[union-attr]
    assert sums["ratio"] == pytest.approx(1.5 + 0.9 + 1)


def test_foreign_rows_are_not_corrected_and_the_mask_still_holds() -> None:
    told = row([-1.0, -1.0, -1.0], [1.0, 1.0, 1.0], foreign=True)
    assert not needs_old_logprobs(told, 2.0)
    masked = with_old_logprobs(row([-1.0, -1.0, -1.0], [1.0, 1.0, 1.0], floor=-5.0), [-0.5, -6.0], 2.0)
    assert masked.rl_weights == [0, 0, 1, 0, 0] and masked.advantages[2] == pytest.approx(exp(0.5))


def test_what_the_correction_found_is_measured_before_it_is_applied() -> None:
    corrected = row([log(0.2), log(0.4), log(0.2), 0.0], [1.0] * 4), [log(0.3), log(0.1), log(0.5)]
    off_context = row([-1.0, -1.0], [1.0] * 2, foreign=True), [-9.0]
    replayed = dataclasses.replace(row([-2.0, -2.0], [1.0] * 2), policy_loss="importance_sampling"), [-1.0]
    ratios = [1.5, 0.25, 2.5]
    assert sampler_mismatch([corrected, off_context, replayed], 2.0) == pytest.approx({
        "sampling/kl": sum(r - 1 - log(r) for r in ratios) / 3,
        "sampling/importance_sampling_ratio/mean": (1.5 + 0.25 + 2.0) / 3,
        "sampling/importance_sampling_ratio/truncated_frac": 1 / 3,
    })  # fmt: skip
    assert sampler_mismatch([], 2.0) == {}


def test_the_learner_corrects_by_its_own_log_probabilities_and_says_how_far_they_are_apart(tiny: Path) -> None:
    learner = Learner(tiny, LoraConfig(rank=4, alpha=8), dtype=torch.float32, device=CPU, banned=[0, 1], pad=2, seed=1)
    bare = row([0.0] * 4, [1.0, -2.0, 1.0, 0.0])
    (batch,) = micro_batches([bare], 100, 2, CPU)
    with torch.no_grad():
        old = learner.policy(batch, 0.8)[0].tolist()
    ratios, weights = [1.5, 0.25, 2.5], [1.5, 0.25, 2.0]
    sampled = row([*(logp - log(r) for logp, r in zip(old, ratios, strict=True)), 0.0], [1.0, -2.0, 1.0, 0.0])
    found = learner.update([sampled], LossConfig(), CORRECTED.resolve(0, 0.8))
    kl = sum(r - 1 - log(r) for r in ratios) / 3
    assert found["loss"] == pytest.approx(-(weights[0] - 2 * weights[1] + weights[2]) / 3, rel=1e-4)
    assert found["ratio/mean"] == pytest.approx(1, abs=1e-5) and found["sampling/kl"] == pytest.approx(kl, rel=1e-3)
    assert found["sampling/importance_sampling_ratio/mean"] == pytest.approx(sum(weights) / 3, rel=1e-4)
    assert "off_context/masked_frac" not in found
    # without the correction the same mismatch is in the ratio: min(ρA, clip(ρ)·A) = 1.2, −2·0.8, 1.2
    plain = learner.update([sampled], LossConfig(), STAGE.resolve(0, 0.8))
    assert plain["loss"] == pytest.approx(-(1.2 - 1.6 + 1.2) / 3, rel=1e-4)
    assert plain["approx_kl"] == pytest.approx(kl, rel=1e-3) and "sampling/importance_sampling_ratio/mean" not in plain
