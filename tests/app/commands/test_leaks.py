"""`rl2f leaks`: stored runs read again, hints from anywhere, and what is said of mistakes."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from event_data import read_all
from leak_helpers import Oracle
from rescore_data import pair, run_folder
from typer.testing import CliRunner

from app.cli import app
from app.commands.leaks.check import LeakChecker
from jobs.db.engine import Database
from jobs.db.queries import dialogues, runs
from jobs.ingest import ingester
from jobs.workspace import Workspace
from rl2f_core.leaks.parsing import parse_detectors
from rl2f_core.models.backends.model_pool import ModelPool

SUM = {"environment": "arithmetic", "problem": "What is 47 + 85?", "answer": "132", "attempts": [], "hint": "Carry."}


def leaks(*args: str | Path, cwd: Path, stdin: str | None = None) -> Any:
    """The command inside this process."""
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(app, ["leaks", *map(str, args)], input=stdin)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def lines(*items: Any) -> str:
    return "".join(item if isinstance(item, str) else json.dumps(item) + "\n" for item in items)


# -- stored runs ---------------------------------------------------------------------------------------------------
def test_a_folder_is_read_again_and_the_signs_that_change_are_shown(tmp_path: Path) -> None:
    run_folder(tmp_path / "target", [*pair(1), *pair(2)])
    done = leaks("target", "--detector", "exact", "--penalty", "2", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "2 of 4 hints leak" in done.stdout and "changes its sign in 2 turns" in done.stdout
    assert "+1.000 → -1.000" in done.stdout and "-0.500 → +0.500" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("rescore-target-") and f"runs/{folder.name}/changes.jsonl" in done.stderr
    assert "rl2f replay target" in done.stderr


def test_json_holds_the_summary_and_the_first_changes(tmp_path: Path) -> None:
    run_folder(tmp_path / "target", [*pair(1), *pair(2)])
    args = ("--penalty", "2", "--limit", "3", "--json", "--out", tmp_path / "again")
    done = leaks("rescore", tmp_path / "target", *args, cwd=tmp_path)
    data = json.loads(done.stdout)
    assert (data["flagged"], data["penalty"], len(data["changes"])) == (2, 2.0, 3)
    assert data["folder"] == str(tmp_path / "again") and data["reward_signs"] == {"+ → -": 2}
    taken = leaks(tmp_path / "target", "--out", tmp_path / "again", cwd=tmp_path)
    assert taken.exit_code == 2 and "The folder already contains a run" in taken.stderr


def test_a_number_is_a_run_of_the_workspace_and_so_is_its_rescoring(db: Database, workspace: Workspace) -> None:
    run_folder(workspace.folder("1-target"), pair())
    ingester.reindex(db, workspace)
    done = leaks("1", "--workspace", workspace.root, "--detector", "exact", cwd=workspace.root)
    assert done.exit_code == 0 and "Stored as run 2 of the workspace" in done.stderr
    again = runs.get(db, 2)
    assert (again.kind, again.status, again.origin) == ("rescore", "succeeded", "cli")
    finding = dialogues.get(db, 1, "dialogue:train:rl2f/1/0/0").findings[0]["2"]
    assert (finding.detector, finding.span and finding.span[0]) == ("exact", 14)
    assert read_all(db, workspace, again) == 0
    unknown = leaks("7", "--workspace", workspace.root, cwd=workspace.root)
    assert unknown.exit_code == 2 and "7" in unknown.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("nowhere",), "The folder contains no run"),
        (("target", "--detector", "nothing"), "unknown leak_detector 'nothing'"),
        (("target", "--detector", "none.yaml"), "cannot be read"),
        (("target", "--penalty", "-1"), "Invalid value"),
        (("chek", "file.jsonl"), "unexpected extra argument"),
    ],
)
def test_a_mistake_is_said_and_leaves_no_folder(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    run_folder(tmp_path / "target", pair())
    done = leaks(*args, cwd=tmp_path)
    assert done.exit_code == 2 and said in done.stderr and not (tmp_path / "runs").exists()


def test_ctrl_c_stops_and_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.common.terminal_progress import TerminalProgress

    run_folder(tmp_path / "target", [event for step in range(1, 4) for event in pair(step)])
    monkeypatch.setattr(TerminalProgress, "__enter__", lambda self: (signal.raise_signal(signal.SIGINT), self)[1])
    done = leaks("target", cwd=tmp_path)
    assert done.exit_code == 130 and "nothing was stored" in done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "rescore.json").exists()


def test_the_commands_are_listed_and_a_run_is_the_default(tmp_path: Path) -> None:
    helped = leaks("--help", cwd=tmp_path)
    assert helped.exit_code == 0 and "check" in helped.stdout and "rescore" in helped.stdout
    assert "--penalty" in leaks("some-run", "--help", cwd=tmp_path).stdout


# -- hints from anywhere -------------------------------------------------------------------------------------------
def test_one_line_out_for_each_line_in(tmp_path: Path) -> None:
    told = {**SUM, "answer": 132, "hint": "It is 132."}
    shown = {**SUM, "attempts": ["132, no: <answer>1</answer>"], "hint": "Look at your 132."}
    code = {**SUM, "environment": "secret_code", "settings": {"length": 2, "letters": 2}, "problem": "each A or B",
            "answer": "A B", "hint": "The code is A B.", "hints": ["Try again."]}  # fmt: skip
    (tmp_path / "hints.jsonl").write_text(lines(told, SUM, shown, code))
    done = leaks("check", "hints.jsonl", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    first, clean, again, letters = (json.loads(line) for line in done.stdout.splitlines())
    assert list(first) == ["leaked", "detector", "leak_type", "answer_fraction", "span", "evidence", "leak_probability"]
    assert (first["leaked"], first["detector"], first["span"]) == (True, "mentions", [6, 9])
    assert clean == {
        "leaked": False, "detector": None, "leak_type": None, "answer_fraction": 0.0, "span": None, "evidence": "",
    }  # fmt: skip
    assert not again["leaked"] and letters["leaked"]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("nonsense\n", "not JSON"),
        ("[1]\n", "no JSON object"),
        ({"environment": "arithmetic"}, "lacks problem, answer, attempts, hint"),
        ({**SUM, "environment": "chess"}, "Unknown environment"),
        ({**SUM, "answer": "many"}, "not a whole number"),
        ({**SUM, "hint": 3}, "`hint` is not text"),
        ({**SUM, "attempts": "one"}, "not a list of texts"),
        ({**SUM, "settings": {"digit": 2}}, "digit: unknown key"),
        ({**SUM, "settings": [1]}, "not an object"),
    ],
)
def test_a_bad_line_is_answered_in_its_place_and_the_others_are_judged(bad: Any, said: str, tmp_path: Path) -> None:
    done = leaks("check", "-", "--detector", "exact", cwd=tmp_path, stdin=lines(SUM, bad, {**SUM, "hint": "132"}))
    assert done.exit_code == 1 and "Failed lines: 1." in done.stderr
    first, wrong, last = (json.loads(line) for line in done.stdout.splitlines())
    assert not first["leaked"] and last["leaked"]
    assert wrong["line"] == 2 and said in wrong["error"] and set(wrong) == {"error", "line"}


def test_detectors_that_ask_a_model_read_lines_in_batches_over_several_environments() -> None:
    judge = LeakChecker(parse_detectors("likelihood:dialogue_context=none,llm_judge"), "tiny-random")
    oracle = Oracle(untold=-9.0)
    judge.models = ModelPool(oracle)
    guess = {**SUM, "environment": "guess_number", "problem": "from 1 to 9", "answer": "7", "hint": "It is 7."}
    asked = [SUM, guess, {**SUM, "hint": "The answer is not small."}, "no JSON\n"]
    told, number, convicted, bad = judge.records(lines(*asked).encode().splitlines())
    assert told["logprob_gain"] == 0 and not told["leaked"]
    assert (number["leaked"], number["detector"], number["logprob_gain"]) == (True, "likelihood", 8.75)
    assert convicted["detector"] == "llm_judge" and convicted["logprob_gain"] == 0
    assert bad["line"] == 4 and oracle.scored == [3, 2]


def test_a_hint_that_a_tier_could_not_judge_says_so_beside_the_others_verdict() -> None:
    judge = LeakChecker(parse_detectors("exact,llm_judge"), "tiny-random")
    judge.models = ModelPool(Oracle(script=lambda prompt, rng: "no idea"))
    (record,) = judge.records([json.dumps(SUM).encode()])
    assert record["line"] == 1 and "not of the required form" in record["error"] and record["leaked"] is False


def test_an_absent_file_is_a_clear_error(tmp_path: Path) -> None:
    done = leaks("check", "nowhere.jsonl", cwd=tmp_path)
    assert done.exit_code == 2 and "cannot be read" in done.stderr
