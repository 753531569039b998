"""The command line: what it prints, how it fails, and that text of models stays text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli import app
from rl2f_core.run.events import DialogueEvent, JsonlSink, StatusEvent
from rl2f_core.types import Dialogue, Hint, LeakReport, RewardTerm, StopReason, Task, Turn, Verdict

ROOT = Path(__file__).resolve().parents[3]
BASE: dict[str, Any] = {
    "name": "small",
    "model": {"name": "tiny-random", "device": "cpu", "dtype": "float32"},
    "environment": {"type": "guess_number", "size": 4, "low": 1},
    "rollout": {"max_turns": 2, "max_new_tokens": 8, "max_seq_len": 512},
    "evaluation": {"num_tasks": 6, "conditions": ["hints", "contentless"]},
    "stages": [
        {"name": "warm", "method": "sft", "steps": 2, "tasks_per_step": 2, "group_size": 2},
        {"name": "rl", "method": "rl2f", "steps": 2, "tasks_per_step": 2, "group_size": 2},
    ],
    "preflight": {"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True},
}


def run(*args: str, stdin: str | bytes | None = None) -> Any:
    """The command inside this process: exit_code, stdout, stderr."""
    return CliRunner().invoke(app, list(args), input=stdin)


def spawn(*args: str, env: dict[str, str] | None = None, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """The command as its own process."""
    return subprocess.run(
        [sys.executable, "-c", "from app.cli import main; main()", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **(env or {})},
        **kwargs,
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A small, correct configuration."""
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(BASE))
    return path


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# -- starting up -----------------------------------------------------------------------------------------------------
def test_help_names_every_command_within_a_second_and_without_torch() -> None:
    start = time.perf_counter()
    code = "import sys\ntry:\n    from app.cli import main; main()\nexcept SystemExit: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert time.perf_counter() - start < 1.0 * (1 + os.getloadavg()[0])  # a busy machine is given its share
    for command in ("train", "eval", "preflight", "replay", "verify", "models", "config", "doctor"):
        assert re.search(rf"^  {command} +\S", done.stdout, re.MULTILINE), command
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("command", ["train", "eval", "preflight", "replay", "verify", "doctor"])
def test_every_command_explains_itself(command: str) -> None:
    done = run(command, "--help")
    assert done.exit_code == 0 and len(done.stdout) > 200


# -- errors ----------------------------------------------------------------------------------------------------------
def test_an_error_is_one_red_sentence_on_stderr_with_exit_code_2() -> None:
    done = spawn("config", "validate", "/no/such/file.yaml")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("Error: The configuration file does not exist.") and "Traceback" not in done.stderr


@pytest.mark.slow
def test_debug_shows_where_an_error_came_from_wherever_it_stands() -> None:
    done = run("--debug", "config", "validate", "/no")
    assert done.exit_code == 1 and "load_config" in "".join(traceback.format_exception(done.exception))
    printed = spawn("config", "validate", "/no", "--debug")
    assert printed.returncode == 1 and "Traceback" in printed.stderr and "load_config" in printed.stderr


def test_a_package_that_is_not_installed_is_named_with_the_extra_that_installs_it(monkeypatch: Any) -> None:
    monkeypatch.delitem(sys.modules, "app.web.security", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.concurrency", None)  # an import of it raises ModuleNotFoundError
    done = run("serve")
    assert done.exit_code == 2
    assert "The package starlette.concurrency is not installed. Fix: pip install 'rl2f[app]'" in done.stderr


def broken(**changes: Any) -> str:
    return yaml.safe_dump(BASE | changes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (broken(rollouts={}), "rollouts: unknown key, did you mean 'rollout'"),
        (broken(rollout={"max_turn": 3}), "rollout.max_turn: unknown key"),
        (broken(rollout={"max_turns": "many"}), "rollout.max_turns"),
        (broken(environment="chess"), "unknown environment 'chess'"),
        (broken(kind="dance"), "Unknown run kind"),
        (broken(stages=[]), "stages"),
        (broken(stages=[BASE["stages"][1] | {"group_size": 1}]), "group_size 1"),
        (broken(rollout={"max_turns": 1}), "max_turns"),
        (broken(rollout={"max_seq_len": 16, "max_new_tokens": 16}), "max_seq_len 16"),
        ("a: [1, 2", "cannot be read"),
        ("just words", "no mapping"),
        ("", "no mapping"),
        ("\x00\x01", "cannot be read"),
    ],
)
def test_a_bad_configuration_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    for command in (["config", "validate"], ["train"]):
        done = run(*command, str(path))
        assert done.exit_code == 2 and said in done.stderr, done.stderr
        assert isinstance(done.exception, SystemExit)
    assert sorted(tmp_path.iterdir()) == [path]  # nothing was started


