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


def with_loader(text: str, parse: Callable[[Loader], T]) -> T:
    """Return `parse(loader)` with the loader of libyaml.

    If libyaml is missing, the text could be deeply nested, or `parse` raises, the loader is PyYAML's, whose errors
    quote the text.
    """
    if hasattr(yaml, "CSafeLoader") and sum(map(text.count, "[{-?:")) <= MAX_INDICATORS:
        with contextlib.suppress(Exception):
            return parse(yaml.CSafeLoader)
    return parse(yaml.SafeLoader)


def load_yaml(text: str) -> Any:
    """Parse a text as `yaml.safe_load` does.

    Raises `yaml.YAMLError` for invalid YAML, with an excerpt of the text, and `RecursionError` for deep nesting.
    """

    def parse(loader: Loader) -> object:
        value = yaml.load(text, loader)
        if loader is not yaml.SafeLoader and not _has_few_levels(value):
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
