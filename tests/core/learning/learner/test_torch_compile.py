"""Compiled blocks: where that pays, what is refused, and the same updates."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import learner_rows
import pytest
import torch

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.errors import ConfigError
from rl2f_core.learning.learner import torch_compile
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.methods.loss_spec import KLConfig

CPU, BF16 = torch.device("cpu"), torch.bfloat16
row = partial(learner_rows.row, kl=0.1)


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that can compile, without trying it."""
    monkeypatch.setattr(torch_compile, "can_compile", lambda device: True)


def stage(**changes: Any) -> StageConfig:
    return StageConfig(**{"name": "s", "method": "rlvr", "steps": 10, "learning_rate": 0.01, **changes})


def test_a_stage_with_much_work_on_a_cpu_in_bfloat16_is_compiled_by_itself(able: None) -> None:
    # 1,000 steps × 2 passes × 5 tasks × 8 dialogues = 80,000 rows; 2e12 / 80,000 = 25 million weights
    held = stage(steps=1000, tasks_per_step=5, group_size=8, num_iterations=2)
    assert torch_compile.should_compile(held, 25_000_000, CPU, BF16, 1)
    assert not torch_compile.should_compile(held, 24_999_999, CPU, BF16, 1)
    assert not torch_compile.should_compile(held, 25_000_000, CPU, torch.float32, 1)
    assert not torch_compile.should_compile(held, 25_000_000, torch.device("cuda"), BF16, 1)
    assert not torch_compile.should_compile(held, 25_000_000, CPU, BF16, 2)
    assert not torch_compile.should_compile(held.model_copy(update={"trainer": "trl"}), 25_000_000, CPU, BF16, 1)


def test_a_stage_is_compiled_or_not_as_it_asks(able: None) -> None:
    assert torch_compile.should_compile(stage(torch_compile="always"), 1, torch.device("cuda"), torch.float32, 1)
    assert not torch_compile.should_compile(stage(torch_compile="never"), 10**15, CPU, BF16, 1)


def test_no_stage_is_compiled_by_itself_where_torch_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(function: Any) -> Any:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", fails)
    torch_compile.can_compile.cache_clear()
    try:
        assert not torch_compile.should_compile(stage(), 10**15, CPU, BF16, 1)
        with pytest.raises(ConfigError, match="cannot compile") as caught:
            torch_compile.check(stage(torch_compile="always"), CPU, 1)
        assert "g++" in str(caught.value)
    finally:
        torch_compile.can_compile.cache_clear()


@pytest.mark.parametrize(("changes", "processes"), [({"trainer": "trl"}, 1), ({}, 2)])
def test_what_is_never_compiled_is_refused_when_asked_for(able: None, changes: dict[str, Any], processes: int) -> None:
    with pytest.raises(ConfigError, match="native trainer"):
        torch_compile.check(stage(torch_compile="always", **changes), CPU, processes)
    torch_compile.check(stage(**changes), CPU, processes)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_compiled_updates_are_those_that_are_not(tiny: Path, recompute: str) -> None:
    """What is computed again runs as it is: torch's checkpoint compiles nothing within it."""
    rows = [[row(60), row(90, 41)], [row(121), row(70, 22), row(75)]]
    options, asked = (
        LossConfig(kl_coef=0.1, kl=KLConfig(divergence="k3")),
        stage(gradient_checkpointing=recompute, ref_model="base"),
    )
    found: dict[str, list[dict[str, float]]] = {}
    made = {choice: Learner(tiny, LoraConfig(rank=4), dtype=torch.float32, device=CPU, banned=[0, 1], pad=2, seed=0)
            for choice in ("never", "always")}  # fmt: skip
    for choice, learner in made.items():
        own = asked.model_copy(update={"torch_compile": choice})
        learner.begin_stage(options, own)
        assert learner.compile(own) is (choice == "always")
        torch._dynamo.utils.counters.clear()  # type: ignore[attr-defined]
        found[choice] = [learner.update(part, options, own.resolve(step, 1.0)) for step, part in enumerate(rows)]
        ran = bool(torch._dynamo.utils.counters["stats"])  # type: ignore[attr-defined]
        assert ran is (choice == "always" and recompute == "never")
    for plain, quick in zip(found["never"], found["always"], strict=True):
        assert quick == pytest.approx(plain, rel=1e-4, abs=1e-6)
    for name, weight in made["never"].parameters.items():
        assert torch.allclose(weight, made["always"].parameters[name], atol=1e-5), name
    assert not made["always"].compile(stage(torch_compile="never"))
    assert all(block._compiled_call_impl is None for block in torch_compile.decoder_layers(made["always"].model))
