"""The ingester: each event once, whatever happens to file, reader and database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from event_data import (
    append,
    config,
    dialogue,
    folder,
    metric,
    read_all,
    small_run,
    status,
    stored_run,
    turn,
)
from sqlalchemy import event as sqlalchemy_event

from jobs.db.engine import Database
from jobs.db.errors import StoreFullError, UnknownRunError
from jobs.db.models import LeakLabel, Run
from jobs.db.queries import dialogues, metrics, notes, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.ingest.ingester import MAX_LOGGED_ERRORS, import_run, ingest, reindex
from jobs.workspace import Workspace
from rl2f_core.errors import RunError
from rl2f_core.run.events import encode
from rl2f_core.types import Hint, LeakReport, RewardTerm, Verdict

TABLES = ("dialogue", "record", "turn", "task", "metric", "checkpoint", "log", "stage")


@pytest.fixture
def db(workspace: Workspace, db: Database) -> Iterator[Database]:
    """The empty database, waited for at most a second."""
    made = Database(workspace.database_url(), timeout=1)
    yield made
    made.close()


def counts(db: Database) -> dict[str, int]:
    """Rows of every table that events fill, and of the full-text index."""
    with db.read() as session:
        ask = session.connection().exec_driver_sql
        return {name: int(ask(f"SELECT count(*) FROM {name}").scalar_one()) for name in (*TABLES, "dialogue_text")}


def turn_rows(db: Database, dialogue_id: int | None) -> list[dict[str, object]]:
    """The rows of a dialogue's turns, without row numbers."""
    with db.read() as session:
        ask = session.connection().exec_driver_sql
        rows = ask('SELECT * FROM turn WHERE dialogue_id = ? ORDER BY "index"', (dialogue_id,)).mappings()
        return [{k: v for k, v in row.items() if k not in ("id", "dialogue_id")} for row in rows]


def contents(db: Database, run_id: int) -> list[object]:
    """Everything events carried, without row numbers."""

    def plain(row: object) -> dict[str, object]:
        data = row.model_dump()  # type: ignore[attr-defined]
        return {k: v for k, v in data.items() if k not in ("id", "dialogue_id", "task_id", "turn_id", "run_id", "run")}

    shown: list[object] = []
    page = dialogues.page(db, DialogueFilter(run=run_id), limit=500)
    for row in page.rows:
        view = dialogues.get(db, run_id, row.event_id)
        shown.append((plain(view.row), view.event, view.findings, turn_rows(db, view.row.id)))
    for found in (metrics.steps(db, run_id), metrics.evaluations(db, run_id), runs.stages(db, run_id)):
        shown += [plain(row) for row in found]
    return shown + [plain(row) for row in (*runs.checkpoints(db, run_id), *runs.logs(db, run_id))]


def test_every_event_of_a_run_becomes_its_rows(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, small_run())
    assert counts(db) == {
        "dialogue": 12, "record": 12, "turn": 24, "task": 6, "metric": 5, "checkpoint": 2,
        "log": 1, "stage": 2, "dialogue_text": 12,
    }  # fmt: skip
    assert run.events_offset == (workspace.folder(run.folder) / "events.jsonl").stat().st_size
    assert run.invalid_lines == 0


def test_a_dialogue_s_columns_are_those_of_its_turns(db: Database, workspace: Workspace) -> None:
    leak = LeakReport(leaked=True, detector="exact", span=(3, 4), evidence="8", answer_fraction=1.0, action="redact")
    told = Hint(text="It is ▓.", feedback="It is 8.", teacher="llm", leak=leak, source_task="guess_number/train/9")
    lost = Verdict(correct=False, score=0.0, parsed=None, detail="no answer")
    played = [
        turn(0, verdict=lost, hint=told, attempt="eight?", advantage=-0.5),
        turn(1, hint=Hint(text="Higher.", teacher="llm"), advantage=None, token_ids=(), logprobs=()),
        turn(2, right=True, advantage=1.5, rewards=(RewardTerm(name="correct", score=1.0, weight=2.0),)),
    ]
    run = stored_run(db, workspace, [dialogue(2, 1, 3, played, policy="rl2f@1", seed=2**40)])
    view = dialogues.get(db, run.id or 0, "dialogue:train:rl2f/2/1/3")
    row = view.row
    assert (row.outcomes, row.solved_at, row.length, row.leak_state, row.stop_reason) == ("?01", 3, 3, 2, "solved")
    assert row.reward == pytest.approx(-0.1 - 0.1 + 2.0)
    assert row.advantage == pytest.approx(0.5)
    assert (row.policy, row.seed, row.index, row.group, row.dialogue_id) == (
        "rl2f@1",
        2**40,
        3,
        "rl2f/2/1",
        "rl2f/2/1/3",
    )
    assert view.event.task.public["text"] == "Guess the number of the green box."
    assert view.event.task.privileged == {"answer": 8}
    assert view.event == dialogue(2, 1, 3, played, policy="rl2f@1", seed=2**40)
    first, second, third = turn_rows(db, row.id)
    assert (first["leak_checked"], first["leak_found"], first["leak_read"], first["detector"]) == (1, 1, 0, "exact")
    assert (first["teacher"], first["is_eligible"], first["correct"]) == ("llm", 1, 0)
    assert view.findings == {0: {"run": leak}}
    assert (second["leak_checked"], second["detector"]) == (0, None)
    assert (third["teacher"], third["is_eligible"], third["correct"], third["reward"]) == (None, 0, 1, 2.0)


