"""The detector board over HTTP and on the command line: figures, the closed half, later sources, and what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from detector_report_data import Truth, add_truth, label_draw
from replay_data import api_app
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.cli import app as cli
from app.common.context import Context
from jobs.labels import label_queries, report_queries
from jobs.labels.annotation_queue import QueueFilter
from jobs.labels.report_queries import Scope


@pytest.fixture
def client(context: Context) -> TestClient:
    return TestClient(api_app(context), raise_server_exceptions=False)


@pytest.fixture
def truth(context: Context) -> Truth:
    made = add_truth(context.db, context.workspace, hints=160)
    label_draw(context.db, made, QueueFilter("stratified", size=100))
    return made


def get(client: TestClient, status: int = 200, **params: Any) -> Any:
    answer = client.get("/api/labels/board", params=params)
    assert answer.status_code == status, answer.text
    return answer.json()


def opened(client: TestClient, status: int = 200, **body: Any) -> Any:
    answer = client.post("/api/labels/board/test", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_the_board_sends_figures_with_intervals_rows_and_what_is_missing(client: TestClient, truth: Truth) -> None:
    found = get(client, by="teacher")
    total = found["total"]["estimates"]
    assert found["half"] == "dev" and {row["name"] for row in found["rows"]} == {"llm", "scripted"}
    for name in ("precision", "recall", "f1", "kappa", "prevalence"):
        assert total[name]["low"] <= total[name]["value"] <= total[name]["high"]
    assert total["n_flagged"] + total["n_unflagged"] == found["used"]["counted"]
    assert found["more"]["recall"] > 0 and found["more"]["first"] == 381
    assert found["disputed"] == len(found["disputes"]) and all(d["against"] for d in found["disputes"])
    assert get(client, run=truth.run.id)["total"] == found["total"]
    assert get(client, environment="nowhere")["total"]["estimates"]["size"] == 0
    names = client.get("/api/labels/board/sources").json()
    assert [source["name"] for source in names] == ["run"]


def test_an_answer_counts_where_the_page_says_from_which_draw_it_is(client: TestClient, context: Context) -> None:
    made = add_truth(context.db, context.workspace, "fresh", 24)
    draw = {"which": "mixed", "run": made.run.id, "size": 24}
    items = client.get("/api/labels/queue", params={**draw, "limit": 50}).json()["items"]
    for item in items:
        body = {name: item[name] for name in ("run", "event", "turn")}
        for who, more in (("anna", {"draw": draw}), ("ben", {})):
            given = {**body, "labeller": who, "label": "no_leak", **more}
            assert client.put("/api/labels", json=given).status_code == 200
    kept = label_queries.of_hint(context.db, items[0]["run"], items[0]["event"], 0)
    assert [label.sampling_frame for label in kept] == [f"run/{made.run.id}/", None]
    found = get(client, run=made.run.id)
    assert found["used"]["counted"] == found["used"]["hints"] > 5
    assert found["pairs"][0]["observed"]["value"] == 1.0


def test_the_test_half_is_sent_once_its_opening_is_noted_and_to_nobody_else(
    client: TestClient, context: Context, truth: Truth
) -> None:
    closed = get(client, test=True, half="test", by="run")
    assert closed["half"] == "dev" and closed["openings"]["n"] == 0
    shown = opened(client, who="anna", by="teacher")
    assert shown["half"] == "test" and set(shown["breakdowns"]) == {
        "tier", "teacher", "environment", "checkpoint", "control", "run"
    }  # fmt: skip
    assert shown["breakdowns"]["teacher"]["rows"] == shown["rows"]
    inside = {d["event"] for d in shown["disputes"]}
    assert inside and not inside & {d["event"] for d in closed["disputes"]}
    assert [o.annotator for o in report_queries.list_accesses(context.db)] == ["anna"]
    opened(client, who="ben", run=truth.run.id)
    last = get(client)["openings"]
    assert last["n"] == 2 and (last["last"][0]["who"], last["last"][0]["run_id"]) == ("ben", truth.run.id)


@pytest.mark.parametrize(
    "body", [{}, {"who": " "}, {"who": "a\nb\0"}, {"who": "anna", "by": "moon"}, {"who": "anna", "surprise": 1}]
)
def test_an_opening_that_cannot_be_is_refused_and_not_noted(
    client: TestClient, context: Context, body: dict[str, Any]
) -> None:
    assert opened(client, 400, **body)["error"]["what"]
    assert report_queries.list_accesses(context.db) == []


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"by": "moon"}, 400),
        ({"source": "99"}, 404),
        ({"source": "'; DROP"}, 404),
        ({"run": 99}, 404),
        ({"run": "x"}, 400),
    ],
)
def test_a_board_that_cannot_be_says_why(client: TestClient, params: dict[str, Any], status: int) -> None:
    assert get(client, status, **params)["error"]["what"]


# -- the command line ------------------------------------------------------------------------------------------------
def run(context: Context, *args: str) -> Any:
    return CliRunner().invoke(cli, ["leaks", "report", "--workspace", str(context.workspace.root), *args])


def test_the_command_prints_the_board_and_opens_the_test_half_by_name(context: Context, truth: Truth) -> None:
    done = run(context, "--group-by", "teacher")
    assert done.exit_code == 0, done.output
    e = report_queries.read(context.db, Scope()).total.estimates
    assert f"on {e.n_flagged} labelled flags of {e.flagged:,}" in done.output and "scripted" in done.output
    assert f"for all {e.size:,} hints of the dev half" in done.output and "was opened never" in done.output
    assert run(context, "--test").exit_code == 2 and report_queries.list_accesses(context.db) == []
    found = json.loads(run(context, "--test", "--user", "zoe", "--json").output)
    assert found["half"] == "test" and [o["annotator"] for o in found["openings"]] == ["zoe"]
    again = run(context, "--run", str(truth.run.id))
    assert "opened once, last by zoe" in again.output
    assert run(context, "--run", "99").exit_code == 2


def test_the_command_says_what_to_do_where_nothing_is_labelled(context: Context) -> None:
    add_truth(context.db, context.workspace, hints=40)
    done = run(context)
    assert done.exit_code == 0 and "381 flagged hints give precision to ± .05" in done.output
    assert "Precision – on 0 labelled flags" in done.output
