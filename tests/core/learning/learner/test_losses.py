"""The loss: each stream and its normaliser, the clip, the KL's sign, and what it can never be. Numbers by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig, LossNormalizers, TokenBatch, clipped_surrogate, k3, loss
from rl2f_core.learning.learner.micro_batch import MicroBatch, loss_normalizers, micro_batches
from rl2f_core.learning.learner.scoring import Scorer
from rl2f_core.learning.methods.loss_spec import KLConfig
from rl2f_core.learning.methods.rl2f import RL2F, RLVR
from rl2f_core.types import (
    POLICY_LOSSES,
    Dialogue,
    Group,
    RewardTerm,
    Rollout,
    StopReason,
    Task,
    TokenSequence,
    TrainingSample,
    Turn,
    Verdict,
)

CPU = torch.device("cpu")


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tokens(n: int, **columns: list[float]) -> TokenBatch:
    """Columns by short name; those not named are 0."""
    held = {name: tensor(*columns.get(name, [0.0] * n)) for name in ("behaviour", "advantages", "rl", "ce", "kl")}
    reference = tensor(*columns["reference"]) if "reference" in columns else None
    return TokenBatch(*held.values(), reference_N=reference)


def norms(batch: TokenBatch) -> LossNormalizers:
    return LossNormalizers(float(batch.rl_N.sum()), float(batch.ce_N.sum()), float(batch.kl_N.sum()))


def value(logp: list[float], batch: TokenBatch, **config: float) -> float:
    return float(loss(tensor(*logp), batch, norms(batch), LossConfig(**config))[0])


def gradient(logp: list[float], batch: TokenBatch, **config: float) -> list[float]:
    logp_N = tensor(*logp).requires_grad_()
    loss(logp_N, batch, norms(batch), LossConfig(**config))[0].backward()
    return logp_N.grad.tolist()


# -- the policy-gradient stream --------------------------------------------------------------------------------
def test_the_rl_stream_is_minus_the_weighted_mean_of_the_clipped_surrogate():
    logp, behaviour = [log(0.6), log(0.2), log(0.5)], [log(0.4), log(0.4), log(0.5)]
    # ratios 1.5, 0.5, 1; A 1, −1, 2; ε 0.2
    # min(1.5, 1.2) = 1.2;  min(−0.5, 0.8·−1) = −0.8;  2
    equal = tokens(3, behaviour=behaviour, advantages=[1, -1, 2], rl=[1, 1, 1])
    assert value(logp, equal) == pytest.approx(-(1.2 - 0.8 + 2) / 3)
    unequal = tokens(3, behaviour=behaviour, advantages=[1, -1, 2], rl=[1, 0.5, 0])
    assert value(logp, unequal) == pytest.approx(-(1.2 - 0.4) / 1.5)


def test_the_metrics_of_the_rl_stream_are_sums_that_the_norm_turns_into_means():
    logp, behaviour = [log(0.6), log(0.2), log(0.5)], [log(0.4), log(0.4), log(0.5)]
    batch = tokens(3, behaviour=behaviour, advantages=[1, -1, 2], rl=[1, 1, 1])
    _, sums = loss(tensor(*logp), batch, norms(batch), LossConfig())
    assert sums["rl"] == pytest.approx(-2.4)
    assert sums["ratio"] == pytest.approx(1.5 + 0.5 + 1)
    assert sums["clipped"] == 2
    # ρ − 1 − log ρ: 0.5 − log 1.5, −0.5 − log 0.5, 0
    assert sums["mismatch"] == pytest.approx(0.5 - log(1.5) - 0.5 + log(2))


@pytest.mark.parametrize(
    ("ratio", "advantage", "low", "high", "expected", "slope"),
    [
        # A > 0 is clipped above only, A < 0 below only; where clipped, nothing pushes any more
        (1.5, +1, 0.2, 0.2, +1.2, 0),
        (1.5, -1, 0.2, 0.2, -1.5, -1.5),
        (0.5, +1, 0.2, 0.2, +0.5, +0.5),
        (0.5, -1, 0.2, 0.2, -0.8, 0),
        (1.1, +2, 0.2, 0.2, +2.2, +2.2),
        (0.9, -2, 0.2, 0.2, -1.8, -1.8),
        # ε_low 0.1, ε_high 0.4: the range is 0.9 … 1.4
        (1.3, +1, 0.1, 0.4, +1.3, +1.3),
        (1.5, +1, 0.1, 0.4, +1.4, 0),
        (0.85, -1, 0.1, 0.4, -0.9, 0),
        (0.85, +1, 0.1, 0.4, +0.85, +0.85),
        (1.5, -1, 0.1, 0.4, -1.5, -1.5),
        # the other way round: 0.6 … 1.1
        (1.3, +1, 0.4, 0.1, +1.1, 0),
        (0.7, -1, 0.4, 0.1, -0.7, -0.7),
    ],
)
def test_the_clip_binds_on_one_side_for_each_sign(
    ratio: float, advantage: float, low: float, high: float, expected: float, slope: float
):
    config = LossConfig(epsilon=low, epsilon_high=high)
    assert float(clipped_surrogate(tensor(ratio), tensor(advantage), config)) == pytest.approx(expected)
    batch = tokens(1, behaviour=[-1.0], advantages=[advantage], rl=[1])
    assert value([log(ratio) - 1], batch, epsilon=low, epsilon_high=high) == pytest.approx(-expected)
    # d(ρA)/d log π = ρA, and the loss is its negative
    assert gradient([log(ratio) - 1], batch, epsilon=low, epsilon_high=high) == pytest.approx([-slope])


def test_a_step_down_the_gradient_makes_good_tokens_likelier_and_bad_ones_less_so():
    batch = tokens(2, behaviour=[-1, -1], advantages=[1, -1], rl=[1, 1])
    good, bad = gradient([-1, -1], batch)
    assert (good, bad) == pytest.approx((-0.5, 0.5))


# -- cross-entropy ---------------------------------------------------------------------------------------------
def test_the_ce_stream_is_the_weighted_mean_of_minus_log_p():
    logp = [log(0.5), log(0.25), log(0.1)]
    batch = tokens(3, ce=[1, 0.5, 0])
    # (ln 2 + 0.5·ln 4) / 1.5 = 2 ln 2 / 1.5
    assert value(logp, batch) == pytest.approx(2 * log(2) / 1.5)
    assert value(logp, batch, ce_coef=0.1) == pytest.approx(0.1 * 2 * log(2) / 1.5)
    assert gradient(logp, batch) == pytest.approx([-1 / 1.5, -0.5 / 1.5, 0])


# -- KL --------------------------------------------------------------------------------------------------------
def test_k3_by_hand():
    # π 0.5, π_ref 0.25: ρ = 0.5: 0.5 − 1 − ln 0.5;  π 0.25, π_ref 0.5: 2 − 1 − ln 2;  equal: 0
    got = k3(tensor(log(0.5), log(0.25), log(0.3)), tensor(log(0.25), log(0.5), log(0.3)))
    assert got.tolist() == pytest.approx([0.5 - 1 + log(2), 2 - 1 - log(2), 0])


def test_k3_is_never_negative():
    generator = torch.Generator().manual_seed(0)
    logp, reference = -30 * torch.rand(2, 10_000, generator=generator, dtype=torch.float64)
    assert float(k3(logp, reference).min()) >= 0
    assert k3(logp, logp).abs().max() == 0


def test_the_expectation_of_k3_under_the_policy_is_the_kl_divergence():
    policy, reference = tensor(0.7, 0.2, 0.1), tensor(0.2, 0.3, 0.5)
    exact = 0.7 * log(0.7 / 0.2) + 0.2 * log(0.2 / 0.3) + 0.1 * log(0.1 / 0.5)
    assert float((policy * k3(policy.log(), reference.log())).sum()) == pytest.approx(exact)


def test_the_kl_stream_is_added_as_a_weighted_mean_with_its_coefficient():
    logp, reference = [log(0.5), log(0.25), -1.0], [log(0.25), log(0.5), -3.0]
    batch = tokens(3, kl=[1, 0.5, 0], reference=reference)
    mean = ((log(2) - 0.5) + 0.5 * (1 - log(2))) / 1.5
    assert value(logp, batch, kl_coef=0.1) == pytest.approx(0.1 * mean)
    assert value(logp, batch, kl_coef=0.1) > 0
    assert value(logp, batch) == 0


def test_the_kl_pushes_the_policy_toward_the_reference_from_both_sides():
    # dk3/d log π = 1 − π_ref/π: 1 − 0.25/0.5 = 0.5 (likelier than the reference: down),
    #                            1 − 0.5/0.25 = −1 (less likely: up)
    batch = tokens(2, kl=[1, 1], reference=[log(0.25), log(0.5)])
    too_likely, too_rare = gradient([log(0.5), log(0.25)], batch, kl_coef=0.1)
    assert (too_likely, too_rare) == pytest.approx((0.1 * 0.5 / 2, 0.1 * -1 / 2))


def test_descending_the_kl_stream_brings_a_drifted_policy_back():
    reference = tensor(0.2, 0.3, 0.5).log()
    logits = tensor(2.0, 0.0, -1.0).requires_grad_()

    def drift() -> float:
        logp = logits.detach().log_softmax(0)
        return float((logp.exp() * (logp - reference)).sum())

    seen = [drift()]
    for _ in range(100):
        logp_N = logits.log_softmax(0)
        batch = tokens(3, kl=logp_N.exp().tolist(), reference=reference.tolist())
        (step,) = torch.autograd.grad(loss(logp_N, batch, norms(batch), LossConfig(kl_coef=1.0))[0], logits)
        with torch.no_grad():
            logits -= 0.5 * step
        seen.append(drift())
    assert all(after < before for before, after in pairwise(seen))
    assert seen[0] > 0.5 and seen[-1] < 0.001


def test_a_kl_weight_without_a_reference_is_an_error():
    with pytest.raises(ValueError, match="reference"):
        value([-1.0], tokens(1, kl=[1]))


def test_tokens_without_kl_weight_need_no_reference_even_where_it_would_overflow():
    batch = tokens(3, ce=[0, 1, 1], kl=[1, 0, 0], reference=[log(0.5), math.nan, 0.0])
    # k3 is 0 at the first token; at the last e^(0 + 1000) would be infinite, and it carries no kl weight
    assert value([log(0.5), -1.0, -1000.0], batch, kl_coef=0.3) == pytest.approx((1 + 1000) / 2)
    assert gradient([log(0.5), -1.0, -1000.0], batch, kl_coef=0.3) == pytest.approx([0, -0.5, -0.5])


# -- together --------------------------------------------------------------------------------------------------
def test_each_stream_is_divided_by_its_own_weight_alone():
    logp = [log(0.5), log(0.5), log(0.25), log(0.25)]
    batch = tokens(
        4,
        behaviour=[log(0.5), log(0.5), 0, 0],
        advantages=[1, 3, 0, 0],
        rl=[1, 1, 0, 0],
        ce=[0, 0, 1, 0],
        kl=[1, 0, 0, 1],
        reference=[log(0.25), 0, 0, log(0.25)],
    )
    # rl: −(1 + 3)/2 = −2;  ce: ln 4 / 1;  kl: (ln 2 − 0.5 + 0)/2
    expected = -2 + 0.5 * log(4) + 0.1 * (log(2) - 0.5) / 2
    assert value(logp, batch, ce_coef=0.5, kl_coef=0.1) == pytest.approx(expected)


def token_by_token(logp_N: torch.Tensor, batch: TokenBatch, config: LossConfig) -> torch.Tensor:
    """The loss as the docstring of `losses` writes it, one token after the other."""
    rl, ce, kl = norms(batch).rl, norms(batch).ce, norms(batch).kl
    total = logp_N.new_zeros(())
    for i, logp in enumerate(logp_N):
        old, advantage = batch.old_logprobs_N[i], batch.advantages_N[i]
        if batch.rl_N[i]:
            ratio = (logp - old).exp()
            clipped = ratio.clamp(1 - config.epsilon, 1 + config.epsilon_high)
            objective = {
                "ppo": torch.minimum(ratio * advantage, clipped * advantage),
                "importance_sampling": ratio * advantage,
                "awr": ratio * advantage,
                "cispo": clipped.detach() * advantage * logp,
            }[POLICY_LOSSES[int(batch.policy_loss_N[i])]]
            total = total - objective * batch.rl_N[i] / rl
        if batch.ce_N[i]:
            total = total - config.ce_coef * logp * batch.ce_N[i] / ce
        if batch.kl_N[i]:
            difference = batch.reference_N[i] - logp
            estimate = difference.exp() - 1 - difference
            if config.kl.divergence == "sampled_token":
                estimate = -difference.detach() * logp
            if config.kl.distillation_is_clip is not None:
                estimate = estimate * (logp - old).detach().exp().clamp(max=config.kl.distillation_is_clip)
            total = total + config.kl_coef * estimate * batch.kl_N[i] / kl
    return total


@pytest.mark.parametrize("kl", [KLConfig(), KLConfig(divergence="sampled_token", distillation_is_clip=1.5)])
def test_loss_and_gradient_are_those_of_each_token_in_float32(kl: KLConfig):
    generator = torch.Generator().manual_seed(3)
    n = 96

    def draw(scale: float) -> torch.Tensor:
        return scale * torch.rand(n, generator=generator)

    kinds = torch.randint(3, (n,), generator=generator)  # rl and perhaps kl, ce, or nothing that is known
    codes = torch.randint(len(POLICY_LOSSES), (n,), generator=generator)
    rl_N, ce_N = (kinds == 0) * draw(1), (kinds == 1) * draw(1)
    kl_N = (kinds == 0) * (codes < 2) * draw(1)
    batch = TokenBatch(
        old_logprobs_N=-draw(2), advantages_N=draw(2) - 1, rl_N=rl_N, ce_N=ce_N, kl_N=kl_N,
        reference_N=torch.where(kl_N != 0, -draw(2), torch.nan), policy_loss_N=codes,
    )  # fmt: skip
    config = LossConfig(ce_coef=0.7, kl_coef=0.3, epsilon=0.2, epsilon_high=0.3, kl=kl)
    found = []
    for compute in (token_by_token, lambda *given: loss(*given[:2], norms(batch), given[2])[0]):
        logp_N = (-draw(0) - torch.linspace(0.01, 2, n)).requires_grad_()
        value = compute(logp_N, batch, config)
        found.append((value.detach(), *torch.autograd.grad(value, logp_N)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-6, atol=1e-9)


def test_ten_thousand_times_the_tokens_leave_the_loss_as_it_is():
    once = tokens(2, behaviour=[-1, -2], advantages=[1.5, -0.5], rl=[1, 1], ce=[0, 1], kl=[1, 1], reference=[-1, -1])
    many = TokenBatch(**{k: c.repeat(10_000) if isinstance(c, torch.Tensor) else c for k, c in vars(once).items()})
    logp = tensor(-1.2, -1.9)
    one, _ = loss(logp, once, norms(once), LossConfig(kl_coef=0.1))
    all_, _ = loss(logp.repeat(10_000), many, norms(many), LossConfig(kl_coef=0.1))
    assert float(all_) == pytest.approx(float(one))


def test_a_loss_of_minus_44000_is_impossible():
    """−L ≤ (1 + ε_high)·max|A|: rl is clipped where it could pay, and the other streams are never negative."""
    generator = torch.Generator().manual_seed(1)

    def draw(n: int, scale: float) -> torch.Tensor:
        return scale * torch.rand(n, generator=generator, dtype=torch.float64)

    lowest = 0.0
    for n in [1, 2, 7, 500] * 50:
        batch = TokenBatch(-draw(n, 40), draw(n, 16) - 8, draw(n, 1), draw(n, 1), draw(n, 1), -draw(n, 40))
        config = LossConfig(epsilon=0.2, epsilon_high=0.3, ce_coef=0.5, kl_coef=0.1)
        found = float(loss(-draw(n, 40), batch, norms(batch), config)[0])
        bound = 1.3 * float(batch.advantages_N.abs().max())
        assert found >= -bound - 1e-9 and math.isfinite(found)
        rl_only = float(loss(-draw(n, 40), batch, LossNormalizers(norms(batch).rl, 0, 0), config)[0])
        assert rl_only >= -bound - 1e-9
        lowest = min(lowest, rl_only)
    assert lowest < 0


def test_a_stream_without_weight_is_left_out():
    total, sums = loss(tensor(-1.0), tokens(1), LossNormalizers(0, 0, 0), LossConfig())
    assert float(total) == 0 and sums == {}


# -- micro-batches ---------------------------------------------------------------------------------------------
def rows(count: int = 7) -> list[TrainingSample]:
    """Rows of several lengths; all three streams, unequally spread."""
    generator = torch.Generator().manual_seed(2)
    made = []
    for i in range(count):
        n = 6 + 3 * i
        rl = [float(p > 3 and i % 3 != 2) for p in range(n)]
        made.append(
            TrainingSample(
                token_ids=torch.randint(3, 300, (n,), generator=generator).tolist(),
                policy_mask=[bool(w) for w in rl],
                logprobs=[-5.9 * w for w in rl],
                advantages=[(-1.0) ** i * w for w in rl],
                rl_weights=rl,
                ce_weights=[float(p in (2, 3)) * (1 + i) for p in range(n)],
                kl_weights=[0.5 * float(p > 4) for p in range(n)],
            )
        )
    return made


def test_micro_batches_add_up_to_the_loss_and_gradient_of_one_batch(tiny: Path):
    learner = Learner(tiny, LoraConfig(rank=4, alpha=8), dtype=torch.float32, device=CPU, banned=[0, 1], pad=2, seed=0)
    generator = torch.Generator().manual_seed(3)
    learner.restore({n: 0.05 * torch.randn(p.shape, generator=generator) for n, p in learner.parameters.items()})
    samples, config = rows(), LossConfig(ce_coef=0.3, kl_coef=0.2)
    found = []
    for limit in (100_000, 60, 1):
        batches = micro_batches(samples, limit, 2, CPU)
        learner.model.zero_grad()
        total = 0.0
        for bare in batches:
            batch = Scorer(learner, limit, 0.8).with_reference(bare, config.kl, "base")
            logp_N, *_ = learner.policy(batch, 0.8)
            part, _ = loss(logp_N, batch.tokens, loss_normalizers(samples), config)
            part.backward()
            total += float(part.detach())
        gradients = torch.cat([p.grad.flatten() for p in learner.parameters.values()])
        found.append((len(batches), total, gradients))
    assert [n for n, _, _ in found] == [1, 3, 7]  # of lengths 24 … 6 under 60: 24 21, 18 15 12, 9 6
    assert float(found[0][2].norm()) > 1e-3
    for _, total, gradients in found[1:]:
        assert total == pytest.approx(found[0][1], abs=1e-5)
        torch.testing.assert_close(gradients, found[0][2], atol=1e-6, rtol=1e-4)


# -- groups with equal returns ---------------------------------------------------------------------------------
TASK = Task(id="t", environment="e", split="train", level="l", public={}, privileged={})


def played(*rewards: float, stop: StopReason = StopReason.EXHAUSTED, first: int = 50) -> Rollout:
    """A dialogue with these rewards, one turn each: opening, then one student token and one of the hint a turn."""
    turns = tuple(
        Turn(index=k, attempt="x", verdict=Verdict(correct=False, score=0), rewards=(RewardTerm(name="r", score=r),))
        for k, r in enumerate(rewards)
    )
    n = len(rewards)
    stream = TokenSequence(
        tuple(range(first, first + 1 + 2 * n)), (False, *(True, False) * n), (0.0, *(-1.0, 0.0) * n),
        (-1, *(k for k in range(n) for _ in "yh")),
    )  # fmt: skip
    return Rollout(Dialogue(id=f"d{first}", task_id="t", group="g", index=0, turns=turns, stop_reason=stop), (stream,))


MIXED = Group(TASK, (played(0, 1), played(0, first=60)))
"""Three student tokens."""
EQUAL = Group(TASK, (played(0, 0, 0, first=70), played(0, 0, 0, first=80)))
"""Six student tokens."""


@pytest.mark.parametrize("credit", ["turn", "dialogue"])
@pytest.mark.parametrize("std", [False, True])
def test_a_group_of_equal_returns_stays_in_the_means_and_has_no_gradient(credit: str, std: bool):
    method = RL2F(RL2F.Config(advantage_level=credit, scale_rewards=std))
    samples = method.samples(Group(TASK, (played(0, 0.3, 1),) * 4))
    assert loss_normalizers(samples) == LossNormalizers(12, 0, 0)
    assert not any(sample.has_gradient for sample in samples) and not any(any(s.advantages) for s in samples)
    assert not any(s.has_gradient for s in RLVR(RLVR.Config(scale_rewards=std)).samples(Group(TASK, (played(1),) * 4)))
    mixed = method.samples(Group(TASK, (played(0, 0.3, 1), played(0, 0.3, 0))))
    assert [sample.has_gradient for sample in mixed] == [True, True]


def test_kl_covers_the_sampled_tokens_of_groups_without_reward_variance(tiny: Path):
    """The KL of 3 and 6 tokens together is the mean over 9 tokens; an all-wrong group alone has a KL gradient."""
    method = RL2F(RL2F.Config(kl_coef=0.1))
    still = StageConfig(name="s", method="rl2f", steps=1, learning_rate=1e-12)

    def update(*groups: Group) -> dict[str, float]:
        learner = Learner(tiny, LoraConfig(rank=4), dtype=torch.float32, device=CPU, banned=[0, 1], pad=2, seed=0)
        learner.reference = {name: p + 0.05 for name, p in learner.snapshot().items()}
        samples = [sample for group in groups for sample in method.samples(group)]
        return learner.update(samples, method.loss_options(), still.resolve(0, 1.0))

    mixed, equal, both = update(MIXED), update(EQUAL), update(MIXED, EQUAL)
    assert min(mixed["kl"], equal["kl"]) > 1e-5 and mixed["kl"] != pytest.approx(equal["kl"], rel=0.01)
    assert equal["optimizer_updates"] == 1 and equal["grad_norm"] > 0
    assert both["kl"] == pytest.approx((3 * mixed["kl"] + 6 * equal["kl"]) / 9, rel=1e-4)
    # the advantages of the group of equal returns are 0, and its tokens stay in the mean
    assert both["loss/rl"] == pytest.approx(3 / 9 * mixed["loss/rl"], rel=1e-4) and equal["loss/rl"] == 0


def test_groups_without_gradient_cost_no_forward_pass(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    method = RL2F(RL2F.Config())
    still = StageConfig(name="s", method="rl2f", steps=1, learning_rate=0.01)
    learner = Learner(tiny, LoraConfig(rank=4), dtype=torch.float32, device=CPU, banned=[0, 1], pad=2, seed=0)
    computed: list[str] = []
    original = learner.forward_backward

    def recorded(batch: MicroBatch, norms: LossNormalizers, *context: Any) -> dict[str, float]:
        computed.extend(sample.dialogue for sample in batch.samples)
        assert norms.rl == 9
        return original(batch, norms, *context)

    monkeypatch.setattr(learner, "forward_backward", recorded)
    learner.update([*method.samples(EQUAL), *method.samples(MIXED)], method.loss_options(), still.resolve(0, 1.0))
    assert sorted(computed) == ["d50", "d60"]
    before = learner.snapshot()
    values = learner.update(method.samples(EQUAL), method.loss_options(), still.resolve(0, 1.0))
    assert values == {"learning_rate": 0.01, "optimizer_updates": 0, "tokens/trained": 0} and len(computed) == 2
    assert all(torch.equal(p, before[name]) for name, p in learner.snapshot().items())


def test_failed_and_dropped_dialogues_are_neither_trained_on_nor_part_of_the_baseline():
    method = RL2F(RL2F.Config(advantage_level="dialogue", gamma=1))
    group = Group(
        TASK,
        (
            played(1),
            played(5, stop=StopReason.FAILED),
            played(0),
            played(9, stop=StopReason.DROPPED),
            played(2, stop=StopReason.CONTEXT_FULL),
        ),
    )
    # the mean of 1, 0 and 2 is 1
    assert method.advantages(group) == [[0], [-1], [1]]
    assert [sum(sample.advantages) for sample in method.samples(group)] == [0, -1, 1]
    alone = Group(TASK, (played(1), played(0, stop=StopReason.FAILED)))
    assert [sample.has_gradient for sample in method.samples(alone)] == [False]


def test_ratios_of_fresh_rollouts_are_one_so_the_first_update_is_plain_policy_gradient():
    # with log π = log π_behaviour the gradient is −A/N at each token, whatever the clip
    batch = tokens(3, behaviour=[-1, -2, -3], advantages=[1, -2, 4], rl=[1, 1, 1])
    assert gradient([-1, -2, -3], batch, epsilon=0.01, epsilon_high=0.01) == pytest.approx([-1 / 3, 2 / 3, -4 / 3])
    assert value([-1, -2, -3], batch) == pytest.approx(-(1 - 2 + 4) / 3)
