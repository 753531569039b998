"""Doors for programs: MCP, `gradio_client`, plain HTTP, the audit log and the command line."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import httpx
import pytest
from export_builders import leaky_events, write_run
from json_endpoints import JsonEndpoints
from thread_calls import call_in_thread
from typer.testing import CliRunner
from web_server import serving_app
from workspace_copies import build_once

from app.cli import app
from app.common.context import Context
from app.endpoints.endpoint import operation_of
from app.endpoints.studio import Studio
from jobs.db.engine import Database
from jobs.db.models import AuditEntry
from jobs.db.queries import audit_log, runs, tokens
from jobs.db.queries.runs import RunFilter
from jobs.ingest.ingester import reindex
from jobs.queue.queue import Queue
from jobs.workspace import Workspace
from rl2f_core.common.paths import EXAMPLE_RUNS
from rl2f_core.errors import RL2FError

LIMIT = 8000
"""Bytes of an answer."""
EVENT = "dialogue:evaluation:base:hints:secret_code/test/0/0"
ARGUMENTS: dict[str, Any] = {
    "run": 1, "run_id": 1, "run_ids": [1], "event_id": EVENT, "turn": 0, "target": "next", "stage": "rl2f", "step": 1,
    "names": ["reward"], "trigger": "cron", "when": "0 2 * * *", "yaml": "kind: train", "data": {"kind": "train"},
    "checkpoints": ["base"], "arms": [{"hint": "empty"}], "text": "Look again.", "chat": 1, "file": "x.csv",
    "folder": "x", "name": "quickstart",
}  # fmt: skip
"""Values of required arguments."""
Call = Callable[..., Awaitable[Any]]


class Site(NamedTuple):
    """A running server over the example workspace."""

    context: Context
    url: str

    def token(self, *scopes: str, name: str = "") -> str:
        return tokens.create(self.context.db, scopes, name)[1]

    def talk(self, program: Callable[[Any], Awaitable[Any]], token: str = "") -> Any:
        """Return the result of `program(client)` with the official MCP client."""
        httpx2, mcp = pytest.importorskip("httpx2"), pytest.importorskip("mcp")
        from mcp.client.streamable_http import streamable_http_client

        headers = {"Authorization": f"Bearer {token or self.token('read')}"}

        async def talk() -> Any:
            async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
                async with mcp.Client(streamable_http_client(f"{self.url}/mcp", http_client=http)) as client:
                    return await program(client)

        return call_in_thread(asyncio.run, talk())

    def client(self, token: str | None) -> Any:
        """Return the official client of Gradio."""
        from gradio_client import Client

        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return Client(self.url, headers=headers, verbose=False, analytics_enabled=False)

    def post(self, path: str, body: object, token: str = "") -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or self.token('read')}"}
        return httpx.post(f"{self.url}/gradio_api/{path}", json=body, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    """The example workspace; nothing executes queued runs."""
    workspace = Workspace(tmp_path_factory.mktemp("clients") / "workspace").create()
    db = Database(workspace.database_url())
    db.migrate()
    shutil.copytree(EXAMPLE_RUNS / "quickstart", workspace.folder("quickstart"))
    reindex(db, workspace)
    yield Context(workspace, db, Queue(db, workspace))
    db.close()


@pytest.fixture(scope="module")
def studio(context: Context) -> Any:
    """Its endpoints."""
    return JsonEndpoints(Studio(context))


@pytest.fixture(scope="module")
def site(context: Context) -> Iterator[Site]:
    """A server with all endpoints and tools, and an empty page."""
    pytest.importorskip("mcp")
    from app.web.gradio_app import configure_gradio
    from app.web.page_registry import PageInfo
    from app.web.server import create_app

    configure_gradio(context.workspace.root / "cache")
    empty = ModuleType("empty")
    empty.build = lambda studio: None  # type: ignore[attr-defined]
    pages = [PageInfo("", "Empty", empty)]
    with serving_app(lambda port: create_app(context, "127.0.0.1", port, site_pages=pages, mcp=["all"])) as url:  # type: ignore[arg-type]
        yield Site(context, url)


# -- MCP: tools, size of answers, paging -----------------------------------------------------------------------------
def test_mcp_offers_at_most_30_tools_by_default_that_answer_within_8_kb(context: Context) -> None:
    pytest.importorskip("mcp")
    from app.web.server import create_app

    async def look(client: Any) -> Any:
        tools = (await client.list_tools()).tools
        return tools, await client.call_tool("list_chats", {}), await _sizes(client, tools[:31])

    with serving_app(lambda port: create_app(context, "127.0.0.1", port, site_pages=[], mcp=["default"])) as url:  # type: ignore[arg-type]
        site = Site(context, url)
        tools, other, sizes = site.talk(look, site.token("read", "run", "label"))
    assert 20 <= len(tools) <= 30 and {"list_runs", "launch_run", "label_hint"} <= {tool.name for tool in tools}
    assert other.is_error and "--mcp-tools default,chat" in other.content[0].text
    assert {name: size for name, size in sizes.items() if size > LIMIT} == {}


def test_mcp_toolsets_are_selected_by_an_option_and_an_unknown_one_is_refused(context: Context) -> None:
    pytest.importorskip("mcp")
    from app.web.server import create_app

    with pytest.raises(RL2FError) as refused:
        create_app(context, site_pages=[], mcp=["chatt"])  # type: ignore[arg-type]
    assert "'chatt'" in str(refused.value) and "chat, launch" in str(refused.value)
    assert "--mcp-tools" in CliRunner().invoke(app, ["serve", "--help"]).output


def _size(result: Any) -> int:
    return sum(len(block.text.encode()) for block in result.content)


async def _sizes(client: Any, tools: Sequence[Any]) -> dict[str, int]:
    """Return the size of an answer of each tool that changes nothing."""
    sizes = {}
    for tool in tools:
        if tool.annotations.read_only_hint:
            arguments = {name: ARGUMENTS.get(name) for name in tool.input_schema.get("required", [])}
            sizes[tool.name] = _size(await client.call_tool(tool.name, arguments))
    return sizes


@pytest.mark.slow
def test_mcp_every_reading_tool_answers_within_8_kb_on_the_example_workspace(site: Site) -> None:
    async def call_all(client: Any) -> dict[str, int]:
        return await _sizes(client, (await client.list_tools()).tools)

    sizes = site.talk(call_all)
    assert len(sizes) > 60 and {name: size for name, size in sizes.items() if size > LIMIT} == {}


async def _read_whole(client: Any, tool: str, arguments: dict[str, Any]) -> object:
    """Return a result that is read in parts, each of at most 8 kB."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error and _size(result) <= LIMIT
    whole: Any = [json.loads(result.content[0].text)]  # in a list, so that every part has a parent
    todo = [json.loads(block.text) for block in result.content[1:]]
    while todo:
        note = todo.pop()
        for omitted in note["omitted"]:
            more = await client.call_tool("read_result", {"result": note["result"], **_place(omitted)})
            assert not more.is_error and _size(more) <= LIMIT
            parent, key = whole, 0
            for name in omitted["part"].split("/")[1:]:
                name = name.replace("~1", "/").replace("~0", "~")
                parent, key = parent[key], int(name) if isinstance(parent[key], list) else name
            text = more.content[0].text
            if isinstance(parent[key], str):
                parent[key] += text
            elif isinstance(parent[key], list):
                parent[key] += json.loads(text)
            else:
                parent[key] |= json.loads(text)
            todo += [json.loads(block.text) for block in more.content[1:]]
    return whole[0]


