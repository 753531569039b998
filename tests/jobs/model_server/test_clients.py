"""`rl2f serve-model` with a trained adapter of SmolLM2, used by OpenAI's client, lm-eval and Inspect.

The last two are in the extra `clients`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psutil
import pytest
from conftest import USER_HOME
from thread_calls import call_in_thread

from rl2f_core.common.paths import EXAMPLE_RUNS, ROOT

pytestmark = pytest.mark.slow
MODEL = "quickstart@rl2f@24"
QUESTION = [{"role": "user", "content": "Write the letter A."}]


class Endpoint(NamedTuple):
    url: str
    key: str
    folder: Path
    """Folder of the base model, with its tokenizer."""
    process: psutil.Process


@pytest.fixture(scope="module")
def endpoint(smollm2: Path) -> Iterator[Endpoint]:
    """The recorded example's adapter and its base model in a process of their own."""
    key = "secret of the test"
    env = {name: value for name, value in os.environ.items() if name != "RL2F_HOME"} | {"KEY": key}
    env |= {} if USER_HOME is None else {"RL2F_HOME": USER_HOME}
    command = [sys.executable, "-m", "app.cli", "serve-model", f"{EXAMPLE_RUNS / 'quickstart'}@24", "--base",
               "--port", "0", "--api-key-env", "KEY"]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    printed = ""
    for line in process.stderr:
        printed += line
        if line.startswith("Serving at "):
            break
    else:
        raise AssertionError(printed)
    yield Endpoint(line.split()[2], key, smollm2, psutil.Process(process.pid))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0


def test_the_official_client_works_unchanged(endpoint: Endpoint) -> None:
    import openai

    client = openai.OpenAI(base_url=endpoint.url, api_key=endpoint.key, max_retries=0)
    assert [model.id for model in client.models.list()] == [MODEL, "smollm2-135m"]
    options: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    text, found = whole.choices[0].message.content, whole.choices[0].logprobs
    assert text and found is not None and found.content is not None and len(found.content[0].top_logprobs) == 2
    with client.chat.completions.create(**options, stream=True) as chunks:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    completion = client.completions.create(model="smollm2-135m", prompt=[[28, 29], [30]], max_tokens=4, seed=1)
    assert [choice.index for choice in completion.choices] == [0, 1]
    with pytest.raises(openai.NotFoundError, match="smollm2-135m"):
        client.chat.completions.create(model="gpt", messages=QUESTION)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="a " * 9000)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=endpoint.url, api_key="wrong", max_retries=0).models.list()


def test_the_asynchronous_client_gets_the_same_answer_in_a_batch(endpoint: Endpoint) -> None:
    import openai

    # The next tokens are certain: with two almost equal logits, the bfloat16 rounding of the batch would decide.
    counting = "One, two, three, four, five,"

    async def ask(count: int) -> list[str]:
        async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key) as client:
            answers = await asyncio.gather(
                *(
                    client.completions.create(
                        model=[MODEL, "smollm2-135m"][i % 2], prompt=counting, max_tokens=8, temperature=0
                    )
                    for i in range(count)
                )
            )
        return [answer.choices[0].text for answer in answers]

    together = call_in_thread(asyncio.run, ask(8))
    assert together == call_in_thread(asyncio.run, ask(2)) * 4


