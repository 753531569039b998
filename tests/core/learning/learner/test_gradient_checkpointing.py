"""Activations by need: counted as autograd keeps them, computed again where they would not fit, to the same end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from learner_rows import row
from torch import nn

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.errors import ConfigError
from rl2f_core.learning.learner import gradient_checkpointing
from rl2f_core.learning.learner.fsdp import check_sharding
from rl2f_core.learning.learner.gradient_checkpointing import SavedTensorMeter, estimate_bytes_per_token
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.learner.micro_batch import micro_batch

CPU = torch.device("cpu")


def learner(tiny: Path) -> Learner:
    return Learner(tiny, LoraConfig(rank=4), dtype=torch.float32, device=CPU, banned=[0, 1], pad=2, seed=0)


def stage(**changes: object) -> StageConfig:
    return StageConfig(**{"name": "s", "method": "rlvr", "steps": 4, "learning_rate": 0.01, **changes})


def update(trained: Learner, **changes: object) -> dict[str, float]:
    return trained.update([row(60), row(90), row(121)], LossConfig(), stage(**changes).resolve(0, 1.0))


def test_what_is_kept_is_counted_once_and_weights_are_not() -> None:
    layer = nn.Linear(4, 5)
    x_NI = torch.ones(3, 4)
    with SavedTensorMeter(layer) as saved:
        hidden = layer(x_NI)  # keeps its input for the gradient of its weights: 3 · 4 · 4 bytes
        out = hidden.relu()  # keeps its result: 3 · 5 · 4 bytes
        (out * x_NI.sum()).sum()  # keeps the scalar: 4 bytes
    assert saved.bytes == 48 + 60 + 4
    with SavedTensorMeter(layer) as saved:
        (layer(x_NI).sum() + layer(x_NI).sum()).backward()
    assert saved.bytes == 48


def test_computing_again_keeps_less_and_gives_the_same_update(tiny: Path) -> None:
    kept, again = learner(tiny), learner(tiny)
    modes = [module.training for module in again.model.modules()]
    found, repeated = update(kept, gradient_checkpointing="never"), update(again, gradient_checkpointing="always")
    assert repeated.pop("gradient_checkpointing_frac") == 1 and "gradient_checkpointing_frac" not in found
    assert repeated == pytest.approx(found, rel=1e-5, abs=1e-7)
    for name, weight in kept.parameters.items():
        assert torch.allclose(weight, again.parameters[name], atol=1e-6), name
    assert modes == [module.training for module in again.model.modules()]

    batch = micro_batch([row(60), row(90)], 2, CPU)
    with SavedTensorMeter(again.policy_model) as saved, again.activations.forward_context(1, "always"):
        logp_N, *_ = again.policy_model(batch, 1.0)
    logp_N.sum().backward()
    with SavedTensorMeter(kept.policy_model) as whole, kept.activations.forward_context(1, "never"):
        kept.policy_model(batch, 1.0)
    assert 0 < saved.bytes < 0.5 * whole.bytes


def test_only_passes_larger_than_those_before_are_measured(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, meters = learner(tiny), []

    class Counted(SavedTensorMeter):
        def __enter__(self) -> SavedTensorMeter:
            meters.append(self)
            return super().__enter__()

    monkeypatch.setattr(gradient_checkpointing, "SavedTensorMeter", Counted)
    for tokens, width, measured in ((40, 20, 1), (40, 20, 1), (30, 10, 1), (60, 20, 2), (50, 25, 3), (60, 25, 3)):
        with trained.activations.forward_context(tokens, "auto", width):
            pass
        assert len(meters) == measured


def test_what_does_not_fit_is_computed_again_as_soon_as_it_is_known(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = learner(tiny)
    tokens = 3 * 30
    assert trained.activations.per_token == estimate_bytes_per_token(trained.model) > 0
    assert "gradient_checkpointing_frac" not in update(trained)
    measured = trained.activations.per_token
    assert estimate_bytes_per_token(trained.model) / 4 < measured < 8 * estimate_bytes_per_token(trained.model)
    # of 3 samples with 25 tokens each, at most the logits and the log-probabilities are saved, and their gradients
    assert 0 < trained.activations.logits <= 3 * 25 * 384 * 4 * 3
    room = (measured * tokens + trained.activations.logits) / gradient_checkpointing.MEMORY_FRACTION
    monkeypatch.setattr(gradient_checkpointing, "free_bytes", lambda device: room * 1.01)
    assert "gradient_checkpointing_frac" not in update(trained)
    monkeypatch.setattr(gradient_checkpointing, "free_bytes", lambda device: room * 0.99)
    assert update(trained)["gradient_checkpointing_frac"] == 1
    assert update(trained, micro_batch_tokens=40).get("gradient_checkpointing_frac") is None  # a row a pass: each fits
    assert "gradient_checkpointing_frac" not in update(trained, gradient_checkpointing="never")


def test_weights_that_are_shared_out_are_neither_measured_nor_computed_again(tiny: Path) -> None:
    trained = learner(tiny)
    trained.activations.sharded = True
    before = trained.activations.per_token
    assert "gradient_checkpointing_frac" not in update(trained) and trained.activations.per_token == before
    with pytest.raises(ConfigError, match="fsdp_activation_checkpointing"):
        check_sharding(None, "fsdp", LossConfig(), stage(gradient_checkpointing="always"))
