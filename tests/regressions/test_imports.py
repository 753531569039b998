"""Imports of rollouts keep their structure; public bug reports of log readers, in every format."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from json_endpoints import JsonEndpoints
from typer.testing import CliRunner

from app.cli import app
from app.common.context import Context
from app.components.elements.replay import group_kind, group_view
from app.endpoints.dialogues import DialogueEndpoints
from app.endpoints.run import RunEndpoints
from app.experiment import Experiment
from jobs.db.engine import Database
from jobs.db.queries import dialogues, outcomes
from jobs.db.queries.dialogues import DialogueFilter
from jobs.export.datasets.dataset_types import messages
from jobs.export.datasets.export_records import TaskRenderer, from_event
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.dialogue.metrics.dialogues import compute_metrics
from rl2f_core.evaluation.report import EvaluationReport
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import DialogueEvent, read_events

LOGS = Path(__file__).parents[1] / "jobs" / "imports" / "logs"
"""Written by TRL, verl, verifiers and Inspect; see `write_logs.py` beside it."""
NAN = float("nan")
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "3 + 4?"}
HINT = {"role": "user", "content": "Check it."}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


SEVEN = said("7")


# -- one row of every format ---------------------------------------------------------------------------------------
def trl(reward: object = 1.0, **more: Any) -> dict[str, Any]:
    return {"step": 1, "prompt": [SYSTEM, QUESTION], "completion": [SEVEN], "exact": reward, "advantage": 0.0, **more}


def verl(reward: object = 1.0, **more: Any) -> dict[str, Any]:
    prompt = "system\nBe brief.\nuser\n3 + 4?\nassistant\n"
    return {"input": prompt, "output": "7", "gts": "7", "score": reward, "step": 1, **more}


def results(reward: object = 1.0, **more: Any) -> dict[str, Any]:
    return {"prompt": [SYSTEM, QUESTION], "completion": [SEVEN], "answer": "7", "reward": reward, "task": "t", **more}


def trace(reward: object = 1.0, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    parts = messages or (SYSTEM, QUESTION, SEVEN)
    nodes = [
        {"message": m, "parent": k - 1 if k else None, "sampled": m["role"] == "assistant"} for k, m in enumerate(parts)
    ]
    task = {"type": "t", "data": {"answer": "7"}}
    rewards = {"exact": {"score": reward, "weight": 1.0}}
    one = {"task": task, "nodes": nodes, "calls": [], "rewards": rewards, "ok": True}
    return {"id": "e", "env": {"id": "t"}, "task": task, "traces": [one], "ok": True, **more}


def sample(value: object = 1.0, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    listed = [{"source": "generate", **m} if m["role"] == "assistant" else m for m in messages]
    listed = listed or [SYSTEM, QUESTION, said("7", source="generate")]
    return {"id": 1, "epoch": 1, "messages": listed, "target": "7", "scores": {"match": {"value": value}}, **more}


def chat(reward: object = 1.0, **more: Any) -> dict[str, Any]:
    return {"messages": [SYSTEM, QUESTION, SEVEN], "answer": "7", "reward": reward, **more}


ROWS = {"trl": trl, "verl": verl, "verifiers": results, "traces": trace, "inspect": sample, "messages": chat}
every_format = pytest.mark.parametrize("name", ROWS)


# -- imports by the command ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))


def shown(node: Any) -> str:
    """Return the text of an element."""
    return node if isinstance(node, str) else "".join(shown(child) for child in node[2:])


def write(path: Path, name: str, rows: Iterable[object]) -> Path:
    """Write rows in a format's kind of file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "inspect":
        log = {"version": 2, "eval": {"task": "t", "model": "m"}, "samples": list(rows)}
        path.write_text(json.dumps(log))
        return path
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


