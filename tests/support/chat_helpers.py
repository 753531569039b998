"""Adapters, requests, workspaces and waiting, for the tests of chat and model process."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.model_server.process import ModelProcess
from jobs.model_server.protocol import ApiError

SAMPLING = {"max_new_tokens": 12, "temperature": 1.0, "top_p": 1.0, "seed": 3}
LIMITS = {"max_tokens": 12, "temperature": 1.0}
LONG = {"max_tokens": 1900, "temperature": 5.0}


def save_adapter(model: Path, folder: Path, seed: int, strength: float = 0.3) -> Path:
    """A LoRA adapter with random weights that matter, saved by PEFT."""
    import peft
    import torch

    from rl2f_core.models.modeling.loading import load_base_model

    base = load_base_model(str(model), torch.float32, torch.device("cpu"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
        wrapped = peft.get_peft_model(base, config)
        with torch.no_grad():
            for key, parameter in wrapped.named_parameters():
                if "lora_B" in key:
                    parameter.normal_(0, strength)
    wrapped.save_pretrained(folder)
    return folder


def with_context(model: Path, folder: Path, limit: int) -> Path:
    """A copy of a model that says it attends to `limit` tokens."""
    import shutil

    shutil.copytree(model, folder)
    (folder / "manifest.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = limit
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def ask(model: Path, texts: list[str], adapters: dict[str, Path] | None = None, **changes: Any) -> list[dict[str, Any]]:
    """Requests for one answer of the base and of every adapter."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    source = {"base": str(model), "dtype": "float32", "device": "cpu"}
    names: list[tuple[str, str | None]] = [(str(model), None)]
    names += [(name, str(folder)) for name, folder in (adapters or {}).items()]
    return [
        {
            "model": name,
            "source": {**source, "adapter": folder},
            "messages": messages,
            "prompt_cache_key": f"k-{name}",
            "seed": 5,
            "return_token_ids": True,
            **LIMITS,
            **changes,
        }
        for name, folder in names
    ]


@dataclass
class Reply:
    """What the stream of one request contained."""

    progress: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_token_ids: list[int] = field(default_factory=list)
    task: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    error: ApiError | None = None

    @property
    def text(self) -> str:
        return "".join(self.parts)


class Streams:
    """Requests to a model process that are answered in another thread."""

    def __init__(self, process: ModelProcess, bodies: list[dict[str, Any]]) -> None:
        self.process, self.replies = process, [Reply() for _ in bodies]
        self.thread = threading.Thread(target=lambda: asyncio.run(self._read_all(bodies)))
        self.thread.start()

    async def _read_all(self, bodies: list[dict[str, Any]]) -> None:
        self.loop, self.is_stopped = asyncio.get_running_loop(), asyncio.Event()
        reads = asyncio.gather(*(self._read(*pair) for pair in zip(self.replies, bodies, strict=True)))
        stop = asyncio.create_task(self.is_stopped.wait())
        await asyncio.wait([reads, stop], return_when=asyncio.FIRST_COMPLETED)

    async def _read(self, reply: Reply, body: dict[str, Any]) -> None:
        path = "/v1/tasks/turns" if "task" in body else "/v1/chat/completions"
        try:
            async for event in self.process.stream(path, body):
                if isinstance(event, str):
                    reply.progress.append(event)
                    continue
                reply.task |= event.get("task", {})
                reply.prompt_token_ids += event.get("prompt_token_ids", [])
                for choice in event["choices"]:
                    reply.token_ids += choice["token_ids"]
                    reply.logprobs += [token["logprob"] for token in (choice["logprobs"] or {"content": []})["content"]]
                    reply.parts += [choice["delta"]["content"]] if choice["delta"]["content"] else []
                    reply.finish_reason = choice["finish_reason"]
        except ApiError as error:
            reply.error = error

    def stop(self) -> list[Reply]:
        """Close the streams."""
        self.loop.call_soon_threadsafe(self.is_stopped.set)
        return self.wait()

    def wait(self) -> list[Reply]:
        """The complete replies."""
        self.thread.join(300)
        return self.replies


def answers(process: ModelProcess, bodies: list[dict[str, Any]]) -> list[Reply]:
    """The replies to requests that all succeed."""
    replies = Streams(process, bodies).wait()
    assert [reply.error for reply in replies] == [None] * len(bodies)
    return replies


def wait_until(true: Callable[[], Any], seconds: float = 240) -> Any:
    """What `true` returns once it is true; fails after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not true within {seconds} s")


def add_run(db: Any, workspace: Any, model: Path, checkpoints: dict[str, int], config: str = "") -> int:
    """A finished training run with random adapters as its checkpoints (name → seed); its id."""
    import hashlib

    from jobs.db.models import Checkpoint, Run
    from jobs.db.queries import runs

    folder = f"run-{len(list(workspace.runs.iterdir())) + 1}"
    run = runs.add(db, Run(name="trained", kind="train", status="succeeded", folder=folder, model=str(model),
                           environment="guess_number", config=config, created=time.time()))  # fmt: skip
    assert run.id is not None
    for name, seed in checkpoints.items():
        saved = save_adapter(model, workspace.folder(folder) / "checkpoints" / name, seed)
        digest = hashlib.sha256((saved / "adapter_model.safetensors").read_bytes()).hexdigest()
        stage, _, step = name.partition("@")
        with db.write() as session:
            session.add(Checkpoint(run_id=run.id, name=name, stage=stage, step=int(step), path=f"checkpoints/{name}",
                                   sha256=digest, time=time.time()))  # fmt: skip
    return run.id


RUN_YAML = """
name: played
model: {name: MODEL, device: cpu, dtype: float32}
environment: {type: guess_number, size: 4, low: 1}
rollout: {max_turns: 3, max_new_tokens: 8, max_seq_len: 512}
stages:
- {name: warm, method: sft, steps: 2}
"""
