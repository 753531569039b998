"""The card of page New run that uploads and checks a file of own questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_args

import gradio as gr
import yaml
from gradio.components import Component

from app.common.quantities import plural
from app.components.nodes import Element, Node, el, table
from app.components.view import View
from app.endpoints.own_data import DataCheck, Meaning, OwnDataEndpoints
from app.endpoints.studio import Studio
from app.forms.own_data import store
from app.pages._events import FAST, QUEUED, EventOptions, Updates, handler
from app.pages.new_run.draft import NO_SOLUTIONS, Draft
from rl2f_core.common.stats.intervals import MIN_PROBLEMS
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

FILE_TYPES = [".csv", ".jsonl", ".ndjson", ".gz", ".parquet"]
MEANINGS: tuple[Meaning, ...] = get_args(Meaning)
CHECKERS = [
    ("exact: the same text", "exact"),
    ("numeric, with a tolerance", "numeric"),
    ("multiple choice: a letter", "multiple_choice"),
    ("regular expression (column pattern)", "regex"),
    ("math-verify: an equal expression", "math_verify"),
    ("JSON fields", "json_fields"),
    ("unit tests (column tests)", "unit_tests"),
    ("judge: a model at an endpoint", "judge"),
]
NO_COLUMN = ("–", "")
IN_YAML = re.compile(r"Name it: environment\.columns: \{(\w+): [^}]*\}")
"""How an error names a column for the YAML; the card has a menu for it."""
Apply = Callable[[Draft, JsonObject, str, Sequence[str]], Updates]
"""Uses an environment, the file's name and warnings in a draft, and returns the updates of the form."""


class OwnDataCard:
    """Upload, columns, checker and bad rows of a file. It is hidden until it is opened."""

    def __init__(self) -> None:
        with gr.Column(visible=False, elem_id="nr-data", elem_classes="rl-card") as self.card:
            gr.Markdown("## Own data")
            self.file = gr.File(
                label="CSV, JSONL or Parquet file of questions with answers",
                file_types=FILE_TYPES,
                height=110,
                elem_id="nr-data-file",
            )
            with gr.Column(visible=False) as self.details:
                with gr.Row():
                    self.columns = [
                        gr.Dropdown([], label=meaning, elem_id=f"nr-data-{meaning}", min_width=110)
                        for meaning in MEANINGS
                    ]
                    self.checker = gr.Dropdown(CHECKERS, label="checker", elem_id="nr-data-checker", min_width=160)
            self.report = View(elem_id="nr-data-report")
            with gr.Row(elem_classes="nr-buttons"):
                self.close = gr.Button("Close", min_width=80)
                self.use = gr.Button(
                    "Use in the form", variant="primary", interactive=False, elem_id="nr-data-use", min_width=80
                )
        self.name = gr.State("")

    def connect(
        self,
        studio: Studio,
        draft: gr.State,
        opener: gr.Button,
        apply: Apply,
        updated: Sequence[Component],
        ordered: EventOptions,
    ) -> None:
        """Add the events.

        Args:
            studio: The endpoints.
            draft: The draft that uses the file.
            opener: Button that opens the card.
            apply: Uses an environment in the draft.
            updated: Outputs of `apply`.
            ordered: Options of an event that changes the draft.
        """
        own = studio.own_data

        @handler
        def upload(path: str | None) -> Updates:
            if path is None:
                return gr.skip()
            studio.context.require_writable()
            source = Path(path)
            try:
                name = store(studio.context.workspace, source).name
            except RL2FError as error:
                closed: Updates = {self.details: gr.update(visible=False), self.use: gr.update(interactive=False)}
                return {self.file: None, self.name: "", self.report: [failure(error, source.name)], **closed}
            finally:
                source.unlink(missing_ok=True)  # Gradio's copy
            return {self.file: None, self.name: name, **self._read_columns(own, name)}

        @handler
        def check_again(name: str, checker: str | None, *values: str | None) -> list[object]:
            try:
                return [report(check(own, name, values, checker)), gr.update(interactive=True)]
            except RL2FError as error:
                return [[failure(error, name)], gr.update(interactive=False)]

        @handler
        def use(edited: Draft, name: str, checker: str | None, *values: str | None) -> Updates:
            found = check(own, name, values, checker)
            environment = yaml.safe_load(found.yaml)["environment"]
            return {self.card: gr.update(visible=False), **apply(edited, environment, name, warnings(found))}

        settings = [self.name, self.checker, *self.columns]
        opened = [self.file, self.name, self.details, *self.columns, self.checker, self.report, self.use]
        self.file.upload(upload, self.file, opened, **QUEUED)
        edits = [item.input for item in (*self.columns, self.checker)]
        gr.on(edits, check_again, settings, [self.report, self.use], **QUEUED)
        self.use.click(use, [draft, *settings], [self.card, *updated], **ordered)
        opener.click(lambda: gr.update(visible=True), None, self.card, **FAST)
        self.close.click(lambda: gr.update(visible=False), None, self.card, **FAST)

    def _read_columns(self, own: OwnDataEndpoints, name: str) -> Updates:
        """Return columns, checker and report of a file."""
        columns, used, checker = own.list_data_columns(name), {}, None
        try:
            found = own.check_data_file(name)
            used, checker, shown, usable = found.used, found.checker, report(found), True
        except RL2FError as error:
            shown, usable = [failure(error, name)], False
        choices = [NO_COLUMN, *((column, column) for column in columns)]
        chosen = [gr.update(choices=choices, value=used.get(meaning, "")) for meaning in MEANINGS]
        return {
            self.details: gr.update(visible=True),
            **dict(zip(self.columns, chosen, strict=True)),
            self.checker: checker,
            self.report: shown,
            self.use: gr.update(interactive=usable),
        }


