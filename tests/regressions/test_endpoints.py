"""Calls of programs: one numbering of turns, missing objects, and refusals that name the argument."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fork_data import LEAKED, add_leak, event_of, make_run
from typer.testing import CliRunner
from workspace_copies import build_once

from app.cli import app
from app.common.context import Context
from app.common.http_status import http_status
from app.endpoints.endpoint import OPERATIONS, ArgumentError
from app.endpoints.studio import Studio
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError
from jobs.db.models import ChatMessage
from jobs.db.queries import chats
from jobs.ingest.ingester import reindex
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.common.text.yaml_loader import load_yaml
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import ConfigError, DataError, RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, read_events
from rl2f_core.run.execute import execute

UNHINTED = "event:unhinted"
"""Event id of a dialogue whose only attempt has no hint."""
FORK = {"run": 1, "event_id": event_of(1), "turn": 0, "checkpoints": ["base"], "samples": 1}


def make_studio(workspace: Workspace, db: Database) -> Studio:
    """Return the endpoints of a workspace with a run of four dialogues, a leaking one and one without a hint."""
    build_once(db, workspace, b"unhinted numbers", lambda: add_run(workspace, db))
    return Studio(Context(workspace, db, Queue(db, workspace)))


def add_run(workspace: Workspace, db: Database) -> None:
    run_dir = make_run(workspace.folder("1-numbers"))
    add_leak(run_dir)
    event = next(e for e in read_events(run_dir.events_path) if isinstance(e, DialogueEvent) and e.id == event_of(1))
    turns = (event.dialogue.turns[0].model_copy(update={"hint": None}),)
    dialogue = event.dialogue.model_copy(update={"id": "unhinted", "turns": turns})
    JsonlSink(run_dir.events_path).emit([event.model_copy(update={"id": UNHINTED, "dialogue": dialogue})])
    reindex(db, workspace)


@pytest.fixture
def studio(workspace: Workspace, db: Database) -> Studio:
    return make_studio(workspace, db)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[..., Any]]]:
    """All endpoints of a workspace with the run, a queued run, a chat and an interactive task; no call changes it."""
    workspace = Workspace(tmp_path_factory.mktemp("endpoints") / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    studio = make_studio(workspace, db)
    studio.context.queue.add(studio.run.run_config(1))
    for mode in ("chat", "play"):
        chat = chats.create(db, "title", mode, {"model": "smollm2-135m"})
        chats.add(db, chat.id or 0, [ChatMessage(chat_id=chat.id, role="user", content="text", time=1.0)])
    yield {name: function for name, _, function in studio.endpoints()}
    db.close()


# -- turns -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("turn", [2, 3])
def test_errors_about_turns_of_a_fork_count_as_its_argument_does(studio: Studio, turn: int) -> None:
    known = {2: ["0", "1"], 3: ["0", "1", "2"]}[turn]  # the third attempt is correct, and there is no fourth one
    empty = [{"hint": "empty"}]
    for call in (studio.fork.preview_fork, studio.fork.start_fork):
        with pytest.raises(RL2FError) as caught:
            call(**{**FORK, "turn": turn, "arms": empty})
        assert (caught.value.value, list(caught.value.known or ())) == (turn, known)
    with pytest.raises(RL2FError) as caught:
        studio.fork.screen_hint(1, event_of(1), turn, "Up.")
    assert (caught.value.value, list(caught.value.known or ())) == (turn, known)
    folder = studio.context.workspace.folder("1-numbers")
    result = CliRunner().invoke(app, ["fork", str(folder), event_of(1), "--turn", str(turn + 1), "--arm", "empty"])
    counted_from_1 = ", ".join(str(int(number) + 1) for number in known)
    assert f"Got: {turn + 1}. Known: {counted_from_1}." in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("event", "arms", "message"),
    [
        (UNHINTED, ["original"], "no original hint"),
        (UNHINTED, ["redacted", "empty"], "no original hint"),
        (event_of(1), ["redacted"], "No detector of the run flagged this hint"),
    ],
)
def test_a_preview_refuses_the_arms_that_the_run_of_a_fork_refuses(
    studio: Studio, tmp_path: Path, event: str, arms: list[str], message: str
) -> None:
    changes: Any = {**FORK, "event_id": event, "arms": [{"hint": arm} for arm in arms]}
    for call in (studio.fork.preview_fork, studio.fork.start_fork):
        with pytest.raises(DataError, match=message):
            call(**changes)
    leaked = load_yaml(studio.fork.preview_fork(**{**changes, "event_id": LEAKED}).config)
    source = str(studio.context.workspace.folder("1-numbers"))
    run_dir = RunDir.create(tmp_path / "fork", parse_config({**leaked, "dialogue": event, "source": source}))
    with pytest.raises(DataError, match=message):
        execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), lambda: False)


def test_a_note_on_a_turn_needs_a_dialogue(studio: Studio) -> None:
    with pytest.raises(DataError, match=r"needs its dialogue.*event_id"):
        studio.run.add_note(1, "Which dialogue?", turn=0)
    assert studio.run.list_notes(1) == []
    assert studio.run.add_note(1, "This one.", event_id=event_of(1), turn=0).turn == 0


# -- missing objects -------------------------------------------------------------------------------------------------
VALID: dict[str, Any] = {
    **{"run": 1, "runs": [1], "event_id": event_of(1), "turn": 0, "checkpoint": "base", "checkpoints": ["base"]},
    **{"chat": 1, "message": 1, "response": 1, "other": 1, "attempt": 1, "note_id": 1, "schedule_id": 1},
    **{"arms": [{"hint": "empty"}], "model": "smollm2-135m", "source": "run:1", "stage": "rl", "step": 1, "tags": []},
    **{"text": "text", "annotator": "a", "label": "leak", "target": "next", "names": ["reward"], "action": "up"},
    **{"folder": "a", "name": "a", "file": "a.csv", "path": "a.json", "trigger": "cron", "when": "0 3 * * *"},
}
"""Values of required arguments."""
HINT = {"run": 1, "event_id": event_of(1), "turn": 99}
MISSING: dict[str, Any] = {
    **dict.fromkeys(
        ("run", "turn", "chat", "message", "response", "other", "attempt", "note_id", "schedule_id", "parent"), 99
    ),
    **dict.fromkeys(("event_id", "stage", "folder", "tag", "group", "preset", "environment", "benchmark"), "missing"),
    **{"runs": [99], "differing": [99], "checkpoint": "rl@99", "checkpoints": ["1:rl@99"], "base": "1:rl@99"},
    **{"model": "missing/model", "file": "missing.csv", "path": "/missing.json", "names": ["missing/metric"]},
    **{"after": 99, "before": 99, "source": "99", "columns": ["missing"], "filter": {"run": 99}, "queue": {"run": 99}},
}
"""Values that name nothing, by argument."""
CHANGED: dict[tuple[str, str], dict[str, Any]] = {
    **{(name, "name"): {"name": "missing"} for name in ("study_report", "resume_study", "stop_study", "get_preset")},
    **{(name, "after"): {"chat": 2} for name in ("list_task_actions", "take_task_action")},
    **{("next_hints_to_label", name): {name: HINT} for name in ("after", "before")},
    **{(name, "parent"): {"preset": "quickstart"} for name in ("launch_run", "preflight_config")},
    ("send_message", "after"): {"after": {"base": 99}, "parent": 1},
    ("continue_task_chat", "after"): {"chat": 2, "after": {"base": 99}},
    ("end_task_chat", "attempt"): {"chat": 2},
    ("start_task_chat", "source"): {"source": "preset:missing"},
    ("move_run", "before"): {"run": 2},
    ("add_note", "turn"): {"event_id": event_of(1)},
    ("count_export", "filter"): {"filter": {"stage": "missing"}},
}
"""Other arguments of a call with a missing object."""
LENIENT = {
    *(("compare_runs", "runs"), ("compare_charts", "runs"), ("compare_evaluations", "runs")),  # the others are compared
    *(("delete_runs", "runs"), ("check_data_file", "columns")),  # names each run that is kept; columns of a file
    *((name, "filter") for name in ("locate_dialogue", "adjacent_dialogue")),  # the dialogue has a run of its own
}
STUDIO = {name: operation for name, operation in OPERATIONS.items() if operation.function.__module__.startswith("app.")}
CALLS = [
    (name, argument)
    for name, operation in STUDIO.items()
    for argument in operation.arguments.model_fields
    if (argument in MISSING or (name, argument) in CHANGED) and (name, argument) not in LENIENT
]


@pytest.mark.parametrize(("name", "argument"), CALLS, ids=map("-".join, CALLS))
def test_a_missing_object_is_not_found(functions: dict[str, Callable[..., Any]], name: str, argument: str) -> None:
    fields = OPERATIONS[name].arguments.model_fields
    given = {field: VALID[field] for field, info in fields.items() if info.is_required()}
    given |= {argument: MISSING.get(argument), **CHANGED.get((name, argument), {})}
    with pytest.raises(NotFoundError) as caught:
        result = functions[name](**given)
        next(result) if OPERATIONS[name].is_stream else None
    assert http_status(caught.value) == 404
    assert caught.value.known is not None or caught.value.fix


def test_a_deleted_run_that_is_not_in_the_trash_is_not_found(functions: dict[str, Callable[..., Any]]) -> None:
    with pytest.raises(NotFoundError, match=r"Run 1 is not in the trash.*Known: none"):
        functions["restore_run"](1)


def test_an_undone_label_of_a_dialogue_that_is_read_again_later_is_returned(studio: Studio) -> None:
    studio.labels.label_hint(1, event_of(1), 0, "ann", label="leak")
    with studio.context.db._writer.begin() as connection:
        connection.exec_driver_sql("UPDATE dialogue SET event_id = event_id || id")
    removed = studio.labels.undo_label("ann").removed
    assert removed is not None and removed.turn == 0


# -- arguments -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("endpoint", "argument", "value", "key", "known"),
    [
        ("list_dialogues", "filter", {"x": 1}, "filter.x", "without_controls"),
        ("next_hints_to_label", "after", {"run": 1, "event_id": "a", "turn": 0, "x": 1}, "after.x", "event_id"),
        ("start_export", "settings", {"filter": {"x": 1}}, "settings.filter.x", "include_test"),
        ("preview_fork", "arms", [{"hint": "empty", "x": 1}], "arms.0.x", "teacher"),
        ("start_chat", "sampling", {"x": 1}, "sampling.x", "top_p"),
    ],
)
def test_an_unknown_key_in_an_argument_is_named_with_the_known_ones(
    studio: Studio, endpoint: str, argument: str, value: Any, key: str, known: str
) -> None:
    others: dict[str, Any] = {"start_export": {"runs": [1]}, "preview_fork": FORK, "start_chat": {"model": "tiny"}}
    functions = {name: function for name, _, function in studio.endpoints()}
    with pytest.raises(ConfigError) as caught:
        functions[endpoint](**{**others.get(endpoint, {}), argument: value})
    assert f"{key}: unknown key" in str(caught.value) and known in str(caught.value).lower().partition("known: ")[2]


def test_an_unknown_key_in_an_option_of_a_call_is_named_with_the_known_ones() -> None:
    result = CliRunner().invoke(app, ["call", "list_dialogues", "--filter", '{"x": 1}'])
    printed = " ".join(result.stderr.split())
    assert "Option --filter: filter.x: unknown key. Got: 1. Known: run, phase, stage" in printed


def numbers(schema: dict[str, Any], models: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each number in a JSON schema of arguments; items of lists and values of maps have `0`."""
    schema = models[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for choice in schema.get("anyOf", []):
        yield from numbers(choice, models, path)
    if schema.get("type") in ("integer", "number"):
        yield path
    inside = {**schema.get("properties", {}), "0": schema.get("items") or schema.get("additionalProperties")}
    for name, part in inside.items():
        if isinstance(part, dict):
            yield from numbers(part, models, (*path, name))


def sample(schema: dict[str, Any], models: dict[str, Any]) -> Any:
    """Return a valid value of a JSON schema, with the required keys only."""
    schema = models[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if schema.get("type") == "object":
        return {name: sample(schema["properties"][name], models) for name in schema.get("required", [])}
    if schema.get("type") == "array":
        return [sample(schema["items"], models)]
    return schema.get("enum", [schema.get("minimum", 1) if schema.get("type") == "integer" else "a"])[0]


def put(schema: dict[str, Any], models: dict[str, Any], path: Sequence[str], value: object) -> Any:
    """Return a valid value of a JSON schema except for the value at a path."""
    if not path:
        return value
    schema = models[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for choice in schema.get("anyOf", []):
        if path in [*numbers(choice, models)]:
            return put(choice, models, path, value)
    name, *rest = path
    if schema.get("type") == "array":
        return [put(schema["items"], models, rest, value)]
    part = schema.get("properties", {}).get(name) or schema["additionalProperties"]
    return {**sample(schema, models), name: put(part, models, tuple(rest), value)}


NUMBERS = {
    f"{name}-{'.'.join(path)}": (name, path)
    for name, operation in STUDIO.items()
    for schema in [operation.arguments.model_json_schema()]
    for path in numbers(schema, schema.get("$defs", {}))
}


@pytest.mark.parametrize(("name", "path"), NUMBERS.values(), ids=NUMBERS)
def test_a_boolean_is_no_number_of_an_argument(name: str, path: tuple[str, ...]) -> None:
    operation = OPERATIONS[name]
    schema = operation.arguments.model_json_schema()
    models = schema.get("$defs", {})
    for value in (True, False):
        with pytest.raises(ArgumentError, match=rf"argument {'.'.join(path)}: .*Got: {value}"):
            operation.bind(put(schema, models, path, value))


@pytest.mark.parametrize("value", [5, "5", 5.0])
def test_whole_numbers_of_arguments_may_be_texts(studio: Studio, value: Any) -> None:
    assert len(studio.dialogues.list_dialogues({"run": "1"}, limit=value).rows) == 5


def test_a_boolean_is_no_number_of_the_sampling_of_a_chat(studio: Studio) -> None:
    with pytest.raises(ConfigError, match=r"sampling\.seed: Input should be a valid number"):
        studio.chat.start_chat("tiny", sampling={"seed": True})
