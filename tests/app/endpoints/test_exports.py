"""Endpoints of exports, and the download of their files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from export_builders import leaky_events, write_run
from json_endpoints import JsonEndpoints
from model_runs import write_model_run
from starlette.testclient import TestClient
from workspace_copies import build_once

from app.common.context import Context
from app.endpoints.exports import ExportEndpoints
from app.endpoints.run import RunEndpoints
from app.forms.allowlist import list_runs
from app.pages.exports.view import export_list
from app.pages.run.view import child_table
from jobs.db.engine import Database
from jobs.db.errors import NotFoundError
from jobs.db.models import Run
from jobs.db.queries import runs
from jobs.export.datasets.exporter import export
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import WorkspaceSource
from jobs.ingest.ingester import reindex
from jobs.labels import label_queries
from jobs.labels.label_queries import LabelAnswer
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.errors import RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute


@pytest.fixture
def exports(context: Context) -> Any:
    """The endpoints of exports over an empty workspace."""
    return JsonEndpoints(ExportEndpoints(context))


@pytest.fixture
def files(context: Context) -> Iterator[TestClient]:
    """The routes of files alone, with the app's answers to errors."""
    with serving_files(context) as client:
        yield client


@contextmanager
def serving_files(context: Context) -> Iterator[TestClient]:
    from fastapi import FastAPI

    from app.web import files
    from app.web.server import _handle_errors

    made = FastAPI()
    _handle_errors(made)
    made.include_router(files.router(context))
    with TestClient(made, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def number(context: Context) -> int:
    """A recorded run in the workspace with one label of a person."""
    return add_leaky(context)


def add_leaky(context: Context) -> int:
    def add() -> None:
        write_run(context.workspace.folder("leaky"), leaky_events())
        (made,) = reindex(context.db, context.workspace)
        label_queries.put(context.db, made, leaky_events()[0].id, 0, "ann", LabelAnswer(label="leak"))

    build_once(context.db, context.workspace, b"leaky", add)
    return runs.page(context.db).rows[0].id or 0


def publish(context: Context, number: int, folder: str = "9-sets", **settings: Any) -> None:
    source = WorkspaceSource(context.db, context.workspace, runs.get(context.db, number))
    export([source], ExportSettings(**settings), context.workspace.exports / folder, name="sets <b>")


def test_an_empty_workspace_has_nothing_to_export(exports: ExportEndpoints) -> None:
    assert exports.list_exports() == {"finished": [], "models": [], "active": [], "failed": []}
    choices = exports.export_choices()
    assert choices["runs"] == [] and choices["formats"][0]["name"] == "stepwise_supervision"
    assert exports.count_export([]) == {"dialogues": 0, "labeled": 0, "excluded": []}


def test_the_choices_are_those_of_the_runs(exports: ExportEndpoints, number: int) -> None:
    choices = exports.export_choices([number])
    assert [(run["id"], run["name"], run["kind"]) for run in choices["runs"]] == [(number, "leaky", "train")]
    assert choices["annotators"] == ["ann"] and choices["phases"] == ["train"] and choices["steps"] == 2


def test_a_run_before_many_exports_is_still_offered(exports: ExportEndpoints, context: Context, number: int) -> None:
    with context.db.write() as session:
        session.add_all(
            Run(name="sets", folder=f"{i}-sets", kind="export", config="", seed=0, status="succeeded", created=2e9)
            for i in range(200)
        )
    assert [run["id"] for run in exports.export_choices()["runs"]] == [number]
    assert [option.value for option in list_runs(context.db)] == ["leaky"]


def test_the_count_is_that_of_the_export(exports: ExportEndpoints, number: int) -> None:
    def count(**filter: Any) -> Any:
        found = exports.count_export([number], filter)
        return found["dialogues"], found["labeled"]

    assert count() == (8, 1) and count(step_to=1) == (4, 1)
    assert count(labeled_only=True) == (1, 1) and count(condition="shuffled") == (0, 0)


def test_controls_that_the_filter_excludes_are_counted(exports: ExportEndpoints, context: Context, number: int) -> None:
    control = {"phase": "evaluation", "checkpoint": "rl@1", "condition": "shuffled"}
    events = [event.model_copy(update={"id": f"{event.id}:control", **control}) for event in leaky_events()]
    write_run(context.workspace.folder("controls"), [*leaky_events(), *events])
    _, run = sorted(reindex(context.db, context.workspace))
    assert exports.count_export([run, number])["dialogues"] == 16
    assert exports.count_export([run])["excluded"] == [
        {"field": "include_controls", "dialogues": 8, "what": "of controls"}
    ]
    assert exports.count_export([run], {"include_controls": True}) == {"dialogues": 16, "labeled": 0, "excluded": []}


def test_dialogues_with_a_hint_of_a_control_teacher_are_counted_as_the_export_counts_them(
    exports: ExportEndpoints, context: Context
) -> None:
    events = leaky_events()
    turns = [turn.model_copy(update={"hint": turn.hint and turn.hint.model_copy(update={"teacher": "contentless"})})
             for turn in events[0].dialogue.turns]  # fmt: skip
    events[0] = events[0].model_copy(update={"dialogue": events[0].dialogue.model_copy(update={"turns": tuple(turns)})})
    write_run(context.workspace.folder("control"), events)
    (run,) = reindex(context.db, context.workspace)
    found = exports.count_export([run])
    assert found["dialogues"] == len(events) - 1 and found["excluded"][0]["dialogues"] == 1


@pytest.mark.parametrize(
    ("run_ids", "filter", "error"),
    [
        ([99], {}, "There is no run 99"),
        (["1;2"], {}, "argument runs.0"),
        ([0], {}, "argument runs.0"),
        ([1], {"phase": "nonsense"}, "phase"),
        ([1], {"step_from": -1}, "step_from"),
        ([1], {"step_to": 2**31}, "step_to"),
        ([1], {"stage": "x" * 1001}, "stage"),
        ([1], {"checkpoint": "x" * 1001}, "checkpoint"),
        ([1], {"condition": "x" * 1001}, "condition"),
        ([1], {"control": "hints"}, "control: unknown key"),
        ([1] * 2000, {}, "argument runs"),
    ],
)
def test_an_invalid_count_names_the_argument(
    exports: ExportEndpoints, number: int, run_ids: list[Any], filter: dict[str, Any], error: str
) -> None:
    with pytest.raises(RL2FError, match=error):
        exports.count_export(run_ids, filter)


def test_starting_puts_an_export_into_the_queue(exports: ExportEndpoints, context: Context, number: int) -> None:
    queued = exports.start_export([number], {"name": "my sets", "formats": ["messages"]})
    row = runs.get(context.db, queued["run"])
    assert (row.kind, row.status, row.parent, row.name) == ("export", "queued", number, "my sets")
    (waiting,) = exports.list_exports()["active"]
    assert waiting["run"] == row.id and waiting["status"] == "queued"
    context.queue.stop(queued["run"])
    assert [job["run"] for job in exports.list_exports()["failed"]] == [row.id]
    context.queue.delete(queued["run"])
    assert exports.list_exports()["failed"] == []


@pytest.mark.parametrize(
    ("run_ids", "settings", "error"),
    [
        ([], {}, "runs"),
        ([99], {}, "There is no run 99"),
        ([1], {"formats": []}, "formats"),
        ([1], {"name": "../../x"}, "name"),
        ([1], {"out": "/etc"}, "out: unknown key"),
        ("1", {}, "runs"),
    ],
)
def test_an_invalid_export_is_refused_and_queues_nothing(
    exports: ExportEndpoints, context: Context, number: int, run_ids: Any, settings: dict[str, Any], error: str
) -> None:
    with pytest.raises(RL2FError, match=error):
        exports.start_export(run_ids, settings)
    assert len(runs.page(context.db).rows) == 1


def test_the_kind_of_an_export_cannot_be_changed(exports: ExportEndpoints, context: Context, number: int) -> None:
    with pytest.raises(RL2FError, match="kind: unknown key"):
        exports.start_export([number], {"kind": "train"})
    assert len(runs.page(context.db).rows) == 1


def test_the_files_of_finished_exports_can_be_downloaded(
    exports: ExportEndpoints, files: TestClient, context: Context, number: int
) -> None:
    publish(context, number)
    (row,) = exports.list_exports()["finished"]
    assert row["name"] == "sets <b>" and row["dialogues"] == 8 and row["bytes"] > 1000
    assert {f["name"]: f["rows"] for f in row["formats"]}["messages"] == 8
    for file in row["files"]:
        answer = files.get(f"/exports/9-sets/{file['name']}")
        assert answer.status_code == 200 and len(answer.content) == file["bytes"]
        assert answer.headers["content-disposition"] == f'attachment; filename="9-sets-{file["name"]}"'
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"] == "application/octet-stream"
    part = files.get(f"/exports/9-sets/{row['files'][-1]['name']}", headers={"Range": "bytes=0-9"})
    assert part.status_code == 206 and len(part.content) == 10


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory, empty_database: bytes) -> Iterator[TestClient]:
    """The routes of files over a workspace with an export and files that do not belong to one."""
    workspace = Workspace(tmp_path_factory.mktemp("secrets") / "workspace").create()
    workspace.database.write_bytes(empty_database)
    db = Database(workspace.database_url())
    context = Context(workspace, db, Queue(db, workspace))
    publish(context, add_leaky(context))
    (workspace.exports / "9-sets" / "secret.txt").write_text("private")
    (workspace.exports / ".hidden.1.tmp").mkdir()
    (workspace.exports / ".hidden.1.tmp" / "manifest.json").write_text("{}")
    with serving_files(context) as client:
        assert client.get("/exports/9-sets/manifest.json").status_code == 200
        yield client
    db.close()


