"""The routes behind the pages Run and Compare: what they say of real runs, unknown numbers, races and damaged files."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from run_data import BEGAN, STEPS, add_run, dialogue
from starlette.testclient import TestClient

from app.api import compare, plotly
from app.api import run as run_routes
from app.api._tail import tail
from app.common.context import Context
from app.web.server import _handle_errors
from jobs.db.models import ACTIVE, ENDED, Run
from jobs.db.queries import notes, runs
from jobs.ingest.ingester import ingest
from rl2f_core.run.events import DialogueEvent, JsonlSink, MetricEvent
from rl2f_core.types import Task


@pytest.fixture
def api(context: Context) -> TestClient:
    """The routes alone, with the app's own answers to errors, without pages and locks."""
    app = FastAPI()
    _handle_errors(app)
    for module in (run_routes, compare, plotly):
        app.include_router(module.router(context))
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture
def run(context: Context) -> Run:
    """A finished training run with an evaluation, number 1."""
    return add_run(context.db, context.workspace, "1-small")


def get(api: TestClient, path: str, status: int = 200) -> Any:
    answer = api.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


# -- one run -------------------------------------------------------------------------------------------------------
def test_the_page_gets_everything_of_a_run(api: TestClient, run: Run) -> None:
    found = get(api, "/api/run/1")
    assert found["run"]["name"] == "small" and found["run"]["status"] == "succeeded"
    assert found["acts"] == ["delete"]
    assert [(s["name"], s["done"], s["steps"], s["demonstrations"]) for s in found["stages"]] == [
        ("warm", 2, 2, True),
        ("rl", STEPS, STEPS, False),
    ]
    assert [c["name"] for c in found["checkpoints"]] == ["rl@6"]
    assert found["cards"]["hints"]["source"] == "evaluation of rl@6"
    assert found["evaluated"][1:] == [True, 4] and found["steps"] == 2 + STEPS


def test_every_route_of_a_run_answers_within_a_second(api: TestClient, run: Run) -> None:
    get(api, "/api/run/1/charts")  # imports
    for path in ("", "/version", "/charts", "/charts?x=time&smooth=0.9", "/charts?names=grad_norm,time/", "/series",
                 "/evaluation", "/config", "/environment", "/log"):  # fmt: skip
        began = time.process_time()
        get(api, f"/api/run/1{path}")
        assert time.process_time() - began < 1, path


def test_the_overview_leaves_demonstrations_out_and_has_bands_where_dialogues_were_counted(
    api: TestClient, run: Run
) -> None:
    found = get(api, "/api/run/1/charts")
    charts = {chart["key"]: chart for chart in found["charts"]}
    reward = next(t for t in charts["reward"]["figure"]["data"] if t["meta"] == "line")
    assert len(reward["y"]) == STEPS and found["demonstrated"] == ["warm"]
    assert reward["customdata"][0] == ["rl", 1, "rl step 1"]
    assert [t["meta"] for t in charts["cum_acc/"]["figure"]["data"]].count("band") == 3
    named = get(api, "/api/run/1/charts?names=grad_norm,no_such,time/")["charts"]
    assert [chart["key"] for chart in named] == ["grad_norm", "time/"]


def test_bands_of_steps_that_came_later_are_counted_too(api: TestClient, context: Context, run: Run) -> None:
    before = get(api, "/api/run/1/charts")
    task = Task(id="t", environment="guess_number", split="train", level="", public={}, privileged={})
    events: list[Any] = [
        DialogueEvent.of("train", "rl", 7, task, dialogue(f"rl/7/{i}", task, at, random.Random(0), "rl/7/0", i))
        for i, at in enumerate([1, None, 2, None])
    ]
    events.append(
        MetricEvent(
            id="metric:rl:7",
            time=BEGAN + 99,
            stage="rl",
            step=7,
            values={"cum_acc/1": 0.25, "cum_acc/2": 0.5, "cum_acc/3": 0.5},
        )
    )
    JsonlSink(context.workspace.folder("1-small") / "events.jsonl").emit(events)
    while ingest(context.db, context.workspace, runs.get(context.db, 1)):
        pass
    after = get(api, "/api/run/1/charts")
    assert after["version"] > before["version"]

    def banded(found: Any) -> list[Any]:
        chart = next(c for c in found["charts"] if c["key"] == "cum_acc/")
        return [trace["x"] for trace in chart["figure"]["data"] if trace["meta"] == "band"]

    assert max(banded(before)[0]) == 6 and max(banded(after)[0]) == 7


