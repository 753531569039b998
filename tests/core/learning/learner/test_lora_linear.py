"""LoRA layers as one operation of autograd: PEFT's outputs and gradients, and the current weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learner_rows import row
from torch import nn

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.learning.learner import gradient_checkpointing
from rl2f_core.learning.learner.gradient_checkpointing import default_micro_batch_tokens, estimate_bytes_per_token
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.lora_linear import FusedLora, LoraProduct
from rl2f_core.learning.learner.losses import LossConfig

CPU = torch.device("cpu")


def make_learner(tiny: Path, *, fused: bool, dtype: torch.dtype = torch.float32) -> Learner:
    made = Learner(tiny, LoraConfig(rank=4), dtype=dtype, device=CPU, banned=[0, 1], pad=2, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters.values():  # B is zero in a new adapter
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    if fused:
        made.policy_model.fused_lora = FusedLora(made.model)
    return made


def update(learner: Learner, step: int = 0, **changes: Any) -> dict[str, float]:
    stage = StageConfig(name="s", method="rlvr", steps=4, learning_rate=0.01, **changes)
    return learner.update([row(60), row(90), row(121)], LossConfig(), stage.resolve(step, 1.0))


def test_the_product_and_its_gradients_by_hand() -> None:
    base = nn.Linear(2, 2)
    with torch.no_grad():
        base.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        base.bias.copy_(torch.tensor([0.5, 0.0]))
    x = torch.tensor([[1.0, 3.0]], requires_grad=True)
    a, b = torch.tensor([[1.0, -1.0]], requires_grad=True), torch.tensor([[2.0], [0.0]], requires_grad=True)
    out = LoraProduct.apply(x, base, a, b, (a.detach(), 3 * b.detach()), 3.0)
    # x Wᵀ + bias = [1.5, 6]; x Aᵀ = −2; 3 · (−2) · Bᵀ = [−12, 0]
    assert out.tolist() == [[-10.5, 6.0]]
    out.backward(torch.tensor([[1.0, 10.0]]))
    assert x.grad is not None and a.grad is not None and b.grad is not None
    assert x.grad.tolist() == [[1.0 + 6.0, 20.0 - 6.0]]  # g W + 3 · (g B) A, with g B = 2
    assert a.grad.tolist() == [[6.0, 18.0]]  # 3 · (g B) x
    assert b.grad.tolist() == [[-6.0], [-60.0]]  # 3 · gᵀ (x Aᵀ)


def test_updates_equal_those_of_peft(tiny: Path) -> None:
    plain, fused = make_learner(tiny, fused=False), make_learner(tiny, fused=True)
    for step in range(3):  # from the second on, the layers must see the weights that the optimizer changed
        assert update(fused, step) == pytest.approx(update(plain, step), rel=1e-5, abs=1e-6)
    for name, weight in plain.parameters.items():
        assert torch.allclose(weight, fused.parameters[name], atol=2e-6), name


def test_an_optimizer_that_hides_its_changes_is_followed(tiny: Path) -> None:
    """Fused AdamW, which GPUs use, does not raise the version of a tensor."""
    plain, fused = make_learner(tiny, fused=False), make_learner(tiny, fused=True)
    for learner in (plain, fused):
        for group in learner.optimizer.param_groups:
            group["fused"], group["foreach"] = True, None
        update(learner)
    assert update(fused, 1) == pytest.approx(update(plain, 1), rel=1e-5, abs=1e-6)


def test_recomputed_activations_give_the_same_update(tiny: Path) -> None:
    kept, again = make_learner(tiny, fused=True), make_learner(tiny, fused=True)
    found = update(again, gradient_checkpointing="always")
    assert found.pop("gradient_checkpointing_frac") == 1
    assert found == pytest.approx(update(kept), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("reference", ["base", "stage_start"])
def test_references_are_followed(tiny: Path, reference: str) -> None:
    """The base is the model without the adapter, the stage's start an adapter with other weights for one pass."""
    found = []
    for fused in (False, True):
        learner = make_learner(tiny, fused=fused)
        stage = StageConfig(name="s", method="rlvr", steps=4, learning_rate=0.01, ref_model=reference)
        learner.begin_stage(LossConfig(kl_coef=0.5), stage)
        update(learner)
        rows = [row(60, kl=1.0), row(90, kl=1.0)]
        found.append(learner.update(rows, LossConfig(kl_coef=0.5), stage.resolve(1, 1.0)))
    assert found[0]["kl"] > 0 and found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-6)


def test_gradients_of_bfloat16_layers_are_near_those_of_peft(tiny: Path) -> None:
    plain, fused = (make_learner(tiny, fused=fused, dtype=torch.bfloat16) for fused in (False, True))
    found, expected = update(fused), update(plain)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.02)
    assert found["loss"] == pytest.approx(expected["loss"], abs=0.01)


def test_micro_batches_fill_a_quarter_of_the_memory_of_a_gpu(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_learner(tiny, fused=False).model
    size = estimate_bytes_per_token(model)
    assert default_micro_batch_tokens(model, CPU) == 1024
    for tokens, expected in ((9000, 8192), (16384, 16384), (100, 4096), (10**9, 65536)):
        monkeypatch.setattr(gradient_checkpointing, "total_memory", lambda _, tokens=tokens: int(4 * tokens * size))
        assert default_micro_batch_tokens(model, torch.device("cuda")) == expected
