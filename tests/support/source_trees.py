"""Syntax trees of the product's modules, which several tests of the repository read."""

from __future__ import annotations

import ast
from functools import cache


@cache
def parse(source: str) -> ast.Module:
    """Parse a module once for all tests."""
    return ast.parse(source)


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All nodes of a module in the order of `ast.walk`, walked once for all tests."""
    return tuple(ast.walk(parse(source)))
