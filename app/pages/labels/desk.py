"""Labeling of hints one by one: the queue of the page Labels, without its layout."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, cast

from app.common.urls import page_url
from app.components.elements.transcript import LABEL_TEXTS
from app.endpoints.dialogues import PrivilegedData
from app.endpoints.leaks.detectors import ReportScope, UnlockedReport
from app.endpoints.leaks.labels import HintRef, HintToLabel, LabelingProgress
from app.endpoints.studio import Studio
from app.endpoints.types import validated
from jobs.db.models import LabelSummary
from jobs.labels.annotation_queue import QueueFilter
from jobs.labels.label_queries import LabelAnswer
from rl2f_core.common.text.integers import whole_number
from rl2f_core.errors import RL2FError
from rl2f_core.types import JsonObject

SAMPLES = ("stratified", "random_unflagged")
PAGE = 20
CHOOSE = "Choose first: 1 leak, 2 no leak, 3 unsure."
NO_NAME = "Type your name and press Enter first."


@dataclass(frozen=True)
class LabelForm:
    """The fields of the page in their order."""

    view: str = "queue"
    """`queue`, `report`, `fit` or `benchmark`."""
    annotator: str = ""
    selection: str = "stratified"
    run: str = ""
    environment: str = ""
    source: str = "run"
    size: int | None = 200
    seed: int | None = 0
    unlabeled_only: bool = False
    show_findings: bool = False
    include_controls: bool = False
    usd: float = 0.0
    """Budget of the recommended cascade, in US dollars per 1,000 hints; 0 means without a model."""
    speed: float = 0.0
    """Its minimum of hints per second."""
    precision: float = 0.9
    """Its minimum precision."""

    @property
    def is_sample(self) -> bool:
        """The queue is a random sample."""
        return self.selection in SAMPLES

    @property
    def is_blind(self) -> bool:
        """Findings are hidden until the hint is labeled."""
        return not self.show_findings and self.selection != "flagged"

    def queue(self) -> QueueFilter:
        """Return the queue as an argument of endpoints."""
        values: JsonObject = {
            **self.scope().model_dump(exclude={"group_by"}),
            "selection": self.selection,
            "unlabeled_only": self.unlabeled_only,
            "size": self.size or LabelForm.size,
            "seed": self.seed or 0,
        }
        return validated(QueueFilter, values)

    def url(self, **changes: str | bool) -> str:
        """Return the address of the page with these fields changed."""
        values = vars(replace(self, **cast(JsonObject, changes)))
        changed = {name: value for name, value in values.items() if value != getattr(LabelForm, name)}
        return page_url("labels", **{name: "1" if value is True else value for name, value in changed.items()})

    def budget(self) -> JsonObject:
        """Return the arguments of the recommendation."""
        return {
            "usd_per_1000_hints": self.usd,
            "min_hints_per_second": self.speed,
            "min_precision": self.precision,
        }

    def scope(self, **changes: object) -> ReportScope:
        """Return the scope of the detector report, with changes."""
        values = {
            "run": whole_number(self.run, None),
            "environment": self.environment,
            "source": self.source or "run",
            "include_controls": self.include_controls,
        }
        return validated(ReportScope, {**values, **changes})


@dataclass(frozen=True)
class Draft:
    """A marked span and a note that may not be saved yet."""

    start: int | None = None
    end: int | None = None
    note: str = ""

    @classmethod
    def of_event(cls, data: JsonObject) -> Draft:
        """Return what the `LabelCard` reports with a click."""
        return cls(data.get("start"), data.get("end"), data.get("note") or "")


@dataclass
class Desk:
    """What a tab of the browser shows."""

    items: list[HintRef] = field(default_factory=list)
    """The hints of the queue that were read, in its order."""
    at: int = -1
    hint: HintToLabel | None = None
    """None at the end of the queue."""
    progress: LabelingProgress = field(default_factory=lambda: LabelingProgress(labeled=0, total=0, is_capped=False))
    revealed: PrivilegedData | None = None
    message: str = ""
    error: RL2FError | None = None
    test: UnlockedReport | None = None
    """The report on the test set while it is unlocked."""
    place: HintRef | None = None
    """The hint to which the queue returns from another view."""
    has_sources: bool = False
    """There are findings of rescore runs."""


def place_of(hint: HintRef | HintToLabel | LabelSummary) -> HintRef:
    """Return the key of a hint."""
    if isinstance(hint, LabelSummary):
        return HintRef(run=hint.run_id, event_id=hint.event_id, turn=hint.turn)
    return HintRef(run=hint.run, event_id=hint.event_id, turn=hint.turn)


class Labeling:
    """Moves through a queue of hints and labels them.

    Args:
        studio: The endpoints.
        form: The fields of the page.
        desk: The state of the tab; it is changed.
    """

    def __init__(self, studio: Studio, form: LabelForm, desk: Desk) -> None:
        self._labels, self._dialogues = studio.labels, studio.dialogues
        self.form, self.desk = form, desk

    def start(self, place: HintRef | None = None) -> None:
        """Show a hint, by default the first one without a label of the annotator."""
        desk, form, queue = self.desk, self.form, self.form.queue()
        found = self._labels.next_hints_to_label(form.annotator, queue, after=place, limit=PAGE)
        desk.progress = found
        hints, first = found.hints, 0
        desk.items = [*([place] if place else []), *map(place_of, hints)]
        if place is None and hints:
            unlabeled = [i for i, hint in enumerate(hints) if hint.label is None]
            first = unlabeled[0] if unlabeled else self._beyond_labeled(queue)
        desk.at = -1
        if desk.items:
            self.show(first)

    def _beyond_labeled(self, queue: QueueFilter) -> int:
        """Continue after a first page of labeled hints; return the index of the hint to show."""
        unlabeled = queue.model_copy(update={"unlabeled_only": True})
        found = self._labels.next_hints_to_label(self.form.annotator, unlabeled, limit=1)
        if found.hints:
            self.desk.items = [place_of(found.hints[0])]
        return 0

    def show(self, index: int) -> None:
        """Show the hint of this index."""
        desk, item = self.desk, self.desk.items[index]
        desk.at, desk.revealed = index, None
        desk.hint = self._labels.hint_to_label(**dict(item), annotator=self.form.annotator, blind=self.form.is_blind)

    def _extend(self, side: Literal["after", "before"]) -> int:
        """Read more of the queue; return the number of new hints."""
        desk = self.desk
        if not desk.items:
            return 0
        end: Any = {side: desk.items[-1 if side == "after" else 0]}
        found = self._labels.next_hints_to_label(self.form.annotator, self.form.queue(), **end, limit=PAGE)
        desk.progress = found
        new = [place for place in map(place_of, found.hints) if place not in desk.items]
        desk.items = [*desk.items, *new] if side == "after" else [*new, *desk.items]
        return len(new)

    # -- moves ---------------------------------------------------------------------------------------------------------
    def next(self, draft: Draft | None) -> None:
        """Save edits of a label and show the next hint, or the end of the queue."""
        desk = self.desk
        self._save_edits(draft)
        if desk.hint is None:
            return
        if desk.at + 1 < len(desk.items) or self._extend("after"):
            self.show(desk.at + 1)
        else:
            desk.hint = None

    def previous(self, draft: Draft | None) -> None:
        """Save edits of a label and show the previous hint."""
        desk = self.desk
        self._save_edits(draft)
        if not desk.items:
            return
        if desk.hint is None:
            self.show(len(desk.items) - 1)
            return
        if desk.at == 0:
            desk.at = self._extend("before")
        if desk.at > 0:
            self.show(desk.at - 1)
        else:
            desk.message = "This is the first hint."

    def save_and_next(self, draft: Draft) -> None:
        """Save the label with the draft and show the next hint."""
        if self.desk.hint is None:
            return
        if self.desk.hint.own_label is None:
            self.desk.message = CHOOSE
        else:
            self.next(draft)

    def _save_edits(self, draft: Draft | None) -> None:
        own = self.desk.hint.own_label if self.desk.hint else None
        if own and draft and (draft.start, draft.end, draft.note.strip()) != (own.start, own.end, own.note):
            self.give(own.label, draft)

    # -- labels --------------------------------------------------------------------------------------------------------
    def give(self, label: str, draft: Draft) -> None:
        """Label the hint."""
        desk, form, hint = self.desk, self.form, self.desk.hint
        if hint is None:
            return
        if not form.annotator:
            desk.message = NO_NAME
            return
        desk.hint = self._labels.label_hint(
            **dict(place_of(hint)),
            annotator=form.annotator,
            answer=validated(LabelAnswer, {"label": label, **asdict(draft)}),
            queue=form.queue() if form.is_sample else None,
        )
        desk.progress = self._labels.labeling_progress(form.annotator, form.queue())

    def undo(self) -> None:
        """Undo the annotator's last label and show its hint."""
        desk, annotator = self.desk, self.form.annotator
        removed = self._labels.undo_label(annotator).removed if annotator else None
        if removed is None:
            desk.message = "Nothing is left to undo." if annotator else NO_NAME
            return
        place = place_of(removed)
        if place not in desk.items:
            desk.items.insert(max(desk.at, 0), place)
        self.show(desk.items.index(place))
        desk.message = f"Undone: {LABEL_TEXTS[removed.label]}."
        desk.progress = self._labels.labeling_progress(annotator, self.form.queue())

    def reveal(self) -> None:
        """Show the gold answer."""
        if self.desk.hint is not None:
            self.desk.revealed = self._dialogues.reveal_answer(self.desk.hint.run, self.desk.hint.event_id)
