"""Draft of a new run: the values of its form and their YAML, and the values of new parts of the form."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from app.endpoints.launch import FormState, PreflightState
from app.forms.allowlist import Option
from app.forms.estimate import Pace
from app.forms.schema import Path, fields_of, get_item, get_value
from jobs.db.queries.run_values import flatten
from rl2f_core.types import JsonObject

Node: TypeAlias = JsonObject
"""A node of the form, see `app.forms.schema`."""
Field: TypeAlias = JsonObject
Apply: TypeAlias = Callable[[Any], None]
"""Applies the value of an input to the draft."""
REST = "*"
"""Fold of the root's fields that are not basic."""
SECTIONS = ("object", "component", "map")
SHORT = ("integer", "number", "string", "boolean", "choice")
"""Kinds of nodes with one small input."""
INTEGER = re.compile(r"[+-]?\d+")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
MAX_SAFE = 2**53 - 1
TASK_LIMITS = ("max_new_tokens", "max_seq_len")
"""Settings of `rollout` that fit the task of a preset."""
UNLIMITED = 1e9
"""Bounds from here on are not shown."""

NO_SOLUTIONS = "Without a column of solutions, scripted hints have no content: choose a model teacher in the form."
WRITES_OWN_HINTS = ("llm", "self_critique", "human")
"""Teachers whose hints need no column of solutions."""


