"""Presets: each is valid, can run, and has a CPU version if it is of paper scale."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli import app
from rl2f_core.common.paths import CONFIGS
from rl2f_core.config.leaks import describe_detector
from rl2f_core.config.loading import load_config, parse_config
from rl2f_core.config.matrix import cells
from rl2f_core.config.presets import preset, presets
from rl2f_core.config.run import BaseRun, RunConfig
from rl2f_core.errors import ConfigError
from rl2f_core.run.events import DialogueEvent, MetricEvent, read_events
from rl2f_core.run.kinds.dry_run import MODEL, dry_run, shrink_config

NAMES = [item.name for item in presets()]
OFFLINE = "sample"
"""The shipped math problems, instead of a hub's."""


# -- names ---------------------------------------------------------------------------------------------------------
def test_a_preset_is_loaded_by_its_name_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = CONFIGS / "quickstart" / "quickstart.yaml"
    assert load_config("quickstart", ["seed=3"]) == load_config(file, ["seed=3"])
    assert load_config("kk_7b:lora") == preset("kk_7b:lora").config()
    text = file.read_text(encoding="utf-8").replace("name: quickstart\n", "name: mine\n")
    (tmp_path / "quickstart").write_text(text, encoding="utf-8")
    assert load_config("quickstart").name == "mine"  # a file of this name comes first
    with pytest.raises(ConfigError, match="does not exist"):
        load_config("../quickstart")


# -- a matrix ------------------------------------------------------------------------------------------------------
def test_matrix_is_the_product_of_its_axes_with_the_last_one_fastest() -> None:
    data = {
        "name": "m",
        "a": {"x": 1, "keep": 0},
        "list": [{"k": 1}, {"k": 2}],
        "matrix": {"one": {"p": {"a.x": 2}, "q": {}}, "two": {"r": {"list.1.k": 5}, "s": {"b": "new"}}},
    }
    configs = cells(data)
    assert list(configs) == ["p-r", "p-s", "q-r", "q-s"]
    assert configs["p-r"] == {"name": "m-p-r", "a": {"x": 2, "keep": 0}, "list": [{"k": 1}, {"k": 5}]}
    assert configs["q-s"] == {"name": "m-q-s", "a": {"x": 1, "keep": 0}, "list": [{"k": 1}, {"k": 2}], "b": "new"}
    assert data["list"][1] == {"k": 2}, "what is shared stays as it was"