@pytest.mark.parametrize(
    "path",
    [
        "9-sets/secret.txt",
        "9-sets/..%2F..%2Frl2f.sqlite",
        "..%2F..%2Frl2f.sqlite",
        "%2e%2e/rl2f.sqlite",
        "..%2Fruns%2Fleaky/config.yaml",
        "9-sets/%2e%2e%2f%2e%2e%2fsecret",
        ".hidden.1.tmp/manifest.json",
        "9-sets/preference.jsonl%00",
        "nothing/manifest.json",
    ],
)
def test_no_other_file_can_be_downloaded(secrets: TestClient, path: str) -> None:
    answer = secrets.get(f"/exports/{path}")
    assert answer.status_code in (400, 404) and "private" not in answer.text


def test_deleting_removes_the_files_and_refuses_other_folders(
    exports: ExportEndpoints, context: Context, number: int
) -> None:
    publish(context, number)
    for folder in ("..", "../runs", "nothing", "", "/etc"):
        with pytest.raises(NotFoundError):
            exports.delete_export(folder)
    exports.delete_export("9-sets")
    assert list(context.workspace.exports.iterdir()) == [] and exports.list_exports()["finished"] == []


def test_a_damaged_manifest_hides_only_its_export(exports: ExportEndpoints, context: Context, number: int) -> None:
    publish(context, number, "1-good")
    publish(context, number, "2-bad")
    (context.workspace.exports / "2-bad" / "manifest.json").write_text("{")
    assert [each["folder"] for each in exports.list_exports()["finished"]] == ["1-good"]


