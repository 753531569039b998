"""vLLM's process seen from ours, with a stand-in for vLLM inside it: requests, adapters, and every way to lose it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import vllm_standin

from rl2f_core.backends._vllm_process import EngineProcess, environment, require_vllm
from rl2f_core.backends._vllm_wire import Adapter, Answer, Asked, generation_params, scoring_params
from rl2f_core.backends.base import Sampling
from rl2f_core.errors import AdapterError, ConfigError, RunError

ARGUMENTS = {"model": "m", "max_model_len": 64, "max_lora_rank": 8}
PARAMS = generation_params(Sampling(5), seed=3, end_id=2, banned=(1, 4))


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = vllm_standin.write(tmp_path_factory.mktemp("standin"))
    return environment({**os.environ, "PYTHONPATH": str(folder)}, 0)


@pytest.fixture(scope="module")
def shared(env: dict[str, str]) -> Iterator[EngineProcess]:
    engine = EngineProcess(ARGUMENTS, env=env, start_seconds=60, stall_seconds=60)
    yield engine
    engine.close()


def started(env: dict[str, str], **changes: Any) -> EngineProcess:
    return EngineProcess(ARGUMENTS, env=env, **{"start_seconds": 60, "stall_seconds": 60} | changes)


def collected(engine: EngineProcess, count: int) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    while len(found) < count:
        found |= {answer.id: answer for answer in engine.finished()}
    return found


def adapter(folder: Path, number: int, rank: int = 8) -> Adapter:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return Adapter(f"policy@{number}", number, str(folder), rank)


# -- requests ------------------------------------------------------------------------------------------------------
def test_each_request_is_answered_with_its_own_seed_and_adapter(shared: EngineProcess, tmp_path: Path) -> None:
    assert shared.context_limit == 64 and shared.device == "cpu"
    first, second = adapter(tmp_path / "1", 1), adapter(tmp_path / "2", 2)
    shared.load(first)
    shared.load(second)
    shared.submit(Asked("long", (5, 5), PARAMS, second))
    shared.submit(Asked("short", (5, 5), {**PARAMS, "max_tokens": 1, "seed": 4}, first))
    shared.submit(Asked("base", (5, 5), {**PARAMS, "seed": 5}))
    found = collected(shared, 3)
    assert found["short"].tokens == (21,)
    assert found["long"] == Answer("long", (22, 43, 2), (-0.25, -0.5, -0.75))
    assert found["base"].tokens == (20, 45, 2)
    shared.drop(first)
    shared.submit(Asked("gone", (5, 5), PARAMS, first))
    with pytest.raises(RunError, match="refused a request: AssertionError"):
        shared.finished()


def test_a_scored_prompt_gets_the_log_probabilities_of_its_own_tokens(shared: EngineProcess) -> None:
    shared.submit(Asked("s", (5, 11, 12), scoring_params()))
    assert shared.finished() == [Answer("s", (5, 11, 12), (0.0, -11.0, -12.0))]


def test_a_request_joins_those_under_way_and_one_that_is_cancelled_is_not_answered(shared: EngineProcess) -> None:
    shared.submit(Asked("never", (5,), {**PARAMS, "max_tokens": 10**9, "stop_token_ids": []}))
    shared.submit(Asked("next", (5,), PARAMS))
    assert [answer.id for answer in shared.finished()] == ["next"]
    shared.cancel(["never", "unknown"])
    shared.submit(Asked("last", (5,), PARAMS))
    assert [answer.id for answer in shared.finished()] == ["last"]


def test_the_engine_sleeps_and_wakes_and_forgets(shared: EngineProcess) -> None:
    for call in (shared.sleep, shared.sleep, shared.forget, shared.wake, shared.wake, shared.forget):
        call()
    shared.submit(Asked("awake", (5,), PARAMS))
    assert [answer.id for answer in shared.finished()] == ["awake"]


def test_an_adapter_that_vllm_refuses_is_an_error_with_its_words(shared: EngineProcess, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="ValueError: rank too high"):
        shared.load(adapter(tmp_path / "3", 3, rank=16))
    with pytest.raises(AdapterError, match="no adapter in"):
        shared.load(Adapter("policy@4", 4, str(tmp_path / "nowhere"), 8))


# -- losing it -----------------------------------------------------------------------------------------------------
def gone(pid: int) -> bool:
    """No process of this id is left, not even as a zombie."""
    return not psutil.pid_exists(pid)


def test_a_killed_engine_is_noticed_at_once_and_leaves_nothing(env: dict[str, str]) -> None:
    engine = started(env)
    folder, pid = engine.folder, engine.process.pid
    engine.submit(Asked("x", (5, vllm_standin.KILLED), PARAMS))
    began = time.monotonic()
    with pytest.raises(RunError, match="It ended by SIGKILL") as error:
        engine.finished()
    assert time.monotonic() - began < 5 and "last words" in str(error.value) and "Resume the run" in str(error.value)
    assert gone(pid) and not folder.exists()
    for again in (engine.finished, engine.forget, lambda: engine.submit(Asked("y", (5,), PARAMS))):
        with pytest.raises(RunError, match="engine is lost"):
            again()
    engine.close()


def test_an_error_inside_the_engine_says_what_it_was(env: dict[str, str]) -> None:
    engine = started(env)
    engine.submit(Asked("x", (5, vllm_standin.BROKEN), PARAMS))
    with pytest.raises(RunError, match="RuntimeError: a kernel failed") as error:
        engine.finished()
    assert "Traceback" in str(error.value) and gone(engine.process.pid)


def test_an_engine_that_stalls_is_given_up(env: dict[str, str]) -> None:
    engine = started(env, stall_seconds=1.0)
    engine.submit(Asked("x", (5, vllm_standin.SILENT), PARAMS))
    with pytest.raises(RunError, match="said nothing for 1 s"):
        engine.finished()
    assert gone(engine.process.pid)


def test_an_engine_that_does_not_start_says_why(env: dict[str, str]) -> None:
    with pytest.raises(RunError, match="ValueError: cannot start") as error:
        EngineProcess({**ARGUMENTS, "model": "missing"}, env=env, start_seconds=60)
    assert "there is no such model" in str(error.value)


def test_the_engine_ends_with_the_process_that_started_it_however_that_ends(env: dict[str, str]) -> None:
    code = (
        "import json, os, sys, time\n"
        "from rl2f_core.backends._vllm_process import EngineProcess\n"
        f"engine = EngineProcess({ARGUMENTS!r}, env=dict(os.environ), start_seconds=60)\n"
        "print(engine.process.pid, engine.folder, flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    end = time.monotonic() + 10
    while psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)
    Path(folder, "engine.log").unlink()
    Path(folder).rmdir()


# -- before it -----------------------------------------------------------------------------------------------------
def test_the_engines_environment_knows_no_launcher_and_talks_to_nobody() -> None:
    outer = {"PATH": "/bin", "RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1", "ACCELERATE_USE_FSDP": "1",
             "PYTHONPATH": "/plugins", "VLLM_LOGGING_LEVEL": "DEBUG"}  # fmt: skip
    held = environment(outer, 1024)
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT", "ACCELERATE_USE_FSDP"} & set(held)
    assert held["VLLM_NO_USAGE_STATS"] == held["HF_HUB_OFFLINE"] == "1" and held["VLLM_LOGGING_LEVEL"] == "DEBUG"
    root, plugins = held["PYTHONPATH"].split(os.pathsep)
    assert (Path(root) / "rl2f_core").is_dir() and plugins == "/plugins"
    assert "VLLM_USE_V2_MODEL_RUNNER" not in held and environment({}, 1025)["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_without_vllm_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"make setup-vllm-cpu.*rl2f\[vllm\]"):
        require_vllm()
