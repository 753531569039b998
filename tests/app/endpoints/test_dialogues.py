"""Endpoints of dialogues: lists, deep links, steps, privileged data, tokens, and invalid arguments."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from json_endpoints import JsonEndpoints
from replay_data import HOSTILE, add_run, event, hint, odd_events, training_events, turn

from app.common.context import Context
from app.endpoints.dialogues import DialogueEndpoints
from app.endpoints.endpoint import ArgumentError, endpoints_of
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError
from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.labels import label_queries
from jobs.labels.label_queries import LabelAnswer
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.errors import DataError, RL2FError

PREFIX = "dialogue:train:rl2f/"
LEAKS, NEVER = PREFIX + "1/0/3", PREFIX + "1/0/2"


@pytest.fixture
def endpoints(context: Context) -> Any:
    return JsonEndpoints(DialogueEndpoints(context))


@pytest.fixture
def run(context: Context) -> int:
    return add(context, "small", training_events())


@pytest.fixture
def odd(context: Context) -> int:
    return add(context, "odd", odd_events())


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One small run, number 1, with one label, for tests that change nothing."""
    workspace = Workspace(tmp_path_factory.mktemp("read-only")).create()
    db = Database(workspace.database_url())
    db.migrate()
    add_run(db, workspace, "small", training_events())
    label_queries.put(db, 1, LEAKS, 0, "anna", LabelAnswer(label="leak"))
    yield JsonEndpoints(DialogueEndpoints(Context(workspace, db, Queue(db, workspace))))
    db.close()


def add(context: Context, name: str, events: list[Any], **changes: Any) -> int:
    run: Run = add_run(context.db, context.workspace, name, events, **changes)
    assert run.id is not None
    return run.id


def event_ids(page: Any) -> list[str]:
    return [row["event_id"].removeprefix(PREFIX) for row in page["rows"]]


# -- lists -----------------------------------------------------------------------------------------------------------
def test_a_row_has_outcomes_reward_advantage_leak_state_and_labels(endpoints: Any, run: int, context: Context) -> None:
    label_queries.put(context.db, run, LEAKS, 0, "anna", LabelAnswer(label="leak"))
    page = endpoints.list_dialogues({"run": run})
    row = page["rows"][3]
    assert (row["run"], row["event_id"], row["outcomes"], row["length"]) == (run, LEAKS, "01", 2)
    assert (row["leak_state"], row["label_count"]) == (2, 1)
    assert row["reward"] == pytest.approx(0.8) and row["advantage"] == pytest.approx(0.375)
    assert (page["total"], page["first"], page["before"], page["after"]) == (24, 1, None, None)


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"solved": "1"}, ["1/0/0", "1/1/0", "2/0/0", "2/1/0", "3/0/0", "3/1/0"]),
        ({"solved": "never", "step_from": 2, "step_to": 2}, ["2/0/2", "2/1/2"]),
        ({"leak_state": 2, "step_to": 1}, ["1/0/3", "1/1/3"]),
        ({"reward_from": 0.85, "step_from": 3}, ["3/0/0", "3/1/0"]),
        ({"labeled": True}, ["1/0/3"]),
        ({"group": "rl2f/3/1"}, ["3/1/0", "3/1/1", "3/1/2", "3/1/3"]),
        ({"search": "no idea", "step_from": 3}, ["3/0/2", "3/1/2"]),
        ({"search": "write that", "step_to": 1}, ["1/0/3", "1/1/3"]),
        ({"task": "secret_code/train/rl2f/1/0", "solved": "2"}, ["1/0/1", "1/0/3"]),
        ({"environment": "maze"}, []),
        ({"error": True}, []),
        ({"order": "hint_value"}, []),
    ],
)
def test_a_filter_selects_dialogues(read_only: Any, filter: Any, expected: list[str]) -> None:
    page = read_only.list_dialogues({"run": 1, **filter})
    assert event_ids(page) == expected and page["total"] == len(expected)


def test_a_deep_link_finds_its_page(endpoints: Any, context: Context) -> None:
    run = add(context, "many", [event for copy in range(6) for event in renamed(training_events(), copy)])
    first = endpoints.list_dialogues({"run": run})
    assert len(first["rows"]) == 50 and first["total"] == 144
    second = endpoints.list_dialogues({"run": run}, first["after"])
    assert second["first"] == 51 and not set(event_ids(first)) & set(event_ids(second))
    assert endpoints.list_dialogues({"run": run}, second["before"])["rows"] == first["rows"]
    found = endpoints.locate_dialogue(run, second["rows"][20]["event_id"], {"run": run})
    assert event_ids(found) == event_ids(second) and found["first"] == 51
    leaked = next(row["event_id"] for row in second["rows"] if row["leak_state"] == 2)
    flagged = endpoints.locate_dialogue(run, leaked, {"leak_state": 2})
    assert flagged["total"] == 36 and all(row["leak_state"] == 2 for row in flagged["rows"])
    assert [row["step"] for row in endpoints.list_dialogues({"run": run}, newest_first=True, limit=2)["rows"]] == [
        18
    ] * 2


