"""Rows of exports: the prompt is what the student, or the teacher, read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from export_builders import CONFIG, ENVIRONMENT, answer, event, rows_of, turn, write_run, wrong
from typer.testing import CliRunner

from app.cli import app
from jobs.db.engine import Database
from jobs.db.queries import runs
from jobs.export.datasets.exporter import export, summary
from jobs.export.datasets.settings import ExportSettings
from jobs.export.datasets.sources import FolderSource, WorkspaceSource
from jobs.imports.importer import import_file
from jobs.ingest.ingester import reindex
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config
from rl2f_core.dialogue.rollout.build import build_engine
from rl2f_core.dialogue.rollout.engine import RolloutRequest
from rl2f_core.errors import DataError
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.tokenizer import ByteTokenizer
from rl2f_core.run.events import DialogueEvent
from rl2f_core.types import Hint, LeakReport

TASK = ENVIRONMENT.task("train", 0)
RIGHT = f"<answer>{answer(TASK)}</answer>"


def exported(source: Any, out: Path, *formats: str, **settings: Any) -> dict[str, list[dict[str, Any]]]:
    manifest = export([source], ExportSettings(formats=formats, files=["jsonl"], **settings), out)
    assert manifest is not None
    return {name: rows_of(out / f"{name}.jsonl") for name in manifest["formats"]}


def contents(messages: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


# -- an empty message does not end the conversation --------------------------------------------------------------------
QUESTION, ATTEMPT, ANSWER = ("user", "q"), ("assistant", "a1"), ("assistant", "a2")
IMPORTED = {
    "empty result of a tool": ([("tool", "")], [("user", "")]),
    "empty message of the user": ([("user", "")], [("user", "")]),
    "two attempts in a row": ([], []),
    "result of a tool": ([("tool", "x")], [("user", "x")]),
}


@pytest.mark.parametrize("between", IMPORTED)
def test_an_imported_dialogue_is_one_conversation_whatever_is_between_its_attempts(
    db: Database, workspace: Workspace, tmp_path: Path, between: str
) -> None:
    stored, read = IMPORTED[between]
    messages = [{"role": role, "content": text} for role, text in (QUESTION, ATTEMPT, *stored, ANSWER)]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": messages, "correct": True}))
    source = WorkspaceSource(db, workspace, import_file(db, workspace, tmp_path / "rows.jsonl"))
    rows = exported(source, tmp_path / "out", "messages", "prompt_completion")
    (whole,), (part,) = rows["messages"], rows["prompt_completion"]
    assert contents(whole["messages"]) == [QUESTION, ATTEMPT, *read, ANSWER]
    assert contents(part["prompt"]) == [QUESTION, ATTEMPT, *read] and contents(part["completion"]) == [ANSWER]


def forked() -> DialogueEvent:
    """Arm `empty` of a fork: the student continues after an empty message."""
    empty = Hint(text="", teacher="empty", leak=LeakReport(leaked=False))
    turns = [turn(TASK, 0, wrong(TASK), None).model_copy(update={"hint": empty}),
             turn(TASK, 1, wrong(TASK, 1), "Look again."), turn(TASK, 2, RIGHT, None)]  # fmt: skip
    return event(TASK, turns, name="fork", phase="fork", arm="empty")


def test_an_empty_hint_of_a_fork_is_an_empty_message_and_has_no_label(tmp_path: Path) -> None:
    source = FolderSource(write_run(tmp_path / "run", [forked()]))
    formats = ("messages", "prompt_completion", "unpaired_preference", "stepwise_supervision")
    rows = exported(source, tmp_path / "out", *formats, filter={"include_controls": True})
    (whole,), (part,), (hint,), (steps,) = (rows[name] for name in formats)
    read = [("user", ""), ("assistant", wrong(TASK, 1)), ("user", "Look again.")]
    assert contents(whole["messages"])[2:] == [("assistant", wrong(TASK)), *read, ("assistant", RIGHT)]
    assert contents(part["prompt"])[3:] == read
    assert contents(hint["completion"]) == [("assistant", "Look again.")]
    (_, seen) = contents(hint["prompt"])
    assert seen[1].endswith(f"Attempt:\n{wrong(TASK)}\n\nAttempt:\n{wrong(TASK, 1)}")
    assert len(steps["completions"]) == 1 and wrong(TASK) in steps["completions"][0]


def test_independent_attempts_of_an_evaluation_remain_separate_conversations(tmp_path: Path) -> None:
    turns = [turn(TASK, 0, wrong(TASK), None), turn(TASK, 1, RIGHT, None)]
    event_ = event(TASK, turns, name="d", phase="evaluation", step=0, checkpoint="rl@1", condition="resample")
    source = FolderSource(write_run(tmp_path / "run", [event_]))
    rows = exported(source, tmp_path / "out", "messages", "prompt_completion", filter={"include_controls": True})
    assert [len(row["messages"]) for row in rows["messages"]] == [3, 3]
    assert [message["role"] for message in rows["prompt_completion"][0]["prompt"]] == ["system", "user"]


# -- the student's prompts under each kind of prompting ----------------------------------------------------------------
SETTINGS: dict[str, dict[str, Any]] = {
    "append": {"environment": CONFIG["environment"]},
    "reprompt": {"environment": CONFIG["environment"]},
    "enumerate": {"environment": "corridor", "reward": {"preset": "environment"}},
}


def sampled(tmp_path: Path, prompting: str) -> tuple[Path, list[str]]:
    """A run with one dialogue of three turns, the last one correct, and the prompts that the model got."""
    rollout = {"max_turns": 4, "max_new_tokens": 64, "max_seq_len": 4096, "prompting": prompting}
    changes = {"backend": "fake", "teacher": "scripted", "rollout": rollout, **SETTINGS[prompting]}
    changes |= {"leak_detection": {"detectors": []}}
    number = iter(range(9))

    def script(text: str, rng: Any) -> str:
        if prompting == "enumerate":
            return next(line[-1] for line in text.splitlines() if line[:-1] == "right: ")
        return (wrong(TASK, 0), wrong(TASK, 1), RIGHT)[next(number)]

    config = parse_config({**CONFIG, **changes})
    backend = FakeBackend(script=script)
    engine = build_engine(config, backend)
    task = TASK
    if prompting == "enumerate":
        public = {"public": {"start": 3}, "privileged": {"flag": 6}}
        task = engine.environment.task("train", 0).model_copy(update=public)
    (played,) = engine.run([RolloutRequest(task, "d", "g", 0, 3)])
    stored = played.dialogue.model_copy(update={"policy": "rl@1"})
    assert [turn.verdict.correct for turn in stored.turns] == [False, False, True]
    folder = write_run(tmp_path / "run", [DialogueEvent.of("train", "rl", 1, task, stored)], **changes)
    return folder, list(backend.seen)


def rendered(messages: list[dict[str, str]]) -> str:
    """Messages as the chat template of the fake backend renders a prompt."""
    return str(ByteTokenizer().apply_chat_template(messages, add_generation_prompt=True))


@pytest.mark.usefixtures("corridor")
@pytest.mark.parametrize("prompting", SETTINGS)
def test_the_prompt_of_a_row_is_what_the_model_got(tmp_path: Path, prompting: str) -> None:
    folder, seen = sampled(tmp_path, prompting)
    rows = exported(FolderSource(folder), tmp_path / "out", "messages", "prompt_completion")
    (part,) = rows["prompt_completion"]
    assert rendered(part["prompt"]) == seen[2] and part["unlabeled_hints"] == (2 if prompting == "append" else 1)
    wholes = [rendered(row["messages"][:-1]) for row in rows["messages"]]
    assert wholes == (seen[2:] if prompting == "append" else seen)
    written = part["completion"][0]["content"]
    assert written == rows["messages"][-1]["messages"][-1]["content"]
    assert len(written) == 1 if prompting == "enumerate" else written == RIGHT


@pytest.mark.usefixtures("corridor")
@pytest.mark.parametrize("prompting", ["reprompt", "enumerate"])
def test_dialogues_whose_prompts_cannot_be_rebuilt_are_left_out_and_counted(tmp_path: Path, prompting: str) -> None:
    folder, _ = sampled(tmp_path, prompting)
    (tmp_path / "own.txt").write_text("{{ problem }} {{ hint }}")
    config = (folder / "config.yaml").read_text().replace("type: corridor", "type: missing")
    (folder / "config.yaml").write_text(config.replace("template: revise", f"template: {tmp_path / 'own.txt'}"))
    with pytest.raises(DataError, match="1 dialogues have prompts that cannot be rebuilt"):
        exported(FolderSource(folder), tmp_path / "none", "messages", "prompt_completion")
    plain = write_run(tmp_path / "plain", [event(TASK, [turn(TASK, 0, RIGHT, None)], name="d")])
    settings = ExportSettings(formats=("messages",), files=("jsonl",))
    manifest = export([FolderSource(folder), FolderSource(plain)], settings, tmp_path / "out")
    assert manifest is not None and manifest["formats"]["messages"]["rows"] == 1
    assert "1 dialogues have prompts that cannot be rebuilt" in summary(manifest)
    assert "lack 1 dialogues: their prompts" in (tmp_path / "out" / "README.md").read_text()


# -- what summaries, errors and cards claim ----------------------------------------------------------------------------
def test_the_json_lines_load_by_the_recipe_of_the_card_if_the_first_rows_have_only_nulls(tmp_path: Path) -> None:
    from datasets import load_dataset

    unknown, known = (event(TASK, [turn(TASK, 0, RIGHT, None)], name=name) for name in "ab")
    bits = known.dialogue.turns[0].model_copy(update={"bits_used": 1.5})
    known = known.model_copy(update={"dialogue": known.dialogue.model_copy(update={"turns": (bits,)})})
    exported(FolderSource(write_run(tmp_path / "run", [unknown, known])), tmp_path / "out", "messages")
    first, last = (tmp_path / "out" / "messages.jsonl").read_text().splitlines()
    (tmp_path / "out" / "messages.jsonl").write_text("\n".join([first] * 14_000 + [last]))
    rows = load_dataset(str(tmp_path / "out"), "messages", split="train", cache_dir=str(tmp_path / "cache"))
    assert len(rows) == 14_001 and rows[-1]["bits_used"] == [1.5]
    assert 'load_dataset("json"' not in (tmp_path / "out" / "README.md").read_text()


def pair_events() -> list[DialogueEvent]:
    """A leaking hint and a clean one after different attempts at a task."""
    return [event(TASK, [turn(TASK, 0, wrong(TASK, k), text, leaked)], name=text)
            for k, (text, leaked) in enumerate({"It leaks.": True, "Look.": False}.items())]  # fmt: skip


@pytest.mark.parametrize("match", ["history", "attempt"])
def test_an_error_about_missing_pairs_names_the_required_match_and_the_looser_one(tmp_path: Path, match: str) -> None:
    source = FolderSource(write_run(tmp_path / "run", pair_events()))
    with pytest.raises(DataError, match=r"No attempt.* has both a leaking hint.*--match task"):
        exported(source, tmp_path / "none", "preference", match=match)
    settings = ExportSettings(formats=("preference", "messages"), files=("jsonl",), match=match)
    manifest = export([source], settings, tmp_path / "out")
    assert manifest is not None and manifest["left_out"]["preference"].startswith("No attempt")
    assert "No task has both" not in summary(manifest) + (tmp_path / "out" / "README.md").read_text()
    assert len(exported(source, tmp_path / "task", "preference", match="task")["preference"]) == 1


def without_answer(db: Database, workspace: Workspace, tmp_path: Path) -> WorkspaceSource:
    """An imported run with one hint, on a task without an answer."""
    texts = (QUESTION, ATTEMPT, ("user", "A hint."), ANSWER)
    messages = [{"role": role, "content": text} for role, text in texts]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": messages}))
    return WorkspaceSource(db, workspace, import_file(db, workspace, tmp_path / "rows.jsonl"))


def test_a_rescoring_does_not_count_hints_without_an_answer_as_checked(
    db: Database, workspace: Workspace, tmp_path: Path
) -> None:
    target = without_answer(db, workspace, tmp_path).run_dir.path
    folder = tmp_path / "again"
    done = CliRunner().invoke(app, ["leaks", str(target), "--out", str(folder), "--detector", "exact"])
    assert done.exit_code == 0 and "1 hints cannot be checked" in " ".join(done.stdout.split())
    counts = json.loads((folder / "rescore.json").read_text())
    assert (counts["hints"], counts["unchecked"]) == (0, 1)


@pytest.mark.parametrize("labels", ["both", "detector", "human"])
def test_advice_names_no_detectors_that_cannot_check_the_hints(
    db: Database, workspace: Workspace, tmp_path: Path, labels: str
) -> None:
    source = without_answer(db, workspace, tmp_path)
    with pytest.raises(DataError, match="Only llm_judge can check 1 of them") as error:
        exported(source, tmp_path / "none", "unpaired_preference", labels=labels)
    manifest = export([source], ExportSettings(formats=("messages",), labels=labels), tmp_path / "out")
    assert manifest is not None
    advice = str(error.value) + summary(manifest)
    assert "`rl2f leaks RUN`" not in advice and ("--detector llm_judge" in advice) == (labels != "human")


@pytest.mark.parametrize(("labels", "is_named"), [("both", True), ("detector", True), ("human", False)])
def test_the_summary_names_the_detectors_only_if_their_findings_count(
    db: Database, workspace: Workspace, tmp_path: Path, labels: str, is_named: bool
) -> None:
    write_run(workspace.folder("run"), [event(TASK, [turn(TASK, 0, RIGHT, "Look.", None)], name="d")])
    (number,) = reindex(db, workspace)
    source = WorkspaceSource(db, workspace, runs.get(db, number))
    manifest = export([source], ExportSettings(formats=("messages",), labels=labels), tmp_path / "out")
    assert manifest is not None and ("rl2f leaks RUN" in summary(manifest)) == is_named
