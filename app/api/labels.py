"""The label queue's data. What a detector said is sent only once the labeller has answered, or asks for it."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from app.api._problem import shown
from app.api._views import finding_json, label_json
from app.api.dialogues import BIG, Number, Text
from jobs import agreement
from jobs.errors import NotFound
from jobs.store import dialogues, labels, runs
from jobs.store.labels import Answer, HintKey, LabelFilter

if TYPE_CHECKING:
    from app.context import Context

Turn = Annotated[int, Field(ge=0, le=10_000)]
Name = Annotated[str, Field(max_length=200)]
MAX_DISAGREEMENTS = 200


class Chosen(BaseModel):
    """`LabelFilter` as it stands in an address; other parameters are left to the page."""

    model_config = ConfigDict(extra="ignore")
    which: Annotated[str, Field(max_length=20)] = "all"
    run: Number | None = None
    environment: Text = ""
    todo: bool = False
    size: Number = 200
    seed: Number = 0

    def filter(self) -> LabelFilter:
        """As the store takes it."""
        return LabelFilter(**{name: getattr(self, name) for name in Chosen.model_fields})


class Queued(Chosen):
    """A part of the queue: its begin, or what stands beside a hint."""

    labeller: Name = ""
    at_run: Number | None = None
    at_event: Text = ""
    at_turn: Turn = 0
    way: Literal["after", "before"] = "after"
    limit: Annotated[int, Field(ge=1, le=50)] = 20


class Given(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid")
    run: Number
    event: Text
    turn: Turn
    labeller: Name
    label: Annotated[str, Field(max_length=20)]
    start: Annotated[int, Field(ge=0, le=BIG)] | None = None
    end: Annotated[int, Field(ge=0, le=BIG)] | None = None
    note: str = ""
    blind: bool = True


class Undone(BaseModel):
    """Who takes back."""

    model_config = ConfigDict(extra="forbid")
    labeller: Name


def router(context: Context) -> APIRouter:
    """Routes below `/api/labels`."""
    api = APIRouter(prefix="/api/labels")
    db = context.db

    @api.get("/queue")
    def queue(query: Annotated[Queued, Query()]) -> dict[str, Any]:
        """The next hints, with how many the labeller has answered."""
        at = None if query.at_run is None else HintKey(query.at_run, query.at_event, query.at_turn)
        place = {query.way: at} if at else {}
        items = labels.queue(db, _name(query.labeller), query.filter(), query.limit, **place)
        return {"items": [{**i.key._asdict(), "label": i.label, "level": i.level} for i in items], **_progress(query)}

    @api.get("/progress")
    def progress(query: Annotated[Queued, Query()]) -> dict[str, Any]:
        return _progress(query)

    def _progress(query: Queued) -> dict[str, Any]:
        done, total = labels.progress(db, _name(query.labeller), query.filter())
        return {"done": done, "total": total, "capped": total > labels.COUNT_LIMIT}

    @api.get("/hint")
    def hint(
        run: Annotated[Number, Query()],
        event: Annotated[Text, Query()],
        turn: Annotated[Turn, Query()],
        labeller: Annotated[Name, Query()] = "",
        blind: Annotated[bool, Query()] = True,
    ) -> dict[str, Any]:
        """A hint with its dialogue up to it."""
        return _hint(context, HintKey(run, event, turn), labeller, blind)

    @api.put("")
    def put(body: Given) -> dict[str, Any]:
        """Store an answer; what the detectors said comes back with it."""
        labels.put(db, **{"run_id" if k == "run" else k: v for k, v in body.model_dump().items()})
        return _hint(context, HintKey(body.run, body.event, body.turn), body.labeller, blind=True)

    @api.post("/undo")
    def undo(body: Undone) -> dict[str, Any]:
        """Take back the labeller's last change; `undone` is null where nothing is left."""
        taken = labels.undo(db, body.labeller)
        if taken is None:
            return {"undone": None}
        now = [label_json(row) for row in labels.of_hint(db, taken.run_id, taken.event, taken.turn)]
        return {"undone": label_json(taken), "labels": now}

    @api.get("/facets")
    def facets() -> dict[str, Any]:
        """Runs, environments and labellers to choose from."""
        listed = runs.page(db, limit=200).rows
        return {
            "runs": [{"id": row.id, "name": row.name, "environment": row.environment} for row in listed],
            "environments": runs.facets(db)["environments"],
            "labellers": labels.labellers(db),
        }

    @api.get("/board")
    def board(query: Annotated[Chosen, Query()]) -> dict[str, Any]:
        """Counts, agreement between labellers, the detector against them, and where they differ."""
        return _board(labels.answers(db, query.filter()))

    return api


