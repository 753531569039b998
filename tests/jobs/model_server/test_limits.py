"""Refused and failed requests of the model server: OpenAI's error object, and a free slot afterwards."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_helpers import wait_until
from model_runs import write_model_run
from model_server_helpers import served, serving
from typer.testing import CliRunner

from app.cli import app
from jobs.model_server.limits import ServerLimits
from jobs.model_server.server import ModelServer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "trained@rl@2"
LONG = {"model": MODEL, "prompt": "Guess", "max_tokens": 1900, "temperature": 5.0, "seed": 1}
"""Takes seconds."""
Site = tuple[ModelServer, httpx2.Client]


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_run(tmp_path_factory.mktemp("runs") / "trained", tiny, ["rl@2"])


@pytest.fixture(scope="module")
def small(run: Path) -> Iterator[Site]:
    """A server that generates one sequence, lets one wait, and limits bodies and their time."""
    limits = ServerLimits(max_running=1, max_waiting=1, max_body_bytes=20_000, body_seconds=0.3)
    with serving(served(run, ["2"], base=False), limits) as site:
        yield site


def refused(response: httpx2.Response, status: int, code: str | None, param: str | None = None) -> str:
    """The message of an error in OpenAI's form."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert (body["error"]["code"], body["error"]["param"]) == (code, param)
    return str(body["error"]["message"])


def decoder(server: ModelServer) -> Any:
    assert server.loop.loader.backend is not None
    return server.loop.loader.backend._decoder


def is_idle(site: Site) -> bool:
    server, http = site
    return http.get("/health").json()["sequences"] == 0 and not decoder(server).pending


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        (COMPLETIONS, {"prompt": "x " * 4000}, "context_length_exceeded", "prompt"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 2048}, "context_length_exceeded", "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x " * 4000}]}, "context_length_exceeded", "messages"),
        (COMPLETIONS, {"prompt": []}, None, "prompt"),
        (COMPLETIONS, {"prompt": ""}, None, "prompt"),
        (COMPLETIONS, {"prompt": [5, 100_000]}, None, "prompt"),
        (COMPLETIONS, {"prompt": [5, -1]}, None, "prompt"),
        (COMPLETIONS, {"prompt": [5, "x"]}, None, "prompt"),
        (COMPLETIONS, {"prompt": "x", "temperature": -1}, None, "temperature"),
        (COMPLETIONS, {"prompt": "x", "top_p": 0}, None, "top_p"),
        (COMPLETIONS, {"prompt": "x", "n": 3}, None, "n"),
        (COMPLETIONS, {"prompt": ["x " * 3000] * 3}, None, "n"),
        (COMPLETIONS, {"prompt": "x", "stop": [""]}, None, "stop"),
        (COMPLETIONS, {"prompt": "x", "logit_bias": {"5": -100}}, "unsupported_parameter", "logit_bias"),
        (COMPLETIONS, {"prompt": "x", "guided_regex": "a*"}, "unsupported_parameter", "guided_regex"),
        (CHAT, {"messages": []}, None, "messages"),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, None, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "unsupported_parameter", "tools"),
    ],
)
def test_a_wrong_request_names_its_parameter(
    small: Site, path: str, body: dict[str, Any], code: str | None, param: str
) -> None:
    refused(small[1].post(path, json={"model": MODEL, **body}), 400, code, param)
    assert is_idle(small)


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (CHAT, {"temperature": False}, "temperature: Input should be a valid number"),
        (CHAT, {"max_tokens": True}, "max_tokens: Input should be a valid integer"),
        (CHAT, {"n": "1"}, "n: Input should be a valid integer"),
        (CHAT, {"top_p": "0.5"}, "top_p: Input should be a valid number"),
        (CHAT, {"stream": "yes"}, "stream: Input should be a valid boolean"),
        (CHAT, {"stream_options": {"include_usage": 1}}, "include_usage: Input should be a valid boolean"),
        (CHAT, {"stream_options": 5}, "stream_options: it should be an object"),
        (CHAT, {"stop": 5}, "stop: it should be a text or a list"),
        (CHAT, {"messages": "Hi"}, "messages: Input should be a valid list"),
        (CHAT, {"messages": ["Hi"]}, "messages.0: it should be an object"),
        (CHAT, {"messages": [{"role": "user", "content": 0}]}, "messages.0.content: it should be a text or a list"),
        (CHAT, {"messages": [{"role": "user", "content": {}}]}, "messages.0.content: it should be a text or a list"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "name": 0}]}, "does not support name"),
        (CHAT, {"top_k": False}, "does not support the parameter top_k"),
        (CHAT, {"unknown": 0}, "does not support the parameter unknown"),
        (COMPLETIONS, {"logprobs": False}, "logprobs: Input should be a valid integer"),
        (COMPLETIONS, {"prompt": 5}, "prompt: it should be a text, a list of token ids"),
        (COMPLETIONS, {"prompt": [True]}, "prompt: it should be a text, a list of token ids"),
        (COMPLETIONS, {"prompt": [5, "x"]}, "prompt: it should be a text, a list of token ids"),
    ],
)
def test_a_value_of_another_type_is_refused_in_words_of_json(
    small: Site, path: str, body: dict[str, Any], reason: str
) -> None:
    required: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    response = small[1].post(path, json={"model": MODEL, **required, **body})
    assert response.status_code == 400 and reason in response.json()["error"]["message"]


