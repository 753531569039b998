"""YAML by libyaml where that is safe, about eight times as fast as PyYAML's own parser."""

from __future__ import annotations

from typing import Any

import yaml

MAX_INDICATORS = 2_000
"""Maximum number of characters that can open a level of nesting; libyaml's binding overflows the stack at some 10,000
levels."""
MAX_LEVELS = 100


def loader_of(text: str) -> Any:
    """Return the loader for a text: libyaml's, or PyYAML's if the text could be deeply nested or libyaml is missing."""
    few = sum(map(text.count, "[{-?:")) <= MAX_INDICATORS
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader) if few else yaml.SafeLoader


def load_yaml(text: str) -> Any:
    """Parse a text as `yaml.safe_load` does.

    Raises `yaml.YAMLError` for invalid YAML, with an excerpt of the text, and `RecursionError` for deep nesting.
    """
    loader = loader_of(text)
    if loader is not yaml.SafeLoader:
        try:
            value = yaml.load(text, loader)
        except (yaml.YAMLError, ValueError):
            pass  # PyYAML's errors quote the text
        else:
            if _has_few_levels(value):
                return value
    return yaml.safe_load(text)


def _has_few_levels(value: Any) -> bool:
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
