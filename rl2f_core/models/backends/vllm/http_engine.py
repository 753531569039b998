"""Client of a `vllm serve`: one HTTP request of token ids per prompt, as each prompt has its own seed.

The server must return processed logprobs (`--logprobs-mode processed_logprobs`), which is checked before the first
request, and must allow adapters to be loaded at run time. Requests run concurrently on an event loop in a background
thread; closing the connection of a request aborts it on the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Collection, Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from rl2f_core.errors import AdapterError, ConfigError, RunError
from rl2f_core.models.backends.vllm.protocol import Adapter, EngineOutput, EngineRequest, parse_completion, request_body
from rl2f_core.models.backends.vllm.server_process import URL, ServerProcess
from rl2f_core.models.llms.protocol import LOOPBACK, error_detail
from rl2f_core.types import JsonObject

MAX_ATTEMPTS = 3
"""Attempts of a request that failed for a transient reason; a repeated request samples the same tokens."""
BACKOFF_SECONDS = 0.5
"""Delay before the second attempt; it doubles before the third."""
POLL_SECONDS = 0.5
"""Interval at which a waiting engine checks the server."""
_CONTROL_SECONDS = 10.0
"""Timeout of connections and of requests for the state of the server."""
_TRANSIENT = frozenset({408, 425, 429, 502, 503, 504})
T = TypeVar("T")


class HttpEngine:
    """A vLLM server: a process of this machine, which the engine then owns, or an address with or without `/v1`.

    `model` is the server's name of the base model; None selects the first that is not an adapter. The server counts as
    lost after `stall_timeout` seconds without progress. `check_token` is any allowed token.
    """

    def __init__(
        self,
        server: ServerProcess | str,
        model: str | None = None,
        *,
        concurrency: int,
        stall_timeout: float,
        check_token: int,
    ) -> None:
        self.server = server if isinstance(server, ServerProcess) else None
        self.url = URL if isinstance(server, ServerProcess) else server.rstrip("/").removesuffix("/v1")
        limits = httpx2.Limits(max_connections=concurrency + 4, keepalive_expiry=2.0)  # vLLM closes idle ones after 5 s
        remote = urlsplit(self.url).hostname not in LOOPBACK
        socket = None if self.server is None else str(self.server.socket)
        self._client = httpx2.AsyncClient(
            transport=None if socket is None else httpx2.AsyncHTTPTransport(uds=socket, limits=limits),
            limits=limits,
            trust_env=self.server is None and remote,
            timeout=httpx2.Timeout(stall_timeout, connect=_CONTROL_SECONDS, pool=None),
        )
        self._connect_timeout = httpx2.Timeout(None, connect=_CONTROL_SECONDS)
        self._concurrency, self._stall_timeout = asyncio.Semaphore(concurrency), stall_timeout
        self._asleep = False
        self._loaded: set[str] = set()
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="vllm-http", daemon=True)
        thread.start()
        self._close = weakref.finalize(
            self, _close, os.getpid(), self._loop, thread, self._client, self.server, self.url, self._loaded
        )
        try:
            self.model, self.max_model_len = self._find_model(model)
            self._check_logprobs_mode(check_token)
        except BaseException:
            self.close()
            raise

    # -- requests ----------------------------------------------------------------------------------------------
    def submit(self, request: EngineRequest) -> Future[EngineOutput]:
        """Start a request; cancel the future to abort it."""
        self._check_server()
        return asyncio.run_coroutine_threadsafe(self._complete(request), self._loop)

    def wait(self, futures: Collection[Future[EngineOutput]]) -> set[Future[EngineOutput]]:
        """Wait until at least one request has finished; return the finished ones.

        Raises `RunError` if the server has ended or its metrics have not changed for `stall_timeout`.
        """
        counters, progress_at = "", time.monotonic()
        while not (finished := wait(futures, POLL_SECONDS, FIRST_COMPLETED).done):
            self._check_server()
            if time.monotonic() - progress_at < self._stall_timeout / 4:
                continue
            before, counters = counters, self._run(self._read_counters())
            if counters not in ("", before):
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > self._stall_timeout:
                reason = f"It made no progress for {self._stall_timeout:g} s (backend.stall_timeout)."
                if self.server is not None:
                    raise self.server.fail(reason)
                raise RunError(f"The vLLM server is lost. {reason}", value=self.url,
                               fix="Restart it, then resume the run: it continues from its last commit.")  # fmt: skip
        return finished

    async def _complete(self, request: EngineRequest) -> EngineOutput:
        """Request a completion, with retries; `wait` detects a stalled server."""
        path, body = "/v1/completions", request_body(request, self.model)
        async with self._concurrency:
            for attempt in itertools.count(1):
                try:
                    response = await self._send("POST", path, body, timeout=self._connect_timeout)
                except RunError:
                    self._check_server()
                    if attempt == MAX_ATTEMPTS:
                        raise
                else:
                    if response.status_code == 200:
                        break
                    if attempt == MAX_ATTEMPTS or response.status_code not in _TRANSIENT:
                        raise RunError(f"The vLLM server refused a request: HTTP {response.status_code}, "
                                       f"{error_detail(response.content)}.", value=self.url + path)  # fmt: skip
                await asyncio.sleep(BACKOFF_SECONDS * 2 ** (attempt - 1))
        return parse_completion(request, _json(response, path))

    def _check_server(self) -> None:
        if self.server is not None:
            self.server.check()

    async def _read_counters(self) -> str:
        """Return vLLM's metrics, which change with every engine step, or nothing."""
        with contextlib.suppress(RunError):
            response = await self._send("GET", "/metrics", timeout=_CONTROL_SECONDS)
            return "\n".join(line for line in response.text.splitlines() if line.startswith("vllm:"))
        return ""

    # -- adapters and memory -----------------------------------------------------------------------------------
    def add_lora(self, adapter: Adapter) -> None:
        """Load an adapter from its folder, which the server must see under the same path.

        Raises `ConfigError` if the server loads no adapters at run time, `AdapterError` if it refuses this one.
        """
        status, text = self._control("/v1/load_lora_adapter", lora_name=adapter.name, lora_path=adapter.folder)
        if status == 404 and text == "Not Found":  # the endpoint, not the adapter
            raise ConfigError(
                "The server does not load adapters at run time.", value=self.url,
                fix="Start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve … --enable-lora.",
            )  # fmt: skip
        if status != 200:
            raise AdapterError(
                f"The vLLM server refused the adapter: HTTP {status}, {text}.", value=adapter.folder,
                fix=None if self.server is not None else
                "It must see this path (set backend.adapter_folder to a shared one) and be started with "
                f"--enable-lora and --max-lora-rank {adapter.rank} or more.",
            )  # fmt: skip
        self._loaded.add(adapter.name)

    def remove_lora(self, adapter: Adapter) -> None:
        """Unload an adapter; an unknown one is not an error."""
        self._loaded.discard(adapter.name)
        self._control("/v1/unload_lora_adapter", lora_name=adapter.name)

    def reset_prefix_cache(self) -> None:
        """Clear a local server's prefix cache; adapter versions keep others valid."""
        if self.server is not None and not self._asleep:  # sleep mode clears it as well
            self._control("/reset_prefix_cache")

    def sleep(self) -> None:
        """Release GPU memory until `wake_up`. Raises `ConfigError` if the server does not support it."""
        self._set_asleep(True)

    def wake_up(self) -> None:
        """Reacquire GPU memory."""
        self._set_asleep(False)

    def _set_asleep(self, asleep: bool) -> None:
        if asleep == self._asleep:
            return
        status, text = self._control("/sleep?level=1" if asleep else "/wake_up")
        if status != 200:
            raise ConfigError(
                f"The server does not support sleep mode: HTTP {status}, {text}.", value=self.url,
                fix="Start it with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode, or set "
                "backend.enable_sleep_mode: false.",
            )  # fmt: skip
        self._asleep = asleep

    def close(self) -> None:
        """Stop a local server; unload this run's adapters from another. Idempotent."""
        self._close()

    # -- startup -----------------------------------------------------------------------------------------------
    def _find_model(self, name: str | None) -> tuple[str, int]:
        """Return name and context length of the base model on the server."""
        cards = _json(self._run(self._send("GET", "/v1/models")), "/v1/models").get("data") or []
        models = {str(card.get("id")): card for card in cards if isinstance(card, dict) and not card.get("parent")}
        name = next(iter(models), None) if name is None else name
        if name is None or name not in models:
            raise ConfigError("The server does not serve this model.", value=name, known=models,
                              fix="Set backend.served_model_name to one of these.")  # fmt: skip
        return name, int(models[name].get("max_model_len") or 2**31)

    def _check_logprobs_mode(self, token: int) -> None:
        """Sample one token with one allowed: its processed logprob is 0, its raw logprob is not."""
        params = {"temperature": 1.0, "max_tokens": 1, "logprobs": 0, "ignore_eos": True, "allowed_token_ids": [token]}
        request = self.submit(EngineRequest((token,), params))
        self.wait([request])
        output = request.result()
        if output.tokens != (token,) or abs(output.logprobs[0]) > 1e-3:
            raise ConfigError(
                "The server returns raw logprobs, which ignore the temperature and banned tokens.",
                value=self.url, fix="Start it with vllm serve … --logprobs-mode processed_logprobs.",
            )  # fmt: skip

    # -- HTTP --------------------------------------------------------------------------------------------------
    def _run(self, coroutine: Coroutine[object, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _control(self, path: str, **body: object) -> tuple[int, str]:
        """Return status and message of a response that may be a refusal."""
        self._check_server()
        response = self._run(self._send("POST", path, body))
        return response.status_code, error_detail(response.content)

    async def _send(self, method: str, path: str, body: JsonObject | None = None, **options: Any) -> httpx2.Response:
        try:
            response = await self._client.request(method, self.url + path, json=body, **options)
        except httpx2.HTTPError as error:
            raise await self._unreachable(f"{type(error).__name__}: {error}", path) from error
        if response.status_code >= 500 and self.server is not None and not await self._is_healthy():
            raise self.server.fail(f"It answered HTTP {response.status_code}, {error_detail(response.content)}.")
        return response

    async def _is_healthy(self) -> bool:
        try:
            return (await self._client.get(f"{self.url}/health", timeout=_CONTROL_SECONDS)).status_code == 200
        except httpx2.HTTPError:
            return False

    async def _unreachable(self, reason: str, path: str) -> RunError:
        """Return the error for a missing response; stop a local server that is broken."""
        if self.server is None:
            return RunError(f"The vLLM server does not answer: {reason}.", value=self.url + path,
                            fix="Check that `vllm serve` runs there, then resume the run: it continues from its last "
                            "commit.")  # fmt: skip
        if await self._is_healthy():
            return RunError(f"The vLLM server does not answer: {reason}.", value=path)
        try:
            await asyncio.to_thread(self.server.check, 5.0)  # it closes its connections before it ends
        except RunError as error:
            return error
        return self.server.fail(f"It does not answer: {reason}.")


def _close(
    owner: int,
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    client: httpx2.AsyncClient,
    server: ServerProcess | None,
    url: str,
    loaded: set[str],
) -> None:
    """Stop the loop and a local server, or unload `loaded`; do nothing in a fork."""
    if os.getpid() != owner:
        return

    async def disconnect() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in loaded if server is None else ():
            with contextlib.suppress(httpx2.HTTPError):  # a server that is gone has no adapters either
                await client.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=5.0)
        await client.aclose()

    if server is not None:
        server.close()
    with contextlib.suppress(Exception):
        asyncio.run_coroutine_threadsafe(disconnect(), loop).result(_CONTROL_SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_CONTROL_SECONDS)


def _json(response: httpx2.Response, path: str) -> JsonObject:
    try:
        body = response.json()
    except ValueError as error:
        raise RunError("The response of the vLLM server is not JSON.",
                       value=f"HTTP {response.status_code} {path}") from error  # fmt: skip
    if response.status_code != 200 or not isinstance(body, dict):
        raise RunError(f"The vLLM server refused a request: HTTP {response.status_code}, "
                       f"{error_detail(response.content)}.",
                       value=path, fix="Check that this is a vLLM server.")  # fmt: skip
    return body