def _name(labeller: str) -> str:
    """The name as it is kept; nobody's answers where there is none yet."""
    return labels.labeller_name(labeller) if labeller.strip() else ""


def _hint(context: Context, key: HintKey, labeller: str, blind: bool) -> dict[str, Any]:
    view = dialogues.get(context.db, key.run, key.event)
    if key.turn >= len(view.turns) or view.turns[key.turn].row.hint is None:
        raise NotFound("There is no such hint.", value=tuple(key), fix="Start the queue anew.")
    turn = view.turns[key.turn]
    name = _name(labeller)
    mine = next((label_json(label) for label in turn.labels if label.labeller == name), None)
    open_ = mine is not None or not blind
    problem = shown(runs.get(context.db, key.run), view.problem)
    return {
        **key._asdict(),
        "key": view.row.key,
        "environment": view.row.environment,
        "level": view.row.level,
        "length": view.row.length,
        "problem": {"text": problem.text, "system": problem.system, "rendered": problem.rendered},
        "before": [
            {
                "index": each.row.index,
                "attempt": each.row.attempt,
                "sign": "1" if each.row.correct else "?" if each.row.parsed is None else "0",
                "hint": each.row.hint if each.row.index < key.turn else None,
            }
            for each in view.turns[: key.turn + 1]
        ],
        "hint": turn.row.hint if turn.row.original is None else turn.row.original,
        "teacher": turn.row.teacher,
        "mine": mine,
        "open": open_,
        "finding": finding_json(turn) if open_ else None,
        "read": turn.row.hint if open_ else None,
        "others": [label_json(label) for label in turn.labels if label.labeller != name] if open_ else None,
    }


def _board(answers: list[Answer]) -> dict[str, Any]:
    people: dict[str, dict[HintKey, str]] = defaultdict(dict)
    hints: dict[HintKey, list[Answer]] = defaultdict(list)
    for answer in answers:
        people[answer.labeller][answer.key] = answer.label
        hints[answer.key].append(answer)
    judged = []
    disputed = []
    for key, given in hints.items():
        decided = agreement.consensus(answer.label for answer in given)
        first = given[0]
        if decided is not None and first.checked:
            judged.append(agreement.Judged(decided == agreement.LEAK, first.flagged, first.tier, first.task))
        between = len({answer.label for answer in given}) > 1
        against = decided is not None and first.checked and (decided == agreement.LEAK) != first.flagged
        if between or against:
            disputed.append(
                {
                    **key._asdict(),
                    "answers": {answer.labeller: answer.label for answer in given},
                    "flagged": first.flagged if first.checked else None,
                    "tier": first.tier,
                    "between": between,
                    "against": against,
                }
            )
    found = agreement.scores(judged)
    return {
        "hints": len(hints),
        "labellers": [_person(name, given, answers) for name, given in sorted(people.items())],
        "pairs": [_pair(a, b, agreement.agreement(people[a], people[b])) for a, b in combinations(sorted(people), 2)],
        "detector": {
            "n": found.n,
            "hits": found.hits,
            "false_alarms": found.false_alarms,
            "misses": found.misses,
            "precision": found.precision.model_dump(),
            "recall": found.recall.model_dump(),
            "f1": found.f1,
            "kappa": found.kappa.model_dump(),
            "tiers": {tier: share.model_dump() for tier, share in agreement.by_tier(judged).items()},
        },
        "disputed": disputed[-MAX_DISAGREEMENTS:][::-1],
        "disputes": len(disputed),
    }


def _person(name: str, given: dict[HintKey, str], answers: list[Answer]) -> dict[str, Any]:
    counts = {label: sum(value == label for value in given.values()) for label in agreement.LABELS}
    return {"name": name, **counts, "blind": sum(a.blind for a in answers if a.labeller == name), "n": len(given)}


def _pair(a: str, b: str, found: agreement.Agreement) -> dict[str, Any]:
    return {
        "a": a,
        "b": b,
        "n": found.n,
        "observed": found.observed.model_dump(),
        "expected": found.expected,
        "kappa": found.kappa.model_dump(),
    }
