"""Endpoints of labels: blind hints, answers, undo, progress, the queue, and invalid arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from json_endpoints import JsonEndpoints
from replay_data import add_run, event, hint, odd_events, training_events, turn

from app.common.context import Context
from app.endpoints.dialogues import DialogueEndpoints
from app.endpoints.endpoint import ArgumentError, endpoints_of
from app.endpoints.leaks.labels import LabelEndpoints
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError, StoreReadOnlyError
from jobs.db.queries import runs
from jobs.labels import label_queries
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.errors import ConfigError, DataError, RL2FError

LATER, NEVER, LEAKS = (f"dialogue:train:rl2f/1/0/{i}" for i in (1, 2, 3))


@pytest.fixture
def endpoints(context: Context) -> Any:
    return JsonEndpoints(LabelEndpoints(context))


@pytest.fixture
def run(context: Context) -> int:
    return add_run(context.db, context.workspace, "small", training_events()).id or 0


@pytest.fixture(scope="module")
def unlabeled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One small run, number 1, without labels, for tests that change nothing."""
    workspace = Workspace(tmp_path_factory.mktemp("unlabeled")).create()
    db = Database(workspace.database_url())
    db.migrate()
    add_run(db, workspace, "small", training_events())
    yield JsonEndpoints(LabelEndpoints(Context(workspace, db, Queue(db, workspace))))
    db.close()


def put(e: Any, run: int, event: str = LEAKS, label: Any = "leak", **more: Any) -> Any:
    return e.label_hint(**{"run": run, "event_id": event, "turn": 0, "annotator": "anna", "label": label, **more})


# -- blind -----------------------------------------------------------------------------------------------------------
def test_findings_are_returned_only_after_the_answer(endpoints: Any, run: int) -> None:
    put(endpoints, run, annotator="bob")
    blind = endpoints.hint_to_label(run, LEAKS, 0, "anna")
    hidden = ("findings", "other_labels", "hint", "own_label")
    assert not blind["is_open"] and [blind[name] for name in hidden] == [None] * 4
    assert "exact" not in json.dumps(blind) and "bob" not in json.dumps(blind)
    queue = endpoints.next_hints_to_label("anna", {"run": run})
    assert set(queue["hints"][0]) == {"run", "event_id", "turn", "label", "level"}

    answered = put(endpoints, run)
    assert answered["is_open"] and answered["own_label"] is not None and answered["own_label"]["blind"] is True
    assert answered["findings"] is not None and answered["findings"]["leak_found"]
    assert answered["findings"]["findings"][0]["start"] == 12
    assert [other["annotator"] for other in answered["other_labels"] or []] == ["bob"]


def test_an_annotator_can_see_the_findings_before_the_answer(endpoints: Any, run: int) -> None:
    seen = endpoints.hint_to_label(run, LEAKS, 0, "anna", blind=False)
    assert seen["is_open"] and seen["own_label"] is None
    assert seen["findings"] is not None and seen["findings"]["findings"][0]["detector"] == "exact"
    own = put(endpoints, run)["own_label"]
    assert own is not None and own["blind"] is False


def test_the_server_decides_whether_a_label_is_blind(endpoints: Any, context: Context, run: int) -> None:
    with pytest.raises(ArgumentError, match="blind"):
        put(endpoints, run, blind=True)

    def is_blind(event: str, who: str) -> bool | None:
        own = put(endpoints, run, event, annotator=who)["own_label"]
        return own and own["blind"]

    endpoints.hint_to_label(run, LEAKS, 0, " anna ", blind=False)
    assert [is_blind(LEAKS, "anna"), is_blind(LEAKS, "bob"), is_blind(LATER, "anna")] == [False, True, True]
    DialogueEndpoints(context).get_dialogue(run, NEVER, "carl")
    assert [is_blind(NEVER, "carl"), is_blind(NEVER, "dora")] == [False, True]
    DialogueEndpoints(context).dialogue_group(run, NEVER, "emil")
    assert not is_blind(LATER, "emil")
    flagged = endpoints.next_hints_to_label("finn", {"run": run, "selection": "flagged"})["hints"]
    assert {LEAKS} <= {each["event_id"] for each in flagged} and not is_blind(LEAKS, "finn")


def test_findings_are_shown_to_named_annotators_alone(endpoints: Any, run: int) -> None:
    seen = endpoints.hint_to_label(run, LEAKS, 0, " ", blind=False)
    assert not seen["is_open"] and seen["findings"] is None


def test_a_read_only_server_shows_findings_and_records_nothing(context: Context, run: int) -> None:
    reader = JsonEndpoints(LabelEndpoints(replace(context, read_only=True)))
    assert reader.hint_to_label(run, LEAKS, 0, "anna", blind=False)["is_open"]
    own = put(JsonEndpoints(LabelEndpoints(context)), run)["own_label"]
    assert own is not None and own["blind"]


