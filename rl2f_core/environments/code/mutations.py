"""Programs close to a reference solution, for the simulated student."""

from __future__ import annotations

import ast
import random

_OPERATORS: tuple[type[ast.operator], ...] = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_COMPARISONS: tuple[type[ast.cmpop], ...] = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_NAMES = {"max": "min", "min": "max", "sum": "len", "len": "sum", "upper": "lower", "lower": "upper", "find": "count"}


def mutants(code: str, rng: random.Random, count: int) -> list[str]:
    """Return at most `count` programs that differ from `code` in one place."""
    num_sites = sum(_changes(node) for node in ast.walk(ast.parse(code)))
    sites = rng.sample(range(num_sites), min(count, num_sites))
    return [program for program in dict.fromkeys(_changed(code, site, rng) for site in sites) if program != code]


def constant(code: str, function: str) -> str:
    """Return a program with the function's parameters that returns None."""
    tree = ast.parse(code)
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    return f"def {function}({ast.unparse(node.args)}):\n    return None"


def _changed(code: str, site: int, rng: random.Random) -> str:
    """Return `code` with the site of this number changed."""
    tree = ast.parse(code)
    nodes = [node for node in ast.walk(tree) if _changes(node)]
    node = nodes[site]
    match node:
        case ast.Constant(value=int(value)):
            node.value = value + rng.choice((-1, 1))
        case ast.Constant(value=str(text)):
            node.value = text + rng.choice("aeiou")
        case ast.BinOp():
            node.op = rng.choice([kind for kind in _OPERATORS if not isinstance(node.op, kind)])()
        case ast.Compare():
            node.ops[0] = rng.choice([kind for kind in _COMPARISONS if not isinstance(node.ops[0], kind)])()
        case ast.Name():
            node.id = _NAMES[node.id]
        case ast.Attribute():
            node.attr = _NAMES[node.attr]
        case ast.Return(value=ast.expr() as value):
            node.value = ast.UnaryOp(ast.Not(), value)
    return ast.unparse(ast.fix_missing_locations(tree))


def _changes(node: ast.AST) -> bool:
    """Return whether there is a change for a node."""
    match node:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int() | str()) | ast.BinOp() | ast.Compare() | ast.Return(value=ast.expr()):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _NAMES
    return False
