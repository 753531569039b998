"""`verifiers:<taskset>`: without the package, with programs in the place of its Python; with it, real tasksets.

The tests with the package are slow and need `make setup-verifiers`.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from verifiers_helpers import needs_verifiers

from rl2f_core import registry
from rl2f_core.config.loading import parse_config
from rl2f_core.environments.base import CONTENTLESS
from rl2f_core.environments.verifiers import server
from rl2f_core.environments.verifiers.environment import Verifiers
from rl2f_core.environments.verifiers.taskset import PYTHON, open_taskset
from rl2f_core.errors import ConfigError, DataError
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink, read_events
from rl2f_core.run.execute import execute
from rl2f_core.types import SPLITS, Task, Verdict

STAGES = [{"name": "s", "method": "rl2f", "steps": 1, "tasks_per_step": 2, "group_size": 2}]
WORKER = '''#!{python}
"""In the place of the Python with verifiers: answers `load` with tasks, and scores by the length of the reply."""
import json, os, subprocess, sys, time
from pathlib import Path
folder = Path({folder!r})
for line in sys.stdin:
    request = json.loads(line)
    job, args = request["job"], request["args"]
    reply = {{"value": "0.4.0"}}
    if job == "load":
        if args["name"] == "hangs":
            child = subprocess.Popen(["sleep", "600"])
            (folder / "pids").write_text(f"{{os.getpid()}} {{child.pid}}")
            time.sleep(600)
        if args["name"] == "garbage":
            print("no JSON", flush=True)
            continue
        if args["name"] == "ends":
            sys.exit(3)
        same = args["name"] != "differs"
        reply = {{"value": [
            {{"messages": [{{"role": "system", "content": "Be brief." if same else f"Rule {{k}}."}},
                           {{"role": "user", "content": f"Question {{k}}?"}}],
              "key": f"key {{k}}", "data": {{"answer": k, "system_prompt": "x"}}}} for k in range(args["max_tasks"])
        ]}}
    if job == "score":
        with open(folder / "jobs", "a") as log:
            log.write(f"{{len(args['replies'])}}\\n")
        if any("crash" in each["text"] for each in args["replies"]):
            os._exit(1)
        rewards = [len(each["text"]) / 4 - 1 for each in args["replies"]]
        good = [{{"reward": r, "terms": {{"length": r}}}} for r in rewards]
        reply = {{"value": [each if each["reward"] < 9 else {{"error": "too long"}} for each in good]}}
    print(json.dumps(reply), flush=True)
'''


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that speaks the protocol, in the place of the Python with verifiers."""
    program = tmp_path / "python"
    program.write_text(WORKER.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setenv(PYTHON, str(program))
    open_taskset.cache_clear()
    return tmp_path


def made(taskset: str = "any", **config: Any) -> Verifiers:
    return Verifiers(Verifiers.Config(taskset=taskset, **{"max_tasks": 40, **config}))


def assert_contract(environment: Verifiers, count: int = 20) -> None:
    """Task orders repeat, splits share no problem, tasks survive JSON, and no text raises."""
    keys = []
    for split in SPLITS:
        tasks = [environment.task(split, index) for index in range(count)]
        assert tasks == [environment.task(split, index) for index in range(count)]
        assert {task.split for task in tasks} == {split} and len({task.id for task in tasks}) == count
        assert all(environment.prompt(task.public).strip() and task.level for task in tasks)
        assert Task.model_validate_json(tasks[0].model_dump_json()) == tasks[0]
        keys.append({environment.canonical(task) for task in tasks})
    assert keys[0].isdisjoint(keys[1] | keys[2]) and keys[1].isdisjoint(keys[2])
    for text in ("", " ", "\x00", "\ud800", "<answer>1</answer>" * 2, "9" * 30_000, "{'a':"):
        verdict = environment.verify(environment.task("test", 0), text)
        assert 0 <= verdict.score <= 1 and (verdict.score == 1) == verdict.correct
        assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


# -- without the package -------------------------------------------------------------------------------------------
def test_a_short_name_selects_the_taskset() -> None:
    config: Any = parse_config({"environment": "verifiers:owner/sums@1.0", "teacher": "contentless", "stages": STAGES,
                                "reward": {"preset": "environment"}})  # fmt: skip
    assert (config.environment.type, config.environment.taskset) == ("verifiers", "owner/sums@1.0")
    assert registry.get("environment", "verifiers") is Verifiers


def test_settings_that_name_files_or_programs_are_refused() -> None:
    for name in ("id", "task", "system_prompt"):
        with pytest.raises(ValueError, match=f"{name} cannot be set here"):
            Verifiers.Config(settings={name: "x"})
    for name in ("", "../x", "a b", "-m"):
        with pytest.raises(ValueError, match="pattern"):
            Verifiers.Config(taskset=name)
    field: Any = Verifiers.Config.model_fields["settings_file"].json_schema_extra
    assert field["known"] == "files"  # a form accepts none


def test_a_missing_interpreter_or_package_is_reported_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"no Python with the package verifiers.*none.*make setup-verifiers"):
        made().describe_data()
    monkeypatch.setenv(PYTHON, sys.executable)  # this environment cannot have verifiers
    with pytest.raises(ConfigError, match=r"No module named 'verifiers'.*make setup-verifiers"):
        made().describe_data()