def renamed(events: list[Any], copy: int) -> list[Any]:
    return [e.model_copy(update={"id": f"{e.id}/{copy}", "step": e.step + 3 * copy}) for e in events]


def test_neighbors_of_a_dialogue_are_found_within_the_filter(endpoints: Any, run: int) -> None:
    def move(origin: str, target: Any, **filter: Any) -> str | None:
        row = endpoints.adjacent_dialogue(run, PREFIX + origin, target, {"run": run, **filter})
        return None if row is None else row["event_id"].removeprefix(PREFIX)

    assert move("1/1/2", "next_step") == "2/0/0"
    assert move("3/1/2", "next_step") is None
    assert move("3/1/2", "previous_step") == "2/0/0"
    assert move("1/1/2", "previous_step") is None
    assert move("1/0/3", "next_step", leak_state=2) == "2/0/3"
    assert (move("2/0/1", "first"), move("2/0/1", "last")) == ("1/0/0", "3/1/3")
    assert (move("2/0/3", "next"), move("2/0/3", "previous")) == ("2/1/0", "2/0/2")
    assert (move("2/0/3", "next", leak_state=2), move("2/0/3", "previous", leak_state=2)) == ("2/1/3", "1/1/3")
    assert (move("1/0/0", "previous"), move("3/1/3", "next")) == (None, None)
    assert move("2/0/3", "next", order="hint_value") is None
    listed = event_ids(endpoints.list_dialogues({"run": run, "order": "-reward"}))
    assert [move(event, "next", order="-reward") for event in listed] == [*listed[1:], None]


def test_facets_list_the_filter_values_and_runs(endpoints: Any, run: int, odd: int) -> None:
    facets = endpoints.dialogue_facets(odd)
    assert facets["phases"] == ["evaluation", "train"] and facets["conditions"] == ["contentless"]
    assert {listed["id"]: listed["name"] for listed in facets["runs"]} == {run: "small", odd: "odd"}
    assert endpoints.dialogue_facets()["steps"] == [0, 4]


# -- default filter and welcome dialogue -----------------------------------------------------------------------------
STAGES = [
    {"name": "warmup", "method": {"type": "sft"}, "steps": 2, "tasks_per_step": 2},
    {"name": "rl2f", "method": {"type": "rl2f"}, "steps": 4, "tasks_per_step": 2, "group_size": 4},
    {"name": "cool", "method": {"type": "sft"}, "steps": 2, "tasks_per_step": 2},
]


def demonstrations(stage: str) -> list[Any]:
    return [event(f"{stage}/1/0/0", [turn(0, "x", None)], 1, f"{stage}/1/0", stage=stage)]


def evaluation(checkpoint: str, condition: str) -> Any:
    key = f"{checkpoint}/{condition}"
    more = {"phase": "evaluation", "stage": "evaluation", "checkpoint": checkpoint, "condition": condition}
    return event(key, [turn(0, "x", None)], 0, key, **more)


def test_the_default_list_is_the_latest_evaluation_with_hints(endpoints: Any, context: Context) -> None:
    made = [evaluation(name, kind) for name in ("base", "rl2f@4") for kind in ("hints", "contentless")]
    run = add(context, "evaluated", [*training_events(), *made], stages=STAGES)
    filter = endpoints.default_dialogue_filter(run)
    assert filter == {
        "run": run, "phase": "evaluation", "stage": "evaluation", "checkpoint": "rl2f@4", "condition": "hints"
    }  # fmt: skip
    assert endpoints.list_dialogues(filter)["total"] == 1


def test_the_default_list_has_no_demonstrations(endpoints: Any, context: Context) -> None:
    made = [*demonstrations("warmup"), *training_events(), *demonstrations("cool")]
    run = add(context, "trained", made, stages=STAGES)
    assert endpoints.default_dialogue_filter(run) == {"run": run, "phase": "train", "stage": "rl2f"}
    early = add(context, "early", demonstrations("warmup"), stages=STAGES)
    assert endpoints.default_dialogue_filter(early) == {"run": early}