def test_an_evaluation_is_shown_from_its_dialogues_until_its_report_is_written(
    api: TestClient, context: Context
) -> None:
    add_run(context.db, context.workspace, "1-small", report=False)
    found = get(api, "/api/run/1/evaluation")["evaluation"]
    assert (
        found["whole"] is False and [row["control"] for row in found["table"]["rows"]] == ["hints", "contentless"] * 2
    )
    assert get(api, "/api/run/1")["cards"]["hints"]["source"] == "evaluation of rl@6, in progress"


def test_a_run_that_was_not_evaluated_says_so(api: TestClient, context: Context) -> None:
    add_run(context.db, context.workspace, "1-small", evaluated=False)
    assert get(api, "/api/run/1/evaluation") == {"evaluation": None}
    assert get(api, "/api/run/1")["cards"]["hints"] is None


def test_a_damaged_report_is_no_obstacle(api: TestClient, context: Context, run: Run) -> None:
    (context.workspace.folder("1-small") / "evaluation" / "report.json").write_text("{")
    assert get(api, "/api/run/1/evaluation")["evaluation"]["whole"] is False


@pytest.mark.parametrize(
    "path", ["", "/version", "/charts", "/series", "/evaluation", "/config", "/environment", "/log"]
)
def test_an_unknown_run_is_one_plain_message(api: TestClient, path: str) -> None:
    error = get(api, f"/api/run/99{path}", 404)["error"]
    assert error["what"] == "There is no run 99." and "deleted" in error["fix"]


@pytest.mark.parametrize("number", ["0", "-1", "99999999999999", "x", "1.5", "..%2F1"])
def test_what_is_no_number_of_a_run_is_refused(api: TestClient, number: str) -> None:
    assert get(api, f"/api/run/{number}", 400 if "%2F" not in number else 404)["error"]["what"]


@pytest.mark.parametrize("query", ["x=weeks", "smooth=2", "smooth=nan"])
def test_a_wrong_choice_is_refused_in_words(api: TestClient, run: Run, query: str) -> None:
    assert "smooth" in str(get(api, f"/api/run/1/charts?{query}", 400)) or query.startswith("x")


def test_what_can_be_done_follows_the_status(api: TestClient, context: Context) -> None:
    from app.api.run import ACTS

    assert set(ACTS) == {*ACTIVE, *ENDED}
    made = context.queue.add(
        "name: waits\nenvironment: {type: guess_number}\nstages: [{name: rl, method: rl2f, steps: 1}]\n"
    )
    assert get(api, f"/api/run/{made.id}")["acts"] == ["stop"]
    assert api.post(f"/api/run/{made.id}/act", json={"act": "stop"}).json() == {"status": "stopped"}
    again = api.post(f"/api/run/{made.id}/act", json={"act": "stop"})  # the second of two tabs
    assert again.status_code == 409 and "is stopped now" in again.json()["error"]["what"]
    assert api.post(f"/api/run/{made.id}/act", json={"act": "resume"}).json() == {"status": "queued"}
    assert api.post(f"/api/run/{made.id}/act", json={"act": "format"}).status_code == 400


def test_a_deleted_run_is_gone_with_its_folder_and_its_version(api: TestClient, context: Context, run: Run) -> None:
    assert api.post("/api/run/1/act", json={"act": "delete"}).json() == {"status": "deleted"}
    get(api, "/api/run/1/version", 404)
    assert not context.workspace.folder("1-small").exists()


