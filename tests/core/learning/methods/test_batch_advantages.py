"""Credit of tokens by the whole batch, and the loss and gradient of `reinforce_pp` and `ppo`, worked out by hand.

The models of the gradients are small enough to differentiate on paper: two actions with π(0) = σ(w·x) for a number x a
token, so d log π(a)/dw = (1[a = 0] − π(0))·x, and a value head V = u·h + c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log, sqrt
from typing import Any

import pytest
import torch

from rl2f_core.config.run import RunConfig
from rl2f_core.errors import ConfigError
from rl2f_core.learning.learner.losses import LossConfig, loss
from rl2f_core.learning.learner.micro_batch import loss_normalizers, micro_batches
from rl2f_core.learning.learner.value_head import value_loss, value_losses
from rl2f_core.learning.methods.advantages import (
    compute_batch_advantages,
    explained_variance,
    gae,
    kl_estimate,
    returns_to_go,
    whiten,
)
from rl2f_core.learning.methods.loss_spec import AdvantageConfig, ValueConfig
from rl2f_core.learning.methods.samples import mean_advantage_per_turn, token_reward_sample
from rl2f_core.learning.methods.token_rewards import PPO, ReinforcePP
from rl2f_core.types import (
    Dialogue,
    Group,
    RewardTerm,
    Rollout,
    StopReason,
    Task,
    TokenRewards,
    TokenSequence,
    TrainingSample,
    Turn,
    Verdict,
)

CPU = torch.device("cpu")
TASK = Task(id="t", environment="e", split="train", level="l", public={}, privileged={})


def close(value: Any) -> Any:
    return pytest.approx(value, rel=1e-6, abs=1e-9)


def rewarded(
    rewards: Sequence[float], discounts: Sequence[float] | None = None, logprob: float = log(0.5)
) -> TrainingSample:
    """A token of context, then one action for each reward."""
    n = len(rewards)
    weight = [0.0, *[1.0] * n]
    return TrainingSample(
        list(range(10, 11 + n)), [False, *[True] * n], [0.0, *[logprob] * n], [0.0] * (n + 1), weight, [0.0] * (n + 1),
        [0.0] * (n + 1), token_rewards=TokenRewards([0.0, *rewards], [0.0, *(discounts or [1.0] * n)]),
    )  # fmt: skip


def played(*turns: tuple[int, float], name: str = "d") -> Rollout:
    """A dialogue of (tokens, reward) a turn; a token of opening, and one of the hint after each turn."""
    student, turn, said = [False], [-1], []
    for k, (tokens, reward) in enumerate(turns):
        student += [True] * tokens + [False]
        turn += [k] * (tokens + 1)
        said.append(Turn(index=k, attempt="x", verdict=Verdict(correct=False, score=0),
                         rewards=(RewardTerm(name="r", score=reward),)))  # fmt: skip
    n = len(student)
    stream = TokenSequence(tuple(range(n)), tuple(student), tuple(-0.5 * s for s in student), tuple(turn))
    dialogue = Dialogue(id=name, task_id="t", group="g", index=0, turns=tuple(said), stop_reason=StopReason.EXHAUSTED)
    return Rollout(dialogue, (stream,))


# -- pure numbers ----------------------------------------------------------------------------------------------
def test_generalised_advantages_discount_the_errors_of_the_values():
    # δ_2 = 1 − 0.6 = 0.4;            A_2 = 0.4
    # δ_1 = 0.5 + 0.5·0.6 − 0.4 = 0.4; A_1 = 0.4 + 0.5·0.5·0.4 = 0.5
    # δ_0 = 0 + 1·0.4 − 0.2 = 0.2;     A_0 = 0.2 + 1·0.5·0.5 = 0.45
    assert gae([0, 0.5, 1], [0.2, 0.4, 0.6], [1, 0.5, 0.5], 0.5) == close([0.45, 0.5, 0.4])


def test_lambda_zero_sees_one_step_and_lambda_one_sees_the_whole_return():
    rewards, values, discounts = [0, 0.5, 1], [0.2, 0.4, 0.6], [1, 0.5, 0.5]
    assert gae(rewards, values, discounts, 0) == close([0.2, 0.4, 0.4])
    # returns 0 + 1·1 = 1, 0.5 + 0.5·1 = 1, 1, each less its value
    assert gae(rewards, values, discounts, 1) == close([0.8, 0.6, 0.4])
    assert gae(rewards, [0, 0, 0], [0.7] * 3, 1) == close(returns_to_go(rewards, 0.7))
    assert gae([], [], [], 0.95) == []


def test_whitening_takes_mean_and_sample_deviation_of_all_numbers():
    scale = 1 / (sqrt(7) + 1e-6)  # of 1, 2, 6: mean 3, squares 14 over 2
    assert whiten([1, 2, 6]) == close([-2 * scale, -scale, 3 * scale])
    assert whiten([4, 4]) == [0, 0] and whiten([4]) == [0]


@pytest.mark.parametrize(("estimator", "value"), [("k1", log(2)), ("k2", log(2) ** 2 / 2), ("k3", 0.5 - 1 + log(2))])
def test_estimates_of_drift_from_one_token_whose_probability_doubled(estimator: Any, value: float):
    assert kl_estimate(log(2), estimator) == close(value)
    assert kl_estimate(0, estimator) == 0


def test_explained_variance_is_one_for_a_perfect_head_and_zero_for_a_constant_one():
    # targets 1, 2, 6 (variance 14 as a sum); errors 0, 1, 1: mean 2/3, squares 4/9 + 1/9 + 1/9 = 2/3
    assert explained_variance([1, 1, 5], [1, 2, 6]) == close(1 - (2 / 3) / 14)
    assert explained_variance([1, 2, 6], [1, 2, 6]) == 1 and explained_variance([3, 3, 3], [1, 2, 6]) == 0
    assert explained_variance([1, 2], [5, 5]) == 0 and explained_variance([], []) == 0


# -- rows ------------------------------------------------------------------------------------------------------
def test_a_turns_reward_stands_on_its_last_token_and_the_next_turn_is_discounted_once_more():
    row = token_reward_sample(played((2, 0.5), (1, 1.0)), gamma=0.9, turn_gamma=0.5, baselines=(0.0, 0.0), kl=False)
    # opening, two tokens, hint, one token, hint
    assert list(row.rl_weights) == [0, 1, 1, 0, 1, 0] and list(row.token_rewards.rewards) == [0, 0, 0.5, 0, 1, 0]
    assert list(row.token_rewards.discounts) == close([0, 0.9, 0.45, 0, 0.45, 0])
    (done,), _ = compute_batch_advantages([row], AdvantageConfig(whiten_advantages=False))
    # G = 1; 0.5 + 0.45·1 = 0.95; 0.9·0.95
    assert list(done.advantages) == close([0, 0.855, 0.95, 0, 1, 0])
    assert mean_advantage_per_turn(played((2, 0.5), (1, 1.0)), done) == close([0.9025, 1])


def test_the_groups_baseline_compares_returns_of_turns_with_the_members_that_reached_them():
    group = Group(TASK, (played((2, 0), (1, 1.0), name="a"), played((1, 1.0), name="b"), played((1, 0), (2, 0))))
    method = ReinforcePP(ReinforcePP.Config(baseline="group", turn_gamma=0.5, whiten_advantages=False))
    # turn 0: 0.5, 1, 0, mean 0.5; turn 1: 1, –, 0, mean 0.5
    assert method.advantages(group) == [close([0, 0.5]), close([0.5]), close([-0.5, -0.5])]
    rows, _ = compute_batch_advantages(method.samples(group), method.advantage_config())
    assert [mean_advantage_per_turn(r, row) for r, row in zip(group.rollouts, rows, strict=True)] == method.advantages(
        group
    )
    assert method.has_learning_signal(group) and not method.has_learning_signal(Group(TASK, ()))


def test_rows_without_rewards_keep_the_advantages_they_have():
    plain = replace(rewarded([1.0]), token_rewards=None, advantages=[0.0, 7.0])
    done, _ = compute_batch_advantages([plain, rewarded([1.0, 0.0])], AdvantageConfig())
    a = 0.5 / (sqrt(0.5) + 1e-6)
    assert done[0] is plain and list(done[1].advantages)[1:] == close([a, -a]) and len(done) == 2
    assert compute_batch_advantages([plain], AdvantageConfig()) == ([plain], {})


def test_crediting_without_what_it_needs_is_refused():
    for credit in (AdvantageConfig(critic=ValueConfig()), AdvantageConfig(kl_coef=0.1)):
        with pytest.raises(ValueError, match="Advantages need"):
            compute_batch_advantages([rewarded([1.0])], credit)
    with pytest.raises(ValueError, match="without a critic"):
        AdvantageConfig(gae_lambda=0.9)
    with pytest.raises(ValueError, match="discounts has 1 entries for 2 tokens"):
        replace(rewarded([1.0]), token_rewards=TokenRewards([0.0, 1.0], [0.0]))


# -- the penalty's sign ----------------------------------------------------------------------------------------
def test_a_token_that_drifted_up_from_the_reference_is_worth_less():
    rows = [rewarded([0.0, 1.0]), rewarded([0.0, 1.0])]
    reference = [[0, log(0.5), log(0.5)], [0, log(0.5), log(0.25)]]  # the last token of row 1 is twice as likely now
    (still, drifted), found = compute_batch_advantages(
        rows, AdvantageConfig(whiten_advantages=False, kl_coef=0.1), reference=reference
    )
    assert list(still.advantages) == close([0, 1, 1])
    # r − β·log 2, for the token and for the one before it
    assert list(drifted.advantages) == close([0, 1 - 0.1 * log(2), 1 - 0.1 * log(2)])
    assert found["kl_in_reward"] == close(log(2) / 4)


def test_with_no_reward_the_penalty_alone_pulls_the_policy_back_to_its_reference():
    # π(0) = σ(w) = 3/4 at w = log 3, the reference has 1/2: three samples of action 0 and one of action 1
    # A(0) = −β log 1.5, A(1) = −β log 0.5
    # dL/dw = −¼[3·A(0)·(1 − ¾) + A(1)·(0 − ¾)] = ¼·¾·β·(log 1.5 − log 0.5) = 0.1875·β·log 3 > 0: w falls
    rows = [rewarded([0.0], logprob=log(p)) for p in (0.75, 0.75, 0.75, 0.25)]
    done, _ = compute_batch_advantages(
        rows, AdvantageConfig(whiten_advantages=False, kl_coef=0.2), reference=[[0, log(0.5)]] * 4
    )
    _, slope = toy_policy(done, actions=[0, 0, 0, 1], x=[1, 1, 1, 1], w=log(3))
    assert slope == close(0.1875 * 0.2 * log(3))


# -- loss and gradient -----------------------------------------------------------------------------------------
def toy_policy(
    rows: Sequence[TrainingSample], actions: Sequence[int], x: Sequence[float], w: float, **config: float
) -> tuple[float, float]:
    """Loss of the rows' tokens, in order, under π(0) = σ(w·x), and its derivative to w."""
    parameter = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    (batch,) = micro_batches(rows, 1000, 0, CPU)
    assert [id(row) for row in batch.samples] == [id(row) for row in rows]
    z = parameter * torch.tensor(x, dtype=torch.float64)
    logp_N = torch.nn.functional.logsigmoid(torch.where(torch.tensor(actions) == 0, z, -z))
    tokens = replace(batch.tokens, old_logprobs_N=batch.tokens.old_logprobs_N.double())
    total, _ = loss(logp_N, tokens, loss_normalizers(rows), LossConfig(**config))
    total.backward()
    return float(total.detach()), float(parameter.grad or 0)


