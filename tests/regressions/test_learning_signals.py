"""Which groups and returns have a learning signal: random rewards, preflight, dynamic sampling. Numbers by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from statistics import fmean, stdev
from typing import Any, cast

import pytest

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.environments.base import wrap_answer
from rl2f_core.errors import ConfigError
from rl2f_core.learning.methods.advantages import compute_batch_advantages
from rl2f_core.learning.methods.base import DemonstrationSettings, StepContext
from rl2f_core.learning.methods.samples import mean_advantage_per_turn
from rl2f_core.learning.training.collector import exchange_rewards, group_requests
from rl2f_core.learning.training.demonstrations import demonstrate
from rl2f_core.learning.training.preflight import PreflightReport, preflight, signal_rate
from rl2f_core.learning.training.step_metrics import outcomes_of
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.types import Dialogue, Group, RewardTerm, Rollout, StopReason, Task, TokenSequence, Turn, Verdict

TASK = Task(id="t", environment="e", split="train", level="l", public={}, privileged={})


def method_of(name: str, **options: Any) -> Any:
    kind: Any = registry.get("method", name)
    method, nothing = kind(kind.Config(**options)), cast(Any, None)
    method.begin_step(StepContext(nothing, 100, 0, 1, nothing))
    return method


def rollout(index: int, *rewards: float, tokens: int = 3) -> Rollout:
    """A dialogue of these rewards, one per turn, each of `tokens` tokens; reward 1 is a correct attempt."""
    turns = tuple(
        Turn(index=k, attempt="x", verdict=Verdict(correct=r == 1, score=r), rewards=(RewardTerm(name="r", score=r),))
        for k, r in enumerate(rewards)
    )
    n = tokens * len(rewards)
    sequence = TokenSequence(
        tuple(range(10, 11 + n)), (False, *[True] * n), (0.0, *[-0.5] * n), (-1, *(i // tokens for i in range(n)))
    )
    stop = StopReason.SOLVED if rewards[-1] == 1 else StopReason.EXHAUSTED
    names: dict[str, Any] = {"id": f"d{index}", "task_id": "t", "group": "g", "index": index % 8, "seed": index}
    return Rollout(Dialogue(turns=turns, stop_reason=stop, **names), (sequence,))


def group(*rewards: Sequence[float]) -> Group:
    return Group(TASK, tuple(rollout(i, *turns) for i, turns in enumerate(rewards)))


# -- random rewards --------------------------------------------------------------------------------------------------
def trained_advantages(method: Any, groups: Sequence[Group]) -> Iterator[tuple[str, int, float]]:
    """Yield dialogue, turn and advantage of all trained attempts; turn k ends with token 13 + 3·k."""
    options = method.loss_options()
    samples = [sample for group in groups for sample in method.samples(group)]
    rollouts = {r.dialogue.id: r for group in groups for r in group.rollouts}
    if options.advantage is None:
        for sample in samples:
            for token, weight, advantage in zip(sample.token_ids, sample.rl_weights, sample.advantages, strict=True):
                if weight and token % 3 == 1:
                    yield sample.dialogue, (token - 13) // 3, advantage
        return
    values = [[0.0] * len(sample.token_ids) for sample in samples]
    for sample in compute_batch_advantages(samples, options.advantage, values)[0]:
        advantages = mean_advantage_per_turn(rollouts[sample.dialogue], sample)
        yield from ((sample.dialogue, k, a) for k, a in enumerate(advantages))


@pytest.mark.parametrize(
    ("name", "turns", "options"),
    [
        ("rlvr", 1, {}), ("rl2f", 3, {}), ("rl2f", 3, {"advantage_level": "dialogue", "scale_rewards": True}),
        ("rltf_grpo", 3, {}), ("rltf_sd", 2, {"rl_coef": 1.0}), ("reinforce_pp", 3, {"turn_gamma": 0.9}),
        pytest.param("rltf_sd", 3, {"rl_coef": 1.0, "gamma": 0.0}, marks=pytest.mark.slow),
        pytest.param(
            "sdpo", 3, {"rl_coef": 1.0, "feedback": "never", "peer_solutions": "none"}, marks=pytest.mark.slow
        ),
        pytest.param("reinforce_pp", 3, {"turn_gamma": 0.9, "baseline": "group"}, marks=pytest.mark.slow),
        pytest.param("ppo", 3, {"turn_gamma": 0.9, "gae_lambda": 1.0}, marks=pytest.mark.slow),
    ],
    ids=str,
)  # fmt: skip
def test_random_rewards_favor_no_correct_attempt(name: str, turns: int, options: dict[str, Any]) -> None:
    """Three of ten attempts are correct. At each turn the mean advantage of correct and wrong attempts is the same."""
    method, random = method_of(name, **options), Random(0)
    found: dict[tuple[int, bool], list[float]] = {}
    for step in range(40):
        rollouts = []
        for i in range(32):
            solved = next((k for k in range(turns) if random.random() < 0.3), turns)
            rollouts.append(rollout(1000 * step + i, *[float(k == solved) for k in range(min(turns, solved + 1))]))
        exchanged = exchange_rewards(rollouts, method.turn_discount)
        groups = [Group(TASK, tuple(exchanged[i : i + 8])) for i in range(0, 32, 8)]
        verdicts = {(r.dialogue.id, k): t.verdict.correct for r in exchanged for k, t in enumerate(r.dialogue.turns)}
        for dialogue, k, advantage in trained_advantages(method, groups):
            found.setdefault((k, verdicts[dialogue, k]), []).append(advantage)
    for k in {k for k, _ in found}:
        correct, wrong = found[k, True], found[k, False]
        error = (stdev(correct) ** 2 / len(correct) + stdev(wrong) ** 2 / len(wrong)) ** 0.5
        assert abs(fmean(correct) - fmean(wrong)) <= 4 * error


def test_random_rewards_of_sdpo_do_not_give_first_rewards_back() -> None:
    """All are solved at turn 1 or 2, so without discount all returns are 1 and 1 − 1 is the earned reward."""
    earned = [rollout(i, *([1.0] if i % 2 else [0.0, 1.0])) for i in range(40)]
    rewards = [r.dialogue.turns[0].reward for r in exchange_rewards(earned, method_of("sdpo").turn_discount)]
    assert sorted(rewards) == [0.0] * 20 + [1.0] * 20 and 5 < sum(rewards[1::2]) < 15


@pytest.mark.parametrize(
    ("method", "turns", "message"),
    [
        ({"type": "sdpo"}, 2, "nothing reads rewards"), ({"type": "sdpo", "rl_coef": 1.0}, 2, ""),
        ({"type": "reinforce_pp", "gamma": 0.9}, 2, "fewer tokens follow.*method.gamma to 1"),
        ({"type": "ppo", "gamma": 0.9, "gae_lambda": 1.0}, 2, "method.gamma to 1"),
        ({"type": "ppo"}, 2, "method.gae_lambda to 1"), ({"type": "ppo", "gae_lambda": 1.0}, 2, ""),
        ({"type": "rltf_sd"}, 3, "rewards of single turns"), ({"type": "rltf_sd"}, 2, ""),
        ({"type": "rltf_sd", "gamma": 0.0}, 3, ""), ({"type": "rltf_sd", "rl_coef": 0.0}, 3, ""),
        ({"type": "sft_correct"}, 2, "by their verdicts"), ({"type": "rltf_grpo"}, 4, ""),
    ],
    ids=str,
)  # fmt: skip
def test_random_rewards_are_refused_if_a_method_reads_more_than_returns(
    method: dict[str, Any], turns: int, message: str
) -> None:
    fresh = method["type"] in ("rltf_sd", "sft_correct", "rltf_grpo")
    rollout = {"max_turns": turns, "prompting": "reprompt" if fresh else "append"}
    stage = {"name": "s", "method": method, "steps": 1, "rewards": "random"}
    data = {"environment": "secret_code", "rollout": rollout, "stages": [stage]}
    if message:
        with pytest.raises(ConfigError, match=message):
            parse_config(data)
    else:
        parse_config(data)
    parse_config({**data, "stages": [{**stage, "rewards": "earned"}]})


# -- groups with a learning signal -----------------------------------------------------------------------------------
def outcomes(name: str, *rewards: Sequence[float], **options: Any) -> tuple[float, float, float]:
    values = outcomes_of([group(*rewards)], method_of(name, **options))
    return values["groups/frac_mixed"], values["frac_reward_zero_std"], values["groups/frac_all_incorrect"]


@pytest.mark.parametrize(
    ("name", "options"),
    [("rl2f", {"gamma": 0.0}), ("rltf_grpo", {"gamma": 0.0}), ("reflect_rl", {"gamma": 0.0}),
     ("reinforce_pp", {"turn_gamma": 0.0}), ("ppo", {"turn_gamma": 0.0})],
    ids=str,
)  # fmt: skip
def test_a_group_is_mixed_if_returns_of_a_later_turn_differ(name: str, options: dict[str, Any]) -> None:
    """Without discount of later rewards all first returns are 0, and those of the second turn 1, 0 and 0."""
    rewards = [0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]
    assert outcomes(name, *rewards, **options) == (1, 0, 0)
    method = method_of(name, **options)
    assert method.has_learning_signal(group(*rewards))
    if name == "rl2f":
        first, second, third = method.advantages(group(*rewards))
        assert (first[1], second[1], third[1]) == pytest.approx((2 / 3, -1 / 3, -1 / 3))


def test_equal_first_returns_are_a_coincidence_for_turns_and_decide_for_dialogues() -> None:
    rewards = [1.0, 0.0], [0.0, 2.0]  # 1 + ½·0 = 0 + ½·2
    assert outcomes("rl2f", *rewards, gamma=0.5) == (1, 0, 0)
    assert outcomes("rl2f", *rewards, gamma=0.5, advantage_level="dialogue")[:2] == (0, 1)
    assert outcomes("sdpo", [0.0, 0.0], [0.0, 2.0]) == (0, 1, 1), "its second attempts are not trained"


@pytest.mark.parametrize(
    ("options", "has_signal"),
    [({}, True), ({"sd_baseline": "none"}, True), ({"sd_baseline": "second"}, False), ({"rl_coef": 0.0}, False),
     ({"start_step": 1}, False)],
    ids=str,
)  # fmt: skip
def test_all_correct_revisions_are_a_learning_signal_of_self_distillation(
    options: dict[str, Any], has_signal: bool
) -> None:
    """With first rewards 0 and second ones 1, the revisions have the advantage 1 − 0, or 1 without a baseline."""
    method, equal = method_of("rltf_sd", **options), group([0.0, 1.0], [0.0, 1.0])
    assert method.has_learning_signal(equal) == has_signal
    assert [sample.has_gradient for sample in method.samples(equal)] == [False] * 2 + [True] * 2 * has_signal
    assert outcomes("rltf_sd", [0.0, 1.0], [0.0, 1.0], **options) == (0, 1, 0)


def test_sdpo_has_no_signal_from_attempts_without_hint_solution_and_advantage() -> None:
    method = method_of("sdpo", rl_coef=1.0, feedback="never", peer_solutions="none")
    assert not method.has_learning_signal(group([0.0], [0.0])) and method.has_learning_signal(group([0.0], [1.0]))


def test_equal_groups_have_no_advantage_under_a_group_baseline_and_a_discount_per_token() -> None:
    """The mean ½ of the second group is subtracted from its rewards, which the tokens discount by 0.9 and 0.81."""
    method = method_of("reinforce_pp", gamma=0.9, baseline="group", whiten_advantages=False)
    equal, mixed = group([1.0], [1.0]), group([1.0], [0.0])
    samples = [sample for part in (equal, mixed) for sample in method.samples(part)]
    found, _ = compute_batch_advantages(samples, method.loss_options().advantage)
    advantages = [0.5 * 0.81, 0.5 * 0.9, 0.5]
    assert [list(sample.advantages[1:]) for sample in found] == [
        [0, 0, 0], [0, 0, 0], pytest.approx(advantages), pytest.approx([-a for a in advantages])
    ]  # fmt: skip
    two_turns = group([0.0, 1.0], [0.0, 1.0])
    found, _ = compute_batch_advantages(method.samples(two_turns), method.loss_options().advantage)
    assert not any(sample.has_gradient for sample in found)


# -- preflight -------------------------------------------------------------------------------------------------------
def look(
    method: Any, is_right: Callable[[int, int], bool], *, seconds: float = 0.0, min_rate: float = 0.1, **stage: Any
) -> PreflightReport:
    """Return the preflight of 4 tasks with 8 dialogues of one turn; `is_right` has their numbers."""
    data = {
        "environment": {"type": "guess_number", "low": 1, "size": 16}, "backend": "fake",
        "stages": [{"name": "s", "method": method, "steps": 2, "tasks_per_step": 8, **stage}],
        "rollout": {"max_turns": 1, "max_new_tokens": 60, "max_seq_len": 4096},
        "preflight": {"num_tasks": 4, "samples_per_task": 8, "min_mixed_rate": min_rate},
    }  # fmt: skip
    config, texts = parse_config(data), list[str]()
    assert isinstance(config, RunConfig)
    engine = build_engine(config, FakeBackend(script=lambda prompt, rng: texts.pop(0)))
    tasks = [engine.environment.task("train", config.stages[0].num_tasks + i) for i in range(4)]
    for number, task in enumerate(tasks):
        answer = int(engine.environment.gold_answer(task))
        texts += [wrap_answer(str(answer if is_right(number, i) else answer % 16 + 1)) for i in range(8)]
    kind: Any = registry.get("method", config.stages[0].method.type)
    method = kind(config.stages[0].method)
    return preflight(engine, config, config.stages[0], method, time_update=lambda samples: seconds)[0]


@pytest.mark.parametrize("method", ["reinforce_pp", "ppo"])
def test_a_method_that_compares_all_groups_needs_no_mixed_ones(method: str) -> None:
    by_task = look(method, lambda task, i: task % 2 == 0)
    assert by_task.passed and by_task.outcomes["groups/frac_mixed"] == 0 and by_task.expected_mixed_groups == 8
    wrong = look(method, lambda task, i: False)
    assert wrong.reason.startswith("Only 0% of the groups have a learning signal; 0 of 32") and "too hard" in wrong.fix


@pytest.mark.parametrize("method", [{"type": "reinforce_pp", "baseline": "group"}, "rlvr"], ids=str)
def test_a_method_that_compares_the_dialogues_of_a_group_needs_mixed_ones(method: Any) -> None:
    assert not look(method, lambda task, i: task % 2 == 0).passed
    assert look(method, lambda task, i: i % 2 == 0).passed


@pytest.mark.parametrize(("size", "groups"), [(2, "≈ 2.0"), (4, "≈ 4.0"), (8, "≈ 8.0"), (32, "≥ 8.0")])
def test_the_preflight_expects_useful_groups_of_the_stages_size(size: int, groups: str) -> None:
    """One of 8 dialogues is correct, so it is in a group of 2 with probability 2 / 8; a step has 8 groups."""
    report = look("rlvr", lambda task, i: i == 3, group_size=size, min_rate=0.3)
    assert report.groups_with_signal == groups and f"{groups} useful groups a step" in report.to_text()
    assert report.passed == (size > 2) and report.reason.startswith("Only 25% of the groups" if size == 2 else "")
    assert signal_rate([group([1.0], *[[0.0]] * 7), group(*[[0.0]] * 8)], method_of("rlvr"), size) == min(size, 8) / 16


def test_a_refusal_of_large_groups_names_the_number_of_dialogues() -> None:
    assert "preflight.samples_per_task: 32" in look("rlvr", lambda task, i: False, group_size=32).fix
    assert "samples_per_task" not in look("rlvr", lambda task, i: False, group_size=8).fix


@pytest.mark.parametrize("iterations", [1, 4])
def test_the_preflight_counts_the_seconds_of_every_iteration(iterations: int) -> None:
    """32 dialogues take 1,000 s per iteration, and a step has 8 · 2 dialogues."""
    report = look("rlvr", lambda task, i: i == 3, seconds=1000.0, group_size=2, num_iterations=iterations)
    assert report.seconds_per_step == pytest.approx(500 * iterations, abs=50)
    assert report.total_seconds == pytest.approx(2 * report.seconds_per_step)


# -- demonstrations --------------------------------------------------------------------------------------------------
def demonstrations(turns: int, final: float, first: float, count: int = 40) -> list[Dialogue]:
    rollout = {"max_turns": turns, "max_new_tokens": 64, "max_seq_len": 4096}
    stages = [{"name": "s", "method": "sft", "steps": 1}]
    data = {"backend": "fake", "environment": "secret_code", "rollout": rollout, "stages": stages}
    engine = build_engine(parse_config(data), FakeBackend())  # type: ignore[arg-type]
    tasks = [engine.environment.task("train", i) for i in range(count)]
    requests = [request for i, task in enumerate(tasks) for request in group_requests(task, f"g{i}", 1, 0, i)]
    return [r.dialogue for r in demonstrate(engine, requests, DemonstrationSettings(0.5, final, first), turns)]


@pytest.mark.parametrize(("final", "first", "correct"), [(1.0, 0.0, 40), (1.0, 0.5, 40), (0.0, 1.0, 40), (0.0, 0.0, 0)])
def test_the_rate_of_correct_last_turns_holds_for_a_single_turn(final: float, first: float, correct: int) -> None:
    dialogues = demonstrations(1, final, first)
    assert all(len(d.turns) == 1 for d in dialogues)
    assert sum(d.turns[-1].verdict.correct for d in dialogues) == pytest.approx(correct, abs=2 if not correct else 0)


def test_demonstrations_of_several_turns_are_those_of_recorded_runs() -> None:
    """Their numbers of turns, negative if the last turn is wrong."""
    dialogues = demonstrations(3, 0.3, 0.0, count=12)
    signed = [len(d.turns) * (1 if d.turns[-1].verdict.correct else -1) for d in dialogues]
    assert signed == [2, 3, -3, -2, 3, -3, 1, -3, -3, 2, -2, -3]