def test_an_evaluation_of_a_checkpoint_is_put_into_the_queue(api: TestClient, context: Context, run: Run) -> None:
    folder = context.workspace.folder("1-small") / "checkpoints" / "rl@6"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"\0" * 8)
    made = api.post("/api/run/1/evaluate", json={"checkpoint": "rl@6"})
    assert made.status_code == 200, made.text
    queued = runs.get(context.db, made.json()["run"])
    assert (queued.kind, queued.status, queued.parent) == ("eval", "queued", 1)
    assert queued.name == "eval small rl-6"
    assert get(api, "/api/run/1")["children"][0]["id"] == queued.id
    for name in ("rl@7", "../../1-small", "/etc/passwd", ""):
        refused = api.post("/api/run/1/evaluate", json={"checkpoint": name})
        assert refused.status_code == 404 and refused.json()["error"]["known"] == ["rl@6"]


def test_tags_and_notes_are_kept_and_notes_of_other_runs_stay(api: TestClient, context: Context, run: Run) -> None:
    other = add_run(context.db, context.workspace, "2-other")
    note = notes.add(context.db, other.id or 0, "mine")
    assert api.put("/api/run/1/tags", json={"tags": ["good", " good ", "baseline"]}).json() == {
        "tags": ["baseline", "good"]
    }
    made = api.post("/api/run/1/notes", json={"text": "<b>look</b>"}).json()
    found = get(api, "/api/run/1")
    assert found["tags"] == ["baseline", "good"] and [n["text"] for n in found["notes"]] == ["<b>look</b>"]
    assert api.delete(f"/api/run/1/notes/{note.id}").status_code == 404
    assert api.delete(f"/api/run/1/notes/{made['id']}").status_code == 200
    assert api.post("/api/run/1/notes", json={"text": " "}).status_code == 400
    assert get(api, "/api/run/1")["notes"] == []


# -- files ---------------------------------------------------------------------------------------------------------
def test_the_log_is_read_from_its_end_and_goes_on_where_it_was(api: TestClient, context: Context, run: Run) -> None:
    path = context.workspace.folder("1-small") / "log.txt"
    assert get(api, "/api/run/1/log")["text"] == ""
    path.write_text("".join(f"line {i}\n" for i in range(20_000)))
    first = get(api, "/api/run/1/log")
    assert first["fresh"] and len(first["text"]) <= 65_536
    assert first["text"].startswith("line ") and first["text"].endswith("line 19999\n")
    assert [row["text"] for row in first["rows"]] == ["All went well."]
    with open(path, "a") as file:
        file.write("more\n")
    then = get(api, f"/api/run/1/log?at={first['at']}")
    assert (then["text"], then["fresh"], then["rows"]) == ("more\n", False, [])


def test_a_log_cannot_do_anything_to_the_page_or_tear_a_character(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"\x1b[31mred\x1b[0m <script>\n 10%\r 20%\r 30%\nend " + "é".encode()[:1])
    found = tail(path)
    assert found.text == "\\x1b[31mred\\x1b[0m <script>\n 30%\nend "
    with open(path, "ab") as file:
        file.write("é".encode()[1:])
    assert tail(path, found.at).text == "é"
    path.write_text("new")  # a later session began the file anew
    assert tail(path, found.at).fresh and tail(path, found.at).text == "new"


def test_the_environment_of_a_run_is_what_its_folder_holds(api: TestClient, context: Context, run: Run) -> None:
    assert get(api, "/api/run/1/environment")["meta"]["git"] == "abc123"
    meta = context.workspace.folder("1-small") / "meta.json"
    meta.write_text("{")
    assert "environment cannot be read" in get(api, "/api/run/1/environment", 400)["error"]["what"]
    meta.unlink()
    assert get(api, "/api/run/1/environment") == {"meta": None}


def test_plotly_comes_from_the_installed_package_and_is_kept_by_browsers(api: TestClient) -> None:
    from plotly.offline import get_plotlyjs

    answer = api.get(plotly.url())
    assert answer.text == get_plotlyjs()
    assert answer.headers["content-encoding"] == "gzip" and "immutable" in answer.headers["cache-control"]
    assert api.get(plotly.url(), headers={"accept-encoding": "identity"}).text == answer.text