def _place(omitted: dict[str, Any]) -> dict[str, Any]:
    return {"part": omitted["part"], "offset": omitted["offset"]}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("list_presets", {}),
        pytest.param("run_form", {"kind": "train"}, marks=pytest.mark.slow),
        ("run_evaluation", {"run_id": 1}),
        ("list_dialogues", {"limit": 60}),
    ],
    ids=["list_presets", "run_form", "run_evaluation", "list_dialogues"],
)
def test_mcp_paging_reaches_the_whole_result(site: Site, studio: Studio, tool: str, arguments: dict[str, Any]) -> None:
    whole = site.talk(lambda client: _read_whole(client, tool, arguments))
    function = next(function for name, _, function in studio.endpoints() if name == tool)
    assert whole == json.loads(json.dumps(operation_of(function).to_json(function(**arguments))))


def test_mcp_a_long_result_is_read_only_by_the_token_that_called_the_tool(site: Site) -> None:
    async def call(client: Any) -> Any:
        return json.loads((await client.call_tool("list_presets", {})).content[1].text)

    note = site.talk(call)
    steal = site.talk(lambda client: client.call_tool("read_result", {"result": note["result"], "offset": 1}))
    assert steal.is_error and "not stored" in steal.content[0].text


# -- enumerations ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("endpoint", "arguments", "known"),
    [
        ("list_dialogues", {"filter": {"phase": "evaluatoin"}}, "'evaluation'"),
        ("list_dialogues", {"filter": {"run": 1, "stage": "rl3f"}}, "rl2f, warmup"),
        ("list_dialogues", {"filter": {"stage": "rl3f"}}, "rl2f, warmup"),
        ("list_dialogues", {"filter": {"condition": "hintz"}}, "hints"),
        ("list_dialogues", {"filter": {"run": 1, "checkpoint": "rl2f@99"}}, "rl2f@24"),
        ("list_dialogues", {"filter": {"environment": "maz"}}, "maze"),
        ("list_dialogues", {"filter": {"level": "99 letters"}}, "2 letters"),
        ("adjacent_dialogue", {"run": 1, "event_id": EVENT, "target": "next", "filter": {"phase": "test"}}, "'train'"),
        ("adjacent_dialogue", {"run": 1, "event_id": EVENT, "target": "next", "filter": {"stage": "x"}}, "rl2f"),
        ("list_runs", {"kind": "trian"}, "train"),
        ("list_runs", {"environment": "maz"}, "maze"),
        ("list_runs", {"method": "rl3f"}, "rl2f"),
        ("list_runs", {"tag": "goood"}, "none"),
        ("list_runs", {"group": "zz"}, "group of runs"),
        ("list_run_groups", {"kind": "trian"}, "train"),
        ("list_run_groups", {"environment": "maz"}, "maze"),
        ("list_run_groups", {"method": "rl3f"}, "rl2f"),
        ("list_run_groups", {"tag": "goood"}, "none"),
        ("list_run_groups", {"group": "zz"}, "group of runs"),
        ("list_dialogues", {"filter": {"run": 1, "task": "zz"}}, "Unknown task"),
        ("list_dialogues", {"filter": {"group": "zz"}}, "Unknown group"),
        ("run_charts", {"run_id": 1, "names": ["rewrad"]}, "reward"),
        ("run_histogram", {"run_id": 1, "stage": "rl3f", "step": 1}, "rl2f"),
        ("compare_charts", {"run_ids": [1], "names": ["rewrad"]}, "reward"),
        ("compare_evaluations", {"run_ids": [1], "base": "1:rl2f@99"}, "1:rl2f@24"),
        ("next_hints_to_label", {"queue": {"environment": "maz"}}, "maze"),
        ("labeling_progress", {"queue": {"source": "77"}}, "run"),
        ("detector_report", {"environment": "maz"}, "maze"),
        ("unlock_test_set", {"annotator": "x", "environment": "maz"}, "maze"),
        ("recommend_detectors", {"benchmark": "handwriten"}, "handwritten"),
        ("count_export", {"run_ids": [1], "filter": {"stage": "rl3f"}}, "rl2f"),
        ("count_export", {"run_ids": [1], "filter": {"condition": "hintz"}}, "hints"),
        ("start_export", {"run_ids": [1], "settings": {"annotator": "nobody"}}, "none"),
        ("start_export", {"run_ids": [1], "settings": {"filter": {"checkpoint": "rl2f@99"}}}, "rl2f@24"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_unknown_value_of_an_enumeration_is_refused_with_the_known_ones(
    studio: Studio, endpoint: str, arguments: dict[str, Any], known: str
) -> None:
    with pytest.raises(RL2FError) as refused:
        next(function for name, _, function in studio.endpoints() if name == endpoint)(**arguments)
    assert known in str(refused.value)


def test_a_known_value_without_dialogues_is_an_empty_page(studio: Studio) -> None:
    assert studio.dialogues.list_dialogues({"run": 1, "stage": "rl2f", "step_from": 900})["rows"] == []
    assert studio.dialogues.list_dialogues({"run": 1, "condition": "no_oracle"})["rows"] == []


@pytest.mark.slow
def test_mcp_and_gradio_refuse_an_unknown_phase(site: Site) -> None:
    filter = {"phase": "evaluatoin"}
    refused = site.talk(lambda client: client.call_tool("list_dialogues", {"filter": filter}))
    assert refused.is_error and "'evaluation'" in refused.content[0].text
    with pytest.raises(Exception, match="'evaluation'"):
        site.client(site.token("read")).predict(filter=filter, api_name="/list_dialogues")


# -- gradio_client and plain HTTP ------------------------------------------------------------------------------------
def test_gradio_client_shows_why_a_token_is_refused(site: Site) -> None:
    with pytest.raises(Exception, match="API token is unknown or was revoked"):
        site.client("rl2f_" + "x" * 43)
    with pytest.raises(Exception, match="neither the cookie of this studio nor an API token"):
        site.client(None)


def test_gradio_client_shows_a_missing_scope_and_a_revoked_token(site: Site) -> None:
    client = site.client(site.token("read", name="reader"))
    with pytest.raises(Exception, match="pause_queue needs the scope run; the token 'reader' permits: read"):
        client.predict(api_name="/pause_queue")
    tokens.revoke(site.context.db, "reader")
    with pytest.raises(Exception, match="unknown or was revoked"):
        client.predict(api_name="/queue_status")


def test_gradio_client_shows_that_a_call_is_too_large(site: Site) -> None:
    with pytest.raises(Exception, match=r"too large: at most 0\.5 MB"):
        site.client(site.token("read")).predict(search="x" * 2_100_000, api_name="/list_runs")


def test_other_clients_receive_the_status_of_a_refusal(site: Site) -> None:
    assert site.post("queue/join", {"data": [], "fn_index": 0, "session_hash": "s"}, "rl2f_x").status_code == 401
    assert httpx.get(f"{site.url}/config", headers={"Authorization": "Bearer rl2f_x"}).status_code == 401
    assert site.post("run/pause_queue", {"data": []}).status_code == 403


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("run/get_run", {"data": [99]}, 404, "There is no run 99"),
        ("run/get_run", {"data": ["one"]}, 400, "argument run"),
        ("run/get_run", {"data": []}, 400, "needs run"),
        ("run/get_run", {"data": [1, 2]}, 400, "has no argument 2"),
        ("run/get_run", {}, 400, "not a list"),
        ("run/list_dialogues", {"data": [{"phase": "evaluatoin"}]}, 400, "'evaluation'"),
        ("run/get_preset", {"data": ["quickstrat"]}, 404, "quickstart"),
        ("call/get_run", {"data": []}, 400, "needs run"),
        ("call/v2/get_run", {}, 400, "needs run"),
        ("call/v2/get_run", {"runid": 1}, 400, "has no argument 'runid'"),
    ],
    ids=["missing object", "wrong type", "no argument", "too many arguments", "no data", "enumeration", "preset",
         "call", "call/v2", "unknown name"],
)  # fmt: skip
def test_an_input_error_has_status_4xx_and_a_text(site: Site, path: str, body: object, status: int, text: str) -> None:
    response = site.post(path, body)
    assert response.status_code == status and text in response.json()["error"]


