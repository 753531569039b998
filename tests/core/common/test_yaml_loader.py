"""`load_yaml` returns and refuses what `yaml.safe_load` does, and no text ends the process."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rl2f_core.common.text.yaml_loader import load_yaml, with_loader

CONFIGS = sorted((Path(__file__).parents[3] / "data" / "configs").rglob("*.yaml"))
DEEP = {"flow": "[", "mapping": "{a: ", "list": "- ", "key": "? "}


def test_shipped_configurations_are_read_as_by_safe_load() -> None:
    assert CONFIGS
    for path in CONFIGS:
        text = path.read_text(encoding="utf-8")
        assert with_loader(text, lambda loader: loader) is not yaml.SafeLoader, "a shipped configuration is read fast"
        assert load_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["a: [1, 2", "a: 1\na: {", "\t- a", "a: \x00", "!!python/name:os.system", "[]: {}: 1"])
def test_an_invalid_text_has_the_error_of_safe_load(text: str) -> None:
    with pytest.raises(yaml.YAMLError) as expected:
        yaml.safe_load(text)
    with pytest.raises(yaml.YAMLError) as found:
        load_yaml(text)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("levels", [1_500, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("opening", DEEP.values(), ids=DEEP)
def test_deep_nesting_is_an_error(opening: str, levels: int) -> None:
    with pytest.raises((RecursionError, yaml.YAMLError)):
        load_yaml(opening * levels + "x")


def test_aliases_of_aliases_are_read_in_time() -> None:
    lines = [f"- &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 90)]
    value = load_yaml("\n".join(["- &a0 x", *lines]))
    assert value[2][0] is value[1]
