"""Access control of every published endpoint, over each route that calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from app.endpoints.endpoint import SCOPES
from app.endpoints.studio import Studio
from app.web.security import MAX_BODY_BYTES
from jobs.db.queries import tokens

Headers = dict[str, str]
ROUTES = ("run/{name}", "call/v2/{name}", "queue/join")
FOREIGN_ORIGIN = {"Origin": "http://evil.example"}
TOO_LARGE = b'{"data": ["' + b"x" * MAX_BODY_BYTES + b'"]}'


class Caller:
    """Calls every published endpoint by name and by number.

    Args:
        site: The whole app.
        numbers: The numbers of its endpoints.
    """

    def __init__(self, site: Any, numbers: dict[str, int]) -> None:
        self.site, self.numbers = site, numbers
        self.scopes = {name: scope for name, scope, _ in Studio(site.context).endpoints()}

    def token(self, *scopes: str) -> Headers:
        """Return the header of a new token."""
        return {"Authorization": f"Bearer {tokens.create(self.site.context.db, scopes)[1]}"}

    def call(
        self,
        client: TestClient,
        headers: Callable[[str], Headers],
        content: bytes | None = None,
        every_route: bool = False,
    ) -> dict[tuple[str, str], httpx2.Response]:
        """Return the response of each endpoint to a call with the headers for its scope, over one route in turn."""
        requests: dict[tuple[str, str], dict[str, Any]] = {}
        for i, (name, scope) in enumerate(self.scopes.items()):
            body = {"data": [], "fn_index": self.numbers[name], "session_hash": "session"}
            sent: dict[str, Any] = {"json": body} if content is None else {"content": content}
            for route in ROUTES if every_route else (ROUTES[i % len(ROUTES)],):
                path = f"/gradio_api/{route.format(name=name)}"
                requests[name, route] = {"url": path, "headers": headers(scope), **sent}
        return dict(zip(requests, post_all(client, [*requests.values()]), strict=True))


def post_all(client: TestClient, requests: Sequence[dict[str, Any]]) -> list[httpx2.Response]:
    """Return the responses to requests in order; a `TestClient` needs three times the time, most of it for threads."""

    async def post() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(client.app, raise_app_exceptions=False, client=("testclient", 50000))
        options: dict[str, Any] = {"headers": client.headers, "cookies": client.cookies, "base_url": client.base_url}
        async with httpx2.AsyncClient(transport=transport, trust_env=False, **options) as http:
            return [await http.post(**request) for request in requests]

    assert client.portal is not None
    return client.portal.call(post)


@pytest.fixture(scope="module")
def numbers(whole_site: Any) -> dict[str, int]:
    """The numbers of the endpoints in the whole app."""
    _, page = whole_site
    return {each["api_name"]: each["id"] for each in page.get("/config").json()["dependencies"]}


@pytest.fixture
def caller(site: Any, numbers: dict[str, int]) -> Caller:
    """Calls of the whole app."""
    caller = Caller(site, numbers)
    assert len(caller.scopes) > 100 and caller.scopes.keys() <= caller.numbers.keys()
    return caller


def assert_all_refused(responses: dict[tuple[str, str], httpx2.Response], status: int, reason: str) -> None:
    """Fail with the call whose response is not a refusal for this reason, or may be framed."""
    for call, response in responses.items():
        assert response.status_code == status and reason in response.json()["error"], (call, response.text[:200])
        assert response.headers["x-frame-options"] == "DENY", call
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"], call


def test_every_endpoint_refuses_a_foreign_host(caller: Caller) -> None:
    token = caller.token(*SCOPES)
    for client, headers in ((caller.site.stranger, token), (caller.site.page, {})):
        responses = caller.call(client, lambda _, headers=headers: {**headers, "Host": "rebound.example:7860"})
        assert_all_refused(responses, 421, "does not answer to the name")


def test_every_endpoint_refuses_a_foreign_origin_with_a_token_and_with_the_cookie(caller: Caller) -> None:
    token = caller.token(*SCOPES)
    for client, headers in ((caller.site.stranger, token), (caller.site.page, {})):
        responses = caller.call(client, lambda _, headers=headers: {**headers, **FOREIGN_ORIGIN})
        assert_all_refused(responses, 403, "from another site")


def test_every_endpoint_refuses_a_form_of_another_site_that_a_browser_sends_with_the_cookie(caller: Caller) -> None:
    responses = caller.call(caller.site.page, lambda _: {"Sec-Fetch-Site": "cross-site"})
    assert_all_refused(responses, 403, "from another site")
    del caller.site.page.headers["Sec-Fetch-Site"]
    assert_all_refused(caller.call(caller.site.page, lambda _: {}), 403, "does not name its origin")


def test_every_endpoint_refuses_a_call_without_cookie_and_token(caller: Caller) -> None:
    responses = caller.call(caller.site.stranger, lambda _: {"Sec-Fetch-Site": "same-origin"})
    assert_all_refused(responses, 403, "neither the cookie")


def test_every_endpoint_refuses_an_unknown_token(caller: Caller) -> None:
    responses = caller.call(caller.site.stranger, lambda _: {"Authorization": "Bearer rl2f_" + "x" * 43})
    delayed = {call: response for call, response in responses.items() if response.status_code == 429}
    assert len(responses) > len(delayed) > 0
    assert_all_refused(delayed, 429, "too many wrong passwords or tokens")
    rest = {call: response for call, response in responses.items() if call not in delayed}
    assert_all_refused(rest, 401, "unknown or was revoked")


def test_every_endpoint_refuses_a_token_of_all_other_scopes(caller: Caller) -> None:
    others = {scope: caller.token(*(each for each in SCOPES if each != scope)) for scope in SCOPES}
    responses = caller.call(caller.site.stranger, others.__getitem__, every_route=True)
    assert_all_refused(responses, 403, "needs the scope")


def test_every_endpoint_refuses_an_oversized_body(caller: Caller) -> None:
    token = caller.token(*SCOPES)
    for client, headers in ((caller.site.stranger, token), (caller.site.page, {})):
        responses = caller.call(client, lambda _, headers=headers: headers, TOO_LARGE)
        assert_all_refused(responses, 413, "too large")


@pytest.mark.parametrize(
    "prefix", ["%2e%2e", *(pytest.param(p, marks=pytest.mark.slow) for p in ("%252e%252e", "run%2f..", "call%5c.."))]
)
def test_no_endpoint_is_called_by_a_path_that_leaves_its_route(caller: Caller, prefix: str) -> None:
    token = caller.token(*SCOPES)
    paths = [f"/gradio_api/call/{prefix}/run/{name}" for name in caller.scopes]
    requests = [{"url": path, "headers": token, "json": {"data": []}} for path in paths]
    for path, response in zip(paths, post_all(caller.site.stranger, requests), strict=True):
        assert response.status_code == 403 and "does not permit" in response.text, path


def test_a_token_of_the_scope_is_accepted(caller: Caller) -> None:
    headers = caller.token("read")
    response = caller.site.stranger.post("/gradio_api/run/queue_status", headers=headers, json={"data": []})
    assert response.status_code == 200 and response.json()["data"][0]["read_only"] is False
    assert response.headers["x-frame-options"] == "DENY"