@dataclasses.dataclass
class Draft:
    """The configuration that one browser tab edits; it lives on the server while the tab is open."""

    spec: Node = dataclasses.field(default_factory=dict)
    """`RunForm` of the kind."""
    choices: dict[str, list[Option]] = dataclasses.field(default_factory=dict)
    key: str = ""
    """Where it started: preset, clone or evaluated checkpoint, e.g. `preset:quickstart`."""
    parent: int | None = None
    start: FormState | None = None
    checked: FormState | None = None
    data: JsonObject = dataclasses.field(default_factory=dict)
    text: str = ""
    """The YAML as it is shown."""
    opened: set[str] = dataclasses.field(default_factory=set)
    memory: JsonObject = dataclasses.field(default_factory=dict)
    """Earlier values of alternatives, so that a change of type and back loses nothing."""
    serial: int = 0
    """Number of times that the form was drawn."""
    count: int = 0
    """Number of the last edit of the form."""
    text_count: int = 0
    """Number of the last edit of the YAML."""
    controls: dict[str, Apply] = dataclasses.field(default_factory=dict)
    """What the inputs of the form change."""
    typed: dict[str, tuple[str, str | None]] = dataclasses.field(default_factory=dict)
    """Texts as the user typed them, such as `1e-5`, and how the form would write their values."""
    preflight: int | None = None
    judged: PreflightState | None = None
    """The preflight with its verdict."""
    warnings: Sequence[str] = ()
    """Warnings about a file of own data that the draft uses."""
    paces: dict[str, Pace | None] = dataclasses.field(default_factory=dict)
    """Model → pace of its newest run."""

    def get(self, path: Path) -> Any:
        """Return the value at a path, or None."""
        return get_value(self.data, path)

    def set(self, path: Path, value: object) -> None:
        """Set the value at a path; what is above it becomes a mapping if it is neither mapping nor list."""
        holder: Any = self.data
        for key in path[:-1]:
            if not isinstance(get_item(holder, key), dict | list):
                holder[key] = {}
            holder = holder[key]
        holder[path[-1]] = value

    def remove(self, path: Path) -> None:
        """Remove a key or an item."""
        holder = self.get(path[:-1])
        if isinstance(holder, dict | list):
            del holder[path[-1]]  # type: ignore[arg-type]

    def as_typed(self, name: str, shown: str) -> str:
        """Return the text of an input: as the user typed it if it means the same as `shown`."""
        text, meaning = self.typed.pop(name, (shown, shown))
        if meaning not in (None, shown):
            return shown
        if text != shown:
            self.typed[name] = (text, shown)
        return text

    def changes(self) -> JsonObject:
        """Return the keys whose values differ from those of the preset or the cloned run, with their values."""
        before = flatten((self.start.data if self.start else None) or {})
        return {key: value for key, value in flatten(self.data).items() if before.get(key, self) != value}

    def open_warnings(self) -> list[str]:
        """Return the warnings that still hold for the chosen teacher."""
        teacher = self.get(("teacher", "type")) or self.get(("teacher",))
        return [text for text in self.warnings if text != NO_SOLUTIONS or teacher not in WRITES_OWN_HINTS]

    def leave_task(self, name: str, warnings: Sequence[str] = ()) -> None:
        """Drop what belongs to the task of the preset: name, comments, its teacher and limits of tokens."""
        keeps_teacher = self.start is not None and any(key.split(".")[0] == "teacher" for key in self.changes())
        self.data = {**self.data, "name": name}
        if not keeps_teacher:
            self.data.pop("teacher", None)
        rollout = self.data.get("rollout")
        if isinstance(rollout, dict):
            self.data["rollout"] = {key: value for key, value in rollout.items() if key not in TASK_LIMITS}
        self.text, self.warnings = "", warnings

    # -- changes of the structure ----------------------------------------------------------------------------------
    def choose_type(self, path: Path, node: Node, name: str) -> None:
        """Change the type of a component; its earlier values come back."""
        value = self.get(path)
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            self.memory[f"{dotted(path)}:{value['type']}"] = copy.deepcopy(value)
        kept = self.memory.get(f"{dotted(path)}:{name}")
        if path == ("environment",):
            self.leave_task(name)
        self.set(path, copy.deepcopy(kept) if kept is not None else self.blank_component(node, name))

    def choose_option(self, path: Path, options: Sequence[Node], index: int, default: object) -> None:
        """Change the alternative of a union; its earlier value comes back."""
        value = self.get(path)
        before = option_of(options, value)
        if before is not None:
            self.memory[f"{dotted(path)}|{before}"] = copy.deepcopy(value)
        kept = self.memory.get(f"{dotted(path)}|{index}")
        self.set(path, copy.deepcopy(kept) if kept is not None else self._first(options[index], value, default))

    def _first(self, node: Node, value: object, default: object) -> object:
        if node["kind"] == "none":
            return None
        is_plain = node["kind"] not in (*SECTIONS, "list", "tuple")
        if is_plain and isinstance(default, str | int | float):
            return default
        return self.blank(node, value if isinstance(value, int | float) else None)

    def edit_list(self, path: Path, node: Node, act: str, index: int) -> None:
        """Add, duplicate, move (`up`, `down`) or remove an item."""
        items = list(self.get(path) or [])
        if act == "add":
            items.append(self.new_item(node["item"], items))
        elif act == "duplicate":
            items.insert(index + 1, renamed(copy.deepcopy(items[index]), items))
        elif act == "remove":
            del items[index]
        else:
            to = index + (1 if act == "down" else -1)
            items[index], items[to] = items[to], items[index]
            self._swap_folds(path, index, to)
        self._forget(path)
        self.set(path, items)

    def add_entry(self, path: Path) -> None:
        """Add a name to a map."""
        now = self.get(path) or {}
        number = len(now) + 1
        while f"name-{number}" in now:
            number += 1
        node = self.node_at(path)["value"]
        self.set(path, {**now, f"name-{number}": None if node.get("nullable") else self.blank(node)})

    def node_at(self, path: Path) -> Node:
        """Return the node of a path; of a union, the alternative that the value has."""
        node, value = self.spec["root"], self.data
        for key in path:
            if node["kind"] == "union":
                index = option_of(node["options"], value)
                node = node["options"][index or 0]
            if node["kind"] in ("object", "component"):
                node = next(field["node"] for field in fields_of(node, value) if field["key"] == key)
            elif node["kind"] == "tuple":
                node = node["items"][key]
            else:
                node = node["item" if node["kind"] == "list" else "value"]
            value = get_item(value, key)
        if node["kind"] == "union":
            node = node["options"][option_of(node["options"], value) or 0]
        return node

    def change(self, action: str, fold: str, at: str) -> None:
        """Apply a button of the form.

        Args:
            action: `fold`, `reset`, `drop`, `entry` (of a map), or a change of a list (see `edit_list`).
            fold: The fold that is opened or closed.
            at: JSON of the path that is changed.
        """
        path = tuple(json.loads(at or "[]"))
        match action:
            case "fold":
                self.opened ^= {fold}
            case "reset":
                self.set(path, copy.deepcopy(dict(self.changed()).get(path)))
            case "drop":
                self.remove(path)
            case "entry":
                self.add_entry(path)
            case "add":
                self.edit_list(path, self.node_at(path), action, -1)
            case _:
                self.edit_list(path[:-1], self.node_at(path[:-1]), action, int(path[-1]))

    def _forget(self, path: Path) -> None:
        """Drop the earlier values below a list, whose positions have changed."""
        self.memory = {key: value for key, value in self.memory.items() if not key.startswith(f"{dotted(path)}.")}

    def _swap_folds(self, path: Path, first: int, second: int) -> None:
        names = {dotted((*path, first)): dotted((*path, second)), dotted((*path, second)): dotted((*path, first))}

        def moved(fold: str) -> str:
            for old, new in names.items():
                if fold == old or fold.startswith(f"{old}."):
                    return new + fold[len(old) :]
            return fold

        self.opened = {moved(fold) for fold in self.opened}

    # -- values of new parts ---------------------------------------------------------------------------------------
    def new_item(self, node: Node, items: Sequence[object]) -> object:
        """Return a new item of a list: defaults, and what has none from the last item."""
        if node["kind"] != "object":
            return self.blank(node)
        made = self.blank_fields(node["fields"])
        last = items[-1] if items else None
        for field in node["fields"]:
            key = field["key"]
            if key not in made:
                known = isinstance(last, dict) and key in last
                made[key] = copy.deepcopy(get_item(last, key)) if known else self.blank(field["node"])
        return renamed({field["key"]: made[field["key"]] for field in node["fields"] if field["key"] in made}, items)

    def blank(self, node: Node, seed: float | None = None) -> object:
        """Return the value that a new part begins with; numbers without a default are `seed` if it is given."""
        match node["kind"]:
            case "object":
                return self.blank_fields(node["fields"], seed)
            case "component":
                return self.blank_component(node, node["types"][0])
            case "tuple":
                return [self.blank(item) for item in node["items"]]
            case "union":
                return self.blank(node["options"][0])
            case "choice":
                return node["values"][0]
            case "integer":
                return node.get("minimum", node.get("exclusiveMinimum", -1) + 1)
            case "number":
                return node.get("minimum", node.get("exclusiveMinimum", 0))
            case kind:
                return {"list": [], "map": {}, "boolean": False, "string": ""}.get(kind)

    def blank_fields(self, fields: list[Field], seed: float | None = None) -> JsonObject:
        """Return the defaults of a section; what is required and has none is omitted."""
        made: JsonObject = {}
        for field in fields:
            node = field["node"]
            if "default" in field:
                made[field["key"]] = copy.deepcopy(field["default"])
            elif node["kind"] == "list" and node.get("min"):
                made[field["key"]] = [self.blank(node["item"], seed) for _ in range(node["min"])]
            elif seed is not None and node["kind"] in ("integer", "number"):
                made[field["key"]] = seed
        return made

    def blank_component(self, node: Node, name: str) -> JsonObject:
        """Return a component with its defaults."""
        return {"type": name, **self.blank_fields(fields_of(node, name))}

    # -- folds and marks -------------------------------------------------------------------------------------------
    def reveal(self, path: Path) -> None:
        """Open the folds around a field."""
        node, value = self.spec["root"], self.data
        here: Path = ()
        for key in path:
            if node["kind"] in ("object", "component"):
                fields = fields_of(node, value)
                found = next((field for field in fields if field["key"] == key), None)
                if found is None:
                    return
                if here == () and not found["basic"]:
                    self.opened.add(REST)
                elif here and found not in basic_fields(fields):
                    self.opened.add(dotted(here))
                node = found["node"]
            elif node["kind"] == "list":
                node = node["item"]
            elif node["kind"] == "union":
                node = next((option for option in node["options"] if option["kind"] in ("object", "list")), node)
                if node["kind"] in ("object", "list"):
                    return
            else:
                return
            value, here = get_item(value, key), (*here, key)

    def changed(self) -> Iterator[tuple[Path, object]]:
        """Yield the fields that differ from their default, and the default."""
        yield from self._changed(self.spec["root"], self.data, ())

    def _changed(self, node: Node, value: object, path: Path) -> Iterator[tuple[Path, object]]:
        if node["kind"] in ("object", "component") and isinstance(value, dict):
            for field in fields_of(node, value):
                current, here = value.get(field["key"]), (*path, field["key"])
                if "default" in field and not is_section(field["node"]) and current != field["default"]:
                    yield here, field["default"]
                yield from self._changed(field["node"], current, here)
        elif node["kind"] == "list" and isinstance(value, list):
            for i, item in enumerate(value):
                yield from self._changed(node["item"], item, (*path, i))