# -- models ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def trained(context: Context, tiny: Path) -> int:
    """A run in the workspace with the checkpoint `rl@2`."""
    write_model_run(context.workspace.folder("trained"), tiny, ["rl@2"])
    (made,) = reindex(context.db, context.workspace)
    return made


def test_a_queued_model_export_writes_files_that_can_be_downloaded(
    exports: ExportEndpoints, files: TestClient, context: Context, trained: int
) -> None:
    queued = exports.export_model(trained, "rl@2", "peft")
    row = runs.get(context.db, queued["run"])
    assert (row.kind, row.status, row.device, row.parent) == ("model_export", "queued", "none", trained)
    assert [job["name"] for job in exports.list_exports()["active"]] == ["rl@2 as peft"]
    run_dir = RunDir.open(context.workspace.folder(row.folder))
    result = execute(run_dir.config(), run_dir, JsonlSink(run_dir.events_path), lambda: False)
    assert result.status == "succeeded", result
    listed = exports.list_exports()
    (model,) = listed["models"]
    assert listed["finished"] == [] and (model["checkpoint"], model["format"], model["base"]) == (
        "rl@2",
        "peft",
        "tiny",
    )
    names = [file["name"] for file in model["files"]]
    assert names == ["README.md", "adapter_config.json", "adapter_model.safetensors", "manifest.json"]
    sent = files.get(f"/exports/{model['folder']}/adapter_model.safetensors")
    saved = context.workspace.folder("trained") / "checkpoints" / "rl@2" / "adapter_model.safetensors"
    assert sent.status_code == 200 and sent.content == saved.read_bytes()
    page = str(export_list(exports.group.list_exports(), writable=True))
    assert f"/exports/{model['folder']}/README.md" in page and "leaky rl@2, peft" in page
    runs.update(context.db, row.id, status="succeeded")
    assert exports.list_exports()["models"][0]["run"] == trained
    listed = export_list(exports.group.list_exports(), writable=True, shown=row.folder)
    assert f"/run?run={trained}&tab=checkpoints" in str(listed) and "'data-show': True" in str(listed)
    children = RunEndpoints(context).get_run(trained).children
    assert f"/exports?show={row.folder}" in str(child_table(children))
    exports.delete_export(model["folder"])
    assert exports.list_exports()["models"] == []


def test_an_unknown_checkpoint_or_format_of_a_model_queues_nothing(
    exports: ExportEndpoints, context: Context, trained: int
) -> None:
    for arguments, error in (
        (("rl@3", "peft"), "no such checkpoint"),
        (("../../x@2", "peft"), "no such checkpoint"),
        (("rl@2", "pickle"), "Models cannot be exported"),
        (("rl@2", "safetensors", "int8"), "argument dtype"),
    ):
        with pytest.raises(RL2FError, match=error):
            exports.export_model(trained, *arguments)
    assert len(runs.page(context.db).rows) == 1