class Imported:
    """A run that `rl2f import` made."""

    def __init__(self, workspace: Workspace, path: Path, *options: str) -> None:
        before = set(workspace.runs.glob("imported-*")) if workspace.runs.is_dir() else set()
        arguments = ["import", str(path), "--workspace", str(workspace.root), *options]
        self.result = CliRunner().invoke(app, arguments, env={"COLUMNS": "500"})
        folders = set(workspace.runs.glob("imported-*")) - before
        self.workspace, self.folders = workspace, sorted(folders)

    @property
    def output(self) -> str:
        return " ".join(self.result.output.split())

    @property
    def folder(self) -> Path:
        assert self.result.exit_code == 0, self.output
        (folder,) = self.folders
        return folder

    @property
    def events(self) -> list[DialogueEvent]:
        events = read_events(self.folder / "events.jsonl", strict=True)
        return [event for event in events if isinstance(event, DialogueEvent)]

    def verdicts(self) -> list[str]:
        """Return the outcomes of each dialogue's turns: `1`, `0`, `?`, and `-` without a verdict."""
        turns = [[turn.verdict for turn in event.dialogue.turns] for event in self.events]
        return ["".join("-" if v.correct is None else "1" if v.correct else "0" for v in each) for each in turns]

    def rewards(self) -> list[float | None]:
        return [getattr(event.dialogue, "reward", "no reward") for event in self.events]  # type: ignore[misc]

    def exported(self) -> list[dict[str, Any]]:
        """Return the rows of the export `messages`."""
        renderer = TaskRenderer.of(RunDir(self.folder).config())
        records = [from_event(event, "1", "run", renderer) for event in self.events]
        return [row for record in records for row in messages(record, [None] * len(record.turns))]


def imported(workspace: Workspace, path: Path, name: str, rows: Iterable[object], *options: str) -> Imported:
    file = path / ("log.json" if name == "inspect" else "log.jsonl")
    return Imported(workspace, write(file, name, rows), *options)


# -- structure -----------------------------------------------------------------------------------------------------
@every_format
def test_prompts_with_roles_keep_them_in_exports(workspace: Workspace, tmp_path: Path, name: str) -> None:
    (row,) = imported(workspace, tmp_path, name, [ROWS[name]()]).exported()
    assert row["messages"] == [SYSTEM, QUESTION, SEVEN]


def test_roles_of_rendered_prompts_are_read_if_they_are_unambiguous(workspace: Workspace, tmp_path: Path) -> None:
    prompts = {
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n3 + 4?<|im_end|>\n<|im_start|>assistant\n": "SUA",
        "user\n1 + 1?\nassistant\n2\nuser\n3 + 4?\nassistant\n": "UAUA",
        "user\nThe role is\nuser\nIs it?\nassistant\n": "UA",
        "3 + 4?": "UA",
    }
    rows = imported(workspace, tmp_path, "verl", [verl(input=prompt) for prompt in prompts]).exported()
    roles = ["".join(message["role"][0].upper() for message in row["messages"]) for row in rows]
    assert roles == list(prompts.values())


@every_format
def test_a_reward_that_is_no_number_is_unknown(workspace: Workspace, tmp_path: Path, name: str) -> None:
    run = imported(workspace, tmp_path, name, [ROWS[name](1.0), ROWS[name](NAN)])
    assert run.verdicts() == ["1", "-"] and run.rewards() == [1.0, None]
    assert "2 rollouts of" in run.output and "1 without a verdict, 1 without a known reward" in run.output
    known, unknown = run.exported()
    assert known["rewards"] == [1.0] and unknown["rewards"] == [None]
    assert unknown["verdicts"] == [
        {"correct": None, "score": None, "parsed": "", "parsable": None, "well_formed": None}
    ]  # fmt: skip
    assert unknown["solved_at"] is None


def test_unknown_verdicts_and_rewards_count_in_no_mean(workspace: Workspace, tmp_path: Path) -> None:
    run = imported(workspace, tmp_path, "verl", [verl(1.0), verl(0.0), verl(NAN)], "--phase", "evaluation")
    report = EvaluationReport.model_validate_json((run.folder / "evaluation" / "report.json").read_bytes())
    values = report.rows[0].metrics.values
    assert (values["cum_acc/1"].value, values["cum_acc/1"].n) == (0.5, 2)
    assert (values["reward"].value, values["reward"].n) == (0.5, 2)
    assert values["outcome/incorrect"].value == 0.5 and values["parse_failure_rate"].n == 2
    assert "1 of 3 dialogues have no verdict" in report.notes[-1]
    frame = Experiment(run.folder).dialogues()
    assert frame.reward.mean() == 0.5 and frame.solved.dropna().mean() == 0.5