def test_reading_again_adds_nothing(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, small_run())
    before, version = counts(db), runs.version(db, run.id)
    assert ingest(db, workspace, run) == 0
    assert (counts(db), runs.version(db, run.id)) == (before, version)


def test_an_event_that_was_played_again_counts_once(db: Database, workspace: Workspace) -> None:
    events = small_run()
    run = stored_run(db, workspace, events)
    before = contents(db, run.id or 0)
    append(workspace.folder(run.folder) / "events.jsonl", *events, *events)
    assert read_all(db, workspace, run) == 2 * len(events)
    assert contents(db, run.id or 0) == before


def test_it_does_not_matter_in_which_pieces_a_file_is_read(db: Database, workspace: Workspace) -> None:
    whole = stored_run(db, workspace, small_run(), "1-whole")
    lines = b"".join(encode(event) for event in small_run())
    made = folder(workspace, "2-pieces")
    run = runs.add(db, runs.of_config(config(), (made / "config.yaml").read_text(), "2-pieces"))
    (made / "events.jsonl").touch()
    for i in range(0, len(lines), 997):
        append(made / "events.jsonl", lines[i : i + 997])
        while ingest(db, workspace, run, limit_bytes=400):
            pass
    assert contents(db, run.id or 0) == contents(db, whole.id or 0)
    again = runs.get(db, run.id or 0)
    for name in ("done", "total", "reward", "tokens_per_second", "events_offset", "invalid_lines"):
        assert getattr(again, name) == getattr(whole, name), name


def test_a_torn_last_line_waits_for_its_end(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, [dialogue(1)])
    path = workspace.folder(run.folder) / "events.jsonl"
    line = encode(dialogue(2))
    append(path, line[:50])
    assert ingest(db, workspace, run) == 0
    append(path, line[50:-1])
    assert ingest(db, workspace, run) == 0
    append(path, b"\n")
    assert ingest(db, workspace, run) == 1
    assert (counts(db)["dialogue"], runs.get(db, run.id or 0).invalid_lines) == (2, 0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\xff\xfe\x00 not JSON\n", "JSON"),
        (b'{"id": "x", "time": 1, "type": "unheard of"}\n', "unheard of"),
        (b'{"id":"x","time":1,"type":"log","text":"\\ud800"}\n', "JSON"),
        (b"[" * 100_000 + b"\n", "JSON"),
        (encode(dialogue(1)).replace(b'"step":1', b'"step":99999999999'), "step"),
        (encode(dialogue(1)).replace(b'"stage":"rl2f"', b'"stage":"' + b"x" * 1001 + b'"'), "stage"),
        (encode(dialogue(1)).replace(b'"logprobs":[-0.5,', b'"logprobs":['), "log-prob"),
        (encode(dialogue(1)).replace(b'"attempt":"<answer>7', b'"attempt":7,"x":"'), "attempt"),
        (encode(dialogue(1, turns=[turn(0), turn(0, right=True)])), "numbered"),
        (encode(dialogue(1)).replace(b'"score":-1.0', b'"score":1e999'), "finite"),
    ],
)
def test_a_line_that_cannot_be_read_is_counted_named_and_left_out(
    line: bytes, said: str, db: Database, workspace: Workspace
) -> None:
    run = stored_run(db, workspace, [dialogue(1, index=1)])
    path = workspace.folder(run.folder) / "events.jsonl"
    at = path.stat().st_size
    append(path, line, dialogue(1, index=2))
    assert ingest(db, workspace, run) == 2
    again = runs.get(db, run.id or 0)
    assert (again.invalid_lines, again.events_offset) == (1, path.stat().st_size)
    assert counts(db)["dialogue"] == 2
    log = runs.logs(db, run.id or 0)[-1]
    assert log.level == "warning" and f"byte {at}" in log.text and said in log.text