def test_settings_of_single_cells_apply_last() -> None:
    axes = {"one": {"p": {"a": 2}, "q": {}}, "two": {"r": {"a": 3}, "s": {}}}
    configs = cells({"a": 1, "b": {"c": 1}, "matrix": axes, "cells": {"p-r": {"a": 9, "b.c": 5}}})
    assert {name: (c["a"], c["b"]["c"]) for name, c in configs.items()} == {
        "p-r": (9, 5), "p-s": (2, 1), "q-r": (3, 1), "q-s": (1, 1)}  # fmt: skip
    for wrong, words in (({"p-t": {"a": 1}}, "does not have"), ([], "not a mapping"), ({"p-r": 3}, "not a mapping")):
        with pytest.raises(ConfigError, match=words):
            cells({"a": 1, "matrix": axes, "cells": wrong})


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([], "contains no axes"),
        ({"one": {}}, "names no changes"),
        ({"one": {"a-b": {}}}, "other characters than letters"),
        ({"one": {"p": 3}}, "is not a mapping"),
        ({"one": {"p": {"list.7.k": 1}}}, "has no valid list index"),
        ({axis: {f"p{i}": {} for i in range(99)} for axis in "abcdef"}, "more than 200 cells. Got: 941480149401"),
    ],
)
def test_invalid_matrix_is_rejected(matrix: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cells({"list": [], "matrix": matrix})


def test_command_selects_one_cell_of_a_matrix_and_lists_the_cells(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(
        "matrix: {size: {small: {environment.size: 4}, large: {environment.size: 64}}, turns: {one: "
        "{rollout.max_turns: 1}}}\nname: grid\nenvironment: {type: guess_number}\n"
        "stages: [{name: s, method: sft, steps: 1}]\n"
    )
    config: Any = load_config(f"{path}:large-one", ["seed=4"])
    assert (config.name, config.environment.size, config.rollout.max_turns, config.seed) == ("grid-large-one", 64, 1, 4)
    for wrong in (path, f"{path}:tiny-one"):
        with pytest.raises(ConfigError, match="small-one, large-one"):
            load_config(wrong)
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(tmp_path / "none.yaml:small-one")
    with pytest.raises(ConfigError, match="contains no matrix"):
        load_config(f"{preset('quickstart').path}:small")
    listed = CliRunner().invoke(app, ["config", "cells", str(path)]).output.split()
    assert listed == [f"{path}:small-one", f"{path}:large-one"]


# -- what ships ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_valid_and_described(name: str) -> None:
    item = preset(name)
    assert isinstance(item.config(), RunConfig) and len(item.about) > 40
    _, _, cell = name.partition(":")
    assert item.config() == load_config(f"{item.path}:{cell}" if cell else item.path)


def test_every_paper_scale_preset_names_its_source_and_has_a_cpu_version() -> None:
    files = {path.stem: path.read_text() for path in CONFIGS.rglob("*.yaml")}
    published = [name for name, text in files.items() if "# Source: " in text]
    assert published
    for name in published:
        named = re.search(r"for a CPU there is (\w+)\.yaml", files[name].replace("\n# ", " "))
        twin = named[1] if named else f"{name}_cpu"
        assert twin in files, name
        model = yaml.safe_load(files[twin]).get("model", {})
        assert model.get("name", "smollm2-135m") == "smollm2-135m"


# -- dry runs ------------------------------------------------------------------------------------------------------
def small(config: BaseRun) -> BaseRun:
    """The same without a hub."""
    data = config.model_dump(mode="json")
    if data["environment"]["type"] == "math":
        data["environment"] |= {"source": OFFLINE, "test_source": None, "test_size": None}
    return parse_config(data)


def test_dry_run_keeps_components_and_shrinks_sizes() -> None:
    config = parse_config(
        {
            "environment": "guess_number",
            "model": {"name": "org/large", "dtype": "bfloat16"},
            "teacher": {"type": "llm", "llm": {"type": "openai_api", "base_url": "http://127.0.0.1:9/v1", "model": "m"},
                        "style": "next_step", "max_new_tokens": 4000},
            "rollout": {"max_turns": 10, "max_new_tokens": 2048, "max_seq_len": 30_000},
            "lora": {"rank": 64, "target_modules": ["q_proj"]},
            "stages": [{"name": "a", "method": "sft", "steps": 500, "group_size": 1},
                       {"name": "b", "method": {"type": "rl2f", "gamma": 0.3}, "steps": 9, "group_size": 32,
                        "minibatches": 4, "temperature": [{"step": 0, "value": 0.7}, {"step": 5, "value": 1.3}]}],
            "evaluation": {"num_tasks": 500, "conditions": ["hints", "shuffled"], "checkpoints": ["b@9"]},
        }
    )  # fmt: skip
    assert isinstance(config, RunConfig)
    small: Any = shrink_config(config)
    assert (small.model.name, small.rollout.max_turns, small.rollout.max_new_tokens) == (MODEL, 3, 12)
    assert (small.teacher.llm.type, small.teacher.style, small.teacher.max_new_tokens) == ("local", "next_step", 12)
    assert [(s.steps, s.group_size, s.minibatches) for s in small.stages] == [(1, 1, 1), (1, 2, 1)]
    assert small.stages[1].method == config.stages[1].method and small.stages[1].temperature.at(9) == 1.3
    assert small.evaluation.conditions == ("hints", "shuffled") and small.evaluation.num_tasks == 1


def test_dry_run_executes_every_stage_and_condition_once(tmp_path: Path) -> None:
    config: Any = preset("levels_cpu").config()
    parts = [{"environment": "guess_number"}, {"environment": "secret_code"}]
    data = {**config.model_dump(mode="json"), "environment": {"type": "mixture", "environments": parts}}
    data["evaluation"]["conditions"] = ["hints", "shuffled"]
    levels = [{"settings": {"environments.0.weight": weight}} for weight in (1, 2)]
    for stage in data["stages"]:
        stage["curriculum"] = {"levels": [{**levels[0], "steps": 1}, levels[1]]}
    said = dry_run(parse_config(data), tmp_path / "dry")
    assert "Everything was built and ran once." in said and "Reply as <answer>" in said
    events = list(read_events(tmp_path / "dry" / "events.jsonl", strict=True))
    metrics = {e.stage: e.values for e in events if isinstance(e, MetricEvent)}
    assert {"warmup", "rl2f"} <= set(metrics) and metrics["rl2f"]["temperature"] == 1.0
    assert metrics["rl2f"]["tasks/guess_number"] + metrics["rl2f"]["tasks/secret_code"] == 2
    assert {e.phase for e in events if isinstance(e, DialogueEvent)} == {"train", "preflight"}
    assert "  evaluation: hints, shuffled\n" in said
    with pytest.raises(ConfigError, match="needs a training run"):
        dry_run(parse_config({"kind": "eval", "environment": "guess_number", "adapters": {"base": None}}), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_dry_run_of_every_preset_succeeds(name: str, tmp_path: Path) -> None:
    assert "Everything was built" in dry_run(small(preset(name).config()), tmp_path / "dry")


def test_every_preset_names_its_leak_detectors_and_the_version_of_their_weights() -> None:
    for file in sorted(CONFIGS.glob("*/*.yaml")):
        if file.parent.name != "launch":
            text = file.read_text(encoding="utf-8")
            assert re.search(
                r"^leak_detection: \{detectors: (\[\]|\[\{type: mentions, version: 1\}\]|\[exact[,\]])", text, re.M
            ), file
    shown = preset("quickstart").config().model_dump()["leak_detection"]["detectors"]
    assert [describe_detector(each) for each in shown] == ["mentions 1"]
    assert describe_detector({"type": "mentions", "version": 1, "path": "detectors/v3.json"}) == "mentions v3"
    assert describe_detector({"type": "exact"}) == "exact"


def test_an_unknown_preset_is_answered_with_the_nearest_names_only() -> None:
    with pytest.raises(ConfigError) as error:
        preset("quikstart")
    known = error.value.known or ()
    assert known[0] == "quickstart" and len(known) <= 3
    assert "e.g. quickstart; the page New run lists all" in str(error.value)