def test_arguments_with_defaults_may_be_left_out(site: Site) -> None:
    assert site.post("run/list_runs", {"data": []}).json()["data"][0]["total"] == 1


def test_the_data_of_a_form_may_be_sent_back(site: Site, studio: Studio) -> None:
    preset = studio.launch.get_preset("quickstart")
    client = site.client(site.token("read"))
    for call in (
        lambda name, **given: client.predict(**given, api_name=f"/{name}"),
        lambda name, **given: site.post(f"run/{name}", {"data": [*given.values()]}).json()["data"][0],
    ):
        data = call("form_of_yaml", yaml=preset)["data"]
        assert "_path" in data["leak_detection"]["detectors"][0]
        written = call("yaml_of_form", data=data)
        assert written["errors"] == [] and written == call("yaml_of_form", data=_with_path(data))


def _with_path(data: dict[str, Any]) -> Any:
    return json.loads(json.dumps(data).replace('"_path"', '"path"'))


TWICE: dict[str, Callable[[Any], object]] = {
    "old and new name": lambda e: e.run.tag_run(run=1, run_id=2, tags=["x"]),
    "position and name": lambda e: e.run.tag_run(1, ["x"], run=2),
    "position and old name": lambda e: e.run.tag_run(1, ["x"], run_id=2),
    "filter and name": lambda e: e.runs.list_runs(RunFilter(kind="train"), kind="evaluation"),
}


