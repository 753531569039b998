"""Generation and scoring with vLLM 0.32: a local `vllm serve` process, or a running server at `url`.

vLLM batches continuously and reuses shared prefixes across dialogues, turns and calls (prefix caching). The learner
keeps its own copy of the base model.

Each load of an adapter is a new version with a new name (`policy@1`, `policy@2`, …), so that no cache entry of an
earlier version is reused; the earlier version is unloaded. A local server starts with the first request or adapter. It
restarts if an adapter needs a higher rank or other target modules, since LoRA support and higher ranks cost speed.

Seeds fix the sampling from given logits.  Logits depend slightly on the batch composition, so unlike `hf` this backend
does not guarantee the same tokens in other batches, and except for greedy decoding it samples other tokens than `hf`.
`protocol` describes the distribution of the logprobs.
"""

from __future__ import annotations

import functools
import itertools
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rl2f_core.config.fields import ENDPOINT_REF, FILE_REF, ComponentConfig
from rl2f_core.config.model import ModelConfig
from rl2f_core.errors import AdapterError, ConfigError, RunError
from rl2f_core.models.backends.base import (
    Backend,
    Generation,
    GenerationRequest,
    GenerationSession,
    PendingGeneration,
    SamplingParams,
    check_adapter,
)
from rl2f_core.models.backends.vllm.http_engine import HttpEngine
from rl2f_core.models.backends.vllm.protocol import (
    LORA_RANKS,
    Adapter,
    EngineOutput,
    EngineRequest,
    choice_params,
    generation_params,
    lora_rank_bucket,
    scoring_params,
    to_generation,
)
from rl2f_core.models.backends.vllm.server_process import ServerProcess, require_vllm, server_environment
from rl2f_core.models.tokenizer import HFChatTokenizer
from rl2f_core.registry import register
from rl2f_core.types import JsonObject

if TYPE_CHECKING:
    import torch


