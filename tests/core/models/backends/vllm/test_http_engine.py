"""A running `vllm serve` over HTTP, with a small server of this file's own in its place: what is sent, what is read,
and what is said where the server is too old, too strict, started otherwise, or gone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rl2f_core.errors import AdapterError, ConfigError, RL2FError, RunError
from rl2f_core.models.backends.base import SamplingParams
from rl2f_core.models.backends.vllm import http_engine
from rl2f_core.models.backends.vllm.http_engine import HttpEngine
from rl2f_core.models.backends.vllm.protocol import (
    Adapter,
    EngineOutput,
    EngineRequest,
    generation_params,
    parse_completion,
    request_body,
    scoring_params,
)

PARAMS = generation_params(SamplingParams(4, 0.7), seed=11, eos_token_id=2, banned=(1,))
POLICY = Adapter("policy@3", "/shared/3", 16)
Reply = tuple[int, Any]


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """What vLLM answers: the seed as a token, then the end; of a scored prompt minus each token's number."""
    prompt = body["prompt"]
    if "prompt_logprobs" in body:
        found = [None, *({str(t): {"logprob": -float(t), "rank": 1}, "99": {"logprob": -0.1}} for t in prompt[1:])]
        return {"choices": [{"token_ids": [5], "logprobs": None, "prompt_logprobs": found}]}
    drawn = body.get("allowed_token_ids") or [body["seed"], 2]
    return {"choices": [{"token_ids": drawn, "logprobs": {"token_logprobs": [-0.0] * len(drawn)}}]}


@dataclass
class Served:
    """What the server was asked; `replies` by path take the place of the usual answers."""

    url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    replies: dict[str, Callable[[dict[str, Any]], Reply]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    gone: bool = False

    def of(self, path: str) -> list[dict[str, Any]]:
        return [body for asked, body in self.asked if asked == path]

    def reply(self, path: str, body: dict[str, Any]) -> Reply:
        with self.lock:
            self.asked.append((path, body))
        if path in self.replies:
            return self.replies[path](body)
        if path == "/v1/models":
            cards = [{"id": "old", "parent": "base"}, {"id": "base", "max_model_len": 77, "parent": None}]
            return 200, {"object": "list", "data": cards}
        if path == "/v1/completions":
            return 200, completion(body)
        return 200, {} if path.endswith("adapter") else {"status": "fine"}


@contextmanager
def serving() -> Iterator[Served]:
    served = Served()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def answer(self, body: dict[str, Any]) -> None:
            if served.gone:  # connections that were kept open die, too
                self.close_connection = True
                return
            status, held = served.reply(self.path, body)
            data = held if isinstance(held, bytes) else json.dumps(held).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.answer({})

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}"))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        served.gone = True
        server.shutdown()
        server.server_close()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as held:
        yield held


def outputs(server: HttpEngine, *requests: EngineRequest) -> list[EngineOutput]:
    """Send requests together; return their outputs in order."""
    futures = [server.submit(request) for request in requests]
    while not all(future.done() for future in futures):
        server.wait([future for future in futures if not future.done()])
    return [future.result() for future in futures]


def client(served: Served, model: str | None = None, **changes: Any) -> HttpEngine:
    return HttpEngine(f"{served.url}/v1", model, **{"concurrency": 3, "stall_timeout": 10, "check_token": 2} | changes)


# -- what is sent and read -----------------------------------------------------------------------------------------
def test_requests_and_responses_contain_token_ids() -> None:
    asked = EngineRequest((5, 6), PARAMS, POLICY)
    body = request_body(asked, "base")
    assert body == {"model": "policy@3", "prompt": [5, 6], "return_token_ids": True, "add_special_tokens": False,
                    "return_tokens_as_token_ids": True,
                    **PARAMS}  # fmt: skip
    assert (body["temperature"], body["seed"], body["stop_token_ids"], body["logit_bias"]) == (
        0.7,
        11,
        [2],
        {"1": -100},
    )
    assert request_body(EngineRequest((5,), PARAMS), "base")["model"] == "base"
    assert parse_completion(asked, completion(body)) == EngineOutput((11, 2), (-0.0, -0.0))
    scored = EngineRequest((5, 6, 7), scoring_params())
    assert parse_completion(scored, completion(request_body(scored, "base"))) == EngineOutput(
        (5, 6, 7), (0.0, -6.0, -7.0)
    )


def test_requests_run_concurrently_and_each_gets_its_own_output(served: Served) -> None:
    server = client(served)
    assert (server.model, server.max_model_len) == ("base", 77)
    together = threading.Barrier(3, timeout=10)

    def wait_for_all(body: dict[str, Any]) -> Reply:
        together.wait()
        return 200, completion(body)

    served.replies["/v1/completions"] = wait_for_all
    requests = [EngineRequest((5,), {**PARAMS, "seed": 20 + i}) for i in range(3)]
    assert [output.tokens for output in outputs(server, *requests)] == [(20 + i, 2) for i in range(3)]
    server.close()