def test_the_welcome_dialogue_was_solved_after_two_hints(endpoints: Any, context: Context, run: int) -> None:
    solved = turn(1, "<answer>A B A B</answer>", "A B A B")
    once = [turn(0, "x", None, hint("a")), solved]
    twice = [turn(0, "x", None, hint("a")), turn(1, "y", None, hint("b")), solved.model_copy(update={"index": 2})]
    one = endpoints.welcome_dialogue()
    assert one == {"run": run, "event_id": PREFIX + "1/0/1"}
    newer = add(context, "newer", [event("rl2f/1/0", once), event("rl2f/1/1", twice)])
    two = endpoints.welcome_dialogue()
    assert two == {"run": newer, "event_id": PREFIX + "1/1"}
    runs.update(context.db, run, origin="example")
    assert endpoints.welcome_dialogue() == one


def test_an_empty_workspace_has_no_welcome_dialogue(endpoints: Any, context: Context) -> None:
    assert endpoints.welcome_dialogue() is None
    run = add(context, "empty", [])
    assert endpoints.welcome_dialogue() is None and endpoints.default_dialogue_filter(run) == {"run": run}


# -- one dialogue ----------------------------------------------------------------------------------------------------
def test_a_dialogue_has_prompt_turns_hints_and_findings(endpoints: Any, run: int) -> None:
    found = endpoints.get_dialogue(run, LEAKS)
    assert found["prompt"]["rendered"] and "4 letters" in found["prompt"]["text"]
    assert "<answer>" in found["prompt"]["system"] and found["run_name"] == "small"
    first, last = found["turns"]
    assert (first["outcome"], first["parsed"], first["token_count"]) == ("0", "A A A A", 4)
    assert [(t["name"], t["score"], t["weight"]) for t in first["terms"]] == [("correct", 0, 1), ("format", -1, 0.1)]
    assert first["hint"] is not None and first["hint"]["findings"] == [
        {"source": "run", "detector": "exact", "leak_type": "exact", "start": 12, "end": 19, "answer_fraction": 1,
         "evidence": "A B A B", "action": "flag", "probability": None, "threshold": None}
    ]  # fmt: skip
    assert first["hint"]["feedback"][12:19] == "A B A B"
    assert first["changes"] is None and last["changes"] is not None
    assert [piece for piece in last["changes"] if piece[0] != "="] == [["-", "A"], ["+", "B"]] * 2
    assert [(s["index"], s["solved_at"]) for s in found["siblings"]] == [(0, 1), (1, 2), (2, None), (3, 2)]
    json.dumps(found)


def test_a_changed_hint_has_the_feedback_and_the_version_of_the_student(endpoints: Any, odd: int) -> None:
    redacted = endpoints.get_dialogue(odd, "dialogue:train:odd/redacted")["turns"][0]["hint"]
    assert redacted is not None
    assert (redacted["feedback"], redacted["hint"]) == ("Say A B A B now.", "Say […] now.")
    assert redacted["findings"][0]["action"] == "redact"
    dropped = endpoints.get_dialogue(odd, "dialogue:train:odd/dropped")["turns"][0]["hint"]
    assert dropped is not None and (dropped["feedback"], dropped["hint"]) == ("Say A B A B now.", "")


def test_only_reveal_answer_returns_privileged_data(endpoints: Any, run: int) -> None:
    group = [each for each in endpoints.dialogue_group(run, NEVER) if each["event_id"] == NEVER]
    for public in (endpoints.get_dialogue(run, NEVER), group, endpoints.list_dialogues({"run": run})):
        assert "A B A B" not in json.dumps(public)
    revealed = endpoints.reveal_answer(run, NEVER)
    assert revealed["gold_answer"] == "A B A B" and revealed["privileged"] == {"code": "A B A B"}
    assert revealed["details"] == ["1 of 4 places are right; the code is A B A B"] * 3


def test_a_group_has_all_its_dialogues(endpoints: Any, run: int) -> None:
    found = endpoints.dialogue_group(run, LEAKS)
    assert [d["event_id"][-1] for d in found] == ["0", "1", "2", "3"]
    assert [len(d["turns"]) for d in found] == [1, 2, 3, 2]


def test_hostile_text_is_returned_unchanged(endpoints: Any, odd: int) -> None:
    hostile = endpoints.get_dialogue(odd, "dialogue:train:odd/hostile")
    assert hostile["turns"][0]["attempt"] == HOSTILE.replace("\0", "\ufffd")
    assert len(endpoints.get_dialogue(odd, "dialogue:train:odd/long")["turns"][1]["attempt"]) == 100_001
    empty = endpoints.get_dialogue(odd, "dialogue:train:odd/empty")
    assert empty["turns"] == [] and empty["error"] == "no room"


def test_a_task_of_an_unknown_environment_is_shown_as_data(endpoints: Any, context: Context, run: int) -> None:
    text = runs.get(context.db, run).config.replace("type: secret_code", "type: gone")
    runs.update(context.db, run, config=text)
    found = endpoints.get_dialogue(run, LEAKS)["prompt"]
    assert not found["rendered"] and json.loads(found["text"]) == {"letters": ["A", "B"], "length": 4}
    revealed = endpoints.reveal_answer(run, LEAKS)
    assert revealed["gold_answer"] is None and revealed["privileged"] == {"code": "A B A B"}