def test_loss_and_gradient_of_reinforce_pp():
    # returns 1, 1 and 0, 0: mean ½, s = √(4·¼ / 3) = 1/√3, advantages ±½·√3
    rows, found = compute_batch_advantages([rewarded([0.0, 1.0]), rewarded([0.0, 0.0])], AdvantageConfig())
    a = 0.5 / (1 / sqrt(3) + 1e-6)
    assert [list(row.advantages) for row in rows] == [close([0, a, a]), close([0, -a, -a])]
    assert found["advantage/mean"] == 0.5 and found["advantage/std"] == 0.5
    # at w = 0 all probabilities are ½ as when sampled: ratios 1, loss −mean A = 0
    # dL/dw = −¼·a·[(1 − ½)·1 + (0 − ½)·2 − (1 − ½)·1 − (1 − ½)·3] = −¼·a·(−2.5)
    value, slope = toy_policy(rows, actions=[0, 1, 0, 0], x=[1, 2, 1, 3], w=0)
    assert value == close(0) and slope == pytest.approx(2.5 / 4 * sqrt(3) / 2, rel=1e-5)
    # at w = ln 1.5 the first token has π = 0.6, ratio 1.2 > 1 + 0.1, A > 0: clipped, no gradient; and the first of
    # the second row, x = 3, π = 1.5³/(1 + 1.5³) = 27/35, ratio 54/35, A < 0: not clipped
    rows = [replace(row, rl_weights=[0.0, 1.0, 0.0]) for row in rows]
    value, slope = toy_policy(rows, actions=[0, 0], x=[1, 3], w=log(1.5), epsilon=0.1, epsilon_high=0.1)
    assert value == pytest.approx(-(1.1 * a - 54 / 35 * a) / 2, rel=1e-6)
    assert slope == pytest.approx(54 / 35 * a / 2 * (1 - 27 / 35) * 3, rel=1e-6)