def test_the_curve_of_the_reward_has_no_point_without_a_known_one(workspace: Workspace, tmp_path: Path) -> None:
    rows = [trl(1.0), trl(NAN), trl(0.0), trl(NAN, step=2)]
    run = imported(workspace, tmp_path, "trl", rows)
    assert [(m.step, m.reward) for m in Experiment(run.folder).metrics().itertuples()] == [(1, 0.5)]


@pytest.mark.parametrize(("name", "row", "verdicts"), [
    ("verifiers", results(completion=[said("6"), HINT, SEVEN]), "-1"),
    ("traces", trace(1.0, SYSTEM, QUESTION, said("6"), HINT, SEVEN), "-1"),
    ("inspect", sample(1.0, SYSTEM, QUESTION, said("6"), HINT, SEVEN), "-1"),
    ("messages", {"messages": [QUESTION, said("6"), HINT, SEVEN], "correct": True}, "-1"),
    ("messages", {"messages": [QUESTION, said("6"), HINT, SEVEN]}, "--"),
    ("trl", trl(completion=[said("6"), HINT, SEVEN]), "-1"),
], ids=["verifiers", "traces", "inspect", "messages", "messages without a verdict", "trl"])  # fmt: skip
def test_attempts_without_a_verdict_are_neither_incorrect_nor_unparsable(
    workspace: Workspace, tmp_path: Path, name: str, row: dict[str, Any], verdicts: str
) -> None:
    run = imported(workspace, tmp_path, name, [row])
    assert run.verdicts() == [verdicts]
    values = compute_metrics([event.dialogue for event in run.events], 2).values
    assert values["cum_acc/1"].value is None and values["plasticity"].value is None
    assert values["parse_failure_rate"].n == verdicts.count("1")
    shown = CliRunner().invoke(app, ["replay", str(run.folder), "--dialogue", "1"]).stdout
    assert "no verdict" in shown and "unparsable" not in shown


def test_dialogues_without_a_verdict_are_neither_solved_nor_never_solved(workspace: Workspace, tmp_path: Path) -> None:
    run = imported(workspace, tmp_path, "verl", [verl(1.0), verl(0.0), verl(NAN)])
    db = Database(workspace.database_url())
    (number,) = [each.run_id for each in dialogues.page(db, DialogueFilter(), newest_first=True, limit=1).rows]
    counts = {solved: dialogues.count(db, DialogueFilter(run=number, solved=solved)) for solved in ("any", "never")}
    assert counts == {"any": 1, "never": 1} and len(run.events) == 3
    assert sum(group.count for group in outcomes.training(db, number, "imported")) == 2
    ordered = dialogues.page(db, DialogueFilter(run=number, order="-reward")).rows
    assert [(row.outcomes, row.reward) for row in ordered] == [("1", 1.0), ("0", 0.0)]


TRAIN, EVALUATION = ("train", 10, None, "train"), ("evaluation", 10, "imported@10", "test")


@pytest.mark.parametrize(("file", "rows", "options", "places"), [
    ("val/10.jsonl", [verl(step=10)], (), [EVALUATION]),
    ("dumps/10.jsonl", [{**verl(step=10), "reward": 1.0}, verl(step=10)], (), [EVALUATION, TRAIN]),
    ("completions/completions_00010.jsonl", [trl(step=10)], ("--phase", "evaluation"), [EVALUATION]),
    ("traces.jsonl", [trace(run={"type": "train", "work": {"type": kind, "step": 10}}) for kind in ("eval", "train")],
     (), [EVALUATION, TRAIN]),
    ("step_10/train_rollouts.jsonl", [trace()["traces"][0]], (), [TRAIN]),
    ("step_10/eval_rollouts.jsonl", [trace()["traces"][0]], (), [EVALUATION]),
    ("m.jsonl", [chat(step=10)], ("--phase", "evaluation"), [EVALUATION]),
], ids=["verl by its folder", "verl by its columns", "trl by an option", "verifiers", "prime-rl train",
        "prime-rl eval", "messages by an option"])  # fmt: skip
