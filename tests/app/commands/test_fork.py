"""`rl2f fork` and `rl2f hint-value` from outside, on a run with a scripted student."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from fork_data import LEAKED, add_leak, event_of, make_run
from typer.testing import CliRunner

from app.cli import app
from rl2f_core.run.directory import RunDir


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "runs" / "numbers")
    return tmp_path


def rl2f(*args: str | Path, cwd: Path) -> tuple[int, str, str]:
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(app, [*map(str, args)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_a_fork_plays_prints_and_says_where_it_lies(runs: Path) -> None:
    arms = ("--arm", "original", "--arm", "contentless", "--arm", "edited:Go | up.")
    numbers = ("--turn", "1", "--samples", "2", "--attempts", "1")
    code, printed, said = rl2f("fork", "runs/numbers", "2", *numbers, *arms, cwd=runs)
    assert code == 0, said
    assert "| base | original | 1 | .00 [.00, .66] |" in printed, "whoever says 2 and 1 never finds a 4"
    (folder,) = [path for path in (runs / "runs").iterdir() if path.name.startswith("fork-numbers-")]
    config: Any = RunDir(folder).config()
    assert (config.source, config.dialogue, config.turn, config.turns) == ("numbers", event_of(1), 0, 1)
    assert [arm.hint for arm in config.arms] == ["original", "contentless", "edited"]
    assert f"Report and figure: runs/{folder.name}/counterfactual" in said
    assert f"rl2f replay runs/{folder.name}" in said
    report = json.loads((folder / "counterfactual" / "report.json").read_text())
    assert (report["done"], [r["arm"] for r in report["results"]]) == (6, ["original", "contentless", "edited"])
    code, printed, _ = rl2f("replay", f"runs/{folder.name}", "--condition", "edited", "--dialogue", "3", cwd=runs)
    assert code == 0 and "Go | up." in printed


def test_a_redacted_hint_is_rerun_under_the_same_seed(runs: Path) -> None:
    add_leak(RunDir(runs / "runs" / "numbers"))
    arms = ("--arm", "original", "--arm", "redacted", "--attempts", "1", "--samples", "2")
    code, printed, said = rl2f("fork", "runs/numbers", LEAKED, *arms, cwd=runs)
    assert code == 0, said
    assert "base, under the dialogue's own seed: original not solved, redacted not solved." in " ".join(printed.split())


def test_what_hints_were_worth_is_printed_with_its_extremes(runs: Path) -> None:
    code, printed, said = rl2f("hint-value", "runs/numbers", "--num-hints", "2", "--samples", "2", "--out", "out/v",
                               "--arm", "original", "--arm", "contentless", cwd=runs)  # fmt: skip
    assert code == 0, said
    assert "# 2 hints of numbers under other hints" in printed and "Highest and lowest hint values" in printed
    config: Any = RunDir(runs / "out" / "v").config()
    assert (config.source, config.hints, config.turns) == (str(runs / "runs" / "numbers"), 2, 1)


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("fork",), "A run and a dialogue are needed."),
        (("fork", "runs/numbers", "99"), "no such dialogue"),
        (("fork", "runs/numbers", "1", "--turn", "2"), "is correct"),
        (("fork", "runs/numbers", "1", "--checkpoint", "rl@9"), "Known: base"),
        (("fork", "runs/numbers", "1", "--arm", "hinted"), "edited:TEXT"),
        (("fork", "nowhere", "1"), "The folder contains no run"),
        (("hint-value",), "A run is needed."),
        (("hint-value", "runs/numbers", "--phase", "train"), "has no train dialogues"),
    ],
)
def test_what_cannot_be_forked_is_one_plain_error(args: tuple[str, ...], what: str, runs: Path) -> None:
    code, _, said = rl2f(*args, cwd=runs)
    assert code == 2 and what in " ".join(said.split())
