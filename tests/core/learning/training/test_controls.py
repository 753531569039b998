"""Training controls: shuffled hints, neutral text of the same length, and exchanged rewards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest
from run_helpers import config_of, go

from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.teachers.base import FeedbackRequest
from rl2f_core.dialogue.teachers.neutral_text import neutral_text
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.counterfactual.config import inherit_settings
from rl2f_core.learning.methods.advantages import dialogue_advantages, returns_to_go, turn_advantages
from rl2f_core.learning.training.collector import exchange_rewards
from rl2f_core.models.tokenizer import ByteTokenizer
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, read_events
from rl2f_core.types import Dialogue, RewardTerm, Rollout, StopReason, Turn, Verdict

WRONG = Verdict(correct=False, score=0)


def rollout(seed: int, *rewards: float, stop: StopReason = StopReason.EXHAUSTED) -> Rollout:
    turns = [
        Turn(index=k, attempt="x", verdict=WRONG, rewards=(RewardTerm(name="correct", score=reward),))
        for k, reward in enumerate(rewards)
    ]
    return Rollout(Dialogue(id=str(seed), task_id="t", group="g", index=seed, turns=tuple(turns), stop_reason=stop,
                            seed=seed), ())  # fmt: skip


def rewards(rollouts: list[Rollout]) -> list[list[float]]:
    return [[turn.reward for turn in item.dialogue.turns] for item in rollouts]


def test_exchanged_returns_are_a_permutation_of_each_turn() -> None:
    """Three dialogues have a first turn and two of them a second one.

    With γ = 0.5 the returns are 1, 2 + 10 / 2 = 7 and 3 + 20 / 2 = 13, then 10 and 20.
    """
    before = [rollout(0, 1), rollout(1, 2, 10), rollout(2, 3, 20)]
    after = rewards(exchange_rewards(before, 0.5))
    assert [len(turns) for turns in after] == [1, 2, 2]
    returns = [returns_to_go(turns, 0.5) for turns in after]
    assert sorted(turns[0] for turns in returns) == [1, 7, 13]
    assert sorted(turns[1] for turns in returns[1:]) == [10, 20]
    assert Counter(r for turns in rewards(exchange_rewards(before, 0.0)) for r in turns) == Counter([1, 2, 3, 10, 20])


@pytest.mark.parametrize(
    "solves",
    [
        pytest.param((1.0, 0.0), id="binary"),
        pytest.param((2.0, -1.5), id="negative if wrong", marks=pytest.mark.slow),
    ],
)
def test_exchanged_returns_favor_neither_right_nor_wrong_attempts(solves: tuple[float, float]) -> None:
    """A right attempt ends the dialogue; three of ten are right, within three turns."""
    right, wrong, gamma = *solves, 0.9
    random = Random(0)
    means: dict[tuple[str, bool], list[float]] = {}
    for step in range(400):
        before = []
        for i in range(32):
            solved = next((k for k in range(3) if random.random() < 0.3), None)
            length = 3 if solved is None else solved + 1
            earned = [right if k == solved else wrong for k in range(length)]
            before.append(rollout(1000 * step + i, *earned))
        after = rewards(exchange_rewards(before, gamma))
        groups = [after[i : i + 8] for i in range(0, 32, 8)]
        for name, advantages in (("turn", turn_advantages), ("dialogue", dialogue_advantages)):
            first = [row[0] for group in groups for row in advantages(group, gamma)]
            for item, advantage in zip(before, first, strict=True):
                means.setdefault((name, item.dialogue.turns[0].reward == right), []).append(advantage)
    for values in means.values():
        assert abs(fmean(values)) <= 4 * stdev(values) / len(values) ** 0.5


def test_exchanged_rewards_follow_from_the_dialogues_seeds_and_say_nothing_about_them() -> None:
    before = [rollout(seed, float(seed)) for seed in range(2000)]
    after = exchange_rewards(before, 1.0)
    assert rewards(after) == rewards(exchange_rewards(before, 1.0))
    assert {turn.rewards[0].name for item in after for turn in item.dialogue.turns} == {"random"}
    unchanged = sum(a == b for a, b in zip(rewards(after), rewards(before), strict=True))
    assert unchanged <= 8  # a random permutation has one fixed point on average


def test_a_dialogue_that_is_not_trained_on_keeps_its_rewards() -> None:
    failed = rollout(1, 7, stop=StopReason.FAILED)
    after = exchange_rewards([rollout(0, 1), failed, rollout(2, 3)], 1.0)
    assert after[1] == failed and Counter(r for (r,) in rewards(after)) == Counter([1, 3, 7])


def test_a_neutral_text_has_any_number_of_tokens(tiny: Path) -> None:
    from transformers import AutoTokenizer

    assert neutral_text(len, 24) == "Please read the question"
    assert neutral_text(len, 22) == "Please read the . . .."
    hf: Any = AutoTokenizer.from_pretrained(tiny)
    for count in (lambda text: len(ByteTokenizer().encode(text)), lambda text: len(hf.encode(text))):
        assert [count(neutral_text(count, n)) for n in range(70)] == list(range(70))


@pytest.fixture(scope="module")
def controlled(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A warm-up with one branch per control, on as many tasks."""
    preflight = {"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True}
    rollouts = {"max_turns": 2, "max_new_tokens": 12, "max_seq_len": 384}
    config = config_of(speaker, steps=(1, 1), rollout=rollouts, preflight=preflight)
    data = config.model_dump(mode="json")
    data["stages"][1] |= {"max_group_resamples": 0, "tasks_per_step": 4, "group_size": 3}
    for name, change in (
        ("shuffled", {"teacher": "shuffled"}),
        ("neutral", {"teacher": "neutral_text"}),
        ("random", {"rewards": "random"}),
    ):
        data["stages"].append({**data["stages"][1], "name": name, "init_from": "warm", "tasks_from": "rl", **change})
    run_dir = RunDir.create(tmp_path_factory.mktemp("controlled") / "run", parse_config(data))
    assert go(run_dir) == "succeeded"
    return run_dir


def trained(run_dir: RunDir, stage: str) -> list[Dialogue]:
    events = (e for e in read_events(run_dir.events_path, strict=True) if isinstance(e, DialogueEvent))
    return [e.dialogue for e in events if (e.phase, e.stage) == ("train", stage)]


def test_a_stage_with_shuffled_hints_reads_hints_on_other_tasks_of_its_step(controlled: RunDir) -> None:
    """Two-letter codes have few answers, so not every hint has a match; the others are contentless."""
    dialogues = trained(controlled, "shuffled")
    hints = [(d.task_id, turn.hint) for d in dialogues for turn in d.turns if turn.hint is not None]
    matched = [(task, hint) for task, hint in hints if hint.source_task is not None]
    tasks = {d.task_id for d in dialogues}
    assert {hint.teacher for _, hint in hints} == {"shuffled"} and len(matched) > len(hints) / 2
    assert all(hint.source_task in tasks - {task} for task, hint in matched)


def test_neutral_hints_have_the_tokens_of_the_true_ones(controlled: RunDir, speaker: Path) -> None:
    from transformers import AutoTokenizer

    from rl2f_core import registry

    hf: Any = AutoTokenizer.from_pretrained(speaker)
    config = controlled.config()
    environment = registry.get("environment", config.environment.type)(config.environment)
    compared = 0
    for event in read_events(controlled.events_path, strict=True):
        if isinstance(event, DialogueEvent) and (event.phase, event.stage) == ("train", "neutral"):
            turns = event.dialogue.turns
            for k, turn in enumerate(turns):
                if turn.hint is not None:
                    asked = FeedbackRequest(event.task, turns[: k + 1], event.dialogue.seed)
                    true = environment.hint(event.task, asked.verdicts, asked.rng())
                    assert len(hf.encode(turn.hint.text)) == len(hf.encode(true)) and turn.hint.text != true
                    compared += 1
    assert compared > 4


def test_a_stage_with_random_rewards_has_the_returns_of_its_attempts_in_another_order(controlled: RunDir) -> None:
    """Its attempts are scored again."""
    from rl2f_core.dialogue.rollout.rewards import turn_rewards

    config: Any = controlled.config()
    gamma = next(stage for stage in config.stages if stage.name == "random").method.gamma
    dialogues = trained(controlled, "random")
    earned, drawn = Counter[tuple[int, float]](), Counter[tuple[int, float]]()
    for d in dialogues:
        scored = [
            turn_rewards(config.reward, turn.verdict, *((before.verdict, before.hint) if before else ()))  # type: ignore[arg-type]
            for before, turn in zip([None, *d.turns], d.turns, strict=False)
        ]
        totals = [sum(term.value for term in terms) for terms in scored]
        earned.update((k, round(r, 9)) for k, r in enumerate(returns_to_go(totals, gamma)))
        drawn.update((k, round(r, 9)) for k, r in enumerate(returns_to_go([t.reward for t in d.turns], gamma)))
    assert earned == drawn
    assert {term.name for d in dialogues for turn in d.turns for term in turn.rewards} == {"random"}


def test_a_fork_of_a_shuffled_dialogue_has_the_recorded_teacher(controlled: RunDir) -> None:
    assert inherit_settings(controlled, "train", "shuffled", 1)["teacher"]["type"] == "scripted"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": "random"}, "stage 'warm': sft has no rollouts, which rewards changes"),
        ({"teacher": "shuffled"}, "stage 'warm': sft has no rollouts, which teacher changes"),
        ({"teacher": {"type": "neutral_text", "base": "leaky"}}, "neutral_text cannot wrap leaky"),
    ],
)
def test_a_control_that_nothing_reads_is_refused(tiny: Path, change: dict[str, Any], message: str) -> None:
    data = config_of(tiny).model_dump(mode="json")
    data["stages"][0] |= change
    with pytest.raises(ConfigError, match=message):
        parse_config(data)
