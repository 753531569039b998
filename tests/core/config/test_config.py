"""Configuration: validation errors, overrides, YAML round trip, JSON schema."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import yaml
from pydantic import ValidationError

from rl2f_core import registry
from rl2f_core.common.file_io import disk_is_full, write_atomically
from rl2f_core.config.components import Component
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.loading import apply_override, dump_yaml, format_validation_error, load_config, parse_config
from rl2f_core.config.presets import presets
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.errors import ConfigError, DataError, DiskFullError
from rl2f_core.run.directory import RunDir


def data(**changes: Any) -> dict[str, Any]:
    return {
        "environment": {"type": "arithmetic"},
        "stages": [stage("warm", "sft"), stage("rl", {"type": "rl2f", "gamma": 0.9})],
        **changes,
    }


def stage(name: str, method: Any = "rl2f", **changes: Any) -> dict[str, Any]:
    return {"name": name, "method": method, "steps": 4, **changes}


def refusal(config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(config)
    return str(caught.value)


def make(**changes: Any) -> RunConfig:
    config = parse_config(data(**changes))
    assert isinstance(config, RunConfig)
    return config


# -- what is refused -----------------------------------------------------------------------------------------------
def test_unknown_key_suggests_the_nearest_field() -> None:
    assert "rolout: unknown key, did you mean 'rollout'?" in refusal(data(rolout={}))
    assert "qqq: unknown key; known: name, seed, model" in refusal(data(qqq=1))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"rollout": {"turns": 3}}, "rollout.turns: unknown key"),
        ({"environment": {"type": "arithmetic", "digit": 2}}, "environment.digit: unknown key"),
        ({"stages": [stage("a", lr=1)]}, "stages.0.lr: unknown key"),
        ({"stages": [stage("a", "sft"), stage("b", {"type": "rl2f", "gama": 1})]}, "stages.1.method.gama: unknown key"),
        (
            {"leak_detection": {"detectors": ["exact", {"type": "mentions", "x": 1}]}},
            "leak_detection.detectors.1.x: unknown key",
        ),
    ],
)
def test_unknown_nested_key_is_named_by_its_path(change: dict[str, Any], where: str) -> None:
    assert where in refusal(data(**change))


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        ({"seed": "x"}, "seed", "valid integer"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature", "greater than 0"),
        ({"rollout": {"temperature": float("nan")}}, "rollout.temperature", "finite"),
        ({"rollout": "fast"}, "rollout", "valid dictionary"),
        ({"model": {"dtype": "int8"}}, "model.dtype", "'float32'"),
        ({"evaluation": {"conditions": ["hints", "nothing"]}}, "evaluation.conditions.1", "'shuffled'"),
        ({"evaluation": {"conditions": []}}, "evaluation.conditions", "at least 1"),
        ({"lora": {"top_layer_fraction": 0}}, "lora.top_layer_fraction", "greater than 0"),
        ({"stages": []}, "stages", "at least 1"),
        ({"stages": [stage("a b")]}, "stages.0.name", "pattern"),
        ({"stages": [stage("a", steps=0)]}, "stages.0.steps", "greater than or equal to 1"),
        ({"stages": [stage("a"), stage("b", {"type": "rl2f", "gamma": "x"})]}, "stages.1.method.gamma", "number"),
        ({"stages": [stage("a", {"type": "rl2f", "gamma": 1.5})]}, "stages.0.method.gamma", "less than or equal to 1"),
        ({"stages": [stage("a", {"gamma": 1})]}, "stages.0.method", "needs a `type`"),
        ({"stages": [stage("a", 3)]}, "stages.0.method", "known: distill, ppo"),
        ({"stages": [stage("a", {"type": ["rl2f"]})]}, "stages.0.method", "unknown method"),
        ({"environment": "sudoku"}, "environment", "unknown environment 'sudoku'; known: arithmetic"),
        ({"teacher": "shuffled"}, "teacher", "list shuffled in evaluation.conditions"),
        ({"backend": "nope"}, "backend", "known: auto, fake, hf, vllm"),
    ],
)
def test_invalid_value_is_named_by_its_field(change: dict[str, Any], where: str, what: str) -> None:
    message = refusal(data(**change))
    assert f"{where}: " in message and what in message


def test_missing_field_is_named() -> None:
    config = data()
    del config["environment"]
    assert "environment: Field required" in refusal(config)
    assert "stages.0.steps: Field required" in refusal(data(stages=[{"name": "a", "method": "sft"}]))


def test_all_errors_are_reported_together() -> None:
    message = refusal(data(seed="x", rollout={"max_turns": 0}, extra=1))
    assert "3 error(s)" in message and all(part in message for part in ("seed: ", "rollout.max_turns: ", "extra: "))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"stages": [stage("rl", group_size=1)]}, "group_size 1 has no other dialogue to compare with"),
        ({"stages": [stage("rl", "rlvr", group_size=1)]}, "group_size 1"),
        ({"rollout": {"max_turns": 1}}, "rl2f with rollout.max_turns 1 has no hint to learn from"),
        ({"rollout": {"max_seq_len": 24, "max_new_tokens": 24}}, "leaves no room for a prompt"),
        ({"rollout": {"max_seq_len": 20}}, "raise max_seq_len or lower max_new_tokens"),
        ({"stages": [stage("a", "sft"), stage("a")]}, "stage name 'a' is taken"),
        ({"stages": [stage("base", "sft")]}, "stage name 'base' is taken"),
        ({"stages": [stage("a", "sft"), stage("b", init_from="c")]}, "which is not an earlier stage; known: base, a"),
        ({"stages": [stage("a", init_from="b"), stage("b", "sft")]}, "not an earlier stage; known: base"),
        ({"stages": [stage("a", init_from="a")]}, "not an earlier stage"),
        ({"stages": [stage("a", "sft"), stage("b", tasks_from="c")]}, "with tasks of its own; known: a"),
        ({"stages": [stage("a", tasks_from="a")]}, "with tasks of its own; known: none"),
        (
            {"stages": [stage("a", "sft"), stage("b", tasks_from="a"), stage("c", tasks_from="b")]},
            "with tasks of its own; known: a",
        ),
        ({"evaluation": {"conditions": ["contentless", "shuffled"]}}, "come from the dialogues under hints; add hints"),
        ({"evaluation": {"checkpoints": ["rl@5"]}}, "'rl@5', which no stage saves; known: base, stages, warm@4, rl@4"),
        ({"evaluation": {"checkpoints": ["../x@4"]}}, "which no stage saves"),
        ({"evaluation": {"checkpoints": ["rl@04"]}}, "which no stage saves"),
        ({"evaluation": {"checkpoints": ["rl"]}}, "which no stage saves"),
        ({"stages": [stage("a", "sft", max_group_resamples=5)]}, "no rollouts, which max_group_resamples changes"),
        ({"stages": [stage("a", "sft", importance_sampling_clip_max=2)]}, "importance_sampling_clip_max changes"),
        ({"stages": [stage("a", "sft", temperature=0.5)]}, "no rollouts, which temperature changes"),
        ({"lora": {"init_adapter": "a"}, "stages": [stage("a", init_from="base")]}, "init_adapter conflicts with init"),
        ({"stages": [stage("a", {"type": "rl2f_self", "start_step": 4})]}, "start_step 4 is after the last of 4 steps"),
    ],
)  # fmt: skip
def test_conflicting_fields_are_rejected(change: dict[str, Any], what: str) -> None:
    assert what in refusal(data(**change))


def test_a_recorded_run_may_have_a_setting_without_effect(tmp_path: Path) -> None:
    """It was started by an earlier version, and must open, resume and export."""
    run_dir = RunDir.create(tmp_path / "run", make())
    text = run_dir.config_path.read_text().replace("max_group_resamples: 0", "max_group_resamples: 3", 1)
    run_dir.config_path.write_text(text)
    assert run_dir.config().stages[0].max_group_resamples == 3  # type: ignore[union-attr]
    assert "no rollouts, which max_group_resamples changes" in refusal(yaml.safe_load(text))


def test_similar_valid_combinations_are_accepted() -> None:
    make(stages=[stage("rl", group_size=2)])
    make(stages=[stage("warm", "sft", group_size=1)])
    make(stages=[stage("one", "rlvr")], rollout={"max_turns": 1})
    make(rollout={"max_seq_len": 25, "max_new_tokens": 24})
    make(stages=[stage("a", "sft"), stage("b", init_from="base"), stage("c", init_from="a")])
    saved = ["base", "stages", "rl@2", "rl@4"]
    config = make(stages=[stage("rl", save_steps=2)], evaluation={"checkpoints": saved})
    assert config.evaluation.checkpoints == tuple(saved)


@pytest.mark.parametrize("config", [None, [], "train", 3])
def test_non_mapping_is_rejected(config: Any) -> None:
    assert "mapping" in refusal(config)


@pytest.mark.parametrize("kind", ["fly", 3, None, ["train"]])
def test_unknown_run_kind_lists_the_known_ones(kind: Any) -> None:
    assert f"Known: {', '.join(registry.names('run_kind'))}" in refusal(data(kind=kind))


def test_configurations_are_immutable() -> None:
    config = make()
    with pytest.raises(ValidationError):
        config.rollout.max_turns = 9  # type: ignore[misc]


# -- components ----------------------------------------------------------------------------------------------------
def test_bare_name_selects_the_component_with_defaults() -> None:
    assert make(environment="arithmetic") == make(environment={"type": "arithmetic"})
    assert make().teacher.type == "scripted" and make().backend.type == "auto"  # type: ignore[attr-defined]
    assert [d.type for d in make().leak_detection.detectors] == ["mentions"]  # type: ignore[attr-defined]


def test_component_is_validated_as_its_own_config() -> None:
    config = make(environment={"type": "secret_code", "alphabet": "ABCD"})
    assert isinstance(config.environment, registry.get("environment", "secret_code").Config)  # type: ignore[attr-defined]
    assert config.environment.letters == 4  # type: ignore[attr-defined]


# -- overrides -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("seed=7", ("seed",), 7),
        ("rollout.max_turns=6", ("rollout", "max_turns"), 6),
        ("stages.1.method.gamma=0.5", ("stages", 1, "method", "gamma"), 0.5),
        ("stages.0.learning_rate=1e-4", ("stages", 0, "learning_rate"), 1e-4),
        ("stages.0.method.hint_follow_rate=1", ("stages", 0, "method", "hint_follow_rate"), 1.0),
        ("environment.digits=3", ("environment", "digits"), 3),
        ("environment=secret_code", ("environment", "type"), "secret_code"),
        ("evaluation.conditions=[hints, resample]", ("evaluation", "conditions"), ("hints", "resample")),
        ("evaluation.conditions.0=misleading", ("evaluation", "conditions", 0), "misleading"),
        ("leak_detection={action: drop}", ("leak_detection", "action"), "drop"),
        ("evaluation.max_turns=null", ("evaluation", "max_turns"), None),
        ("name=a=b", ("name",), "a=b"),
    ],
)
def test_override_changes_one_value(override: str, path: tuple[Any, ...], value: Any) -> None:
    base = data(name="x", evaluation={"conditions": ["hints", "contentless"]})
    if override == "name=a=b":
        assert apply_override(base, override)["name"] == value
        return
    node: Any = parse_config(apply_override(base, override))
    for key in path:
        node = node[key] if isinstance(key, int) else getattr(node, key)
    assert node == value


def test_override_changes_neither_other_values_nor_the_original() -> None:
    base = data()
    changed = apply_override(base, "stages.1.steps=9")
    assert base == data() and changed["stages"][0] == base["stages"][0] and changed["stages"][1]["steps"] == 9


@pytest.mark.parametrize(
    "override",
    ["seed", "=3", "stages.2.steps=1", "stages.x.steps=1", "seed.a=1", "rollout.max_turns=[", "seed=2020-99-99"],
)
def test_inapplicable_override_is_rejected(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_override(data(seed=1), override)
    assert override in str(caught.value)


def test_invalid_override_value_is_named_by_its_field(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps(data()))
    with pytest.raises(ConfigError, match=r"stages\.1\.method\.gamma"):
        load_config(tmp_path / "c.yaml", ["stages.1.method.gamma=two"])


# -- YAML ----------------------------------------------------------------------------------------------------------
def test_yaml_round_trip_is_byte_identical(tmp_path: Path) -> None:
    teacher = {"type": "contentless", "text": "Ну ещё раз: 'no'\n"}
    config = make(name="Two stages", evaluation={"conditions": ["hints"]}, teacher=teacher)
    first = dump_yaml(config)
    (tmp_path / "c.yaml").write_text(first, encoding="utf-8")
    again = load_config(tmp_path / "c.yaml")
    assert again == config and dump_yaml(again) == first
    assert "Ну ещё раз" in first and "!!python" not in first


def test_dump_contains_all_defaults() -> None:
    text = dump_yaml(make(backend="hf"))
    for name in (
        "temperature",
        "max_resamples",
        "max_grad_norm",
        "max_scoring_tokens",
        "first_correct_rate",
        "ignore_failure",
    ):
        assert f"{name}:" in text


def test_shipped_configurations_are_valid_and_round_trip() -> None:
    assert len(presets()) > 10
    for preset in presets():
        config = preset.config()
        assert isinstance(config, BaseRun) and dump_yaml(config)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"- a",
        b"a: [",
        b"\xff\xfe\x00",
        b"seed: 2020-99-99",
        b"a: !!python/object/apply:os.system [id]",
        b"[" * 500,
    ],
    ids=["empty", "list", "broken", "no UTF-8", "bad date", "python object", "deep"],
)
def test_file_without_configuration_is_rejected(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "c.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=r"c\.yaml"):
        load_config(tmp_path / "c.yaml")


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


# -- schema --------------------------------------------------------------------------------------------------------
ROLLING = [
    name
    for name in registry.names("run_kind")
    if name != "imported" and issubclass(registry.get("run_kind", name).config_class, BaseRun)
]
"""The run kinds that generate dialogues, unlike an export."""


@pytest.mark.parametrize(
    "kind", [kind if kind in ("eval", "train") else pytest.param(kind, marks=pytest.mark.slow) for kind in ROLLING]
)
def test_schema_contains_all_components_and_fields(kind: str) -> None:
    schema = registry.get("run_kind", kind).config_class.model_json_schema()  # type: ignore[attr-defined]
    text = json.dumps(schema)
    components: dict[str, set[str]] = {}

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "x-component" in node:
                names = {option["properties"]["type"]["const"] for option in node["oneOf"]}
                components.setdefault(node["x-component"], set()).update(names)
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(schema)
    expected = {"environment", "teacher", "leak_detector", "backend", "llm", "tracker"}
    expected |= {"method"} if kind in ("train", "preflight") else set()
    assert set(components) == expected
    names = {category: set(Component(category).names()) for category in expected}
    if "method" in expected:  # a stage can train under the control
        names["teacher"].add("shuffled")
    assert components == names
    assert "human" in registry.names("teacher") and "human" not in components["teacher"]
    assert "Sampling temperature; logprobs are taken at this temperature." in text
    assert schema["additionalProperties"] is False


class Depth(BaseConfig):
    """How deep."""

    metres: int = 3


class Cave(BaseConfig):
    """A component whose settings nest others, twice."""

    type: Literal["cave"] = "cave"
    first: Depth = Depth()
    """The first hall."""
    others: tuple[Depth, ...] = ()


def test_component_can_nest_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.names("environment")
    monkeypatch.setitem(registry._components["environment"], "cave", SimpleNamespace(Config=Cave))
    schema = RunConfig.model_json_schema()
    assert "Cave" not in schema["$defs"] and "Depth" not in schema["$defs"]
    environments = schema["properties"]["environment"]["oneOf"]
    cave = next(option for option in environments if option["properties"]["type"]["const"] == "cave")
    assert cave["properties"]["first"]["properties"]["metres"]["default"] == 3
    assert cave["properties"]["first"]["description"] == "The first hall."
    assert cave["properties"]["others"]["items"]["properties"].keys() == {"metres"}


def test_validation_error_is_formatted_for_any_model() -> None:
    config_type: Any = registry.get("environment", "arithmetic").Config  # type: ignore[attr-defined]
    with pytest.raises(ValidationError) as caught:
        config_type.model_validate({"type": "arithmetic", "digit": 2})
    assert "digit: unknown key, did you mean 'digits'?" in format_validation_error(caught.value, config_type)


# -- writing -------------------------------------------------------------------------------------------------------
def test_file_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file.json"
    write_atomically(path, "old")

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DiskFullError, match="disk is full"):
        write_atomically(path, "new")
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


def test_failed_write_raises_data_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "below", "x")


def test_full_disk_is_detected_by_errno_and_message() -> None:
    assert disk_is_full(OSError(28, "No space left on device")) and disk_is_full(OSError(122, "Quota"))
    assert disk_is_full(RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"))
    assert not disk_is_full(OSError(13, "Permission denied")) and not disk_is_full(RuntimeError("28"))
