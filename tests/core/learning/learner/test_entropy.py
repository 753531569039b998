"""The entropy term of the loss. Numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch
from learner_rows import learner, rows, stage

from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig, LossNormalizers, TokenBatch, loss
from rl2f_core.learning.methods.rl2f import RLVR
from rl2f_core.learning.methods.token_rewards import ReinforcePP
from rl2f_core.learning.methods.trl_compat import unsupported_options
from rl2f_core.learning.training.step_metrics import loss_means
from rl2f_core.models.modeling import logprobs


def test_entropy_term_is_minus_the_coefficient_times_the_weighted_mean_entropy() -> None:
    zeros_N = torch.zeros(3)
    batch = TokenBatch(zeros_N, zeros_N, torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0.0, 0, 1]), zeros_N)
    batch = replace(batch, entropy_N=torch.tensor([log(2), log(4), 9.0]))
    norms = LossNormalizers(rl=1.5, ce=0, kl=0)
    value, sums = loss(zeros_N, batch, norms, LossConfig(entropy_coef=0.3))
    # all advantages are 0, so the rl term is 0; entropy: (1·log 2 + ½·log 4) / 1.5 = log 16 / 3 over rl weights only
    assert float(value) == pytest.approx(-0.3 * log(16) / 3)
    assert loss_means(sums, norms)["loss/entropy"] == pytest.approx(-log(16) / 3)
    assert "loss/entropy" not in loss_means(loss(zeros_N, batch, norms, LossConfig())[1], norms)


class TwoTokens(torch.nn.Module):
    """A model of a two-token vocabulary, whose logits are the hidden state."""

    class config:
        pass

    def get_output_embeddings(self) -> torch.nn.Module:
        return torch.nn.Identity()


@pytest.mark.parametrize("chunk", [1, 1024])
def test_entropy_has_the_gradient_of_a_softmax_also_with_chunked_logits(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(logprobs, "LOGITS_CHUNK", chunk)
    hidden_NH = torch.tensor([[log(3.0), 0.0], [0.0, 0.0]], requires_grad=True)
    _, entropy_N = logprobs.compute_logprobs(TwoTokens(), hidden_NH, torch.tensor([0, 0]), entropy_gradient=True)
    entropy_N.sum().backward()
    # p = (¾, ¼): H = log 4 − ¾ log 3; dH/dz_i = −p_i (log p_i + H); uniform: H = log 2 and no gradient
    entropy = log(4) - 0.75 * log(3)
    expected = [-0.75 * (log(0.75) + entropy), -0.25 * (log(0.25) + entropy)]
    assert entropy_N.tolist() == pytest.approx([entropy, log(2)])
    assert hidden_NH.grad is not None
    assert hidden_NH.grad[0].tolist() == pytest.approx(expected)
    assert hidden_NH.grad[1].tolist() == pytest.approx([0, 0], abs=1e-7)


def test_learner_raises_entropy_also_of_samples_without_advantage(tiny: Path) -> None:
    flat = [replace(sample, advantages=[0.0] * len(sample.token_ids)) for sample in rows()]
    for coefficient, updates in ((0.0, 0), (0.5, 1)):
        trained = learner(Learner, tiny)
        options = LossConfig(entropy_coef=coefficient)
        seen = [
            trained.update(flat, options, stage(learning_rate=0.01, max_grad_norm=None).resolve(s, 1.0))
            for s in range(4)
        ]
        assert seen[0]["optimizer_updates"] == updates
        if updates:
            assert seen[0]["loss"] == pytest.approx(0.5 * seen[0]["loss/entropy"], rel=1e-5)
            assert seen[0]["loss/entropy"] == pytest.approx(-seen[0]["entropy"], rel=1e-5)
            assert seen[-1]["entropy"] > seen[0]["entropy"] + 1e-4


def test_methods_pass_the_entropy_coefficient_and_trl_refuses_it() -> None:
    for method in (RLVR(RLVR.Config(entropy_coef=0.01)), ReinforcePP(ReinforcePP.Config(entropy_coef=0.01))):
        assert method.loss_options().entropy_coef == 0.01
        assert "entropy" in unsupported_options(method.loss_options())
    assert not unsupported_options(RLVR(RLVR.Config()).loss_options())
