"""YAML of a form: line numbers of errors and values, limits of size, and changes that keep comments."""

from __future__ import annotations

import datetime
import functools
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.representer import RoundTripRepresenter

from app.forms.schema import Path
from rl2f_core.common.text.yaml_loader import Loader, with_loader
from rl2f_core.config.loading import to_yaml

MAX_CHARACTERS = 200_000
MAX_VALUES = 20_000
"""Maximum number of values after the expansion of aliases; a few lines can name billions."""
SAFE_INTEGER = 2**53 - 1
"""Largest integer that JavaScript represents exactly."""


class YamlProblem(Exception):
    """Invalid YAML; `line` and `column` are 1-based, or None if unknown."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


@dataclass(frozen=True)
class Document:
    """A parsed text."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    """1-based line of each value's key (of the value itself in a list)."""
    scalars: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Start and end of each scalar in the text, without block scalars and empty ones."""
    aliased: bool = False
    """Whether the text uses aliases."""


def read(text: str) -> Document:
    """Parse a text; raises `YamlProblem` for invalid syntax, a duplicate key or too many values."""
    if len(text) > MAX_CHARACTERS:
        raise YamlProblem(f"The text has {len(text):,} characters; a configuration has at most {MAX_CHARACTERS:,}.")
    return with_loader(text, functools.partial(_read, text))


def _read(text: str, parser: Loader) -> Document:
    loader = None
    try:
        loader = parser(text)
        node = loader.get_single_node()
        if node is None:
            return Document(None)
        lines: dict[Path, int] = {}
        scalars: dict[Path, tuple[int, int]] = {}
        budget = _Budget()
        _walk(node, (), lines, scalars, budget)
        aliased = len(budget.seen) < MAX_VALUES - budget.left
        return Document(loader.construct_document(node), lines, scalars, aliased)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.problem, error.note) if part) or "cannot be read"
        place = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise YamlProblem(f"The YAML is broken: {what}.", *place) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlProblem(f"The YAML has a character that is not allowed: {error.reason}.", line) from error
    except RecursionError as error:
        raise YamlProblem("The YAML is nested too deeply.") from error
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise YamlProblem(f"The YAML is broken: {error}.") from error
    finally:
        if loader is not None:
            loader.dispose()


class _Budget:
    """Number of values that are left, and ids of the nodes that were read."""

    left = MAX_VALUES

    def __init__(self) -> None:
        self.seen: set[int] = set()


def _walk(
    node: yaml.Node, path: Path, lines: dict[Path, int], scalars: dict[Path, tuple[int, int]], budget: _Budget
) -> None:
    """Record lines and scalars; refuse too many values (aliases count each time) and duplicate keys."""
    budget.left -= 1
    if budget.left < 0:
        raise YamlProblem(f"The YAML has more than {MAX_VALUES:,} values.", node.start_mark.line + 1)
    budget.seen.add(id(node))
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        start, end = node.start_mark.index, node.end_mark.index
        if start < end and node.style not in ("|", ">"):
            scalars[path] = start, end
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            _walk(item, (*path, i), lines, scalars, budget)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlProblem("A key must be a plain word.", key.start_mark.line + 1, key.start_mark.column + 1)
            if key.value in seen and key.value != "<<":
                mark = key.start_mark
                raise YamlProblem(f"The key `{key.value[:80]}` is given twice.", mark.line + 1, mark.column + 1)
            seen.add(key.value)
            lines[(*path, key.value)] = key.start_mark.line + 1
            _walk(value, (*path, key.value), lines, scalars, budget)


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """Return the line of a value, or of the nearest value around it that the text contains."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


def update(text: str | None, data: object) -> str:
    """Return a text with the values of `data`; comments, order and notation stay.

    Returns `to_yaml(data)`, without comments, if there is no text, or it cannot be read, uses aliases, or cannot hold
    the values otherwise.
    """
    try:
        document = read(text or "")
        if document.value == data:
            return text or ""
        if isinstance(document.value, Mapping) and not document.aliased:
            if (edited := _with_scalars(text or "", document, data)) is not None and read(edited).value == data:
                return edited
            editor, written = _editor(), io.StringIO()
            editor.dump(_updated(editor.load(text), document.value, data, editor), written)
            if read(written.getvalue()).value == data:
                return written.getvalue()
    except (YamlProblem, YAMLError, LookupError, ValueError, TypeError, OverflowError, RecursionError):
        pass
    return to_yaml(data)