def test_an_override_that_names_nothing_is_refused(config: Path) -> None:
    assert "a.b=value" in run("config", "show", str(config), "--set", "seed").stderr
    assert "unknown key" in run("config", "show", str(config), "--set", "rollout.turns=3").stderr


def test_markup_in_an_error_is_shown_and_not_obeyed() -> None:
    done = run("verify", "[red]\x1b[31mbad[/red]", "-")
    assert done.exit_code == 2 and "[red]" in done.stderr and "\x1b[31m" not in done.stderr


# -- config ----------------------------------------------------------------------------------------------------------
def test_validate_says_ok(config: Path) -> None:
    done = run("config", "validate", str(config))
    assert done.exit_code == 0 and done.stdout == f"{config}: ok\n"


def test_show_prints_yaml_that_is_the_same_configuration_again(config: Path, tmp_path: Path) -> None:
    done = run("config", "show", str(config), "--set", "seed=7", "--set", "stages.1.steps=9")
    shown = yaml.safe_load(done.stdout)
    assert (shown["seed"], shown["stages"][1]["steps"], shown["lora"]["rank"]) == (7, 9, 16)
    again = tmp_path / "again.yaml"
    again.write_text(done.stdout)
    assert run("config", "show", str(again)).stdout == done.stdout


def test_schema_documents_every_field_and_component() -> None:
    from rl2f_core import registry

    text = run("config", "schema").stdout
    schema = json.loads(text)
    assert schema["properties"]["seed"]["description"].startswith("Seed of tasks")
    environments = schema["properties"]["environment"]["oneOf"]
    assert {e["properties"]["type"]["const"] for e in environments} == {*registry.names("environment")} - {"imported"}
    assert "Method" in text or "rl2f" in text


# -- verify ----------------------------------------------------------------------------------------------------------
def attempt(text: str, **changes: Any) -> str:
    return json.dumps({"problem": "from 1 to 16", "answer": "12", "attempt": text} | changes)


def test_verify_answers_in_order_one_line_each(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([attempt("<answer>12</answer>"), attempt("<answer>3</answer>"), attempt("12")]))
    done = run("verify", "guess_number", str(path))
    assert done.exit_code == 0
    assert [(r["correct"], r["score"], r["parsed"]) for r in lines(done.stdout)] == [
        (True, 1.0, "12"),
        (False, 0.0, "3"),
        (False, 0.0, None),
    ]
    assert all(set(r) == {"correct", "score", "parsed", "detail"} for r in lines(done.stdout))


BAD_LINES: list[bytes] = [
    b"not json",
    b"",
    b"[1, 2]",
    b'"text"',
    b'{"problem": "from 1 to 16", "answer": "12"}',
    b'{"problem": "from 1 to 16", "answer": "12", "attempt": 12}',
    b'{"problem": null, "answer": "12", "attempt": ""}',
    b'{"problem": "from 1 to 16", "answer": true, "attempt": ""}',
    b'{"problem": "from 1 to 16", "answer": "a dozen", "attempt": ""}',
    b'{"problem": "no range", "answer": "12", "attempt": ""}',
    b'{"problem": "from 1 to 16", "answer": "99", "attempt": ""}',
    b'{"problem": "from 1 to 16", "answer": ' + b"9" * 10_000 + b', "attempt": ""}',
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"problem": "from 1 to 16", "answer": "12", "attempt": "torn',
]