# -- tokens ----------------------------------------------------------------------------------------------------------
def test_tokens_have_no_text_without_a_tokenizer(endpoints: Any, run: int) -> None:
    tokens = endpoints.dialogue_tokens(run, LEAKS, 0)["tokens"]
    assert [t["id"] for t in tokens] == [36, 390, 38, 2]
    assert [t["logprob"] for t in tokens] == pytest.approx([-0.1, -2.5, -0.01, -0.2])
    assert {t["text"] for t in tokens} == {None}


@pytest.mark.slow
def test_tokens_have_the_texts_of_the_runs_tokenizer(endpoints: Any, context: Context, tiny: Path) -> None:
    from tokenizers import Tokenizer

    text = "Höhe 😀 12"
    ids = tuple(Tokenizer.from_file(str(tiny / "tokenizer.json")).encode(text, add_special_tokens=False).ids)
    one = event("rl2f/1/0", [turn(0, text, None, token_ids=(*ids, 2), logprobs=())])
    run = add(context, "tiny", [one], model={"name": str(tiny)})
    tokens = endpoints.dialogue_tokens(run, one.id, 0)["tokens"]
    assert "".join(t["text"] or "" for t in tokens[:-1]) == text, "characters of several tokens are whole"
    assert (tokens[-1]["text"] or "").startswith("<") and tokens[-1]["logprob"] is None
    assert len(tokens) == len(ids) + 1


def test_tokens_have_no_text_with_an_invalid_tokenizer_file(
    endpoints: Any, context: Context, tiny: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    (folder / "tokenizer.json").write_text("{}")
    run = add(context, "broken", training_events()[:1], model={"name": str(folder)})
    tokens = endpoints.dialogue_tokens(run, PREFIX + "1/0/0", 0)["tokens"]
    assert [t["text"] for t in tokens] == [None] * 4


# -- invalid arguments -----------------------------------------------------------------------------------------------
Call = Callable[[Any], object]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda e: e.get_dialogue(99, LEAKS), NotFoundError),
        (lambda e: e.get_dialogue(1, "nothing"), NotFoundError),
        (lambda e: e.get_dialogue("../../etc/passwd", LEAKS), ArgumentError),
        (lambda e: e.get_dialogue(10**30, LEAKS), ArgumentError),
        (lambda e: e.get_dialogue(-1, LEAKS), ArgumentError),
        (lambda e: e.get_dialogue(1), ArgumentError),
        (lambda e: e.dialogue_group(1, "nothing"), NotFoundError),
        (lambda e: e.reveal_answer(1, "nothing"), NotFoundError),
        (lambda e: e.dialogue_tokens(1, LEAKS, 5), NotFoundError),
        (lambda e: e.locate_dialogue(1, "nothing"), NotFoundError),
        (lambda e: e.dialogue_facets(99), NotFoundError),
        (lambda e: e.default_dialogue_filter(99), NotFoundError),
        (lambda e: e.adjacent_dialogue(1, LEAKS, "nowhere"), ArgumentError),
        (lambda e: e.list_dialogues({"run": 1}, "x"), DataError),
        (lambda e: e.list_dialogues({"solved": "1; DROP TABLE dialogue"}), ArgumentError),
        (lambda e: e.list_dialogues({"reward_from": float("nan")}), ArgumentError),
        (lambda e: e.list_dialogues({"reward_to": float("inf")}), ArgumentError),
        (lambda e: e.list_dialogues({"leak_state": 7}), ArgumentError),
        (lambda e: e.list_dialogues({"search": "x" * 2000}), ArgumentError),
        (lambda e: e.list_dialogues({"order": "id"}), ArgumentError),
        (lambda e: e.list_dialogues({"control": "hints"}), ArgumentError),
        (lambda e: e.list_dialogues({}, limit=10_000), ArgumentError),
    ],
)
def test_an_invalid_request_raises_an_error_with_a_reason(read_only: Any, call: Call, error: type[RL2FError]) -> None:
    with pytest.raises(error) as caught:
        call(read_only)
    assert isinstance(caught.value, RL2FError) and caught.value.what


@pytest.mark.parametrize("search", ['"', "'; --", "AND OR NOT NEAR(", "\0", "*", "a" * 300, "😀", "%_\\", "\ufffd"])
def test_any_text_can_be_searched(read_only: Any, search: str) -> None:
    assert read_only.list_dialogues({"run": 1, "search": search})["total"] is not None


def test_all_endpoints_of_dialogues_need_only_the_scope_read(endpoints: Any) -> None:
    assert {scope for _, scope, _ in endpoints_of(endpoints.group)} == {"read"}
