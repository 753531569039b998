"""A running `vllm serve`, asked over HTTP: one request of token ids a prompt, as each has its own seed.

The server must return processed log-probabilities (`--logprobs-mode processed_logprobs`), which is tried out before the
first request, and for adapters it must let them be loaded while it runs.  It keeps its prefix cache by itself.
"""

from __future__ import annotations

import contextlib
import json
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import urlsplit

from rl2f_core.backends._vllm_wire import Adapter, Answer, Asked, finite
from rl2f_core.errors import AdapterError, ConfigError, RL2FError, RunError, shorten

TRIES = 3
"""Of a request that failed for a reason that may pass; a repeated one draws the same tokens."""
PAUSE = 0.5
"""Seconds before the second try, twice as many before the third."""
_PASSING = frozenset({408, 425, 429, 502, 503, 504})
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class EngineServer:
    """A server somebody else started (`_vllm_wire.Engine`).

    Args:
        url: Its address, with or without `/v1`.
        model: The base model's name there; None takes the first that is no adapter.
        concurrency: Requests under way at once.
        seconds: Without a byte from the server, after which a request fails.
        probe: An allowed token, to try the log-probabilities out.
    """

    def __init__(self, url: str, model: str | None, *, concurrency: int, seconds: float, probe: int) -> None:
        import httpx2

        self.url = url.rstrip("/").removesuffix("/v1")
        self._client = httpx2.Client(
            follow_redirects=False,
            trust_env=urlsplit(self.url).hostname not in _LOOPBACK,
            limits=httpx2.Limits(max_connections=concurrency),
            timeout=httpx2.Timeout(seconds, connect=10.0, pool=None),
        )
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="vllm")
        self._under_way: dict[Future[Answer], str] = {}
        self._asleep = False
        self._loaded: set[str] = set()
        self._leave = weakref.finalize(self, _leave, self._client, self._pool, self.url, self._loaded)
        try:
            self.model, self.context_limit = self._base(model)
            self._try_out(probe)
        except BaseException:
            self.close()
            raise

    # -- requests ----------------------------------------------------------------------------------------------
    def submit(self, asked: Asked) -> None:
        """Let a request join those under way."""
        self._under_way[self._pool.submit(self._one, asked)] = asked.id

    def finished(self) -> list[Answer]:
        """What has ended since the last call; waits for the first. Raises `RunError` where the server fails."""
        while True:
            done, _ = wait(self._under_way, return_when=FIRST_COMPLETED)
            for future in done:
                del self._under_way[future]
            with contextlib.suppress(CancelledError):
                return [future.result() for future in done]

    def cancel(self, ids: Sequence[str]) -> None:
        """Give requests up; those that are with the server end there, and nobody hears of them."""
        for future, name in list(self._under_way.items()):
            if name in ids:
                future.cancel()
                del self._under_way[future]

    def _one(self, asked: Asked) -> Answer:
        return answer_of(asked, self._post("/v1/completions", body_of(asked, self.model)))

    # -- adapters and memory -----------------------------------------------------------------------------------
    def load(self, adapter: Adapter) -> None:
        """Let the server read an adapter from the folder, which it must see under the same path.

        Raises `ConfigError` where the server loads none while it runs, `AdapterError` where it refuses this one.
        """
        status, told = self._ask("/v1/load_lora_adapter", {"lora_name": adapter.name, "lora_path": adapter.folder})
        if status == 404 and told == "Not Found":  # the path of the request, not that of the adapter
            raise ConfigError(
                "The server loads no adapters while it runs.", value=self.url,
                fix="Start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve … --enable-lora.",
            )  # fmt: skip
        if status != 200:
            raise AdapterError(
                f"The server does not take the adapter: HTTP {status}, {told}.", value=adapter.folder,
                fix="It must see this path (set backend.adapter_folder to a shared one) and be started with "
                f"--enable-lora and --max-lora-rank {adapter.rank} or more.",
            )  # fmt: skip
        self._loaded.add(adapter.name)

    def drop(self, adapter: Adapter) -> None:
        """Let the server forget an adapter; that it does not know it is no error."""
        self._loaded.discard(adapter.name)
        self._ask("/v1/unload_lora_adapter", {"lora_name": adapter.name})

    def forget(self) -> None:
        """Nothing: the server keeps its prefix cache by tokens and adapter, so nothing in it can be stale."""

    def sleep(self) -> None:
        """Let the server give its GPU's memory back. Raises `ConfigError` where it cannot."""
        if not self._asleep:
            self._ask_dev("/sleep?level=1")
            self._asleep = True

    def wake(self) -> None:
        """Let it take the memory again."""
        if self._asleep:
            self._ask_dev("/wake_up")
            self._asleep = False

    def _ask_dev(self, path: str) -> None:
        status, told = self._ask(path, {})
        if status != 200:
            raise ConfigError(
                f"The server does not sleep and wake: HTTP {status}, {told}.", value=self.url,
                fix="Start it with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode, or set backend.sleep: false.",
            )  # fmt: skip

    def close(self) -> None:
        """Take our adapters from the server and let go of it. Twice is once."""
        self._leave()

    # -- the first words ---------------------------------------------------------------------------------------
    def _base(self, wanted: str | None) -> tuple[str, int]:
        """Name and context length of the base model at the server."""
        held = self._get("/v1/models").get("data") or []
        bases = [card for card in held if isinstance(card, dict) and not card.get("parent")]
        names = [str(card.get("id")) for card in bases]
        if wanted is None and names:
            wanted = names[0]
        card = next((card for card in bases if card.get("id") == wanted), None)
        if card is None or wanted is None:
            raise ConfigError("The server does not serve this model.", value=wanted, known=names,
                              fix="Set backend.served_model to one of these.")  # fmt: skip
        return wanted, int(card.get("max_model_len") or 2**31)

    def _try_out(self, token: int) -> None:
        """One token of one allowed: after processing its log-probability is 0, before it is not."""
        params = {"temperature": 1.0, "max_tokens": 1, "logprobs": 0, "ignore_eos": True, "allowed_token_ids": [token]}
        found = self._one(Asked("probe", (token,), params))
        if found.tokens != (token,) or abs(found.logprobs[0]) > 1e-3:
            raise ConfigError(
                "The server returns raw log-probabilities: without temperature and with banned tokens.",
                value=self.url, fix="Start it with vllm serve … --logprobs-mode processed_logprobs.",
            )  # fmt: skip

    # -- HTTP --------------------------------------------------------------------------------------------------
    def _get(self, path: str) -> dict[str, Any]:
        return _json(self._once("GET", path, None), path)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request that must succeed; failures that may pass are tried again."""
        for number in range(TRIES):
            last = number == TRIES - 1
            try:
                reply = self._once("POST", path, body)
            except RunError:
                if last:
                    raise
            else:
                if reply.status_code == 200:
                    return _json(reply, path)
                if last or reply.status_code not in _PASSING:
                    raise RunError(f"The vLLM server refused: HTTP {reply.status_code}, {_told(reply)}.",
                                   value=self.url + path)  # fmt: skip
            time.sleep(PAUSE * 2**number)
        raise AssertionError("unreachable")

    def _ask(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """Status and words of an answer that may be a refusal."""
        reply = self._once("POST", path, body)
        return reply.status_code, _told(reply)

    def _once(self, verb: str, path: str, body: dict[str, Any] | None) -> Any:
        import httpx2

        try:
            return self._client.request(verb, self.url + path, json=body)
        except httpx2.HTTPError as error:
            raise RunError(
                f"The vLLM server does not answer: {type(error).__name__}: {error}.", value=self.url + path,
                fix="See that `vllm serve` runs there, then resume the run: it goes on from its last commit.",
            ) from error  # fmt: skip


def body_of(asked: Asked, base: str) -> dict[str, Any]:
    """The JSON of `/v1/completions` for one request."""
    name = base if asked.adapter is None else asked.adapter.name
    return {"model": name, "prompt": list(asked.tokens), "return_token_ids": True, "add_special_tokens": False,
            **asked.params}  # fmt: skip


def answer_of(asked: Asked, reply: dict[str, Any]) -> Answer:
    """What a completion says. Raises `ConfigError` where the server is too old for token ids, `RunError` where it
    answered something else."""
    try:
        choice = reply["choices"][0]
        if "prompt_logprobs" in asked.params:
            found = choice["prompt_logprobs"]
            values = [
                None if p is None else float(p[str(t)]["logprob"]) for t, p in zip(asked.tokens, found, strict=True)
            ]
            return Answer(asked.id, asked.tokens, finite(values))
        tokens = choice.get("token_ids")
        if tokens is None:
            raise ConfigError("The server returns no token ids.", fix="Take vLLM 0.32, or another newer than 0.10.")
        values = choice["logprobs"]["token_logprobs"]
        made = Answer(asked.id, tuple(map(int, tokens)), finite(values))
    except RL2FError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"The vLLM server's answer cannot be read ({type(error).__name__}: {error}).",
                       value=shorten(json.dumps(reply, default=str), 200)) from error  # fmt: skip
    if len(made.tokens) != len(made.logprobs):
        raise RunError("The vLLM server returned another number of log-probabilities than of tokens.",
                       value=(len(made.logprobs), len(made.tokens)))  # fmt: skip
    return made


def _leave(client: Any, pool: ThreadPoolExecutor, url: str, loaded: set[str]) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    for name in loaded:
        with contextlib.suppress(Exception):  # a server that is gone has no adapters either
            client.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=5.0)
    client.close()


def _json(reply: Any, path: str) -> dict[str, Any]:
    try:
        held = reply.json()
    except ValueError as error:
        raise RunError("The vLLM server answered with no JSON.", value=f"HTTP {reply.status_code} {path}") from error
    if reply.status_code != 200 or not isinstance(held, dict):
        raise RunError(f"The vLLM server refused: HTTP {reply.status_code}, {_told(reply)}.", value=path,
                       fix="Is it a vLLM server?")  # fmt: skip
    return held


def _told(reply: Any) -> str:
    """The server's own words, in one short line."""
    try:
        held: Any = reply.json()
        held = held.get("error", held) if isinstance(held, dict) else held
        held = held.get("message", held.get("detail", held)) if isinstance(held, dict) else held
        text = held if isinstance(held, str) else json.dumps(held)
    except ValueError:
        text = reply.text[:400]
    return shorten(" ".join("".join(c if c.isprintable() else " " for c in text).split()), 300).rstrip(".")