def test_loss_and_gradient_of_ppo():
    row = rewarded([0.0, 0.5, 1.0], discounts=[1, 0.5, 0.5])
    credit = AdvantageConfig(gae_lambda=0.5, whiten_advantages=False, critic=ValueConfig(coef=0.5, clip=0.2))
    # V = u·h + c with u = 0.1, c = 0.2, h = 0, 2, 4; advantages as in the first test, returns A + V
    (done,), found = compute_batch_advantages([row], credit, values=[[0, 0.2, 0.4, 0.6]])
    assert list(done.advantages) == close([0, 0.45, 0.5, 0.4]) and list(done.value_targets.targets) == close(
        [0, 0.65, 0.9, 1]
    )
    assert list(done.value_targets.estimates) == close([0, 0.2, 0.4, 0.6])
    # returns: mean 0.85, squares 0.04 + 0.0025 + 0.0225 = 0.065; errors 0.45, 0.5, 0.4: mean 0.45, squares 0.005
    assert found["value/explained_variance"] == close(1 - 0.005 / 0.065)
    assert (found["value/mean"], found["value/return"]) == (close(0.4), close(0.85))
    # policy: loss −(0.45 + 0.5 + 0.4)/3; dL/dw = −⅓[0.45·½·1 + 0.5·(−½)·2 + 0.4·½·(−1)] = 0.475/3
    assert toy_policy([done], actions=[0, 1, 0], x=[1, 2, -1], w=0) == (close(-0.45), close(0.475 / 3))
    # head: ½·½·(0.45² + 0.5² + 0.4²)/3; dL/du = ½·⅓·(0·0 − 0.5·2 − 0.4·4), dL/dc = ½·⅓·(−1.35)
    value, du, dc = toy_head(done, credit.critic, u=0.1, c=0.2)
    assert (value, du, dc) == (close(0.25 * 0.6125 / 3), close(-2.6 / 6), close(-1.35 / 6))


