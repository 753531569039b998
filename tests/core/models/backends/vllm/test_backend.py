"""The vllm backend with a real server process and a stand-in for vLLM inside it: adapters in new versions, a server
that restarts for higher ranks, a run that resumes after a crash."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_vllm
import psutil
import pytest
import torch
from safetensors.torch import save_file

from rl2f_core.config.model import ModelConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import AdapterError, ConfigError, RunError
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.vllm import VLLMBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink, MetricEvent, read_events
from rl2f_core.run.execute import execute
from rl2f_core.types import FinishReason
from tests.core.models.backends.vllm.test_http_engine import serving
from tests.core.test_contracts import check_backend

SAMPLING = SamplingParams(5)


@pytest.fixture
def make(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Builds backends whose engines find the stand-in."""
    folder = fake_vllm.write(tmp_path / "standin")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    made: list[VLLMBackend] = []

    def build(**config: Any) -> VLLMBackend:
        settings = {"startup_timeout": 60, "stall_timeout": 60, "max_model_len": 512} | config
        backend = VLLMBackend(
            VLLMBackend.Config(**settings), ModelConfig(name=str(tiny), dtype="float32", device="cpu")
        )
        made.append(backend)
        return backend

    yield build
    for backend in made:
        backend.close()


def adapter(folder: Path, rank: int = 4, width: int | None = None) -> Path:
    """A LoRA adapter of the tiny model's first query projection."""
    from transformers import AutoConfig

    base = AutoConfig.from_pretrained(os.environ["RL2F_TINY"])
    own = width or base.hidden_size
    heads = base.num_attention_heads * (getattr(base, "head_dim", None) or base.hidden_size // base.num_attention_heads)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    folder.mkdir(exist_ok=True)
    save_file({f"{name}.lora_A.weight": torch.ones(rank, own), f"{name}.lora_B.weight": torch.ones(heads, rank)},
              folder / "adapter_model.safetensors")  # fmt: skip
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(autouse=True)
def _tiny_folder(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL2F_TINY", str(tiny))


def prompts(count: int) -> list[GenerationRequest]:
    return [GenerationRequest((5, 10 + i), i, f"d{i}") for i in range(count)]


def pid(backend: VLLMBackend) -> int:
    engine: Any = backend._engine
    return int(engine.server.process.pid)


def test_the_backend_contract_and_the_end_of_turn_token(make: Any) -> None:
    backend = make()
    check_backend(backend)
    end = backend.tokenizer.eos_token_id
    said = backend.generate(prompts(3), SAMPLING)
    assert [g.token_ids for g in said] == [(20, 40 + i, end) for i in range(3)]  # in order, each with its own seed
    assert all(g.stop is FinishReason.EOS and g.logprobs == (-0.25, -0.5, -0.75) for g in said)
    assert backend.generate(prompts(1), SamplingParams(2))[0].stop is FinishReason.LENGTH
    assert backend.score([(5, 11, 12), (), (7,)]) == [[0.0, -11.0, -12.0], [], [0.0]]
    with pytest.raises(RunError, match="do not fit the model's context"):
        backend.generate([GenerationRequest((5,) * 508, 0)], SAMPLING)
    with pytest.raises(RunError, match="needs room for one more"):
        backend.score([(5,) * 512])


def test_each_load_of_an_adapter_is_a_new_version_and_the_old_one_is_unloaded(make: Any, tmp_path: Path) -> None:
    backend = make()
    folder = adapter(tmp_path / "a")
    backend.load_adapter("policy", folder)
    first, process = backend.adapters["policy"], pid(backend)
    for file in folder.iterdir():  # the trainer removes what it handed over
        file.unlink()
    assert backend.generate(prompts(1), SAMPLING, "policy")[0].token_ids[0] == 21
    backend.load_adapter("teacher", adapter(folder))
    backend.load_adapter("policy", adapter(folder))
    assert [a.name for a in backend.adapters.values()] == ["policy@3", "teacher@2"] and pid(backend) == process
    found = [backend.generate(prompts(1), SAMPLING, name)[0].token_ids[0] for name in ("policy", "teacher", None)]
    assert found == [23, 22, 20]
    assert not Path(first.folder).exists() and Path(backend.adapters["policy"].folder).is_dir()
    with pytest.raises(AdapterError, match="Known: policy, teacher"):
        backend.generate(prompts(1), SAMPLING, "other")
    with pytest.raises(AdapterError, match="another base model"):
        backend.load_adapter("policy", adapter(folder, width=3))
    assert backend.generate(prompts(1), SAMPLING, "policy")[0].token_ids[0] == 23  # what was there still is


def test_adapter_names_on_a_running_server_are_unique_to_this_process(tiny: Path, tmp_path: Path) -> None:
    with serving() as served:
        model = ModelConfig(name=str(tiny), dtype="float32", device="cpu")
        backend = VLLMBackend(VLLMBackend.Config(url=served.url), model)
        for name in ("policy", "teacher", "policy"):
            backend.load_adapter(name, adapter(tmp_path / "a"))
        loaded = [body["lora_name"] for body in served.of("/v1/load_lora_adapter")]
        assert all(re.fullmatch(r"(policy@1|teacher@2|policy@3)-[0-9a-f]{8}", name) for name in loaded)
        assert len(loaded) == 3 and served.of("/v1/unload_lora_adapter") == [{"lora_name": loaded[0]}]
        backend.close()
        assert {body["lora_name"] for body in served.of("/v1/unload_lora_adapter")} == set(loaded)


def test_the_engine_restarts_for_adapters_of_higher_rank(make: Any, tmp_path: Path) -> None:
    backend = make()
    backend.generate(prompts(1), SAMPLING)
    without = pid(backend)
    backend.load_adapter("small", adapter(tmp_path / "small", 4))
    small = pid(backend)
    backend.load_adapter("large", adapter(tmp_path / "large", 12))
    assert len({without, small, pid(backend)}) == 3 and not psutil.pid_exists(without) and not psutil.pid_exists(small)
    tokens = [backend.generate(prompts(1), SAMPLING, name)[0].token_ids[0] for name in ("small", "large")]
    assert tokens == [21, 22]  # the one that was there before was loaded again
    with pytest.raises(AdapterError, match="does not support adapters of this rank"):
        backend.load_adapter("huge", adapter(tmp_path / "huge", 600))


def test_requests_after_an_error_get_their_own_outputs(make: Any) -> None:
    backend = make()
    with pytest.raises(RunError, match="refused a request: HTTP 400"):
        backend.generate([*prompts(2), GenerationRequest((5, fake_vllm.REFUSED), 0)], SAMPLING)
    assert [g.token_ids[1] for g in backend.generate(prompts(3), SAMPLING)] == [40, 41, 42]
    backend.release_memory()  # without `enable_sleep_mode` nothing happens
    folder = backend._scratch
    backend.close()
    assert backend.generate(prompts(1), SAMPLING)[0].token_ids[0] == 20  # another engine
    backend._clean()
    assert not folder.exists()


def test_prompts_join_a_session_at_any_time_and_no_output_is_lost(make: Any) -> None:
    backend = make()
    end = backend.tokenizer.eos_token_id
    with backend.session() as session:
        first = session.submit(prompts(2), SAMPLING)
        aside = backend.generate(prompts(3)[2:], SAMPLING)  # whoever asks meanwhile gets the own answer alone
        while not any(ticket.generation for ticket in first):
            session.step()
        later = session.submit(prompts(4)[3:], SamplingParams(1))
        while session.has_unfinished:
            session.step()
        said = [ticket.generation.token_ids for ticket in [*first, *later] if ticket.generation]
        assert said == [(20, 40, end), (20, 41, end), (20,)] and aside[0].token_ids == (20, 42, end)
        with pytest.raises(RunError, match="do not fit the model's context"):
            session.submit([GenerationRequest((5,) * 508, 0)], SAMPLING)
        left = session.submit(prompts(2), SAMPLING)
    assert not session.has_unfinished and all(ticket.generation is None for ticket in left)
    assert [g.token_ids[1] for g in backend.generate(prompts(3), SAMPLING)] == [40, 41, 42]


def test_an_unsupported_device_is_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl2f_core.models.device.resolve_device", lambda *names: (torch.device("mps"), torch.float32))
    with pytest.raises(ConfigError, match="does not run on this device"):
        make()


# -- a run -----------------------------------------------------------------------------------------------------------
def test_a_run_resumes_after_the_engine_was_killed(make: Any, tiny: Path, tmp_path: Path) -> None:
    """The sampler's log-probabilities are not the learner's: what is logged of it, and corrected, is seen as well."""
    stage = {
        "name": "rl",
        "method": "rlvr",
        "steps": 3,
        "tasks_per_step": 1,
        "group_size": 2,
        "importance_sampling_clip_max": 2.0,
    }
    config = RunConfig.model_validate(
        {
            "model": {"name": str(tiny), "device": "cpu", "dtype": "float32"},
            "backend": {"type": "vllm", "startup_timeout": 60, "stall_timeout": 60},
            "environment": {"type": "secret_code", "alphabet": "ABC", "length": 2},
            "rollout": {"max_turns": 1, "max_new_tokens": 6, "max_seq_len": 256},
            "lora": {"rank": 4, "alpha": 8},
            "evaluation": {"checkpoints": []},
            "preflight": {"num_tasks": 1, "samples_per_task": 2, "ignore_failure": True},
            "stages": [stage],
        }
    )
    run_dir = RunDir.create(tmp_path / "run", config)

    def kill_after_a_step() -> bool:
        """Asked between steps: the engine dies in the second one."""
        metrics = [event for event in read_events(run_dir.events_path) if isinstance(event, MetricEvent)]
        if metrics:
            engines = [p for p in psutil.Process().children() if "server_main" in " ".join(p.cmdline())]
            assert len(engines) == 1
            engines[0].kill()
        return False

    with pytest.raises(RunError, match=r"engine is lost.*SIGKILL.*Resume the run"):
        execute(config, run_dir, JsonlSink(run_dir.events_path), kill_after_a_step)
    assert run_dir.last_status() == "failed"
    assert execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
    metrics = [event for event in read_events(run_dir.events_path) if isinstance(event, MetricEvent)]
    assert [event.step for event in metrics] == [1, 2, 3] and run_dir.checkpoint_names() == ["rl@3"]
    assert all(event.values["approx_kl"] > 0 for event in metrics if "approx_kl" in event.values)
    meta = json.loads(run_dir.meta_path.read_text())
    assert meta["backend"] == {"type": "vllm", "reason": "the configuration names it"}