@pytest.mark.parametrize("call", TWICE.values(), ids=TWICE)
def test_an_argument_that_is_given_twice_is_refused(context: Context, call: Callable[[Any], object]) -> None:
    with pytest.raises(RL2FError, match=r"argument (run|kind) is given twice"):
        call(Studio(context))
    assert runs.all_tags(context.db) == []


def test_mcp_refuses_an_argument_under_its_old_and_its_new_name(site: Site) -> None:
    async def delete(client: Any) -> Any:
        return await client.call_tool("delete_runs", {"runs": [77], "run_ids": [1]})

    refused = site.talk(delete, site.token("run"))
    assert refused.is_error and "argument runs is given twice" in refused.content[0].text
    assert [row.id for row in runs.page(site.context.db).rows] == [1]


# -- the audit log ---------------------------------------------------------------------------------------------------
@pytest.fixture
def empty(workspace: Workspace, db: Database) -> Studio:
    """The endpoints of a workspace with one labeled run and an empty log."""

    def add() -> None:
        write_run(workspace.folder("leaky"), leaky_events())
        reindex(db, workspace)

    build_once(db, workspace, b"unlabeled leaky", add)
    return JsonEndpoints(Studio(Context(workspace, db, Queue(db, workspace))))


def test_the_audit_log_says_which_hint_was_labeled_by_whom_and_what_was_undone(empty: Studio) -> None:
    event = empty.dialogues.list_dialogues({"run": 1})["rows"][0]["event_id"]
    empty.labels.label_hint(1, event, 0, "Ada Lovelace", "no_leak")
    empty.labels.undo_label("Ada Lovelace")
    undone, labeled = empty.audit.list_actions()
    assert labeled["arguments"] == f"run=1, event_id={event}, turn=0, annotator=Ada Lovelace, label=no_leak"
    assert undone["detail"] == f"run=1, event_id={event}, turn=0, label=no_leak"


