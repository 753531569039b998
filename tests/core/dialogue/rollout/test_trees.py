"""Tree rollouts: branches share a first attempt and its hint, and continue with seeds of their own; dual critique."""

from __future__ import annotations

from typing import Any

import pytest

from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.errors import ConfigError
from rl2f_core.learning.methods.base import StepContext
from rl2f_core.learning.methods.rltf import RLTFGRPO
from rl2f_core.learning.training.collector import Collector
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.types import Group


def config(branches: int, group_size: int = 6, **more: Any) -> Any:
    method = {"type": "rltf_grpo", "branches": branches, **more}
    stage = {"name": "rl", "method": method, "steps": 1, "tasks_per_step": 24}
    return parse_config(
        {
            "environment": {"type": "secret_code", "alphabet": "ABC", "length": 2},
            "rollout": {"max_turns": 3, "max_new_tokens": 40, "max_seq_len": 1000, "prompting": "reprompt"},
            "stages": [stage | {"group_size": group_size}],
        }
    )


def collect(branches: int) -> tuple[list[Group], FakeBackend]:
    made = config(branches)
    backend = FakeBackend(script=lambda text, rng: f"<answer>{rng.choice('ABC')} {rng.choice('ABC')}</answer>")
    stage: Any = made.stages[0]
    collector = Collector(build_engine(made, backend), stage, seed=3)
    return collector.rollouts(collector.resolve(0), RLTFGRPO(stage.method)), backend


def test_branches_share_the_first_attempt_and_its_hint_and_differ_later() -> None:
    groups, _ = collect(3)
    seconds = set()
    for group in groups:
        assert len(group.rollouts) == 6 and [r.dialogue.index for r in group.rollouts] == list(range(6))
        assert len({r.dialogue.id for r in group.rollouts}) == len({r.dialogue.seed for r in group.rollouts}) == 6
        for tree in (group.rollouts[:3], group.rollouts[3:]):
            first = tree[0].dialogue.turns[0]
            assert all(r.dialogue.turns[0] == first for r in tree)
            assert all(r.sequences[0] == tree[0].sequences[0] for r in tree)
            if len(tree[0].dialogue.turns) > 1:
                seconds.add(len({r.dialogue.turns[1].attempt for r in tree}))
    assert max(seconds) == 3
    assert len({r.dialogue.turns[0].attempt for group in groups for r in group.rollouts}) > 4


def test_a_first_attempt_that_ends_its_dialogue_counts_once_for_each_branch() -> None:
    groups, _ = collect(3)
    trees = [group.rollouts[k : k + 3] for group in groups for k in (0, 3)]
    solved = [tree for tree in trees if tree[0].dialogue.turns[0].verdict.correct]
    assert solved and all(r.dialogue.solved and len(r.dialogue.turns) == 1 for tree in solved for r in tree)


def test_the_first_dialogue_of_a_tree_is_that_of_a_group_without_trees() -> None:
    plain, trees = (collect(branches)[0] for branches in (1, 3))
    for one, other in zip(plain, trees, strict=True):
        assert [other.rollouts[k].dialogue for k in (0, 3)] == [one.rollouts[k].dialogue for k in (0, 3)]


def test_the_method_compares_later_turns_within_a_tree() -> None:
    groups, _ = collect(3)
    method = RLTFGRPO(config(3).stages[0].method)
    for group in groups:
        rewards = [[turn.reward for turn in r.dialogue.turns] for r in group.rollouts]
        advantages = method.advantages(group)
        for tree in (range(3), range(3, 6)):
            for k in (1, 2):
                reached = [i for i in tree if len(rewards[i]) > k]
                assert sum(advantages[i][k] for i in reached) == pytest.approx(0, abs=1e-9)
        assert sum(turns[0] for turns in advantages) == pytest.approx(0, abs=1e-9)
    assert any(abs(turns[1]) > 0.1 for group in groups for turns in method.advantages(group) if len(turns) > 1)


@pytest.mark.parametrize(("branches", "group_size"), [(4, 6), (6, 6), (2, 2)])
def test_a_group_has_at_least_two_trees_of_equal_size(branches: int, group_size: int) -> None:
    with pytest.raises(ConfigError, match=f"group_size {group_size} with {branches} dialogues per first attempt"):
        config(branches, group_size)


# -- dual critique -------------------------------------------------------------------------------------------------
def collect_dual() -> tuple[list[Group], RLTFGRPO, Any]:
    """Groups of 4 in which the policy criticizes every second first attempt; a critique names a random letter."""

    def script(text: str, rng: Any) -> str:
        letter = rng.choice("ABC")
        return f"Try {letter} first." if "your own work" in text else f"<answer>{letter} {rng.choice('ABC')}</answer>"

    made = config(1, group_size=4, dual_critique={"max_new_tokens": 20})
    engine, stage = build_engine(made, FakeBackend(script=script)), made.stages[0]
    method: Any = RLTFGRPO(stage.method)
    method.begin_step(StepContext.of(engine, 0, 1))
    return Collector(engine, stage, seed=3).rollouts(stage.resolve(0, 1.0), method), method, engine.backend.tokenizer


def test_every_second_dialogue_continues_the_same_attempt_with_a_critique_of_the_policy() -> None:
    groups, _, _ = collect_dual()
    compared = 0
    for group in groups:
        for one, other in (group.rollouts[:2], group.rollouts[2:]):
            first, second = one.dialogue.turns[0], other.dialogue.turns[0]
            assert (first.attempt, first.token_ids) == (second.attempt, second.token_ids)
            assert one.sequences[0] == other.sequences[0]
            if first.hint is not None and second.hint is not None:
                compared += 1
                assert (first.hint.teacher, second.hint.teacher) == ("scripted", "self_critique")
                letter = second.hint.text.removeprefix("Try ").removesuffix(" first.")
                assert second.hint_true == (letter == group.task.privileged["code"][0])
    assert compared > 20


def test_the_tokens_of_a_critique_have_the_advantage_of_the_attempt_after_it() -> None:
    groups, method, tokenizer = collect_dual()
    checked = 0
    for group in groups:
        samples = [s for s in method.samples(group) if s.policy_loss == "awr"]
        expected = [
            (r.dialogue.id, turn.hint.text, advantage)
            for r, advantages in zip(group.rollouts, method.advantages(group), strict=True)
            for turn, advantage in zip(r.dialogue.turns, advantages[1:], strict=False)
            if r.dialogue.index % 2 and turn.hint and not turn.hint.leak.leaked and abs(advantage) > 1e-9
        ]
        assert len(samples) == len(expected)
        for sample, (dialogue, text, advantage) in zip(samples, expected, strict=True):
            trained = [k for k, weight in enumerate(sample.rl_weights) if weight]
            assert sample.dialogue == dialogue and sample.off_context
            said = tokenizer.decode([sample.token_ids[k] for k in trained])
            prompt = tokenizer.decode(sample.token_ids[: trained[0]])
            assert said.startswith(text) and "your own work" in prompt and group.task.privileged["code"] not in prompt
            assert {sample.advantages[k] for k in trained} == {advantage}
            checked += 1
    assert checked > 10


@pytest.mark.parametrize(
    ("more", "error"),
    [({"branches": 2}, "dual_critique does not work with branches above 1"),
     ({"type": "rltf_fm"}, "rltf_fm imitates critiques")],
)  # fmt: skip
def test_dual_critique_refuses_what_it_does_not_fit(more: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        config(**{"branches": 1, "group_size": 4, "dual_critique": {}, **more})
