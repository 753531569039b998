"""The command line: completion, variables, aliases, unknown values, folder names with spaces and failed starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_builders import leaky_events, write_run
from jobs_helpers import counting, counting_kinds
from typer.testing import CliRunner

from app.cli import app
from jobs.db.engine import Database
from jobs.ingest.ingester import reindex
from jobs.workspace import Workspace
from rl2f_core.config.loading import parse_config
from rl2f_core.errors import ConfigError, RL2FError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink
from rl2f_core.run.execute import execute


# -- commands --------------------------------------------------------------------------------------------------------
def test_shells_can_complete_commands_options_presets_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "first", leaky_events())
    script = CliRunner().invoke(app, [], prog_name="rl2f", env={"_RL2F_COMPLETE": "source_bash"}).output
    assert "complete -o default -F" in script
    for line, expected in (
        ("rl2f tra", "train"),
        ("rl2f levels --split tr", "train"),
        ("rl2f train quickstart_sh", "quickstart_shaped"),
        ("rl2f replay ru", "runs/first"),
        ("rl2f export runs/f", "runs/first"),
    ):
        variables = {"_RL2F_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = CliRunner().invoke(app, [], prog_name="rl2f", env=variables)
        assert expected in done.output.split(), line


TRAINING: dict[str, Any] = {
    "name": "a run",
    "model": {"name": "no such model"},
    "environment": {"type": "guess_number", "size": 4},
    "stages": [{"name": "warm", "method": "sft", "steps": 1}],
}
ENDPOINT = {"type": "openai_api", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "UNSET_API_KEY"}


@pytest.mark.parametrize(
    "changes",
    [
        {"alerts": {"webhook": "$UNSET_API_KEY"}},
        {"teacher": {"type": "llm", "llm": ENDPOINT}},
        {"leak_detection": {"detectors": ["exact", {"type": "llm_judge", "llm": ENDPOINT}]}},
    ],
    ids=["alerts.webhook", "teacher.llm.api_key_env", "detectors.1.llm.api_key_env"],
)
def test_a_variable_that_is_not_set_is_refused_at_the_start(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**TRAINING, **changes}))
    done = CliRunner().invoke(app, ["train", str(file), "--out", str(tmp_path / "run")])
    assert done.exit_code == 2 and "'UNSET_API_KEY'" in done.output and "export UNSET_API_KEY=" in done.output


def test_a_worker_refuses_a_webhook_whose_variable_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_WEBHOOK", " ")
    monkeypatch.setattr("rl2f_core.run.alerts.ATTEMPTS", 0)
    with counting_kinds():
        config = parse_config({**yaml.safe_load(counting()), "alerts": {"webhook": "$TEAM_WEBHOOK"}})
        run_dir = RunDir.create(tmp_path / "run", config)
        with pytest.raises(ConfigError, match=r"alerts\.webhook.*TEAM_WEBHOOK"):
            execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False)


@pytest.mark.parametrize(
    "command",
    [
        ["leaks", "check", "-", "--detector", "llm_judge:llm.type=openai_api:llm.api_key_env=UNSET_API_KEY"],
        ["verify", "dataset", "-", "--set", "path=builtin:sample", "--set", "checker=judge", "--set",
         "llm.type=openai_api", "--set", "llm.api_key_env=UNSET_API_KEY"],
    ],
    ids=["leaks check", "verify"],
)  # fmt: skip
def test_a_command_refuses_a_key_that_is_not_set(command: list[str]) -> None:
    done = CliRunner().invoke(app, command, input="")
    assert done.exit_code == 2 and "UNSET_API_KEY" in done.output and "not set" in done.output


def test_rescore_is_an_alias_of_leaks_rescore() -> None:
    alias, full = (CliRunner().invoke(app, [*words, "--help"]) for words in (["rescore"], ["leaks", "rescore"]))
    options = [set(re.findall(r"--[a-z-]+", done.output)) for done in (alias, full)]
    assert alias.exit_code == 0 and options[0] == options[1] and "--detector" in options[0]


def test_a_start_prints_nothing_about_vllm(tmp_path: Path, capsys: Any) -> None:
    from app.common.terminal_progress import TerminalProgress
    from rl2f_core.dialogue.rollout.build import build_backend

    config = parse_config({**TRAINING, "model": {"name": str(tmp_path), "device": "cpu", "dtype": "float32"}})
    with pytest.raises(RL2FError):  # there is no model
        build_backend(config, None, TerminalProgress())
    assert "vLLM" not in capsys.readouterr().err


# -- folder names with spaces, failed starts ---------------------------------------------------------------------------
@pytest.fixture
def spaced(tmp_path: Path) -> Path:
    """A run whose folder has a space."""
    return write_run(tmp_path / "my runs" / "a b", leaky_events())


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "RUN", "--dialogue", "none"],
        ["fork", "RUN", "none"],
        ["share", "RUN", "--dialogue", "none", "--out", "OUT"],
        ["report", "RUN"],
        ["results", "collect", "RUN", "--out", "OUT"],
        ["leaks", "rescore", "RUN", "--out", "OUT"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_printed_commands_quote_a_folder_with_spaces(spaced: Path, tmp_path: Path, arguments: list[str]) -> None:
    values = {"RUN": spaced, "OUT": tmp_path / "out"}
    done = CliRunner().invoke(app, [str(values.get(each, each)) for each in arguments])
    commands = re.findall(r"rl2f [a-z]+ .*", done.output)
    assert commands and all(f"'{spaced}'" in command for command in commands), done.output


def test_the_commands_after_a_run_quote_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL2F_WORKSPACE", str(tmp_path))
    with counting_kinds():
        (tmp_path / "config.yaml").write_text(counting())
        out = tmp_path / "my runs" / "a b"
        done = CliRunner().invoke(app, ["train", str(tmp_path / "config.yaml"), "--out", str(out)])
    assert done.exit_code == 0 and f"rl2f replay '{out}'" in done.output


def test_a_failed_start_leaves_its_folder_free(tmp_path: Path) -> None:
    file, out = tmp_path / "config.yaml", tmp_path / "my run"
    file.write_text(yaml.safe_dump(TRAINING))
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for _ in range(2):
        done = CliRunner().invoke(app, ["train", str(file), "--out", str(out)])
        assert done.exit_code == 2 and "There is no such model" in done.output
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_a_run_that_fails_after_a_commit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL2F_WORKSPACE", str(tmp_path))
    out = tmp_path / "run"
    with counting_kinds():
        (tmp_path / "config.yaml").write_text(counting(fail_at=2))
        done = CliRunner().invoke(app, ["train", str(tmp_path / "config.yaml"), "--out", str(out)])
    assert done.exit_code == 2 and f"The run's folder is {out}" in done.output
    assert (out / "events.jsonl").stat().st_size > 0 and (out / "config.yaml").is_file()


# -- unknown values ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (["replay", "RUN", "--phase", "evaluatoin"], "'evaluation'"),
        (["replay", "RUN", "--condition", "hintz"], "no such condition"),
        (["export", "1", "--out", "OUT", "--annotator", "nobody", "--workspace", "WORKSPACE"], "Unknown annotator"),
        (["export", "RUN", "--out", "OUT", "--annotator", "nobody"], "no human labels"),
        (["leaks", "report", "--environment", "maz", "--workspace", "WORKSPACE"], "maze"),
        (["leaks", "benchmark", "--benchmark", "handwriten"], "teacher_written"),
    ],
    ids=["phase", "condition", "annotator", "annotator of a folder", "environment", "benchmark"],
)
def test_a_command_refuses_an_unknown_value(
    workspace: Workspace, db: Database, tmp_path: Path, arguments: list[str], known: str
) -> None:
    run = write_run(workspace.folder("leaky"), leaky_events())
    reindex(db, workspace)
    values = {"RUN": run, "OUT": tmp_path / "out", "WORKSPACE": workspace.root}
    done = CliRunner().invoke(app, [str(values.get(each, each)) for each in arguments])
    assert done.exit_code == 2 and known in done.output and not (tmp_path / "out").exists()
