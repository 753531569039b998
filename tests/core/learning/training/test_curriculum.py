"""Curricula: when the next level begins, which tasks are drawn, and that a resumed run goes the same way."""

from __future__ import annotations

from typing import Any

import pytest

from rl2f_core import registry
from rl2f_core.config.curriculum import Curriculum, level_of
from rl2f_core.config.loading import parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.environments.base import wrap_answer
from rl2f_core.errors import ConfigError
from rl2f_core.learning.training.collector import Collector
from rl2f_core.learning.training.curriculum import CurriculumTracker, should_advance, tracker_for_stage
from rl2f_core.models.backends.fake import FakeBackend

LEVELS = [{"settings": {"size": 4}}, {"settings": {"size": 8}}, {"settings": {"size": 16}}]


def curriculum(**changes: Any) -> Curriculum:
    return Curriculum.model_validate({"levels": LEVELS, "solve_rate_threshold": 0.5, "window_steps": 2} | changes)


@pytest.mark.parametrize(
    ("level", "steps", "window", "wanted"),
    [
        (0, 1, [(4, 4)], False),  # the window is not full
        (0, 2, [(1, 4), (2, 4)], False),  # 3 of 8
        (0, 2, [(1, 4), (3, 4)], True),  # 4 of 8
        (0, 9, [(0, 0), (0, 0)], False),  # all failed: nothing is known
        (2, 9, [(4, 4), (4, 4)], False),  # the last level
    ],
)
def test_a_level_ends_where_the_window_is_full_and_its_share_reaches_the_threshold(
    level: int, steps: int, window: list[tuple[int, int]], wanted: bool
) -> None:
    assert should_advance(curriculum(), level, steps, window) is wanted


def test_a_level_ends_after_its_steps_whatever_was_solved() -> None:
    timed = curriculum(levels=[{**LEVELS[0], "steps": 3}, LEVELS[1]], solve_rate_threshold=None)
    assert [should_advance(timed, 0, steps, [(4, 4)] * 2) for steps in (2, 3)] == [False, True]


def run(**changes: Any) -> RunConfig:
    stage = {"name": "rl", "method": "rl2f", "steps": 40, "tasks_per_step": 4, "group_size": 2, **changes}
    config = parse_config({"environment": "guess_number", "rollout": {"max_new_tokens": 60}, "stages": [stage]})
    assert isinstance(config, RunConfig)
    return config


def collector(
    config: RunConfig, state: dict[str, Any] | None = None, right: float = 1.0
) -> tuple[Collector, CurriculumTracker]:
    """The student says any number of the range it reads; so the shorter the range, the more it solves."""

    def said(text: str, rng: Any) -> str:
        low, _, high = text.rpartition("from ")[2].partition(".")[0].partition(" to ")
        return wrap_answer(str(rng.randint(int(low), int(high))))

    engine = build_engine(config, FakeBackend(script=said))
    curriculum = tracker_for_stage(config, config.stages[0], engine, state)
    assert curriculum is not None
    return Collector(engine, config.stages[0], 3, curriculum=curriculum), curriculum


