"""Whole runs with a model teacher from the command line: an endpoint that dies, the student as its own teacher."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai_server import FakeEndpoint, Say, over, serving
from typer.testing import CliRunner

from app.cli import app
from rl2f_core.environments.base import CONTENTLESS
from rl2f_core.run.events import DialogueEvent, MetricEvent, read_events
from rl2f_core.types import Dialogue, Hint

KEY = "sk-test-5ecret-0123456789"
CONFIG: dict[str, Any] = {
    "name": "model teacher",
    "model": {"name": "tiny-random", "device": "cpu", "dtype": "float32"},
    "environment": {"type": "guess_number", "size": 40, "low": 1},
    "rollout": {"max_turns": 3, "max_new_tokens": 6, "max_seq_len": 1024},
    "evaluation": {"num_tasks": 2, "checkpoints": [], "conditions": ["hints"]},
    "stages": [{"name": "rl", "method": "rl2f", "steps": 2, "tasks_per_step": 2, "group_size": 2}],
    "preflight": {"num_tasks": 2, "samples_per_task": 2, "ignore_failure": True},
}


@pytest.fixture(autouse=True)
def _fast_and_apart(monkeypatch: pytest.MonkeyPatch, rl2f_home: Path) -> Iterator[None]:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setenv("TEST_API_KEY", KEY)
    yield
    shutil.rmtree(rl2f_home / "llm" / "completions", ignore_errors=True)


def endpoint_teacher(endpoint: FakeEndpoint, **changes: Any) -> dict[str, Any]:
    llm = {"type": "openai_api", "base_url": endpoint.url, "model": "m", "api_key_env": "TEST_API_KEY", "retries": 1,
           "usd_per_million_completion": 100.0, "breaker_failures": 6, "breaker_seconds": 1.0}  # fmt: skip
    return {"type": "llm", "llm": llm, "max_new_tokens": 32, **changes}


def train(cwd: Path, **changes: Any) -> tuple[Path, str]:
    """A run of the command, which must end well; its folder, and what it said."""
    (cwd / "c.yaml").write_text(yaml.safe_dump({**CONFIG, **changes}))
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(app, ["train", "c.yaml", "--out", "run"])
    assert done.exit_code == 0, (done.output, done.exception)
    return cwd / "run", done.output


def dialogues(run: Path) -> list[Dialogue]:
    return [e.dialogue for e in read_events(run / "events.jsonl", strict=True) if isinstance(e, DialogueEvent)]


def hints_of_the_teacher(run: Path, name: str = "llm") -> list[Hint]:
    return [t.hint for d in dialogues(run) for t in d.turns if t.hint is not None and t.hint.teacher == name]


@pytest.mark.parametrize("on_error", ["contentless", pytest.param("fail", marks=pytest.mark.slow)])
def test_failing_endpoint_ends_run_with_consistent_events(on_error: str, tmp_path: Path, rl2f_home: Path) -> None:
    endpoint: FakeEndpoint

    def script(number: int, body: dict[str, Any]) -> Say:
        if number == 16:
            endpoint.kill_soon()
        return [Say(f"Think of number {number} again."), Say(status=500, raw=b"oops"), Say(raw=b"<garbage>"),
                Say("Half a stream of words.", cut=True)][number % 4 if number % 3 else 0]  # fmt: skip

    with serving(script) as endpoint:
        run, said = train(tmp_path, teacher=endpoint_teacher(endpoint, on_error=on_error))
    hints = hints_of_the_teacher(run)
    spoken, failed = [h for h in hints if h.error is None], [h for h in hints if h.error is not None]
    assert len(spoken) >= 4 and len(failed) >= 5
    assert all(
        h.text in endpoint.said and re.fullmatch(r"socratic@[0-9a-f]{8}", h.prompt_template or "") for h in spoken
    )
    assert {h.text for h in failed} == ({CONTENTLESS} if on_error == "contentless" else {""})
    assert any("cannot be reached" in (h.error or "") for h in failed)
    missed = [d for d in dialogues(run) if any(t.hint and t.hint.error and t.hint.teacher == "llm" for t in d.turns)]
    ends = {dialogue.stop_reason.value for dialogue in missed}
    assert ends <= ({"solved", "exhausted"} if on_error == "contentless" else {"failed"})
    values = [e.values for e in read_events(run / "events.jsonl") if isinstance(e, MetricEvent)]
    counted = [v for v in values if "teacher/hints" in v]
    assert any(v["teacher/errors"] == v["teacher/hints"] for v in counted)
    assert "Teacher:" in said and "failed (" in said
    for path in [*run.rglob("*"), *rl2f_home.joinpath("llm").rglob("*")]:
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert KEY not in said and all(h["authorization"] == f"Bearer {KEY}" for h in endpoint.headers)


@pytest.mark.slow
def test_endpoint_teacher_sums_cost_and_uses_cache(
    tmp_path: Path,
) -> None:
    from rl2f_core.config.model import ModelConfig
    from rl2f_core.models.backends.hf.backend import HFBackend

    tiny = HFBackend(HFBackend.Config(), ModelConfig(**CONFIG["model"]))
    folders = []
    with serving(over(tiny)) as endpoint:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            teacher = endpoint_teacher(endpoint, truncated="keep", style="without_answer")
            folders.append(train(tmp_path / name, teacher=teacher))
            asked = len(endpoint.requests)
            if name == "one":
                first = asked
    (one, said), (two, again) = folders
    assert asked == first > 10  # the second run asked nobody
    texts = [h.text for h in hints_of_the_teacher(one)]
    assert texts == [h.text for h in hints_of_the_teacher(two)] and not any(h.error for h in hints_of_the_teacher(one))
    assert "0 failed (0.0%)" in said and "$" in said and "from the cache" in again and "$0.0000" in again


@pytest.mark.slow
def test_self_critique_run_with_and_without_oracle(tmp_path: Path) -> None:
    changes = {
        "evaluation": {
            "num_tasks": 2,
            "conditions": ["hints", "no_oracle"],
            "checkpoints": ["base"],
        }
    }
    teacher = {"type": "self_critique", "truncated": "keep", "max_new_tokens": 12}
    run, _ = train(tmp_path, teacher=teacher, **changes)
    hints = hints_of_the_teacher(run, "self_critique")
    assert hints and all((h.prompt_template or "").startswith("self_critique@") for h in hints)
    report = json.loads((run / "evaluation" / "report.json").read_text())
    assert {row["condition"] for row in report["rows"]} == {"hints", "no_oracle"}
    words = (run / "evaluation" / "report.md").read_text()
    said = ("last answer counts", "Teacher in training: ", "Teacher in this evaluation: ")
    assert all(text in words for text in said)


# -- with the real model -------------------------------------------------------------------------------------------
REAL = {
    "model": {"name": "smollm2-135m", "device": "cpu"},
    "environment": {"type": "arithmetic", "digits": 2, "operations": ["+"]},
    "rollout": {"max_turns": 3, "max_new_tokens": 14, "max_seq_len": 512},
    "stages": [
        {"name": "warm", "method": "sft", "steps": 6, "tasks_per_step": 8, "group_size": 1, "learning_rate": 1e-3},
        {"name": "rl", "method": "rl2f", "steps": 1, "tasks_per_step": 2, "group_size": 4},
    ],
    "lora": {"top_layer_fraction": 0.5},
    "evaluation": {"checkpoints": []},
}


@pytest.fixture
def real_home(smollm2: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache with the real model in it, and no messages of an earlier run."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "models").symlink_to(smollm2.parent)
    monkeypatch.setenv("RL2F_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.slow
@pytest.mark.parametrize("through", ["local", "openai_api"])
def test_smollm2_as_local_and_endpoint_teacher(through: str, real_home: Path, tmp_path: Path) -> None:
    from rl2f_core.config.model import ModelConfig
    from rl2f_core.models.backends.hf.backend import HFBackend

    with contextlib.ExitStack() as stack:
        teacher: dict[str, Any] = {"type": "llm", "max_new_tokens": 48}
        if through == "openai_api":
            backend = HFBackend(HFBackend.Config(), ModelConfig(name="smollm2-135m", device="cpu"))
            endpoint = stack.enter_context(serving(over(backend)))
            teacher = endpoint_teacher(endpoint, max_new_tokens=48)
            teacher["llm"] |= {"read_timeout": 600.0, "total_timeout": 900.0}  # it replies to one request at a time
        run, said = train(tmp_path, **REAL, teacher=teacher)
    print(next(line for line in said.splitlines() if line.startswith("Teacher:")))
    hints = hints_of_the_teacher(run)
    spoken = [h for h in hints if h.error is None]
    assert len(spoken) > 0.5 * len(hints) > 10
    assert all(h.text.strip() and h.usage and h.usage.completion_tokens > 0 for h in spoken)
    assert all(h.text == CONTENTLESS and "truncated" in (h.error or "") for h in hints if h.error is not None)
    assert len({h.text for h in spoken}) > 5
    for dialogue in dialogues(run):
        for turn in dialogue.turns:
            assert "for you alone" not in turn.attempt
