"""Language models behind one interface: what an endpoint may do wrong is a value, and the key stays where it is."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from openai_server import FakeEndpoint, Say, in_turn, serving
from pydantic import ValidationError

from rl2f_core import registry
from rl2f_core.errors import ConfigError
from rl2f_core.models.backends import concurrency
from rl2f_core.models.backends.fake import FakeBackend
from rl2f_core.models.backends.model_pool import ModelPool
from rl2f_core.models.llms import openai_api
from rl2f_core.models.llms.base import ChatModel, ChatRequest, Completion
from rl2f_core.models.llms.disk_cache import DiskCache, key_of
from rl2f_core.models.llms.local import LocalModel
from rl2f_core.models.llms.openai_api import OpenAICompatible
from rl2f_core.models.llms.protocol import RequestError, read_reply
from rl2f_core.models.llms.rate_limit import CircuitBreaker, RateLimiter

KEY = "sk-test-5ecret-0123456789"


@pytest.fixture(autouse=True)
def _fast_and_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setenv("RL2F_HOME", str(tmp_path / "home"))


def model(endpoint: FakeEndpoint, **changes: Any) -> OpenAICompatible:
    return OpenAICompatible(OpenAICompatible.Config(**{"base_url": endpoint.url, "model": "m", **changes}))


def request(text: str = "Hello", seed: int = 1) -> ChatRequest:
    return ChatRequest(({"role": "user", "content": text},), seed)


def ask(held: ChatModel, *requests: ChatRequest) -> list[Completion]:
    return held.complete(requests or (request(),), max_new_tokens=16, temperature=0.5)


# -- the contract --------------------------------------------------------------------------------------------------
def check_llm(held: ChatModel) -> None:
    """One answer for each conversation, in order, whatever the company; what cannot be had is a value."""
    asked = [request(f"Say {n}. {mark}", n) for n, mark in enumerate(["", "<|im_end|>", "x" * 50])]
    said = ask(held, *asked)
    assert len(said) == 3 and held.name and held.complete([], max_new_tokens=8, temperature=1.0) == []
    for completion in said:
        assert (completion.error is None) == bool(completion.text) == (completion.finish_reason != "error")
    again = ask(held, *asked[::-1])[::-1]
    assert [(c.text, c.finish_reason) for c in again] == [(c.text, c.finish_reason) for c in said]


@pytest.mark.parametrize("name", registry.names("llm"))
def test_every_language_model_fulfills_the_contract(name: str) -> None:
    held: Any = registry.get("llm", name)
    if name != "openai_api":
        check_llm(held(held.Config(), ModelPool(FakeBackend())))
        return
    with serving(lambda n, body: Say(body["messages"][0]["content"][:8])) as endpoint:
        check_llm(model(endpoint))


def test_a_local_model_returns_an_error_only_for_conversations_that_are_too_long() -> None:
    with pytest.raises(ConfigError, match="No local model is loaded"):
        LocalModel(LocalModel.Config())
    backend = FakeBackend(FakeBackend.Config(replies=("Look again.",), max_model_len=200))
    held = LocalModel(LocalModel.Config(), ModelPool(backend))
    short, long = ask(held, request("Hi <|im_end|> there"), request("x" * 300))
    assert short.text == "Look again." and short.error is None and short.usage.completion_tokens == 12
    assert long.text == "" and "do not fit the context" in (long.error or "")
    assert backend.seen[0].count("<|im_end|>") == 1  # the marker in the message is not one


# -- what is sent and what comes back ------------------------------------------------------------------------------
def test_request_body_usage_and_cost() -> None:
    with serving(in_turn(Say(" Look at the tens. \n", usage=(1000, 50)))) as endpoint:
        held = model(endpoint, usd_per_million_prompt=2.0, usd_per_million_completion=8.0, extra={"top_p": 0.9})
        (said,) = ask(held, request(seed=2**40 + 5))
    assert (said.text, said.finish_reason, said.error) == ("Look at the tens.", "stop", None)
    assert (said.usage.prompt_tokens, said.usage.completion_tokens, said.usage.requests) == (1000, 50, 1)
    assert said.usage.cost == pytest.approx(2.0 * 1000 / 1e6 + 8.0 * 50 / 1e6) and said.usage.cached is False
    (body,) = endpoint.requests
    assert body == {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16,
                    "temperature": 0.5, "seed": 5, "stream": False, "top_p": 0.9}  # fmt: skip
    assert "authorization" not in endpoint.headers[0]
    with serving(in_turn(Say("Look.", usage=(0, 0)))) as endpoint:
        assert ask(model(endpoint, usd_per_million_prompt=2.0))[0].usage.cost is None, "a price of nobody knows what"


def test_only_equal_requests_are_answered_from_the_cache() -> None:
    with serving(lambda n, body: Say(f"Number {n}.")) as endpoint:
        first = ask(model(endpoint, usd_per_million_prompt=1.0))[0]
        again = ask(model(endpoint, usd_per_million_prompt=1.0))[0]
        assert (again.text, again.usage.cached, again.usage.requests, again.usage.cost) == (first.text, True, 0, 0.0)
        assert again.usage.completion_tokens == first.usage.completion_tokens == 7
        others = [
            ask(model(endpoint), request(seed=2)),
            ask(model(endpoint), request("Hallo")),
            ask(model(endpoint, cache=False)),
            model(endpoint).complete([request()], max_new_tokens=17, temperature=0.5),
            model(endpoint).complete([request()], max_new_tokens=16, temperature=0.6),
            ask(model(endpoint, extra={"top_p": 0.5})), ask(model(endpoint, base_url=endpoint.url + "/")),
        ]  # fmt: skip
        assert [said[0].text for said in others[:-1]] == [f"Number {n}." for n in range(1, 7)]
        assert others[-1][0].usage.cached  # the same address, written otherwise
    assert ask(model(endpoint))[0].text == "Number 0."  # the endpoint is gone, its words are not


def test_a_reply_without_schema_support_is_cached_under_its_schema() -> None:
    def script(number: int, body: dict[str, Any]) -> Say:
        return Say(status=400) if "response_format" in body else Say("plain")

    asked = ChatRequest(({"role": "user", "content": "Hello"},), 1, {"type": "object"})
    with serving(script) as endpoint:
        assert ask(model(endpoint), asked)[0].text == "plain" and not ask(model(endpoint), asked)[0].usage.requests
        other = model(endpoint, retries=1)  # another connection, which has not seen the refusal
        assert ask(other, asked)[0].usage.cached and len(endpoint.requests) == 2
        assert not ask(model(endpoint))[0].usage.cached


def test_failures_are_not_cached() -> None:
    with serving(in_turn(Say(status=400), Say("Now."))) as endpoint:
        held = model(endpoint)
        assert [ask(held)[0].error is None, ask(held)[0].text] == [False, "Now."]


def test_an_unusable_cache_stores_nothing(tmp_path: Path) -> None:
    broken, file = tmp_path / "broken", tmp_path / "file"
    broken.mkdir()
    (broken / "cache.db").write_bytes(b"no database" * 100)
    file.touch()
    for path in (broken, file, file / "below"):
        cache = DiskCache(path)
        cache.put("k", {"text": "x"})
        assert cache.get("k") is None
    cache, other = DiskCache(tmp_path / "c"), DiskCache(tmp_path / "c")
    cache.put("k", {"text": "half a pair \ud83d"})
    other.put("k", {"text": "second"})
    assert other.get("k") == {"text": "half a pair \ud83d"}  # what is held stays: all read the same
    assert (tmp_path / "c").stat().st_mode & 0o077 == 0
    assert key_of(a=1, b="\ud83d") == key_of(b="\ud83d", a=1) != key_of(a=1, b="x")


def test_a_lone_surrogate_is_sent_as_a_question_mark() -> None:
    with serving(in_turn(Say("Hm."))) as endpoint:
        assert ask(model(endpoint), request("half a pair \ud83d"))[0].text == "Hm."
        assert endpoint.requests[0]["messages"][0]["content"] == "half a pair ?"


def test_sdk_settings_in_the_environment_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"X-Mine: {KEY}")
    with serving(in_turn(Say("Hm."))) as endpoint:
        assert ask(model(endpoint))[0].text == "Hm."
    (headers,) = endpoint.headers
    assert set(headers) == {"host", "connection", "user-agent", "content-type", "content-length", "accept",
                            "accept-encoding"} and KEY not in str(headers)  # fmt: skip


def test_a_cancelled_caller_does_not_wait_for_its_message() -> None:
    asked, released = threading.Event(), threading.Event()

    def script(number: int, body: dict[str, Any]) -> Say:
        asked.set()
        released.wait(20)
        return Say("Too late.")

    with serving(script) as endpoint:
        held, ended = model(endpoint), threading.Event()

        def work() -> None:
            try:
                ask(held)
            finally:
                ended.set()

        with concurrency.CooperativeLock() as company:
            company.spawn(work)
            company.yield_lock()
            assert asked.wait(20)
        assert ended.wait(20)
        released.set()


# -- what goes wrong -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "bad",
    [Say(status=429, headers=(("retry-after", "0"),)), Say(status=500, raw=b"<html>oops"), Say(status=503),
     Say("x" * 99, cut=True), Say(raw=b"data: {half"), Say(raw=b'{"choices": []}'), Say(raw=b"[]"),
     Say(raw=b'{"error": {"message": "busy"}}'), Say(reset=True), Say("late", delay=1.5)],
    ids=lambda s: f"{s.status}{'-cut' * s.cut}{'-reset' * s.reset}{'-slow' * bool(s.delay)}-{s.raw!r:.16}",
)  # fmt: skip
@pytest.mark.slow
def test_transient_failures_are_retried(bad: Say) -> None:
    patience = 0.7 if bad.delay else 60.0
    with serving(in_turn(bad, bad, Say("At last."))) as endpoint:
        (said,) = ask(model(endpoint, read_timeout=patience))
        assert (said.text, said.error, said.usage.requests) == ("At last.", None, 3)
    with serving(in_turn(bad)) as endpoint:
        (said,) = ask(model(endpoint, retries=1, read_timeout=patience))
        assert said.text == "" and said.finish_reason == "error" and (said.error or "").endswith("After 2 tries.")
        assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (Say(status=401, raw=b'{"error": {"message": "bad key sk-test-5ecret-0123456789"}}'), "bad key [key]"),
        (Say(status=403), "may not"),
        (Say(status=404, raw=b"no model m"), "the path or model does not exist (no model m)"),
        (Say(status=400, raw=b"\xff\x00\x1b[31m"), "HTTP 400"),
        (Say(status=302, headers=(("location", "http://elsewhere.example/v1"),)), "redirects to http://elsewhere"),
        (Say(""), "empty message"),
        (Say("", finish="length"), "raise max_new_tokens"),
        (Say("x", finish="content_filter"), "content filter"),
        (Say(raw=b'{"choices":[{"message":{"content":null,"tool_calls":[{"id":"1"}]}}]}'), "called a tool"),
        (Say(raw=b'{"choices":[{"message":{"content":null,"refusal":"I will not"}}]}'), "refused: I will not"),
        (Say(raw=b'"' + b"x" * 3000 + b'"'), "longer than 2000 bytes"),
    ],
)  # fmt: skip
def test_permanent_failures_are_not_retried(bad: Say, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_API_KEY", KEY)
    with serving(in_turn(bad, Say("never asked"))) as endpoint:
        (said,) = ask(model(endpoint, api_key_env="TEST_API_KEY", max_response_bytes=2000))
        assert said.text == "" and why in (said.error or "") and KEY not in (said.error or "")
        assert len(endpoint.requests) == 1 and endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
        assert (said.error or "").isprintable()


def test_content_parts_are_joined_and_reasoning_is_ignored() -> None:
    parts = [{"type": "text", "text": "Look "}, {"type": "image"}, {"type": "text", "text": "again."}]
    held = {
        "choices": [{"message": {"content": parts, "reasoning_content": "the answer is 42"}, "finish_reason": None}]
    }
    assert read_reply(json.dumps(held).encode()).text == "Look again."
    held["choices"][0]["message"]["content"] = "half a pair \ud83d"  # type: ignore[assignment]
    assert read_reply(json.dumps(held).encode()).text == "half a pair ?"
    odd = {**held, "usage": {"prompt_tokens": -5, "completion_tokens": "many"}}
    reply = read_reply(json.dumps(odd).encode())
    assert (reply.prompt_tokens, reply.completion_tokens) == (0, 0)
    with pytest.raises(RequestError, match="not JSON"):
        read_reply(b"[" * 100_000)


def test_retry_after_is_respected_up_to_a_limit() -> None:
    with serving(in_turn(Say(status=429, headers=(("retry-after", "0.3"),)), Say("Now."))) as endpoint:
        began = time.monotonic()
        assert ask(model(endpoint))[0].text == "Now." and time.monotonic() - began >= 0.3
    with serving(in_turn(Say(status=429, headers=(("retry-after", "3600"),)))) as endpoint:
        began = time.monotonic()
        (said,) = ask(model(endpoint, total_timeout=60.0))
        assert "too many requests" in (said.error or "") and time.monotonic() - began < 10


def test_the_total_timeout_ends_a_call() -> None:
    with serving(in_turn(Say("late", delay=2.0))) as endpoint:
        (said,) = ask(model(endpoint, total_timeout=0.2))
    assert said.error == "The total timeout expired: the reply was too slow." and said.usage.requests == 1


def test_the_breaker_blocks_a_failing_endpoint_and_retries_later() -> None:
    back = threading.Event()
    with serving(lambda n, body: Say("Here again.") if back.is_set() else Say(status=500)) as endpoint:
        held = model(endpoint, retries=1, concurrency=1, breaker_failures=2, cache=False)
        now = [0.0]
        held.endpoint.breaker._clock = lambda: now[0]
        said = ask(held, *(request(seed=n) for n in range(20)))
        assert len(endpoint.requests) == 4  # two messages with two tries each, then nobody asks
        assert all(c.error for c in said) and (said[-1].error or "").startswith(
            "Request skipped: 2 requests in a row failed"
        )
        assert "HTTP 500" in (said[-1].error or "") and said[-1].usage.requests == 0
        now[0] += 31
        assert ask(held)[0].error and len(endpoint.requests) == 5  # one try finds that it is still down
        back.set()
        now[0] += 31
        assert [c.text for c in ask(held, request(), request())] == ["Here again."] * 2


def test_the_breaker_and_the_rate_limiter_follow_the_clock() -> None:
    now = [100.0]
    breaker = CircuitBreaker(2, 30, lambda: now[0])
    breaker.record_failure("a")
    breaker.record_success()
    breaker.record_failure("a")
    assert breaker.state() == "closed"
    breaker.record_failure("b")
    assert breaker.state() == "open" and breaker.refusal().endswith("next try in 30 s. b")
    now[0] += 31
    assert breaker.state() == "trial"
    breaker.record_failure("c")
    assert breaker.state() == "open"
    pacer = RateLimiter(60, 600, lambda: now[0])  # a request a second, ten tokens a second
    assert [pacer.reserve(10), pacer.reserve(30), pacer.reserve(1)] == [0.0, 1.0, 4.0]
    pacer.correct_estimate(30, 10)
    now[0] += 10
    assert pacer.reserve(1) == 0.0
    free = RateLimiter(None, None, lambda: now[0])
    assert [free.reserve(10_000) for _ in range(3)] == [0.0, 0.0, 0.0]


def test_replies_are_in_order_and_concurrency_is_limited() -> None:
    busy, most = [0], [0]
    lock = threading.Lock()

    def script(number: int, body: dict[str, Any]) -> Say:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        time.sleep(0.02 * (number % 3))
        with lock:
            busy[0] -= 1
        return Say(body["messages"][0]["content"])

    with serving(script) as endpoint:
        said = ask(model(endpoint, concurrency=3), *(request(f"text {n}") for n in range(12)))
    assert [c.text for c in said] == [f"text {n}" for n in range(12)] and 2 <= most[0] <= 3


def test_errors_about_a_missing_or_invalid_key_do_not_contain_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(in_turn(Say("x"))) as endpoint:
        held = model(endpoint, api_key_env="TEST_API_KEY")
        assert "TEST_API_KEY holds no key" in (ask(held)[0].error or "")
        monkeypatch.setenv("TEST_API_KEY", "sk-\nX-Evil: 1")
        (odd,) = ask(held)
        assert "characters no key has" in (odd.error or "") and not endpoint.requests and odd.usage.requests == 0


def test_a_key_in_a_reply_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_API_KEY", KEY)
    with serving(in_turn(Say(f"You sent {KEY}."))) as endpoint:
        assert ask(model(endpoint, api_key_env="TEST_API_KEY"))[0].text == "You sent [key]."
    cut = b"x" * (199 - len(KEY)) + KEY.encode() + b" is no key of ours"  # where an error is shortened
    for bad in (Say(status=401, raw=cut), Say(status=307, headers=(("location", f"http://{'x' * 60}/{KEY}/v1"),))):
        with serving(in_turn(bad)) as endpoint:
            (said,) = ask(model(endpoint, api_key_env="TEST_API_KEY", cache=False))
        assert said.error and "[key]" in said.error and KEY[:8] not in said.error
    held = b"".join(path.read_bytes() for path in (openai_api.cache_dir() / "llm" / "completions").iterdir())
    assert b"You sent [key]" in held and KEY.encode() not in held


@pytest.mark.parametrize(
    ("field", "value"),
    [("base_url", "ftp://x/v1"), ("base_url", "file:///etc/passwd"), ("base_url", "http://"),
     ("base_url", "http://a:b@x/v1"), ("api_key_env", "HOME"),
     ("base_url", "http://x/v1?key=1"), ("base_url", "http://x/ y"), ("base_url", "http://x:port/v1"),
     ("api_key_env", "AWS_SECRET_ACCESS_KEY"), ("extra", {"messages": []}), ("extra", {"stream": True})],
)  # fmt: skip
def test_invalid_endpoints_and_key_names_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        OpenAICompatible.Config(**{field: value})
