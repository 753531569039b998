"""Import of rollouts of other programs."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from export_builders import ENVIRONMENT, answer, event, turn, write_run, wrong
from typer.testing import CliRunner

from app.cli import app
from jobs.db.engine import Database
from jobs.db.models import Run
from jobs.db.queries import dialogues, metrics, runs
from jobs.db.queries.dialogues import DialogueFilter
from jobs.export.datasets.exporter import export
from jobs.export.datasets.resolve_sources import workspace_sources
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource
from jobs.imports.dialogues import DialogueConverter
from jobs.imports.importer import FORMATS, ImportRowsError, ImportSettings, import_file
from jobs.ingest.ingester import reindex
from jobs.labels import annotation_queue
from jobs.labels.annotation_queue import QueueFilter
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.config.loading import validate_config
from rl2f_core.errors import ConfigError, DataError, RunError
from rl2f_core.evaluation.counterfactual.config import CounterfactualRun, inherit_settings
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.learning.training.reproduction import reproduce
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, JsonlSink, encode, read_events
from rl2f_core.run.execute import execute
from rl2f_core.run.kinds.eval import eval_config

INSPECT = Path(__file__).with_name("inspect.eval")
"""A log of inspect_ai 0.3.285: two sums, two epochs, with a hint after the first attempt."""

TRACES = Path(__file__).with_name("verifiers_traces.jsonl")
"""An episode that `write_episode` of verifiers 0.4.0 wrote."""


def system_user(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


HINTED = [user("3 + 4?"), assistant("6"), user("The answer is 7."), assistant("7")]


def write_lines(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def imported(db: Database, workspace: Workspace, path: Path, **options: Any) -> tuple[Run, list[DialogueEvent]]:
    run = import_file(db, workspace, path, ImportSettings(**options))
    events = read_events(workspace.folder(run.folder) / "events.jsonl", strict=True)
    return run, [event for event in events if isinstance(event, DialogueEvent)]


def attempts(event: DialogueEvent) -> list[tuple[str, str | None]]:
    return [(turn.attempt, turn.hint.text if turn.hint else None) for turn in event.dialogue.turns]


# -- formats -------------------------------------------------------------------------------------------------------
def test_completions_of_trl_keep_step_rewards_and_advantage(db: Database, workspace: Workspace, tmp_path: Path):
    table = {  # as GRPOTrainer.log writes it
        "step": [1, 1, 2],
        "prompt": [system_user("3 + 4?"), system_user("3 + 4?"), [user("2 + 2?")]],
        "completion": [[assistant("7")], [assistant("8")], [assistant("4")]],
        "accuracy": [1.0, 0.0, 0.5],
        "length": [0.0, -0.1, float("nan")],
        "note": ["a", "b", "c"],
        "advantage": [0.7, -0.7, 0.0],
    }
    pa.parquet.write_table(pa.table(table), tmp_path / "completions_00002.parquet")
    named = {"accuracy": 1.0, "length": 1.0}
    run, events = imported(db, workspace, tmp_path / "completions_00002.parquet", rewards=list(named))
    assert (run.kind, run.status, run.origin) == ("imported", "succeeded", "imported")
    first, second, third = (event.dialogue for event in events)
    assert [(e.phase, e.step, e.dialogue.solved) for e in events] == [
        ("train", 1, True), ("train", 1, False), ("train", 2, False)
    ]  # fmt: skip
    assert [d.turns[0].advantage for d in (first, second, third)] == [0.7, -0.7, 0.0]
    assert {r.name: r.score for r in second.turns[0].rewards} == {"accuracy": 0.0, "length": -0.1}
    assert [r.name for r in third.turns[0].rewards] == ["accuracy"]
    assert (first.group, first.index, second.index) == (second.group, 0, 1) and third.group != first.group
    assert third.turns[0].verdict.score == 0.5
    assert [row.values["reward"] for row in metrics.steps(db, run.id or 0)] == pytest.approx([0.45, 0.5])


def test_texts_of_trl_are_one_turn(db: Database, workspace: Workspace, tmp_path: Path):
    row = {"step": 3, "prompt": "<|user|>3 + 4?", "completion": "7", "exact": 1.0, "advantage": 0.0}
    pa.parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "c.parquet")
    (event,) = imported(db, workspace, tmp_path / "c.parquet")[1]
    assert attempts(event) == [("7", None)] and event.task.public == {"messages": [user("<|user|>3 + 4?")]}


def test_dumps_of_verl_keep_gold_answer_and_verdict(db: Database, workspace: Workspace, tmp_path: Path):
    row = {"input": "user\n3 + 4?\nassistant\n", "output": "It is 7", "gts": "7", "score": 0.9, "step": 5}
    extra = {"acc": True, "pred": "7"}
    rows = [{**row, **extra}, {**row, "output": "8", "score": -1.0, "acc": False, "pred": "8"}, {**row, "score": 1.0}]
    right, wrong, unjudged = imported(db, workspace, write_lines(tmp_path / "5.jsonl", rows))[1]
    assert right.dialogue.solved and right.dialogue.turns[0].verdict.parsed == "7"
    assert not wrong.dialogue.solved and wrong.dialogue.turns[0].reward == -1.0
    assert unjudged.dialogue.solved, "the score reaches the threshold"
    assert right.task.privileged == {"answer": "7"} and (right.phase, right.step) == ("train", 5)


def test_results_of_verifiers_become_dialogues_with_hints(db: Database, workspace: Workspace, tmp_path: Path):
    row = {"example_id": 0, "prompt": HINTED[:1], "completion": HINTED[1:], "answer": "7", "reward": 1.0,
           "info": {}, "task": "sums", "metrics": {"exact": 1.0}, "is_truncated": False}  # fmt: skip
    failed = {**row, "completion": None, "reward": 0.0, "error": {"error": "Timeout", "error_chain_str": "no reply"}}
    solved, error = imported(db, workspace, write_lines(tmp_path / "results.jsonl", [row, failed]))[1]
    assert attempts(solved) == [("6", "The answer is 7."), ("7", None)]
    assert solved.dialogue.solved_at == 2 and solved.task.level == "sums" and solved.phase == "evaluation"
    assert [turn.reward for turn in solved.dialogue.turns] == [0.0, 1.0]
    assert error.dialogue.stop_reason == "failed" and error.dialogue.error == "no reply"


def episode(*nodes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    trace = {"version": 1, "id": "t", "task": {"type": "Sums", "data": {"answer": "7"}}, "nodes": list(nodes),
             "calls": [{"node": 1, "model": "lab/model"}], "rewards": {"exact": {"score": 1.0, "weight": 2.0}},
             "is_completed": True, "ok": True, "errors": []}  # fmt: skip
    return {"id": "e", "env": {"id": "sums"}, "task": trace["task"], "traces": [{**trace, **changes}], "ok": True}


def node(message: dict[str, Any], parent: int | None, sampled: bool = False) -> dict[str, Any]:
    return {"parent": parent, "message": message, "sampled": sampled, "timestamp": 0.0}


def test_traces_of_verifiers_give_one_dialogue_per_branch(db: Database, workspace: Workspace, tmp_path: Path):
    question, first, hint, second = HINTED
    call = {"id": "1", "type": "function", "name": "add", "arguments": "{}"}
    nodes = [node(question, None), node(first, 0, True), node(hint, 1), node(second, 2, True),
             node({**first, "tool_calls": [call], "reasoning_content": "hm"}, 0, True),
             node({"role": "tool", "content": "7", "tool_call_id": "1"}, 4), node(second, 5, True)]  # fmt: skip
    bare = episode(*nodes[:2])["traces"][0]  # a line of prime-rl's train_rollouts.jsonl
    path = write_lines(tmp_path / "traces.jsonl", [episode(*nodes), bare])
    left, right, single = imported(db, workspace, path)[1]
    assert attempts(left) == [("6", "The answer is 7."), ("7", None)]
    assert right.dialogue.turns[0].verdict.observation == "7" and right.dialogue.turns[0].hint is None
    assert right.dialogue.turns[0].attempt.startswith("<think>\nhm\n</think>\n6\n{") and len(right.dialogue.turns) == 2
    assert left.dialogue.turns[1].reward == 2.0 and left.checkpoint == "lab/model" and left.task.level == "sums"
    assert attempts(single) == [("6", None)]


def test_a_trace_that_verifiers_wrote_is_read(db: Database, workspace: Workspace):
    (event,) = imported(db, workspace, TRACES)[1]
    assert attempts(event) == [("<think>\nhm\n</think>\n6", "The answer is 7."), ("7", None)]
    assert (event.phase, event.step, event.dialogue.solved) == ("train", 9, True)
    assert event.task.privileged == {"answer": "7"}


def test_failed_and_cut_off_traces_say_so(db: Database, workspace: Workspace, tmp_path: Path):
    nodes = [node(HINTED[0], None), node(HINTED[1], 0, True)]
    failed = episode(*nodes, ok=False, errors=[{"type": "Timeout", "message": "no reply"}])
    cut = episode(*nodes, rewards={}, calls=[{"node": 1, "model": "m", "finish_reason": "length"}])
    looped = episode(node(HINTED[1], 0, True))
    path = write_lines(tmp_path / "traces.jsonl", [failed, cut])
    error, short = (event.dialogue for event in imported(db, workspace, path)[1])
    assert (error.stop_reason, error.error) == ("failed", "no reply") and short.stop_reason == "context_full"
    with pytest.raises(ImportRowsError, match=r"line 1: nodes\.0\.parent: 0 is not an earlier node"):
        import_file(db, workspace, write_lines(tmp_path / "loop.jsonl", [looped]))


def test_a_log_of_inspect_is_read_without_its_package(db: Database, workspace: Workspace):
    run, events = imported(db, workspace, INSPECT)
    assert run.detail.startswith("4 rollouts of inspect.eval, 2 with several gold answers, of which only the first")
    sums = [event for event in events if event.task.privileged["answer"] == "7"]
    assert [attempts(event) for event in sums] == [[("6", "Not right: think of seven."), ("So it is 7", None)]] * 2
    assert all(event.dialogue.solved and event.checkpoint == "mockllm/model" for event in events)
    assert {event.task.level for event in events} == {"sums"}
    assert [event.dialogue.index for event in sums] == [0, 1]
    report = RunDir(workspace.folder(run.folder)).evaluation / "report.json"
    (row,) = EvaluationReport.model_validate_json(report.read_bytes()).rows
    assert (row.checkpoint, row.metrics["cum_acc/1"].value, row.metrics["cum_acc/2"].value) == (
        "mockllm/model", None, 1.0
    )  # fmt: skip
    assert run.reward == 1.0
    result = CliRunner().invoke(app, ["report", str(workspace.folder(run.folder))])
    assert result.exit_code == 0 and "mockllm/model" in result.stdout
    assert {r.name: (r.score, r.weight) for r in sums[0].dialogue.turns[1].rewards} == {
        "match": (1.0, 1.0), "includes": (1.0, 0.0)
    }  # fmt: skip


def test_a_json_log_of_inspect_and_few_shot_examples_are_read(db: Database, workspace: Workspace, tmp_path: Path):
    shots = [user("1 + 1?"), assistant("2", source="input"), user("3 + 4?"), assistant("8", source="generate")]
    sample = {"id": 1, "epoch": 1, "messages": shots, "target": ["7", "seven"], "scores": {"match": {"value": "I"}}}
    log = {"version": 2, "eval": {"task": "sums", "model": "m"}, "samples": [sample]}
    (tmp_path / "log.json").write_text(json.dumps(log))
    (event,) = imported(db, workspace, tmp_path / "log.json")[1]
    assert attempts(event) == [("8", None)] and len(event.task.public["messages"]) == 3
    assert not event.dialogue.solved and event.task.privileged == {"answer": "7"}


def test_plain_conversations_need_only_messages(db: Database, workspace: Workspace, tmp_path: Path):
    parts = [user("3 + 4?"), {"role": "assistant", "content": [{"type": "text", "text": "7"}, {"type": "image_url"}]}]
    rows = [{"messages": HINTED}, {"messages": parts, "correct": True}]
    plain, judged = imported(db, workspace, write_lines(tmp_path / "m.jsonl", rows))[1]
    assert attempts(plain)[0] == ("6", "The answer is 7.") and not plain.dialogue.solved and plain.phase == "chat"
    assert attempts(judged) == [("7\n[image_url]", None)] and judged.dialogue.solved


def test_an_imported_export_keeps_problems_phases_verdicts_and_rewards(
    db: Database, workspace: Workspace, tmp_path: Path
):
    """Two codes have the same prompt. Of the folder of an export, only the conversations are read."""

    def solved(name: str, number: int, **place: Any) -> Any:
        task = ENVIRONMENT.task("test" if place else "train", number)
        turns = [turn(task, 0, wrong(task), "Look again."), turn(task, 1, f"<answer>{answer(task)}</answer>", None)]
        return event(task, turns, name=name, **place)

    tested = {"phase": "evaluation", "step": 0, "checkpoint": "rl@2", "condition": "hints"}
    run = write_run(tmp_path / "run", [solved("a", 0), solved("b", 1), solved("c", 2, **tested)])
    every = {"include_test": True}
    export([FolderSource(run)], ExportSettings(files=["jsonl"], filter=every), tmp_path / "out")
    _, events = imported(db, workspace, tmp_path / "out")
    assert sorted(each.phase for each in events) == ["evaluation", "train", "train"]
    assert all(each.dialogue.solved and each.dialogue.reward == 1 for each in events)
    assert len({each.task.id for each in events if each.phase == "train"}) == 2


def test_a_byte_order_mark_is_skipped(db: Database, workspace: Workspace, tmp_path: Path):
    path = write_lines(tmp_path / "m.jsonl", ["\ufeff" + json.dumps({"messages": HINTED})])
    assert len(imported(db, workspace, path)[1]) == 1


# -- errors --------------------------------------------------------------------------------------------------------
def assert_nothing_imported(db: Database, workspace: Workspace) -> None:
    assert runs.page(db).rows == []
    assert [path for path in workspace.runs.rglob("*") if path.is_file()] == []


def test_bad_rows_are_listed_with_their_reason_and_nothing_is_imported(
    db: Database, workspace: Workspace, tmp_path: Path
):
    good = {"messages": HINTED}
    rows = [good, "{", "[1]", {"messages": "x", "reward": "high"}, {"messages": [user("a")]},
            {"messages": [{"role": "robot", "content": ""}]}, good, {"messages": HINTED, "step": -1}]  # fmt: skip
    with pytest.raises(ImportRowsError, match="6 of 8 rows") as caught:
        import_file(db, workspace, write_lines(tmp_path / "m.jsonl", rows))
    reasons = {row.position: row.reason for row in caught.value.bad}
    assert list(reasons) == ["line 2", "line 3", "line 4", "line 5", "line 6", "line 8"]
    assert reasons["line 2"].startswith("is not JSON") and reasons["line 3"].startswith("is not an object")
    assert reasons["line 4"] == "reward: 'high' is not a number"
    assert reasons["line 5"] == "no message of the assistant"
    assert reasons["line 6"] == "messages.0.role: 'robot' is not a role of a message"
    assert reasons["line 8"] == "step: -1 is not a step"
    assert_nothing_imported(db, workspace)


def test_unknown_formats_list_the_known_ones(db: Database, workspace: Workspace, tmp_path: Path):
    path = write_lines(tmp_path / "a.jsonl", [{"question": "?", "text": "!"}])
    with pytest.raises(DataError, match=r"columns question, text .*Known: trl: .*verl: .*verifiers.*inspect.*messages"):
        import_file(db, workspace, path)
    with pytest.raises(DataError, match="Known: trl, verl, verifiers_traces, verifiers, inspect, messages"):
        import_file(db, workspace, path, ImportSettings(format="openrlhf"))
    for name, text in {"a.csv": "Known: .jsonl", "b.jsonl": "no such file"}.items():
        if name == "a.csv":
            (tmp_path / name).write_text("a,b")
        with pytest.raises(DataError, match=text):
            import_file(db, workspace, tmp_path / name)
    assert_nothing_imported(db, workspace)


def test_a_damaged_or_unfinished_log_of_inspect_is_refused(db: Database, workspace: Workspace, tmp_path: Path):
    damaged = bytearray(INSPECT.read_bytes())
    with zipfile.ZipFile(INSPECT) as archive:
        sample = archive.getinfo("samples/a_epoch_1.json")
        damaged[sample.header_offset + 30 + len(sample.filename) + 200] ^= 0xFF
    (tmp_path / "damaged.eval").write_bytes(damaged)
    with pytest.raises(ImportRowsError, match=r"samples/a_epoch_1\.json: unreadable"):
        import_file(db, workspace, tmp_path / "damaged.eval")
    (tmp_path / "text.eval").write_text("no archive")
    with zipfile.ZipFile(tmp_path / "open.eval", "w") as archive:
        archive.writestr("samples/a.json", "{}")
    with zipfile.ZipFile(tmp_path / "header.eval", "w") as archive:
        archive.writestr("header.json", "[]")
    for name, text in {"text.eval": "be read", "open.eval": "not ended", "header.eval": "contains no object"}.items():
        with pytest.raises(DataError, match=text):
            import_file(db, workspace, tmp_path / name)
    assert_nothing_imported(db, workspace)


def test_an_encrypted_or_doubled_sample_of_inspect_gives_no_other_error(
    db: Database, workspace: Workspace, tmp_path: Path
):
    sample = json.dumps({"messages": [assistant("4", source="generate")], "target": "4", "scores": {}})
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("header.json", "{}")
        for name in "aab":
            archive.writestr(f"samples/{name}.json", sample)
    _, events = imported(db, workspace, tmp_path / "log.eval")
    assert [event.dialogue.id for event in events] == ["samples/a.json", "samples/b.json"]
    data = bytearray((tmp_path / "log.eval").read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(mark) + flags] |= 1  # encrypted
    (tmp_path / "secret.eval").write_bytes(data)
    with pytest.raises(ImportRowsError, match=r"samples/b\.json: unreadable: .*encrypted"):
        import_file(db, workspace, tmp_path / "secret.eval")


def test_texts_without_an_encoding_are_kept_with_question_marks(db: Database, workspace: Workspace, tmp_path: Path):
    row = {"prompt": "a", "completion": "b", "reward": 1.0, "task": "\ud800", "error": {"message": "\udfff \U0001f600"}}
    _, (event,) = imported(db, workspace, write_lines(tmp_path / "results.jsonl", [row]))
    assert (event.task.level, event.dialogue.error) == ("?", "? \U0001f600")
    rows = [{"step": 1, "prompt": "a", "completion": "b", "r": 1.0, "advantage": 0.0}]
    rows.append({**rows[0], "\ud800": 1.0})
    with pytest.raises(DataError, match="not valid Unicode text"):
        imported(db, workspace, write_lines(tmp_path / "trl.jsonl", rows))


def test_huge_rewards_and_very_many_branches_are_refused(db: Database, workspace: Workspace, tmp_path: Path):
    message = {"message": assistant("a"), "sampled": True}
    chain = [{**message, "parent": k - 1 if k else None} for k in range(1000)]
    leaves = [{**message, "parent": 999} for _ in range(101)]
    rows = [{"nodes": [*chain, *leaves], "task": {}},
            {"nodes": chain[:1], "task": {}, "rewards": {"r": {"score": 1e308, "weight": 2}}}]  # fmt: skip
    with pytest.raises(ImportRowsError) as caught:
        import_file(db, workspace, write_lines(tmp_path / "traces.jsonl", rows))
    assert [row.reason for row in caught.value.bad] == [
        "nodes: the branches have more than 100,000 messages", "rewards.r.score: 1e+308 is too large"]  # fmt: skip
    assert_nothing_imported(db, workspace)


ODD = (None, True, 3, -1.5, float("nan"), 10**400, "", "\ud800", [], [3], [[]], {}, {"a": 1}, [{"role": "user"}])


def variants(value: Any) -> Iterator[Any]:
    """The value with each part replaced by odd ones, at any depth."""
    yield from ODD
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: other} for other in variants(value[key]))
    elif isinstance(value, list) and value:
        yield from ([*value[:-1], other] for other in variants(value[-1]))


@pytest.mark.parametrize("row", [
    {"step": 1, "prompt": "a", "completion": [assistant("b")], "exact": 1.0, "advantage": 0.0},
    {"input": "a", "output": "b", "gts": "c", "score": 1.0, "step": 1, "acc": 1.0, "pred": "b"},
    {"prompt": HINTED[:1], "completion": HINTED[1:], "answer": "7", "reward": 1.0, "info": {"answer": "7"},
     "error": {"error": "e"}, "is_truncated": True},
    json.loads(TRACES.read_text()),
    {"messages": [assistant("4", source="generate", tool_calls=[{}])], "target": ["4"], "error": {"message": "e"},
     "eval_header": {"model": "m"}, "scores": {"m": {"value": "C", "answer": "4"}},
     "output": {"choices": [{"stop_reason": "stop"}]}},
    {"messages": [user("a"), assistant("b", reasoning_content="c")], "answer": "b", "reward": 1, "step": 1},
], ids=["trl", "verl", "verifiers", "traces", "inspect", "messages"])  # fmt: skip
def test_odd_values_give_a_dialogue_or_a_reason(row: dict[str, Any]):
    format = next(each for each in FORMATS if each.recognizes(frozenset(row)))
    rows = [other for other in variants(row) if isinstance(other, dict)]
    counts = Counter[str]()
    for other in rows[:3000]:
        try:
            converter = DialogueConverter(1.0, format.name)
            for number, rollout in enumerate(format.rollouts(other)):
                encode(converter.convert(rollout, str(number)))
            counts["read"] += 1
        except ValueError as error:
            assert str(error)
            counts["refused"] += 1
    assert counts["read"] and counts["refused"]


# -- an imported run in the workspace ------------------------------------------------------------------------------
@pytest.fixture
def run(db: Database, workspace: Workspace, tmp_path: Path) -> Run:
    """A dialogue whose hint states the gold answer, and one without a gold answer."""
    rows = [{"messages": HINTED, "answer": "7", "correct": True}, {"messages": HINTED}]
    return import_file(db, workspace, write_lines(tmp_path / "chats.jsonl", rows))


def test_an_imported_run_can_be_searched_labeled_exported_and_rebuilt(
    run: Run, db: Database, workspace: Workspace, tmp_path: Path
):
    number = run.id or 0
    assert dialogues.count(db, DialogueFilter(run=number, search="answer is 7")) == 2
    assert dialogues.count(db, DialogueFilter(run=number, search="absent")) == 0
    settings = ExportSettings(formats=("messages",), files=("jsonl",))
    export(workspace_sources(db, workspace, [number]), settings, tmp_path / "out", name="chats")
    line = json.loads((tmp_path / "out" / "messages.jsonl").read_text().splitlines()[0])
    assert [message["content"] for message in line["messages"]] == ["3 + 4?", "6", "The answer is 7.", "7"]
    hints = annotation_queue.queue(db, "anna", QueueFilter(run=number))
    assert [hint.key.turn for hint in hints] == [0, 0]
    assert reindex(db, workspace, [run.folder]) == [number]
    assert dialogues.count(db, DialogueFilter(run=number)) == 2


def test_leaks_are_found_where_a_gold_answer_exists(run: Run, workspace: Workspace):
    arguments = ["leaks", str(run.id), "--json", "--workspace", str(workspace.root), "--detector", "exact"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["hints"], summary["unchecked"], summary["flagged"], summary["errors"]) == (1, 1, 1, 0)


def test_an_imported_run_is_read_only(run: Run, db: Database, workspace: Workspace):
    queue, folder = Queue(db, workspace), RunDir(workspace.folder(run.folder))
    before = folder.events_path.read_bytes()
    with pytest.raises(RunError, match="succeeded"):
        queue.resume(run.id or 0)
    with pytest.raises(RunError, match="cannot be cloned: it is imported"):
        queue.clone_yaml(run.id or 0)
    with pytest.raises(RunError, match="finished"):
        execute(folder.config(), folder, JsonlSink(folder.events_path), bool)
    assert folder.events_path.read_bytes() == before
    with pytest.raises(ConfigError, match="neither sampled nor verified"):
        validate_config(CounterfactualRun, inherit_settings(folder, "chat"))
    with pytest.raises(ConfigError, match="Only training runs"):
        eval_config([(folder.path, None)])
    with pytest.raises(RunError, match="Only training runs"):
        reproduce(folder)


def test_the_command_imports_a_file_and_lists_bad_rows(workspace: Workspace, db: Database, tmp_path: Path):
    path = write_lines(tmp_path / "chats.jsonl", [{"messages": HINTED}])
    result = CliRunner().invoke(app, ["import", str(path), "--workspace", str(workspace.root)])
    assert result.exit_code == 0 and "Imported 1 dialogues as run 1: chats" in result.stdout
    replay = CliRunner().invoke(app, ["replay", str(workspace.folder("imported-chats")), "--dialogue", "1"])
    assert "3 + 4?" in replay.stdout and "The answer is 7." in replay.stdout
    bad = write_lines(tmp_path / "bad.jsonl", [{"messages": HINTED}, {"messages": 3}])
    result = CliRunner().invoke(app, ["import", str(bad), "--workspace", str(workspace.root)])
    assert result.exit_code == 2 and "line 2" in result.stdout and "nothing was imported" in result.output