def test_of_many_bad_lines_only_some_are_named_and_all_are_counted(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace)
    append(workspace.folder(run.folder) / "events.jsonl", b"?\n" * 15)
    read_all(db, workspace, run)
    append(workspace.folder(run.folder) / "events.jsonl", b"?\n" * 15, b"\n", dialogue(1))
    read_all(db, workspace, run)
    assert runs.get(db, run.id or 0).invalid_lines == 30
    assert len(runs.logs(db, run.id or 0)) == MAX_LOGGED_ERRORS
    assert counts(db)["dialogue"] == 1


def test_an_undefined_number_is_left_out_and_the_rest_of_its_step_is_kept(db: Database, workspace: Workspace) -> None:
    undefined = metric(1, kl=float("nan"), entropy=2.0)
    assert b'"kl":null' in encode(undefined)
    run = stored_run(db, workspace, [undefined])
    assert "kl" not in (values := metrics.steps(db, run.id or 0)[0].values) and values["entropy"] == 2.0


def test_null_characters_in_what_a_model_wrote_do_no_harm(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, [dialogue(1, turns=[turn(0, right=True, attempt="a\0b", hint=None)])])
    assert dialogues.get(db, run.id or 0, "dialogue:train:rl2f/1/0/0").turns[0].attempt == "a\ufffdb"


def test_one_line_longer_than_the_limit_is_read_whole(db: Database, workspace: Workspace) -> None:
    long = dialogue(1, turns=[turn(0, right=True, attempt="x" * 5_000_000)])
    run = stored_run(db, workspace)
    append(workspace.folder(run.folder) / "events.jsonl", long, dialogue(2))
    assert ingest(db, workspace, run, limit_bytes=1000) >= 1
    read_all(db, workspace, run)
    assert counts(db)["dialogue"] == 2


def test_rows_and_offset_are_kept_together_or_not_at_all(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, [dialogue(1)])
    before = counts(db), runs.get(db, run.id or 0).events_offset
    append(workspace.folder(run.folder) / "events.jsonl", *(dialogue(2, index=i) for i in range(200)))
    with db.read() as session:
        pages = session.connection().exec_driver_sql("PRAGMA page_count").scalar()
    db.close()
    limit = {"pages": int(pages or 0) + 3}
    sqlalchemy_event.listen(
        db._engine, "connect", lambda raw, _: raw.execute(f"PRAGMA max_page_count = {limit['pages']}")
    )
    with pytest.raises(StoreFullError, match="disk is full"):
        ingest(db, workspace, run)
    assert (counts(db), runs.get(db, run.id or 0).events_offset) == before
    limit["pages"] = 1_000_000
    db.close()
    assert read_all(db, workspace, run) == 200
    assert counts(db)["dialogue"] == 201


def test_of_two_readers_at_once_one_writes(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace)
    append(workspace.folder(run.folder) / "events.jsonl", *small_run())
    other = Database(str(db.url))
    original = runs.get

    def slower(database: Database, run_id: int) -> Run:
        found = original(database, run_id)
        if database is db:  # between reading the offset and writing, the other reader does all of it
            read_all(other, workspace, run)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "get", slower)
        ingest(db, workspace, run)
    other.close()
    assert counts(db)["dialogue"] == 12 and counts(db)["log"] == 1


def test_a_file_that_became_shorter_is_read_anew_and_nothing_is_doubled(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, small_run())
    path = workspace.folder(run.folder) / "events.jsonl"
    path.write_bytes(b"".join(encode(event) for event in small_run()[:8]))
    append(path, dialogue(9))
    read_all(db, workspace, run)
    assert counts(db)["dialogue"] == 13
    assert runs.get(db, run.id or 0).events_offset == path.stat().st_size
    assert any("is shorter than" in log.text for log in runs.logs(db, run.id or 0))