def test_validation_is_an_evaluation_of_its_step(
    workspace: Workspace, tmp_path: Path, file: str, rows: list[Any], options: tuple[str, ...], places: list[Any]
) -> None:
    events = Imported(workspace, write(tmp_path / file, "", rows), *options).events
    assert [(event.phase, event.step, event.checkpoint, event.task.split) for event in events] == places


@pytest.mark.parametrize(("files", "expected"), [
    ({"completions_00002.jsonl": trl(step=2), "completions_00010.jsonl": trl(step=10)}, [("train", 2), ("train", 10)]),
    ({"2.jsonl": verl(step=2), "10.jsonl": verl(step=10)}, [("train", 2), ("train", 10)]),
    ({"rollout/2.jsonl": verl(step=2), "validation/2.jsonl": verl(step=2)}, [("train", 2), ("evaluation", 2)]),
    ({"step_2/train_rollouts.jsonl": trace()["traces"][0], "step_10/train_rollouts.jsonl": trace()["traces"][0]},
     [("train", 2), ("train", 10)]),
    ({"a.jsonl": chat(), "config.json": {"lr": 1}}, [("chat", 0)]),
], ids=["trl", "verl", "verl with validation", "prime-rl", "other json files"])  # fmt: skip
def test_a_folder_with_one_file_per_step_is_one_run(
    workspace: Workspace, tmp_path: Path, files: dict[str, dict[str, Any]], expected: list[tuple[str, int]]
) -> None:
    for file, row in files.items():
        write(tmp_path / "dump" / file, "", [row])
    run = Imported(workspace, tmp_path / "dump")
    assert [(event.phase, event.step) for event in run.events] == expected
    assert len({event.dialogue.id for event in run.events}) == len(expected)


def test_task_sets_of_a_folder_are_kept_apart(workspace: Workspace) -> None:
    events = Imported(workspace, LOGS / "inspect").events
    sizes = Counter((event.task.level, event.dialogue.group) for event in events)
    assert set(sizes.values()) == {2} and {level for level, _ in sizes} == {"none", "scored", "words"}


def test_pages_show_unknown_verdicts_and_rewards(workspace: Workspace, tmp_path: Path) -> None:
    imported(workspace, tmp_path, "trl", [trl(1.0), trl(NAN), trl(0.5)])
    db = Database(workspace.database_url())
    context = Context(workspace, db, Queue(db, workspace))
    (row,) = dialogues.page(db, DialogueFilter(), newest_first=True, limit=1).rows
    page = DialogueEndpoints(context)
    group = page.dialogue_group(row.run_id, row.event_id)
    text = shown(group_view(group, row.event_id))
    assert "mean reward .75" in text and "correct 1 of 2" in text and "reward –" in text and "no verdict" in text
    assert group_kind(page.get_dialogue(row.run_id, row.event_id).siblings) == "mixed: 1 correct"
    assert JsonEndpoints(RunEndpoints(context)).run_histogram(row.run_id, "imported", 1)["total"] == 2


def test_a_bad_row_of_a_folder_is_named_with_its_file(workspace: Workspace, tmp_path: Path) -> None:
    write(tmp_path / "dump" / "1.jsonl", "verl", [verl()])
    write(tmp_path / "dump" / "2.jsonl", "verl", [verl(), verl(output=3)])
    run = Imported(workspace, tmp_path / "dump")
    assert run.result.exit_code == 2 and "2.jsonl line 2" in run.output and not run.folders


def test_every_file_of_a_folder_is_read_or_named(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    write(folder / "1.jsonl", "", [verl(step=1)])
    write(folder / "3.JSONL", "", [verl(step=None)])
    packed = gzip.compress((json.dumps(verl(step=None)) + "\n").encode())
    for name in ("1.jsonl.gz", "2.jsonl.gz"):
        (folder / name).write_bytes(packed)
    write(folder / "log.json", "inspect", [sample()])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([verl(step=1)]), folder / "1.parquet")
    run = Imported(workspace, folder)
    assert [event.step for event in run.events] == [1, 2, 3]
    assert "Files that were not read: 1.jsonl.gz; 1.parquet; log.json." in run.output
    assert [event.step for event in Imported(workspace, folder / "2.jsonl.gz").events] == [2]


