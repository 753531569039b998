"""Serving with vLLM: its own OpenAI-compatible server with the same model names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from jobs.model_server.models import base_info, base_name
from jobs.model_server.protocol import ModelSource
from rl2f_core.errors import AdapterError
from rl2f_core.models.backends.vllm.protocol import LORA_RANKS, lora_rank_bucket
from rl2f_core.models.backends.vllm.server_process import SERVER_MAIN, command_line, require_vllm
from rl2f_core.models.device import resolve_device
from rl2f_core.models.store.store import get_model
from rl2f_core.types import JsonObject

CPU_KV_CACHE_BYTES = 2 * 2**30
"""KV cache on a CPU, where vLLM otherwise takes most of the memory."""


def serve_options(
    models: Mapping[str, ModelSource], host: str, port: int, context: int, max_running: int
) -> JsonObject:
    """Return the options of `vllm serve` by name. It always serves the base model too.

    Raises `AdapterError` if a checkpoint is not a LoRA adapter, or has a rank that vLLM does not support.
    """
    adapters = {name: Path(source.adapter) for name, source in models.items() if source.adapter is not None}
    highest, targets = _lora_shape(adapters)
    if (rank := lora_rank_bucket(highest)) is None:
        raise AdapterError("vLLM does not support adapters of this rank.", value=highest, known=map(str, LORA_RANKS))
    source = next(iter(models.values()))
    on_cpu = resolve_device(source.device, source.dtype)[0].type == "cpu"
    return {
        "model": str(get_model(source.base).path),
        "served_model_name": base_name(source),
        "host": host,
        "port": port,
        "dtype": source.dtype,
        "max_model_len": min(context, base_info(source.base).context),
        "max_num_seqs": max_running,
        "enable_lora": True,
        "max_lora_rank": rank,
        "max_loras": len(adapters),
        "lora_modules": [f"{name}={path}" for name, path in adapters.items()],
        "lora_target_modules": targets,
        "enable_prefix_caching": True,
        "load_format": "safetensors",
        "generation_config": "vllm",
        "trust_remote_code": False,
        **({"enforce_eager": True, "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES} if on_cpu else {}),
    }


def _lora_shape(adapters: Mapping[str, Path]) -> tuple[int, list[str]]:
    """Return the highest LoRA rank of the adapters and the names of their target modules."""
    ranks: list[int] = []
    targets: set[str] = set()
    for name, folder in adapters.items():
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        if config.get("peft_type") != "LORA":
            raise AdapterError("vLLM serves LoRA adapters only.", value=name, fix="Use --backend hf.")
        ranks += [config["r"], *config.get("rank_pattern", {}).values()]
        targets |= {module.rpartition(".")[2] for module in config["target_modules"]}
    return max(ranks), sorted(targets)


def run(options: JsonObject, api_key: str | None) -> int:
    """Run `vllm serve`, offline and without usage statistics, until Ctrl-C; return its exit code."""
    require_vllm()
    command = [sys.executable, "-P", str(SERVER_MAIN), str(os.getpid()), *command_line(options)]
    env = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
    env |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"VLLM_API_KEY": api_key} if api_key is not None else {}
    process = subprocess.Popen(command, env=env, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        process.terminate()
        process.wait()