def test_progress_reward_and_speed_come_from_metrics_and_the_status_does_not(
    db: Database, workspace: Workspace
) -> None:
    run = stored_run(db, workspace, [e for e in small_run() if e.id != "metric:rl2f:3"])
    assert (run.done, run.total, run.reward, run.tokens_per_second) == (4.0, 5.0, 0.2, 10.0)
    assert run.status == "succeeded"
    append(workspace.folder(run.folder) / "events.jsonl", status("failed"), metric(3, "rl2f", reward=0.9))
    read_all(db, workspace, run)
    again = runs.get(db, run.id or 0)
    assert (again.done, again.reward, again.status) == (5.0, 0.9, "succeeded")
    assert again.version > run.version


def test_stages_begin_and_end_with_their_steps(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, [metric(1, "warmup"), metric(2, "warmup"), metric(1)])
    warmup, rl2f = runs.stages(db, run.id or 0)
    assert (warmup.name, warmup.method, warmup.done, warmup.steps) == ("warmup", "sft", 2, 2)
    assert (warmup.started, warmup.ended) == (1000.0, 1020.0)
    assert (rl2f.done, rl2f.steps, rl2f.started, rl2f.ended) == (1, 3, 1000.0, None)


def test_steps_are_numbered_over_all_stages_and_tokens_add_up(db: Database, workspace: Workspace) -> None:
    shown = metric(2, "warmup")
    demonstrated = shown.model_copy(update={"values": {"tokens/demonstrated": 50.0, "time/update": 5.0}})
    evaluation = metric(0, "evaluation:base:hints", reward=0.4)
    run = stored_run(db, workspace, [metric(1, "warmup"), demonstrated, metric(1), evaluation, metric(2)])
    steps = metrics.steps(db, run.id or 0)
    assert [(m.stage, m.step, m.number, m.tokens) for m in steps] == [
        ("warmup", 1, 0, 100.0), ("warmup", 2, 1, 100.0), ("rl2f", 1, 2, 200.0), ("rl2f", 2, 3, 300.0),
    ]  # fmt: skip
    assert [(m.stage, m.number) for m in metrics.evaluations(db, run.id or 0)] == [("evaluation:base:hints", -1)]


def test_an_evaluation_s_reward_is_that_with_hints(db: Database, workspace: Workspace) -> None:
    made = folder(workspace, "1-eval", [metric(0, "evaluation:base:contentless", reward=0.1)])
    row = Run(name="e", kind="eval", folder="1-eval", config=(made / "config.yaml").read_text())
    run = runs.add(db, row)
    read_all(db, workspace, run)
    append(made / "events.jsonl", metric(0, "evaluation:base:hints", reward=0.6))
    read_all(db, workspace, run)
    again = runs.get(db, run.id or 0)
    assert (again.reward, again.done, again.total, runs.stages(db, run.id or 0)) == (0.6, 0.0, None, [])


def test_a_task_is_kept_once_a_run(db: Database, workspace: Workspace) -> None:
    one = stored_run(db, workspace, [dialogue(1, index=i) for i in range(5)], "1-one")
    append(workspace.folder(one.folder) / "events.jsonl", dialogue(1, index=6))
    read_all(db, workspace, one)
    stored_run(db, workspace, [dialogue(1)], "2-two")
    assert counts(db)["task"] == 2


def test_a_run_that_was_deleted_meanwhile_is_a_plain_error(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, small_run())
    runs.remove(db, run.id or 0)
    with pytest.raises(UnknownRunError, match=r"There is no run \d+\."):
        ingest(db, workspace, run)


def test_a_run_without_an_event_file_has_nothing_to_read(db: Database, workspace: Workspace) -> None:
    run = runs.add(db, Run(name="n", kind="eval", folder="nowhere"))
    assert ingest(db, workspace, run) == 0