def test_verify_puts_an_error_in_the_place_of_each_bad_line_and_goes_on() -> None:
    good = attempt("<answer>12</answer>").encode()
    stream = b"".join(bad + b"\n" + good + b"\n" for bad in BAD_LINES)
    done = run("verify", "guess_number", "-", stdin=stream)
    records = lines(done.stdout)
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert len(records) == 2 * len(BAD_LINES)
    assert all(record["correct"] for record in records[1::2])
    for index, record in enumerate(records[::2]):
        assert set(record) == {"error", "line"} and record["line"] == 2 * index + 1 and record["error"], record
    assert f"Failed lines: {len(BAD_LINES)}." in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9" * 10_000,
        f"<answer>{'9' * 10_000}</answer>",
        "<answer>" * 5_000,
        "\x1b[2J\x00\u202e<answer>\ud800</answer>",
        "<|im_start|>assistant\n<answer>12",
        "<answer>__import__('os').system('true')</answer>",
        "x" * 1_000_000,
    ],
    ids=range(8),
)
@pytest.mark.parametrize(
    ("environment", "problem", "answer"),
    [
        ("guess_number", "from 1 to 16", "12"),
        ("arithmetic", "12 + 34", "46"),
        ("secret_code", "3 letters of ABCD", "BCA"),
    ],
)
def test_a_hostile_attempt_is_wrong_and_nothing_more(environment: str, problem: str, answer: str, text: str) -> None:
    line = json.dumps({"problem": problem, "answer": answer, "attempt": text})
    done = run("verify", environment, "-", stdin=line)
    (record,) = lines(done.stdout)
    assert done.exit_code == 0 and record["correct"] is False and record["score"] < 1, record
    assert "\x1b" not in done.stdout


def test_verify_takes_settings_of_the_environment() -> None:
    line = json.dumps({"problem": "guess it", "answer": 3, "attempt": "<answer>3</answer>"})
    assert run("verify", "guess_number", "-", stdin=line).exit_code == 1  # no range is known
    done = run("verify", "guess_number", "-", "--set", "low=1", "--set", "size=4", stdin=line)
    assert done.exit_code == 0 and lines(done.stdout)[0]["correct"] is True
    wrong = run("verify", "guess_number", "-", "--set", "width=4", stdin=line)
    assert wrong.exit_code == 2 and "width: unknown key" in wrong.stderr and "size" in wrong.stderr


def test_verify_names_the_environments_it_knows() -> None:
    done = run("verify", "chess", "-", stdin="")
    assert done.exit_code == 2 and "guess_number" in done.stderr
    assert run("verify", "guess_number", "/no/such/file").exit_code == 2


README_COMMANDS = """
import json, sys, yaml
from typer.testing import CliRunner
from app.cli import app
from rl2f_core import registry
from rl2f_core.environments.base import wrap_answer

def run(*args, **kwargs):
    return CliRunner().invoke(app, args, **kwargs)

line = json.dumps({"problem": "Write this word backward: abc", "answer": "cba", "attempt": "<answer>cba</answer>"})
done = run("verify", "backward", "-", input=line)
assert done.exit_code == 1 and "Implement `task_from_gold`" in json.loads(done.stdout)["error"], done.output
sets = ("--set", "environment=backward", "--set", "environment.letters=3")
plain = ("--set", "teacher=contentless", "--set", "stages.0.method=rlvr")
done = run("config", "validate", sys.argv[1], *sets, *plain)
assert done.exit_code == 0, done.output
shown = yaml.safe_load(run("config", "show", sys.argv[1], *sets, *plain).stdout)
assert shown["environment"] == {"type": "backward", "letters": 3}
done = run("config", "validate", sys.argv[1], *sets)
assert done.exit_code == 2 and "scripted hints" in done.stderr
e = registry.get("environment", "backward")
e = e(e.Config())
for split in ("train", "validation", "test"):
    for i in range(20):
        t = e.task(split, i); g = e.gold_answer(t); v = e.verify(t, wrap_answer(g))
        assert v.correct and v.score == 1 and g[::-1] in e.prompt(t.public) and t.split == split
        w = e.verify(t, wrap_answer(g + "a")); assert not w.correct and w.score == 0
"""


