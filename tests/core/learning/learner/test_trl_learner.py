"""The TRL adapter: loss and gradient are those of our learner, and what TRL has no place for is refused with why."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_rows import learner, played, rows, stage

from rl2f_core.config.loading import parse_config
from rl2f_core.errors import ConfigError
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.methods.loss_spec import AdvantageConfig, KLConfig, ValueConfig
from rl2f_core.learning.methods.trl_compat import unsupported_options, unsupported_sample
from rl2f_core.types import TrainingSample

CPU = torch.device("cpu")


def trl(tiny: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Learner:
    from rl2f_core.learning.learner.trl_learner import TRLLearner

    return learner(TRLLearner, tiny, seed, dtype)


def gradients(of: Learner) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in of.parameters.items() if p.grad is not None}


@pytest.mark.parametrize(
    "limit",
    [pytest.param(20, id="several micro-batches"), pytest.param(4096, id="one", marks=pytest.mark.slow)],
)
def test_loss_gradient_and_weights_are_those_of_our_learner(tiny: Path, limit: int):
    ours, theirs = learner(Learner, tiny), trl(tiny)
    assert ours.parameters.keys() == theirs.parameters.keys()
    for step, (kl, temperature) in enumerate([(0.0, 1.0), (0.0, 0.7), (0.3, 0.7)]):
        options, now = LossConfig(epsilon=0.1, epsilon_high=0.3, kl_coef=kl), stage(micro_batch_tokens=limit)
        for each in (ours, theirs):
            each.reference = {name: p + 0.05 for name, p in each.snapshot().items()}
        asked = rows(kl > 0)
        a, b = (each.update(asked, options, now.resolve(step, temperature)) for each in (ours, theirs))
        assert a.keys() == b.keys()
        assert b == pytest.approx(a, rel=2e-5, abs=1e-7)
        assert 0 < a["clip_ratio"] < 1 and a["grad_norm"] > 0.05 and math.isfinite(a["loss"])
        assert ("kl" in a) == (kl > 0) and (not kl or a["kl"] > 1e-4)
        grads = gradients(ours), gradients(theirs)
        assert grads[0].keys() == grads[1].keys() and len(grads[0]) == len(ours.parameters)
        for name, gradient in grads[0].items():
            torch.testing.assert_close(grads[1][name], gradient, rtol=1e-4, atol=1e-8)
        norm = torch.cat([g.flatten() for g in grads[1].values()]).norm()
        assert float(norm) == pytest.approx(0.05, rel=1e-3)
        for name, weight in ours.snapshot().items():
            torch.testing.assert_close(theirs.parameters[name].detach(), weight, rtol=0, atol=2e-5)


def test_beside_a_bfloat16_base_both_multiply_the_adapter_in_bfloat16(tiny: Path):
    ours, theirs = learner(Learner, tiny, dtype=torch.bfloat16), trl(tiny, dtype=torch.bfloat16)
    assert theirs.trainer.compute_dtype == torch.bfloat16 == ours.policy_model.compute_dtype  # type: ignore[attr-defined]
    a, b = (each.update(rows(), LossConfig(), stage(max_grad_norm=10).resolve(0, 1.0)) for each in (ours, theirs))
    assert b["loss"] == pytest.approx(a["loss"], abs=0.1) and b["ratio/mean"] == pytest.approx(a["ratio/mean"], abs=0.1)
    mine, its = (torch.cat([g.flatten() for g in gradients(each).values()]) for each in (ours, theirs))
    assert its.dtype == torch.float32 and float(torch.cosine_similarity(mine, its, 0)) > 0.9
    assert {p.dtype for p in theirs.parameters.values()} == {torch.float32}


def test_a_token_that_may_not_be_sampled_has_no_probability_for_trl_either(tiny: Path):
    """All of the probability is on the allowed tokens: the entropy is that of our head, whose list it is."""
    theirs, ours = trl(tiny), learner(Learner, tiny)
    bare = learner(Learner, tiny)
    bare.policy_model.banned = bare.policy_model.banned[:0]
    found = [each.update(rows(), LossConfig(), stage().resolve(0, 1.0))["entropy"] for each in (theirs, ours, bare)]
    assert found[0] == pytest.approx(found[1], abs=1e-5) and abs(found[0] - found[2]) > 1e-3


@pytest.mark.slow
def test_a_saved_stage_goes_on_bit_for_bit_and_its_adapter_is_anybodys(tiny: Path, tmp_path: Path):
    options, now = LossConfig(kl_coef=0.1), stage(weight_decay=0.1, num_iterations=2, minibatches=2)
    straight, resumed, ours = trl(tiny), trl(tiny, seed=9), learner(Learner, tiny, seed=8)
    straight.begin_stage(options, now)
    straight.update(rows(True), options, now.resolve(0, 1.0))
    straight.save(tmp_path)
    resumed.load(tmp_path)
    ours.load(tmp_path)
    a, b, c = (each.update(rows(True), options, now.resolve(1, 1.0)) for each in (straight, resumed, ours))
    assert a == b and a["optimizer_updates"] == 4
    assert c == pytest.approx(a, rel=1e-4, abs=1e-6)
    assert all(torch.equal(p, straight.snapshot()[n]) for n, p in resumed.snapshot().items())


# -- refusals ------------------------------------------------------------------------------------------------------
PLAYED = played(3, [(0, 2, 1.0, -1.0)], "d")


@pytest.mark.parametrize(
    ("row", "kl", "why"),
    [
        (replace(PLAYED, rl_weights=[0.0] * 5, ce_weights=[0.0, 0.0, 0.0, 1.0, 0.0]), 0.0, "cross-entropy"),
        (replace(PLAYED, rl_weights=[0.0, 0.0, 0.0, 0.1, 1.0]), 0.0, "token weights other than 0 and 1"),
        (replace(PLAYED, policy_loss="awr"), 0.0, "policy loss 'awr'"),
        (replace(PLAYED, min_logprob=-5.0), 0.0, "min_logprob"),
        (replace(PLAYED, kl_weights=[0.0, 0.0, 0.0, 1.0, 0.0]), 0.1, "kl weights that differ from the rl weights"),
        (PLAYED, 0.1, "kl weights that differ from the rl weights"),
        (
            replace(PLAYED, kl_weights=PLAYED.rl_weights, reference_prompt_ids=(5,)),
            0.1,
            "another prompt for the reference",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_the_reason(row: TrainingSample, kl: float, why: str):
    assert why in unsupported_sample(row, kl)
    assert (
        unsupported_sample(PLAYED, 0.0) == ""
        and unsupported_sample(replace(PLAYED, kl_weights=PLAYED.rl_weights), 0.1) == ""
    )


def test_an_option_that_does_not_fit_is_refused_with_the_reason():
    assert "value head" in unsupported_options(LossConfig(advantage=AdvantageConfig(critic=ValueConfig())))
    assert "'full_logits'" in unsupported_options(LossConfig(kl_coef=0.1, kl=KLConfig(divergence="full_logits")))
    assert "'ema'" in unsupported_options(LossConfig(kl_coef=0.1, kl=KLConfig(reference="ema")))
    assert (
        unsupported_options(LossConfig(kl_coef=0.1, advantage=AdvantageConfig(kl_coef=0.1)))
        == unsupported_options(LossConfig(kl=KLConfig(divergence="full_logits")))
        == ""
    )


def configured(method: str) -> dict[str, Any]:
    prompting = "reprompt" if method in ("rltf_grpo", "rltf_sd", "rltf_fm", "sft_correct") else "append"
    one = {"name": "s", "method": method, "steps": 1, "trainer": "trl", "group_size": 1 if method == "distill" else 4}
    return {"environment": "guess_number", "rollout": {"prompting": prompting}, "stages": [one]}


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("sft", "cross-entropy term of sft"),
        ("rl2f_self", "cross-entropy term of rl2f_self"),
        ("rltf_fm", "cross-entropy term of rltf_fm"),
        ("sft_correct", "cross-entropy term of sft_correct"),
        ("rltf_sd", "individual weights"),
        ("sdpo", "another reference prompt"),
        ("ppo", "value head"),
        ("distill", "updates no weights"),
    ],
)
def test_a_stage_that_cannot_run_on_trl_is_refused_before_it_begins(method: str, why: str):
    with pytest.raises(ConfigError, match=why):
        parse_config(configured(method))


@pytest.mark.parametrize("method", ["rlvr", "rl2f", "rltf_grpo", "reinforce_pp"])
def test_a_stage_that_fits_is_accepted(method: str):
    assert parse_config(configured(method)).stages[0].trainer == "trl"  # type: ignore[attr-defined]


def test_rows_that_do_not_fit_leave_the_weights_alone(tiny: Path):
    theirs = trl(tiny)
    before = theirs.snapshot()
    bad = replace(rows()[0], min_logprob=-3.0)
    with pytest.raises(ConfigError, match="TRL's GRPO loss does not support min_logprob"):
        theirs.update([*rows(), bad], LossConfig(), stage().resolve(0, 1.0))
    with pytest.raises(ConfigError, match="does not support a value head"):
        theirs.begin_stage(LossConfig(advantage=AdvantageConfig(critic=ValueConfig())), stage())
    assert all(torch.equal(p, before[n]) for n, p in theirs.snapshot().items())