def dotted(path: Path) -> str:
    """Return a path as text, e.g. `stages.1.steps`."""
    return ".".join(map(str, path))


def is_section(node: Node) -> bool:
    """Return whether a node is drawn as a section of its own."""
    return node["kind"] in SECTIONS or (node["kind"] == "list" and node["item"]["kind"] in ("object", "component"))


def basic_fields(fields: list[Field]) -> list[Field]:
    """Return the fields that are shown first: the basic ones, or all if there is none."""
    return [field for field in fields if field["basic"]] or fields


def count_changes(fields: list[Field], value: object) -> int:
    """Return how many fields differ from their default."""
    return sum("default" in field and get_item(value, field["key"]) != field["default"] for field in fields)


def bounds(node: Node) -> str:
    """Return the limits of a number, such as `1 … 64`, `≥ 1` or `> 0`; limits that nobody meets are omitted."""

    def shown(*names: str) -> float | None:
        found = next((node[name] for name in names if name in node), None)
        return None if found is None or abs(found) >= UNLIMITED else found

    low, high = shown("minimum", "exclusiveMinimum"), shown("maximum", "exclusiveMaximum")
    above, below = "" if "minimum" in node else ">", "" if "maximum" in node else "<"
    if low is not None and high is not None:
        return f"only {low:g}" if low == high else f"{above + ' ' if above else ''}{low:g} … {below}{high:g}"
    if low is not None:
        return f"{above or '≥'} {low:g}"
    return "" if high is None else f"{below or '≤'} {high:g}"


