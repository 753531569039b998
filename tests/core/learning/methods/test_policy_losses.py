"""How a row weighs its tokens by their ratio, the mask of the unlikely, and recomputed behaviour. Numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.learning.learner.importance_sampling import needs_old_logprobs, recompute_old_logprobs, with_old_logprobs
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig, LossNormalizers, TokenBatch, loss, policy_objective
from rl2f_core.learning.learner.micro_batch import loss_normalizers, micro_batches, minibatches
from rl2f_core.learning.learner.scoring import Scorer
from rl2f_core.types import POLICY_LOSSES, PolicyLoss, TrainingSample

STAGE = StageConfig(name="s", method="sft", steps=10, learning_rate=1e-12)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one(weighting: str, ratio: float, advantage: float) -> tuple[float, float]:
    """Objective and its slope in log π at one token with log π = log ½."""
    logp = tensor(log(0.5)).requires_grad_()
    batch = TokenBatch(tensor(log(0.5 / ratio)), tensor(advantage), tensor(1), tensor(0), tensor(0),
                       policy_loss_N=torch.tensor([POLICY_LOSSES.index(weighting)]))  # type: ignore[arg-type] # fmt: skip
    value = policy_objective(logp, batch, LossConfig(epsilon=0.2, epsilon_high=0.3))
    value.sum().backward()
    assert logp.grad is not None
    return value.item(), logp.grad.item()


@pytest.mark.parametrize(
    ("weighting", "ratio", "advantage", "value", "slope"),
    [
        ("ppo", 2.0, +1, 1.3, 0), ("ppo", 2.0, -1, -2.0, -2.0), ("ppo", 0.5, -1, -0.8, 0), ("ppo", 0.5, +1, 0.5, 0.5),
        ("importance_sampling", 2.0, +1, 2.0, 2.0), ("importance_sampling", 2.0, -1, -2.0, -2.0),
        ("importance_sampling", 0.5, -1, -0.5, -0.5),
        # the clipped ratio is a constant: the value is ρ'·A·log ½ and the slope ρ'·A on both sides of the clip
        ("cispo", 2.0, +1, 1.3 * log(0.5), 1.3), ("cispo", 0.5, -1, -0.8 * log(0.5), -0.8),
        ("cispo", 1.1, +2, 2.2 * log(0.5), 2.2),
        ("awr", 1.0, +1, 1.0, 1.0), ("awr", 2.0, -3, -6.0, -6.0),
    ],
)  # fmt: skip
def test_each_weighting_by_hand(weighting: str, ratio: float, advantage: float, value: float, slope: float):
    assert one(weighting, ratio, advantage) == pytest.approx((value, slope))


def test_tokens_of_different_weightings_share_one_mean_and_do_not_touch_each_other():
    logp = tensor(log(0.5), log(0.5), log(0.5), log(0.5)).requires_grad_()
    codes = torch.tensor([POLICY_LOSSES.index(w) for w in ("ppo", "importance_sampling", "cispo", "awr")])
    batch = TokenBatch(tensor(*[log(0.25)] * 4), tensor(1, 1, 1, 1), tensor(1, 1, 1, 0.5), *[tensor(0, 0, 0, 0)] * 2,
                       policy_loss_N=codes)  # fmt: skip
    total, _ = loss(logp, batch, LossNormalizers(3.5, 0, 0), LossConfig())
    total.backward()
    # ρ 2: min(2, 1.2) + 2 + 1.2·log ½ + ½·2, over 3.5
    assert total.item() == pytest.approx(-(1.2 + 2 + 1.2 * log(0.5) + 1) / 3.5)
    assert logp.grad is not None and logp.grad.tolist() == pytest.approx([0, -2 / 3.5, -1.2 / 3.5, -1 / 3.5])


def test_a_ratio_that_overflows_where_the_clip_holds_it_leaves_the_other_gradients_finite():
    logp = torch.tensor([0.0, -1.0], requires_grad=True)
    codes = torch.tensor([POLICY_LOSSES.index(w) for w in ("cispo", "importance_sampling")])
    ones, zeros = torch.ones(2), torch.zeros(2)
    batch = TokenBatch(torch.tensor([-200.0, -1.0]), ones, ones, zeros, zeros, policy_loss_N=codes)
    policy_objective(logp, batch, LossConfig()).sum().backward()
    assert logp.grad is not None and logp.grad.tolist() == pytest.approx([1.2, 1.0])


def test_ratios_of_foreign_tokens_are_counted_apart():
    batch = TokenBatch(tensor(log(0.5), log(0.125)), tensor(1, 1), tensor(1, 1), *[tensor(0, 0)] * 2,
                       policy_loss_N=torch.tensor([0, 0]), off_context_N=torch.tensor([False, True]))  # fmt: skip
    _, sums = loss(tensor(log(0.5), log(0.5)), batch, LossNormalizers(2, 0, 0), LossConfig())
    assert (sums["ratio"], sums["off_ratio"]) == (pytest.approx(1), pytest.approx(4))
    assert (sums["clipped"], sums["off_clipped"], sums["weight"], sums["off_weight"]) == (0, 1, 1, 1)
    assert sums["mismatch"] == pytest.approx(0) and sums["off_mismatch"] == pytest.approx(3 - log(4))


# -- before the update -------------------------------------------------------------------------------------------
def row(weighting: PolicyLoss = "ppo", floor: float | None = None, **changes: Any) -> TrainingSample:
    """x_0 = 50 60, then three sampled tokens with behaviour −1, −2, −3, advantage 1 and weight ½."""
    zeros = [0.0] * 5
    ids, sampled = [50, 60, 70, 80, 90], [False, False, True, True, True]
    return TrainingSample(ids, sampled, [0, 0, -1, -2, -3], [0, 0, 1, 1, 1], [0, 0, 0.5, 0.5, 0.5], zeros, zeros,
                  policy_loss=weighting, min_logprob=floor, off_context=True, **changes)  # fmt: skip


@pytest.mark.parametrize("weighting", POLICY_LOSSES)
def test_the_mask_drops_what_the_policy_finds_too_unlikely_under_every_weighting(weighting: PolicyLoss):
    masked = with_old_logprobs(row(weighting, floor=-5.0), [-4.9, -5.1, -5.0])
    assert list(masked.rl_weights) == [0, 0, 0.5, 0, 0.5] and loss_normalizers([masked]).rl == 1.0
    kept = [0, 0, -4.9, -5.1, -5.0] if weighting == "awr" else [0, 0, -1, -2, -3]
    assert list(masked.logprobs) == kept
    assert list(with_old_logprobs(row(weighting), [-4.9, -50, -5.0]).rl_weights) == [0, 0, 0.5, 0.5, 0.5]


def test_only_rows_that_need_it_are_read_before_the_update():
    assert [needs_old_logprobs(row(w)) for w in get_args(PolicyLoss)] == [False, False, False, True]
    assert all(needs_old_logprobs(row(w, floor=-5.0)) for w in get_args(PolicyLoss))
    assert not needs_old_logprobs(replace(row("awr"), rl_weights=[0.0] * 5))


def learner(tiny: Path) -> Learner:
    return Learner(tiny, LoraConfig(rank=4, alpha=8), dtype=torch.float32, device=torch.device("cpu"), banned=[0, 1],
                   pad=2, seed=1)  # fmt: skip


def policy_logps(trained: Learner, sample: TrainingSample, temperature: float = 1.0) -> list[float]:
    (batch,) = micro_batches([sample], 4096, 2, torch.device("cpu"))
    with torch.no_grad():
        return trained.policy(batch, temperature)[0].tolist()  # type: ignore[no-any-return]


def test_the_learner_recomputes_behaviour_and_masks_by_its_own_log_probabilities(tiny: Path):
    trained = learner(tiny)
    logps = policy_logps(trained, row(), 0.7)
    floor = sorted(logps)[0] + 1e-4  # the least likely of the three drops out
    lost = logps.index(min(logps))
    (awr, plain), metrics = recompute_old_logprobs(
        [row("awr", floor), row("importance_sampling")], None, Scorer(trained, 4096, 0.7), LossConfig()
    )
    assert list(awr.logprobs[2:]) == pytest.approx(logps) and list(awr.rl_weights[2:]) == [
        0.0 if i == lost else 0.5 for i in range(3)
    ]
    assert plain.logprobs[2:] == [-1, -2, -3] and metrics == {"off_context/masked_frac": pytest.approx(1 / 3)}
    found = trained.update([row("awr")], LossConfig(), STAGE.resolve(0, 0.7))
    assert found["off_context/ratio/mean"] == pytest.approx(1, abs=1e-5) and "ratio/mean" not in found
    assert found["loss"] == pytest.approx(-1, abs=1e-5)  # −mean of 1·1


def test_each_weighting_gives_the_loss_that_its_formula_says(tiny: Path):
    trained = learner(tiny)
    logps, ratios = policy_logps(trained, row()), [0.5, 1.1, 2.0]
    behaviour = [0, 0, *(logp - log(ratio) for logp, ratio in zip(logps, ratios, strict=True))]
    clip = [min(max(r, 0.8), 1.2) for r in ratios]
    expected = {
        "ppo": sum(min(r, c) for r, c in zip(ratios, clip, strict=True)) / 3,
        "importance_sampling": sum(ratios) / 3,
        "cispo": sum(c * logp for c, logp in zip(clip, logps, strict=True)) / 3,
        "awr": 1.0,
    }
    assert len({round(value, 4) for value in expected.values()}) == 4
    for weighting, value in expected.items():
        weighed = replace(row(weighting), logprobs=behaviour)  # type: ignore[arg-type]
        found = trained.update([weighed], LossConfig(), STAGE.resolve(0, 1.0))
        assert found["loss"] == pytest.approx(-value, rel=1e-4), weighting


def test_a_row_that_is_masked_whole_gives_no_update(tiny: Path):
    trained = learner(tiny)
    before = trained.snapshot()
    found = trained.update(
        [row("ppo", floor=0.0)], LossConfig(), STAGE.model_copy(update={"learning_rate": 0.1}).resolve(0, 1.0)
    )
    assert found["off_context/masked_frac"] == 1 and found["optimizer_updates"] == 0
    assert all(torch.equal(before[name], held) for name, held in trained.snapshot().items())


def test_all_terms_of_a_dialogue_share_one_update():
    rows = [row(dialogue=name) for name in ("a", "a", "b", "b", "c", "c", "d", "d")]
    parts = minibatches(rows, 2)
    assert [[s.dialogue for s in part] for part in parts] == [["a", "a", "c", "c"], ["b", "b", "d", "d"]]
    assert [len(part) for part in minibatches([row(), row(), row()], 2)] == [2, 1]
    assert len(minibatches(rows[:2], 3)) == 1 and minibatches([], 2) == []


def test_an_unknown_weighting_is_refused():
    with pytest.raises(ValueError, match="known: ppo, importance_sampling, cispo, awr"):
        row("awl")  # type: ignore[arg-type]