def test_a_blind_redacted_hint_does_not_show_its_redaction(endpoints: Any, context: Context) -> None:
    odd = add_run(context.db, context.workspace, "odd", odd_events()).id or 0
    blind = endpoints.hint_to_label(odd, "dialogue:train:odd/redacted", 0, "anna")
    assert blind["feedback"] == "Say A B A B now." and "[…]" not in json.dumps(blind, ensure_ascii=False)
    assert put(endpoints, odd, "dialogue:train:odd/redacted")["hint"] == "Say […] now."


def test_a_hint_has_the_dialogue_before_it_and_nothing_after_it(endpoints: Any, run: int) -> None:
    second = endpoints.hint_to_label(run, NEVER, 1, "anna")
    assert [(t["attempt"], t["hint"]) for t in second["turns"]] == [
        ("no idea", "Correct so far: A ? ? ?"), ("<answer>B B B B</answer>", None)
    ]  # fmt: skip
    assert "4 letters" in second["prompt"]["text"]
    later = json.dumps(endpoints.hint_to_label(run, LATER, 0, "anna"))
    assert "A B A B" not in later, "neither the gold answer nor the correct attempt"


# -- answers ---------------------------------------------------------------------------------------------------------
def test_labels_are_stored_and_undone(endpoints: Any, run: int) -> None:
    put(endpoints, run, LATER, "no_leak")
    put(endpoints, run, LEAKS, "leak", start=12, end=19, note="all of it")
    put(endpoints, run, LEAKS, "unsure")
    assert endpoints.labeling_progress("anna", {"run": run}) == {"labeled": 2, "total": 24, "is_capped": False}
    first = endpoints.undo_label("anna")
    assert first["removed"] is not None
    assert (first["removed"]["event_id"], first["removed"]["label"]) == (LEAKS, "unsure")
    assert [(x["label"], x["start"], x["note"]) for x in first["labels"]] == [("leak", 12, "all of it")]
    assert endpoints.list_labels(run, LEAKS, 0) == first["labels"]
    endpoints.undo_label("anna")
    last = endpoints.undo_label("anna")
    assert last["removed"] is not None and last["removed"]["event_id"] == LATER and last["labels"] == []
    assert endpoints.undo_label("anna") == {"removed": None, "labels": []}
    assert endpoints.labeling_progress("anna", {"run": run})["labeled"] == 0


def test_the_queue_continues_after_and_before_a_hint(endpoints: Any, run: int) -> None:
    first = endpoints.next_hints_to_label("anna", {"run": run}, limit=5)
    assert (len(first["hints"]), first["labeled"], first["total"]) == (5, 0, 24)
    last: Any = {name: first["hints"][-1][name] for name in ("run", "event_id", "turn")}
    assert len(endpoints.next_hints_to_label("anna", {"run": run}, after=last, limit=50)["hints"]) == 19
    back = endpoints.next_hints_to_label("anna", {"run": run}, before=last, limit=50)
    assert back["hints"] == first["hints"][:4]


def test_the_queue_selects_flagged_sampled_or_unlabeled_hints(endpoints: Any, run: int) -> None:
    assert endpoints.next_hints_to_label("anna", {"selection": "flagged"})["total"] == 6
    sample = endpoints.next_hints_to_label("anna", {"selection": "random_unflagged", "size": 7, "seed": 5}, limit=50)
    assert sample["total"] == len(sample["hints"]) == 7
    put(endpoints, run, LATER, "no_leak")
    rest = endpoints.next_hints_to_label("anna", {"run": run, "unlabeled_only": True}, limit=1)
    assert rest["hints"][0]["event_id"] == NEVER
    assert endpoints.next_hints_to_label(queue={"run": run}, limit=1)["hints"][0]["label"] is None, "without a name"


def test_the_queue_has_hints_of_controls_only_on_request(endpoints: Any, context: Context) -> None:
    def evaluated(index: int, condition: str) -> Any:
        key, attempt = f"{condition}/{index}", turn(0, "x", None, hint(f"Look {index}.", teacher="scripted"))
        return event(key, [attempt], 0, key, phase="evaluation", checkpoint="base", condition=condition)

    made = [evaluated(index, condition) for index in range(6) for condition in ("hints", "shuffled")]
    add_run(context.db, context.workspace, "evaluated", made)
    for selection in ("all", "stratified", "random_unflagged"):
        queue: Any = {"selection": selection}
        own = endpoints.next_hints_to_label(queue=queue, limit=50)
        everything = endpoints.next_hints_to_label(queue={**queue, "include_controls": True}, limit=50)
        assert own["total"] == len(own["hints"]) == 6 and everything["total"] == len(everything["hints"]) == 12
        assert all("shuffled" not in each["event_id"] for each in own["hints"])