@pytest.mark.parametrize("rows", [['{"reward": 1, "reward": 2}'], ["[" * 3000 + "]" * 3000]], ids=["twice", "nested"])
@pytest.mark.parametrize("options", [(), ("--format", "messages", "--skip-invalid")], ids=["detected", "named"])
def test_a_file_without_a_readable_row_names_the_reasons(
    workspace: Workspace, tmp_path: Path, rows: list[str], options: tuple[str, ...]
) -> None:
    write(tmp_path / "dump" / "a.jsonl", "", rows)
    run = Imported(workspace, tmp_path / "dump", *options)
    assert run.result.exit_code == 2 and not run.folders
    reason = "has the key 'reward' twice" if "reward" in rows[0] else "is not"
    assert f"a.jsonl line 1: {reason}" in run.output


@pytest.mark.parametrize(("answer", "stored"), [(0, "0"), (False, "false"), (None, "9"), ("", "9"), ("7", "7")])
def test_a_gold_answer_of_zero_or_false_is_one(
    workspace: Workspace, tmp_path: Path, answer: object, stored: str
) -> None:
    run = imported(workspace, tmp_path, "verifiers", [results(answer=answer, info={"answer": 9})])
    assert [event.task.privileged for event in run.events] == [{"answer": stored}]


def test_the_report_of_an_import_states_no_number_of_samples_if_it_differs(
    workspace: Workspace, tmp_path: Path
) -> None:
    one, other = [SYSTEM, QUESTION, SEVEN], [SYSTEM, {"role": "user", "content": "2 + 5?"}, SEVEN]
    rows = {"even": [one, one, other, other], "uneven": [one, one, one, other]}
    titles = {}
    for name, messages_of in rows.items():
        run = imported(workspace, tmp_path / name, "inspect", [sample(1.0, *listed) for listed in messages_of])
        titles[name] = (run.folder / "evaluation" / "report.md").read_text()
    assert "2 distinct test problems × 2 samples = 4 dialogues" in titles["even"]
    assert "2 distinct test problems with different numbers of samples" in titles["uneven"]
    assert "4 dialogues were imported" in titles["uneven"]


@pytest.mark.parametrize("phase", ["train", "evaluation"])
@pytest.mark.parametrize(("weight", "fits"), [("1e300", False), ("-1e31", False), ("nan", False), ("-1e30", True)])
def test_weights_are_limited_as_rewards_are(
    workspace: Workspace, tmp_path: Path, phase: str, weight: str, fits: bool
) -> None:
    options = ("--reward", f"score={weight}", "--phase", phase)
    run = imported(workspace, tmp_path, "verl", [verl(1e30), verl(-1e30)], *options)
    assert (run.result.exit_code, len(run.folders)) == ((0, 1) if fits else (2, 0)), run.output
    assert fits or "A reward is NAME or NAME=WEIGHT" in run.output.replace("│ ", "")


# -- public bug reports --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("more", [{"scores": {}}, {"scores": None}, {}], ids=["empty", "null", "missing"])
def test_report_6_unscored_logs_of_inspect_have_no_verdict(
    workspace: Workspace, tmp_path: Path, more: dict[str, Any]
) -> None:
    row = {key: value for key, value in sample().items() if key != "scores"} | more
    run = imported(workspace, tmp_path, "inspect", [row, row])
    assert run.verdicts() == ["-", "-"] and "2 without a verdict" in run.output
    report = EvaluationReport.model_validate_json((run.folder / "evaluation" / "report.json").read_bytes())
    assert report.rows[0].metrics["cum_acc/1"].value is None


@pytest.mark.parametrize(("values", "verdicts"), [
    (["True", "False", True, False, "None"], "10101"), (["1.0", "0", 1, 0.0, "0.5"], "10100"),
], ids=["words", "numbers"])  # fmt: skip
def test_report_9_the_accuracy_of_verl_is_read_as_text(
    workspace: Workspace, tmp_path: Path, values: list[object], verdicts: str
) -> None:
    run = imported(workspace, tmp_path, "verl", [verl(1.0, acc=value) for value in values])
    assert "".join(run.verdicts()) == verdicts


