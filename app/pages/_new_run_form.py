"""The form of a new run: components for the fields of a section, drawn from `app.forms.schema`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gradio as gr

from app.components.nodes import Element, Node, el
from app.components.view import View
from app.pages._new_run_draft import (
    Draft,
    Field,
    Path,
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
from app.pages._new_run_parts import component_types, fold_button, item_tools, tool, words

if TYPE_CHECKING:
    from gradio.components import Component

OTHER = "\0other"
"""Choice of a model that is not in the list."""
OTHER_MODEL = ("another from the hub …", OTHER)
SHORT = ("integer", "number", "string", "boolean", "choice")
LONG_TEXT = 60
Apply = Callable[[Any], bool]
"""Applies the value of a component to the draft; True if the section must be drawn again."""


@dataclass
class Control:
    """A component of the form and what its value means."""

    component: Component
    apply: Apply
    shown: Any
    """The value that the component has after the last event."""


@dataclass
class SectionForm:
    """Draws sections of the form inside a `gr.render` function, and collects what its events need."""

    draft: Draft
    controls: list[Control] = field(default_factory=list)
    views: list[View] = field(default_factory=list)

    # -- sections --------------------------------------------------------------------------------------------------
    def leaves(self, fields: list[Field], title: str) -> None:
        """Draw plain fields of the root as one row."""
        with gr.Row(elem_classes="rf-row"):
            View(el("h3", title), elem_classes="rf-title")
            with gr.Column(elem_classes="rf-body"):
                self.grid(fields, ())
                if title == "run":
                    self.unknown_keys(self.draft.spec["root"]["fields"], self.draft.data, ())

    def section(self, field: Field) -> None:
        """Draw a section of the root: its name at the left, its fields at the right."""
        path: Path = (field["key"],)
        tall = "rf-tall" if field["node"]["kind"] == "list" else ""
        with gr.Row(elem_classes=["rf-row", tall], elem_id=field_id(path)):
            View(el("div", el("h3", field["label"]), el("p.rf-help", words(field["help"]))), elem_classes="rf-title")
            with gr.Column(elem_classes="rf-body"):
                self.inside(field["node"], path, self.draft.get(path))

    def inner(self, field: Field, path: Path) -> None:
        """Draw a section inside of a section: its name above it."""
        with gr.Column(elem_classes="rf-inner", elem_id=field_id(path)):
            View(el("div", el("b", field["label"]), el("span.rf-help", words(field["help"]))))
            self.inside(field["node"], path, self.draft.get(path))

    def inside(self, node: Field, path: Path, value: Any) -> None:
        """Draw anything that is more than one field."""
        if node.get("nullable"):
            plain = {**node, "nullable": False}

            def give(given: bool) -> bool:
                self.draft.set(path, self.draft.blank(plain) if given else None)
                return True

            self.add(gr.Checkbox, path, value is not None, give, suffix="?", label="given")
            if value is not None:
                self.inside(plain, path, value)
        elif node["kind"] == "component":
            self.component(node, path, value)
        elif node["kind"] == "object":
            if isinstance(value, dict):
                self.group(node["fields"], path, value)
            else:
                self.raw(path, value)
        elif node["kind"] == "map":
            self.map_entries(node, path, value)
        elif node["kind"] == "list":
            self.list_items(node, path, value)
        else:
            self.control(node, path, value, dotted(path))

    def group(self, fields: list[Field], path: Path, value: Any) -> None:
        """Draw the basic fields, and the others once their fold is open."""
        first = basic_fields(fields)
        more = [each for each in fields if each not in first]
        self.fields(first, path)
        if more:
            fold = dotted(path)
            is_open = fold in self.draft.opened
            self.view(fold_button(f"{len(more)} more", fold, is_open, count_changes(more, value)))
            if is_open:
                self.fields(more, path)
        self.unknown_keys(fields, value, path)

    def fields(self, fields: list[Field], path: Path) -> None:
        """Draw plain fields in a grid, then the sections."""
        self.grid([each for each in fields if not is_section(each["node"])], path)
        for each in fields:
            if is_section(each["node"]):
                self.inner(each, (*path, each["key"]))

    def grid(self, fields: list[Field], path: Path) -> None:
        """Draw plain fields in a grid."""
        if fields:
            with gr.Column(elem_classes="rf-grid"):
                for each in fields:
                    self.field(each, (*path, each["key"]))

    def unknown_keys(self, fields: list[Field], value: Any, path: Path) -> None:
        """Show the keys that the form does not know; they are kept until the user removes them."""
        known = {*(each["key"] for each in fields), "type", "kind"}
        unknown = [key for key in value if key not in known] if isinstance(value, dict) else []
        for key in unknown:
            text = f"{key}: {json.dumps(value[key], ensure_ascii=False)}"
            remove = tool("Remove", f"remove {key}", "drop", (*path, key), style="rl-button rl-small")
            self.view(el("div.rf-unknown", el("code", text), remove), elem_id=field_id((*path, key)))

    def component(self, node: Field, path: Path, value: Any) -> None:
        """Draw a component: its type, then the fields of this type."""
        if isinstance(value, str):
            value = {"type": value}
        if value is not None and not isinstance(value, dict):
            self.raw(path, value)
            return
        kind = value.get("type") if value else None
        types = node["types"] if kind in node["types"] or kind is None else [kind, *node["types"]]
        names = [(str(name) if name in node["types"] else f"{name} (unknown)", name) for name in types]
        section = self.draft.spec["components"].get(node["component"], {}).get(kind) if isinstance(kind, str) else None

        def choose(name: str) -> bool:
            self.draft.choose_type(path, node, name)
            return True

        with gr.Row(elem_classes="rf-typeline"):
            at = (*path, "type")
            options: dict[str, Any] = {
                "choices": names,
                "label": f"type of {path[-1]}",
                "show_label": False,
                "elem_classes": "rf-type",
            }
            self.add(gr.Dropdown, at, kind, choose, **options)
            if section and section["help"]:
                View(el("span.rf-help", words(section["help"].split("\n")[0])))
        if section:
            self.group(section["fields"], path, value)

    # -- lists and maps --------------------------------------------------------------------------------------------
    def list_items(self, node: Field, path: Path, value: Any) -> None:
        """Draw a list with buttons to add, duplicate, move and remove its items."""
        if value is not None and not isinstance(value, list):
            self.raw(path, value)
            return
        items = value or []
        label = re.sub(r"s$", "", str(path[-1])).replace("_", " ")
        for i, item in enumerate(items):
            self.item(node, (*path, i), item, f"{label} {i + 1}", len(items))
        is_full = node.get("max") is not None and len(items) >= node["max"]
        key = f"{dotted(path)}+"
        add = el(
            "button.rl-button.rl-small",
            f"+ {label}",
            disabled=is_full,
            data_action="add",
            data_at=json.dumps(path),
            data_key=key,
        )
        nothing = None if items else el("p.rl-muted", f"no {label} yet")
        self.view(el("div", nothing, add), elem_classes="rf-add")

    def item(self, node: Field, path: Path, item: Any, label: str, count: int) -> None:
        """Draw an item of a list."""
        kind, fields = node["item"]["kind"], node["item"].get("fields", [])
        tools = item_tools(path, label, count, node.get("min") or 0)
        is_line = kind == "object" and isinstance(item, dict) and len(fields) <= 3
        if is_line and all(each["node"]["kind"] in SHORT for each in fields):
            with gr.Row(elem_classes=["rf-item", "rf-line"], elem_id=field_id(path)):
                self.grid(fields, path)
                self.view(tools)
            self.unknown_keys(fields, item, path)
        elif kind in ("object", "component"):
            with gr.Column(elem_classes="rf-item", elem_id=field_id(path)):
                name = item.get("name") if isinstance(item, dict) else None
                title = el("b", f"{path[-1] + 1} · {name or label}") if kind == "object" else None  # type: ignore[operator]
                chips = [el("span.rl-chip", each) for each in component_types(fields, item)]
                self.view(el("div.rf-itemhead", title, chips, tools))
                self.inside(node["item"], path, item)
        else:
            with gr.Row(elem_classes="rf-entry", elem_id=field_id(path)):
                self.control(node["item"], path, item, label, named=False)
                self.view(tools)

    def map_entries(self, node: Field, path: Path, value: Any) -> None:
        """Draw names and values."""
        if value is not None and not isinstance(value, dict):
            self.raw(path, value)
            return
        entries = value or {}
        for i, (name, held) in enumerate(entries.items()):

            def rename(new: str, old: str = name) -> bool:
                now = self.draft.get(path) or {}
                if new in now and new != old:
                    return True
                self.draft.set(path, {new if key == old else key: each for key, each in now.items()})
                return True

            with gr.Row(elem_classes="rf-entry", elem_id=field_id((*path, name))):
                self.add(gr.Textbox, path, name, rename, suffix=f"#{i}", label="name", show_label=False, late=True)
                self.control(node["value"], (*path, name), held, name, named=False)
                at_min = len(entries) <= (node.get("min") or 0)
                self.view(tool("×", f"remove {name}", "drop", (*path, name), off=at_min))
        add = tool("+ entry", "add an entry", "entry", path, style="rl-button rl-small")
        self.view(add, elem_classes="rf-add")

    # -- one field -------------------------------------------------------------------------------------------------
    def field(self, field: Field, path: Path) -> None:
        """Draw a field with its label, limits and help."""
        node, value = field["node"], self.draft.get(path)
        info = " · ".join(text for text in (bounds(node), field["help"]) if text)
        if node["kind"] == "union":
            self.union(node, path, value, field)
        elif node["kind"] in ("tuple", "any", "list") and not node.get("choices"):
            with gr.Column(elem_classes="rf-wide", elem_id=field_id(path)):
                View(el("div", el("b", field["label"]), el("span.rf-help", words(info))))
                self.control(node, path, value, field["label"], named=False)
        else:
            self.control(node, path, value, field["label"], info=info)

    def control(
        self, node: Field, path: Path, value: Any, label: str, *, info: str | None = None, named: bool = True
    ) -> None:
        """Draw the component of a value."""
        options: dict[str, Any] = {"label": label, "info": info or None, "show_label": named}
        if node.get("known") and not (node["known"] == "endpoints" and not self.draft.choices["endpoints"]):
            self.chosen(node, path, value, options)
            return
        is_list = isinstance(value, list)
        match node["kind"]:
            case "boolean" if not node.get("nullable") and (value is None or isinstance(value, bool)):
                self.add(gr.Checkbox, path, value is True, self.setter(path), **options)
            case "boolean":
                self.select(path, value, [None, True, False], options)
            case "choice":
                values = [None, *node["values"]] if node.get("nullable") else node["values"]
                self.select(path, value, values, options)
            case "integer" | "number":
                self.number(node, path, value, options)
            case "string":
                self.text(node, path, value, options)
            case "list" if node.get("choices") and is_list and len(set(map(str, value))) == len(value):
                self.checks(node, path, value, options)
            case "tuple" if is_list and len(value) == len(node["items"]):
                with gr.Row(elem_classes="rf-pair"):
                    for i, item in enumerate(node["items"]):
                        self.control(item, (*path, i), value[i], f"{label} {i + 1}", named=False)
            case "union":
                self.union(node, path, value, {"label": label, "help": info or ""})
            case "any" | "tuple":
                self.raw(path, value)
            case _:
                self.inside(node, path, value)

    def setter(self, path: Path, parse: Callable[[Any], Any] = lambda value: value, redraw: bool = False) -> Apply:
        """Return the function that sets a value."""

        def apply(value: Any) -> bool:
            self.draft.set(path, parse(value))
            return redraw

        return apply

    def add(
        self,
        cls: type[Component],
        path: Path,
        value: Any,
        apply: Apply,
        *,
        suffix: str = "",
        late: bool = False,
        **options: Any,
    ) -> None:
        """Add a component; with `late` its value counts when the user leaves it."""
        name = field_id(path) + suffix
        component = cls(
            value=value,
            elem_id=name,
            key=f"{name}:{cls.__name__}",
            preserved_by_key=[],
            interactive=True,
            min_width=80,
            **options,
        )
        component.late = late  # type: ignore[attr-defined]
        self.controls.append(Control(component, apply, value))

    def view(self, value: Element | list[Node] | None, **options: Any) -> None:
        """Add a view whose actions change the section."""
        self.views.append(View(value, **options))

    def select(self, path: Path, value: Any, values: Sequence[Any], options: dict[str, Any]) -> None:
        """Draw a choice of a few values; one that is not allowed is shown until another is chosen."""
        offered = [(value_text(each), i) for i, each in enumerate(values)]
        index: int | None = next((i for i, each in enumerate(values) if same(each, value)), None)
        if index is None and value is not None:
            offered.append((f"{value_text(value)} (not allowed)", len(values)))
            index = len(values)

        def choose(chosen: int) -> bool:
            self.draft.set(path, [*values, value][chosen])
            return False

        self.add(gr.Dropdown, path, index, choose, choices=offered, **options)

    def number(self, node: Field, path: Path, value: Any, options: dict[str, Any]) -> None:
        """Draw a number as text, so that what is not a number can be reported."""

        def parse(text: str) -> Any:
            return None if not text.strip() and node.get("nullable") else parse_number(text)

        placeholder = "none" if node.get("nullable") else None
        shown = number_text(value)
        mode: dict[str, Any] = {"elem_classes": "rf-num", "max_lines": 1, "placeholder": placeholder}
        self.add(gr.Textbox, path, shown, self.setter(path, parse), **mode, **options)

    def text(self, node: Field, path: Path, value: Any, options: dict[str, Any]) -> None:
        """Draw a text."""
        shown = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        is_long = node.get("maxLength", 0) > 400 or "\n" in shown or len(shown) > LONG_TEXT
        lines = min(8, shown.count("\n") + 2) if is_long else 1

        def parse(text: str) -> Any:
            return None if text == "" and node.get("nullable") else text

        more: dict[str, Any] = {
            "lines": lines,
            "max_lines": max(lines, 8) if is_long else 1,
            "placeholder": "none" if node.get("nullable") else None,
            "elem_classes": "rf-wide" if is_long else None,
        }
        self.add(gr.Textbox, path, shown, self.setter(path, parse), **more, **options)

    def raw(self, path: Path, value: Any) -> None:
        """Draw a value of another shape than the form expects, as JSON."""

        def parse(text: str) -> Any:
            try:
                return json.loads(text)
            except ValueError:
                return text

        shown = "" if value is None else json.dumps(value, ensure_ascii=False)
        lines = 2 if isinstance(value, dict | list) else 1
        apply = self.setter(path, parse)
        self.add(gr.Textbox, path, shown, apply, lines=lines, label=dotted(path), show_label=False, late=True)

    def checks(self, node: Field, path: Path, value: list[Any], options: dict[str, Any]) -> None:
        """Draw a choice of several values; their order is kept, new ones come last."""
        odd = [each for each in value if each not in node["choices"]]
        offered = [*((str(each), each) for each in node["choices"]), *((f"{each} (not allowed)", each) for each in odd)]

        def choose(chosen: list[Any]) -> bool:
            now = self.draft.get(path) or []
            kept = [each for each in now if each in chosen]
            self.draft.set(path, [*kept, *(each for each in chosen if each not in kept)])
            return any(each not in chosen for each in odd)

        self.add(gr.CheckboxGroup, path, value, choose, choices=offered, **options)

    def union(self, node: Field, path: Path, value: Any, field: Field) -> None:
        """Draw the choice between several forms of a value, and the chosen one."""
        options = [{"kind": "none"}, *node["options"]] if node.get("nullable") else node["options"]
        at = option_of(options, value)
        if at is None:
            self.raw(path, value)
            return
        chosen = options[at]

        def choose(index: int) -> bool:
            self.draft.choose_option(path, options, index, field.get("default"))
            return True

        is_fixed = chosen["kind"] == "none" or (chosen["kind"] == "choice" and len(chosen["values"]) == 1)
        is_plain = chosen["kind"] in SHORT and not is_fixed
        style = ["rf-union", "" if is_plain or is_fixed else "rf-wide"]
        with gr.Column(elem_classes=style, elem_id=None if is_plain else field_id(path)):
            names = [(option_name(option), i) for i, option in enumerate(options)]
            label, info = field["label"], field.get("help") or None
            self.add(gr.Dropdown, path, at, choose, suffix="|", choices=names, label=label, info=info)
            if not is_fixed:
                self.control(chosen, path, value, label, named=False, info=bounds(chosen))

    def chosen(self, node: Field, path: Path, value: Any, options: dict[str, Any]) -> None:
        """Draw the choice of something that the server knows, such as models and checkpoints."""
        known = node["known"]
        listed = [(each["label"], each["value"], each["note"]) for each in self.choices_of(known)]
        values = [each for _, each, _ in listed]
        if known == "endpoints":
            custom: dict[str, Any] = {"choices": values, "allow_custom_value": True}
            self.add(gr.Dropdown, path, value or "", self.setter(path), **custom, **options)
            return
        is_model = known == "models"
        hub = f"{dotted(path)}@hub"
        is_other = is_model and value is not None and (bool(self.draft.memory.get(hub)) or value not in values)
        offered = [(label if is_model or not note else f"{label} · {note}", each) for label, each, note in listed]
        if node.get("nullable"):
            offered.insert(0, ("none", ""))
        if is_model:
            offered.append(OTHER_MODEL)
        elif value and value not in values:
            offered.insert(0, (f"{value} (not in the list)", value))

        def choose(name: str) -> bool:
            self.draft.memory[hub] = name == OTHER
            self.draft.set(path, "" if name == OTHER else name or (None if node.get("nullable") else name))
            return is_model

        note = next((note for _, each, note in listed if each == value and is_model), "")
        options = {**options, "info": " · ".join(text for text in (options["info"], note) if text) or None}
        now = OTHER if is_other else value or ("" if node.get("nullable") else None)
        self.add(gr.Dropdown, path, now, choose, choices=offered, **options)
        if is_other:
            text: dict[str, Any] = {"label": "hub id", "placeholder": "org/name", "max_lines": 1}
            self.add(gr.Textbox, path, value, self.setter(path), suffix="@", **text)

    def choices_of(self, known: str) -> list[dict[str, str]]:
        """Return the offered choices; those of datasets begin with the stages that make one."""
        made = []
        if known == "data":
            for stage in self.draft.get(("stages",)) or []:
                method = stage.get("method") if isinstance(stage, dict) else None
                if (method.get("type") if isinstance(method, dict) else method) == "distill":
                    name = str(stage.get("name"))
                    made.append({"value": name, "label": f"stage {name}", "note": ""})
        return [*made, *self.draft.choices.get(known, [])]


def field_id(path: Path) -> str:
    """Return the id of the element of a field; `FieldErrors` finds it by the path."""
    return f"field-{dotted(path)}"


def value_text(value: Any) -> str:
    """Return a value of a choice as text."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal and both or none of them is a truth value."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)
