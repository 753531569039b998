"""Environments of RL2F Studio as a taskset of verifiers, e.g. to train on with prime-rl.

It runs in the Python environment of verifiers, and imports only the standard library, verifiers and its dependencies.
The environments run in a process of the Python with RL2F Studio: the option `python`, or the variable `RL2F_PYTHON`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import verifiers.v1 as vf
from openai import AsyncOpenAI
from pydantic import Field
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["RL2FEnvironment", "RL2FHarness", "RL2FTaskset"]
START_SECONDS = 120.0
"""Time for the imports of the server, which is added to the limit of its first job."""


class RL2FTaskConfig(vf.TaskConfig):
    """Where a task's environment runs. `RL2FConfig` fills the fields."""

    python: str = ""
    """Python with RL2F Studio; by default the variable RL2F_PYTHON."""
    timeout: float = Field(120.0, gt=0)
    """Time limit in seconds for one verification, or for making the tasks."""


class RL2FConfig(vf.TasksetConfig):
    """The environment and its tasks."""

    environment: str = "arithmetic"
    """Registered name, e.g. secret_code or reasoning_gym:gcd."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the environment, e.g. {"length": 3}."""
    split: Literal["train", "validation", "test"] = "train"
    num_tasks: int = Field(1000, ge=1)
    """Tasks from the start of the split."""
    task: RL2FTaskConfig = RL2FTaskConfig()


class RL2FData(vf.TaskData):
    """A prompt, and where the server finds its task."""

    environment: str
    settings: str
    split: str
    position: int


class RL2FTask(vf.Task[RL2FData, vf.State, RL2FTaskConfig]):
    """One task, whose reward is the verifier's result for all attempts of the dialogue."""

    @vf.reward
    async def verifier(self, trace: vf.Trace) -> float:
        """Reward of the dialogue: 1 if solved, or the sum of the rewards of a stateful environment."""
        if not trace.assistant_messages:
            return 0.0
        result = await self.verify(trace)
        trace.record_metric("solved", result["solved"])
        return float(result["reward"])

    async def verify(self, trace: vf.Trace) -> dict[str, Any]:
        """Return reward, solved, done and the next message of a dialogue."""
        data, attempts = self.data, [message.content or "" for message in trace.assistant_messages]
        request = {"environment": data.environment, "settings": data.settings, "split": data.split, "job": "verify"}
        arguments = {"index": data.position, "attempts": attempts}
        server = server_of(self.config.python)
        return await asyncio.to_thread(server.ask, {**request, "args": arguments}, self.config.timeout)


class RL2FTaskset(vf.Taskset[RL2FTask, RL2FConfig]):
    """The first tasks of a split."""

    def load(self) -> Iterator[RL2FTask]:
        """Yield the tasks. Raises `RuntimeError` if the environment cannot make them."""
        config = self.config
        where = {"environment": config.environment, "settings": json.dumps(config.settings), "split": config.split}
        request = {**where, "job": "tasks", "args": {"count": config.num_tasks}}
        for position, task in enumerate(server_of(config.task.python).ask(request, config.task.timeout)):
            data = RL2FData(
                id=task["id"], system_prompt=task["system"] or None, prompt=task["prompt"], position=position, **where
            )
            yield RL2FTask(data, config.task)


class RL2FEnvironmentConfig(vf.EnvConfig):
    """Length of a dialogue, and the agent."""

    turns: int = Field(1, ge=1)
    """Most attempts. After a wrong one the student reads the environment's observation and scripted hint."""
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The student."""


class RL2FEnvironment(vf.Env[RL2FEnvironmentConfig]):
    """A dialogue of attempts and hints, until one is correct."""

    async def run(self, task: RL2FTask, agents: vf.Agents) -> None:
        """Run one dialogue."""
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and interaction.trace.num_turns < self.config.turns:
                result = await task.verify(interaction.trace)
                if result["done"]:
                    break
                segment = await interaction.turn(result["message"])


class RL2FHarness(vf.Harness[vf.HarnessConfig]):
    """One chat completion per turn, requested from this process: nothing is installed or executed."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Request the reply to a prompt; verifiers records it."""
        system, prompt = self.resolve_prompt(data)
        messages = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or ())
        if system:
            messages = [vf.SystemMessage(content=system), *messages]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=3600) as client:
            wire: Any = [message_to_wire(message) for message in messages]
            await client.chat.completions.create(model=ctx.model, messages=wire)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class Server:
    """The process that runs the environments; started on demand, and again after a failure."""

    def __init__(self, python: str) -> None:
        self.python = python
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, object], limit: float) -> Any:
        """Return the result of a job. Raises `RuntimeError` if it fails or takes longer than `limit` seconds."""
        with self._lock:
            if self._process is None:
                self._process, limit = self._start(), limit + START_SECONDS
            try:
                reply = self._exchange(self._process, request, time.monotonic() + limit)
            except (OSError, ValueError, TimeoutError) as error:
                self._end()
                raise RuntimeError(f"the process of RL2F Studio ({self.python}) failed: {error}") from error
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]

    def _start(self) -> subprocess.Popen[bytes]:
        if shutil.which(self.python) is None:
            raise RuntimeError(
                f"there is no Python with RL2F Studio: {self.python!r}. Set RL2F_PYTHON, e.g. to .venv/bin/python"
            )
        variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "VIRTUAL_ENV")}
        return subprocess.Popen(
            [self.python, "-m", "rl2f_core.environments.verifiers.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )

    def _exchange(self, process: subprocess.Popen[bytes], request: dict[str, object], deadline: float) -> Any:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        reply = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not reply.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError("no reply within the time limit")
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise ValueError("it ended; is rl2f_core installed there?")
                reply += chunk
        return json.loads(reply)

    def _end(self) -> None:
        """Kill the process with its group."""
        process, self._process = self._process, None
        if process is None:
            return
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    close = _end


SERVERS: dict[tuple[int, str], Server] = {}


def server_of(python: str) -> Server:
    """Return the server of this process; a forked child needs its own."""
    found = python or os.environ.get("RL2F_PYTHON", "")
    key = (os.getpid(), found)
    if key not in SERVERS:
        SERVERS[key] = Server(found)
        atexit.register(SERVERS[key].close)
    return SERVERS[key]
