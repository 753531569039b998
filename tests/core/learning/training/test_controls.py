"""Training controls: shuffled hints, neutral text of the same length, and exchanged rewards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from run_helpers import config_of, go

from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.rewards import exchange_rewards
from rl2f_core.dialogue.teachers.base import FeedbackRequest
from rl2f_core.dialogue.teachers.neutral_text import neutral_text
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.counterfactual.config import inherit_settings
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


def test_exchanged_rewards_are_a_permutation_of_each_turn() -> None:
    """Three dialogues have a first turn, with 1, 2 and 3, and two of them a second one, with 10 and 20."""
    before = [rollout(0, 1), rollout(1, 2, 10), rollout(2, 3, 20)]
    after = rewards(exchange_rewards(before))
    assert [len(turns) for turns in after] == [1, 2, 2]
    assert Counter(turns[0] for turns in after) == Counter([1, 2, 3])
    assert Counter(turns[1] for turns in after[1:]) == Counter([10, 20])
    gamma = 0.5  # the mean discounted return is (1 + 2 + 3 + 0.5 · (10 + 20)) / 3 = 7
    assert sum(r * gamma**k for turns in after for k, r in enumerate(turns)) / 3 == pytest.approx(7)


def test_exchanged_rewards_follow_from_the_dialogues_seeds_and_say_nothing_about_them() -> None:
    before = [rollout(seed, float(seed)) for seed in range(2000)]
    after = exchange_rewards(before)
    assert rewards(after) == rewards(exchange_rewards(before))
    assert {turn.rewards[0].name for item in after for turn in item.dialogue.turns} == {"random"}
    unchanged = sum(a == b for a, b in zip(rewards(after), rewards(before), strict=True))
    assert unchanged <= 8  # a random permutation has one fixed point on average


def test_a_dialogue_that_is_not_trained_on_keeps_its_rewards() -> None:
    failed = rollout(1, 7, stop=StopReason.FAILED)
    after = exchange_rewards([rollout(0, 1), failed, rollout(2, 3)])
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
    config = config_of(speaker, steps=(1, 1), rollout={"max_turns": 2, "max_new_tokens": 12, "max_seq_len": 384})
    data = config.model_dump(mode="json")
    data["stages"][1] |= {"max_group_resamples": 0, "tasks_per_step": 4}
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


def test_a_stage_with_random_rewards_has_the_rewards_of_its_attempts_in_another_order(controlled: RunDir) -> None:
    """Its attempts are scored again."""
    from rl2f_core.dialogue.rollout.rewards import turn_rewards

    config: Any = controlled.config()
    dialogues = trained(controlled, "random")
    earned, drawn = Counter[tuple[int, float]](), Counter[tuple[int, float]]()
    for d in dialogues:
        for k, turn in enumerate(d.turns):
            earlier = (d.turns[k - 1].verdict, d.turns[k - 1].hint) if k else ()
            terms = turn_rewards(config.reward, turn.verdict, *earlier)  # type: ignore[arg-type]
            earned[k, round(sum(term.value for term in terms), 9)] += 1
            drawn[k, round(turn.reward, 9)] += 1
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