def test_a_body_that_is_no_object_is_refused_in_words_of_json(small: Site) -> None:
    message = small[1].post(CHAT, json=[]).json()["error"]["message"]
    assert message == "Invalid value of the body: it should be an object."


def test_parameters_with_neutral_values_are_accepted(small: Site) -> None:
    neutral = {"frequency_penalty": 0, "presence_penalty": None, "logit_bias": {}, "user": "me", "stop": None,
               "n": 1, "top_k": -1, "unknown": "", "other": {}}  # fmt: skip
    response = small[1].post(COMPLETIONS, json={"model": MODEL, "prompt": "x", "max_tokens": 2, **neutral})
    assert response.status_code == 200, response.text


def test_unknown_models_routes_and_bodies_are_refused(small: Site) -> None:
    http = small[1]
    body = {"model": "gpt", "messages": [{"role": "user"}]}
    assert MODEL in refused(http.post(CHAT, json=body), 404, "model_not_found", "model")
    refused(http.get("/v1/models/tiny"), 404, "model_not_found", "model")  # the base is not served
    refused(http.get("/v1/embeddings"), 404, None)
    refused(http.get(CHAT), 405, None)
    json_type = {"Content-Type": "application/json"}
    refused(http.post(CHAT, content=b"{", headers=json_type), 400, None)
    refused(http.post(CHAT, content=b'{"model": "\\ud800"}', headers=json_type), 400, None)
    refused(http.post(CHAT, content=b"[" * 5_000, headers=json_type), 400, None)
    refused(http.post(CHAT, content=b"[]", headers=json_type), 400, None)
    refused(http.post(CHAT, content=b"{}", headers={"Content-Type": "text/plain"}), 415, None)
    refused(http.get("/v1/models", headers={"Host": "example.org"}), 421, "invalid_host")


def test_a_large_body_is_refused_with_and_without_its_length(small: Site) -> None:
    headers = {"Content-Type": "application/json"}
    refused(small[1].post(COMPLETIONS, content=b" " * 30_000, headers=headers), 413, "body_too_large")
    chunks = (b" " * 5_000 for _ in range(6))
    refused(small[1].post(COMPLETIONS, content=chunks, headers=headers), 413, "body_too_large")


def begin(http: httpx2.Client, data: bytes, length: int | None = None) -> socket.socket:
    """Send a completion request over a connection of its own, with a body of `length` bytes."""
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection((http.base_url.host, http.base_url.port or 80), timeout=30)
    connection.sendall(f"{head}Content-Length: {length or len(data)}\r\n\r\n".encode() + data)
    return connection


