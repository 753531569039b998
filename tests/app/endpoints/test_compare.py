"""Several runs: overlaid metrics, paired evaluations, merged seeds, differences of resolved configurations."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from json_endpoints import JsonEndpoints
from run_data import CONFIG, add_run

from app.common.context import Context
from app.endpoints.compare import CompareEndpoints, config_differences, resolve_config
from app.endpoints.endpoint import ArgumentError
from app.endpoints.run import RunEndpoints
from jobs.db.models import Run
from jobs.db.queries import runs
from rl2f_core.config.loading import parse_config


@pytest.fixture
def compare(context: Context) -> Any:
    return JsonEndpoints(CompareEndpoints(context))


@pytest.fixture
def run(context: Context) -> Run:
    """A finished training run with an evaluation, number 1."""
    return add_run(context.db, context.workspace, "1-small")


def resolved(**changes: Any) -> dict[str, Any]:
    """A configuration as a run directory holds it, with all defaults."""
    return parse_config({**CONFIG, **changes}).model_dump(mode="json")


def differences(*configs: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Differing values by section and key."""
    return by_key([group.model_dump() for group in config_differences([resolve_config(config) for config in configs])])


def by_key(groups: list[dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    return {group["section"]: {row["key"]: row["values"] for row in group["differences"]} for group in groups}


# -- metrics and evaluations ---------------------------------------------------------------------------------------
def test_runs_are_compared_with_their_configuration_differences(
    compare: CompareEndpoints, context: Context, run: Run
) -> None:
    add_run(context.db, context.workspace, "2-small", seed=1, name="other")
    found = compare.compare_runs([1, 2, 77])
    assert [r["id"] for r in found["runs"]] == [1, 2] and found["missing"] == [77] and found["has_seeds"] is True
    assert found["runs"][0]["color"] != found["runs"][1]["color"]
    assert by_key(found["config"]) == {"run": {"name": ["small", "other"], "seed": ["0", "1"]}}
    assert "reward" in [entry["name"] for entry in found["metrics"]]
    chart = compare.compare_charts([1, 2], ["reward", "loss/kl"])
    assert len(chart) == 1 and len([t for t in chart[0]["figure"]["data"] if t["meta"] == "line"]) == 2
    merged = compare.compare_charts([1, 2], ["reward"], merge_seeds=True)[0]
    assert [t["name"] for t in merged["figure"]["data"] if t["meta"] == "line"] == ["small ×2"]


def test_checkpoints_of_two_runs_are_paired_and_seeds_are_merged(
    compare: CompareEndpoints, context: Context, run: Run
) -> None:
    add_run(context.db, context.workspace, "2-small", seed=1, shift=-0.4)
    other_seed = {"num_tasks": 10, "conditions": ["hints", "contentless"], "seed": 8}
    add_run(context.db, context.workspace, "3-small", evaluation=other_seed)
    found = compare.compare_evaluations([1, 2, 3], merge_seeds=True)
    assert found["base"] == "1:rl@6"
    assert found["checkpoints"] == ["1:base", "1:rl@6", "2:base", "2:rl@6", "3:base", "3:rl@6"]
    while found["pending"]:
        found = compare.compare_evaluations([1, 2, 3], merge_seeds=True)
    rows = {row["checkpoint"]: row for row in found["differences"]}
    assert rows["3:rl@6"]["unlike"] == ["evaluation.seed"]
    assert [q["quantity"] for q in rows["2:rl@6"]["quantities"]] == ["cum_acc", "hint_effect"]
    assert rows["2:rl@6"]["quantities"][0]["tasks"] == 10
    evaluation = JsonEndpoints(RunEndpoints(context)).run_evaluation(1)
    assert evaluation is not None
    other = compare.compare_evaluations([1], base="1:base")["differences"][0]
    assert [q["cell"] for q in other["quantities"]] == [row["cell"] for row in evaluation["differences"]]
    assert len(found["merged"]) == 1 and found["merged"][0]["seeds"] == ["0 (run 1)", "1 (run 2)"]
    effect = next(
        row for row in found["merged"][0]["rows"] if (row["checkpoint"], row["quantity"]) == ("rl@6", "hint_effect")
    )
    assert len(effect["values"]) == 2 and effect["above"].endswith("of 2")


def test_two_configurations_are_compared_over_their_common_seeds_and_unequal_settings_are_named(
    compare: CompareEndpoints, context: Context, run: Run
) -> None:
    add_run(context.db, context.workspace, "2-small", seed=1, shift=-0.4)
    longer = {"max_turns": 3, "max_new_tokens": 16}
    for number, seed in ((3, 0), (4, 1)):
        add_run(context.db, context.workspace, f"{number}-more", seed=seed, name="more", rollout=longer)
    assert compare.compare_runs([1, 2, 3, 4])["unequal"] == {"token limits": ["rollout.max_new_tokens"]}
    found = compare.compare_evaluations([1, 2, 3, 4], merge_seeds=True)
    table = found["merged"][0]
    assert (table["group"], table["seeds"], len(found["merged"])) == ("small ×2 against more ×2", ["0", "1"], 3)
    assert [row["quantity"] for row in table["rows"]] == ["difference of cum_acc", "difference of hint_effect"]
    assert {row["checkpoint"] for row in table["rows"]} == {"small ×2 − more ×2"} and "[" in table["rows"][0]["mean"][
        "text"
    ]
    add_run(context.db, context.workspace, "5-late", seed=5, name="late", lora={"rank": 4})
    add_run(context.db, context.workspace, "6-late", seed=6, name="late", lora={"rank": 4})
    apart = compare.compare_evaluations([1, 2, 5, 6], merge_seeds=True)
    assert "no evaluated seed in common" in apart["not_compared"] and len(apart["merged"]) == 2


def test_a_run_without_evaluation_has_an_empty_table(compare: CompareEndpoints, context: Context, run: Run) -> None:
    add_run(context.db, context.workspace, "2-small", evaluated=False)
    found = compare.compare_evaluations([1, 2])
    assert [(t["run"], t["evaluation"] is None) for t in found["tables"]] == [(1, False), (2, True)]


def test_no_runs_are_compared_to_nothing_and_more_than_twenty_are_refused(compare: CompareEndpoints, run: Run) -> None:
    assert compare.compare_runs([])["runs"] == [] and compare.compare_runs([1])["config"] == []
    assert compare.compare_charts([], ["reward"]) == []
    assert compare.compare_evaluations([])["differences"] == []
    with pytest.raises(ArgumentError, match="at most 20"):
        compare.compare_runs(list(range(1, 40)))
    with pytest.raises(ArgumentError, match="runs"):
        compare.compare_runs("1;2")  # type: ignore[arg-type]


# -- configurations ------------------------------------------------------------------------------------------------
def test_runs_are_found_by_their_words(compare: CompareEndpoints, context: Context, run: Run) -> None:
    add_run(context.db, context.workspace, "2-small", seed=1, name="other")
    assert [found["id"] for found in compare.search_runs()["runs"]] == [2, 1]
    found = compare.search_runs("other")
    assert [row["name"] for row in found["runs"]] == ["other"] and found["total"] == 1


def test_differences_are_grouped_by_section_and_stage() -> None:
    a, b = resolved(), resolved(seed=3, rollout={"max_turns": 2, "max_new_tokens": 12})
    b["stages"][1]["steps"] = 9
    assert differences(a, b) == {
        "run": {"seed": ["0", "3"]},
        "rollout": {"rollout.max_turns": ["3", "2"]},
        "stage rl": {"stages.rl.steps": ["6", "9"]},
    }


def test_a_key_that_an_older_version_did_not_write_has_its_default() -> None:
    old, new = resolved(), resolved()
    del old["rollout"]["temperature"], old["stages"][1]["method"]["epsilon"]
    assert differences(old, new) == {}
    new["rollout"]["temperature"] = 0.5
    assert list(differences(old, new)["rollout"]) == ["rollout.temperature"]


def test_a_shorthand_equals_its_resolved_form() -> None:
    assert differences(CONFIG, resolved()) == {}


def test_a_key_that_only_one_version_knew_is_no_difference() -> None:
    old, new = resolved(), resolved(seed=1)
    old["rollout"]["forgotten"] = 1
    old["stages"][1]["method"]["forgotten"] = 2
    old["forgotten"] = {"a": 3}
    assert differences(old, new) == {"run": {"seed": ["0", "1"]}}


def test_an_unknown_key_of_every_run_is_compared() -> None:
    a, b = resolved(), resolved()
    a["rollout"]["forgotten"], b["rollout"]["forgotten"] = 1, 2
    assert differences(a, b) == {"rollout": {"rollout.forgotten": ["1", "2"]}}


def test_keys_that_an_unreadable_configuration_lacks_are_no_difference() -> None:
    a, b = resolved(), resolved()
    b["environment"] = {"type": "no_longer_there", "rooms": 3}
    b["rollout"]["forgotten"] = 1
    del b["lora"]
    changed = {"environment.type": ["guess_number", "no_longer_there"], "environment.rooms": ["–", "3"]}
    assert differences(a, b) == {"environment": changed}


def test_parameters_of_different_environments_are_shown_with_a_dash() -> None:
    found = differences(resolved(), resolved(environment={"type": "secret_code"}))
    assert found["environment"]["environment.type"] == ["guess_number", "secret_code"]
    assert found["environment"]["environment.size"] == ["8", "–"]


def test_an_invalid_yaml_of_a_run_is_no_obstacle(compare: CompareEndpoints, context: Context, run: Run) -> None:
    other = add_run(context.db, context.workspace, "2-small", seed=1)
    runs.update(context.db, other.id or 0, config=yaml.safe_dump({"seed": 4, "kind": "no_such_kind"}) + "x: [")
    assert compare.compare_runs([1, 2])["config"] == []