@pytest.mark.parametrize(("values", "verdicts"), [
    (["yes", "True", "no", True], "1101"), (["1.0", "0.5", 1], "101"), (["C", "I", "N", "unclear", None], "100--"),
    ([{"acc": 1.0}, {"acc": "I"}, [1], {"acc": 1.0, "tokens": 75}], "101-"),
], ids=["words", "numbers", "letters", "several values"])  # fmt: skip
def test_report_10_values_of_inspect_are_mapped_or_give_no_verdict(
    workspace: Workspace, tmp_path: Path, values: list[object], verdicts: str
) -> None:
    assert "".join(imported(workspace, tmp_path, "inspect", map(sample, values)).verdicts()) == verdicts


@pytest.mark.parametrize(("rows", "options", "verdicts"), [
    ([sample("P"), sample(0.4)], ("--threshold", "0.5"), "10"),
    ([sample({"acc": 1.0, "tokens": 75}), sample({"acc": 0, "tokens": 75})], ("--reward", "match.acc"), "10"),
    ([sample(scores={"tokens": {"value": 75}, "match": {"value": "I"}})], ("--reward", "match"), "0"),
], ids=["threshold", "key of a score", "scorer"])  # fmt: skip
def test_report_10_threshold_and_named_scores_decide_the_verdict(
    workspace: Workspace, tmp_path: Path, rows: list[Any], options: tuple[str, ...], verdicts: str
) -> None:
    assert "".join(imported(workspace, tmp_path, "inspect", rows, *options).verdicts()) == verdicts


def test_report_10_other_scores_of_inspect_do_not_add_up(workspace: Workspace, tmp_path: Path) -> None:
    run = imported(workspace, tmp_path, "inspect", [sample(scores={"m": {"value": "C"}, "tokens": {"value": 75}})])
    assert run.rewards() == [1.0] and "Others: tokens" in run.output


def test_report_11_a_log_of_inspect_is_recognized_by_its_header(workspace: Workspace, tmp_path: Path) -> None:
    failed = {"id": 1, "epoch": 1, "messages": [QUESTION], "target": "7", "error": {"message": "rate limit"}}
    run = imported(workspace, tmp_path, "inspect", [failed, sample()])
    assert run.verdicts() == ["", "1"]
    assert [event.dialogue.error for event in run.events] == ["rate limit", None]


@pytest.mark.parametrize(("rows", "options", "rewards"), [
    ([trl(0.0, solution=72, parsed=3), trl(1.0, solution=72, parsed=72)], (), [0.0, 1.0]),
    ([trl(0.0, tokens=12.0), trl(1.0, tokens=75.0)], ("--reward", "exact"), [0.0, 1.0]),
    ([trl(1.0, tokens=12.0)], ("--reward", "exact", "--reward", "tokens=-0.5"), [-5.0]),
    ([trl(1.0, right=True)], (), [1.0]),
], ids=["integers", "a named column", "weights", "booleans"])  # fmt: skip
def test_report_13_extra_columns_of_trl_are_no_rewards(
    workspace: Workspace, tmp_path: Path, rows: list[Any], options: tuple[str, ...], rewards: list[float]
) -> None:
    assert imported(workspace, tmp_path, "trl", rows, *options).rewards() == rewards