def test_levels_follow_one_another_with_old_ones_between_and_a_resumed_course_is_the_same() -> None:
    levels = [{**LEVELS[0], "steps": 3}, {**LEVELS[1], "steps": 4}, LEVELS[2]]
    config = run(curriculum={"levels": levels, "replay_fraction": 0.4}, method={"type": "sft"}, group_size=1)
    method = registry.get("method", "sft")(config.stages[0].method)
    tasks, states, said, state = [], [], [], None
    held, curriculum = collector(config)
    for step in range(12):
        groups = method.collect(held, held.resolve(step))
        metrics, text = curriculum.record_step(groups, on_policy=False)
        tasks.append([(g.task.id, g.task.level, g.task.public["high"] - g.task.public["low"] + 1) for g in groups])
        states.append(curriculum.state)
        said += [(step, text)] if text else []
        assert metrics == {"curriculum/level": 1.0 if step < 3 else 2.0 if step < 7 else 3.0}
    assert said == [(2, "Level 2 of 3 begins (size=8): level 1 lasted 3 steps."),
                    (6, "Level 3 of 3 begins (size=16): level 2 lasted 4 steps.")]  # fmt: skip
    ids = [name for step in tasks for name, _, _ in step]
    assert len(set(ids)) == len(ids) == 48
    for step in tasks:
        assert all(size == 2 ** (1 + (level_of(name) or 0)) for name, _, size in step)
        assert all(level.endswith(f"(level {level_of(name)})") for name, level, _ in step)
    late = [level_of(name) for step in tasks[7:] for name, _, _ in step]
    assert {1, 2} < set(late) and 0.2 < sum(level != 3 for level in late) / len(late) < 0.7
    for at in range(1, 12):  # from every commit, in a fresh process
        state = states[at - 1]
        again, resumed = collector(config, state)
        assert [g.task.id for g in method.collect(again, again.resolve(at))] == [name for name, _, _ in tasks[at]]
        resumed.record_step([], on_policy=False)
        assert resumed.state["level"] == states[at]["level"]


def test_the_solve_rate_moves_on_and_counts_what_was_redrawn_but_not_old_levels() -> None:
    config = run(
        curriculum={"levels": LEVELS[:2], "solve_rate_threshold": 0.6, "window_steps": 3, "replay_fraction": 0.5},
        max_group_resamples=4,
    )
    method = registry.get("method", "rl2f")(config.stages[0].method)
    held, curriculum = collector(config)
    began, old = None, []
    for step in range(30):
        groups = [*held.rollouts(held.resolve(step), method), *held.discarded_groups]
        level = curriculum.level
        own = [r.dialogue for g in groups if level_of(g.task.id) == level + 1 for r in g.rollouts]
        metrics, text = curriculum.record_step(groups, on_policy=True)
        began = step if text else began
        if not text:
            assert curriculum.state["window"][-1] == [sum(d.solved for d in own), len(own)]
        assert metrics["curriculum/level"] == level + 1 and 0 <= metrics["curriculum/solve_rate"] <= 1
        old += [metrics["curriculum/replay_solve_rate"]] if "curriculum/replay_solve_rate" in metrics else []
    assert old and all(0 <= share <= 1 for share in old)
    assert began is not None and began >= 2 and curriculum.level == 1


def test_solved_may_mean_at_the_first_attempt() -> None:
    counts = []
    for solved in ("first_turn", "any_turn"):
        config = run(
            curriculum={"levels": LEVELS[:2], "solve_rate_threshold": 1.0, "window_steps": 30, "solved_at": solved}
        )
        held, curriculum = collector(config)
        method = registry.get("method", "rl2f")(config.stages[0].method)
        for step in range(4):
            curriculum.record_step(held.rollouts(held.resolve(step), method), on_policy=True)
        counts.append(sum(s for s, _ in curriculum.window))
    assert 0 < counts[0] < counts[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"levels": [{"settings": {"size": 4}}, {"settings": {"sise": 8}}]}, "level 2 of the curriculum: sise"),
        ({"levels": [{"settings": {"size": 1}}, {"settings": {}}]}, "level 1 of the curriculum: size: .*greater than"),
        ({"levels": [LEVELS[0], {"settings": {"type": "arithmetic"}}]}, "cannot change the type of the environment"),
        ({"levels": [LEVELS[2], {"settings": {}}]}, "level 2 of the curriculum equals level 1"),
        ({"levels": LEVELS, "solve_rate_threshold": None}, "level 1 has no end"),
        ({"levels": [LEVELS[0], {**LEVELS[1], "steps": 3}]}, "the last level lasts to the end"),
        ({"levels": LEVELS[:1]}, "at least 2"),
    ],
)
def test_a_curriculum_that_cannot_be_gone_through_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(curriculum={"solve_rate_threshold": 0.5, **changes})


def test_a_method_that_imitates_moves_on_by_steps_alone() -> None:
    with pytest.raises(ConfigError, match="an off-policy method has no solve rate"):
        run(method="sft", curriculum={"levels": LEVELS, "solve_rate_threshold": 0.5})
