"""`rl2f data check`: columns, counts, bad rows and the YAML that uses a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from app.cli import app
from rl2f_core.common.paths import QUESTIONS_SAMPLE
from rl2f_core.config.loading import load_config
from rl2f_core.environments.dataset.environment import Dataset


def check(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["data", "check", *map(str, args)])


def test_a_good_file_gives_counts_and_yaml_that_a_run_accepts() -> None:
    done = check(QUESTIONS_SAMPLE, "--level", "", "--set", "tolerance=0.5")
    assert done.exit_code == 0, done.output
    report, _, snippet = done.output.partition("For the configuration of a run:")
    assert "72 rows: 72 valid, 0 bad" in report and "problems: 44 train, 17 validation, 11 test" in report
    assert "constant baseline: 9.1%" in report and "Bad rows" not in report
    assert {line.split("  ")[0] for line in report.splitlines()} >= {"question", "answer", "solution", "level"}
    settings = yaml.safe_load(snippet)["environment"]
    assert settings["columns"] == {"level": "", "problem": "question", "answer": "answer", "solution": "solution"}
    assert (settings["checker"], settings["tolerance"]) == ("numeric", 0.5)
    assert Dataset(Dataset.Config.model_validate(settings)).task("test", 0).level == "all"


def test_the_yaml_of_a_judge_names_its_type() -> None:
    judge = "llm={type: openai_api, base_url: 'http://127.0.0.1:9/v1', model: judge}"
    done = check(QUESTIONS_SAMPLE, "--set", "checker=judge", "--set", judge)
    assert done.exit_code == 0, done.output
    environment = yaml.safe_load(done.output.partition("For the configuration of a run:")[2])["environment"]
    assert environment["llm"] == {"type": "openai_api", "base_url": "http://127.0.0.1:9/v1", "model": "judge"}
    assert load_config("quickstart", [f"environment={json.dumps(environment)}"])


def test_bad_rows_are_printed_without_control_characters_and_set_the_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "q,a\n" + "".join(f"What is {n} plus 1?,{n + 1}\n" for n in range(9)) + "What?,\x1b[31mfour\nWho?\n"
    )
    done = check(path, "--problem", "q", "--answer", "a")
    assert done.exit_code == 1 and "\x1b" not in done.output
    assert "11 rows: 9 valid, 2 bad" in done.output
    assert "10   a       is not an answer that the checker numeric can read" in done.output
    assert "11   -       has 1 fields, the header has 2" in done.output
    settings = yaml.safe_load(done.output.partition("For the configuration of a run:")[2])["environment"]
    assert settings["bad_rows"] == "skip" and Dataset(Dataset.Config.model_validate(settings)).task("train", 0)


@pytest.mark.parametrize(
    ("header", "answers", "checker"),
    [
        ("q,answer", ["1", "2.5", "1/3", "x", "$4"], "numeric"),
        ("q,answer", ["A", "(b)", "C."], "multiple_choice"),
        ("q,answer", ["Paris", "3", "Rome"], "exact"),
        ("q,answer", ['"{""a"": 1}"', '"{""a"": 2}"'], "json_fields"),
        ("q,answer,pattern", ["a1,a.", "b2,b."], "regex"),
    ],
)
def test_the_checker_is_suggested_by_the_answers(header: str, answers: list[str], checker: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join([header, *(f"Question {n}?,{answer}" for n, answer in enumerate(answers))]))
    assert f"checker: {checker}\n" in check(path, "--problem", "q").output


def test_a_wrong_file_or_setting_is_one_message(tmp_path: Path) -> None:
    done = check(tmp_path / "absent.csv")
    assert done.exit_code == 2 and "Error: " in done.output and "absent.csv" in done.output
    done = check(QUESTIONS_SAMPLE, "--set", "checker=fuzzy")
    assert done.exit_code == 2 and "exact" in done.output and "Fix: Correct --set." in done.output
