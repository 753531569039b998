"""Position in a list of dialogues: what is shown, and what each action changes. Without Gradio components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from app.common.quantities import RANGES, parse_range
from app.common.urls import page_url
from app.components.browser.selection import SelectedSpan
from app.components.elements.replay import ReplayState
from app.components.elements.transcript import LABEL_TEXTS
from app.components.nodes import Node, el
from app.endpoints.dialogues import DialogueWithSiblings, Target
from app.endpoints.leaks.detector_cards import DetectorCard
from app.endpoints.studio import Studio
from app.endpoints.transcript import DialogueDetail
from app.endpoints.types import validated
from jobs.db.dialogue_models import DialogueSummary
from jobs.db.paging import Page
from jobs.db.queries.dialogues import DialogueFilter
from jobs.labels.label_queries import LabelAnswer
from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

Ref = tuple[int, str]
"""Run and event id of a dialogue."""
FLAGS: dict[str, dict[str, int]] = {
    "labeled": {"true": True, "false": False},
    "used_hints": {"true": True},
    "error": {"true": True},
    "demonstrations": {"true": True},
    "leak": {"0": 0, "1": 1, "2": 2},
}
COLUMNS = {"leak": "leak_state"}
"""Parameter → field of `DialogueFilter`, if the names differ."""
LAST = {
    "next_step": "This is the last step of the list.",
    "previous_step": "This is the first step of the list.",
    "next": "This is the last dialogue of the list.",
    "previous": "This is the first dialogue of the list.",
}


@dataclass(frozen=True)
class PageState(ReplayState):
    """A list of dialogues, and the dialogue that is shown."""

    filter: DialogueFilter = field(default_factory=DialogueFilter)
    query: dict[str, str] = field(default_factory=dict)
    """The filter as parameters of the address."""
    is_default: bool = False
    """The page chose the filter."""
    page: Page[DialogueSummary] | None = None
    cursor: str | None = None
    """Cursor of the page."""
    current: Ref | None = None
    dialogue: DialogueWithSiblings | None = None
    """The current dialogue; None if it could not be read."""
    error: RL2FError | None = None
    """Why the list or the dialogue could not be read."""
    group: list[DialogueDetail] | None = None
    narrow: bool = False
    """The window shows either the list or the dialogue."""
    is_table: bool = False
    """All dialogues as a table instead of the list and a dialogue."""
    in_list: bool = False
    """A narrow window shows the list."""
    rewards: list[JsonObject] | None = None
    """Chart of the step's rewards; None while it is closed."""
    message: Node = ""
    """Text to show once."""

    @property
    def refs(self) -> list[Ref]:
        """The dialogues of the page."""
        return [(row.run_id, row.event_id) for row in self.page.rows] if self.page else []

    @property
    def position(self) -> int:
        """Position of the current dialogue on the page; -1 if it is not there."""
        return self.refs.index(self.current) if self.current in self.refs else -1

    def address(self) -> dict[str, str]:
        """Return the parameters of the address."""
        if self.current is None:
            return {**self.query, "view": "table" if self.is_table else ""}
        run, event = self.current
        return {
            **self.query,
            "dialogue": event,
            "of": "" if str(run) == self.query.get("run") else str(run),
            "turn": str(self.turn),
            "tokens": "" if self.token_turn is None else "1",
            "view": "group" if self.group is not None else "",
        }


def parse_filter(values: Mapping[str, str]) -> DialogueFilter:
    """Return the filter of the page's fields; raise `ConfigError` if a range cannot be read."""
    filter: JsonObject = {}
    for name, value in values.items():
        if value in ("", None):
            continue
        if name in RANGES:
            filter.update(parse_range(name, value))
        elif name in FLAGS:
            if value in FLAGS[name]:
                filter[COLUMNS.get(name, name)] = FLAGS[name][value]
        else:
            filter[name] = whole_number(value, value) if name == "run" else value
    return validated(DialogueFilter, filter)


def merged_ranges(query: Mapping[str, str]) -> dict[str, str]:
    """Return a query with `step_from` and `step_to` (and of the reward) as one parameter."""
    merged = dict(query)
    for name, dash in (("step", "–"), ("reward", "..")):
        low, high = merged.pop(f"{name}_from", ""), merged.pop(f"{name}_to", "")
        if low or high:
            merged[name] = f"{low}{dash}{high}"
    return merged


def finding_sources(dialogue: DialogueDetail) -> set[str]:
    """Return the sources of findings about a dialogue's hints."""
    return {found.source for turn in dialogue.turns if turn.hint for found in turn.hint.findings}


