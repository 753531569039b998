"""The form of a new run as elements, drawn from `app.forms.schema`, and what each of its inputs changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from app.components.nodes import Attribute, Element, Node, el
from app.forms.allowlist import Option
from app.forms.run_form import STUDY
from app.forms.schema import Path, get_item
from app.pages.new_run.draft import (
    REST,
    SHORT,
    Apply,
    Draft,
    Field,
    basic_fields,
    bounds,
    count_changes,
    dotted,
    is_section,
    number_text,
    option_name,
    option_of,
    parse_number,
)
from app.pages.new_run.parts import (
    component_types,
    evaluation_links,
    field_id,
    fold_button,
    item_tools,
    same,
    tool,
    value_text,
    words,
)
from app.pages.new_run.view import study_sheet
from rl2f_core.types import JsonObject

OTHER = " other"
"""Option for a value that is not in the list; no value begins with a space."""
OTHER_TEXTS = {"models": ("another from the hub …", "org/name"), "endpoints": ("another …", "https://…")}
LONG_TEXT = 60


def draw_form(draft: Draft, *, focus: Path | None = None) -> Element:
    """Return the form of a draft for `Form`, and set the draft's `controls`.

    Args:
        draft: The draft; its errors are shown beside the fields.
        focus: Field that receives the focus.
    """
    state = draft.checked
    if state is not None and state.kind == STUDY:
        return el("div.rf-form", el("div.rl-card.rl-stack", study_sheet(state.study)), data_serial=draft.serial,
                  data_draft=draft.key, data_count=draft.count)  # fmt: skip
    form = FormDrawing(draft)
    root = draft.spec["root"]
    basic, rest = ([item for item in root["fields"] if item["basic"] == first] for first in (True, False))
    cards = [el("div.rl-card.rf-rows", form.rows(basic, "run"), form.unknown_keys(root["fields"], draft.data, ()))]
    if rest:
        is_open = REST in draft.opened
        title = f"all other settings: {', '.join(item['label'] for item in rest)}"
        button = fold_button(title, REST, is_open, count_changes(rest, draft.data))
        cards.append(el("div.rl-card.rf-rest", button, form.rows(rest, "other") if is_open else None))
    form.add_errors()
    form.add_resets()
    draft.controls = form.controls
    return el(
        "div.rf-form",
        cards,
        data_serial=draft.serial,
        data_draft=draft.key,
        data_count=draft.count,
        data_off=state is not None and state.yaml_error is not None,
        data_focus=None if focus is None else form.nearest(focus),
    )


def draw_yaml(draft: Draft, *, go: int | None = None) -> Element:
    """Return the YAML of a draft for `Form`, with line numbers; wrong lines are marked.

    Args:
        draft: The draft.
        go: Line that receives the focus.
    """
    state = draft.checked
    problem = state and state.yaml_error
    wrong = {error.line for error in state.errors} | {problem and problem.line} if state else set()
    count = draft.text.count("\n") + 1
    rows = [el("b" if row in wrong else "span", str(row)) for row in range(1, count + 1)]
    area = el(
        "textarea",
        data_field="yaml",
        data_value=draft.text,
        data_leave=True,
        aria_label="YAML",
        style=f"height: {18 * count + 16}px",
    )
    return el(
        "div.nr-editor",
        el("div.nr-lines", rows, aria_hidden="true"),
        area,
        data_serial=draft.serial,
        data_draft=draft.key,
        data_count=draft.text_count,
        data_go=go,
    )


class FormDrawing:
    """Draws the sections of a form, and collects what its inputs change.

    Args:
        draft: The draft that is shown.
    """

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.controls: dict[str, Apply] = {}
        self.boxes: dict[str, Element] = {}
        """Elements with the ids `field-PATH`, where errors are shown."""

    # -- sections --------------------------------------------------------------------------------------------------
    def rows(self, fields: list[Field], title: str) -> Iterator[Element]:
        """Yield the plain fields of the root as one row, and each section as a row."""
        plain = [item for item in fields if not is_section(item["node"])]
        if plain:
            yield el("section.rf-row", el("h3.rf-title", title), self.grid(plain, ()))
        for item in fields:
            if is_section(item["node"]):
                path: Path = (item["key"],)
                about = el("div.rf-title", el("h3", item["label"]), el("p.rf-help", words(item["help"])))
                body = el("div.rf-body", self.inside(item["node"], path, self.draft.get(path)))
                yield self.box("section.rf-row", path, about, body)

    def box(self, tag: str, path: Path, *children: Node | list[Node]) -> Element:
        """Return the element around a field or section; its errors are added at the end."""
        made = el(tag, *children, id=field_id(path))
        self.boxes[dotted(path)] = made
        return made

    def inside(self, node: Field, path: Path, value: object) -> list[Node]:
        """Draw anything that is more than one field."""
        if node.get("nullable"):
            plain = {**node, "nullable": False}

            def give(given: bool) -> None:
                self.draft.set(path, self.draft.blank(plain) if given else None)

            box = self.checkbox(f"{dotted(path)}?", value is not None, give, "use")
            return [box, *(self.inside(plain, path, value) if value is not None else [])]
        match node["kind"]:
            case "component":
                return self.component(node, path, value)
            case "object" if isinstance(value, dict):
                return self.group(node["fields"], path, value)
            case "map" if value is None or isinstance(value, dict):
                return self.map_entries(node, path, value or {})
            case "list" if value is None or isinstance(value, list):
                return self.list_items(node, path, value or [])
            case "object" | "map" | "list":
                return [self.raw(path, value)]
            case _:
                return self.control(node, path, value, dotted(path))

    def group(self, fields: list[Field], path: Path, value: object) -> list[Node]:
        """Draw the basic fields, and the others once their fold is open."""
        first = basic_fields(fields)
        more = [item for item in fields if item not in first]
        drawn = self.fields(first, path)
        if more:
            fold = dotted(path)
            is_open = fold in self.draft.opened
            drawn.append(fold_button(f"{len(more)} more", fold, is_open, count_changes(more, value)))
            drawn += self.fields(more, path) if is_open else []
        return [*drawn, *self.unknown_keys(fields, value, path)]

    def fields(self, fields: list[Field], path: Path) -> list[Node]:
        """Draw plain fields in a grid, then the sections with their names above them."""
        drawn: list[Node] = [self.grid([item for item in fields if not is_section(item["node"])], path)]
        for item in fields:
            if is_section(item["node"]):
                here = (*path, item["key"])
                about = el("div", el("b", item["label"]), el("span.rf-help", words(item["help"])))
                drawn.append(
                    self.box("div.rf-inner", here, about, self.inside(item["node"], here, self.draft.get(here)))
                )
        return drawn

    def grid(self, fields: list[Field], path: Path) -> Element | None:
        """Draw plain fields in a grid."""
        return el("div.rf-grid", [self.field(item, (*path, item["key"])) for item in fields]) if fields else None

    def unknown_keys(self, fields: list[Field], value: object, path: Path) -> list[Node]:
        """Show the keys that the form does not contain; they are kept until the user removes them."""
        known = {*(item["key"] for item in fields), "type", "kind"}
        unknown = {key: value[key] for key in value if key not in known} if isinstance(value, dict) else {}
        return [
            self.box(
                "div.rf-unknown",
                (*path, key),
                el("code", f"{key}: {json.dumps(item, ensure_ascii=False)}"),
                tool("Remove", f"remove {key}", "drop", (*path, key), style="rl-button rl-small"),
            )
            for key, item in unknown.items()
        ]

    def component(self, node: Field, path: Path, value: object) -> list[Node]:
        """Draw a component: its type, then the fields of this type."""
        if isinstance(value, str):
            value = {"type": value}
        if value is not None and not isinstance(value, dict):
            return [self.raw(path, value)]
        kind = get_item(value, "type")
        options = [(name, name) for name in node["types"]]
        if kind is not None and kind not in node["types"]:
            options.insert(0, (f"{kind} (unknown)", str(kind)))
        section = self.draft.spec["components"].get(node["component"], {}).get(kind) if isinstance(kind, str) else None

        def choose(name: str) -> None:
            self.draft.choose_type(path, node, name)

        here = (*path, "type")
        select = self.select(dotted(here), kind or "", options, choose, f"type of {path[-1]}")
        about = section["help"].split("\n")[0] if section else ""
        line = self.box("div.rf-typeline", here, select, el("span.rf-help", words(about)))
        return [line, *(self.group(section["fields"], path, value) if section else [])]

    # -- lists and maps --------------------------------------------------------------------------------------------
    def list_items(self, node: Field, path: Path, items: Sequence[object]) -> list[Node]:
        """Draw a list with buttons to add, duplicate, move and remove its items."""
        label = re.sub(r"s$", "", str(path[-1])).replace("_", " ")
        drawn: list[Node] = []
        for i, item in enumerate(items):
            drawn += self.item(node, (*path, i), item, f"{label} {i + 1}", len(items))
        is_full = node.get("max") is not None and len(items) >= node["max"]
        style = "rl-button rl-small rf-add"
        add = tool(f"+ {label}", f"add a {label}", "add", path, off=is_full, style=style, key=f"{dotted(path)}+")
        return [*drawn, None if items else el("p.rl-muted", f"no {label} yet"), add]

    def item(self, node: Field, path: Path, item: object, label: str, count: int) -> list[Node]:
        """Draw an item of a list."""
        kind, fields = node["item"]["kind"], node["item"].get("fields", [])
        tools = item_tools(path, label, count, node.get("min") or 0)
        is_short = len(fields) <= 3 and all(entry["node"]["kind"] in SHORT for entry in fields)
        if kind == "object" and isinstance(item, dict) and is_short:
            line = self.box("div.rf-item.rf-line", path, self.grid(fields, path), tools)
            return [line, *self.unknown_keys(fields, item, path)]
        if kind in ("object", "component"):
            name = item.get("name") if isinstance(item, dict) else None
            title = el("b", f"{int(path[-1]) + 1} · {name or label}") if kind == "object" else None
            chips = [el("span.rl-chip", entry) for entry in component_types(fields, item)]
            head = el("div.rf-itemhead", title, chips, tools)
            return [self.box("div.rf-item", path, head, self.inside(node["item"], path, item))]
        return [self.box("div.rf-entry", path, self.control(node["item"], path, item, label), tools)]

    def map_entries(self, node: Field, path: Path, entries: JsonObject) -> list[Node]:
        """Draw names and values."""
        drawn: list[Node] = []
        for i, (name, entry) in enumerate(entries.items()):

            def rename(new: str, old: str = name) -> None:
                now = self.draft.get(path) or {}
                if new == old or new not in now:
                    self.draft.set(path, {new if key == old else key: item for key, item in now.items()})

            here = (*path, name)
            at_min = len(entries) <= (node.get("min") or 0)
            title = self.text_input(f"{dotted(path)}#{i}", name, rename, "name", late=True)
            remove = tool("×", f"remove {name}", "drop", here, off=at_min)
            drawn.append(self.box("div.rf-entry", here, title, self.control(node["value"], here, entry, name), remove))
        if not entries and node["value"].get("known") == "checkpoints":
            drawn.append(evaluation_links(self.choices_of("checkpoints")))
        return [*drawn, tool("+ entry", "add an entry", "entry", path, style="rl-button rl-small rf-add")]

    # -- one field -------------------------------------------------------------------------------------------------
    def field(self, field: Field, path: Path) -> Element:
        """Draw a field with its label, limits and help."""
        node, value, label = field["node"], self.draft.get(path), field["label"]
        info = " · ".join(text for text in (bounds(node), field["help"]) if text)
        control = self.control(node, path, value, label, default=field.get("default"))
        is_wide = node["kind"] in ("tuple", "any", "list") or (node["kind"] == "union" and len(control) > 1)
        is_wide = is_wide or any(isinstance(item, list) and item[0] == "textarea" for item in control)
        style = ".rf-wide" if is_wide else ".rf-union" if node["kind"] == "union" else ""
        about = el("p.rf-help", words(info)) if info else None
        name = None if node["kind"] == "boolean" and not node.get("nullable") else el("span.rf-label", label)
        return self.box(f"div.rf-field{style}", path, name, control, about)

    def control(self, node: Field, path: Path, value: object, label: str, *, default: object = None) -> list[Node]:
        """Draw the inputs of a value."""
        name, nullable = dotted(path), bool(node.get("nullable"))
        if node.get("known"):
            return self.known(node, path, value, label)
        match node["kind"]:
            case "boolean" if not nullable and (value is None or isinstance(value, bool)):
                return [self.checkbox(name, value is True, self.setter(path), label)]
            case "boolean":
                return [self.choice(path, value, [None, True, False], label)]
            case "choice":
                return [self.choice(path, value, [None, *node["values"]] if nullable else node["values"], label)]
            case "integer" | "number":

                def number(text: str) -> None:
                    self.draft.set(path, None if nullable and not text.strip() else parse_number(text))

                empty = "none" if nullable else None
                return [self.text_input(name, number_text(value), number, label, style="rf-num", placeholder=empty)]
            case "string":
                return [self.text(node, path, value, label)]
            case "list" if node.get("choices") and isinstance(value, list):
                return [self.checks(node, path, value)]
            case "tuple" if isinstance(value, list) and len(value) == len(node["items"]):
                parts = [
                    self.control(item, (*path, i), value[i], f"{label} {i + 1}") for i, item in enumerate(node["items"])
                ]
                return [el("div.rf-pair", *parts)]
            case "union":
                return self.union(node, path, value, label, default)
            case "any" | "tuple":
                return [self.raw(path, value)]
            case _:
                return self.inside(node, path, value)

    def setter(self, path: Path, parse: Callable[[str], object] | None = None) -> Apply:
        """Return the function that sets a value."""
        return lambda value: self.draft.set(path, parse(value) if parse else value)

    def input(
        self, tag: str, name: str, shown: str, apply: Apply, label: str, *content: Node, **more: Attribute
    ) -> Element:
        """Return an input, and note what its edits change."""
        self.controls[name] = apply
        return el(tag, *content, data_field=name, data_value=shown, data_key=name, aria_label=label, **more)

    def text_input(
        self, name: str, shown: str, apply: Apply, label: str, *, style: str = "", late: bool = False, **more: Attribute
    ) -> Element:
        """Return a field for a text; with `late` its edit counts when the user leaves it."""
        shown = self.draft.as_typed(name, shown)
        return self.input(
            "input.rl-field", name, shown, apply, label, class_=style, type="text", data_late=late, **more
        )

    def text_area(self, name: str, shown: str, apply: Apply, label: str, *, late: bool = False) -> Element:
        """Return a field for a text of several lines."""
        shown = self.draft.as_typed(name, shown)
        height = f"height: {1.45 * min(8, shown.count(chr(10)) + 2) + 1:.1f}em"
        return self.input("textarea.rl-field", name, shown, apply, label, style=height, data_late=late)

    def checkbox(self, name: str, checked: bool, apply: Apply, label: str) -> Element:
        """Return a checkbox with its label."""
        box = self.input("input", name, "", apply, label, type="checkbox", checked=checked)
        return el("label.rf-check", box, label)

    def select(self, name: str, value: str, options: Sequence[tuple[str, str]], apply: Apply, label: str) -> Element:
        """Return a dropdown of labels and values."""
        items = [el("option", text, value=item) for text, item in options]
        return self.input("select.rl-field", name, value, apply, label, *items)

    def choice(self, path: Path, value: object, values: Sequence[object], label: str) -> Element:
        """Draw a choice of a few values; one that is not allowed is shown until another is chosen."""
        options = [(value_text(item), str(i)) for i, item in enumerate(values)]
        index = next((i for i, item in enumerate(values) if same(item, value)), None)
        if index is None and value is not None:
            options.append((f"{value_text(value)} (not allowed)", str(len(values))))
            index = len(values)
        choose = self.setter(path, lambda chosen: [*values, value][int(chosen)])
        return self.select(dotted(path), "" if index is None else str(index), options, choose, label)

    def text(self, node: Field, path: Path, value: object, label: str) -> Element:
        """Draw a text."""
        nullable = bool(node.get("nullable"))
        shown = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        apply = self.setter(path, lambda text: None if nullable and not text else text)
        if node.get("maxLength", 0) > 400 or "\n" in shown or len(shown) > LONG_TEXT:
            return self.text_area(dotted(path), shown, apply, label)
        return self.text_input(dotted(path), shown, apply, label, placeholder="none" if nullable else None)

    def raw(self, path: Path, value: object) -> Element:
        """Draw a value of another shape than the form expects, as JSON."""

        def parse(text: str) -> object:
            try:
                return json.loads(text)
            except ValueError:
                return text

        shown = "" if value is None else json.dumps(value, ensure_ascii=False)
        return self.text_area(dotted(path), shown, self.setter(path, parse), dotted(path), late=True)

    def checks(self, node: Field, path: Path, value: Sequence[object]) -> Element:
        """Draw a choice of several values; their order is kept, new ones come last."""

        def check(item: object, checked: bool) -> None:
            others = [other for other in self.draft.get(path) or [] if other != item]
            self.draft.set(path, [*others, item] if checked else others)

        odd = [item for item in value if item not in node["choices"]]
        boxes = []
        for item in [*node["choices"], *odd]:
            text = f"{item} (not allowed)" if item in odd else str(item)
            boxes.append(self.checkbox(f"{dotted(path)}={item}", item in value, partial(check, item), text))
        return el("div.rf-checks", boxes)

    def union(self, node: Field, path: Path, value: object, label: str, default: object) -> list[Node]:
        """Draw the choice between several forms of a value, and the chosen one."""
        options = [{"kind": "none"}, *node["options"]] if node.get("nullable") else node["options"]
        at = option_of(options, value)
        if at is None:
            return [self.raw(path, value)]
        chosen = options[at]

        def choose(index: str) -> None:
            self.draft.choose_option(path, options, int(index), default)

        names = [(option_name(option), str(i)) for i, option in enumerate(options)]
        select = self.select(f"{dotted(path)}|", str(at), names, choose, f"form of {label}")
        if chosen["kind"] == "none" or (chosen["kind"] == "choice" and len(chosen["values"]) == 1):
            return [select]
        control = self.control(chosen, path, value, label)
        if chosen["kind"] in SHORT:
            return [el("div.rf-pair", select, control)]
        return [select, *control]

    def known(self, node: Field, path: Path, value: Any, label: str) -> list[Node]:
        """Draw the choice of something that the server lists, such as models and checkpoints."""
        kind, name, nullable = node["known"], dotted(path), bool(node.get("nullable"))
        listed = self.choices_of(kind)
        values = [item.value for item in listed]
        free = OTHER_TEXTS.get(kind)
        chosen = value or ""
        is_other = free is not None and bool(self.draft.memory.get(f"{name}@") or (chosen and chosen not in values))
        note = next((item.note for item in listed if item.value == value and kind == "models"), "")
        options = [("none", "")] if nullable else []
        for item in listed:
            text = f"{item.label} · {item.note}" if item.note and kind != "models" else item.label
            options.append((text, item.value))
        if free:
            options.append((free[0], OTHER))
        elif chosen and chosen not in values:
            options.insert(0, (f"{chosen} (not in the list)", chosen))

        def choose(new: str) -> None:
            self.draft.memory[f"{name}@"] = new == OTHER
            self.draft.set(path, "" if new == OTHER else new or (None if nullable else ""))

        drawn: list[Node] = [self.select(name, OTHER if is_other else chosen, options, choose, label)]
        if free and is_other:
            drawn.append(self.text_input(f"{name}@", chosen, self.setter(path), f"other {label}", placeholder=free[1]))
        return [*drawn, el("p.rf-help", note) if note else None]

    def choices_of(self, known: str) -> list[Option]:
        """Return the offered choices; those of datasets begin with the stages that make one."""
        made: list[Option] = []
        if known == "data":
            for stage in self.draft.get(("stages",)) or []:
                method = stage.get("method") if isinstance(stage, dict) else None
                if (method.get("type") if isinstance(method, dict) else method) == "distill":
                    name = str(stage.get("name"))
                    made.append(Option(value=name, label=f"stage {name}", note=""))
        return [*made, *self.draft.choices.get(known, [])]

    # -- errors and defaults ---------------------------------------------------------------------------------------
    def nearest(self, path: Path) -> str | None:
        """Return the id of the element of a field, or of the nearest section around it."""
        found = next((path[:end] for end in range(len(path), 0, -1) if dotted(path[:end]) in self.boxes), None)
        return None if found is None else field_id(found)

    def add_errors(self) -> None:
        """Add the errors of the draft to their fields, and an error of a field that is not drawn to its section."""
        texts: dict[str, list[str]] = {}
        for error in self.draft.checked.errors if self.draft.checked else []:
            near = self.nearest(tuple(error.path))
            if near is not None:
                is_exact = near == field_id(tuple(error.path))
                texts.setdefault(near, []).append(error.message if is_exact else f"{error.field}: {error.message}")
        for box in self.boxes.values():
            attributes: Any = box[1]
            if messages := texts.get(attributes["id"]):
                box.append(el("p.rf-error", "\n".join(messages), role="alert"))
                for item in box[2:]:
                    if isinstance(item, list) and "data-field" in item[1]:
                        item[1]["aria-invalid"] = "true"

    def add_resets(self) -> None:
        """Add a button to each field that differs from its default."""
        for path, default in self.draft.changed():
            box = self.boxes.get(dotted(path))
            if box is not None:
                title = f"{dotted(path)}: back to the default, {value_text(default)}"
                box.append(tool("↺", title, "reset", path, style="rf-reset"))
