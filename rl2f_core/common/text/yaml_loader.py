"""YAML by libyaml where that is safe, about eight times as fast as PyYAML's own parser."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import yaml

T = TypeVar("T")
Loader: TypeAlias = "type[yaml.SafeLoader | yaml.CSafeLoader]"

MAX_INDICATORS = 2_000
"""Maximum number of characters that can open a level of nesting; libyaml's binding overflows the stack at some 10,000
levels."""
MAX_LEVELS = 100
MAX_NUMBER_CHARACTERS = 100
"""Longer numbers are refused: YAML converts digits of base 16 and 60 without a limit, which Python cannot print."""


def _construct_number(loader: yaml.SafeLoader | yaml.CSafeLoader, node: yaml.ScalarNode) -> int | float:
    if len(node.value) > MAX_NUMBER_CHARACTERS:
        problem = f"a number has {len(node.value):,} characters; at most {MAX_NUMBER_CHARACTERS} are taken"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    is_float = node.tag.endswith(":float")
    return loader.construct_yaml_float(node) if is_float else loader.construct_yaml_int(node)


def _with_short_numbers(base: Loader) -> Loader:
    loader: Any = type("NumberLoader", (base,), {})
    for kind in ("int", "float"):
        loader.add_constructor(f"tag:yaml.org,2002:{kind}", _construct_number)
    number_loader: Loader = loader
    return number_loader


PYTHON_LOADER: Loader = _with_short_numbers(yaml.SafeLoader)
C_LOADER: Loader | None = _with_short_numbers(yaml.CSafeLoader) if hasattr(yaml, "CSafeLoader") else None


def with_loader(text: str, parse: Callable[[Loader], T]) -> T:
    """Return `parse(loader)` with the loader of libyaml.

    If libyaml is missing, the text could be deeply nested, or `parse` raises, the loader is PyYAML's, whose errors
    quote the text.
    """
    if C_LOADER is not None and sum(map(text.count, "[{-?:")) <= MAX_INDICATORS:
        with contextlib.suppress(Exception):
            return parse(C_LOADER)
    return parse(PYTHON_LOADER)


def load_yaml(text: str) -> Any:
    """Parse a text as `yaml.safe_load` does, with numbers of at most `MAX_NUMBER_CHARACTERS`.

    Raises `yaml.YAMLError` for invalid YAML, with an excerpt of the text, and `RecursionError` for deep nesting.
    """

    def parse(loader: Loader) -> object:
        value = yaml.load(text, loader)
        if loader is not PYTHON_LOADER and not _has_few_levels(value):
            raise RecursionError  # PyYAML decides
        return value

    return with_loader(text, parse)


def _has_few_levels(value: object) -> bool:
    """Return whether a value is nested at most `MAX_LEVELS` deep."""
    seen: set[int] = set()
    children = [value]
    for _ in range(MAX_LEVELS):
        nodes = {id(node): node for node in children if isinstance(node, dict | list) and id(node) not in seen}
        seen.update(nodes)
        children = [c for node in nodes.values() for c in (node.values() if isinstance(node, dict) else node)]
        if not children:
            return True
    return False
