"""Links in run folders, missing files, ids of deleted rows, databases and folders of other versions and machines."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from export_builders import CONFIG, ENVIRONMENT, leaky_events, write_run
from json_endpoints import JsonEndpoints
from preflight_report import report
from schema_drift import schema_drift
from typer.testing import CliRunner

from app.cli import app as cli
from app.commands.evaluation import report as report_command
from app.commands.server.serve_model import find_checkpoints
from app.common.context import Context
from app.endpoints.studio import Studio
from app.experiment import Experiment
from app.pages.run.view import heading
from app.static_pages.folder import write_pages
from jobs.chat.checkpoints import run_choices
from jobs.db import schema
from jobs.db.engine import Database
from jobs.db.errors import StoreError
from jobs.db.models import Run
from jobs.db.queries import chats, notes, runs, scheduled_runs, tokens
from jobs.export.datasets.sources import FolderSource
from jobs.export.model.exporter import export_model
from jobs.export.result_folder import collect
from jobs.ingest.ingester import ingest, reindex
from jobs.model_server.models import find_models
from jobs.queue.queue import Queue
from jobs.queue.trash import deleted_runs
from jobs.workspace import Workspace
from rl2f_core.config.loading import dump_yaml, parse_config
from rl2f_core.errors import ConfigError, DataError, RunError
from rl2f_core.evaluation.counterfactual.fork_points import find_dialogue
from rl2f_core.evaluation.report import EvaluatedTasks, build_report
from rl2f_core.evaluation.study.report import read_part
from rl2f_core.evaluation.study.spec import load_study
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import CheckpointEvent, JsonlSink, StatusEvent, encode, read_events
from rl2f_core.run.kinds.eval import eval_config

SECRET = '{"secret": "not of the run"}'


@pytest.fixture
def context(workspace: Workspace, db: Database) -> Context:
    return Context(workspace, db, Queue(db, workspace))


def add_run(context: Context, folder: str = "1-leaky", **columns: Any) -> Run:
    """A run with eight dialogues, and a checkpoint with weights that nothing loads."""
    path = context.workspace.folder(folder)
    write_run(path, leaky_events())
    add_checkpoint(path, "rl@2")
    (number,) = reindex(context.db, context.workspace, [folder])
    return runs.update(context.db, number, **{"status": "succeeded", **columns})


def add_checkpoint(run: Path, name: str) -> Path:
    stage, _, step = name.partition("@")
    path = f"checkpoints/{name}"
    event = CheckpointEvent(id=f"checkpoint:{name}", name=name, stage=stage, step=int(step), path=path, sha256="0" * 64)
    JsonlSink(run / "events.jsonl").emit([event])
    (run / path).mkdir(parents=True)
    (run / path / "adapter_model.safetensors").write_bytes(b"weights")
    (run / path / "adapter_config.json").write_text("{}")
    return run / path


# -- links that leave a run directory --------------------------------------------------------------------------------
def replace_by_link(run: Path, name: str) -> Path:
    """Replace a file of a run by a link to a secret outside; return that file."""
    outside = run.parents[2] / "outside"
    outside.mkdir(exist_ok=True)
    file, target = run / name, outside / Path(name).name
    target.write_text(SECRET)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(target)
    return target


def is_refused(read: Callable[[], object]) -> bool:
    """Whether a reader refuses the link without its content."""
    with pytest.raises(DataError, match="symbolic link") as refused:
        read()
    return "not of the run" not in str(refused.value)


def make_preflight(folder: Path) -> None:
    (folder / "preflight.json").write_text(report().model_dump_json())


def make_fork(folder: Path) -> None:
    base = {name: value for name, value in CONFIG.items() if name != "stages"}
    fork = {"kind": "fork", "source": "x", "dialogue": "d", "checkpoints": {"base": None}}
    (folder / "config.yaml").write_text(dump_yaml(parse_config(base | fork)))


WEIGHTS = "checkpoints/rl@2/adapter_model.safetensors"
LINKED: dict[str, tuple[str, str, Callable[[Studio, int], object]]] = {
    "log": ("train", "log.txt", lambda studio, run: studio.run.run_log(run)),
    "environment": ("train", "meta.json", lambda studio, run: studio.run.run_environment(run)),
    "preflight": ("preflight", "preflight.json", lambda studio, run: studio.launch.get_preflight(run)),
    "text of a preflight": ("preflight", "preflight.txt", lambda studio, run: studio.launch.get_preflight(run)),
    "report of a fork": ("fork", "counterfactual/report.json", lambda studio, run: studio.fork.fork_result(run)),
    "exported weights": ("train", WEIGHTS, lambda studio, run: studio.exports.export_model(run, "rl@2")),
    "evaluated weights": ("train", WEIGHTS, lambda studio, run: studio.run.evaluate_checkpoint(run, "rl@2")),
    "detectors": ("train", "config.yaml", lambda studio, run: studio.detectors.detector_cards(run)),
    "resumed run": ("train", "state/CURRENT", lambda studio, run: studio.run.resume_run(run)),
}


@pytest.mark.parametrize(("kind", "name", "read"), LINKED.values(), ids=LINKED)
def test_an_endpoint_refuses_a_link_that_leaves_the_run(
    context: Context, kind: str, name: str, read: Callable[[Studio, int], object]
) -> None:
    run = add_run(context, kind=kind)
    runs.update(context.db, run.id or 0, status="stopped" if name.startswith("state") else "succeeded")
    folder = context.workspace.folder(run.folder)
    {"train": lambda _: None, "preflight": make_preflight, "fork": make_fork}[kind](folder)
    replace_by_link(folder, name)
    assert is_refused(lambda: read(JsonEndpoints(Studio(context)), run.id or 0))


def test_a_named_pipe_in_a_run_is_refused_instead_of_read(context: Context) -> None:
    run = add_run(context)
    folder = context.workspace.folder(run.folder)
    (folder / "config.yaml").unlink()
    os.mkfifo(folder / "config.yaml")
    with pytest.raises(DataError, match="named pipe"):
        RunDir(folder).checked_path()
    with pytest.raises(DataError, match="named pipe"):
        Studio(context).detectors.detector_cards(run.id or 0)


def test_no_configuration_behind_a_link_is_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "workspace" / "runs" / "run", leaky_events())
    text = (run / "config.yaml").read_text()
    replace_by_link(run, "config.yaml").write_text(text)
    assert is_refused(lambda: RunDir(run).config())
    assert report_command._config(run) == {}


def test_the_chat_offers_no_weights_behind_a_link(context: Context) -> None:
    run = add_run(context)
    assert [choice.checkpoints for choice in run_choices(context.db, context.workspace)] == [["rl@2"]]
    replace_by_link(context.workspace.folder(run.folder), WEIGHTS)
    assert run_choices(context.db, context.workspace) == []


def test_the_page_shows_no_report_behind_a_link_and_names_it(context: Context) -> None:
    run = add_run(context)
    folder = context.workspace.folder(run.folder)
    dialogues = {"base": {"hints": [event.dialogue for event in leaky_events(siblings=1)]}}
    made = build_report(ENVIRONMENT, dialogues, 3, EvaluatedTasks(4, 1, "2 letters"))
    replace_by_link(folder, "evaluation/report.json").write_text(made.to_json())
    assert JsonEndpoints(Studio(context)).run.run_evaluation(run.id or 0) is None
    assert "symbolic link" in str(JsonEndpoints(Studio(context)).run.get_run(run.id or 0)["problem"])


OPENED: dict[str, Callable[[Path, Path], object]] = {
    "rl2f share": lambda run, out: write_pages(run, out),
    "rl2f eval": lambda run, out: eval_config([(run, None)]),
    "rl2f models export": lambda run, out: export_model(run, "rl@2", out, format="peft"),
    "rl2f serve-model": lambda run, out: find_models([(run, "rl@2")], base=False),
    "rl2f export": lambda run, out: FolderSource(run),
    "Python": lambda run, out: Experiment(run),
    "rl2f results": lambda run, out: collect([run], out),
    "rl2f fork": lambda run, out: RunDir(run).resolve_run(str(run)),
}


@pytest.mark.parametrize("name", ["log.txt", "evaluation/report.json", "events.jsonl", WEIGHTS, "link to a folder"])
@pytest.mark.parametrize("read", OPENED.values(), ids=OPENED)
def test_a_command_refuses_a_run_with_a_link_that_leaves_it(
    tmp_path: Path, read: Callable[[Path, Path], object], name: str
) -> None:
    run = write_run(tmp_path / "workspace" / "runs" / "run", leaky_events())
    add_checkpoint(run, "rl@2")
    if name == "link to a folder":
        (run / "evaluation").symlink_to("/etc")
    else:
        replace_by_link(run, name)
    assert is_refused(lambda: read(run, tmp_path / "out"))


@pytest.mark.parametrize("name", ["config.yaml", "events.jsonl", "heartbeat.json"])
@pytest.mark.parametrize("resume", ["study", "train", "train CONFIG"])
def test_a_run_with_a_link_that_leaves_it_is_not_resumed(tmp_path: Path, resume: str, name: str) -> None:
    part = load_study("tiny").parts()[0]
    folder = tmp_path / "workspace" / "study" / part.name
    run_dir = RunDir.create(folder, part.config(None))
    text = run_dir.config_path.read_text()
    (tmp_path / "tiny.yaml").write_text(text)
    replace_by_link(folder, name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    words = ["study", "tiny", "--out", str(folder.parent)] if resume == "study" else ["train", "--resume", str(folder)]
    result = CliRunner().invoke(cli, [*words, *([str(tmp_path / "tiny.yaml")] if resume == "train CONFIG" else [])])
    assert result.exit_code != 0 and "symbolic link" in result.stderr + str(result.exception)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_study_reports_no_metrics_behind_a_link(tmp_path: Path) -> None:
    run = write_run(tmp_path / "workspace" / "runs" / "run", leaky_events())
    dialogues = {"base": {"hints": [event.dialogue for event in leaky_events(siblings=1)]}}
    (run / "evaluation").mkdir()
    (run / "evaluation" / "report.json").write_text(
        build_report(ENVIRONMENT, dialogues, 3, EvaluatedTasks(4, 1, "2 letters")).to_json()
    )
    assert read_part(run) is not None
    replace_by_link(run, "events.jsonl")
    assert is_refused(lambda: read_part(run))


def test_no_prompt_of_a_teacher_is_made_from_events_behind_a_link(context: Context) -> None:
    run = add_run(context)
    folder = context.workspace.folder(run.folder)
    event = next(event for event in leaky_events() if event.dialogue.turns[0].hint is not None)
    replace_by_link(folder, "events.jsonl")
    assert is_refused(lambda: find_dialogue(RunDir(folder), event.id))


def test_a_record_of_a_deleted_run_behind_a_link_is_not_read(context: Context) -> None:
    run = add_run(context)
    context.queue.delete(run.id or 0)
    (trashed,) = context.workspace.trash.iterdir()
    record = (trashed / ".deleted.json").read_text()
    replace_by_link(trashed, ".deleted.json").write_text(record)
    assert deleted_runs(context.workspace) == []
    with pytest.raises(RunError, match="not in the trash"):
        context.queue.restore(run.id or 0)


def test_events_behind_a_link_are_not_stored(context: Context) -> None:
    run = add_run(context)
    replace_by_link(context.workspace.folder(run.folder), "events.jsonl")
    assert is_refused(lambda: ingest(context.db, context.workspace, run))
    assert is_refused(lambda: reindex(context.db, context.workspace, [run.folder]))


def test_links_inside_of_a_run_and_of_the_whole_run_are_followed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "elsewhere" / "run", leaky_events())
    (run / "latest.txt").symlink_to("meta.json")
    (run / "circle").symlink_to("circle")
    (tmp_path / "link").symlink_to(run)
    assert RunDir.open(tmp_path / "link").config().name == "leaky"


# -- missing weights, reused ids, missing folders --------------------------------------------------------------------
@pytest.mark.parametrize("lost", ["the weights", "the folder"])
def test_an_evaluation_names_a_checkpoint_whose_weights_are_missing(tmp_path: Path, lost: str) -> None:
    run = write_run(tmp_path / "run", leaky_events(), stages=[{**CONFIG["stages"][0], "steps": 4, "save_steps": 2}])
    add_checkpoint(run, "rl@2")
    last = add_checkpoint(run, "rl@4")
    assert list(eval_config([(run, None)]).adapters) == ["base", "rl@4"]
    (last / "adapter_model.safetensors").unlink() if lost == "the weights" else shutil.rmtree(last)
    done = CliRunner().invoke(cli, ["eval", str(run), "--out", str(tmp_path / "out")])
    text = done.output + str(done.exception)
    assert done.exit_code != 0 and "rl@4" in text and "weights" in text and "rl@2" in text


def test_a_model_server_names_the_checkpoints_whose_weights_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", leaky_events())
    for name in ("rl@1", "rl@2"):
        add_checkpoint(run, name)
    shutil.rmtree(run / "checkpoints" / "rl@2")
    assert [name for _, name in find_checkpoints([str(run)], None)] == ["rl@1"]
    assert "rl@2" in capsys.readouterr().err


def new_run(context: Context) -> int:
    made = context.queue.add(dump_yaml(parse_config(CONFIG)), start=False)
    return made.id or 0


def delete_run(context: Context, number: int) -> None:
    context.queue.delete(number)


ROWS: dict[str, tuple[Callable[[Context], int], Callable[[Context, int], None]]] = {
    "run": (new_run, delete_run),
    "note": (
        lambda context: notes.add(context.db, 1, "text").id or 0,
        lambda context, number: notes.delete(context.db, number),
    ),
    "schedule": (
        lambda context: scheduled_runs.add(context.db, name="n", trigger="nightly", when="30 2 * * *").id or 0,
        lambda context, number: scheduled_runs.remove(context.db, number),
    ),
    "token": (
        lambda context: tokens.create(context.db, ["read"])[0].id or 0,
        lambda context, number: tokens.revoke(context.db, str(number)) and None,
    ),
    "chat": (
        lambda context: chats.create(context.db, "title", "chat", {}).id or 0,
        lambda context, number: chats.remove(context.db, number),
    ),
}


@pytest.mark.parametrize(("add", "remove"), ROWS.values(), ids=ROWS)
def test_the_id_of_a_deleted_row_is_not_used_again(
    context: Context, add: Callable[[Context], int], remove: Callable[[Context, int], None]
) -> None:
    new_run(context)
    first = add(context)
    remove(context, first)
    context.db.close()
    assert add(context) > first


def test_a_run_whose_folder_has_disappeared_says_so(context: Context) -> None:
    run = add_run(context, status="stopped")
    studio, number = JsonEndpoints(Studio(context)), run.id or 0
    assert studio.run.get_run(number)["problem"] is None
    shutil.rmtree(context.workspace.folder(run.folder))
    for read in (studio.run.run_log, studio.run.run_environment, studio.run.resume_run):
        with pytest.raises(RunError, match=r"does not exist.*restore it or delete the run"):
            read(number)
    assert "does not exist" in str(studio.run.get_run(number)["problem"])
    details = studio.group.run.get_run(number)
    assert "does not exist" in json.dumps(heading(details, "overview", False), default=vars)
    studio.runs.delete_runs([number])


def test_a_run_whose_folder_disappears_while_its_worker_runs_says_so(context: Context) -> None:
    run = add_run(context, pid=2**22 + 1, pid_started=1.0)
    runs.update(context.db, run.id or 0, status="running", sessions=1)
    shutil.rmtree(context.workspace.folder(run.folder))
    context.queue.reap()
    ended = runs.get(context.db, run.id or 0)
    assert ended.status == "interrupted" and "directory has disappeared" in ended.detail


def test_a_lasting_error_of_the_events_is_logged_once(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    run = add_run(context)
    (context.workspace.folder(run.folder) / "events.jsonl").unlink()
    (context.workspace.folder(run.folder) / "events.jsonl").mkdir()
    for _ in range(5):
        context.queue.workers.read(run, to_the_end=True)
    assert caplog.text.count("could not be read") == 1


# -- the database file -----------------------------------------------------------------------------------------------
def test_only_the_owner_reads_the_database_and_its_copies(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        path = tmp_path / "new.sqlite"
        db = Database(f"sqlite:///{path}")
        db.migrate()
        files = [path, path.with_name("new.sqlite-wal"), db.backup(tmp_path / "backups" / "copy.sqlite")]
        db.close()
    finally:
        os.umask(old)
    assert [oct(file.stat().st_mode & 0o777) for file in files if file.exists()] == ["0o600"] * len(
        [file for file in files if file.exists()]
    )


def test_an_older_database_becomes_private(tmp_path: Path, empty_database: bytes) -> None:
    path = tmp_path / "old.sqlite"
    path.write_bytes(empty_database)
    path.chmod(0o644)
    db = Database(f"sqlite:///{path}")
    db.migrate()
    db.close()
    assert path.stat().st_mode & 0o077 == 0


# -- databases and run folders of other versions and machines --------------------------------------------------------
def older_database(path: Path, revision: str) -> None:
    """Create a database as an earlier version did, with run 3, a note and the audit entry of the deleted run 7."""
    script = Path(__file__).resolve().parents[1] / "jobs" / "db" / "old" / "schema_1.sql"
    with sqlite3.connect(path) as first:
        first.executescript(script.read_text("utf-8"))
    db = Database(f"sqlite:///{path}")
    with db._writer.begin() as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        columns = {"name": "'old'", "kind": "'train'", "status": "'stopped'", "folder": "'3-old'", "origin": "'app'"}
        texts = ("environment", "model", "method", "device", "phase", "detail", "config", "worker_location")
        numbers = ("seed", "sessions", "version", "invalid_lines", "position", "created", "done", "events_offset")
        columns |= dict.fromkeys(texts, "''") | dict.fromkeys(numbers, "0")
        connection.exec_driver_sql(
            f"INSERT INTO run (id, {', '.join(columns)}) VALUES (3, {', '.join(columns.values())})"
        )
        connection.exec_driver_sql("INSERT INTO note (run_id, author, text, time) VALUES (3, 'me', 'kept', 1)")
        connection.exec_driver_sql(
            "INSERT INTO auditentry (time, caller, action, arguments, outcome, detail) "
            "VALUES (1, 'browser', 'launch_run', '', 'ok', 'run 7')"
        )
    db.close()


@pytest.mark.parametrize("revision", ["1", "2", "3"])
def test_a_database_of_an_earlier_version_is_migrated_with_its_rows(tmp_path: Path, revision: str) -> None:
    workspace = Workspace(tmp_path / "workspace").create()
    older_database(workspace.database, revision)
    db = Database(workspace.database_url())
    db.migrate()
    context = Context(workspace, db, Queue(db, workspace))
    assert runs.get(db, 3).name == "old" and notes.of_run(db, 3)[0].text == "kept"
    assert new_run(context) == 8, "run 7 of the audit log stays the deleted one"
    assert schema_drift(db) == []
    db.close()


DAMAGED = {
    "another file": b"not a database at all" * 100,
    "a torn header": b"SQLite format 3\x00" + b"\xff" * 50,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "workspace.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"workspace\.sqlite"):
        Database(f"sqlite:///{path}").migrate()
    assert path.read_bytes() == content


def change(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda run: (run / name).write_bytes(edit((run / name).read_bytes())) and None


EVENT = StatusEvent(id="later", status="stopped", time=5.0)
OTHER_VERSIONS: dict[str, tuple[Callable[[Path], None], str]] = {
    "line ends of Windows": (change("events.jsonl", lambda data: data.replace(b"\n", b"\r\n")), ""),
    "a configuration of Windows": (change("config.yaml", lambda data: data.replace(b"\n", b"\r\n")), ""),
    "no record of the environment": (lambda run: (run / "meta.json").unlink(), ""),
    "a record without packages": (change("meta.json", lambda data: b'{"created": 1.0}'), ""),
    "another record": (change("meta.json", lambda data: b"[1]"), ""),
    "a model of another machine": (
        change("config.yaml", lambda data: data.replace(b"tiny-random", b"/home/a/tiny")),
        "",
    ),
    "a key of a later version": (
        change("config.yaml", lambda data: data + b"later_key: 1\n"),
        "later_key: unknown key",
    ),
    "a later kind of run": (
        change("config.yaml", lambda data: data.replace(b"kind: train", b"kind: later")),
        "'later'",
    ),
    "a configuration in Latin-1": (change("config.yaml", lambda data: data + b"# caf\xe9\n"), "cannot be read"),
}


@pytest.mark.parametrize(("edit", "reason"), OTHER_VERSIONS.values(), ids=OTHER_VERSIONS)
def test_a_run_folder_of_another_version_or_machine_is_opened_or_refused_with_a_reason(
    context: Context, tmp_path: Path, edit: Callable[[Path], None], reason: str
) -> None:
    run = write_run(context.workspace.folder("copied"), leaky_events())
    edit(run)
    if reason:
        for read in (lambda: write_pages(run, tmp_path / "pages"), lambda: reindex(context.db, context.workspace)):
            with pytest.raises(ConfigError, match=reason):
                read()
        return
    assert write_pages(run, tmp_path / "pages")["shared"] == 8
    (number,) = reindex(context.db, context.workspace)
    assert runs.get(context.db, number).status == "succeeded"
    assert Studio(context).dialogues.list_dialogues({"run": number}).total == 8


LATER_EVENTS = {
    "a later type of event": {"type": "later", "id": "x", "time": 1.0},
    "an event with a later field": {**json.loads(encode(EVENT)), "later": 1},
    "an event without a field": {"type": "status", "id": "x"},
}


@pytest.mark.parametrize("event", LATER_EVENTS.values(), ids=LATER_EVENTS)
def test_events_of_a_later_version_are_left_out_and_counted(
    context: Context, caplog: pytest.LogCaptureFixture, event: dict[str, Any]
) -> None:
    run = write_run(context.workspace.folder("copied"), leaky_events())
    with open(run / "events.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")
    assert len(list(read_events(run / "events.jsonl"))) == 10
    assert "1 lines of" in caplog.text and "another version" in caplog.text
    (number,) = reindex(context.db, context.workspace)
    assert runs.get(context.db, number).invalid_lines == 1
