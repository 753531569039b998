"""Generation and scoring with vLLM 0.32: an engine in a process of its own, or a running `vllm serve`.

Prompts join at any time and each leaves when it ends; what prompts share is read once, across
dialogues, turns and calls (prefix caching).  The learner keeps its own copy of the base: this class only says which.

An adapter is loaded under a new name and number each time (`policy@1`, `policy@2`, …), so that nothing that an earlier
version computed is used again, and the earlier version is dropped.  The engine starts with the first request or
adapter, and anew where an adapter needs more room than it has: without adapters it is faster, and room costs time.

Seeds fix what is drawn from given logits.  Logits depend a little on what is computed together, so unlike `hf` this
backend does not promise the same tokens in other company; nor does it draw the tokens that `hf` would, save greedily.
`_vllm_wire` says of which distribution the log-probabilities are.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rl2f_core.backends._vllm_wire import (
    LORA_RANKS,
    Adapter,
    Answer,
    Asked,
    Engine,
    Versions,
    generation_of,
    generation_params,
    room_for,
    scoring_params,
)
from rl2f_core.backends.base import Backend, Generation, Prompt, Sampling, Session, Ticket
from rl2f_core.config import BaseConfig, ModelConfig
from rl2f_core.errors import AdapterError, ConfigError, RunError
from rl2f_core.fields import KNOWN_ENDPOINT, KNOWN_FILE
from rl2f_core.registry import register
from rl2f_core.rollout.tokenizer import HFChatTokenizer


@register("backend")
class VLLMBackend(Backend):
    """vLLM on cuda or cpu, with adapters swapped while it runs."""

    class Config(BaseConfig):
        """Generation with vLLM."""

        type: Literal["vllm"] = "vllm"
        url: str | None = Field(None, max_length=500, json_schema_extra=KNOWN_ENDPOINT)
        """Address of a running `vllm serve`, e.g. `http://127.0.0.1:8000`; None starts an engine of the run's own. The
        server needs `--logprobs-mode processed_logprobs`, and for training `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`,
        `--enable-lora`, a `--max-lora-rank` not below the run's, and `--lora-target-modules` that name its layers."""
        served_model: str | None = None
        """Name of the base model at `url`; None takes the first."""
        adapter_folder: str | None = Field(None, json_schema_extra=KNOWN_FILE)
        """Where adapters are written for the engine to read; None is a temporary folder. A server on another machine
        needs one that both see under the same path."""
        enforce_eager: bool | None = None
        """Run without compiling and capturing graphs: starts sooner, runs slower. None does so on a CPU alone."""
        kv_cache_gib: float | None = Field(None, gt=0)
        """Memory for keys and values in GiB; None is 2 on a CPU, and on a GPU what `gpu_memory` leaves."""
        gpu_memory: float = Field(0.45, gt=0, lt=1)
        """Share of the GPU's memory that the engine may take, weights included; the learner needs the rest."""
        sleep: bool = False
        """Give the engine's GPU memory back while the learner updates, where they share a GPU; costs a second or more a
        step. Not on a CPU."""
        tensor_parallel: int = Field(1, ge=1)
        """GPUs that share the engine's weights."""
        max_model_len: int | None = Field(None, ge=16)
        """Tokens of a prompt and its answer; None is the model's own limit. Less needs less memory."""
        max_batch: int = Field(256, ge=1)
        """Dialogues under way at once."""
        max_loras: int = Field(2, ge=1)
        """Adapters that can speak in one batch."""
        start_seconds: float = Field(600.0, gt=0)
        """The engine must be ready after this time."""
        stall_seconds: float = Field(300.0, gt=0)
        """An engine that has work and says nothing for this time counts as lost."""

        @field_validator("url")
        @classmethod
        def _is_an_address(cls, value: str | None) -> str | None:
            if value is None:
                return None
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
                raise ValueError("must be an http or https address without user or query, e.g. http://127.0.0.1:8000")
            return value.rstrip("/")

    def __init__(self, config: Any, model: ModelConfig) -> None:
        super().__init__(config, model)
        from transformers import AutoConfig, AutoTokenizer

        from rl2f_core.backends._vllm_process import require_vllm
        from rl2f_core.device import resolve
        from rl2f_core.models import get_model

        if config.url is None:
            require_vllm()
        self.device, self.dtype = resolve(model.device, model.dtype)
        if config.url is None and self.device.type not in ("cuda", "cpu"):
            raise ConfigError("vLLM does not run on this device.", value=self.device.type, known=["cuda", "cpu"],
                              fix="Set backend: hf, or model.device: cpu.")  # fmt: skip
        if config.url is None and config.sleep and self.device.type != "cuda":
            raise ConfigError("The engine can give memory back on a GPU alone.", value={"sleep": True},
                              fix="Set backend.sleep: false.")  # fmt: skip
        self.folder = get_model(model.name).path
        self._hf_config = AutoConfig.from_pretrained(self.folder, trust_remote_code=False, local_files_only=True)
        hf_tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False, local_files_only=True)
        self.tokenizer = HFChatTokenizer(hf_tokenizer, self._hf_config.vocab_size)
        own = int(getattr(self._hf_config, "max_position_embeddings", 0) or 2**31)
        self.context_limit = min(own, config.max_model_len or own)
        self.adapters: dict[str, Adapter] = {}
        self._engine: Engine | None = None
        self._rank, self._targets = 0, set[str]()
        self._modules: dict[str, Any] | None = None
        self._versions = Versions("" if config.url is None else f"-{secrets.token_hex(4)}")
        self.wide = config.max_batch
        self._ids = itertools.count()
        self._others: dict[str, Answer] = {}
        """Answers to an open session that came while something else was waited for."""
        if config.adapter_folder is not None:
            Path(config.adapter_folder).mkdir(parents=True, exist_ok=True)
        self._scratch = Path(tempfile.mkdtemp(prefix="rl2f-adapters-", dir=config.adapter_folder))
        self._clean = weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        if config.url is not None:
            self._scratch.chmod(0o755)  # the server may be another user's
            self.context_limit = min(self.context_limit, self._running().context_limit)

    # -- the engine --------------------------------------------------------------------------------------------
    def _running(self, wanted: Adapter | None = None) -> Engine:
        """The engine, with room for one more adapter: started, or started anew, where it is not so."""
        if self.config.url is not None:
            if self._engine is None:
                from rl2f_core.backends._vllm_http import EngineServer

                self._engine = EngineServer(
                    self.config.url, self.config.served_model, concurrency=self.config.max_batch,
                    seconds=self.config.stall_seconds, probe=self.tokenizer.end_id,
                )  # fmt: skip
            return self._engine
        held = [*self.adapters.values(), *([] if wanted is None else [wanted])]
        rank = max((adapter.rank for adapter in held), default=0)
        targets = {target for adapter in held for target in adapter.targets}
        if self._engine is None or rank > self._rank or not targets <= self._targets:
            from rl2f_core.backends._vllm_process import EngineProcess, environment

            room = room_for(rank)
            if room is None:
                raise AdapterError("vLLM makes no room for an adapter of this rank.", value=rank,
                                   known=map(str, LORA_RANKS))  # fmt: skip
            self.close()
            config = self.config
            self._engine = EngineProcess(
                engine_arguments(config, str(self.folder), str(self.dtype).removeprefix("torch."),
                                 self.device.type, self.context_limit, room, sorted(targets)),
                env=environment(os.environ, len(self.tokenizer.banned_ids)),
                start_seconds=config.start_seconds,
                stall_seconds=config.stall_seconds,
            )  # fmt: skip
            self._rank, self._targets = room, targets
            for adapter in self.adapters.values():
                self._engine.load(adapter)
        return self._engine

    def rest(self) -> None:
        """The learner's turn: give the GPU's memory back where `sleep` is set; the next call takes it again."""
        if self.config.sleep and self._engine is not None:
            self._engine.sleep()

    def close(self) -> None:
        """End the engine and remove what was written for it; the next call starts another."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    # -- adapters ----------------------------------------------------------------------------------------------
    def load_adapter(self, name: str, folder: Path) -> None:
        from rl2f_core.backends._lora import read_lora

        if self._modules is None:
            self._modules = _linear_modules(self._hf_config)
        pairs = read_lora(Path(folder), self._modules).pairs
        rank = max(a_RI.shape[0] for a_RI, _ in pairs.values())
        targets = sorted({module.rpartition(".")[2] for module in pairs})
        adapter = self._versions.next(name, self._scratch, rank, targets)
        engine = self._running(adapter)
        copy = Path(adapter.folder)
        copy.mkdir()
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copyfile(Path(folder) / file, copy / file)
        engine.wake()
        engine.load(adapter)
        before = self.adapters.get(name)
        self.adapters[name] = adapter
        if before is not None:
            engine.drop(before)
            shutil.rmtree(before.folder, ignore_errors=True)

    def _adapter(self, name: str | None) -> Adapter | None:
        if name is not None and name not in self.adapters:
            raise AdapterError("No adapter of this name is loaded.", value=name, known=sorted(self.adapters))
        return self.adapters[name] if name is not None else None

    def forget(self) -> None:
        if self._engine is not None:
            self._engine.forget()

    # -- generation and scoring --------------------------------------------------------------------------------
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None = None) -> list[Generation]:
        answers = self._all(self._turns(prompts, sampling, adapter))
        return [generation_of(answer, sampling, self.tokenizer.end_id) for answer in answers]

    def _session(self) -> Session:
        return _Session(self)

    def _turns(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None) -> list[Asked]:
        """What the engine is asked for. Raises `RunError` where a turn does not fit, `AdapterError` for an unknown
        adapter."""
        longest = max((len(p.token_ids) for p in prompts), default=0) + sampling.max_new_tokens
        if longest > self.context_limit:
            raise RunError("A prompt and its answer do not fit the model's context.", value=longest,
                           fix=f"Keep dialogues under {self.context_limit} tokens.")  # fmt: skip
        who, end, banned = self._adapter(adapter), self.tokenizer.end_id, self.tokenizer.banned_ids
        return [Asked(self._id(), p.token_ids, generation_params(sampling, p.seed, end, banned), who) for p in prompts]

    def score(self, sequences: Sequence[Sequence[int]], adapter: str | None = None) -> list[list[float]]:
        who = self._adapter(adapter)
        longest = max((len(s) for s in sequences), default=0)
        if longest >= self.context_limit:
            raise RunError("A text to score does not fit the model's context.", value=longest,
                           fix=f"Keep it under {self.context_limit} tokens; vLLM needs room for one more.")  # fmt: skip
        places = [i for i, sequence in enumerate(sequences) if len(sequence) > 1]
        asked = [Asked(self._id(), tuple(sequences[i]), scoring_params(), who) for i in places]
        out = [[0.0] * len(sequence) for sequence in sequences]
        for i, answer in zip(places, self._all(asked), strict=True):
            out[i] = [0.0, *(min(0.0, logp) for logp in answer.logprobs[1:])]
        return out

    def _id(self) -> str:
        return str(next(self._ids))

    def _all(self, asked: Sequence[Asked]) -> list[Answer]:
        """The answers to requests, in order; all of them are under way at once."""
        if not asked:
            return []
        answers: dict[str, Answer] = {}
        wanted = {one.id for one in asked}
        try:
            self._send(asked)
            while len(answers) < len(asked):
                for answer in self._running().finished():
                    (answers if answer.id in wanted else self._others)[answer.id] = answer
        except BaseException:
            self._give_up([one.id for one in asked if one.id not in answers])
            raise
        return [answers[one.id] for one in asked]

    def _send(self, asked: Sequence[Asked]) -> None:
        engine = self._running()
        engine.wake()
        for one in asked:
            engine.submit(one)

    def _give_up(self, ids: Sequence[str]) -> None:
        """Let requests go; what goes wrong here adds nothing to an error on its way."""
        with contextlib.suppress(Exception):
            if ids and self._engine is not None:
                self._engine.cancel(ids)


class _Session(Session):
    """Turns that join as they come, and are told of as they end."""

    backend: VLLMBackend

    def __init__(self, backend: VLLMBackend) -> None:
        super().__init__(backend)
        self._flying: dict[str, Ticket] = {}

    def submit(self, prompts: Sequence[Prompt], sampling: Sampling, adapter: str | None = None) -> list[Ticket]:
        asked = self.backend._turns(prompts, sampling, adapter)
        tickets = [Ticket(prompt, sampling, adapter) for prompt in prompts]
        self._flying |= {one.id: ticket for one, ticket in zip(asked, tickets, strict=True)}
        if asked:
            self.backend._send(asked)
        return tickets

    def _under_way(self) -> bool:
        return bool(self._flying)

    def _advance(self) -> None:
        backend = self.backend
        ended, backend._others = [*backend._others.values()], {}
        for answer in ended or backend._running().finished():
            ticket = self._flying.pop(answer.id, None)
            if ticket is not None:
                ticket.generation = generation_of(answer, ticket.sampling, backend.tokenizer.end_id)

    def close(self) -> None:
        self.backend._give_up([*self._flying])
        self._flying.clear()
        self.backend._others.clear()
        super().close()


def engine_arguments(
    config: Any, folder: str, dtype: str, device: str, context_limit: int, room: int, targets: Sequence[str] = ()
) -> dict[str, Any]:
    """vLLM's `EngineArgs` for a run.

    Args:
        config: Of the backend.
        folder: Of the base model.
        dtype: Its number format.
        device: cuda or cpu.
        context_limit: Tokens of a prompt and its answer.
        room: The rank that adapters may have; 0 for none.
        targets: Last names of the layers that they change. vLLM is told, as it would wrap the output layer too: that
            costs time, and breaks `prompt_logprobs` on a CPU (0.32).
    """
    gib = config.kv_cache_gib if config.kv_cache_gib is not None else 2.0 if device == "cpu" else None
    made = {
        "model": folder,
        "skip_tokenizer_init": True,
        "dtype": dtype,
        "max_model_len": context_limit,
        "max_num_seqs": config.max_batch,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "enforce_eager": config.enforce_eager if config.enforce_eager is not None else device == "cpu",
        "tensor_parallel_size": config.tensor_parallel,
        "load_format": "safetensors",
        "generation_config": "vllm",
        "trust_remote_code": False,
        "disable_log_stats": True,
        "seed": 0,
    }
    if device != "cpu":
        made |= {"gpu_memory_utilization": config.gpu_memory, "enable_sleep_mode": config.sleep}
    if gib is not None:
        made["kv_cache_memory_bytes"] = int(gib * 2**30)
    if room:
        made |= {"enable_lora": True, "max_lora_rank": room, "max_loras": config.max_loras,
                 "lora_target_modules": list(targets), "max_cpu_loras": max(8, 2 * config.max_loras)}  # fmt: skip
    return made


def _linear_modules(hf_config: Any) -> dict[str, Any]:
    """The linear layers of a model by name, with shapes and without weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hf_config, trust_remote_code=False)
    return {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