def toy_head(row: TrainingSample, critic: ValueConfig | None, u: float, c: float) -> tuple[float, float, float]:
    assert critic is not None
    slope, constant = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (u, c))
    (batch,) = micro_batches([row], 1000, 0, CPU)
    values_N = slope * torch.tensor([0.0, 2, 4], dtype=torch.float64) + constant
    tokens = batch.tokens
    assert tokens.values_N is not None and tokens.returns_N is not None
    part, _ = value_loss(values_N, tokens.values_N, tokens.returns_N, tokens.rl_N, loss_normalizers([row]).rl, critic)
    part.backward()
    return float(part.detach()), float(slope.grad or 0), float(constant.grad or 0)


def test_a_value_that_moved_too_far_toward_its_return_is_not_moved_further():
    moved = torch.tensor([0.5, 0.5, 0.1], requires_grad=True)
    before, returns = torch.tensor([0.2, 0.4, 0.6]), torch.tensor([0.65, 0.9, 1.0])
    losses = value_losses(moved, before, returns, 0.2)
    # 0.5 → clipped to 0.4: (−0.25)² beats (−0.15)², held; 0.5: within; 0.1 → 0.4: (−0.9)² beats (−0.6)², free
    assert losses.tolist() == close([0.5 * 0.0625, 0.5 * 0.16, 0.5 * 0.81])
    losses.sum().backward()
    assert moved.grad is not None and moved.grad.tolist() == close([0, -0.4, -0.9])
    assert value_losses(moved, before, returns, None).tolist() == close([0.5 * 0.0225, 0.5 * 0.16, 0.5 * 0.81])
    weights = torch.tensor([1.0, 1.0, 0.0])
    _, sums = value_loss(moved, before, returns, weights, 2.0, ValueConfig(clip=0.2))
    assert sums == {"value/loss": close(0.5 * 0.2225), "value/clip_ratio": 1}
    _, sums = value_loss(moved, before, torch.tensor([0.65, torch.nan, 1]), weights, 2.0, ValueConfig(clip=None))
    assert sums == {"value/loss": close(0.5 * 0.0225), "value/clip_ratio": 0}