@register("backend")
class VLLMBackend(Backend):
    """vLLM on cuda or cpu, with adapters replaced at run time."""

    folder: Path

    class Config(ComponentConfig):
        """Generation with vLLM."""

        type: Literal["vllm"] = "vllm"
        url: str | None = Field(None, max_length=500, json_schema_extra=ENDPOINT_REF)
        """Address of a running `vllm serve`, e.g. `http://127.0.0.1:8000`; None starts a local one for the run. The
        server needs `--logprobs-mode processed_logprobs`. Training also needs `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`,
        `--enable-lora`, a `--max-lora-rank` of at least the run's, and `--lora-target-modules` with its modules."""
        served_model_name: str | None = None
        """Name of the base model at `url`; None selects the first."""
        adapter_folder: str | None = Field(None, json_schema_extra=FILE_REF)
        """Folder through which adapters reach the server; None is a temporary folder. A server on another machine
        needs a shared folder with the same path."""
        enforce_eager: bool | None = None
        """Disable compilation and CUDA graphs: starts sooner, runs slower. None does so on a CPU only."""
        kv_cache_gib: float | None = Field(None, gt=0)
        """KV cache size in GiB; None is 2 on a CPU, and what `gpu_memory_utilization` leaves on a GPU."""
        gpu_memory_utilization: float = Field(0.45, gt=0, lt=1)
        """Fraction of GPU memory for the engine, weights included; the learner needs the rest."""
        enable_sleep_mode: bool = False
        """Release the engine's GPU memory during updates if it shares a GPU with the learner; costs a second or more
        per step. Not on a CPU."""
        tensor_parallel_size: int = Field(1, ge=1)
        """GPUs across which the engine's weights are sharded."""
        max_model_len: int | None = Field(None, ge=16)
        """Maximum tokens of a prompt and its completion; None is the model's own limit. Less needs less memory."""
        max_num_seqs: int = Field(256, ge=1)
        """Maximum number of concurrent sequences."""
        max_loras: int = Field(2, ge=1)
        """Maximum number of adapters in one batch."""
        startup_timeout: float = Field(600.0, gt=0)
        """Seconds until a local server must be ready."""
        stall_timeout: float = Field(300.0, gt=0)
        """Seconds without progress after which a server with pending requests counts as lost."""

        @field_validator("url")
        @classmethod
        def _is_an_address(cls, value: str | None) -> str | None:
            if value is None:
                return None
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
                raise ValueError("must be an http or https address without user or query, e.g. http://127.0.0.1:8000")
            return value.rstrip("/")

    config: Config

    def __init__(self, config: Config, model: ModelConfig) -> None:
        super().__init__(config, model)
        from transformers import AutoConfig, AutoTokenizer

        from rl2f_core.models.device import resolve_device
        from rl2f_core.models.store.store import get_model

        if config.url is None:
            require_vllm()
        self.device, self.dtype = resolve_device(model.device, model.dtype)
        if config.url is None and self.device.type not in ("cuda", "cpu"):
            raise ConfigError("vLLM does not run on this device.", value=self.device.type, known=["cuda", "cpu"],
                              fix="Set backend: hf, or model.device: cpu.")  # fmt: skip
        if config.url is None and config.enable_sleep_mode and self.device.type != "cuda":
            raise ConfigError("Sleep mode needs a GPU.", value={"enable_sleep_mode": True},
                              fix="Set backend.enable_sleep_mode: false.")  # fmt: skip
        self.folder = get_model(model.name).path
        self._hf_config = AutoConfig.from_pretrained(self.folder, trust_remote_code=False, local_files_only=True)
        hf_tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False, local_files_only=True)
        self.tokenizer = HFChatTokenizer(hf_tokenizer, self._hf_config.vocab_size)
        limit = int(getattr(self._hf_config, "max_position_embeddings", 0) or 2**31)
        self.max_model_len = min(limit, config.max_model_len or limit)
        self.adapters: dict[str, Adapter] = {}
        self._engine: HttpEngine | None = None
        self._rank, self._targets = 0, set[str]()
        self._versions = itertools.count(1)
        self._suffix = "" if config.url is None else f"-{secrets.token_hex(4)}"
        """End of adapter names, which keeps them unique on a server that outlives this process."""
        self.preferred_batch_size = config.max_num_seqs
        if config.adapter_folder is not None:
            Path(config.adapter_folder).mkdir(parents=True, exist_ok=True)
        self._scratch = Path(tempfile.mkdtemp(prefix="rl2f-adapters-", dir=config.adapter_folder))
        self._clean = weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        if config.url is not None:
            self._scratch.chmod(0o755)  # another user may run the server
            self.max_model_len = min(self.max_model_len, self._ensure_engine().max_model_len)

    # -- the engine --------------------------------------------------------------------------------------------
    def _ensure_engine(self, new: Adapter | None = None) -> HttpEngine:
        """Return an engine for all adapters; (re)start a local server if needed."""
        adapters = [*self.adapters.values(), *([] if new is None else [new])]
        rank = max((adapter.rank for adapter in adapters), default=0)
        targets = {target for adapter in adapters for target in adapter.targets}
        fits = self.config.url is not None or (rank <= self._rank and targets <= self._targets)
        if self._engine is not None and fits:
            return self._engine
        config = self.config
        server: ServerProcess | str | None = config.url
        if server is None:
            max_lora_rank = lora_rank_bucket(rank)
            if max_lora_rank is None:
                raise AdapterError("vLLM does not support adapters of this rank.", value=rank,
                                   known=map(str, LORA_RANKS))  # fmt: skip
            self.close()
            server = ServerProcess(
                self._engine_arguments(max_lora_rank, targets),
                env=server_environment(os.environ, len(self.tokenizer.banned_token_ids)),
                startup_timeout=config.startup_timeout,
            )
            self._rank, self._targets = max_lora_rank, targets
        self._engine = HttpEngine(
            server,
            config.served_model_name if config.url is not None else None,
            concurrency=config.max_num_seqs,
            stall_timeout=config.stall_timeout,
            check_token=self.tokenizer.eos_token_id,
        )
        for adapter in self.adapters.values():
            self._engine.add_lora(adapter)
        return self._engine

    def _engine_arguments(self, max_lora_rank: int, target_modules: Collection[str]) -> JsonObject:
        """Return the options of `vllm serve`; a `max_lora_rank` of 0 disables LoRA.

        By default vLLM would also wrap the output layer, which costs time and breaks `prompt_logprobs` on a CPU (0.32).
        """
        config, on_cpu = self.config, self.device.type == "cpu"
        arguments: JsonObject = {
            "model": str(self.folder),
            "skip_tokenizer_init": True,
            "dtype": str(self.dtype).removeprefix("torch."),
            "max_model_len": self.max_model_len,
            "max_num_seqs": config.max_num_seqs,
            "performance_mode": "throughput",  # doubles the tokens per engine step, as in offline inference
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "enforce_eager": config.enforce_eager if config.enforce_eager is not None else on_cpu,
            "tensor_parallel_size": config.tensor_parallel_size,
            "load_format": "safetensors",
            "generation_config": "vllm",
            "trust_remote_code": False,
            "seed": 0,
        }
        if not on_cpu:
            arguments["gpu_memory_utilization"] = config.gpu_memory_utilization
            arguments["enable_sleep_mode"] = config.enable_sleep_mode
        if on_cpu or config.kv_cache_gib is not None:
            arguments["kv_cache_memory_bytes"] = int((config.kv_cache_gib or 2.0) * 2**30)
        if max_lora_rank:
            arguments |= {
                "enable_lora": True,
                "max_lora_rank": max_lora_rank,
                "max_loras": config.max_loras,
                "lora_target_modules": sorted(target_modules),
                "max_cpu_loras": max(8, 2 * config.max_loras),
            }
        return arguments

    def release_memory(self) -> None:
        """Release GPU memory if `enable_sleep_mode` is set."""
        if self.config.enable_sleep_mode and self._engine is not None:
            self._engine.sleep()

    def close(self) -> None:
        """Close the engine and stop a local server; the next call starts another."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    # -- adapters ----------------------------------------------------------------------------------------------
    def load_adapter(self, name: str, folder: Path) -> None:
        from rl2f_core.models.backends.hf.lora import load_lora

        pairs = load_lora(folder, self._modules).pairs
        rank = max(a_RI.shape[0] for a_RI, _ in pairs.values())
        targets = tuple(sorted({module.rpartition(".")[2] for module in pairs}))
        version = next(self._versions)
        adapter = Adapter(f"{name}@{version}{self._suffix}", str(self._scratch / str(version)), rank, targets)
        engine = self._ensure_engine(adapter)
        copy = Path(adapter.folder)
        copy.mkdir()
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copyfile(folder / file, copy / file)
        engine.wake_up()
        engine.add_lora(adapter)
        before = self.adapters.get(name)
        self.adapters[name] = adapter
        if before is not None:
            engine.remove_lora(before)
            shutil.rmtree(before.folder, ignore_errors=True)

    @functools.cached_property
    def _modules(self) -> dict[str, torch.nn.Linear]:
        """The linear layers of the model by name, with shapes and without weights."""
        import torch
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self._hf_config, trust_remote_code=False)
        return {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}

    def _adapter(self, name: str | None) -> Adapter | None:
        check_adapter(name, self.adapters)
        return self.adapters[name] if name is not None else None

    def reset_prefix_cache(self) -> None:
        if self._engine is not None:
            self._engine.reset_prefix_cache()

    # -- generation and scoring --------------------------------------------------------------------------------
    def generate(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None = None
    ) -> list[Generation]:
        outputs, eos = self._complete(self._requests(prompts, sampling, adapter)), self.tokenizer.eos_token_id
        return [to_generation(o, sampling, eos, p.choices) for o, p in zip(outputs, prompts, strict=True)]

    def _session(self) -> GenerationSession:
        return _Session(self)

    def _requests(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None
    ) -> list[EngineRequest]:
        """Build one request per prompt.

        Raises `RunError` if a prompt and its completion do not fit, `AdapterError` for an unknown adapter.
        """
        self.check_request(prompts, sampling)
        version, eos, banned = self._adapter(adapter), self.tokenizer.eos_token_id, self.tokenizer.banned_token_ids
        params = [generation_params(sampling, p.seed, eos, banned) for p in prompts]
        params = [choice_params(q, p.choices) if p.choices else q for q, p in zip(params, prompts, strict=True)]
        return [EngineRequest(p.token_ids, q, version) for q, p in zip(params, prompts, strict=True)]

    def score(self, sequences: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        version = self._adapter(adapter)
        longest = max((len(s) for s in sequences), default=0)
        if longest >= self.max_model_len:
            raise RunError("A text to score does not fit the model's context.", value=longest,
                           fix=f"Keep it under {self.max_model_len} tokens; vLLM needs room for one more.")  # fmt: skip
        indices = [i for i, sequence in enumerate(sequences) if len(sequence) > 1]
        requests = [EngineRequest(tuple(sequences[i]), scoring_params(), version) for i in indices]
        scores = [[0.0] * len(sequence) for sequence in sequences]
        for i, output in zip(indices, self._complete(requests), strict=True):
            scores[i] = [0.0, *(min(0.0, logprob) for logprob in output.logprobs[1:])]
        return scores

    def _complete(self, requests: Sequence[EngineRequest]) -> list[EngineOutput]:
        """Run requests concurrently and return their outputs in order."""
        futures = self._submit(requests)
        unfinished = set(futures)
        try:
            while unfinished:
                finished = self._ensure_engine().wait(unfinished)
                unfinished -= finished
                for future in finished:
                    future.result()  # raise the first error
        finally:
            _cancel(unfinished)
        return [future.result() for future in futures]

    def _submit(self, requests: Sequence[EngineRequest]) -> list[Future[EngineOutput]]:
        """Start requests, if any, on an engine that is awake."""
        if not requests:
            return []
        engine = self._ensure_engine()
        engine.wake_up()
        return [engine.submit(request) for request in requests]


class _Session(GenerationSession):
    """Requests that join and finish at any time, batched by vLLM."""

    backend: VLLMBackend

    def __init__(self, backend: VLLMBackend) -> None:
        super().__init__(backend)
        self._pending: dict[Future[EngineOutput], PendingGeneration] = {}

    def submit(
        self, prompts: Sequence[GenerationRequest], sampling: SamplingParams, adapter: str | None = None
    ) -> list[PendingGeneration]:
        futures = self.backend._submit(self.backend._requests(prompts, sampling, adapter))
        pending = [PendingGeneration(prompt, sampling, adapter) for prompt in prompts]
        self._pending.update(zip(futures, pending, strict=True))
        return pending

    def _has_waiting(self) -> bool:
        return bool(self._pending)

    def _run_batch(self) -> None:
        for future in self.backend._ensure_engine().wait(self._pending):
            output, item = future.result(), self._pending.pop(future)
            eos, choices = self.backend.tokenizer.eos_token_id, item.prompt.choices
            item.generation = to_generation(output, item.sampling, eos, choices)

    def close(self) -> None:
        _cancel(self._pending)
        self._pending.clear()
        super().close()


def _cancel(futures: Iterable[Future[EngineOutput]]) -> None:
    """Abort requests; finished ones stay as they are."""
    for future in futures:
        future.cancel()
