"""Programs close to a reference solution, for the simulated student."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

_OPERATORS: tuple[type[ast.operator], ...] = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_COMPARISONS: tuple[type[ast.cmpop], ...] = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_NAMES = {"max": "min", "min": "max", "sum": "len", "len": "sum", "upper": "lower", "lower": "upper", "find": "count"}


def mutants(code: str, rng: random.Random, count: int) -> Iterator[str]:
    """Yield at most `count` different programs that differ from `code` in one place."""
    tree = ast.parse(code)
    sites = [node for node in ast.walk(tree) if _changes(node)]
    seen = {code}
    for node in rng.sample(sites, min(count, len(sites))):
        original = dict(vars(node))
        _change(node, rng)
        program = ast.unparse(tree)
        vars(node).update(original)
        if program not in seen:
            seen.add(program)
            yield program


def constant(code: str, function: str) -> str:
    """Return a program with the function's parameters that returns None."""
    tree = ast.parse(code)
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    return f"def {function}({ast.unparse(node.args)}):\n    return None"


def _change(node: ast.AST, rng: random.Random) -> None:
    """Change a node in place."""
    match node:
        case ast.Constant(value=int(value)):
            node.value = value + rng.choice((-1, 1))
        case ast.Constant(value=str(text)):
            node.value = text + rng.choice("aeiou")
        case ast.BinOp():
            node.op = rng.choice([kind for kind in _OPERATORS if not isinstance(node.op, kind)])()
        case ast.Compare():
            others = [kind for kind in _COMPARISONS if not isinstance(node.ops[0], kind)]
            node.ops = [rng.choice(others)(), *node.ops[1:]]
        case ast.Name():
            node.id = _NAMES[node.id]
        case ast.Attribute():
            node.attr = _NAMES[node.attr]
        case ast.Return(value=ast.expr() as value):
            node.value = ast.UnaryOp(ast.Not(), value)


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
