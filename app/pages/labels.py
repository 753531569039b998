"""Page Labels: hints to be labeled one by one, the detector report, and the detector benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import gradio as gr

from app.components.address import Replacement
from app.components.keys import Key
from app.components.label_card import LABEL_KEYS, LabelCard, hint_key
from app.components.nodes import Node, el
from app.components.stored import Stored
from app.components.transcript import LABEL_TEXTS
from app.endpoints.detectors import GROUPINGS
from app.pages._events import FAST, handler
from app.pages._frame import page_frame
from app.pages._labels_benchmark import benchmark_view
from app.pages._labels_desk import DEFAULT_SIZE, Desk, Draft, Labeling, QueueForm, place_of
from app.pages._labels_report import report_view
from app.pages._labels_stage import NAME_FIELD, error_view, queue_view
from app.pages._query import QueryFields
from rl2f_core.errors import RL2FError

if TYPE_CHECKING:
    from app.endpoints.detectors import GroupBy, ReportResult
    from app.endpoints.labels import HintRef
    from app.endpoints.studio import Studio

PATH = "labels"
TITLE = "Labels"
ORDER = 50
ANY = ("any", "")
AT_RUN_TIME = ("at run time", "run")
VIEWS = [("Label", "queue"), ("Detector report", "report"), ("Benchmark", "benchmark")]
SELECTIONS = [
    ("all hints", "all"),
    ("stratified sample", "stratified"),
    ("flagged by a detector", "flagged"),
    ("random unflagged sample", "random_unflagged"),
]
SAME_HINT = {"view", "annotator", "show_findings"}
"""Fields whose change keeps the current hint."""
SHORTCUTS = [
    *(Key(key, LABEL_TEXTS[label], f".lb-answer[data-label={label}]") for label, key in LABEL_KEYS.items()),
    Key("Ctrl+Enter", "save and next", ".lb-save", typing=True),
    Key("n s j ArrowDown", "next hint", ".lb-next"),
    Key("p k ArrowUp", "previous hint", ".lb-previous"),
    Key("n j ArrowDown", "next disagreement", ".lb-dispute", "next"),
    Key("p k ArrowUp", "previous disagreement", ".lb-dispute", "previous"),
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

ELSEWHERE: dict[str, dict[str, Any]] = {
    "review": {"unlabeled_only": True},
    "sample": {"view": "queue", "selection": "stratified"},
    "show_report": {"view": "report"},
}
"""Action → fields that it sets."""
ON_HINT = {"label", "save_next", "reveal"}
"""Actions that only apply to the hint that the user saw."""


def build(studio: Studio) -> None:
    """Build the filters and, below them, one view of a hint, the report or the benchmark."""
    address = page_frame(studio, TITLE, SHORTCUTS)
    stored, desks = Stored("rl2f.preferences"), gr.State(Desk())
    with gr.Row(elem_id="label-head"):
        gr.Markdown("# Labels")
        view = gr.Radio(VIEWS, value="queue", label="View", show_label=False, container=False, elem_id="label-view")
    with gr.Row(elem_id="label-filters"):
        annotator = gr.Textbox(
            label="Annotator",
            placeholder="your name",
            max_length=60,
            max_lines=1,
            min_width=130,
            elem_id="label-annotator",
        )
        selection = gr.Dropdown(SELECTIONS, value="all", label="Hints", min_width=150)
        run = gr.Dropdown([ANY], value="", label="Run", min_width=140)
        environment = gr.Dropdown([ANY], value="", label="Environment", min_width=140)
        source = gr.Dropdown([AT_RUN_TIME], value="run", label="Findings", visible=False, min_width=140)
        size = gr.Number(DEFAULT_SIZE, label="Sample size", precision=0, visible=False, min_width=80)
        seed = gr.Number(0, label="Seed", precision=0, visible=False, min_width=70)
        unlabeled = gr.Checkbox(label="Unlabeled only", container=False, min_width=100)
        findings = gr.Checkbox(label="Show findings (not blind)", container=False, min_width=100)
        controls = gr.Checkbox(label="Include controls", container=False, min_width=100)
    stage = LabelCard(elem_id="label-stage")

    fields = QueryFields(
        {
            "view": (view, "queue"),
            "annotator": (annotator, ""),
            "selection": (selection, "all"),
            "run": (run, ""),
            "environment": (environment, ""),
            "source": (source, "run"),
            "size": (size, DEFAULT_SIZE),
            "seed": (seed, 0),
            "unlabeled_only": (unlabeled, False),
            "show_findings": (findings, False),
            "include_controls": (controls, False),
        }
    )
    inputs, names = fields.components, list(fields.fields)
    page = _Page(studio, fields)

    def named(entries: Sequence[Any]) -> dict[str, Any]:
        values = dict(zip(names, entries, strict=True))
        return {**values, "annotator": (values["annotator"] or "").strip()}

    @handler
    def open_page(query: dict[str, str], kept: dict[str, Any]) -> list[Any]:
        values = fields.values({"annotator": str(kept.get("annotator") or ""), **query})
        offered, sources = studio.labels.label_choices(), studio.detectors.list_finding_sources()[1:]
        choices = {
            "run": [ANY, *((f"{each['id']} · {each['name']}", str(each["id"])) for each in offered["runs"])],
            "environment": [ANY, *((each, each) for each in offered["environments"])],
            "source": [AT_RUN_TIME, *((f"run {each['name']} · {each['detectors']}", each["name"]) for each in sources)],
        }
        desk = page.start(values, _place(query), bool(sources))
        updates = page.updates(values, desk)
        for name, listed in choices.items():
            updates[name]["choices"] = [*listed, *([values[name]] if values[name] not in dict(listed).values() else [])]
        return [*page.show(values, query, desk), *updates.values()]

    @handler
    def edit(query: dict[str, str], desk: Desk, *entries: Any) -> list[Any]:
        values = named(entries)
        now, before = fields.query(list(values.values())), {name: query.get(name, "") for name in names}
        changed = {name for name in names if now.get(name, "") != before[name]}
        if not changed:
            return [Replacement(query), desk, gr.skip(), None, *(gr.skip() for _ in inputs)]
        place = place_of(desk.hint) if desk.hint else desk.place
        desk = page.start(values, place if changed <= SAME_HINT else None, desk.has_sources)
        kept = {"annotator": values["annotator"]} if "annotator" in changed else None
        shown = page.updates(values, desk, only_visible=True)
        return [*page.show(values, query, desk), kept, *shown.values()]

    @handler
    def act(event: gr.EventData, query: dict[str, str], desk: Desk, *entries: Any) -> list[Any]:
        values, data = named(entries), event._data
        name, updates = data["action"], [gr.skip() for _ in inputs]
        if name in ELSEWHERE:
            values |= ELSEWHERE[name]
            desk = page.start(values, None, desk.has_sources)
            updates = list(page.updates(values, desk).values())
        else:
            query = page.act(name, data, values, query, desk)
        return [*page.show(values, query, desk), *updates]

    def load_benchmark(name: str) -> Any:
        return benchmark_view(studio.detectors.detector_benchmark()) if name == "benchmark" else gr.skip()

    outputs = [address, desks, stage]
    edited = ([address, desks, *inputs], [*outputs, stored, *inputs])
    opened = address.input(open_page, [address, stored], [*outputs, *inputs], js=stored.reader(), **FAST)
    opened.then(handler(load_benchmark), view, stage, **FAST)
    view.input(edit, *edited, **FAST).then(handler(load_benchmark), view, stage, **FAST)
    chosen: list[Any] = [selection, run, environment, source, unlabeled, findings, controls]
    typed = [annotator.submit, annotator.blur, size.submit, size.blur, seed.submit, seed.blur]
    gr.on([*(each.input for each in chosen), *typed], edit, *edited, trigger_mode="always_last", **FAST)
    stage.click(act, [address, desks, *inputs], [*outputs, *inputs], trigger_mode="always_last", **FAST)


class _Page:
    """What the events of the page show.

    Args:
        studio: The endpoints.
        fields: The fields of the page.
    """

    def __init__(self, studio: Studio, fields: QueryFields) -> None:
        self._studio, self._fields = studio, fields
        self._writable = not studio.context.read_only

    def start(self, values: Mapping[str, Any], place: HintRef | None, has_sources: bool) -> Desk:
        """Return a desk with the queue from this hint, by default from the first unlabeled one."""
        desk = Desk(place=place, has_sources=has_sources)
        if values["view"] == "queue":
            try:
                Labeling(self._studio, _form(values), desk).start(place)
            except RL2FError as error:
                desk.error, desk.hint = error, None
        return desk

    def act(
        self, name: str, data: Mapping[str, Any], values: Mapping[str, Any], query: dict[str, str], desk: Desk
    ) -> dict[str, str]:
        """Perform an action of the stage on the desk; return the query."""
        labeling, draft = Labeling(self._studio, _form(values), desk), Draft.of_event(data)
        seen = desk.hint is None or data.get("hint") == hint_key(desk.hint)  # False after two quick keys
        desk.message = ""
        if values["view"] == "queue" and not desk.items:  # the server was restarted
            labeling.start(_place(query))
        if name in ("group", "step_group"):
            now = GROUPINGS.index(_group_by(query))
            to = GROUPINGS.index(data["by"]) if name == "group" else (now + int(data["step"])) % len(GROUPINGS)
            return {**query, "group_by": GROUPINGS[to]}
        actions: dict[str, Callable[[], None]] = {
            "label": lambda: labeling.give(data["label"], draft),
            "next": lambda: labeling.next(draft if seen else None),
            "previous": lambda: labeling.previous(draft if seen else None),
            "save_next": lambda: labeling.save_and_next(draft),
            "undo": labeling.undo,
            "reveal": labeling.reveal,
            "unlock": lambda: self._unlock(values, desk),
            "lock": lambda: setattr(desk, "test", None),
        }
        if name in ON_HINT and not seen:
            return query
        actions[name]()
        return query

    def _unlock(self, values: Mapping[str, Any], desk: Desk) -> None:
        desk.test = self._studio.detectors.unlock_test_set(values["annotator"], **_scope(values))

    def show(self, values: Mapping[str, Any], query: Mapping[str, str], desk: Desk) -> list[Any]:
        """Return the values of address, desk and stage; Back returns to the previous view, not to each hint."""
        shown = self._fields.query(list(values.values()))
        group_by = _group_by(query)
        if group_by != GROUPINGS[0]:
            shown["group_by"] = group_by
        if values["view"] == "queue" and desk.hint:
            place = place_of(desk.hint)
            run = str(place["run"])
            shown |= {"dialogue": place["event_id"], "turn": str(place["turn"])}
            shown |= {"of": run} if run != values["run"] else {}
        is_same_view = values["view"] == query.get("view", "queue")
        return [Replacement(shown) if is_same_view else shown, desk, self._stage(values, group_by, desk)]

    def _stage(self, values: Mapping[str, Any], group_by: GroupBy, desk: Desk) -> list[Node]:
        if values["view"] == "queue":
            return queue_view(desk, _form(values), writable=self._writable)
        if values["view"] == "benchmark":
            return [el("div.rl-skeleton", style="height: 280px", role="status", aria_label="Scoring…")]
        try:
            return [
                report_view(
                    self._report(values, group_by, desk),
                    group_by,
                    values["annotator"],
                    NAME_FIELD,
                    writable=self._writable,
                )
            ]
        except RL2FError as error:
            return [error_view(error)]

    def _report(self, values: Mapping[str, Any], group_by: GroupBy, desk: Desk) -> ReportResult:
        if desk.test is None:
            return self._studio.detectors.detector_report(**_scope(values), group_by=group_by)
        grouped = {**desk.test["report"], **desk.test["groupings"][group_by]}
        return cast("ReportResult", {**desk.test, "report": grouped})

    def updates(
        self, values: Mapping[str, Any], desk: Desk, *, only_visible: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Return updates of the fields by name: which are shown, and their values."""
        view, is_sample = values["view"], _form(values).is_sample
        queue, sample = view == "queue", view == "queue" and is_sample
        shown = {
            "view": True,
            "annotator": view != "benchmark",
            "selection": queue,
            "run": view != "benchmark",
            "environment": view != "benchmark",
            "source": desk.has_sources and (view == "report" or sample),
            "size": sample,
            "seed": sample,
            "unlabeled_only": queue,
            "show_findings": queue and values["selection"] != "flagged",
            "include_controls": view != "benchmark",
        }
        new = {name: {} if only_visible else {"value": value} for name, value in values.items()}
        return {name: gr.update(visible=shown[name], **new[name]) for name in shown}


def _form(values: Mapping[str, Any]) -> QueueForm:
    return QueueForm(**{name: value for name, value in values.items() if name != "view"})


def _scope(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scope of the report as arguments."""
    queue = _form(values).queue()
    return {name: queue[name] for name in ("run", "environment", "source", "include_controls")}  # type: ignore[literal-required]


def _place(query: Mapping[str, str]) -> HintRef | None:
    """Return the hint of the address."""
    run, turn = query.get("of") or query.get("run") or "", query.get("turn", "0")
    if not query.get("dialogue") or not run.isdigit() or not turn.isdigit():
        return None
    return {"run": int(run), "event_id": query["dialogue"], "turn": int(turn)}


def _group_by(query: Mapping[str, str]) -> GroupBy:
    name = query.get("group_by")
    return next((each for each in GROUPINGS if each == name), GROUPINGS[0])
