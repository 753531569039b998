"""Dialogues: filtered lists, one dialogue, its group, its tokens, and its gold answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from app.common.known_values import check_dialogue_filters
from app.endpoints.endpoint import Endpoints, endpoint
from app.endpoints.teacher_prompt import TeacherPrompt, teacher_prompt
from app.endpoints.transcript import (
    DialogueDetail,
    dialogue_detail,
    fields_of,
    gold_answer,
    record_opened,
    token_texts,
)
from app.endpoints.types import MAX_LISTED_RUNS, Cursor, RunId
from jobs.db.dialogue_models import DialogueRow, DialogueSummary
from jobs.db.models import RunRef
from jobs.db.paging import LIMIT, Page, cursor_after
from jobs.db.queries import dialogues, runs
from jobs.db.queries.dialogues import DialogueFilter, DialogueView
from jobs.labels import label_queries
from jobs.labels.annotation_queue import HintKey
from rl2f_core import registry
from rl2f_core.errors import RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.types import FrozenModel, JsonObject

EventId = Annotated[str, Field(min_length=1, max_length=1000, description="Id of a dialogue; permanent in its run.")]
Annotator = Annotated[str, Field(max_length=200, description="Name of the annotator.")]
TurnIndex = Annotated[int, Field(ge=0, le=9_999, description="0-based turn.")]
Limit = Annotated[int, Field(ge=1, le=500)]
Target = Literal["first", "last", "next", "previous", "next_step", "previous_step"]
MAX_SIBLINGS = 100
MAX_STEP_PAGES, STEP_PAGE_SIZE = 50, 500
"""Pages, and dialogues per page, in which the next or previous step is searched."""
MAX_WELCOME_RUNS = 20
"""Number of newest runs in which a welcome dialogue is searched, without example runs."""


class DialogueRef(FrozenModel):
    """A dialogue."""

    run: int
    event_id: str


class Sibling(FrozenModel):
    """A dialogue of the same group, in short."""

    model_config = ConfigDict(from_attributes=True)
    event_id: str
    index: int
    """0-based position in the group."""
    solved_at: int | None
    """1-based turn of the correct attempt."""
    outcomes: str
    """One character per turn, see `list_dialogues`."""
    reward: float | None
    """Sum over turns; None if it is unknown."""


class DialogueWithSiblings(DialogueDetail):
    """A whole dialogue with its group in short."""

    siblings: list[Sibling]
    """The dialogues of its group."""


class DialogueFacets(FrozenModel):
    """Filter values of the dialogues of one run or of all, and the newest runs."""

    phases: list[str]
    """Phases."""
    stages: list[str]
    """Stages."""
    levels: list[str]
    """Difficulties."""
    environments: list[str]
    """Environments."""
    checkpoints: list[str]
    """Student's checkpoints."""
    conditions: list[str]
    """Conditions, arms and outcomes."""
    steps: tuple[int, int]
    """First and last step."""
    longest: int
    """Maximum number of turns."""
    measured: bool
    """A hint value is known."""
    runs: list[RunRef]
    """The newest runs."""
    version: int
    """Increases with every change of the run, or of any run."""


class PrivilegedData(FrozenModel):
    """Data of a dialogue that the student never sees."""

    gold_answer: str | None
    """None if the environment is not available."""
    privileged: JsonObject
    """The task's privileged data."""
    details: list[str]
    """The verifier's message on each attempt."""


class TokenRow(FrozenModel):
    """A sampled token."""

    id: int
    """Its number in the vocabulary."""
    text: str | None
    """None without a tokenizer on this machine."""
    logprob: float | None
    """Log-probability in nats; None if unknown."""


class TurnTokens(FrozenModel):
    """The student's tokens of a turn."""

    model: str
    """The base model."""
    tokens: list[TokenRow]
    """The tokens."""