def test_a_settings_file_that_is_no_json_object_is_reported(worker: Path) -> None:
    (worker / "list.json").write_text("[1]")
    for file, error in (("list.json", "no JSON object"), ("none.json", "cannot be read")):
        with pytest.raises(ConfigError, match=error):
            made(settings_file=str(worker / file)).describe_data()


def test_tasks_of_a_taskset_keep_the_contract(worker: Path) -> None:
    environment = made()
    assert_contract(environment)
    sizes = {split: len(found) for split, found in environment.positions.items()}
    assert sum(sizes.values()) == 40 and environment.describe_data().startswith(
        f"verifiers:any: tasks: {sizes['train']} tr"
    )
    task = environment.task("train", 0)
    position = task.privileged["position"]
    assert (environment.system_prompt(), environment.prompt(task.public)) == ("Be brief.", f"Question {position}?")
    assert environment.gold_answer(task) == str(position) and made(answer_field="no").gold_answer(task) == str(position)
    assert made(answer_field="no").gold_answer(made(answer_field="no").task("train", 0)) == ""
    size = sizes["train"]
    first, second = ([environment.task("train", k + size * e).privileged["key"] for k in range(size)] for e in (0, 1))
    assert sorted(first) == sorted(second) and first != second and len(set(first)) == size


def test_different_system_messages_are_part_of_the_problem(worker: Path) -> None:
    environment = made("differs")
    task = environment.task("test", 0)
    position = task.privileged["position"]
    assert environment.system_prompt() == "" and task.public["problem"] == f"Rule {position}.\n\nQuestion {position}?"


def test_a_split_without_tasks_is_reported(worker: Path) -> None:
    environment = made(max_tasks=3)
    empty = next(split for split, found in environment.positions.items() if not found)
    with pytest.raises(DataError, match=f"The {empty} split has no problems"):
        environment.task(empty, 0)


def test_a_verdict_has_the_reward_and_partial_credit(worker: Path) -> None:
    environment, task = made(), made().task("train", 0)
    texts = ["a" * n for n in (2, 6, 8, 12, 80)]
    verdicts = [environment.verify(task, text) for text in texts]
    assert [(v.reward, v.score, v.correct) for v in verdicts] == [
        (-0.5, 0.0, False), (0.5, 0.5, False), (1.0, 1.0, True), (2.0, 1.0, True), (0.0, 0.0, False),
    ]  # fmt: skip
    assert verdicts[1].detail == "reward 0.5 (length 0.5)" and verdicts[4].detail == "no reward: too long"
    lenient = made(correct_from=0.5).verify(task, texts[1])
    assert lenient.correct and lenient.score == 1
    assert made(correct_from=1 + 1e-9).verify(task, texts[2]).correct  # a sum of weighted rewards is rounded


def test_attempts_are_scored_in_batches_and_only_once(worker: Path) -> None:
    environment = made()
    attempts = [(environment.task("train", k % 5), "a" * (k + 1)) for k in range(20)]
    environment.prefetch_verdicts([*attempts, attempts[0], (attempts[0][0], "")])
    for task, text in attempts:
        assert environment.verify(task, text).reward is not None
    assert (worker / "jobs").read_text().split() == ["16", "4"]