def test_32_requests_together_have_four_times_the_throughput_of_one_at_a_time(endpoint: Endpoint) -> None:
    def measure(requests: int, concurrency: int) -> tuple[float, float]:
        """Return tokens per second, and CPU seconds of the server per token."""
        with httpx2.Client(headers={"Authorization": f"Bearer {endpoint.key}"}, timeout=600) as http:

            def complete(seed: int) -> int:
                body = {"model": MODEL, "prompt": f"{seed} days ago, in a small village", "max_tokens": 24}
                response = http.post(f"{endpoint.url}/completions", json={**body, "seed": seed})
                return int(response.json()["usage"]["completion_tokens"])

            start, cpu = time.perf_counter(), sum(endpoint.process.cpu_times()[:2])
            with ThreadPoolExecutor(concurrency) as pool:
                tokens = sum(pool.map(complete, range(requests)))
            seconds = time.perf_counter() - start
            return tokens / seconds, (sum(endpoint.process.cpu_times()[:2]) - cpu) / tokens

    measure(2, 2)  # warm up
    one, together, again = measure(2, 1), measure(32, 32), measure(2, 1)
    for name, (speed, cpu) in (("1", one), ("32", together), ("1", again)):
        print(f"{name} concurrent: {speed:.1f} tokens/s, {1000 * cpu:.1f} ms of CPU per token")
    assert together[0] >= 4 * max(one[0], again[0])


def test_lm_eval_scores_and_generates_through_completions(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: make setup-clients")
    monkeypatch.setenv("OPENAI_API_KEY", endpoint.key)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [
        {"question": "One, two, three, four,", "choices": [" five", " banana"], "answer": 0},
        {"question": "The capital of France is", "choices": [" seventeen", " Paris"], "answer": 1},
        {"question": "Monday, Tuesday, Wednesday,", "choices": [" Thursday", " purple"], "answer": 0},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {
        "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test", "doc_to_text": "{{question}}",
    }  # fmt: skip
    choose = {**source, "task": "choose", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}",
              "doc_to_target": "{{answer}}", "target_delimiter": ""}  # fmt: skip
    write = {**source, "task": "write", "output_type": "generate_until", "doc_to_target": "{{choices[answer]}}",
             "generation_kwargs": {"until": ["\n", ","], "max_gen_toks": 8},
             "metric_list": [{"metric": "exact_match"}]}  # fmt: skip
    results = call_in_thread(
        lm_eval.simple_evaluate,
        model="local-completions",
        model_args={"model": MODEL, "base_url": f"{endpoint.url}/completions", "tokenizer": str(endpoint.folder),
                    "num_concurrent": 3, "max_retries": 1},
        tasks=[choose, write],
        bootstrap_iters=0,
    )  # fmt: skip
    assert results["results"]["choose"]["acc,none"] == 1.0
    (sample, *_) = results["samples"]["choose"]
    assert all(logprob < 0 for ((logprob, _),) in sample["resps"])
    written = [sample["resps"][0][0] for sample in results["samples"]["write"]]
    assert all(text and "," not in text and "\n" not in text for text in written)


def test_inspect_evaluates_a_chat_task(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inspect_ai = pytest.importorskip("inspect_ai", reason="inspect-ai is not installed: make setup-clients")
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes

    monkeypatch.setenv("STUDIO_API_KEY", endpoint.key)
    monkeypatch.setenv("STUDIO_BASE_URL", endpoint.url)
    task = inspect_ai.Task(
        dataset=[Sample(input=f"Say the word {word}.", target="e") for word in ("tree", "bee", "seed")],
        scorer=includes(),
    )
    (log,) = call_in_thread(
        inspect_ai.eval,
        task, model=f"openai-api/studio/{MODEL}", log_dir=str(tmp_path), display="none",
        max_tokens=16, temperature=0.0, seed=1, logprobs=True, top_logprobs=1,
    )  # fmt: skip
    assert log.status == "success", log.error
    assert log.samples is not None and len(log.samples) == 3
    answer = log.samples[0].output
    assert answer.choices[0].logprobs is not None and answer.usage is not None and answer.usage.output_tokens > 0
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Say the word tree."}], "max_tokens": 16}
    reply = httpx2.post(f"{endpoint.url}/chat/completions", headers={"Authorization": f"Bearer {endpoint.key}"},
                        json={**asked, "temperature": 0}, timeout=120)  # fmt: skip
    assert reply.json()["choices"][0]["message"]["content"] == answer.completion