class DialogueBrowser:
    """Changes a `PageState`; every method returns the new one.

    Args:
        studio: The endpoints.
    """

    def __init__(self, studio: Studio) -> None:
        self._studio = studio
        self._dialogues = studio.dialogues

    # -- list --------------------------------------------------------------------------------------------------------
    def load(
        self, place: PageState, cursor: str | None = None, *, select: Literal["first", "last", ""] = "first"
    ) -> PageState:
        """Load a page of the list and open its first or last dialogue."""
        page = self._dialogues.list_dialogues(place.filter, cursor)
        place = replace(place, page=page, cursor=cursor, error=None)
        if select and page.rows and not place.is_table and not (place.narrow and place.in_list):
            run, event = place.refs[0 if select == "first" else -1]
            return self.open(place, run, event)
        return place

    def load_around(self, place: PageState, run: int, event: str) -> PageState:
        """Load the page of the list that contains a dialogue, else the first page."""
        try:
            page = self._dialogues.locate_dialogue(run, event, place.filter)
        except RL2FError:
            page = self._dialogues.list_dialogues(place.filter)
        return replace(place, page=page, cursor=None)

    def refresh(self, place: PageState) -> PageState:
        """Load the current page of the list again."""
        if place.page is None:
            return place
        if place.cursor is None and place.page.first > 1 and place.current:
            return self.load_around(place, *place.current)
        return replace(place, page=self._dialogues.list_dialogues(place.filter, place.cursor))

    # -- dialogue ----------------------------------------------------------------------------------------------------
    def open(self, place: PageState, run: int, event: str, turn: int = 0, *, group: bool = False) -> PageState:
        """Open a dialogue; if it cannot be read, `error` says why."""
        place = replace(
            place,
            current=(run, event),
            dialogue=None,
            error=None,
            turn=turn,
            token_turn=None if place.token_turn is None else turn,
            privileged=None,
            prompts={},
            group=None,
            in_list=False,
            is_table=False,
        )
        return self.reload(place, group=group)

    def reload(self, place: PageState, *, group: bool = False) -> PageState:
        """Read the current dialogue again."""
        if place.current is None:
            return place
        try:
            dialogue = self._dialogues.get_dialogue(*place.current, place.annotator)
            siblings = self._dialogues.dialogue_group(*place.current, place.annotator) if group else None
        except RL2FError as error:
            return replace(place, error=error)
        turn = max(0, min(place.turn, len(dialogue.turns) - 1))
        place = replace(place, dialogue=dialogue, turn=turn, group=siblings, cards=self._cards(dialogue, place))
        return self._tokens(self.read_reruns(place))

    def _cards(self, dialogue: DialogueDetail, place: PageState) -> Mapping[tuple[int, str], Sequence[DetectorCard]]:
        """Return the known detector cards and those of the dialogue's findings."""
        new = {(dialogue.run_id, source) for source in finding_sources(dialogue)} - {*place.cards}
        return {**place.cards, **{key: self._studio.detectors.detector_cards(*key) for key in new}}

    def read_reruns(self, place: PageState) -> PageState:
        """Read the redacted reruns of the current dialogue."""
        if place.current is None or place.dialogue is None or not finding_sources(place.dialogue):
            return replace(place, reruns=())
        return replace(place, reruns=self._studio.fork.redacted_reruns(*place.current))

    def _tokens(self, place: PageState) -> PageState:
        dialogue, turn = place.dialogue, place.token_turn
        if turn is None or place.current is None or dialogue is None or not dialogue.turns:
            return replace(place, tokens=None)
        turn = min(turn, len(dialogue.turns) - 1)
        return replace(place, token_turn=turn, tokens=self._dialogues.dialogue_tokens(*place.current, turn))

    # -- actions -----------------------------------------------------------------------------------------------------
    def act(self, place: PageState, data: JsonObject, span: SelectedSpan | None = None, note: str = "") -> PageState:
        """Perform an action of a button; unknown ones change nothing. A label has the span and the note."""
        place = replace(place, message="")
        match data["action"]:
            case "open":
                return self.open(place, int(data["run"]), data["event"])
            case "next" | "previous" as target:
                return self._go(place, 1 if target == "next" else -1)
            case "next_step" | "previous_step" | "first" | "last" as target:
                return self._jump(place, target)
            case "page":
                return self.load(place, data["cursor"])
            case "list":
                return replace(place, current=None, dialogue=None, group=None, in_list=True)
            case "table" if place.is_table:
                return self.load(replace(place, is_table=False), place.cursor)
            case "table":
                return replace(place, current=None, dialogue=None, group=None, in_list=False, is_table=True)
            case "order":
                order = str(data["order"])
                filter = validated(DialogueFilter, {**place.filter.model_dump(exclude_unset=True), "order": order})
                return self.load(replace(place, filter=filter, query={**place.query, "order": order}, is_default=False))
            case "label":
                return self._label(place, str(data["label"]), span, note)
            case "undo":
                return self._undo(place)
            case "delete-note" if place.current:
                self._studio.run.delete_note(place.current[0], int(data["note"]))
                return self.reload(place)
            case "refresh":
                return self.refresh(place)
            case "rerun" if place.current:
                queued = self._studio.fork.rerun_redacted(*place.current, int(data["turn"]), data["source"])
                return replace(self.read_reruns(place), message=f"Fork {queued.run} is queued.")
            case name:
                return self._toggle(place, name, data)

    def _toggle(self, place: PageState, name: str, data: JsonObject) -> PageState:
        """Show or hide a part of the dialogue."""
        match name:
            case "tokens":
                turn = int(data["turn"])
                return self._tokens(replace(place, token_turn=None if turn == place.token_turn else turn))
            case "prompt" if place.current:
                turn = int(data["turn"])
                shown = {key: value for key, value in place.prompts.items() if key != turn}
                if turn not in place.prompts:
                    shown[turn] = self._dialogues.teacher_prompt(*place.current, turn)
                return replace(place, prompts=shown)
            case "reveal" if place.current and place.group is None:
                answer = None if place.privileged else self._dialogues.reveal_answer(*place.current)
                return replace(place, privileged=answer)
            case "group" if place.current:
                if place.group is not None:
                    return replace(place, group=None)
                return replace(place, group=self._dialogues.dialogue_group(*place.current, place.annotator))
        return place

    def _go(self, place: PageState, by: int) -> PageState:
        """Open the next or previous dialogue, on another page if necessary."""
        at, refs = place.position, place.refs
        if at < 0:
            return self.open(place, *refs[0]) if refs else place
        if 0 <= at + by < len(refs):
            return self.open(place, *refs[at + by])
        cursor = None if place.page is None else place.page.after if by > 0 else place.page.before
        if cursor is None:
            return replace(place, message=LAST["next" if by > 0 else "previous"])
        return self.load(replace(place, in_list=False), cursor, select="first" if by > 0 else "last")

    def _jump(self, place: PageState, target: Target) -> PageState:
        """Open the first or last dialogue of the list, or the first one of another step."""
        current = place.current or (place.refs[0] if place.refs else None)
        if current is None:
            return place
        row = self._dialogues.adjacent_dialogue(*current, target, place.filter)
        if row is None:
            return replace(place, message=LAST.get(target, ""))
        ref = (row.run_id, row.event_id)
        if ref not in place.refs:
            place = self.load_around(place, *ref)
        return self.open(place, *ref)

    # -- labels ------------------------------------------------------------------------------------------------------
    def _label(self, place: PageState, label: str, span: SelectedSpan | None, note: str) -> PageState:
        """Label the current turn's hint, with the selected words or those of the annotator's earlier label."""
        if place.current is None or place.dialogue is None or place.group is not None:
            return place
        turns = place.dialogue.turns
        hint = turns[place.turn].hint if turns else None
        if hint is None:
            return replace(place, message="This attempt has no hint.")
        annotator = place.annotator
        if not annotator:
            return replace(place, message="Enter your name first.")
        mine = next((item for item in hint.labels if item.annotator == annotator), None)
        start, end = (mine.start, mine.end) if mine else (None, None)
        if span and span["key"] == str(place.turn):
            start, end = span["start"], span["end"]
        self._studio.labels.hint_to_label(*place.current, place.turn, annotator, blind=False)
        answer = validated(LabelAnswer, {"label": label, "start": start, "end": end, "note": note})
        self._studio.labels.label_hint(*place.current, place.turn, annotator, answer)
        marked = "" if start is None else ", with the marked words"
        place = replace(place, message=f"Turn {place.turn + 1}: {LABEL_TEXTS[label]}{marked}.")
        return self.refresh(self.reload(replace(place, cards={})))

    def _undo(self, place: PageState) -> PageState:
        if not place.annotator:
            return place
        removed = self._studio.labels.undo_label(place.annotator).removed
        if removed is None:
            return replace(place, message="Nothing to undo.")
        ref, turn = (removed.run_id, removed.event_id), removed.turn
        message = f"Undone: {LABEL_TEXTS[removed.label]} on turn {turn + 1}"
        if ref != place.current:
            url = page_url("dialogues", run=ref[0], dialogue=ref[1], turn=turn)
            link = el("a", "another dialogue", href=url)
            return self.refresh(replace(place, message=el("span", f"{message} of ", link, ".")))
        return self.refresh(self.reload(replace(place, message=f"{message}.")))

    def add_note(self, place: PageState, text: str, turn: int | None) -> PageState:
        """Add a note to the current dialogue or one of its turns."""
        if place.current is None or not text.strip():
            return place
        run, event = place.current
        self._studio.run.add_note(run, text, place.annotator, event, turn)
        return self.reload(place)
