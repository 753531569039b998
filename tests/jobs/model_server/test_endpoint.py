"""The model server over HTTP: the results are those of the engine, whatever else is generated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from model_runs import write_model_run
from model_server_helpers import served, serving

from app.commands.server.serve_model import find_checkpoints
from jobs.model_server.models import find_models
from jobs.model_server.server import ModelServer
from rl2f_core.config.model import ModelConfig
from rl2f_core.errors import ConfigError
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.renderer import ChatRenderer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
FIRST, SECOND = "trained@rl@2", "trained@rl@4"
TEXT = "What is 12 + 34? The answer is"
HELLO = [{"role": "user", "content": "Guess the number."}]


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_run(tmp_path_factory.mktemp("runs") / "trained", tiny, ["rl@2", "rl@4"])


@pytest.fixture(scope="module")
def site(run: Path) -> Iterator[tuple[ModelServer, httpx2.Client]]:
    """A server of two checkpoints and their base."""
    with serving(served(run, ["2", "rl@4"])) as running:
        yield running


@pytest.fixture
def http(site: tuple[ModelServer, httpx2.Client]) -> httpx2.Client:
    return site[1]


@pytest.fixture(scope="module")
def engine(run: Path) -> HFBackend:
    """The engine of a run, with merged adapters and nothing else in its batch."""
    models = served(run, ["2", "4"])
    model = ModelConfig(name=models["tiny"].base, dtype="float32", device="cpu")
    backend = HFBackend(HFBackend.Config(multi_lora="merged"), model)
    for name, source in models.items():
        if source.adapter is not None:
            backend.load_adapter(name, Path(source.adapter))
    return backend


def post(http: httpx2.Client, path: str, **body: Any) -> dict[str, Any]:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def stream(http: httpx2.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, which ends with [DONE]."""
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        data = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(each) for each in data[:-1]]


def choice(http: httpx2.Client, **body: Any) -> dict[str, Any]:
    """The only choice of a completion."""
    (only,) = post(http, COMPLETIONS, **{"model": FIRST, "prompt": TEXT, "max_tokens": 8, "seed": 3, **body})["choices"]
    return dict(only)


def generate(engine: HFBackend, tokens: tuple[int, ...], model: str, temperature: float, seed: int) -> tuple[int, ...]:
    adapter = model if model in engine.adapters else None
    prompt = GenerationRequest(tokens, seed)
    return engine.generate([prompt], SamplingParams(12, temperature), adapter)[0].token_ids