def test_adapters_are_loaded_requested_by_version_and_unloaded(served: Served) -> None:
    server = client(served)
    server.add_lora(POLICY)
    outputs(server, EngineRequest((5,), PARAMS, POLICY))
    server.remove_lora(POLICY)
    server.add_lora(replace(POLICY, name="teacher@4"))
    server.reset_prefix_cache()
    assert served.of("/v1/load_lora_adapter")[0] == {"lora_name": "policy@3", "lora_path": "/shared/3"}
    assert served.of("/v1/completions")[-1]["model"] == "policy@3"
    assert served.of("/v1/unload_lora_adapter") == [{"lora_name": "policy@3"}]
    server.close()
    server.close()
    assert served.of("/v1/unload_lora_adapter")[1:] == [{"lora_name": "teacher@4"}]  # nothing of ours is left there


def test_sleep_and_wake_up_are_sent_only_once(served: Served) -> None:
    server = client(served)
    for call in (server.wake_up, server.sleep, server.sleep, server.wake_up, server.wake_up):
        call()
    assert [path for path, _ in served.asked[-2:]] == ["/sleep?level=1", "/wake_up"]
    assert sum("wake" in path or "sleep" in path for path, _ in served.asked) == 2
    server.close()


# -- what is said --------------------------------------------------------------------------------------------------
def refused(served: Served, act: Callable[[HttpEngine], Any], path: str, status: int, held: Any) -> RL2FError:
    server = client(served)
    served.replies[path] = lambda body: (status, held)
    with pytest.raises(RL2FError) as error:
        act(server)
    server.close()
    return error.value


def test_a_server_without_adapter_loading_is_an_error(served: Served) -> None:
    error = refused(served, lambda s: s.add_lora(POLICY), "/v1/load_lora_adapter", 404, {"detail": "Not Found"})
    assert isinstance(error, ConfigError) and "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" in str(error)


def test_a_missing_or_too_large_adapter_is_an_error(served: Served) -> None:
    missing = {"error": {"message": "No adapter found for policy@3, /shared/3", "code": 404}}
    error = refused(served, lambda s: s.add_lora(POLICY), "/v1/load_lora_adapter", 404, missing)
    assert isinstance(error, AdapterError) and "backend.adapter_folder" in str(error)
    error = refused(
        served, lambda s: s.add_lora(POLICY), "/v1/load_lora_adapter", 500, {"error": {"message": "rank 16"}}
    )
    assert isinstance(error, AdapterError) and "--max-lora-rank 16" in str(error) and "HTTP 500, rank 16" in str(error)


def test_a_server_with_raw_logprobs_is_refused_before_the_first_request(served: Served) -> None:
    def raw(body: dict[str, Any]) -> Reply:
        return 200, {"choices": [{"token_ids": [2], "logprobs": {"token_logprobs": [-9.2]}}]}

    served.replies["/v1/completions"] = raw
    with pytest.raises(ConfigError, match="--logprobs-mode processed_logprobs"):
        client(served)


def test_an_unknown_model_or_another_server_is_an_error(served: Served) -> None:
    with pytest.raises(ConfigError, match=r"does not serve this model.*Known: base.*served_model_name"):
        client(served, "other")
    served.replies["/v1/models"] = lambda body: (200, b"<html>")
    with pytest.raises(RunError, match="is not JSON"):
        client(served)
    served.replies["/v1/models"] = lambda body: (401, {"error": "a key is needed"})
    with pytest.raises(RunError, match="HTTP 401, a key is needed"):
        client(served)


def test_a_server_that_is_too_old_or_has_no_sleep_mode_is_an_error(served: Served) -> None:
    old = {"choices": [{"text": "x", "logprobs": {"token_logprobs": [0.0]}}]}
    ask = EngineRequest((5,), PARAMS)
    with pytest.raises(ConfigError, match=r"no token ids.*0\.32"):
        parse_completion(ask, old)
    for broken in ({}, {"choices": []}, {"choices": [{"token_ids": [1], "logprobs": None}]}, {"choices": ["x"]}):
        with pytest.raises(RunError, match="cannot be parsed"):
            parse_completion(ask, broken)
    with pytest.raises(RunError, match="different numbers"):
        parse_completion(ask, {"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [0.0]}}]})
    error = refused(served, lambda s: s.sleep(), "/sleep?level=1", 404, {"detail": "Not Found"})
    assert "VLLM_SERVER_DEV_MODE=1" in str(error) and "backend.enable_sleep_mode: false" in str(error)


def test_only_transient_failures_are_retried(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_engine, "BACKOFF_SECONDS", 0.001)
    server = client(served)
    replies = iter([(503, {"error": "busy"}), (429, {})])
    served.replies["/v1/completions"] = lambda body: next(replies, None) or (200, completion(body))
    assert outputs(server, EngineRequest((5,), PARAMS))[0].tokens == (11, 2) and next(replies, None) is None
    for status, tries in ((400, 1), (503, 3)):
        before = len(served.of("/v1/completions"))
        served.replies["/v1/completions"] = lambda body, status=status: (status, {"error": {"message": "no"}})
        with pytest.raises(RunError, match=f"HTTP {status}, no"):
            outputs(server, EngineRequest((5,), PARAMS))
        assert len(served.of("/v1/completions")) - before == tries
    server.close()


def test_a_lost_server_is_an_error_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_engine, "BACKOFF_SECONDS", 0.001)
    with serving() as served:
        server = client(served)
    with pytest.raises(RunError, match=r"does not answer: .*then resume the run"):
        outputs(server, EngineRequest((5,), PARAMS))
    server.close()