# -- what a configuration reaches ------------------------------------------------------------------------------
GROUP = Group(TASK, (played((2, 0), (1, 1.0), name="a"), played((3, 1.0), name="b"), played((1, 0), (1, 0), name="c")))


def advantages(method: Any, values: bool = False) -> list[float]:
    """Of all tokens of the group's rows, with a reference and values that differ from token to token."""
    rows = method.samples(GROUP)
    reference = [[-0.1 * i for i in range(len(row.rl_weights))] for row in rows]
    told = [[0.05 * i for i in range(len(row.rl_weights))] for row in rows] if values else None
    done, _ = compute_batch_advantages(rows, method.loss_options().advantage, values=told, reference=reference)
    return [a for row in done for a in row.advantages]


@pytest.mark.parametrize(
    "change",
    [{"gamma": 0.9}, {"turn_gamma": 0.5}, {"whiten_advantages": False}, {"kl_coef": 0.1}, {"baseline": "group"},
     {"kl_coef": 0.1, "kl_estimator": "k2"}, {"kl_coef": 0.1, "kl_estimator": "k3"}],
    ids=str,
)  # fmt: skip
def test_each_option_of_reinforce_pp_changes_the_advantages(change: dict[str, Any]):
    plain, changed = (ReinforcePP(ReinforcePP.Config(**options)) for options in ({}, change))
    assert advantages(plain) != pytest.approx(advantages(changed), abs=1e-6)
    if len(change) > 1:
        k1 = ReinforcePP(ReinforcePP.Config(kl_coef=0.1))
        assert advantages(k1) != pytest.approx(advantages(changed), abs=1e-6)


def test_the_penalty_is_in_the_reward_or_in_the_loss_but_not_in_both():
    method = ReinforcePP(ReinforcePP.Config(kl_coef=0.1, kl_in="loss"))
    options = method.loss_options()
    assert (
        options.kl_coef == 0.1
        and options.advantage is not None
        and options.advantage.kl_coef == 0
        and options.uses_ref_model
    )
    assert all(list(row.kl_weights) == list(row.rl_weights) for row in method.samples(GROUP))
    method = ReinforcePP(ReinforcePP.Config(kl_coef=0.1))
    options = method.loss_options()
    assert (
        options.kl_coef == 0
        and options.advantage is not None
        and options.advantage.kl_coef == 0.1
        and options.uses_ref_model
    )
    assert not any(any(row.kl_weights) for row in method.samples(GROUP))
    assert not ReinforcePP(ReinforcePP.Config()).loss_options().uses_ref_model


@pytest.mark.parametrize(
    "change", [{"gae_lambda": 0.5}, {"gamma": 0.9}, {"turn_gamma": 0.5}, {"whiten_advantages": False}], ids=str
)
def test_each_option_of_ppos_credit_changes_the_advantages(change: dict[str, Any]):
    plain, changed = (PPO(PPO.Config(**options)) for options in ({}, change))
    assert advantages(plain, True) != pytest.approx(advantages(changed, True), abs=1e-6)


def test_ppos_other_options_reach_the_critic():
    config = PPO.Config(
        value_coef=0.3, value_clip=None, value_learning_rate=0.01, value_trains_adapter=False, epsilon_high=0.3
    )
    options = PPO(config).loss_options()
    assert options.advantage is not None and options.advantage.critic == ValueConfig(0.3, None, 0.01, False)
    assert options.epsilon_high == 0.3


@pytest.mark.parametrize(
    ("method", "stage", "said"),
    [
        ({"type": "reinforce_pp"}, {"max_group_resamples": 2}, "learns from them as well"),
        ({"type": "ppo"}, {"max_group_resamples": 1}, "learns from them as well"),
        ({"type": "reinforce_pp", "baseline": "group"}, {"group_size": 1}, "no other dialogue"),
        ({"type": "reinforce_pp", "baseline": "group", "gamma": 0.9}, {}, "set gamma to 1"),
        ({"type": "reinforce_pp"}, {"group_size": 1, "tasks_per_step": 1}, "a step of one dialogue"),
        ({"type": "reinforce_pp", "kl_in": "loss", "kl_estimator": "k2"}, {}, "kl_estimator has no effect"),
    ],
)
def test_stages_that_cannot_be_meant_are_refused(method: dict[str, Any], stage: dict[str, Any], said: str):
    stages = [{"name": "s", "method": method, "steps": 1, **stage}]
    with pytest.raises((ValueError, ConfigError), match=said):
        RunConfig.model_validate({"environment": "secret_code", "stages": stages})
