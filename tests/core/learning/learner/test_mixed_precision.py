"""A bfloat16 base: its adapter is held in float32, multiplied in bfloat16, and trained on much the same gradient."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import learner_rows
import pytest
import torch

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.learning.learner.gradient_checkpointing import SavedTensorMeter
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.learner.micro_batch import micro_batch

CPU = torch.device("cpu")
row = partial(learner_rows.row, behaviour=0.0)


def learner(tiny: Path, dtype: torch.dtype) -> Learner:
    """An adapter that says something: PEFT's own begins at zero."""
    made = Learner(tiny, LoraConfig(rank=4), dtype=dtype, device=CPU, banned=[0, 1], pad=2, seed=0)
    drawn = torch.Generator().manual_seed(1)
    made.restore({name: torch.randn(w.shape, generator=drawn) * 0.1 for name, w in made.parameters.items()})
    return made


def gradient(made: Learner) -> torch.Tensor:
    logp_N, *_ = made.policy_model(micro_batch([row(60), row(90), row(121)], 2, CPU), 1.0)
    assert logp_N.dtype == torch.float32  # logits and log-probabilities are never in bfloat16
    logp_N.mean().backward()
    assert {p.dtype for p in made.parameters.values()} == {p.grad.dtype for p in made.parameters.values()}  # type: ignore[union-attr]
    found = torch.cat([p.grad.flatten() for p in made.parameters.values()])  # type: ignore[union-attr]
    made.optimizer.zero_grad()
    return found


def test_an_adapter_beside_a_bfloat16_base_keeps_its_weights_in_float32_and_its_gradient_near_the_exact_one(
    tiny: Path,
) -> None:
    exact, made = gradient(learner(tiny, torch.float32)), learner(tiny, torch.bfloat16)
    assert {p.dtype for p in made.parameters.values()} == {torch.float32}
    found = gradient(made)
    # rounding to 8 bits differs by processor; a missing product or a wrong scale would be far off
    assert torch.cosine_similarity(found, exact, 0) > 0.9
    assert float(found.norm() / exact.norm()) == pytest.approx(1, abs=0.2)

    before = made.snapshot()
    stage = StageConfig(name="s", method="rlvr", steps=1, learning_rate=1e-5)
    made.update([row(60)], LossConfig(), stage.resolve(0, 1.0))
    moved = [float((made.parameters[name] - weight).detach().abs().max()) for name, weight in before.items()]
    assert max(moved) == pytest.approx(1e-5, rel=0.01)  # a step that bfloat16 could not hold


def test_what_adapted_layers_read_is_not_kept_a_second_time_in_float32(tiny: Path) -> None:
    made = learner(tiny, torch.bfloat16)
    batch = micro_batch([row(60), row(90)], 2, CPU)

    def kept() -> int:
        with SavedTensorMeter(made.policy_model) as saved:
            made.policy_model(batch, 1.0)
        return saved.bytes

    less = kept()
    made.policy_model.compute_dtype = None
    for module in made.model.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = True
    assert less < 0.75 * kept()


def test_a_float32_base_is_read_as_before(tiny: Path) -> None:
    made = learner(tiny, torch.float32)
    assert made.policy_model.compute_dtype is None
    assert all(getattr(module, "cast_input_dtype_enabled", True) for module in made.model.modules())


def test_computing_activations_again_gives_the_same_update_in_bfloat16(tiny: Path) -> None:
    kept, again = learner(tiny, torch.bfloat16), learner(tiny, torch.bfloat16)
    found = []
    for made, choice in ((kept, "never"), (again, "always")):
        stage = StageConfig(name="s", method="rlvr", steps=1, learning_rate=0.01, gradient_checkpointing=choice)  # type: ignore[arg-type]
        found.append(made.update([row(60), row(90)], LossConfig(), stage.resolve(0, 1.0)))
    assert found[1]["grad_norm"] == pytest.approx(found[0]["grad_norm"], rel=1e-2) and found[0]["grad_norm"] > 0
    gradients = [torch.cat([p.grad.flatten() for p in made.parameters.values()]) for made in (kept, again)]  # type: ignore[union-attr]
    assert torch.cosine_similarity(*gradients, 0) > 0.99