HOOK = "https://hooks.example/T0/B0/XyZ"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda e: e.labels.label_hint(1, "e", 0, "x", "leek"), "argument label: Input should be 'leak', 'no_leak'"),
        (lambda e: e.run.stop_run(77), "There is no run 77."),
        (lambda e: e.launch.launch_run(preset="quickstart", overrides={"alerts.webhok": HOOK}), "webhok"),
        (lambda e: e.launch.launch_run(preset="quickstart", overrides={"alerts.webhook": HOOK}), "webhook"),
        (lambda e: e.runs.import_rollouts("a.jsonl", '{"messages": [{"role": "x"}]}'), "role"),
    ],
    ids=["argument", "missing object", "unknown key", "secret value", "rows"],
)
def test_the_audit_log_has_the_text_of_an_error_without_secrets(
    empty: Studio, call: Callable[[Studio], object], text: str
) -> None:
    with pytest.raises(RL2FError):
        call(empty)
    entry = empty.audit.list_actions()[0]
    assert entry["outcome"] == "failed" and text in entry["detail"] and "hooks.example" not in str(entry)


SECRET = "sk-abcdef123456"


@pytest.mark.parametrize(
    "settings",
    [
        {"overrides": {"teacher": {"type": "llm", "llm": {"type": "openai_api", "api_key_env": SECRET}}}},
        {"overrides": {"evaluation.seed": SECRET}},
        {"yaml": f"name: x\nseed: {SECRET}\n"},
        {"yaml": f"name: x\nmethod: '{SECRET}'\nstages: {{type: {SECRET}}}\n"},
    ],
    ids=["nested", "dotted", "yaml", "quoted yaml"],
)
def test_the_audit_log_has_no_values_of_settings(empty: Studio, settings: dict[str, Any]) -> None:
    with pytest.raises(RL2FError, match=SECRET):
        empty.launch.launch_run(**({} if "yaml" in settings else {"preset": "quickstart"}), **settings)
    entry = empty.audit.list_actions()[0]
    assert entry["outcome"] == "failed" and "15 characters" in entry["detail"] and SECRET not in str(entry)