@pytest.mark.parametrize(("options", "text"), [
    ((), "Several columns can be rewards: exact, tokens. Fix: Name the rewards"),
    (("--reward", "extra"), "no such reward. Got: 'extra'. Known: exact, tokens"),
    (("--reward", "exact=much"), "A reward is NAME or NAME=WEIGHT"),
], ids=["ambiguous", "unknown", "no weight"])  # fmt: skip
def test_report_13_rewards_of_trl_must_be_named_if_several_columns_can_be_meant(
    workspace: Workspace, tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    run = imported(workspace, tmp_path, "trl", [trl(1.0, tokens=75.0)], *options)
    assert run.result.exit_code == 2 and text in run.output.replace("│ ", "") and not run.folders


@pytest.mark.parametrize(("values", "verdicts"), [
    (["True", "false", "yes", True], "1011"), ([1, 0, 1.0, "1"], "1011"), ([None, ""], "--"),
], ids=["words", "numbers", "missing"])  # fmt: skip
def test_report_20_the_verdict_of_messages_is_read(
    workspace: Workspace, tmp_path: Path, values: list[object], verdicts: str
) -> None:
    rows = [{"messages": [QUESTION, SEVEN], "correct": value} for value in values]
    assert "".join(imported(workspace, tmp_path, "messages", rows).verdicts()) == verdicts


@pytest.mark.parametrize(("name", "row"), [
    ("messages", {"messages": [QUESTION, SEVEN], "correct": "maybe"}),
    ("messages", {"messages": [QUESTION, SEVEN], "correct": 2}),
    ("verl", verl(acc="maybe")), ("verl", verl(acc=[True])),
], ids=["text", "number", "verl text", "verl list"])  # fmt: skip
def test_report_20_a_verdict_that_is_not_understood_is_refused(
    workspace: Workspace, tmp_path: Path, name: str, row: dict[str, Any]
) -> None:
    run = imported(workspace, tmp_path, name, [row])
    assert run.result.exit_code == 2 and "true, false, or a number from 0 to 1" in run.output and not run.folders


@pytest.mark.parametrize(("name", "bad"), [
    ("verifiers", results(completion=[])), ("verl", '{"input": "q", "output": "b", "sco'), ("trl", trl(completion=[])),
    ("traces", '{"traces": ['), ("inspect", sample(1.0, SYSTEM, QUESTION)), ("messages", {"messages": [QUESTION]}),
], ids=["empty verifiers", "partial verl", "empty trl", "partial traces", "inspect", "empty messages"])  # fmt: skip
def test_report_21_bad_rows_can_be_skipped_and_are_listed(
    workspace: Workspace, tmp_path: Path, name: str, bad: object
) -> None:
    rows = [ROWS[name](), bad]
    refused = imported(workspace, tmp_path, name, rows)
    assert refused.result.exit_code == 2 and "--skip-invalid" in refused.output and not refused.folders
    run = imported(workspace, tmp_path, name, rows, "--skip-invalid")
    assert run.verdicts() == ["1"]
    position = "sample 2" if name == "inspect" else "line 2"
    assert "1 rows skipped" in run.output and f"Skipped rows: {position}:" in run.output


# -- logs of the real programs -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "places", "verdicts", "rewards"), [
    ("trl", [("train", step) for step in (1, 2) for _ in range(8)],
     ["0", "0", "0", "-"] * 4, [-0.09, -0.09, -0.11, None]),
    ("verl", [("train", 9)] * 4 + [("train", 10)] * 4 + [("evaluation", 10)] * 4,
     ["1", "0", "1", "-"] * 3, [1.0, -1.0, 1.0, None]),
    ("verifiers", [("evaluation", 0)] * 4, ["", "-1", "--", "-1"], [None, 1.0, None, 1.0]),
    ("inspect", [("evaluation", 0)] * 12,
     ["-", "", "-", "-", "1", "", "1", "0", "1", "", "1", "-"], [None, None, None, None]),
])  # fmt: skip
def test_a_log_of_the_real_program_is_one_run_and_can_be_exported(
    workspace: Workspace, name: str, places: list[Any], verdicts: list[str], rewards: list[Any]
) -> None:
    run = Imported(workspace, LOGS / name)
    assert [(event.phase, event.step) for event in run.events] == places
    assert run.verdicts() == verdicts
    assert [None if r is None else round(r, 2) for r in run.rewards()][: len(rewards)] == rewards
    prompts = [event.task.public["messages"] for event in run.events]
    assert {tuple(m["role"] for m in prompt) for prompt in prompts} == {("system", "user")}
    rows = run.exported()
    assert len(rows) == sum(bool(event.dialogue.turns) for event in run.events)
    assert all(row["messages"][0] == {"role": "system", "content": "Write only the sum."} for row in rows)