def test_a_body_that_does_not_arrive_is_refused(small: Site, caplog: pytest.LogCaptureFixture) -> None:
    with begin(small[1], b"{", length=100) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")
    begin(small[1], b"{", length=100).close()
    time.sleep(0.05)
    assert is_idle(small) and caplog.records == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot(small: Site, stream: bool) -> None:
    """The server has one slot and one place in the queue; more requests get status 429 until the clients leave."""
    server, http = small
    data = json.dumps({**LONG, "stream": stream}).encode()
    clients = [begin(http, data) for _ in range(2)]
    wait_until(lambda: server.loop.num_unfinished == 2, 30)
    response = http.post(COMPLETIONS, json={**LONG, "max_tokens": 1})
    assert "waiting" in refused(response, 429, "rate_limit_exceeded") and response.headers["Retry-After"] == "1"
    steps = decoder(server).num_forward_tokens
    for client in clients:
        client.close()
    wait_until(lambda: is_idle(small), 30)
    assert decoder(server).num_forward_tokens - steps < 1900
    assert http.post(COMPLETIONS, json={**LONG, "max_tokens": 1}).status_code == 200


def test_a_failed_adapter_fails_its_requests_only(run: Path) -> None:
    with serving(served(run, ["2"])) as (server, http):
        server.models[MODEL] = server.models[MODEL].model_copy(update={"adapter": "/nowhere"})
        refused(http.post(COMPLETIONS, json={**LONG, "max_tokens": 1}), 500, "adapter")
        assert "tiny" in http.get("/v1/models").text
        body = {**LONG, "model": "tiny", "max_tokens": 1}
        assert http.post(COMPLETIONS, json=body).status_code == 200


def test_an_unexpected_error_is_only_in_the_log(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(served(run, ["2"])) as (server, http):
        assert server.loop.loader.backend is not None
        server.loop.loader.backend.adapters[MODEL] = None  # type: ignore[assignment]
        message = refused(http.post(COMPLETIONS, json={**LONG, "max_tokens": 1}), 500, "internal_error")
    assert "KeyError" in capfd.readouterr().err and "KeyError" not in message


@pytest.mark.slow
def test_a_request_ends_when_its_time_is_over(run: Path) -> None:
    with serving(served(run, ["2"]), ServerLimits(request_seconds=0.6)) as site:
        body = {**LONG, "n": 16}  # a single choice may sample its end before
        refused(site[1].post(COMPLETIONS, json=body), 504, "timeout")
        text = site[1].post(COMPLETIONS, json={**body, "stream": True}).text
        *_, error, done = [line for line in text.splitlines() if line.startswith("data: ")]
        assert json.loads(error[6:])["error"]["code"] == "timeout" and done == "data: [DONE]"
        wait_until(lambda: is_idle(site), 10)


def test_a_server_with_an_api_key_accepts_no_other(run: Path) -> None:
    with serving(served(run, ["2"]), api_key="sésame") as (_, http):
        body = {"model": MODEL, "prompt": "x", "max_tokens": 1}
        for value in ("", "Bearer", "Bearer wrong"):
            headers = {"Authorization": value}
            refused(http.post(COMPLETIONS, json=body, headers=headers), 401, "invalid_api_key")
            refused(http.get("/v1/models", headers=headers), 401, "invalid_api_key")
        headers = {"Authorization": "Bearer sésame".encode(), "Host": "example.org"}
        assert http.post(COMPLETIONS, json=body, headers=headers).status_code == 200
        assert http.get("/health").status_code == 200


def test_a_closed_server_fails_its_requests(run: Path) -> None:
    with serving(served(run, ["2"])) as (server, http):
        server.close()
        refused(http.post(COMPLETIONS, json=LONG), 503, "shutdown")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "needs an API key"),
        (["--api-key-env", "RL2F_MISSING"], "RL2F_MISSING"),
        (["--backend", "onnx"], "auto, hf, vllm"),
    ],
)
def test_the_command_refuses_wrong_options(run: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve-model", f"{run}@2", "--port", "0", *arguments])
    assert result.exit_code == 2 and message in result.stderr, result.output


def test_the_time_of_a_step_does_not_block_the_server(small: Site) -> None:
    """Requests for models are answered while sequences are generated."""
    with small[1].stream("POST", COMPLETIONS, json={**LONG, "stream": True}) as response:
        next(response.iter_lines())
        start = time.monotonic()
        assert httpx2.get(f"{small[1].base_url}/v1/models").status_code == 200
        assert time.monotonic() - start < 5
    wait_until(lambda: is_idle(small), 30)