def check(own: OwnDataEndpoints, name: str, values: Iterable[str | None], checker: str | None) -> DataCheck:
    """Check a file with these columns and this checker."""
    columns = {meaning: value or "" for meaning, value in zip(MEANINGS, values, strict=True)}
    return own.check_data_file(name, columns, checker)  # type: ignore[arg-type]


def failure(error: RL2FError, file: str) -> Element:
    """Return why a file cannot be used; a column is named in the menus of the card instead of the YAML."""
    text = IN_YAML.sub(lambda found: f"Choose it in the menu {found[1]}", str(error))
    return el("p.rl-wrong", text if file in text else f"{file}: {text}", role="alert")


def warnings(found: DataCheck) -> list[str]:
    """Return what is wrong with a file that can be used."""
    judge = "Set the address of the judge in environment.llm."
    tests = found.problems.get("test", 0)
    few = f"Only {plural(tests, 'test problem')}: an evaluation tells little with fewer than {MIN_PROBLEMS}."
    return [
        *([few] if tests < MIN_PROBLEMS else []),
        *([f"{found.num_bad_rows:,} bad rows are left out."] if found.num_bad_rows else []),
        *([NO_SOLUTIONS] if "solution" not in found.used else []),
        *([judge] if found.checker == "judge" else []),
    ]


def report(found: DataCheck) -> list[Node]:
    """Return counts, bad rows and first rows of a file."""
    problems = ", ".join(f"{count:,} {split}" for split, count in found.problems.items())
    counts = (
        f"{found.file}: {found.rows:,} rows, {found.valid:,} valid, {found.num_bad_rows:,} bad. "
        f"Problems: {problems}; {found.duplicates:,} repeated, {found.near_duplicates:,} near-duplicates of test "
        f"problems. The best constant answer solves {found.baseline:.1%} of the test problems. "
        f"{found.empty_hints:,} of {found.checked_hints:,} scripted hints would be empty."
    )
    bad = [(str(item.row), item.column or "–", item.reason) for item in found.bad_rows]
    more = found.num_bad_rows - len(bad)
    return [
        el("p", counts),
        *(el("p", text) for text in warnings(found)),
        titled_table("Bad rows, which are left out", ("row", "column", "reason"), bad, "nr-bad-rows") if bad else None,
        el("p.rl-muted", f"… and {more:,} more.") if more else None,
        titled_table("First rows", found.columns, found.preview, "nr-first-rows"),
    ]


def titled_table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]], style: str) -> Element:
    """Return a table with a title."""
    body = [el("tr", [el("td", cell) for cell in row]) for row in rows]
    return el("section", el("h3", title), table(header, body), class_=style)
