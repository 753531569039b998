"""Labels of hints: the annotation queue, hints without their findings, answers, undo.

The findings of a hint and the labels of others are returned only to a named annotator: after the answer, or if `blind`
is False. The server records who has opened them; labels of that annotator are not blind from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from app.common.known_values import check_environment
from app.endpoints.dialogues import Annotator, EventId, TurnIndex
from app.endpoints.endpoint import Endpoints, Flat, endpoint
from app.endpoints.transcript import (
    Findings,
    TaskPrompt,
    findings,
    record_opened,
    task_prompt,
)
from app.endpoints.types import MAX_LISTED_RUNS, RunId
from jobs.db.models import LabelSummary, LeakLabel, RunRef
from jobs.db.queries import dialogues, runs
from jobs.labels import annotation_queue, holdout, label_queries, report_queries
from jobs.labels.annotation_queue import HintKey, QueueFilter
from jobs.labels.label_queries import LabelAnswer
from rl2f_core.errors import ConfigError
from rl2f_core.types import FrozenModel, JsonObject

Source = Annotated[
    str, Field(max_length=20, description="Findings made during the runs (`run`), or by the rescore run with this id.")
]


class HintRef(FrozenModel):
    """A hint."""

    run: RunId
    event_id: EventId
    turn: TurnIndex


class QueuedHint(HintRef):
    """A hint of a queue, without its findings."""

    level: str
    label: str | None
    """The annotator's own label."""


class LabelingProgress(FrozenModel):
    """Labeled hints of a queue."""

    labeled: int
    """Number of labeled hints."""
    total: int
    """Number of hints."""
    is_capped: bool
    """There are more hints than `total`."""


class QueuePage(LabelingProgress):
    """Consecutive hints of a queue."""

    hints: list[QueuedHint]
    """The hints."""


class EarlierTurn(FrozenModel):
    """A turn up to a hint."""

    index: TurnIndex
    attempt: str
    """The student's message."""
    outcome: str
    """`1` correct, `0` incorrect, `?` unparsable, `-` no verdict."""
    hint: str | None
    """None in the turn of the hint to label."""


class HintToLabel(FrozenModel):
    """A hint with its dialogue up to it."""

    run: RunId
    event_id: EventId
    turn: TurnIndex
    dialogue_id: str
    """Id of the dialogue in its run."""
    environment: str
    level: str
    length: int
    """Number of turns of the dialogue."""
    prompt: TaskPrompt
    """The text of the task."""
    turns: list[EarlierTurn]
    """The turns up to the hint."""
    feedback: str
    """The teacher's message."""
    teacher: str | None
    """Name of the teacher."""
    own_label: LabelSummary | None
    """The annotator's label."""
    uncounted: str | None
    """Why that label does not count in estimates of the detector report; empty if it counts, None without a label."""
    is_held_out: bool
    """The task is in the test set, whose labels count only in its own report."""
    is_open: bool
    """The next three fields are known; None otherwise."""
    findings: Findings | None
    """The detector findings."""
    hint: str | None
    """The message in the student's prompt; a leak action may have changed it."""
    other_labels: Sequence[LabelSummary] | None
    """Labels of other annotators."""


class UndoneLabel(FrozenModel):
    """A removed label."""

    removed: LabelSummary | None
    """None if no change was left."""
    labels: Sequence[LabelSummary]
    """The labels that the hint has now."""


class LabelChoices(FrozenModel):
    """Filter values of the queue."""

    runs: list[RunRef]
    """The newest runs."""
    environments: list[str]
    """Environments of all runs."""
    annotators: list[str]
    """Names of all annotators."""