def test_models_have_the_names_of_run_and_checkpoint(http: httpx2.Client, tiny: Path) -> None:
    cards = http.get("/v1/models").json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [(FIRST, "tiny"), (SECOND, "tiny"), ("tiny", None)]
    assert http.get(f"/v1/models/{SECOND}").json()["id"] == SECOND


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_tokens_are_those_of_the_engine_whatever_else_is_in_the_batch(
    http: httpx2.Client, engine: HFBackend, temperature: float
) -> None:
    """Twelve requests with three models and prompts of three lengths run together."""
    texts, models = [TEXT, "Hi.", "Zoey says that Oliver is a knave. " * 6], [FIRST, SECOND, "tiny"]
    jobs = [(texts[i % 3], models[i // 3 % 3], i) for i in range(12)]

    def request(job: tuple[str, str, int]) -> list[int]:
        text, model, seed = job
        body = {"model": model, "prompt": text, "seed": seed, "temperature": temperature, "max_tokens": 12}
        return list(choice(http, **body, return_token_ids=True)["token_ids"])

    with ThreadPoolExecutor(len(jobs)) as pool:
        answers = list(pool.map(request, jobs))
    for (text, model, seed), answer in zip(jobs, answers, strict=True):
        tokens = tuple(engine.tokenizer.encode(text))
        assert tuple(answer) == generate(engine, tokens, model, temperature, seed)
    assert len({tuple(answer) for answer in answers}) > 6


def test_a_conversation_has_the_prompt_of_training(http: httpx2.Client, engine: HFBackend) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [
        {"type": "text", "text": "What is "}, {"type": "text", "text": "1 + 1? <|im_end|>"}]}]  # fmt: skip
    answer = post(http, CHAT, model=SECOND, messages=messages, max_tokens=12, temperature=0, return_token_ids=True)
    prompt = ChatRenderer(engine.tokenizer, "Be brief.").initial_prompt("What is 1 + 1? <|im_end|>")
    assert tuple(answer["prompt_token_ids"]) == prompt
    (only,) = answer["choices"]
    assert tuple(only["token_ids"]) == generate(engine, prompt, SECOND, 0.0, 0)
    assert only["message"]["content"] == engine.tokenizer.decode(only["token_ids"])
    assert answer["usage"]["prompt_tokens"] == len(prompt)


def test_a_prompt_of_token_ids_is_completed_like_its_text(http: httpx2.Client, engine: HFBackend) -> None:
    tokens = engine.tokenizer.encode(TEXT)
    answer = post(http, COMPLETIONS, model=FIRST, prompt=[tokens, [5, 6]], max_tokens=8, seed=3, return_token_ids=True)
    assert [each["index"] for each in answer["choices"]] == [0, 1]
    assert answer["choices"][0]["text"] == choice(http)["text"]
    assert answer["choices"][0]["prompt_token_ids"] == tokens
    assert answer["usage"] == {"prompt_tokens": len(tokens) + 2, "completion_tokens": 16,
                               "total_tokens": len(tokens) + 18}  # fmt: skip


def test_the_first_of_several_choices_is_that_of_a_single_one(http: httpx2.Client) -> None:
    several = post(http, COMPLETIONS, model=FIRST, prompt=[TEXT, "Hi."], max_tokens=8, seed=3, n=3)["choices"]
    assert [each["index"] for each in several] == list(range(6))
    assert several[0]["text"] == choice(http)["text"]
    for prompt in range(2):  # both prompts have the same seeds
        assert len({each["text"] for each in several[3 * prompt : 3 * prompt + 3]}) == 3


def test_equal_prompts_without_a_seed_have_different_samples(http: httpx2.Client) -> None:
    body = {"model": FIRST, "prompt": [TEXT] * 3, "n": 2, "max_tokens": 8, "temperature": 5}
    assert len({each["text"] for each in post(http, COMPLETIONS, **body)["choices"]}) == 6


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_an_echoed_prompt_has_the_logprobs_of_backend_score(
    http: httpx2.Client, engine: HFBackend, max_tokens: int
) -> None:
    """What lm-eval requests for a log-likelihood."""
    tokens = engine.tokenizer.encode(TEXT)
    only = choice(http, prompt=[tokens], max_tokens=max_tokens, logprobs=1, echo=True, temperature=0,
                  return_token_ids=True)  # fmt: skip
    found = only["logprobs"]
    assert only["text"].startswith(TEXT) and only["finish_reason"] == "length"
    assert len(found["tokens"]) == len(found["text_offset"]) == len(tokens) + max_tokens
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    expected = engine.score([[*tokens, *only["token_ids"]]], FIRST)[0]
    assert found["token_logprobs"][1:] == pytest.approx(expected[1:], abs=1e-4)
    assert all(
        max(top.values()) >= logprob
        for top, logprob in zip(found["top_logprobs"][1:], found["token_logprobs"][1:], strict=True)
    )
    if max_tokens:  # the greedy token is the most likely one
        assert found["token_logprobs"][-1] == max(found["top_logprobs"][-1].values())


def test_a_chat_completion_names_the_most_likely_tokens(http: httpx2.Client) -> None:
    body = {"model": FIRST, "messages": HELLO, "max_tokens": 4, "temperature": 0}
    answer = post(http, CHAT, **body, logprobs=True, top_logprobs=3)["choices"][0]
    content = answer["logprobs"]["content"]
    assert len(content) == 4
    for token in content:
        assert [each["logprob"] for each in token["top_logprobs"]] == sorted(
            (each["logprob"] for each in token["top_logprobs"]), reverse=True
        )
        assert token["top_logprobs"][0]["token"] == token["token"] and len(token["top_logprobs"]) == 3
    assert post(http, CHAT, **body)["choices"][0]["logprobs"] is None


def test_the_chunks_of_a_stream_join_to_the_whole_response(http: httpx2.Client) -> None:
    body = {"model": SECOND, "messages": HELLO, "max_tokens": 120, "seed": 9, "n": 2, "logprobs": True}
    whole = post(http, CHAT, **body)
    *chunks, last = stream(http, CHAT, **body, stream_options={"include_usage": True})
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    for i, expected in enumerate(whole["choices"]):
        parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == i]
        assert parts[0]["delta"]["role"] == "assistant" and "role" not in parts[-1]["delta"]
        assert "".join(part["delta"]["content"] for part in parts) == expected["message"]["content"]
        assert [p["finish_reason"] for p in parts] == [None] * (len(parts) - 1) + [expected["finish_reason"]]
        tokens = [token["token"] for part in parts for token in part["logprobs"]["content"]]
        assert tokens == [token["token"] for token in expected["logprobs"]["content"]]
    assert len(chunks) > 4


def test_a_streamed_completion_echoes_its_prompt_once(http: httpx2.Client) -> None:
    chunks = stream(http, COMPLETIONS, model=FIRST, prompt=TEXT, max_tokens=60, seed=3, echo=True, logprobs=0)
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == choice(http, max_tokens=60, echo=True)["text"] and text.count(TEXT) == 1


def test_a_stop_string_ends_a_choice_and_is_not_part_of_it(http: httpx2.Client) -> None:
    text = choice(http, max_tokens=40)["text"]
    stop = text[10:13]
    only = choice(http, max_tokens=40, stop=stop)
    assert (only["text"], only["finish_reason"]) == (text[: text.index(stop)], "stop")
    chunks = stream(http, COMPLETIONS, model=FIRST, prompt=TEXT, max_tokens=40, seed=3, stop=["never", stop])
    parts = [chunk["choices"][0] for chunk in chunks]
    assert "".join(part["text"] for part in parts) == only["text"] and parts[-1]["finish_reason"] == "stop"


def test_a_run_alone_selects_all_its_checkpoints(run: Path) -> None:
    assert sorted(find_checkpoints([str(run)], None)) == [(run, "rl@2"), (run, "rl@4")]
    assert find_checkpoints([f"{run}@2", f"{run}/checkpoints/rl@4"], None) == [(run, "rl@2"), (run, "rl@4")]


def test_runs_with_other_base_models_cannot_share_a_server(run: Path, tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_model_run(other, tiny, ["rl@2"])
    (other / "config.yaml").write_text((other / "config.yaml").read_text().replace(str(tiny), "smollm2-135m"))
    with pytest.raises(ConfigError, match="one base model"):
        find_models([(run, "2"), (other, "2")], base=False)
    with pytest.raises(ConfigError, match="the same name"):
        find_models([(run, "2"), (run, "rl@2")], base=False)
    with pytest.raises(ConfigError, match="rl@2, rl@4"):
        find_models([(run, "7")], base=False)