def test_no_text_of_an_argument_is_read_as_another_argument(empty: Studio) -> None:
    for author in ("A, event_id=fake", 'A", event_id=fake', '"' * 199, "A, run=7, event_id=" + '"' * 150):
        empty.run.add_note(run=1, text="x", author=author)
        assert empty.audit.list_actions()[0]["url"] == "/run?run=1", author


def test_a_refused_call_is_recorded_with_its_arguments(site: Site) -> None:
    token = site.token("read", name="curious")
    for path, body in (
        ("run/stop_run", {"data": [1]}),
        ("call/v2/stop_run", {"run": 1}),
        ("call/v2/stop_run", {"run_id": 1, "password": "secret"}),
    ):
        assert site.post(path, body, token).status_code == 403
    assert site.talk(lambda client: client.call_tool("stop_run", {"run_id": 1}), token).is_error
    entries = [entry for entry in audit_log.recent(site.context.db) if entry.caller == "token curious"]
    assert [(entry.outcome, entry.arguments) for entry in entries] == [("refused", "run=1")] * 4


def test_the_audit_log_is_ordered_by_the_time_of_the_call(empty: Studio) -> None:
    db, now = empty.context.db, time.time()
    for seconds, name in ((-5, "quick"), (-9, "slow"), (-7, "middle")):  # a long call is written when it ends
        entry = audit_log.entry("browser", name)
        entry.time = now + seconds
        audit_log.add(db, entry)
    assert [row["action"] for row in empty.audit.list_actions()] == ["quick", "middle", "slow"]


@pytest.mark.parametrize(
    ("arguments", "detail", "url"),
    [
        ("preset=quickstart", "run 7", "/run?run=7"),
        ("run_id=3", "", "/run?run=3"),
        ("run_ids=[3, 4], path=x", "", "/run?run=3"),
        (f"run=1, event_id={EVENT}, turn=2, label=leak", "run 1", f"/dialogues?run=1&dialogue={EVENT}&turn=2"),
        ("chat=5, text=9 characters", "", "/chat?chat=5"),
        ("name=nightly, scopes=read run", "", None),
    ],
    ids=["new run", "run", "several runs", "hint", "chat", "token"],
)
def test_entries_of_the_audit_log_link_to_what_was_changed(
    empty: Studio, workspace: Workspace, arguments: str, detail: str, url: str | None
) -> None:
    audit_log.add(empty.context.db, AuditEntry(time=1.0, caller="x", action="act", arguments=arguments, outcome="ok",
                                               detail=detail))  # fmt: skip
    assert empty.audit.list_actions()[0].get("url", "none") == url
    listed = CliRunner().invoke(app, ["audit", "--workspace", str(workspace.root)]).output
    assert url is None or url in listed
    from app.pages.audit import _row

    shown = _row(empty.group.audit.list_actions()[0])
    assert url is None or ["a", {"href": url}, "act"] in [cell[2] for cell in shown[2:]]