class DialogueEndpoints(Endpoints):
    """Endpoints of the page *Dialogues*. A dialogue is identified by its run and its event id."""

    # -- lists -------------------------------------------------------------------------------------------------------
    @endpoint("read")
    def list_dialogues(
        self,
        filter: DialogueFilter | None = None,
        cursor: Cursor | None = None,
        newest_first: bool = False,
        limit: Limit = LIMIT,
    ) -> Page[DialogueSummary]:
        """List dialogues page by page.

        Args:
            filter: Conditions, e.g. `{"run": 3, "phase": "evaluation", "solved": "any"}`.
            cursor: `before` or `after` of another page; None for the first page.
            newest_first: Reverse the order.
            limit: Maximum number of rows.
        """
        db, chosen = self._context.db, filter or DialogueFilter()
        page = dialogues.page(db, chosen, cursor, limit, newest_first=newest_first)
        if not page.rows:
            check_dialogue_filters(db, [chosen])
        return page

    @endpoint("read")
    def locate_dialogue(
        self, run: RunId, event_id: EventId, filter: DialogueFilter | None = None
    ) -> Page[DialogueSummary]:
        """Return the page of a list that contains a dialogue.

        Args:
            run: The run of the dialogue; the page contains only dialogues of this run.
            filter: Conditions of the list, see `list_dialogues`.
        """
        chosen = (filter or DialogueFilter()).but(run=run)
        return dialogues.page_containing(self._context.db, chosen, event_id)

    @endpoint("read")
    def adjacent_dialogue(
        self, run: RunId, event_id: EventId, target: Target, filter: DialogueFilter | None = None
    ) -> DialogueSummary | None:
        """Return another dialogue of a list, relative to a dialogue; None if there is none.

        Args:
            run: The run of the dialogue.
            target: The list's first or last dialogue, the one directly after or before, or the first dialogue of the
                next or previous step. A step ends if phase, stage, step, checkpoint or condition changes.
            filter: Conditions of the list, see `list_dialogues`.
        """
        db, chosen = self._context.db, filter or DialogueFilter()
        back = target in ("last", "previous", "previous_step")
        rows: Sequence[DialogueRow]
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
        return rows[0] if rows else None

    def _adjacent(self, filter: DialogueFilter, origin: DialogueRow, back: bool) -> Sequence[DialogueRow]:
        position = dialogues.key_values(self._context.db, filter, origin.id or 0)
        if not position:
            return []
        return dialogues.page(self._context.db, filter, cursor_after(0, position), limit=1, newest_first=back).rows

    def _adjacent_step(self, filter: DialogueFilter, origin: DialogueRow, back: bool) -> list[DialogueRow]:
        """Return the first dialogue of the next or previous step of the origin's run, in chronological order."""
        found: DialogueRow | None = None
        for row in self._walk(filter.but(run=origin.run_id, order="played"), origin, back):
            if _step(row) == _step(origin):
                continue
            if not back:
                return [row]
            if found is not None and _step(row) != _step(found):
                break
            found = row
        return [] if found is None else [found]

    def _walk(self, filter: DialogueFilter, origin: DialogueRow, back: bool) -> Iterator[DialogueRow]:
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
        listed = runs.newest(db, MAX_LISTED_RUNS)
        return DialogueFacets(**dialogues.facets(db, run), runs=listed, version=runs.version(db, run))

    @endpoint("read")
    def default_dialogue_filter(self, run: RunId) -> DialogueFilter:
        """Return the filter of a run's own attempts: its latest evaluation, else its latest on-policy stage.

        The filter of a run with neither contains only the run, with demonstrations if it has no other dialogues.
        """
        db, own = self._context.db, DialogueFilter(run=run, without_controls=True)
        runs.get(db, run)
        evaluated = dialogues.page(db, own.but(phase="evaluation"), limit=1, newest_first=True).rows
        if evaluated:
            row = evaluated[0]
            place = {"stage": row.stage, "checkpoint": row.checkpoint or "", "condition": row.condition or ""}
            return DialogueFilter(run=run, phase="evaluation", **place)
        for stage in reversed(runs.stages(db, run)):
            filter = DialogueFilter(run=run, phase="train", stage=stage.name)
            if _is_on_policy(stage.method) and dialogues.page(db, filter, limit=1).rows:
                return filter
        with_demonstrations = DialogueFilter(run=run, demonstrations=True)
        only = dialogues.count(db, with_demonstrations) and not dialogues.count(db, DialogueFilter(run=run))
        return with_demonstrations if only else DialogueFilter(run=run)

    @endpoint("read")
    def welcome_dialogue(self) -> DialogueRef | None:
        """Return a dialogue to read first; None if there are no dialogues.

        It is one of an example run, else of the newest run with dialogues, that the student solved after two hints,
        else after one, else any.
        """
        db = self._context.db
        listed = runs.newest(db, MAX_LISTED_RUNS)
        examples = [row for row in listed if row.origin == "example"]
        for group in (examples, *([row] for row in listed[:MAX_WELCOME_RUNS])):
            filters = [self.default_dialogue_filter(row.id or 0) for row in group]
            for solved, filter in product(("3", "2", "any", ""), filters):
                found = dialogues.page(db, filter.but(solved=solved), limit=1).rows
                if found:
                    return DialogueRef(run=found[0].run_id, event_id=found[0].event_id)
        return None

    # -- one dialogue ------------------------------------------------------------------------------------------------
    @endpoint("read")
    def get_dialogue(self, run: RunId, event_id: EventId, annotator: Annotator = "") -> DialogueWithSiblings:
        """Return a dialogue with turns, hints, findings, labels and notes, and its group in short.

        Args:
            annotator: Name of the person who sees the findings. Later labels of this person are not blind.
        """
        db = self._context.db
        view = dialogues.get(db, run, event_id)
        self._record_opened([view], annotator)
        detail = dialogue_detail(runs.get(db, run), view)
        return DialogueWithSiblings(**fields_of(detail, DialogueDetail), siblings=self._siblings(view.row))

    def _siblings(self, row: DialogueRow) -> list[Sibling]:
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
        return [Sibling.model_validate(sibling) for sibling in rows]

    @endpoint("read")
    def dialogue_group(self, run: RunId, event_id: EventId, annotator: Annotator = "") -> list[DialogueDetail]:
        """Return all dialogues of a dialogue's group; for `annotator` see `get_dialogue`."""
        db = self._context.db
        view, owner = dialogues.get(db, run, event_id), runs.get(db, run)
        views = dialogues.group(db, run, view.row)
        self._record_opened(views, annotator)
        return [dialogue_detail(owner, shown) for shown in views]

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
        return PrivilegedData(
            gold_answer=gold_answer(runs.get(db, run), view.event.task),
            privileged=view.event.task.privileged,
            details=[turn.verdict.detail for turn in view.turns],
        )

    @endpoint("read")
    def teacher_prompt(self, run: RunId, event_id: EventId, turn: TurnIndex) -> TeacherPrompt:
        """Return the exact prompt of a model teacher before its hint, which may contain the gold answer.

        Args:
            turn: 0-based attempt that the hint follows.
        """
        db = self._context.db
        view, owner = dialogues.get(db, run, event_id), runs.get(db, run)
        view.hint(turn)
        return teacher_prompt(RunDir(self._context.workspace.folder(owner.folder)), view.event, turn)

    @endpoint("read")
    def dialogue_tokens(self, run: RunId, event_id: EventId, turn: TurnIndex) -> TurnTokens:
        """Return the student's tokens of a turn with their texts and log-probabilities."""
        db = self._context.db
        view, owner = dialogues.get(db, run, event_id), runs.get(db, run)
        found = view.turn(turn)
        ids, logprobs = found.token_ids, found.logprobs
        texts = token_texts(owner.model, ids)
        tokens = [
            TokenRow(id=token, text=texts[i] if texts else None, logprob=logprobs[i] if logprobs else None)
            for i, token in enumerate(ids)
        ]
        return TurnTokens(model=owner.model, tokens=tokens)


def _step(row: DialogueRow) -> tuple[str, str, int, str | None, str | None]:
    return row.phase, row.stage, row.step, row.checkpoint, row.condition


def _is_on_policy(method: str) -> bool:
    """Whether a method trains on the student's own dialogues; True if it is not registered here."""
    try:
        return bool(registry.get("method", method).on_policy)
    except RL2FError:
        return True
