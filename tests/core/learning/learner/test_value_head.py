"""The value head in the learner, and runs of the methods that are credited by the batch or by hindsight, resumed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import assert_same_run, config_of, go

from rl2f_core.config.model import LoraConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.learner.micro_batch import micro_batches
from rl2f_core.learning.learner.policy_model import OutputFlags
from rl2f_core.learning.methods.loss_spec import AdvantageConfig, ValueConfig
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, MetricEvent, read_events
from rl2f_core.types import TokenRewards, TrainingSample

CPU = torch.device("cpu")
STAGE = StageConfig(name="s", method="ppo", steps=4, learning_rate=0.01, max_grad_norm=1e9)


def learner(tiny: Path, options: LossConfig, seed: int = 0, stage: StageConfig = STAGE) -> Learner:
    made = Learner(tiny, LoraConfig(rank=4, alpha=8), dtype=torch.float32, device=CPU, banned=[0, 1], pad=2, seed=seed)
    generator = torch.Generator().manual_seed(1)
    made.restore({n: 0.05 * torch.randn(p.shape, generator=generator) for n, p in made.parameters.items()})
    made.begin_stage(options, stage)
    return made


def tried(first: int, *rewards: float) -> TrainingSample:
    """Two tokens of context, then one action for each reward."""
    n = len(rewards)
    weight = [0.0, 0.0, *[1.0] * n]
    zeros = [0.0] * (n + 2)
    return TrainingSample(
        list(range(first, first + n + 2)), [False, False, *[True] * n], [-5.9 * w for w in weight], zeros, weight,
        zeros, zeros, token_rewards=TokenRewards([0.0, 0.0, *rewards], weight),
    )  # fmt: skip


ROWS = [tried(50, 0, 0, 1), tried(80, 0, 0.5), tried(120, 0, 0, 0, -1)]


def options(**critic: Any) -> LossConfig:
    return LossConfig(
        advantage=AdvantageConfig(gae_lambda=0.9, critic=ValueConfig(**{"coef": 0.5, "clip": None, **critic}))
    )


def gradients(trained: Learner) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in trained.parameters.values() if p.grad is not None])


def step(trained: Learner, config: LossConfig, number: int, stage: StageConfig = STAGE) -> dict[str, float]:
    rows, found = trained.compute_advantages(ROWS, config, stage.resolve(0, 1.0))
    return found | trained.update(rows, config, stage.resolve(number, 1.0))


def test_the_value_heads_gradient_is_the_weighted_mean_of_error_times_hidden_state(tiny: Path):
    config = options()
    trained = learner(tiny, config)
    rows, found = trained.compute_advantages(ROWS, config, STAGE.resolve(0, 1.0))
    # a fresh head says 0 everywhere, so returns are those of rewards by λ 0.9 and γ 1, and nothing is explained
    assert found["value/mean"] == 0 and found["value/explained_variance"] == 0
    assert list(rows[0].value_targets.targets) == pytest.approx([0, 0, 0.81, 0.9, 1])
    (batch,) = micro_batches(rows, 10**6, 2, CPU)
    with torch.no_grad():
        hidden_NH = trained.policy(batch, 1.0, OutputFlags(hidden=True))[2].hidden_NH
    values = trained.update(rows, config, STAGE.resolve(0, 1.0))
    returns_N = batch.tokens.returns_N
    assert returns_N is not None and len(returns_N) == 9
    # L = ½·½·mean (V − R)², so dL/du = ½·mean (V − R)·h and dL/dc = ½·mean (V − R), with V = 0
    head = trained.head_parameters
    torch.testing.assert_close(head["value_head.weight"].grad[0], -0.5 * (returns_N[:, None] * hidden_NH).mean(0))
    torch.testing.assert_close(head["value_head.bias"].grad, -0.5 * returns_N.mean()[None])
    assert values["value/loss"] == pytest.approx(0.5 * float((returns_N**2).mean()))
    assert values["loss"] == pytest.approx(values["loss/rl"] + 0.5 * values["value/loss"], rel=1e-5)


def test_a_shared_trunk_learns_from_the_values_and_a_head_alone_leaves_it(tiny: Path):
    both, alone, none = options(), options(trains_adapter=False), LossConfig()
    trained = {name: learner(tiny, config) for name, config in (("both", both), ("alone", alone), ("none", none))}
    for name in ("both", "alone"):  # a head that says something, so that its error reaches the hidden states
        with torch.no_grad():
            trained[name].head_parameters["value_head.weight"].fill_(0.05)
    rows, _ = trained["both"].compute_advantages(ROWS, both, STAGE.resolve(0, 1.0))
    rows = [replace(row, logprobs=[-5.9 * w for w in row.rl_weights]) for row in rows]
    for name, config in (("both", both), ("alone", alone), ("none", none)):
        trained[name].update(rows, config, STAGE.resolve(0, 1.0))
    torch.testing.assert_close(gradients(trained["alone"]), gradients(trained["none"]))
    assert not torch.allclose(gradients(trained["both"]), gradients(trained["none"]), atol=1e-5)


def test_values_learn_to_explain_returns_and_have_a_rate_of_their_own(tiny: Path):
    config = options(learning_rate=0.05)
    trained = learner(tiny, config)
    first = step(trained, config, 0)
    weight = trained.head_parameters["value_head.weight"].detach()
    assert float(weight.abs().max()) == pytest.approx(0.05, rel=1e-3), "Adam's first step is the rate"
    assert first["value/explained_variance"] == 0
    slow = learner(tiny, options(learning_rate=1e-4))
    before, after = (step(slow, options(learning_rate=1e-4), 0)["value/loss"] for _ in range(2))
    assert after < before


def test_passes_go_through_the_rows_again_with_advantages_and_old_values_kept(tiny: Path):
    config, twice = options(clip=0.2), STAGE.model_copy(update={"num_iterations": 2})
    one, two = learner(tiny, config), learner(tiny, config)
    rows, _ = one.compute_advantages(ROWS, config, STAGE.resolve(0, 1.0))
    assert two.update(rows, config, twice.resolve(0, 1.0))["optimizer_updates"] == 2
    for _ in range(2):
        one.update(rows, config, STAGE.resolve(0, 1.0))
    held = one.snapshot()
    assert all(torch.equal(held[n], p) for n, p in two.snapshot().items())


def test_a_learner_with_a_value_head_goes_on_bit_for_bit_and_its_adapter_has_none(tiny: Path, tmp_path: Path):
    config = options(clip=0.2)
    straight = learner(tiny, config)
    for number in range(2):
        step(straight, config, number)
    straight.save(tmp_path / "commit")
    resumed = learner(tiny, LossConfig(), seed=9)
    resumed.load(tmp_path / "commit")
    for number in range(2, 4):
        assert step(straight, config, number) == step(resumed, config, number)
    for mine, its in ((straight.snapshot(), resumed.snapshot()), (straight.head_parameters, resumed.head_parameters)):
        assert mine.keys() == its.keys() and all(torch.equal(mine[n], its[n]) for n in mine)
    straight.save_adapter(tmp_path / "adapter")
    assert sorted(p.name for p in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors"
    ]  # fmt: skip
    straight.begin_stage(LossConfig(), STAGE)
    straight.save(tmp_path / "next")
    assert straight.head_parameters == {} and not (tmp_path / "next" / "value_head.safetensors").exists()


def test_rows_are_split_into_passes_over_memory_without_changing_the_values_or_the_drift(tiny: Path):
    config = LossConfig(advantage=AdvantageConfig(gae_lambda=0.9, kl_coef=0.1, critic=ValueConfig()))
    trained = learner(tiny, config)
    with torch.no_grad():
        trained.head_parameters["value_head.weight"].fill_(0.05)
    whole, _ = trained.compute_advantages(ROWS, config, STAGE.resolve(0, 1.0))
    split, _ = trained.compute_advantages(
        ROWS, config, STAGE.model_copy(update={"micro_batch_tokens": 16}).resolve(0, 1.0)
    )
    for a, b in zip(whole, split, strict=True):
        assert list(a.advantages) == pytest.approx(list(b.advantages), abs=1e-4)
        assert list(a.value_targets.estimates) == pytest.approx(list(b.value_targets.estimates), abs=1e-5) and any(
            a.value_targets.estimates
        )


# -- whole runs ------------------------------------------------------------------------------------------------
def three_methods(model: Path) -> Any:
    shared = {"steps": 2, "tasks_per_step": 2, "group_size": 2, "learning_rate": 0.005, "save_steps": 2}
    return config_of(
        model,
        stages=[
            {"name": "rpp", "method": {"type": "reinforce_pp", "kl_coef": 0.05, "turn_gamma": 0.5}, **shared},
            {
                "name": "ppo",
                "method": {"type": "ppo", "turn_gamma": 0.5},
                "num_iterations": 2,
                "minibatches": 2,
                **shared,
            },
            {"name": "sdpo", "method": {"type": "sdpo", "rl_coef": 0.5}, **shared},
        ],
    )


@pytest.mark.slow
def test_reinforce_pp_ppo_and_sdpo_run_and_resume_as_if_never_stopped(tiny: Path, tmp_path: Path):
    whole = RunDir.create(tmp_path / "whole", three_methods(tiny))
    assert go(whole) == "succeeded"
    stopped = RunDir.create(tmp_path / "stopped", three_methods(tiny))
    ended = []
    while not ended or ended[-1] == "stopped":
        ended.append(go(stopped, partial(next, iter([False]), True)))
    assert ended == ["stopped"] * 5 + ["succeeded"]
    assert_same_run(stopped.path, whole.path, "sdpo@2")
    events = list(read_events(whole.events_path, strict=True))
    metrics = {(e.stage, e.step): e.values for e in events if isinstance(e, MetricEvent)}
    drift = [abs(metrics["rpp", number]["kl_in_reward"]) for number in (1, 2)]
    assert drift[0] < 1e-6 < drift[1], "the reference is where the stage started"
    assert (
        metrics["ppo", 1]["optimizer_updates"] == 4
        and metrics["ppo", 2]["value/mean"] != 0 == metrics["ppo", 1]["value/mean"]
    )
    assert all(metrics[stage, 2]["grad_norm"] > 0 for stage in ("rpp", "ppo", "sdpo"))
    assert metrics["sdpo", 2]["kl"] != 0 and "value/loss" not in metrics["sdpo", 2]
    dialogues = [e for e in events if isinstance(e, DialogueEvent) and e.phase == "train"]
    trained = [turn.advantage for e in dialogues if e.stage in ("rpp", "ppo") for turn in e.dialogue.turns]
    assert len(trained) >= 16 and any(trained) and None not in trained
