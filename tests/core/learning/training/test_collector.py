"""Where a step's dialogues come from: what was re-drawn is kept, and demonstrations keep to the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from rl2f_core import registry
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.dialogue.rollout.build import build_backend, build_engine
from rl2f_core.dialogue.teachers.base import Feedback, FeedbackRequest, Teacher
from rl2f_core.learning.training.collector import Collector
from rl2f_core.types import StopReason


def made(**changes: Any) -> tuple[Collector, Any]:
    stage = {"name": "rl", "method": "rl2f", "steps": 1, "tasks_per_step": 2, "group_size": 2, "max_group_resamples": 3}
    data = {
        "backend": {"type": "fake", "replies": ["no"]},
        "environment": {"type": "secret_code", "alphabet": "ABC", "length": 2},
        "rollout": {"max_turns": 4, "max_new_tokens": 16, "max_seq_len": 2000},
        "stages": [stage],
    }
    config = RunConfig.model_validate({**data, **changes})
    method = registry.get("method", config.stages[0].method.type)(config.stages[0].method)
    return Collector(build_engine(config, build_backend(config)), config.stages[0], seed=0), method


def test_groups_that_are_drawn_again_are_kept_and_have_names_of_their_own():
    collector, method = made()
    groups = collector.rollouts(collector.resolve(0), method)
    # nothing is ever right: 2 groups are drawn, 2 are replaced, and the budget of 3 replaces one of those again
    assert (len(groups), len(collector.discarded_groups)) == (2, 3)
    names = [r.dialogue.id for group in [*groups, *collector.discarded_groups] for r in group.rollouts]
    assert len(set(names)) == 2 * 5
    assert len({group.task.id for group in [*groups, *collector.discarded_groups]}) == 5
    collector.stage = collector.stage.model_copy(update={"max_group_resamples": 0})
    collector.rollouts(collector.resolve(1), method)
    assert collector.discarded_groups == []


def test_a_demonstration_ends_where_the_context_has_no_room_for_another_attempt():
    sft = {"type": "sft", "final_correct_rate": 0.0, "first_correct_rate": 0.0, "max_turns": 4}
    stage = {"name": "warm", "method": sft, "steps": 1, "tasks_per_step": 8, "group_size": 1}
    collector, method = made(stages=[stage])
    free = [group.rollouts[0] for group in collector.demonstrations(collector.resolve(0), method.config)]
    assert max(len(r.dialogue.turns) for r in free) == 4
    second = next(r for r in free if len(r.dialogue.turns) == 4).sequences[0].turn_ids
    limit = second.index(2) + 16  # the third attempt would begin here, and needs 16 tokens
    rollout = {"max_turns": 4, "max_new_tokens": 16, "max_seq_len": limit - 1}
    collector, _ = made(stages=[stage], rollout=rollout)
    cut = [group.rollouts[0] for group in collector.demonstrations(collector.resolve(0), method.config)]
    assert all(len(r.sequences[0].token_ids) <= limit - 1 + 16 for r in cut)
    stopped = [r.dialogue for r in cut if r.dialogue.stop_reason is StopReason.CONTEXT_FULL]
    assert stopped and all(len(d.turns) < 4 for d in stopped)


class Counting(Teacher):
    """Says how many were asked for at once; it breaks on some tasks, and has no words for others."""

    class Config(BaseConfig):
        type: Literal["counting"] = "counting"

    def feedback(self, requests: Sequence[FeedbackRequest]) -> list[Feedback]:
        if any(request.task.id.endswith("/2") for request in requests):
            raise ValueError("no hint for this one")
        silent = Feedback("", error="no words", ends_dialogue=True)
        return [silent if r.task.id.endswith("/5") else Feedback(f"one of {len(requests)}") for r in requests]


def test_demonstrations_are_hinted_on_in_one_batch_and_a_teacher_that_fails_ends_only_its_own_dialogue():
    sft = {"type": "sft", "final_correct_rate": 0.0, "first_correct_rate": 0.0, "max_turns": 2}
    stage = {"name": "warm", "method": sft, "steps": 1, "tasks_per_step": 8, "group_size": 1}
    collector, method = made(stages=[stage], environment={"type": "secret_code", "length": 6})
    counting = Counting(Counting.Config(), collector.engine.environment)
    collector.engine = replace(collector.engine, teacher=counting)
    ids, now = [f"secret_code/train/{i}" for i in range(8)], collector.resolve(0)
    dialogues = {d.task_id: d for g in collector.demonstrations(now, method.config) for d in [g.rollouts[0].dialogue]}
    assert sorted(dialogues) == ids
    broken, silent = dialogues.pop(ids[2]), dialogues.pop(ids[5])
    assert (broken.stop_reason, broken.error) == (StopReason.FAILED, "ValueError: no hint for this one")
    assert silent.stop_reason is StopReason.FAILED and silent.error == "no words" and silent.turns[0].hint.text == ""
    assert {d.turns[0].hint.text for d in dialogues.values()} == {"one of 1"}, "they were asked again one by one"
    collector.stage = collector.stage.model_copy(update={"tasks_per_step": 2})
    together = [g.rollouts[0].dialogue for g in collector.demonstrations(collector.resolve(0), method.config)]
    assert [d.turns[0].hint.text for d in together] == ["one of 2"] * 2