@pytest.mark.slow
def test_reindex_rebuilds_equal_rows_and_keeps_labels_and_notes(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, small_run())
    other = stored_run(db, workspace, small_run(), "2-other")
    assert run.id and other.id
    event = "dialogue:train:rl2f/2/1/0"
    notes.add(db, run.id, "of the run")
    notes.add(db, run.id, "of a turn", event=event, turn=1)
    runs.set_tags(db, run.id, ["good"])
    with db.write() as session:
        for labeller in ("ada", "bob"):
            session.add(LeakLabel(run_id=run.id, event_id=event, turn=0, annotator=labeller, label="leak", time=1.0))
    before, rows = [contents(db, i) for i in (run.id, other.id)], counts(db)
    assert reindex(db, workspace, ["1-small"]) == [run.id]
    assert reindex(db, workspace) == [run.id, other.id]
    labelled = dialogues.get(db, run.id, event)
    assert labelled.row.label_count == 1
    with db.write() as session:
        session.get(type(labelled.row), labelled.row.id).label_count = 0  # type: ignore[union-attr]
    assert ([contents(db, i) for i in (run.id, other.id)], counts(db)) == (before, rows)
    assert [note.text for note in notes.of_run(db, run.id)] == ["of the run", "of a turn"]
    assert [note.text for note in labelled.notes] == ["of a turn"]
    assert [label.annotator for label in labelled.labels[0]] == ["ada", "bob"]
    assert runs.tags(db, run.id) == ["good"]
    after = runs.get(db, run.id)
    assert (after.done, after.total, after.reward, after.status) == (run.done, run.total, run.reward, run.status)


def test_reindex_mends_what_was_lost_or_changed(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, small_run())
    assert run.id
    before, rows = contents(db, run.id), counts(db)
    with db.write() as session:
        ask = session.connection().exec_driver_sql
        ask("UPDATE record SET content = replace(content, 'answer', 'changed')")
        ask("DELETE FROM metric WHERE step = 2")
        ask("DELETE FROM dialogue_text")
        ask("UPDATE run SET events_offset = 17, done = 99, reward = 7")
    reindex(db, workspace)
    assert (contents(db, run.id), counts(db)) == (before, rows)
    assert dialogues.page(db, DialogueFilter(run=run.id, search="answer")).total == 12


def test_reindex_adds_folders_that_have_no_row(db: Database, workspace: Workspace) -> None:
    folder(workspace, "from-the-command-line", small_run())
    folder(workspace, "cut-off", small_run()[:-1], seed=7)
    folder(workspace, "never-begun")
    assert len(reindex(db, workspace)) == 3
    found = {run.folder: run for run in runs.page(db).rows}
    ended = found["from-the-command-line"]
    assert (ended.status, ended.origin, ended.started, ended.ended) == ("succeeded", "imported", 990.0, 1050.0)
    assert (ended.environment, ended.method, ended.model, ended.kind) == ("guess_number", "rl2f", "tiny", "train")
    assert (ended.done, ended.total) == (5.0, 5.0)
    assert (found["cut-off"].status, found["cut-off"].seed) == ("interrupted", 7)
    assert (found["never-begun"].status, found["never-begun"].detail) == ("stopped", "It was never started.")
    assert sorted(reindex(db, workspace)) == sorted(run.id for run in found.values() if run.id)
    assert len(runs.page(db).rows) == 3


def test_a_folder_that_another_process_runs_is_not_added_now(db: Database, workspace: Workspace) -> None:
    from rl2f_core.run.directory import RunDir

    made = folder(workspace, "busy", small_run()[:3])
    with RunDir(made).lock():
        assert import_run(db, workspace, "busy") is None
        assert reindex(db, workspace) == []
    assert len(reindex(db, workspace)) == 1


def test_a_name_that_is_no_run_s_folder_is_refused(db: Database, workspace: Workspace) -> None:
    folder(workspace, "there")
    (workspace.root / "config.yaml").write_text("a: 1")
    for name in ("nowhere", "..", "../..", "/etc"):
        with pytest.raises(RunError, match=r"folder contains no run.*there"):
            reindex(db, workspace, [name])


def test_a_run_whose_folder_is_gone_stays_as_it_is(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, small_run())
    before = counts(db)
    for path in sorted(workspace.folder(run.folder).rglob("*"), reverse=True):
        path.unlink()
    workspace.folder(run.folder).rmdir()
    assert reindex(db, workspace) == []
    assert counts(db) == before


def test_checkpoints_and_log_messages_are_ingested(db: Database, workspace: Workspace) -> None:
    run = stored_run(db, workspace, small_run())
    found = runs.checkpoints(db, run.id or 0)
    assert [(c.name, c.path, c.sha256) for c in found] == [
        ("warmup@2", "checkpoints/warmup@2", "ab" * 32), ("rl2f@3", "checkpoints/rl2f@3", "ab" * 32),
    ]  # fmt: skip
    assert [log.text for log in runs.logs(db, run.id or 0)] == ["All went well."]
