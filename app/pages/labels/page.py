"""Page Labels: hints to be labeled one by one, the detector report, fits, and the detector benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from app.components.browser.address import Replacement
from app.components.browser.keys import Key
from app.components.browser.stored import Stored
from app.components.elements.transcript import LABEL_TEXTS
from app.components.label_card import LabelCard
from app.components.nodes import Element, Node, el
from app.endpoints.leaks.detectors import ReportResult
from app.endpoints.leaks.labels import HintRef
from app.endpoints.studio import Studio
from app.endpoints.types import validated
from app.pages._events import FAST, LATEST, handler
from app.pages._frame import page_frame
from app.pages._query import QueryFields
from app.pages.labels.benchmark import benchmark_view
from app.pages.labels.desk import Desk, Draft, LabelForm, Labeling, place_of
from app.pages.labels.fit import fit_view, start_fit, start_rescoring
from app.pages.labels.report import report_view
from app.pages.labels.stage import LABEL_KEYS, error_view, hint_key, queue_view
from jobs.labels.detector_report import GROUP_BY, GroupBy
from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

PATH = "labels"
TITLE = "Labels"
ORDER = 50
ANY = ("any", "")
AT_RUN_TIME = ("at run time", "run")
VIEWS = [("Label", "queue"), ("Detector report", "report"), ("Fit", "fit"), ("Benchmark", "benchmark")]
SELECTIONS = [
    ("stratified sample", "stratified"),
    ("all hints", "all"),
    ("flagged by a detector", "flagged"),
    ("random unflagged sample", "random_unflagged"),
    ("most informative first", "informative"),
]
SAME_HINT = {"view", "annotator", "show_findings"}
"""Fields whose change keeps the current hint."""
SHORTCUTS = [
    *(Key(key, LABEL_TEXTS[label], f".lb-answer[data-label={label}]") for label, key in LABEL_KEYS.items()),
    Key("Ctrl+Enter", "save and next", ".lb-save", typing=True),
    Key("n s j ArrowDown", "next hint", ".lb-next"),
    Key("p k ArrowUp", "previous hint", ".lb-previous"),
    Key("n j ArrowDown", "next disagreement", ".lb-disagreement", "next"),
    Key("p k ArrowUp", "previous disagreement", ".lb-disagreement", "previous"),
    Key("u", "undo your last label", ".lb-undo"),
    Key("[", "mark the previous word", "[data-mark=previous]"),
    Key("]", "mark the next word", "[data-mark=next]"),
    Key("{", "mark one word less", "[data-mark=previous-extend]"),
    Key("}", "mark one word more", "[data-mark=next-extend]"),
    Key("Escape", "clear highlight", "[data-mark=clear]"),
    Key("w", "write why", ".lb-note", "focus"),
    Key("a", "show gold answer", ".lb-reveal"),
    Key("e", "expand the dialogue", ".lb-context:not([open]) > summary"),
    Key("x", "collapse the dialogue", ".lb-context[open] > summary"),
    Key("b", "detector report, and back to the queue", "#label-view input:not(:checked)"),
    Key("B", "detector benchmark", "#label-view label:last-of-type input"),
    Key("ArrowLeft", "previous grouping of the report", ".bd-previous"),
    Key("ArrowRight", "next grouping of the report", ".bd-next"),
    Key("o", "unlock the test set", ".bd-unlock"),
]

ON_HINT = {"label", "save_next", "reveal"}
"""Actions that only apply to the hint that the user saw."""
TYPED = ("annotator", "size", "seed")
"""Fields whose edit ends with Enter or when they are left."""
BUDGET = ("usd", "speed", "precision")
"""The same for the recommended cascade."""


def build(studio: Studio) -> None:
    """Build the filters and, below them, one view of a hint, the report or the benchmark."""
    address = page_frame(studio, TITLE, SHORTCUTS)
    stored, desk = Stored("rl2f.preferences"), gr.State(Desk())
    with gr.Row(elem_id="label-head"):
        gr.Markdown("# Labels")
        view = gr.Radio(VIEWS, value="queue", label="View", show_label=False, container=False, elem_id="label-view")
    with gr.Row(elem_id="label-filters"):
        filters: dict[str, Any] = {
            "annotator": gr.Textbox(
                label="Annotator", placeholder="your name", max_length=60, max_lines=1, elem_id="label-annotator"
            ),
            "selection": gr.Dropdown(SELECTIONS, value=LabelForm.selection, label="Hints", elem_id="label-selection"),
            "run": gr.Dropdown([ANY], value="", label="Run", min_width=140),
            "environment": gr.Dropdown([ANY], value="", label="Environment", min_width=140),
            "source": gr.Dropdown([AT_RUN_TIME], value="run", label="Findings", visible=False, min_width=140),
            "size": gr.Number(LabelForm.size, label="Sample size", precision=0, visible=False, min_width=80),
            "seed": gr.Number(LabelForm.seed, label="Seed", precision=0, visible=False, min_width=70),
            "unlabeled_only": gr.Checkbox(label="Unlabeled only", container=False, min_width=100),
            "show_findings": gr.Checkbox(label="Show findings (not blind)", container=False, min_width=100),
            "include_controls": gr.Checkbox(label="Include controls", container=False, min_width=100),
            "usd": gr.Number(
                LabelForm.usd, label="US$ / 1,000 hints, 0 = no model", minimum=0, visible=False, min_width=200
            ),
            "speed": gr.Number(LabelForm.speed, label="Hints/s, at least", minimum=0, visible=False, min_width=110),
            "precision": gr.Number(
                LabelForm.precision, label="Precision, at least", minimum=0, maximum=1, step=0.01, visible=False,
                min_width=110,
            ),
        }  # fmt: skip
    stage = LabelCard(elem_id="label-stage")

    fields = {"view": view, **filters}
    page = _Page(studio, QueryFields({name: (item, getattr(LabelForm, name)) for name, item in fields.items()}))
    inputs, shown = [address, desk, *fields.values()], [address, desk, stage]
    edited = [*shown, stored, *fields.values()]
    opened = address.input(page.open, [address, stored], [*shown, *fields.values()], js=stored.reader(), **FAST)
    values = list(fields.values())
    opened.then(page.load_benchmark, values, stage, **FAST)
    view.input(page.edit, inputs, edited, **FAST).then(page.load_benchmark, values, stage, **FAST)
    budget = [event for name in BUDGET for event in (filters[name].submit, filters[name].blur)]
    budgeted = gr.on(budget, page.edit, inputs, edited, **LATEST)
    budgeted.then(page.load_benchmark, values, stage, **FAST)
    chosen = [item.input for name, item in filters.items() if name not in TYPED + BUDGET]
    typed = [event for name in TYPED for event in (filters[name].submit, filters[name].blur)]
    gr.on([*chosen, *typed], page.edit, inputs, edited, **LATEST)
    stage.click(page.act, inputs, shown, **LATEST)


class _Page:
    """The events of the page.

    Args:
        studio: The endpoints.
        fields: The fields of the page.
    """

    def __init__(self, studio: Studio, fields: QueryFields) -> None:
        self._studio, self._fields = studio, fields
        self._writable = not studio.context.read_only

    @handler
    def open(self, query: dict[str, str], kept: JsonObject) -> list[object]:
        """Show the view of the address, with the name that the browser kept."""
        form = LabelForm(**self._fields.values({"annotator": str(kept.get("annotator") or ""), **query}))
        offered, sources = self._studio.labels.label_choices(), self._studio.detectors.list_finding_sources()[1:]
        choices = {
            "run": [ANY, *((f"{item.id} · {item.name}", str(item.id)) for item in offered.runs)],
            "environment": [ANY, *((item, item) for item in offered.environments)],
            "source": [AT_RUN_TIME, *((f"run {item.name} · {item.detectors}", item.name) for item in sources)],
        }
        desk = self._start(form, _place(query), bool(sources))
        updates = self._updates(form, desk)
        for name, listed in choices.items():
            value = getattr(form, name)
            updates[name]["choices"] = [*listed, *([value] if value not in dict(listed).values() else [])]
        return [*self._show(form, query, desk), *updates.values()]

    @handler
    def edit(self, query: dict[str, str], desk: Desk, *values: object) -> list[object]:
        """Show the hints of changed fields."""
        form = self._form(values)
        now = self._query(form)
        changed = {name for name in self._fields.fields if now.get(name, "") != query.get(name, "")}
        if not changed:
            return [Replacement(query), desk, gr.skip(), None, *(gr.skip() for _ in values)]
        place = place_of(desk.hint) if desk.hint else desk.place
        desk = self._start(form, place if changed <= SAME_HINT else None, desk.has_sources)
        kept = {"annotator": form.annotator} if "annotator" in changed else None
        updates = self._updates(form, desk, only_visible=True)
        return [*self._show(form, query, desk), kept, *updates.values()]

    @handler
    def act(self, event: gr.EventData, query: dict[str, str], desk: Desk, *values: object) -> list[object]:
        """Perform an action of the stage."""
        form = self._form(values)
        query = self.perform(event._data["action"], event._data, form, query, desk)
        return self._show(form, query, desk)

    @handler
    def load_benchmark(self, *values: object) -> object:
        """Score the benchmark if it is the current view."""
        form, detectors = self._form(values), self._studio.detectors
        if form.view != "benchmark":
            return gr.skip()
        try:
            recommended = detectors.recommend_detectors(**form.budget())
            return benchmark_view(detectors.detector_benchmark(), detectors.compare_detectors(), recommended)
        except RL2FError as error:
            return error_view(error)

    def perform(
        self, name: str, data: JsonObject, form: LabelForm, query: dict[str, str], desk: Desk
    ) -> dict[str, str]:
        """Perform an action on the desk; return the query."""
        labeling, draft = Labeling(self._studio, form, desk), Draft.of_event(data)
        seen = desk.hint is None or data.get("hint") == hint_key(desk.hint)  # False after two quick keys
        desk.message = ""
        if form.view == "queue" and not desk.items:  # the server was restarted
            labeling.start(_place(query))
        if name in ON_HINT and not seen:
            return query
        match name:
            case "group":
                query = {**query, "group_by": data["by"]}
            case "step_group":
                now = GROUP_BY.index(_group_by(query))
                query = {**query, "group_by": GROUP_BY[(now + int(data["step"])) % len(GROUP_BY)]}
            case "label":
                labeling.give(data["label"], draft)
            case "next":
                labeling.next(draft if seen else None)
            case "previous":
                labeling.previous(draft if seen else None)
            case "save_next":
                labeling.save_and_next(draft)
            case "undo":
                labeling.undo()
            case "reveal":
                labeling.reveal()
            case "unlock":
                desk.test = self._studio.detectors.unlock_test_set(form.annotator, form.scope())
            case "lock":
                desk.test = None
            case "fit":
                desk.message = start_fit(self._studio, form)
            case "rescore":
                desk.message = start_rescoring(self._studio, form, str(data["detector"]))
        return query

    def _form(self, values: Sequence[Any]) -> LabelForm:
        form = LabelForm(*values)
        return replace(
            form,
            annotator=(form.annotator or "").strip(),
            usd=_number(form.usd, LabelForm.usd),
            speed=_number(form.speed, LabelForm.speed),
            precision=_number(form.precision, LabelForm.precision),
        )

    def _query(self, form: LabelForm) -> dict[str, str]:
        return self._fields.query(list(vars(form).values()))

    def _start(self, form: LabelForm, place: HintRef | None, has_sources: bool) -> Desk:
        """Return a desk with the queue from this hint, by default from the first unlabeled one."""
        desk = Desk(place=place, has_sources=has_sources)
        if form.view == "queue":
            try:
                Labeling(self._studio, form, desk).start(place)
            except RL2FError as error:
                desk.error, desk.hint = error, None
        return desk

    def _show(self, form: LabelForm, query: Mapping[str, str], desk: Desk) -> list[object]:
        """Return the values of address, desk and stage; Back returns to the previous view, not to each hint."""
        shown, group_by = self._query(form), _group_by(query)
        if group_by != GROUP_BY[0]:
            shown["group_by"] = group_by
        if form.view == "queue" and desk.hint:
            place = place_of(desk.hint)
            run = str(place.run)
            shown |= {"dialogue": place.event_id, "turn": str(place.turn)}
            shown |= {"of": run} if run != form.run else {}
        is_same_view = form.view == query.get("view", "queue")
        return [Replacement(shown) if is_same_view else shown, desk, self._stage(form, group_by, desk)]

    def _stage(self, form: LabelForm, group_by: GroupBy, desk: Desk) -> Element | list[Node]:
        if form.view == "queue":
            return queue_view(desk, form, writable=self._writable)
        if form.view == "benchmark":
            return el("div.rl-skeleton", style="height: 280px", role="status", aria_label="Scoring…")
        try:
            if form.view == "fit":
                return fit_view(self._studio, form, desk.message, writable=self._writable)
            report = self._report(form, group_by, desk)
        except RL2FError as error:
            return error_view(error)
        return report_view(report, group_by, form, writable=self._writable)

    def _report(self, form: LabelForm, group_by: GroupBy, desk: Desk) -> ReportResult:
        if desk.test is None:
            return self._studio.detectors.detector_report(form.scope(group_by=group_by))
        report = desk.test.report.model_copy(update=dict(desk.test.groupings[group_by]))
        return desk.test.model_copy(update={"report": report})

    def _updates(self, form: LabelForm, desk: Desk, *, only_visible: bool = False) -> dict[str, JsonObject]:
        """Return updates of the fields by name: which are shown, and their values."""
        queue = form.view == "queue"
        has_hints = form.view in ("queue", "report")
        sample = queue and form.is_sample
        shown = {
            "view": True,
            "annotator": has_hints,
            "selection": queue,
            "run": has_hints or form.view == "fit",
            "environment": has_hints,
            "source": desk.has_sources and (form.view == "report" or sample),
            "size": sample or (queue and form.selection == "informative"),
            "seed": sample,
            "unlabeled_only": queue,
            "show_findings": queue and form.selection != "flagged",
            "include_controls": has_hints,
            **dict.fromkeys(BUDGET, form.view == "benchmark"),
        }
        new = {name: {} if only_visible else {"value": value} for name, value in vars(form).items()}
        return {name: gr.update(visible=shown[name], **new[name]) for name in shown}


def _number(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _place(query: Mapping[str, str]) -> HintRef | None:
    """Return the hint of the address."""
    run = whole_number(query.get("of") or query.get("run") or "", None)
    turn = whole_number(query.get("turn", "0"), None)
    if not query.get("dialogue") or run is None or turn is None:
        return None
    return validated(HintRef, {"run": run, "event_id": query["dialogue"], "turn": turn})


def _group_by(query: Mapping[str, str]) -> GroupBy:
    name = query.get("group_by")
    return next((item for item in GROUP_BY if item == name), GROUP_BY[0])
