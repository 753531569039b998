"""Metrics of a training step: which groups, which turns and which discount they count. Numbers by hand."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from run_helpers import EvenLength

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.dialogue.metrics.dialogues import compute_metrics
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.learning.methods.base import Method
from rl2f_core.learning.training.collector import Collector
from rl2f_core.learning.training.preflight import preflight
from rl2f_core.learning.training.step_metrics import outcomes_of, rollout_metrics
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, Event, JsonlSink, MetricEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.types import Dialogue, Group, RewardTerm, Rollout, StopReason, Task, Turn, Verdict

TASK = Task(id="t", environment="e", split="train", level="l", public={}, privileged={})


def method_of(name: str, **options: Any) -> Method:
    held = registry.get("method", name)
    return held(held.Config(**options))


def played(*rewards: float, index: int = 0) -> Rollout:
    """A dialogue with these rewards, one per turn; 1 is correct."""
    turns = tuple(
        Turn(index=k, attempt="x", verdict=Verdict(correct=r == 1, score=r), rewards=(RewardTerm(name="r", score=r),))
        for k, r in enumerate(rewards)
    )
    stop = StopReason.SOLVED if rewards[-1] == 1 else StopReason.EXHAUSTED
    return Rollout(Dialogue(id=f"d{index}", task_id="t", group="g", index=index, turns=turns, stop_reason=stop), ())


def fractions(name: str, *groups: tuple[Rollout, ...], **options: Any) -> dict[str, float]:
    return outcomes_of([Group(TASK, group) for group in groups], method_of(name, **options))


# -- defect 2: dynamic sampling --------------------------------------------------------------------------------
@pytest.mark.slow
def test_curves_under_dynamic_sampling_estimate_the_true_solve_rate() -> None:
    """A student is right with p = .10; the groups that are kept alone would show about .17."""

    def script(text: str, rng: random.Random) -> str:
        a, b = re.findall(r"What is (\d+) \+ (\d+)\?", text)[0]
        return f"<answer>{int(a) + int(b) + (rng.random() >= 0.10)}</answer>"

    stage = {"name": "rl", "method": "rlvr", "steps": 60, "tasks_per_step": 8, "group_size": 4}
    config = parse_config({"environment": "arithmetic", "rollout": {"max_new_tokens": 60},
                           "stages": [{**stage, "max_group_resamples": 8}]})  # fmt: skip
    assert isinstance(config, RunConfig)
    method = method_of("rlvr")
    collector = Collector(build_engine(config, FakeBackend(script=script)), config.stages[0], seed=0)
    rows = []
    for step in range(60):
        groups = collector.rollouts(collector.resolve(step), method)
        rows.append(rollout_metrics(groups, collector.discarded_groups, 1, method, resamples=True))
    means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    assert means["cum_acc/1"] == pytest.approx(0.10, abs=0.015) == means["reward"]
    # P(mixed) = 1 − .9⁴ − .1⁴ = .344
    assert means["groups/frac_mixed"] == pytest.approx(0.344, abs=0.04)
    assert means["trained/cum_acc/1"] > 0.14 and means["trained/groups/frac_mixed"] > 0.45


def test_groups_trained_on_have_metrics_of_their_own_names() -> None:
    mixed, wrong = Group(TASK, (played(1), played(0))), Group(TASK, (played(0), played(0)))
    method = method_of("rlvr")
    values = rollout_metrics([mixed], [wrong, wrong, wrong], 1, method, resamples=True)
    # all groups: 1 of 8 dialogues is solved, 1 of 4 groups is mixed; trained on: 1 of 2, and the only group
    assert (values["reward"], values["cum_acc/1"], values["groups/frac_mixed"]) == (1 / 8, 1 / 8, 1 / 4)
    assert values["groups/frac_all_incorrect"] == values["frac_reward_zero_std"] == 3 / 4
    trained = {name: value for name, value in values.items() if name.startswith("trained/")}
    assert trained == {
        "trained/reward": 1 / 2,
        "trained/cum_acc/1": 1 / 2,
        "trained/groups/frac_mixed": 1,
        "trained/groups/frac_all_correct": 0,
        "trained/groups/frac_all_incorrect": 0,
    }
    plain = rollout_metrics([mixed], [], 1, method, resamples=False)
    assert not any(name.startswith("trained/") for name in plain) and plain["reward"] == 1 / 2


# -- a run -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def events(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The events of a run sft → rl2f with dynamic sampling on the tiny model."""
    registry.discover()
    patch = pytest.MonkeyPatch()
    patch.setitem(registry._components["environment"], "even_length", EvenLength)
    shared = {"tasks_per_step": 2, "steps": 2}
    config = RunConfig.model_validate(
        {
            "seed": 1,
            "model": {"name": str(tiny), "device": "cpu", "dtype": "float32"},
            "environment": {"type": "even_length", "length": 6, "pool": 26, "letters": 8},
            "rollout": {"max_turns": 1, "max_new_tokens": 6, "max_seq_len": 256},
            "lora": {"rank": 4, "alpha": 8},
            "evaluation": {"checkpoints": []},
            "preflight": {"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True},
            "stages": [
                {"name": "warm", "method": "sft", "group_size": 1, **shared},
                {"name": "rl", "method": "rlvr", "group_size": 2, "max_group_resamples": 3, **shared},
            ],
        }
    )
    run_dir = RunDir.create(tmp_path_factory.mktemp("run") / "run", config)
    assert execute(config, run_dir, JsonlSink(run_dir.events_path), bool).status == "succeeded"
    patch.undo()
    return list(read_events(run_dir.events_path, strict=True))


def test_the_metrics_of_a_step_cover_all_dialogues_that_it_records(events: list[Event]) -> None:
    metrics = {e.step: e.values for e in events if isinstance(e, MetricEvent) and e.stage == "rl"}
    assert len(metrics) == 2 and any(values["groups/resampled"] for values in metrics.values())
    for step, values in metrics.items():
        dialogues = [
            e.dialogue
            for e in events
            if isinstance(e, DialogueEvent) and (e.phase, e.stage, e.step) == ("train", "rl", step)
        ]
        assert len(dialogues) == 2 * (2 + values["groups/resampled"])
        expected = compute_metrics(dialogues, 1).flat()
        assert {name: values[name] for name in expected} == expected


def test_no_stage_trains_on_the_tasks_of_an_earlier_stage_or_of_a_preflight(events: list[Event]) -> None:
    tasks: dict[str, set[str]] = {}
    for event in events:
        if isinstance(event, DialogueEvent):
            tasks.setdefault(f"{event.phase}/{event.stage}", set()).add(event.task.id)
    assert set(tasks) == {"train/warm", "preflight/rl", "train/rl"}
    assert len(set.union(*tasks.values())) == sum(map(len, tasks.values()))
    assert len(tasks["train/warm"]) == 4 and len(tasks["train/rl"]) > 4


# -- defect 4: returns and solved dialogues --------------------------------------------------------------------
@pytest.mark.parametrize("name", ["ppo", "reinforce_pp"])
def test_the_outcomes_of_groups_use_the_turn_discount_of_methods_with_token_rewards(name: str) -> None:
    """Solved at turn 1 and at turn 2: returns 1 and 0.9 with γ 0.9, equal without a discount per turn."""
    group = (played(1), played(0, 1))
    assert fractions(name, group, turn_gamma=0.9)["groups/frac_mixed"] == 1
    assert fractions(name, group, turn_gamma=1.0)["groups/frac_all_correct"] == 1
    # a discount per token is none per turn
    assert fractions(name, group, gamma=0.9)["groups/frac_all_correct"] == 1


def test_rounding_does_not_make_a_group_mixed() -> None:
    assert fractions("rlvr", (played(0.1 + 0.2), played(0.3)))["groups/frac_mixed"] == 0


def test_the_outcomes_of_groups_use_the_discount_of_group_baselines() -> None:
    group = (played(1), played(0, 1))
    assert fractions("rl2f", group, gamma=0.9)["groups/frac_mixed"] == 1
    assert fractions("rl2f", group, gamma=1.0)["groups/frac_all_correct"] == 1


def test_the_outcomes_of_sdpo_do_not_count_the_untrained_second_attempt() -> None:
    later = (played(0, 1), played(0, 0))
    first = (played(1), played(0, 1))
    right = (played(1), played(1))
    values = fractions("sdpo", later, first, right)
    names = ("mixed", "all_correct", "all_incorrect")
    assert [values[f"groups/frac_{name}"] for name in names] == pytest.approx([1 / 3] * 3)


def test_the_preflight_of_sdpo_counts_first_attempts_only() -> None:
    """The student is wrong at first, and right at the second attempt in some dialogues of each group."""

    def script(text: str, rng: random.Random) -> str:
        a, b = re.findall(r"What is (\d+) \+ (\d+)\?", text)[0]
        second = text.count("<|im_start|>assistant") > 1
        return f"<answer>{int(a) + int(b) + (not second or rng.random() < 0.5)}</answer>"

    stages = [{"name": "s", "method": "sdpo", "steps": 1, "group_size": 4}]
    config = parse_config({"environment": "arithmetic", "rollout": {"max_turns": 2, "max_new_tokens": 60},
                           "preflight": {"num_tasks": 6, "samples_per_task": 4}, "stages": stages})  # fmt: skip
    assert isinstance(config, RunConfig)
    engine = build_engine(config, FakeBackend(script=script))
    report, groups = preflight(engine, config, config.stages[0], method_of("sdpo"))
    assert report.passed, "its hints teach without any correct attempt"
    never, _ = preflight(engine, config, config.stages[0], method_of("sdpo", feedback="never"))
    assert not never.passed and "Only 0% of the groups have a learning signal" in never.reason
    assert any(r.dialogue.solved for group in groups for r in group.rollouts)
    assert not any(r.dialogue.turns[0].verdict.correct for group in groups for r in group.rollouts)
    assert report.outcomes["groups/frac_all_incorrect"] == 1
    assert (report.expected_mixed_groups, never.expected_mixed_groups) == (8, 0)
