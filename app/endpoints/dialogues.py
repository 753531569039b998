"""Dialogues: filtered lists, one dialogue, its group, its tokens, its gold answer, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Literal, cast

from pydantic import Field, with_config
from typing_extensions import TypedDict

from app.common.context import Context
from app.common.known_values import check_dialogue_filters
from app.endpoints.endpoint import endpoint
from app.endpoints.teacher_prompt import TeacherPrompt, teacher_prompt
from app.endpoints.transcript import (
    DialogueDetail,
    DialogueRow,
    NoteRow,
    columns,
    dialogue_detail,
    dialogue_row,
    gold_answer,
    record_opened,
    token_texts,
)
from app.endpoints.types import RunId
from jobs.db.errors import NotFoundError
from jobs.db.models import DialogueRow as StoredRow
from jobs.db.paging import LIMIT, Page, cursor_after
from jobs.db.queries import dialogues, notes, runs
from jobs.db.queries.dialogues import DialogueFilter, DialogueView
from jobs.labels import label_queries
from jobs.labels.annotation_queue import HintKey
from rl2f_core import registry
from rl2f_core.errors import RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import Phase
from rl2f_core.types import JsonObject, Turn

Text = Annotated[str, Field(max_length=1000)]
EventId = Annotated[str, Field(min_length=1, max_length=1000, description="Id of a dialogue; permanent in its run.")]
Step = Annotated[int, Field(ge=0, le=2**31 - 1)]
Annotator = Annotated[str, Field(max_length=200, description="Name of the annotator.")]
TurnIndex = Annotated[int, Field(ge=0, le=9_999, description="0-based turn.")]
RewardBound = Annotated[float, Field(allow_inf_nan=False)]
Cursor = Annotated[str, Field(max_length=1000)]
Limit = Annotated[int, Field(ge=1, le=500)]
Target = Literal["first", "last", "next", "previous", "next_step", "previous_step"]
MAX_LISTED_RUNS = 200
MAX_SIBLINGS = 100
MAX_STEP_PAGES, STEP_PAGE_SIZE = 50, 500
"""Pages, and dialogues per page, in which the next or previous step is searched."""
MAX_WELCOME_RUNS = 20
"""Number of newest runs in which a welcome dialogue is searched, without example runs."""


@with_config(extra="forbid")
class DialogueFilters(TypedDict, total=False):
    """Conditions on dialogues, all optional; see `jobs.db.queries.dialogues.DialogueFilter`."""

    run: RunId | None
    phase: Literal[Phase, ""]
    stage: Text
    step_from: Step | None
    step_to: Step | None
    environment: Text
    level: Text
    checkpoint: Text
    condition: Text
    without_controls: bool
    """Exclude control conditions."""
    demonstrations: bool
    """Include demonstrations, which no model sampled. A chosen stage or group includes its demonstrations."""
    solved: Annotated[str, Field(pattern=r"^(never|any|unknown|[1-9][0-9]{0,3})?$")]
    """`never`, `any`, `unknown` (no verdict), or the 1-based turn of the first correct attempt."""
    reward_from: RewardBound | None
    reward_to: RewardBound | None
    leak_state: Annotated[int, Field(ge=0, le=2)] | None
    """0 unchecked, 1 checked without leak, 2 at least one hint leaked."""
    labeled: bool | None
    error: bool
    """Only dialogues that ended with an error."""
    group: Text
    task: Text
    order: Literal["played", "reward", "-reward", "hint_value", "-hint_value"]
    """Chronological, by reward, or by best hint value, which excludes dialogues without a measured hint."""
    search: Text
    """Words and `"phrases"` that must all occur in attempts, hints or task."""


class DialoguePage(TypedDict):
    """A page of a list of dialogues."""

    rows: list[DialogueRow]
    total: int | None
    """Number of dialogues in the list."""
    before: str | None
    """Cursor of the previous page; None on the first page."""
    after: str | None
    """Cursor of the next page; None on the last page."""
    first: int
    """1-based position of the first row in the list."""


class DialogueRef(TypedDict):
    """A dialogue."""

    run: int
    event_id: str


class Sibling(TypedDict):
    """A dialogue of the same group, in short."""

    event_id: str
    index: int
    solved_at: int | None
    outcomes: str
    reward: float | None


class DialogueWithSiblings(DialogueDetail):
    """A whole dialogue with its group in short."""

    siblings: list[Sibling]


class DialogueRun(TypedDict):
    """A run in the filter of dialogues."""

    id: int
    name: str
    status: str
    environment: str
    kind: str
    method: str


class DialogueFacets(TypedDict):
    """Filter values of the dialogues of one run or of all, and the newest runs."""

    phases: list[str]
    stages: list[str]
    levels: list[str]
    environments: list[str]
    checkpoints: list[str]
    conditions: list[str]
    steps: tuple[int, int]
    """First and last step."""
    longest: int
    """Maximum number of turns."""
    measured: bool
    """A hint value is known."""
    runs: list[DialogueRun]
    version: int
    """See `jobs.db.queries.runs.version`."""


class PrivilegedData(TypedDict):
    """Data of a dialogue that the student never sees."""

    gold_answer: str | None
    """None if the environment is not available."""
    privileged: JsonObject
    """The task's privileged data."""
    details: list[str]
    """The verifier's message on each attempt."""