def test_a_reply_that_crashes_the_worker_costs_no_other_its_reward(worker: Path) -> None:
    environment = made()
    task = environment.task("train", 0)
    texts = ["aaaaaaaa", "crash", "aaaaaa"]
    environment.prefetch_verdicts([(task, text) for text in texts])
    verdicts = [environment.verify(task, text) for text in texts]
    assert [v.reward for v in verdicts] == [1.0, 0.0, 0.5]
    assert verdicts[1].detail == "no reward: the worker process crashed"


@pytest.mark.parametrize(("name", "error"), [("garbage", "sent no JSON"), ("ends", "crashed")])
def test_a_worker_that_breaks_the_protocol_is_reported(worker: Path, name: str, error: str) -> None:
    with pytest.raises(ConfigError, match=f"Taskset {name} cannot be used: the worker process {error}"):
        made(name).task("train", 0)


def test_a_worker_that_hangs_is_killed_with_its_children(worker: Path) -> None:
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"no verdict within 0\.6 s"):
        made("hangs", load_limit=0.6).task("train", 0)
    assert time.monotonic() - start < 20
    pids = [int(pid) for pid in (worker / "pids").read_text().split()]
    gone = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=10)[1]
    assert len(pids) == 2 and all(process.status() == psutil.STATUS_ZOMBIE for process in gone)


# -- the other direction: the process that serves our environments -------------------------------------------------
def ask(job: str, environment: str, args: dict[str, Any], settings: str = "{}", split: str = "train") -> dict[str, Any]:
    request = {"job": job, "environment": environment, "settings": settings, "split": split, "args": args}
    replies = io.StringIO()
    server.serve(io.StringIO(json.dumps(request) + "\n"), replies)
    return dict(json.loads(replies.getvalue()))


def test_the_server_returns_prompts_but_no_privileged_data() -> None:
    held: Any = registry.get("environment", "arithmetic")
    environment = held(held.Config(digits=1))
    tasks = ask("tasks", "arithmetic", {"count": 3}, '{"digits": 1}', "test")["value"]
    assert [task["prompt"] for task in tasks] == [
        environment.prompt(environment.task("test", k).public) for k in range(3)
    ]
    assert {key for task in tasks for key in task} == {"id", "system", "prompt"}


def test_the_server_verifies_a_dialogue_until_it_is_solved() -> None:
    held: Any = registry.get("environment", "secret_code")
    environment = held(held.Config())
    task = environment.task("train", 2)
    right = f"<answer>{environment.gold_answer(task)}</answer>"
    wrong = ask("verify", "secret_code", {"index": 2, "attempts": ["?"]})["value"]
    assert (wrong["reward"], wrong["solved"], wrong["done"]) == (0, False, False) and wrong["message"].strip()
    solved = ask("verify", "secret_code", {"index": 2, "attempts": ["?", right, "?"]})["value"]
    assert solved == {"reward": 1.0, "solved": True, "done": True, "message": ""}


def test_the_server_sums_the_rewards_of_a_stateful_environment() -> None:
    held: Any = registry.get("environment", "taxi")
    environment = held(held.Config())
    plan = [f"<answer>{action}</answer>" for action in environment.plan(environment.task("train", 0))]
    step = ask("verify", "taxi", {"index": 0, "attempts": plan[:1]})["value"]
    assert not step["done"] and "Observation" not in step["message"] and step["message"] != CONTENTLESS
    whole = ask("verify", "taxi", {"index": 0, "attempts": plan})["value"]
    verdicts: list[Verdict] = []
    for action in plan:
        verdicts.append(environment.verify_turn(environment.task("train", 0), verdicts, action))
    assert whole["solved"] and whole["reward"] == sum(v.reward or 0 for v in verdicts) != 1


