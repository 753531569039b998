"""The file of a study: arms, seeds, shared warm-ups, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from rl2f_core.common.paths import CONFIGS
from rl2f_core.config.loading import dump_yaml, parse_config
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import ConfigError
from rl2f_core.evaluation.study.spec import Part, Study, check_unchanged, load_study, parse_study

TINY = yaml.safe_load((CONFIGS / "studies" / "tiny.yaml").read_text("utf-8"))
FIRST = TINY["hypotheses"][0]


def study(**changes: Any) -> Study:
    return parse_study(yaml.safe_dump({**TINY, **changes}, sort_keys=False))


def test_a_study_is_all_arms_and_seeds_with_one_warm_up_per_seed() -> None:
    parts = load_study("tiny").parts()
    assert [(part.name, part.warm_up) for part in parts if part.data["seed"] == 1] == [
        ("warm-up-1-seed-1", None),
        ("rl2f-seed-1", "warm-up-1-seed-1"),
        ("contentless-seed-1", "warm-up-1-seed-1"),
    ]
    assert len(parts) == 6 and [part.is_arm for part in parts[:2]] == [False, True]
    warm, first, second = (part.config("12-warm") for part in parts[:3])
    assert isinstance(warm, RunConfig) and isinstance(first, RunConfig) and isinstance(second, RunConfig)
    assert [stage.name for stage in warm.stages] == ["warmup"] and warm.evaluated_checkpoints() == ["warmup@4"]
    assert (warm.start_from, first.start_from, first.name) == (None, "12-warm", "tiny-rl2f-seed-0")
    assert first.stages[1].teacher is None and second.stages[1].teacher is not None


def test_a_warm_up_may_have_been_started_with_other_evaluated_checkpoints_and_nothing_else() -> None:
    warm, arm, _ = load_study("tiny").parts()[:3]

    def stored(part: Part, **evaluation: Any) -> str:
        data = {**part.data, "evaluation": {**part.data["evaluation"], **evaluation}}
        return dump_yaml(parse_config(data))

    check_unchanged(warm, stored(warm, checkpoints=[]))
    for part, change in ((arm, {"checkpoints": []}), (warm, {"num_tasks": 13})):
        with pytest.raises(ConfigError, match="changed after its start"):
            check_unchanged(part, stored(part, **change))


def test_parts_whose_first_stages_have_other_settings_share_no_warm_up() -> None:
    """A guard screens the hints of demonstrations too; a leak penalty changes rewards alone."""
    arms = {
        "clean": {},
        "penalty": {"reward.leak_penalty": 0.5},
        "redact": {"leak_detection.action": "redact"},
        "all": {"stages.1.teacher": {"type": "leaky", "rate": 1}},
    }
    parts = study(matrix={"arm": arms}, seeds=[3], hypotheses=[]).parts()
    assert {part.name: part.warm_up for part in parts if part.is_arm} == {
        "clean-seed-3": "warm-up-1-seed-3",
        "penalty-seed-3": "warm-up-1-seed-3",
        "redact-seed-3": None,
        "all-seed-3": "warm-up-1-seed-3",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compare": ["rl2f", "rlvr"]}, "compares an unknown arm. Got: 'rlvr'. Known: rl2f, contentless"),
        (
            {"compare": ["rl2f:rl2f@2", "rl2f"]},
            "that arm rl2f does not evaluate. Got: 'rl2f@2'. Known: warmup@4, rl2f@3",
        ),
        ({"condition": "shuffled"}, r"a condition that arm rl2f does not evaluate. Got: \['shuffled'\]"),
        ({"quantity": "hint_effect", "condition": "contentless"}, "hint_effect under contentless hints is 0"),
        ({"quantity": "retentoin"}, r"unknown quantity. Got: 'retentoin'. Fix: Nearest: \['retention'"),
        ({"quantity": "training/rewrad"}, r"Nearest: \['training/reward'"),
        (
            {"quantity": "training/reward", "compare": ["rl2f", "rl2f:warmup@4"]},
            "which this checkpoint's stage does not sample. Got: 'warmup@4'",
        ),
        ({"smallest_effect": 0}, "hypotheses.0.smallest_effect: Input should be greater than 0"),
        ({"smalest_effect": 1}, "hypotheses.0.smalest_effect: unknown key"),
        ({"direction": "up"}, "hypotheses.0.direction"),
    ],
)
def test_a_wrong_hypothesis_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(hypotheses=[{**FIRST, **changes}])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": []}, "seeds: .* at least 1"),
        ({"seeds": [1, 1]}, "The seeds of the study repeat"),
        ({"seeds": [3, -1]}, "seed: .* greater than or equal to 0"),
        ({"name": "a" * 86}, "name: String should match pattern"),  # `-contentless-seed-0` follows
        ({"hypotheses": [FIRST, FIRST]}, "The names of hypotheses of the study repeat"),
        ({"matrix": {"arm": {"rl2f": {"lora.rnk": 4}}}}, "lora.rnk: unknown key"),
        ({"matrix": {"arm": {"rl2f": {}, "contentless": {"environment.length": 3}}}}, "another environment"),
        ({"matrix": {"arm": {"rl2f": {}, "contentless": {"teacher": "contentless"}}}}, "another teacher"),
        ({"matrix": {"arm": {"rl2f": {"kind": "eval", "adapters": {"base": None}}}}}, "unknown key|training run"),
    ],
)
def test_a_wrong_study_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(**changes)


def test_a_file_without_arms_is_refused() -> None:
    with pytest.raises(ConfigError, match="A study needs a matrix of arms"):
        parse_study("name: x")
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_study("a: [")
    with pytest.raises(ConfigError, match=r"cannot be read: No such file.*leaks.*tiny.*shipped study"):
        load_study("none.yaml")


def test_the_study_of_leaks_shares_its_warm_up_between_four_of_five_arms() -> None:
    parts = load_study("leaks").parts()
    assert [part.name for part in parts if part.is_arm and part.warm_up is None and part.data["seed"] == 2] == [
        "half_redact-seed-2"
    ]
    assert len(parts) == 5 * 6