class TokenRow(TypedDict):
    """A sampled token."""

    id: int
    text: str | None
    """None without a tokenizer on this machine."""
    logprob: float | None
    """Log-probability in nats; None if unknown."""


class TurnTokens(TypedDict):
    """The student's tokens of a turn."""

    model: str
    tokens: list[TokenRow]


class DialogueEndpoints:
    """Endpoints of the page *Dialogues*. A dialogue is identified by its run and its event id.

    Args:
        context: The workspace and its services.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    # -- lists -------------------------------------------------------------------------------------------------------
    @endpoint("read")
    def list_dialogues(
        self,
        filter: DialogueFilters | None = None,
        cursor: Cursor | None = None,
        newest_first: bool = False,
        limit: Limit = LIMIT,
    ) -> DialoguePage:
        """List dialogues page by page.

        Args:
            filter: Conditions, e.g. `{"run": 3, "phase": "evaluation", "solved": "any"}`.
            cursor: `before` or `after` of another page; None for the first page.
            newest_first: Reverse the order.
            limit: Maximum number of rows.
        """
        db, chosen = self._context.db, _filter(filter)
        page = dialogues.page(db, chosen, cursor, limit, newest_first=newest_first)
        if not page.rows:
            check_dialogue_filters(db, [chosen])
        return _page(page)

    @endpoint("read")
    def locate_dialogue(self, run: RunId, event_id: EventId, filter: DialogueFilters | None = None) -> DialoguePage:
        """Return the page of a list that contains a dialogue.

        Args:
            run: The run of the dialogue; the page contains only dialogues of this run.
            event_id: The dialogue.
            filter: Conditions of the list, see `list_dialogues`.
        """
        return _page(dialogues.page_containing(self._context.db, replace(_filter(filter), run=run), event_id))

    @endpoint("read")
    def adjacent_dialogue(
        self, run: RunId, event_id: EventId, target: Target, filter: DialogueFilters | None = None
    ) -> DialogueRow | None:
        """Return another dialogue of a list, relative to a dialogue; None if there is none.

        Args:
            run: The run of the dialogue.
            event_id: The dialogue.
            target: The list's first or last dialogue, the one directly after or before, or the first dialogue of the
                next or previous step. A step ends if phase, stage, step, checkpoint or condition changes.
            filter: Conditions of the list, see `list_dialogues`.
        """
        db, chosen = self._context.db, _filter(filter)
        back = target in ("last", "previous", "previous_step")
        if target in ("first", "last"):
            rows = dialogues.page(db, chosen, limit=1, newest_first=back).rows
        else:
            origin = dialogues.get(db, run, event_id).row
            if target in ("next_step", "previous_step"):
                rows = self._adjacent_step(chosen, origin, back)
            else:
                rows = self._adjacent(chosen, origin, back)
        if not rows:
            check_dialogue_filters(db, [chosen])
        return dialogue_row(rows[0]) if rows else None

    def _adjacent(self, filter: DialogueFilter, origin: StoredRow, back: bool) -> list[StoredRow]:
        position: list[object] = [origin.id]
        if filter.order != "played":
            if origin.best_hint_value is None:
                return []
            position = [origin.best_hint_value, origin.id]
        return dialogues.page(self._context.db, filter, cursor_after(0, position), limit=1, newest_first=back).rows

    def _adjacent_step(self, filter: DialogueFilter, origin: StoredRow, back: bool) -> list[StoredRow]:
        """Return the first dialogue of the next or previous step of the origin's run, in chronological order."""
        found: StoredRow | None = None
        for row in self._walk(replace(filter, run=origin.run_id, order="played"), origin, back):
            if _step(row) == _step(origin):
                continue
            if not back:
                return [row]
            if found is not None and _step(row) != _step(found):
                break
            found = row
        return [] if found is None else [found]

    def _walk(self, filter: DialogueFilter, origin: StoredRow, back: bool) -> Iterator[StoredRow]:
        """Yield the dialogues of a list after or before `origin`, at most `MAX_STEP_PAGES` pages."""
        cursor: str | None = cursor_after(0, [origin.id])
        for _ in range(MAX_STEP_PAGES):
            page = dialogues.page(self._context.db, filter, cursor, limit=STEP_PAGE_SIZE, newest_first=back)
            yield from page.rows
            cursor = page.after
            if cursor is None:
                return

    @endpoint("read")
    def dialogue_facets(self, run: RunId | None = None) -> DialogueFacets:
        """Return the filter values of the dialogues of one run or of all, and the newest runs."""
        db = self._context.db
        facets = dialogues.facets(db, run)
        listed = [columns(row, DialogueRun) for row in runs.page(db, limit=MAX_LISTED_RUNS).rows]
        return cast(DialogueFacets, {**facets, "runs": listed, "version": runs.version(db, run)})

    @endpoint("read")
    def default_dialogue_filter(self, run: RunId) -> DialogueFilters:
        """Return the filter of a run's own attempts: its latest evaluation, else its latest on-policy stage.

        The filter of a run with neither contains only the run, with demonstrations if it has no other dialogues.
        """
        db, own = self._context.db, DialogueFilter(run=run, without_controls=True)
        runs.get(db, run)
        evaluated = dialogues.page(db, replace(own, phase="evaluation"), limit=1, newest_first=True).rows
        if evaluated:
            row = evaluated[0]
            filter: DialogueFilters = {"run": run, "phase": "evaluation", "stage": row.stage}
            return {**filter, "checkpoint": row.checkpoint or "", "condition": row.condition or ""}
        for stage in reversed(runs.stages(db, run)):
            filter = {"run": run, "phase": "train", "stage": stage.name}
            if _is_on_policy(stage.method) and dialogues.page(db, _filter(filter), limit=1).rows:
                return filter
        with_demonstrations = DialogueFilter(run=run, demonstrations=True)
        only = dialogues.count(db, with_demonstrations) and not dialogues.count(db, DialogueFilter(run=run))
        return {"run": run, "demonstrations": True} if only else {"run": run}

    @endpoint("read")
    def welcome_dialogue(self) -> DialogueRef | None:
        """Return a dialogue to read first; None if there are no dialogues.

        It is one of an example run, else of the newest run with dialogues, that the student solved after two hints,
        else after one, else any.
        """
        db = self._context.db
        listed = runs.page(db, limit=MAX_LISTED_RUNS).rows
        examples = [row for row in listed if row.origin == "example"]
        for group in (examples, *([row] for row in listed[:MAX_WELCOME_RUNS])):
            filters = [_filter(self.default_dialogue_filter(row.id or 0)) for row in group]
            for solved, filter in product(("3", "2", "any", ""), filters):
                found = dialogues.page(db, replace(filter, solved=solved), limit=1).rows
                if found:
                    return {"run": found[0].run_id, "event_id": found[0].event_id}
        return None

    # -- one dialogue ------------------------------------------------------------------------------------------------
    @endpoint("read")
    def get_dialogue(self, run: RunId, event_id: EventId, annotator: Annotator = "") -> DialogueWithSiblings:
        """Return a dialogue with turns, hints, findings, labels and notes, and its group in short.

        Args:
            run: The run.
            event_id: The dialogue.
            annotator: Name of the person who sees the findings. Later labels of this person are not blind.
        """
        db = self._context.db
        view = dialogues.get(db, run, event_id)
        self._record_opened([view], annotator)
        return {**dialogue_detail(runs.get(db, run), view), "siblings": self._siblings(view.row)}

    def _siblings(self, row: StoredRow) -> list[Sibling]:
        same = DialogueFilter(
            run=row.run_id,
            phase=row.phase,
            stage=row.stage,
            step_from=row.step,
            step_to=row.step,
            checkpoint=row.checkpoint or "",
            condition=row.condition or "",
            group=row.group,
        )
        rows = dialogues.page(self._context.db, same, limit=MAX_SIBLINGS).rows
        return [columns(each, Sibling) for each in rows]

    @endpoint("read")
    def dialogue_group(self, run: RunId, event_id: EventId, annotator: Annotator = "") -> list[DialogueDetail]:
        """Return all dialogues of a dialogue's group; for `annotator` see `get_dialogue`."""
        db = self._context.db
        view, owner = dialogues.get(db, run, event_id), runs.get(db, run)
        views = dialogues.group(db, run, view.row)
        self._record_opened(views, annotator)
        return [dialogue_detail(owner, each) for each in views]

    def _record_opened(self, views: Sequence[DialogueView], annotator: str) -> None:
        """Record that an annotator sees the findings of all hints."""
        if not annotator.strip():
            return
        hints = [
            HintKey(view.row.run_id, view.row.event_id, turn.index)
            for view in views
            for turn in view.turns
            if turn.hint is not None
        ]
        record_opened(self._context, hints, label_queries.annotator_name(annotator))

    @endpoint("read")
    def reveal_answer(self, run: RunId, event_id: EventId) -> PrivilegedData:
        """Return what the student never sees: the gold answer, the privileged data and the verifier's messages."""
        db = self._context.db
        view = dialogues.get(db, run, event_id)
        return {
            "gold_answer": gold_answer(runs.get(db, run), view.event.task),
            "privileged": view.event.task.privileged,
            "details": [turn.verdict.detail for turn in view.turns],
        }

    @endpoint("read")
    def teacher_prompt(self, run: RunId, event_id: EventId, turn: TurnIndex) -> TeacherPrompt:
        """Return the exact prompt of a model teacher before its hint, which may contain the gold answer.

        Args:
            run: The run.
            event_id: The dialogue.
            turn: 0-based attempt that the hint follows.
        """
        db = self._context.db
        view, owner = dialogues.get(db, run, event_id), runs.get(db, run)
        if _turn(view, turn).hint is None:
            raise NotFoundError("This attempt has no hint.", value=turn)
        return teacher_prompt(RunDir(self._context.workspace.folder(owner.folder)), view.event, turn)

    @endpoint("read")
    def dialogue_tokens(self, run: RunId, event_id: EventId, turn: TurnIndex) -> TurnTokens:
        """Return the student's tokens of a turn with their texts and log-probabilities."""
        db = self._context.db
        view, owner = dialogues.get(db, run, event_id), runs.get(db, run)
        found = _turn(view, turn)
        ids, logprobs = found.token_ids, found.logprobs
        texts = token_texts(owner.model, ids)
        tokens: list[TokenRow] = [
            {"id": token, "text": texts[i] if texts else None, "logprob": logprobs[i] if logprobs else None}
            for i, token in enumerate(ids)
        ]
        return {"model": owner.model, "tokens": tokens}

    # -- notes -------------------------------------------------------------------------------------------------------
    @endpoint("label")
    def add_dialogue_note(
        self,
        run: RunId,
        event_id: EventId,
        text: Annotated[str, Field(max_length=notes.MAX_CHARS)],
        turn: TurnIndex | None = None,
        author: Annotated[str, Field(max_length=60)] = "",
    ) -> NoteRow:
        """Add a note to a dialogue, or to one of its turns."""
        return columns(notes.add(self._context.db, run, text, author, event_id, turn), NoteRow)

    @endpoint("label")
    def delete_dialogue_note(self, note: Annotated[int, Field(ge=1, le=2**31 - 1)]) -> None:
        """Delete a note."""
        notes.delete(self._context.db, note)


def _filter(filter: DialogueFilters | None) -> DialogueFilter:
    return DialogueFilter(**(filter or {}))


def _page(page: Page[StoredRow]) -> DialoguePage:
    return columns(page, DialoguePage, rows=[dialogue_row(row) for row in page.rows])


def _turn(view: DialogueView, turn: int) -> Turn:
    turns = view.turns
    if turn >= len(turns):
        known = [str(index) for index in range(len(turns))]
        raise NotFoundError("The dialogue has no such turn.", value=turn, known=known)
    return turns[turn]


def _step(row: StoredRow) -> tuple[str, str, int, str | None, str | None]:
    return row.phase, row.stage, row.step, row.checkpoint, row.condition


def _is_on_policy(method: str) -> bool:
    """Whether a method trains on the student's own dialogues; True if it is not registered here."""
    try:
        return bool(registry.get("method", method).on_policy)
    except RL2FError:
        return True
