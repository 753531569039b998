"""Attacks on the server: other sites, foreign names, frames, other people's files, messages without end."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from stub_routes import QUEUE

from app.common.context import Context
from app.web.program_access import ProgramAccess
from app.web.security import (
    MAX_UPLOAD_BYTES,
    UPLOAD_ROUTE,
    Security,
    ServerError,
    check_binding,
    host_name,
    is_loopback,
    load_secret,
    own_names,
)
from app.web.server import create_app
from jobs.db.models import Run
from jobs.db.queries import runs, tokens
from jobs.workspace import Workspace

Maker = Callable[..., TestClient]
CHANGES = (
    QUEUE,
    "/gradio_api/queue/join",
    "/gradio_api/run/predict",
    "/gradio_api/upload",
    "/gradio_api/reset",
)
PAUSE = {"on": False}
OWN_ORIGIN = {"Origin": "http://127.0.0.1:7860"}


@pytest.fixture
def client(site: Any) -> TestClient:
    """A page of ours, asking the whole app."""
    return site.page


@pytest.fixture
def stranger(site: Any) -> TestClient:
    """A program that knows the address and nothing else."""
    return site.stranger


@pytest.fixture
def context(site: Any) -> Context:
    """What the whole app is over."""
    return site.context


@pytest.fixture
def workspace(site: Any) -> Workspace:
    """Its folders."""
    return site.context.workspace


def paused(context: Context) -> bool:
    return context.queue.paused


# -- the cookie ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", CHANGES)
def test_nothing_is_changed_without_the_cookie(stranger: TestClient, context: Context, path: str) -> None:
    answer = stranger.post(path, json=PAUSE, headers=OWN_ORIGIN)
    assert answer.status_code == 403
    assert "cookie" in answer.text and "rl2f token new" in answer.text and not paused(context)


def test_a_page_sets_the_cookie_that_permits_its_changes(stranger: TestClient, context: Context) -> None:
    cookie = stranger.get("/").headers["set-cookie"]
    assert "SameSite=Strict" in cookie and "HttpOnly" in cookie
    assert stranger.post(QUEUE, json=PAUSE, headers=OWN_ORIGIN).json() == {"paused": True}
    assert paused(context)


def test_a_wrong_cookie_permits_nothing(client: TestClient, context: Context) -> None:
    name = next(iter(client.cookies))
    client.cookies.clear()
    client.cookies.set(name, "0" * 64)
    assert client.post(QUEUE, json=PAUSE).status_code == 403
    assert client.get("/config").status_code == 403 and not paused(context)


def test_a_change_names_its_origin(client: TestClient, context: Context) -> None:
    del client.headers["Sec-Fetch-Site"]
    answer = client.post(QUEUE, json=PAUSE)
    assert answer.status_code == 403 and "origin" in answer.text and not paused(context)
    assert client.post(QUEUE, json=PAUSE, headers={"Sec-Fetch-Site": "none"}).status_code == 403
    assert client.post(QUEUE, json=PAUSE, headers=OWN_ORIGIN).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/config",
        "/gradio_api/heartbeat/x",
        "/gradio_api/queue/data?session_hash=x",
        "/gradio_api/file=x",
        "/exports/a/b",
    ],
)
def test_data_is_not_read_without_the_cookie(stranger: TestClient, path: str) -> None:
    assert stranger.get(path).status_code == 403
    assert stranger.get(path.replace("/c", "/%63").replace("_", "%5F").replace("/e", "/%65")).status_code == 403


def test_the_secret_outlives_a_restart_and_nobody_else_may_read_its_file(tmp_path: Path) -> None:
    first = load_secret(tmp_path / "secret")
    assert load_secret(tmp_path / "secret") == first and len(first) >= 32
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
    (tmp_path / "secret").write_bytes(b"")
    with pytest.raises(ServerError, match="Remove it"):
        load_secret(tmp_path / "secret")


# -- other sites -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8000"},
        {"Origin": "http://127.0.0.1.evil.example:7860"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ],
)
@pytest.mark.parametrize("path", CHANGES)
def test_a_request_of_another_site_changes_nothing_even_with_the_cookie(
    client: TestClient, context: Context, headers: dict[str, str], path: str
) -> None:
    answer = client.post(path, json=PAUSE, headers=headers)
    assert answer.status_code == 403 and "another site" in answer.text
    assert not paused(context)


def test_the_same_origin_may_change_things(client: TestClient) -> None:
    headers = {"Origin": "http://127.0.0.1:7860", "Sec-Fetch-Site": "same-origin"}
    assert client.post(QUEUE, json=PAUSE, headers=headers).status_code == 200


def test_another_site_may_link_here_but_embed_nothing(client: TestClient) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=link).status_code == 200
    for mode, dest in (("navigate", "iframe"), ("no-cors", "script"), ("no-cors", "image"), ("cors", "empty")):
        foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
        assert client.get(QUEUE, headers=foreign).status_code == 403


def test_no_answer_lets_other_origins_read_it(client: TestClient) -> None:
    answer = client.get("/config", headers={"Origin": "http://127.0.0.1:7860"})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.lower().startswith("access-control-allow-origin")]


@pytest.mark.parametrize("path", ["/", "/run", QUEUE, "/test/nothing", "/static/theme.css", "/config", "/nowhere"])
def test_every_answer_forbids_framing_and_guessing_of_types(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_only_scripts_of_the_page_run(client: TestClient) -> None:
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    (nonce,) = re.findall(r"'nonce-([^']+)'", policy)
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    tags = re.findall(r"<script[^>]*>", page.text)
    assert len(tags) > 3 and all(f'nonce="{nonce}"' in tag for tag in tags)
    assert nonce not in client.get("/").text


# -- names -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "", "localhost.evil", "[::2]:7860"]
)
@pytest.mark.parametrize("path", ["/", QUEUE, "/static/theme.css", "/config"])
def test_a_foreign_host_name_is_refused(client: TestClient, host: str, path: str) -> None:
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 421 and "does not answer to the name" in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "LOCALHOST:7860", "[::1]:7860", "localhost:9000"])
def test_loopback_names_are_answered_also_through_a_tunnel(client: TestClient, host: str) -> None:
    assert client.get(QUEUE, headers={"Host": host}).status_code == 200


def test_a_name_given_at_the_start_is_answered(context: Context, make_client: Maker) -> None:
    client = make_client(context, names=["Studio.lab.example"])
    assert client.get(QUEUE, headers={"Host": "studio.lab.example"}).status_code == 200


def test_names_are_read_without_port_and_brackets() -> None:
    assert [host_name(h) for h in ("A:1", "[::1]:2", "b", " c:3 ")] == ["a", "::1", "b", "c"]
    assert is_loopback("127.8.9.1") and is_loopback("::1") and not is_loopback("0.0.0.0") and not is_loopback("lab")
    assert own_names("10.1.2.3") == {"localhost", "127.0.0.1", "::1", "10.1.2.3"}
    assert len(own_names("0.0.0.0")) > 4


# -- files -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def treasures(workspace: Workspace) -> Iterator[dict[str, Path]]:
    """Files that must stay inside, and one that may go out."""
    run = workspace.folder("1-x")
    (run / "checkpoints" / "rl@1").mkdir(parents=True, exist_ok=True)
    found = {
        "database": workspace.database,
        "secret": workspace.root / "secret",
        "weights": run / "checkpoints" / "rl@1" / "adapter_model.safetensors",
        "backup": workspace.backups / "rl2f-1.sqlite",
        "passwd": Path("/etc/passwd"),
        "source": Path(__file__).resolve(),
    }
    found["weights"].write_bytes(b"bytes of the weights")
    found["backup"].write_bytes(b"bytes of the backup")
    (workspace.exports / "set.jsonl").write_text("{}\n")
    yield found


@pytest.mark.parametrize("what", ["database", "secret", "weights", "backup", "passwd", "source"])
def test_gradio_hands_out_no_file_beyond_the_exports(
    client: TestClient, treasures: dict[str, Path], workspace: Workspace, what: str
) -> None:
    target = treasures[what]
    assert target.is_file()
    around = f"{workspace.exports}/{'../' * 40}{str(target).lstrip('/')}"
    for path in (str(target), around, around.replace("..", "%2e%2e"), around.replace("/", "%2F"), f"//{target}"):
        for route in ("/gradio_api/file=", "/gradio_api/file/", "/file="):
            answer = client.get(route + path)
            assert answer.status_code in (403, 404), (route + path, answer.status_code)
            assert target.read_bytes()[:40] not in answer.content


def test_an_export_may_be_fetched(client: TestClient, treasures: dict[str, Path], workspace: Workspace) -> None:
    answer = client.get(f"/gradio_api/file={workspace.exports / 'set.jsonl'}")
    assert answer.status_code == 200 and answer.text == "{}\n"


@pytest.mark.parametrize(
    "path", ["../security.py", "%2e%2e/security.py", "..%2fsecurity.py", "....//security.py", "%00"]
)
@pytest.mark.parametrize("route", ["/static/", "/assets/", "/svelte/", "/gradio_api/file=exports/"])
def test_static_routes_do_not_leave_their_folders(client: TestClient, route: str, path: str) -> None:
    answer = client.get(route + path)
    assert answer.status_code in (400, 403, 404) and "hmac" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/proxy=http://169.254.169.254/",
        "/monitoring",
        "/gradio_api/token",
        "/gradio_api/run-history/buckets",
        "/gradio_api/vibe-code/",
        "/gradio_api/startup-events",
        "/gradio_api/dev/reload",
        "/gradio_api/deep_link?session_hash=x",
        "/gradio_api/%70roxy=http://169.254.169.254/",
    ],
)
def test_routes_of_gradio_that_nothing_uses_do_not_exist(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_a_file_from_another_machine_is_not_fetched(client: TestClient) -> None:
    answer = client.get("/gradio_api/file=http://169.254.169.254/latest")
    assert answer.status_code in (400, 403, 404)


# -- size ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", [path for path in CHANGES if path != UPLOAD_ROUTE])
def test_a_message_of_five_megabytes_gets_a_plain_answer(client: TestClient, path: str) -> None:
    answer = client.post(path, content=b"x" * 5_000_000, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "too large" in answer.text and "2 MB" in answer.text


def test_only_an_upload_may_have_twenty_mebibytes(client: TestClient) -> None:
    answer = client.post(UPLOAD_ROUTE, files={"files": ("a.csv", b"x" * 5_000_000)})
    assert answer.status_code == 200 and answer.json()[0].endswith("a.csv")
    answer = client.post(UPLOAD_ROUTE, files={"files": ("a.csv", b"x" * (MAX_UPLOAD_BYTES + 1))})
    assert answer.status_code == 413 and "at most 21 MB" in answer.text


def test_a_message_without_a_length_is_counted_as_it_comes(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(50):
            yield b"x" * 100_000

    answer = client.post(QUEUE, content=pieces(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413 and "Send less at once." in answer.json()["detail"]


# -- words of others -------------------------------------------------------------------------------------------------
def test_html_in_a_name_stays_text(client: TestClient, context: Context) -> None:
    name = "<img src=x onerror=alert(1)>\"'</script>"
    run = runs.add(context.db, Run(name=name, kind="eval", status="failed", folder="1-x", detail=name))
    answer = client.get(QUEUE)
    assert answer.headers["content-type"].startswith("application/json")
    assert name in answer.json()["runs"]
    missing = client.get(f"/{name}", headers={"Accept": "text/html"})
    assert missing.status_code == 404 and "<img src=x" not in missing.text and "&lt;img" in missing.text
    assert "<img src=x" not in client.get(f"/run?run={run.id}&x={name}").text


# -- password --------------------------------------------------------------------------------------------------------
def basic(password: str, user: str = "me") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "lab.example"])
def test_beyond_loopback_the_app_is_not_made_without_a_password(context: Context, host: str) -> None:
    with pytest.raises(ServerError, match="--password-env"):
        create_app(context, host, 7860)
    with pytest.raises(ServerError, match="needs a password"):
        check_binding(host, "")
    with pytest.raises(ServerError, match="at least 12 characters"):
        check_binding(host, "x" * 11)
    check_binding(host, "x" * 12)
    check_binding("127.0.0.1", None)


@pytest.mark.parametrize(
    "path", ["/", QUEUE, "/static/theme.css", "/config", "/assets/x.js", "/gradio_api/file=x", "/nowhere"]
)
def test_every_route_asks_for_the_password(context: Context, make_client: Maker, path: str) -> None:
    client = make_client(context, password="köse:1")
    for headers in (
        {},
        basic("wrong"),
        basic(""),
        {"Authorization": "Basic !!"},
        {"Authorization": "Bearer köse:1".encode()},
    ):
        answer = client.get(path, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic")
    assert client.get(path, headers=basic("köse:1")).status_code != 401


def test_the_password_does_not_replace_the_cookie(context: Context, make_client: Maker) -> None:
    client = make_client(context, secret=False, password="p")
    assert client.post(QUEUE, json=PAUSE, headers=basic("p") | OWN_ORIGIN).status_code == 403


def test_a_token_replaces_the_password_for_calls_only(context: Context, make_client: Maker) -> None:
    client = make_client(context, secret=False, password="p")
    bearer = {"Authorization": f"Bearer {tokens.create(context.db, ['read'])[1]}"}
    assert client.get("/gradio_api/info", headers=bearer).status_code == 404  # permitted; there are no pages here
    assert client.get(QUEUE, headers=bearer).status_code == 403
    assert client.post(QUEUE, json=PAUSE, headers=bearer | OWN_ORIGIN).status_code == 403


def test_a_web_socket_is_closed(context: Context) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("nothing behind the middleware is reached")

    guard = Security(app, secret=b"s" * 40, port=1, programs=ProgramAccess(context.db))
    with pytest.raises(WebSocketDisconnect) as closed, TestClient(guard).websocket_connect("/"):
        pass
    assert closed.value.code == 1008