def _with_scalars(text: str, document: Document, data: object) -> str | None:
    """Return the text with new scalars in place; None if more than scalars of one line differ."""
    changes = dict(_changes(document.value, data, ()))
    if not all(path in document.scalars and _is_short(value) for path, value in changes.items()):
        return None
    for path in sorted(changes, key=lambda path: document.scalars[path], reverse=True):
        start, end = document.scalars[path]
        text = text[:start] + to_yaml(changes[path]).removesuffix("\n").removesuffix("\n...") + text[end:]
    return text


def _changes(old: object, new: object, path: Path) -> Iterator[tuple[Path, object]]:
    """Yield the values that differ, of mappings and lists of the same keys the ones inside."""
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        for key in old:
            yield from _changes(old[key], new[key], (*path, key))
    elif isinstance(old, list) and isinstance(new, list | tuple) and len(old) == len(new):
        for i in range(len(old)):
            yield from _changes(old[i], new[i], (*path, i))
    elif old != new:
        yield path, new


def _is_short(value: object) -> bool:
    """Return whether a value is a scalar that is written in one line."""
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 100)


class _Representer(RoundTripRepresenter):
    """Writes null in full, as `dump` does."""


_Representer.add_representer(type(None), lambda writer, _: writer.represent_scalar("tag:yaml.org,2002:null", "null"))


def _editor() -> YAML:
    editor = YAML(typ="rt")
    editor.Representer = _Representer
    editor.preserve_quotes = True
    editor.width = 110
    return editor


def _updated(node: object, old: Any, value: object, editor: YAML) -> object:
    """Return a node of a document, whose value is `old`, with another value: the node itself if it can hold it."""
    if isinstance(node, CommentedMap) and isinstance(value, Mapping):
        _update_map(node, old, value, editor)
    elif isinstance(node, CommentedSeq) and isinstance(value, list | tuple):
        if len(node) != len(value):  # items with a name keep their comments
            pairs = zip(node, old, strict=True)
            named = {item.get("name"): (item, was) for item, was in pairs if isinstance(item, CommentedMap)}
            kept = [named.pop(v.get("name"), None) if isinstance(v, Mapping) else None for v in value]
            node[:], old = [pair and pair[0] for pair in kept], [pair and pair[1] for pair in kept]
        for i, item in enumerate(value):
            node[i] = _updated(node[i], old[i], item, editor)
    elif node is None or old != value:
        return _new(value, editor)
    return node


def _new(value: object, editor: YAML) -> object:
    """Return a value as a node that is written in the notation of `dump`."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float | str) and _is_short(value):
        return _scalar(value)
    return editor.load(to_yaml(value))


@functools.lru_cache(maxsize=4096)
def _scalar(value: str | float) -> object:
    """Return a number or a short text as a node; loading one takes 1 ms, and a form has dozens."""
    return _editor().load(to_yaml(value))


def _update_map(node: CommentedMap, old: Mapping[str, object], values: Mapping[str, object], editor: YAML) -> None:
    """Set the keys of a mapping. A new key goes before the one that follows it in `values`."""
    for key in [key for key in node if key not in values]:
        del node[key]
    order: list[str] = list(node)
    last = order[-1] if _ends_in_comment(node) else None
    before: dict[str | None, list[str]] = {}
    waiting: list[str] = []
    for key, value in values.items():
        if key in node:
            node[key] = _updated(node[key], old[key], value, editor)
            before[key], waiting = waiting, []
        else:
            waiting.append(key)
    if len(order) < len(values):
        node.fa.set_block_style()
    before[last] = before.get(last, []) + waiting
    for key in [*(k for known in order for k in (*before[known], known)), *before.get(None, [])]:
        if key not in node:
            node[key] = _new(values[key], editor)
        node.move_to_end(key)


def _ends_in_comment(node: object) -> bool:
    """Return whether a comment follows the last value; it may describe the next section."""
    if not isinstance(node, CommentedMap | CommentedSeq) or not node:
        return False
    last = next(reversed(node)) if isinstance(node, CommentedMap) else len(node) - 1
    return last in node.ca.items or _ends_in_comment(node[last])


def for_browser(value: object) -> Any:
    """Return a value that JSON and JavaScript represent exactly; other numbers become text that YAML reads back."""
    if isinstance(value, Mapping):
        return {str(key): for_browser(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [for_browser(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    return str(value)