def parse_number(text: str) -> int | float | str:
    """Return the number that a text is, if a browser keeps it exactly; otherwise the text."""
    word = text.strip()
    if INTEGER.fullmatch(word) and len(word) < 20:
        number = int(word)
        return number if abs(number) <= MAX_SAFE else word
    if NUMBER.fullmatch(word) and math.isfinite(float(word)):
        return float(word)
    return word


def number_text(value: object) -> str:
    """Return a value as the text of its field."""
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else str(value)


def option_of(options: Sequence[Node], value: object) -> int | None:
    """Return the position of the alternative of a union that a value has."""
    if value is None:
        return next((i for i, option in enumerate(options) if option["kind"] == "none"), None)
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    fits = {
        "choice": lambda option: value in option["values"],
        "list": lambda _: isinstance(value, list),
        "tuple": lambda _: isinstance(value, list),
        "boolean": lambda _: isinstance(value, bool),
        "integer": lambda _: number is not None and float(number).is_integer(),
        "number": lambda _: number is not None,
        "string": lambda _: isinstance(value, str),
        **dict.fromkeys(SECTIONS, lambda _: isinstance(value, dict)),
    }
    order = sorted(range(len(options)), key=lambda i: options[i]["kind"] != "choice")
    return next((i for i in order if fits.get(options[i]["kind"], lambda _: False)(options[i])), None)


def option_name(option: Node) -> str:
    """Return what an alternative of a union is called."""
    if option["kind"] == "choice":
        return " or ".join(map(str, option["values"]))
    names: dict[str, str] = {
        "none": "none",
        "list": "a list",
        "tuple": "a list",
        "string": "text",
        "integer": "a whole number",
        "number": "a number",
        "object": f"a {option['name']}" if option.get("name") else "settings",
        "map": "names and values",
        "boolean": "on or off",
        "any": "anything",
    }
    return names.get(option["kind"]) or str(option["kind"])


def renamed(item: object, items: Sequence[object]) -> object:
    """Give an item a name that no other item has."""
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return item
    taken = {get_item(other, "name") for other in items}
    stem = re.sub(r"-\d+$", "", item["name"]) or "item"
    number = 2
    while item["name"] in taken or not item["name"]:
        item["name"] = f"{stem}-{number}"
        number += 1
    return item
