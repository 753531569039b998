"""Our environments as a taskset of verifiers: rollouts of `vf-eval` against `rl2f serve-model` with the tiny model."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_runs import write_model_run
from model_server_helpers import served, serving
from verifiers_helpers import needs_verifiers

from rl2f_core import registry
from rl2f_core.common.paths import ROOT
from rl2f_core.environments.base import CONTENTLESS, Environment
from rl2f_core.environments.verifiers.taskset import python

pytestmark = [pytest.mark.slow, needs_verifiers]
PARITY = '''
"""An attempt is correct if the first byte of its hash is even: random text is correct half of the time."""
import hashlib
from typing import Literal
from rl2f_core.config.fields import ComponentConfig
from rl2f_core.environments.base import Environment, new_task
from rl2f_core.registry import register
from rl2f_core.types import Verdict

@register("environment")
class Parity(Environment):
    class Config(ComponentConfig):
        """Random tasks."""
        type: Literal["parity"] = "parity"
        """Name."""
        start: int = 10
        """First number."""
    def task(self, split, index):
        task = new_task(self, "any", {"n": self.config.start + index}, {"answer": "none"})
        return task.model_copy(update={"split": split, "id": f"parity/{split}/{index}"})
    def system_prompt(self):
        return "Write anything."
    def prompt(self, public):
        return f"Number {public['n']}."
    def verify(self, task, attempt):
        even = hashlib.sha256(f"{task.public['n']} {attempt}".encode()).digest()[0] % 2 == 0
        print("noise")
        return Verdict(correct=even, score=float(even), parsed=attempt, well_formed=True)
'''


def is_correct(number: int, attempt: str) -> bool:
    return hashlib.sha256(f"{number} {attempt}".encode()).digest()[0] % 2 == 0


@pytest.fixture(scope="module")
def endpoint(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    run = write_model_run(tmp_path_factory.mktemp("runs") / "trained", tiny, ["rl@2"])
    with serving(served(run, ["rl@2"])) as (_, http):
        yield f"{str(http.base_url).rstrip('/')}/v1"


def evaluate(folder: Path, url: str, *options: str, **variables: str) -> list[dict[str, Any]]:
    """Run vf-eval without uploading and return the traces."""
    program = str(python().with_name("vf-eval"))
    more = ["--no-push", "--no-rich", "--output-dir", str(folder), "--run.dir", "run", "--model", "trained@rl@2",
            "--client.base-url", url, "--client.api-key-var", "NO_KEY", "--sampling.max-tokens", "6",
            "--sampling.temperature", "0"]  # fmt: skip
    env = {**os.environ, "RL2F_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "HOME": str(folder), **variables}
    done = subprocess.run(
        [program, "rl2f-taskset", *more, *options], env=env, cwd=folder, text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    episodes = [json.loads(line) for line in (folder / "run" / "traces.jsonl").read_text().splitlines()]
    return [trace for episode in episodes for trace in episode.get("traces", [episode])]


def test_rewards_of_rollouts_by_verifiers_equal_those_of_our_verifier(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "parity.py").write_text(PARITY)
    traces = evaluate(
        tmp_path, endpoint, "--env.taskset.environment", "parity", "--env.taskset.settings", '{"start": 100}',
        "--env.taskset.num-tasks", "12", "--env.turns", "2", RL2F_PLUGINS=str(tmp_path / "parity.py"),
    )  # fmt: skip
    assert len(traces) == 12 and all(trace["ok"] for trace in traces), traces[0]["errors"]
    rewards = []
    for trace in traces:
        messages = [node["message"] for node in trace["nodes"]]
        number = 100 + trace["task"]["data"]["position"]
        assert [m["content"] for m in messages[:2]] == ["Write anything.", f"Number {number}."]
        attempts = [m.get("content") or "" for m in messages if m["role"] == "assistant"]
        verdicts = [is_correct(number, attempt) for attempt in attempts]
        assert verdicts[:-1] == [False] * (len(attempts) - 1) and (verdicts[-1] or len(attempts) == 2)
        assert {m["content"] for m in messages[3::2]} <= {CONTENTLESS}
        rewards.append(trace["rewards"]["verifier"]["score"])
        assert rewards[-1] == float(verdicts[-1]) == trace["metrics"]["solved"]
    assert set(rewards) == {0.0, 1.0}


def test_a_student_of_verifiers_reads_the_hints_of_our_environment(endpoint: str, tmp_path: Path) -> None:
    traces = evaluate(
        tmp_path, endpoint, "--env.taskset.environment", "guess_number", "--env.taskset.num-tasks", "2",
        "--env.taskset.split", "test", "--env.turns", "2",
    )  # fmt: skip
    kind: Any = registry.get("environment", "guess_number")
    environment: Environment = kind(kind.Config())
    for trace in traces:
        task = environment.task("test", trace["task"]["data"]["position"])
        messages = [node["message"].get("content") or "" for node in trace["nodes"]]
        verdict = environment.verify(task, messages[2])
        hint = kind.hint(environment, task, [verdict], random.Random(f"{task.id} 1"))
        assert messages[:2] == [environment.system_prompt(), environment.prompt(task.public)] and messages[3] == hint
        assert trace["rewards"]["verifier"]["score"] == float(environment.verify(task, messages[-1]).correct)
