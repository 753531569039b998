"""The model process over plain HTTP: an OpenAI client lists models, completes, streams, and reads errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from chat_helpers import RUN_YAML, save_adapter, wait_until

from jobs.chat import interactive_task
from jobs.chat.model_process.client import ModelProcess
from rl2f_core.config.loading import parse_config

HELLO = [{"role": "user", "content": "Hello."}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def http(shared: ModelProcess, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A client of a process in which `tiny` and the checkpoint `tuned` are registered."""
    running = shared.running_process()
    headers = {"Authorization": f"Bearer {running.token}"}
    adapter = save_adapter(tiny, tmp_path_factory.mktemp("adapters") / "tuned", 1)
    source = {"base": str(tiny), "adapter": str(adapter), "dtype": "float32", "device": "cpu"}
    with httpx2.Client(base_url=running.url, headers=headers, timeout=300, trust_env=False) as client:
        body = {"model": "tuned", "source": source, "messages": HELLO, "max_tokens": 1}
        assert client.post(CHAT, json=body).status_code == 200
        yield client


def completion(http: httpx2.Client, model: Any, **more: Any) -> dict[str, Any]:
    body = {"model": str(model), "messages": HELLO, "max_tokens": 8, "seed": 5, "temperature": 1.0, **more}
    answer = http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def chunks(http: httpx2.Client, model: Any, **more: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed answer, which ends with [DONE]."""
    body = {"model": str(model), "messages": HELLO, "max_tokens": 8, "seed": 5, "stream": True, **more}
    with http.stream("POST", CHAT, json=body) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        data = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(each) for each in data[:-1]]


def error(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found = dict(answer.json()["error"])
    assert {"message", "type", "param", "code"} <= set(found)
    return found


def test_base_and_checkpoint_are_listed_as_models(http: httpx2.Client, tiny: Path) -> None:
    listed = http.get("/v1/models").json()
    found = {card["id"]: card for card in listed["data"]}
    assert listed["object"] == "list" and found["tuned"]["object"] == "model"
    assert (found["tuned"]["parent"], found[str(tiny)]["parent"]) == (str(tiny), None)


def test_a_completion_has_openai_form_and_its_seed_repeats_it(http: httpx2.Client, tiny: Path) -> None:
    found = completion(http, tiny, logprobs=True)
    (choice,) = found["choices"]
    assert (found["object"], found["model"], choice["message"]["role"]) == ("chat.completion", str(tiny), "assistant")
    assert choice["finish_reason"] in ("stop", "length") and "token_ids" not in choice
    usage, tokens = found["usage"], choice["logprobs"]["content"]
    assert usage["completion_tokens"] == len(tokens) and usage["total_tokens"] == usage["prompt_tokens"] + len(tokens)
    assert all(token["logprob"] <= 0 for token in tokens)
    assert completion(http, tiny)["choices"][0]["message"] == choice["message"]
    assert completion(http, tiny, seed=6)["choices"][0]["message"] != choice["message"]


def test_model_names_choose_the_checkpoint(http: httpx2.Client, tiny: Path) -> None:
    answers = [completion(http, model)["choices"][0]["message"]["content"] for model in (tiny, "tuned", tiny)]
    assert answers[0] == answers[2] != answers[1]


def test_a_stream_adds_up_to_the_completion(http: httpx2.Client) -> None:
    more = {"max_tokens": 300, "temperature": 3.0}
    parts = chunks(http, "tuned", **more)
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant" and len(parts) > 2
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    (choice,) = completion(http, "tuned", **more)["choices"]
    assert text == choice["message"]["content"]
    assert parts[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]


def test_temperature_0_is_greedy_for_every_seed(http: httpx2.Client) -> None:
    one, other = (completion(http, "tuned", temperature=0, seed=seed)["choices"] for seed in (1, 2))
    assert one == other


def test_a_closed_stream_cancels_its_request(http: httpx2.Client) -> None:
    def requests_while_streaming(seed: int) -> int:
        body = {"model": "tuned", "messages": HELLO, "max_tokens": 1900, "temperature": 5.0, "seed": seed}
        with http.stream("POST", CHAT, json={**body, "stream": True}) as stream:
            next(stream.iter_lines())
            return int(http.get("/health").json()["requests"])

    # most samples have hundreds of tokens, so that the stream closes long before they end; a few end at once
    assert any(requests_while_streaming(seed) == 1 for seed in range(4, 10))
    wait_until(lambda: http.get("/health").json()["requests"] == 0, 5)


def test_a_task_turn_has_the_screened_hint_and_the_verdict(http: httpx2.Client, tiny: Path) -> None:
    config = interactive_task.shared_fields(parse_config(yaml_config(tiny)))
    task, _ = interactive_task.make_task(config, "test", 0)
    body = {"model": "tuned", "config": config, "task": task.model_dump(mode="json"), "max_turns": 3, "max_tokens": 8}
    first = http.post("/v1/tasks/turns", json={**body, "seed": 3}).json()["task"]
    assert first["turn"]["verdict"]["correct"] is False and "hint" not in first
    hint = {"by": "person", "text": "Try the other half."}
    second = http.post("/v1/tasks/turns", json={**body, "seed": 3, "turns": [first["turn"]], "hint": hint}).json()
    assert second["task"]["hint"]["text"] == hint["text"] and second["task"]["turn"]["verdict"]


def yaml_config(tiny: Path) -> Any:
    import yaml

    return yaml.safe_load(RUN_YAML.replace("MODEL", str(tiny)))


# -- refusals ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nowhere"])
def test_a_request_without_the_token_is_refused(http: httpx2.Client, path: str) -> None:
    assert error(httpx2.get(f"{http.base_url}{path}", trust_env=False), 401)["code"] == "token"


def test_the_token_is_not_on_the_command_line(shared: ModelProcess) -> None:
    running = shared.running_process()
    assert running.token not in " ".join(psutil.Process(running.popen.pid).cmdline())


def test_an_unknown_model_error_lists_the_known_models(http: httpx2.Client) -> None:
    found = error(http.post(CHAT, json={"model": "gpt-9", "messages": HELLO}), 404)
    assert found["code"] == "model" and found["value"] == "gpt-9" and "tuned" in found["known"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"tools": []}, "tools"),
    ],
)
def test_a_wrong_field_is_named(http: httpx2.Client, change: dict[str, Any], param: str) -> None:
    found = error(http.post(CHAT, json={"model": "tuned", "messages": HELLO, **change}), 400)
    assert (found["type"], found["code"], found["param"]) == ("invalid_request_error", "request", param)


def test_a_conversation_beyond_the_context_and_unknown_paths_are_errors(http: httpx2.Client) -> None:
    long = [{"role": "user", "content": "zq" * 3000}]
    assert error(http.post(CHAT, json={"model": "tuned", "messages": long}), 400)["code"] == "context"
    assert error(http.post(CHAT, content=b"no json"), 400)["code"] == "request"
    assert "/v1/dance" in error(http.post("/v1/dance", json={}), 404)["message"]