@pytest.mark.slow
def test_the_environment_of_the_readme_is_picked_up_by_every_command(tmp_path: Path, config: Path) -> None:
    source = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert source is not None and sum(bool(line.strip()) for line in source[1].splitlines()) <= 45
    plugin = tmp_path / "backward.py"
    plugin.write_text(source[1])
    done = subprocess.run(
        [sys.executable, "-c", README_COMMANDS, config], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=120, env={**os.environ, "RL2F_PLUGINS": str(plugin)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# -- models ----------------------------------------------------------------------------------------------------------
def test_models_get_prints_the_folder_and_list_then_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL2F_HOME", str(tmp_path))
    assert re.search(r"tiny-random +not fetched", run("models", "list").stdout)
    done = run("models", "get", "tiny-random")
    assert done.exit_code == 0 and done.stdout.strip() == str(tmp_path / "models" / "tiny-random")
    assert re.search(r"tiny-random +\d+\.\d kB", run("models", "list").stdout)
    assert "verified" in run("models", "get", "tiny-random", "--verify").stderr
    weights = tmp_path / "models" / "tiny-random" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    spoiled = run("models", "get", "tiny-random", "--verify")
    assert spoiled.exit_code == 2 and "checksum mismatch" in spoiled.stderr
    assert "rl2f models get tiny-random --force" in spoiled.stderr
    assert run("models", "get", "tiny-random", "--force").exit_code == 0


def test_an_unknown_model_is_a_clear_error() -> None:
    done = run("models", "get", "nothing-like-it")
    assert done.exit_code == 2 and "smollm2-135m" in done.stderr


# -- doctor ----------------------------------------------------------------------------------------------------------
def test_doctor_reports_what_is_there_and_a_command_for_what_is_not() -> None:
    done = run("doctor", "--json")
    report = json.loads(done.stdout)
    assert report["packages"]["torch"]["installed"].startswith(report["packages"]["torch"]["wanted"].lstrip("="))
    assert report["devices"]["found"][-1]["device"] == "cpu" and report["devices"]["auto"]["matmul_gflops"] > 0
    assert {"backend", "reason"} <= report["devices"]["auto"].keys()
    assert report["memory"]["total"] > 1e9 and report["disk"]["cache"]["free"] > 0
    assert {"smollm2-135m", "tiny-random"} <= {entry["name"] for entry in report["models"]}
    assert all(finding["what"] and finding["fix"] for finding in report["findings"])
    assert done.exit_code == int(any(finding["needed"] for finding in report["findings"]))
    assert any(f["fix"] == "rl2f models get smollm2-135m" for f in report["findings"])  # the tests' cache is empty


@pytest.mark.slow
def test_doctor_measures_a_model_and_suggests_settings_for_it() -> None:
    result = run("doctor", "--bench", "--model", "tiny-random", "--device", "cpu", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    assert "tiny-random in float32 on cpu: matrix products" in result.stdout
    assert all(text in result.stdout for text in ("rollout: batch", "peak memory", "training an adapter", "7B"))
    assert "prefill tokens/s" in result.stdout and "A sampled token takes" in result.stdout
    assert "model.dtype=float32" in result.stdout and "gpu_" not in result.stdout
    assert "greedy" not in result.stdout  # it is the reference itself


def test_doctor_measures_no_unknown_device() -> None:
    result = run("doctor", "--bench", "--device", "abacus")
    assert result.exit_code == 2 and "device" in result.stderr


def test_doctor_for_people_names_every_package() -> None:
    done = run("doctor")
    for word in ("transformers", "memory:", "disk (cache):", "model smollm2-135m:"):
        assert word in done.stdout


# -- replay ----------------------------------------------------------------------------------------------------------
NASTY = "[bold]shout[/bold]\x1b[2J\x07\u202eevil\r\x9b31m\ttab\nTurn 9 ✓ right"


def event(
    name: str, attempts: list[tuple[str, str | None, bool]], step: int = 1, leak: bool = False, **more: Any
) -> DialogueEvent:
    """A dialogue on `guess_number` from (text, parsed, correct) triples."""
    turns = []
    for index, (text, parsed, correct) in enumerate(attempts):
        report = LeakReport(leaked=leak, detector="exact", evidence="it says 3", answer_fraction=1.0, action="flag")
        hint = None if correct or index == len(attempts) - 1 else Hint(text="Too low.", teacher="scripted", leak=report)
        verdict = Verdict(correct=correct, score=float(correct), parsed=parsed, detail="the number is 3")
        terms = (RewardTerm(name="correct", score=float(correct)), RewardTerm(name="progress", score=0.5, weight=0.3))
        turns.append(Turn(index=index, attempt=text, verdict=verdict, rewards=terms, hint=hint))
    stop = StopReason.SOLVED if attempts[-1][2] else StopReason.EXHAUSTED
    task = Task(
        id="guess_number/train/0",
        environment="guess_number",
        split="train",
        level="1 of 4",
        public={"low": 1, "high": 4},
        privileged={"number": "3"},
    )
    dialogue = Dialogue(id=name, task_id=task.id, group="g", index=0, turns=tuple(turns), stop_reason=stop)
    return DialogueEvent(
        id=f"dialogue:{name}", phase="train", stage="rl", step=step, task=task, dialogue=dialogue, **more
    )


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run's folder with three dialogues and a torn last line."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(BASE))
    sink = JsonlSink(folder / "events.jsonl")
    sink.emit([StatusEvent(id="s", status="running")])
    sink.emit([event("one", [("<answer>1</answer>", "1", False), ("<answer>3</answer>", "3", True)])])
    sink.emit([event("two", [(NASTY, None, False), ("<answer>4</answer>", "4", False)], step=2, leak=True)])
    sink.emit([event("three", [("<answer>3</answer>", "3", True)], step=2)])
    with open(folder / "events.jsonl", "ab") as file:
        file.write(b'{"type": "dialogue", "torn')
    return folder


def test_replay_lists_dialogues_with_their_verdicts_and_leaks(finished: Path) -> None:
    done = run("replay", str(finished))
    assert done.exit_code == 0
    rows = [line.split() for line in done.stdout.splitlines()[1:4]]
    assert [row[1] for row in rows] == ["one", "two", "three"]
    assert ["✗✓" in rows[0], "?✗" in rows[1], "✓" in rows[2]] == [True] * 3
    assert rows[1][-1] == "1" and "exhausted" in rows[1]
    only = run("replay", str(finished), "--step", "2").stdout.splitlines()
    assert [line.split()[:2] for line in only[1:3]] == [["2", "two"], ["3", "three"]]  # numbers stay the same
    assert "2 earlier dialogues" in run("replay", str(finished), "--limit", "1").stdout


@pytest.mark.parametrize("name", ["one", "1"])
def test_replay_shows_a_dialogue_turn_by_turn(finished: Path, name: str) -> None:
    text = run("replay", str(finished), "--dialogue", name).stdout
    assert "from 1 to 4" in text  # the problem as the student read it
    order = ["turn 1", "✗ incorrect", "parsed 1", "<answer>1</answer>", "Too low."]
    order += ["turn 2", "✓ correct", "solved after 2"]
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)
    assert "reward 1.15 = correct 1×1 + progress 0.5×0.3" in text and "LEAK" not in text


def test_replay_shows_a_leak_and_makes_hostile_text_visible(finished: Path) -> None:
    text = run("replay", str(finished), "--dialogue", "two").stdout
    assert "LEAK exact 100% of the answer, action flag: it says 3" in text
    assert "[bold]shout[/bold]\\x1b[2J\\x07\\u202eevil\\r\\x9b31m\\ttab" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "\n  │ Turn 9 ✓ right" in text  # a line of the student's cannot pass for one of ours


@pytest.mark.slow
def test_replay_on_a_terminal_lets_no_control_sequence_of_the_model_through(finished: Path) -> None:
    done = spawn("replay", str(finished), "--dialogue", "two", env={"FORCE_COLOR": "1", "TERM": "xterm"})
    assert "\x1b[" in done.stdout  # our own colours are there
    assert "\x1b[2J" not in done.stdout and "\x9b" not in done.stdout and "\u202e" not in done.stdout


def test_replay_of_nothing_is_a_clear_error(finished: Path, tmp_path: Path) -> None:
    assert "no such dialogue" in run("replay", str(finished), "--dialogue", "nine").stderr
    missing = run("replay", str(tmp_path / "nowhere"))
    assert missing.exit_code == 2 and "The folder contains no run" in missing.stderr
    (finished / "events.jsonl").unlink()
    assert run("replay", str(finished)).exit_code == 2