@pytest.mark.parametrize(
    ("job", "environment", "settings", "error"),
    [("tasks", "nothing", "{}", "Unknown environment.*arithmetic"),
     ("tasks", "arithmetic", '{"x": 1}', "x: unknown key"),
     ("play", "arithmetic", "{}", "KeyError"), ("tasks", "arithmetic", "{", "JSONDecodeError")],
)  # fmt: skip
def test_the_server_replies_to_bad_requests_with_the_error(
    job: str, environment: str, settings: str, error: str
) -> None:
    assert re.search(error, ask(job, environment, {"count": 1}, settings)["error"])


# -- with the package ----------------------------------------------------------------------------------------------
TASKSET = """
import time
from pathlib import Path
import verifiers.v1 as vf

class SumsConfig(vf.TasksetConfig):
    size: int = 60
    form: str = "text"
    log: Path = Path("none")

class SumsData(vf.TaskData):
    answer: str

class SumsTask(vf.Task[SumsData]):
    @vf.reward(weight=0.8)
    async def right(self, task, trace) -> float:
        return float(vf.extract_boxed_answer(trace.last_reply) == task.answer)

    @vf.reward(weight=0.2)
    async def brief(self, trace) -> float:
        assert [m.role for m in trace.messages] == ["system", "user", "assistant"] and trace.num_turns == 1
        if "raise" in trace.last_reply:
            raise ValueError("no such text")
        if "hang" in trace.last_reply:
            time.sleep(60)
        if "nan" in trace.last_reply:
            return float("nan")
        return float(len(trace.last_reply) <= 20)

    @vf.metric
    async def length(self, trace) -> float:
        return len(trace.last_reply)

class Container(SumsTask):
    NEEDS_CONTAINER = True

class Prepared(SumsTask):
    async def setup(self, trace, runtime):
        await runtime.write("file", b"")

class Inspected(SumsTask):
    @vf.reward
    async def ran(self, runtime) -> float:
        return 1.0

class NoReward(vf.Task[SumsData]):
    pass

KINDS = {"container": Container, "setup": Prepared, "runtime": Inspected, "none": NoReward}

class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    INFINITE = True
    def load(self):
        print("printed by the taskset")
        kind, prompt = KINDS.get(self.config.form, SumsTask), "{} + {} ="
        for k in range(self.config.size):
            text = prompt.format(k, k + 1)
            image = [vf.UserMessage(content=[vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url="data:x"))])]
            data = {"image": image, "nothing": None}.get(self.config.form, text)
            made = SumsData(prompt=data, system_prompt="Answer in \\\\boxed{}.", answer=str(2 * k + 1))
            yield kind(made, self.config.task)

__all__ = ["SumsTaskset"]
"""
ENV = TASKSET.replace('__all__ = ["SumsTaskset"]', '''
class Game(vf.Env[vf.SingleAgentEnvConfig]):
    async def run(self, task, agents):
        pass
__all__ = ["SumsTaskset", "Game"]
''')  # fmt: skip


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the modules of two tasksets."""
    (tmp_path / "rl2f_test_sums.py").write_text(TASKSET)
    (tmp_path / "rl2f_test_game.py").write_text(ENV)
    monkeypatch.setenv("RL2F_VERIFIERS_PATH", str(tmp_path))
    open_taskset.cache_clear()
    return tmp_path


@pytest.mark.slow
@needs_verifiers
def test_a_taskset_of_verifiers_is_an_environment_with_its_rubric(sums: Path) -> None:
    environment = made("rl2f-test-sums", max_tasks=50, settings={"size": 100})
    assert_contract(environment)
    assert sum(map(len, environment.positions.values())) == 50 and environment.system_prompt() == "Answer in \\boxed{}."
    task = environment.task("test", 3)
    assert task.public["problem"].endswith(" =") and int(environment.gold_answer(task)) % 2
    gold = f"\\boxed{{{environment.gold_answer(task)}}}"
    texts = (gold, f"It is certainly {gold}", "7", "7" * 21)
    environment.prefetch_verdicts([(task, text) for text in texts])
    verdicts = [environment.verify(task, text) for text in texts]
    assert [(v.reward, v.correct) for v in verdicts] == [
        (pytest.approx(1.0), True), (pytest.approx(0.8), False), (pytest.approx(0.2), False), (0.0, False),
    ]  # fmt: skip
    assert verdicts[1].detail == "reward 0.8 (brief 0.0, right 0.8)" and verdicts[1].score == pytest.approx(0.8)


@pytest.mark.slow
@needs_verifiers
def test_a_rubric_that_raises_or_hangs_gives_no_reward_and_the_next_reply_is_scored(sums: Path) -> None:
    environment = made("rl2f-test-sums", time_limit=1)
    task = environment.task("train", 0)
    details = [environment.verify(task, text).detail for text in ("raise", "hang")]
    assert "no such text" in details[0] and "no verdict within" in details[1]
    assert environment.verify(task, "7").reward == pytest.approx(0.2)
    changed = task.model_copy(update={"privileged": {**task.privileged, "key": "other"}})
    assert "the taskset has changed" in environment.verify(changed, "7").detail


@pytest.mark.slow
@needs_verifiers
@pytest.mark.parametrize(
    ("taskset", "settings", "error"),
    [("rl2f-test-nothing", {}, "not found"), ("rl2f-test-game", {}, "environment Game"),
     ("rl2f-test-sums", {"form": "container"}, "needs a runtime"),
     ("rl2f-test-sums", {"form": "setup"}, "needs a runtime"),
     ("rl2f-test-sums", {"form": "runtime"}, "runtime for the reward ran"),
     ("rl2f-test-sums", {"form": "none"}, "has no reward"), ("rl2f-test-sums", {"form": "image"}, "not text"),
     ("rl2f-test-sums", {"form": "nothing"}, "has no prompt"),
     ("rl2f-test-sums", {"log": "/etc/passwd"}, "log are paths"),
     ("rl2f-test-sums", {"sise": 3}, "sise"), ("rl2f-test-sums", {"size": 0}, "has no tasks")],
)  # fmt: skip
def test_tasksets_that_need_more_than_text_are_refused(
    sums: Path, taskset: str, settings: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        made(taskset, settings=settings).describe_data()


@pytest.mark.slow
@needs_verifiers
def test_a_settings_file_may_configure_tasks_and_paths(sums: Path) -> None:
    rewards = {"brief": {"weight": 0.5}, "right": {"weight": 0.5}}
    (sums / "more.json").write_text(json.dumps({"task": {"rewards": rewards}, "log": "x", "size": 9}))
    environment = made("rl2f-test-sums", settings_file=str(sums / "more.json"), settings={"size": 30})
    assert environment.verify(environment.task("train", 0), "7").reward == 0.5
    assert sum(map(len, environment.positions.values())) == 30


@pytest.mark.slow
@needs_verifiers
def test_a_run_trains_on_a_taskset_with_the_reward_of_its_rubric(sums: Path, tiny: Path) -> None:
    config = parse_config(
        {"environment": {"type": "verifiers", "taskset": "rl2f-test-sums"}, "teacher": "contentless", "stages": STAGES,
         "model": {"name": str(tiny)}, "reward": {"preset": "environment"},
         "rollout": {"max_new_tokens": 12, "max_turns": 2}, "evaluation": {"checkpoints": []},
         "preflight": {"ignore_failure": True}, "leak_detection": {"detectors": ["exact"]}}
    )  # fmt: skip
    run_dir = RunDir.create(sums / "run", config)
    assert execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
    dialogues = [event for event in read_events(run_dir.events_path, strict=True) if event.type == "dialogue"]
    turns = [turn for event in dialogues for turn in event.dialogue.turns if turn.attempt.strip()]  # type: ignore[union-attr]
    assert turns
    for turn in turns:
        brief = 0.2 * (len(turn.attempt.strip()) <= 20)
        assert turn.verdict.reward == pytest.approx(brief) and turn.rewards[0].value == pytest.approx(brief)


@pytest.mark.slow
@needs_verifiers
def test_the_worker_ends_with_its_parent_during_a_job(sums: Path) -> None:
    code = (
        "import sys; from rl2f_core.environments.verifiers.environment import Verifiers as V\n"
        "e = V(V.Config(taskset='rl2f-test-sums')); t = e.task('train', 0)\n"
        "print('ready', flush=True); e.verify(t, 'hang')"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
    (child,) = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait()
    assert not psutil.wait_procs([child], timeout=10)[1]