def test_choices_list_runs_environments_and_annotators(endpoints: Any, run: int) -> None:
    put(endpoints, run)
    found = endpoints.label_choices()
    assert found["environments"] == ["secret_code"] and found["annotators"] == endpoints.list_annotators() == ["anna"]
    assert [each["name"] for each in found["runs"]] == ["small"]


def test_hostile_notes_and_names_are_stored_unchanged(endpoints: Any, run: int) -> None:
    hostile = '<img src=x onerror="alert(1)"> ![x](http://example.invalid)'
    own = put(endpoints, run, note=hostile, annotator="<b>eve</b>")["own_label"]
    assert own is not None and (own["note"], own["annotator"]) == (hostile, "<b>eve</b>")


# -- invalid arguments -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"run": 99}, NotFoundError),
        ({"event_id": "dialogue:nowhere"}, NotFoundError),
        ({"turn": 9}, NotFoundError),
        ({"turn": 1}, NotFoundError),
        ({"turn": -1}, ArgumentError),
        ({"label": "<script>"}, ArgumentError),
        ({"annotator": ""}, ConfigError),
        ({"annotator": "a\nb\0"}, ConfigError),
        ({"start": 5, "end": 500}, DataError),
        ({"start": 5}, DataError),
        ({"start": "x", "end": 6}, ArgumentError),
        ({"note": "x" * 5000}, ArgumentError),
        ({"queue": {"which": "all"}}, ArgumentError),
        ({"surprise": 1}, ArgumentError),
    ],
)
def test_an_invalid_label_is_refused(unlabeled: Any, change: dict[str, Any], error: type[RL2FError]) -> None:
    with pytest.raises(error) as caught:
        put(unlabeled, **{"run": 1, **change})
    assert isinstance(caught.value, RL2FError) and caught.value.what
    assert unlabeled.list_annotators() == []


Call = Callable[[LabelEndpoints], object]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda e: e.next_hints_to_label(queue={"selection": "'; DROP TABLE turn; --"}), ArgumentError),
        (lambda e: e.next_hints_to_label(queue={"run": "x"}), ArgumentError),
        (lambda e: e.next_hints_to_label(queue={"size": 0, "selection": "stratified"}), ArgumentError),
        (lambda e: e.next_hints_to_label(queue={"seed": 2**40}), ArgumentError),
        (lambda e: e.next_hints_to_label(queue={"source": "'; DROP"}), ConfigError),
        (lambda e: e.next_hints_to_label(after={"run": 1, "event_id": "nowhere", "turn": 0}), NotFoundError),
        (lambda e: e.next_hints_to_label(after={"run": 1}), ArgumentError),
        (lambda e: e.next_hints_to_label(after=KEY, before=KEY), ConfigError),
        (lambda e: e.next_hints_to_label("x" * 500), ArgumentError),
        (lambda e: e.next_hints_to_label(limit=1000), ArgumentError),
        (lambda e: e.hint_to_label(1, "nowhere", 0), NotFoundError),
        (lambda e: e.hint_to_label(77, LEAKS, 0), NotFoundError),
        (lambda e: e.hint_to_label(1, LEAKS, 1), NotFoundError),
        (lambda e: e.hint_to_label(1, LEAKS, 99), NotFoundError),
    ],
)
def test_an_invalid_request_raises_an_error_with_a_reason(unlabeled: Any, call: Call, error: type[RL2FError]) -> None:
    with pytest.raises(error) as caught:
        call(unlabeled)
    assert isinstance(caught.value, RL2FError) and caught.value.what


KEY: Any = {"run": 1, "event_id": LEAKS, "turn": 0}


def test_a_hint_of_a_deleted_run_is_not_found(endpoints: Any, run: int, context: Context) -> None:
    put(endpoints, run)
    runs.remove(context.db, run)
    with pytest.raises(NotFoundError, match="no run"):
        endpoints.hint_to_label(run, LEAKS, 0)
    with pytest.raises(NotFoundError):
        put(endpoints, run)
    assert endpoints.undo_label("anna")["removed"] is None


def test_a_read_only_server_stores_no_label(run: int, context: Context) -> None:
    db = Database(context.workspace.database_url(), read_only=True)
    endpoints = JsonEndpoints(LabelEndpoints(Context(context.workspace, db, context.queue, read_only=True)))
    assert endpoints.next_hints_to_label(queue={"run": run})["total"] == 24
    with pytest.raises(StoreReadOnlyError, match="Read-only server"):
        put(endpoints, run)
    db.close()
    assert label_queries.annotators(context.db) == []


def test_labeling_needs_the_scope_label(endpoints: Any) -> None:
    scopes = {name: scope for name, scope, _ in endpoints_of(endpoints.group)}
    assert {name for name, scope in scopes.items() if scope == "label"} == {"label_hint", "undo_label"}
    assert "run" not in scopes.values()