class LabelEndpoints(Endpoints):
    """Endpoints of the page *Labels*."""

    @endpoint("read")
    def next_hints_to_label(
        self,
        annotator: Annotator = "",
        queue: QueueFilter | None = None,
        after: HintRef | None = None,
        before: HintRef | None = None,
        limit: Annotated[int, Field(ge=1, le=50)] = 20,
    ) -> QueuePage:
        """Return hints to label and the annotator's progress.

        A queue of flagged hints tells a finding of each, so it opens them for the annotator.

        Args:
            annotator: The annotator's name; without one, all hints are unlabeled.
            queue: The hints to label.
            after: Return the hints directly after this one; by default the first ones.
            before: Return the hints directly before this one instead.
            limit: Maximum number of hints.
        """
        if after is not None and before is not None:
            raise ConfigError("`after` and `before` exclude each other.", fix="Pass only one of them.")
        name, chosen = _name(annotator), self._filter(queue)
        place = {"after": _key(after), "before": _key(before)}
        items = annotation_queue.queue(self._context.db, name, chosen, limit, **place)
        if chosen.selection == "flagged":
            record_opened(self._context, [item.key for item in items], name)
        hints = [QueuedHint(**hint_ref(queued.key), level=queued.level, label=queued.label) for queued in items]
        return QueuePage(hints=hints, **dict(self._progress(name, chosen)))

    @endpoint("read")
    def labeling_progress(self, annotator: Annotator = "", queue: QueueFilter | None = None) -> LabelingProgress:
        """Return how many hints of a queue the annotator has labeled."""
        return self._progress(_name(annotator), self._filter(queue))

    def _progress(self, annotator: str, filter: QueueFilter) -> LabelingProgress:
        labeled, total = annotation_queue.progress(self._context.db, annotator, filter)
        return LabelingProgress(labeled=labeled, total=total, is_capped=total > annotation_queue.COUNT_LIMIT)

    @endpoint("read")
    def hint_to_label(
        self, run: RunId, event_id: EventId, turn: TurnIndex, annotator: Annotator = "", blind: bool = True
    ) -> HintToLabel:
        """Return a hint with its dialogue up to it.

        Args:
            blind: Leave out findings and labels of others until the annotator has labeled the hint. If False, the
                server records that the annotator, who must be named, has opened them.
        """
        return self._hint(HintKey(run, event_id, turn), annotator, blind)

    @endpoint("label")
    def label_hint(
        self,
        run: RunId,
        event_id: EventId,
        turn: TurnIndex,
        annotator: Annotator,
        answer: Flat[LabelAnswer],
        queue: QueueFilter | None = None,
    ) -> HintToLabel:
        """Label a hint; return it with its findings and the labels of others.

        The label is blind if the annotator has not opened the findings before.

        Args:
            annotator: The annotator's name; an earlier label of the annotator is replaced.
            answer: The label.
            queue: The queue of the hint. A label counts in the detector report's estimates if the queue is a random
                sample.
        """
        chosen = None if queue is None else self._filter(queue)
        dialogues.get(self._context.db, run, event_id).hint(turn)
        label_queries.put(self._context.db, run, event_id, turn, annotator, answer, chosen)
        return self._hint(HintKey(run, event_id, turn), annotator, blind=True)

    @endpoint("label")
    def undo_label(self, annotator: Annotator) -> UndoneLabel:
        """Undo the annotator's last change of a label; an earlier label of the hint is restored."""
        removed = label_queries.undo(self._context.db, annotator)
        if removed is None:
            return UndoneLabel(removed=None, labels=[])
        labels = label_queries.of_hint(self._context.db, removed.run_id, removed.event_id, removed.turn)
        return UndoneLabel(removed=removed, labels=labels)

    @endpoint("read")
    def list_labels(self, run: RunId, event_id: EventId, turn: TurnIndex) -> Sequence[LabelSummary]:
        """List all labels of a hint by annotator."""
        dialogues.get(self._context.db, run, event_id).hint(turn)
        return label_queries.of_hint(self._context.db, run, event_id, turn)

    @endpoint("read")
    def list_annotators(self) -> list[str]:
        """List the names of all annotators."""
        return label_queries.annotators(self._context.db)

    @endpoint("read")
    def label_choices(self) -> LabelChoices:
        """List the runs, environments and annotators that a queue can be filtered by."""
        db = self._context.db
        return LabelChoices(
            runs=runs.newest(db, MAX_LISTED_RUNS),
            environments=runs.facets(db)["environments"],
            annotators=label_queries.annotators(db),
        )

    def _filter(self, queue: QueueFilter | None) -> QueueFilter:
        filter = queue or QueueFilter()
        check_environment(self._context.db, filter.environment)
        report_queries.source(self._context.db, filter.source)
        if filter.run is not None:
            runs.get(self._context.db, filter.run)
        return filter

    def _hint(self, key: HintKey, annotator: str, blind: bool) -> HintToLabel:
        db, name = self._context.db, _name(annotator)
        view = dialogues.get(db, key.run, key.event)
        turns, hint = view.turns[: key.turn + 1], view.hint(key.turn)
        labels, task = view.labels[key.turn], view.event.task
        own = next((label for label in labels if label.annotator == name), None)
        is_open = own is not None or (not blind and bool(name))
        if is_open:
            record_opened(self._context, [key], name)
        return HintToLabel(
            **hint_ref(key),
            **{name: getattr(view.row, name) for name in ("dialogue_id", "environment", "level", "length")},
            prompt=task_prompt(runs.get(db, key.run), task),
            turns=[
                EarlierTurn(
                    index=turn.index,
                    attempt=turn.attempt,
                    outcome=turn.verdict.outcome,
                    hint=turn.hint.text if turn.hint is not None and turn.index < key.turn else None,
                )
                for turn in turns
            ],
            feedback=hint.feedback,
            teacher=hint.teacher,
            own_label=own,
            uncounted=None if own is None else _uncounted(own),
            is_held_out=holdout.is_test(holdout.task_hash(task.environment, task.public, task.privileged)),
            is_open=is_open,
            findings=findings(view, turns[-1]) if is_open else None,
            hint=hint.text if is_open else None,
            other_labels=[label for label in labels if label is not own] if is_open else None,
        )


def _name(annotator: str) -> str:
    """Return the normalized name; empty if it is blank."""
    return label_queries.annotator_name(annotator) if annotator.strip() else ""


def _uncounted(label: LeakLabel) -> str:
    if label.label == "unsure":
        return "unsure"
    if not label.blind:
        return "not blind: you had seen the findings"
    return "" if label.sampling_frame else "chosen by hand, not from a random sample"


def hint_ref(key: HintKey) -> JsonObject:
    """Return the fields of a `HintRef`."""
    return {"run": key.run, "event_id": key.event, "turn": key.turn}


def _key(hint: HintRef | None) -> HintKey | None:
    return None if hint is None else HintKey(hint.run, hint.event_id, hint.turn)
