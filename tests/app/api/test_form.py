"""The routes of page New run: start, validate, launch, preflight, schedule; and nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from app.common.context import Context
from app.forms import preflight, run_form
from app.forms.allowlist import adapter_refusal, data_refusal, known_models, model_refusal
from app.forms.schedule import next_times
from app.forms.yaml_text import MAX_CHARACTERS
from jobs.db.models import Checkpoint
from jobs.db.models import Run as Row
from jobs.db.queries import runs, scheduled_runs
from jobs.workspace import Workspace
from rl2f_core.config.loading import dump_yaml, load_config
from rl2f_core.config.presets import preset as find_preset
from rl2f_core.errors import ConfigError
from rl2f_core.stats.intervals import wilson
from rl2f_core.training.preflight import PreflightReport

ROUTES = ("form",)
QUICKSTART = run_form.preset_yaml("quickstart")
NEW_YEAR = 1_893_456_000.0
"""2030-01-01T00:00 UTC, a Tuesday."""


@pytest.fixture
def api(client: TestClient) -> TestClient:
    """The JSON routes over a workspace of the test's own, asked as the page asks."""
    return client


def data_of(text: str = QUICKSTART) -> dict[str, Any]:
    """A YAML text as a mapping."""
    return yaml.safe_load(text)


def error_of(answer: Any, status: int) -> dict[str, Any]:
    """The error that an answer tells."""
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def finished_run(context: Context, name: str = "rl@3") -> Path:
    """A training run with a saved checkpoint; returns the checkpoint's folder."""
    run = context.queue.add(QUICKSTART, start=False)
    assert run.id is not None
    folder = context.workspace.folder(run.folder) / "checkpoints" / name
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    with context.db.write() as session:
        session.add(
            Checkpoint(run_id=run.id, name=name, stage="rl", step=3, path=f"checkpoints/{name}", sha256="0", time=1.0)
        )
    return folder


# -- where a form starts -----------------------------------------------------------------------------------------------
def test_a_form_starts_from_a_preset_with_everything_it_is_drawn_with(api: TestClient) -> None:
    start = api.get("/api/form/start", params={"preset": "guess_number"}).json()
    assert start["ok"] and start["data"]["environment"]["type"] == "guess_number"
    preset = find_preset("guess_number").path
    assert start["resolved"] == dump_yaml(load_config(preset)) and start["max_characters"] == MAX_CHARACTERS
    assert yaml.safe_load(start["yaml"]) == yaml.safe_load(start["resolved"])
    assert start["yaml"].splitlines()[0] == preset.read_text().splitlines()[0] != start["resolved"].splitlines()[0]
    assert start["command"] == "rl2f train guess-number.yaml" and start["source"]["preset"] == "guess_number"
    assert {p["name"] for p in start["presets"]} == {p.name for p in run_form.presets()}
    assert "smollm2-135m" in [m["value"] for m in start["known"]["models"]] and start["clones"] == []
    assert "train" in start["kinds"] and start["spec"]["components"]["method"]["sft"]["fields"]


def test_a_form_starts_from_a_past_run(api: TestClient, context: Context) -> None:
    run = context.queue.add(QUICKSTART.replace("seed: 0", "seed: 7", 1), start=False)
    start = api.get("/api/form/start", params={"clone": run.id}).json()
    assert start["data"]["seed"] == 7 and start["source"] == {"preset": None, "clone": run.id}
    assert start["yaml"] == run.config and [c["run"] for c in start["clones"]] == [run.id]


def test_an_unknown_start_is_refused_in_words(api: TestClient) -> None:
    error = error_of(api.get("/api/form/start", params={"preset": "../../secret"}), 404)
    assert "quickstart" in error["known"]
    assert "999" in json.dumps(error_of(api.get("/api/form/start", params={"clone": 999}), 404))
    error_of(api.get("/api/form/start", params={"clone": "x"}), 400)
    assert "train" in error_of(api.get("/api/form/spec", params={"kind": "nope"}), 404)["known"]


@pytest.mark.slow
def test_every_preset_is_answered_in_time(api: TestClient) -> None:
    api.get("/api/form/start")
    for preset in run_form.presets():
        answer = api.get("/api/form/start", params={"preset": preset.name})
        assert answer.json()["ok"] and answer.elapsed.total_seconds() < 1


# -- validation --------------------------------------------------------------------------------------------------------
def test_form_and_text_are_validated_alike(api: TestClient) -> None:
    from_text = api.post("/api/form/validate", json={"yaml": QUICKSTART}).json()
    from_form = api.post("/api/form/validate", json={"data": from_text["data"], "text": QUICKSTART}).json()
    assert from_text == from_form and from_form["ok"]
    without_text = api.post("/api/form/validate", json={"data": from_text["data"]}).json()
    assert without_text == {**from_form, "yaml": from_form["resolved"]}


def test_errors_come_with_place_words_and_line(api: TestClient) -> None:
    data = data_of()
    data["stages"][1]["steps"] = 0
    answer = api.post("/api/form/validate", json={"data": data}).json()
    (error,) = answer["errors"]
    assert error["path"] == ["stages", 1, "steps"] and error["message"] == "must be at least 1, not 0"
    assert answer["yaml"].splitlines()[error["line"] - 1].strip() == "steps: 0"


def test_a_broken_text_comes_back_as_it_was(api: TestClient) -> None:
    answer = api.post("/api/form/validate", json={"yaml": "name: a\n b: [\n"}).json()
    assert answer["problem"]["line"] == 2 and answer["yaml"] == "name: a\n b: [\n" and answer["data"] is None


def test_the_kind_of_run_can_be_changed(api: TestClient) -> None:
    answer = api.post("/api/form/validate", json={"data": data_of(), "kind": "eval"}).json()
    assert answer["kind"] == "eval" and [e["dotted"] for e in answer["errors"]] == ["adapters"]
    error_of(api.post("/api/form/validate", json={"data": data_of(), "kind": "nope"}), 400)


@pytest.mark.parametrize(
    "body",
    [{"surprise": 1}, {"data": 3}, {"yaml": ["x"]}, {"yaml": "x" * 1_000_000}, {"data": {"name": [[[[{}]]]]}}, {}],
)
def test_bodies_of_the_wrong_shape_never_break_the_server(api: TestClient, body: dict[str, Any]) -> None:
    answer = api.post("/api/form/validate", json=body)
    assert answer.status_code in (200, 400)
    assert answer.status_code == 400 or answer.json()["errors"]


def test_hostile_values_come_back_as_data(api: TestClient) -> None:
    data = data_of()
    data["name"] = data["environment"]["alphabet"] = '<script>alert(1)</script>"\u2028\x00'
    data["stages"][0]["<img src=x>"] = {"a": None}
    answer = api.post("/api/form/validate", json={"data": data}).json()
    assert answer["data"]["name"] == data["name"] and answer["data"]["stages"][0]["<img src=x>"] == {"a": None}
    assert {"name", "environment.alphabet", "stages.0.<img src=x>"} <= {e["dotted"] for e in answer["errors"]}


# -- nothing is loaded from elsewhere ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name",
    ["/etc", "../x", "~/model", "./x", "a/b/c", "org/../x", "C:\\x", "", "org/", "http://x/y", "org/name\n", "a\x00b"],
)
def test_a_model_outside_the_known_ones_is_refused(api: TestClient, name: str) -> None:
    data = data_of()
    data["model"] = {"name": name}
    answer = api.post("/api/form/validate", json={"data": data}).json()
    assert [e["dotted"] for e in answer["errors"]] == ["model.name"] and "known" in answer["errors"][0]["message"]
    error_of(api.post("/api/form/launch", json={"yaml": yaml.safe_dump(data)}), 400)


def test_a_folder_that_looks_like_a_hub_id_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert model_refusal("org/name") is None
    monkeypatch.chdir(tmp_path)
    assert model_refusal("org/name") is not None


def test_known_models_are_those_of_the_model_store(rl2f_home: Path, tiny: Path) -> None:
    assert {"smollm2-135m", "tiny-random"} <= {choice.value for choice in known_models()}
    assert all(model_refusal(choice.value) is None for choice in known_models())
    cached = rl2f_home / "models" / "mine"
    shutil.copytree(tiny, cached, dirs_exist_ok=True)
    assert model_refusal(str(cached)) is None
    assert model_refusal(str(rl2f_home / "models")) is not None and model_refusal(str(tiny)) is not None
    (rl2f_home / "models" / "link").symlink_to(tiny)
    assert model_refusal(str(rl2f_home / "models" / "link")) is not None


def test_checkpoints_of_known_runs_are_offered_and_taken(api: TestClient, context: Context) -> None:
    folder = finished_run(context)
    (choice,) = api.get("/api/form/start").json()["known"]["checkpoints"]
    assert choice["value"] == str(folder) and choice["label"].endswith(":rl@3")
    data = data_of() | {"lora": {"init_adapter": choice["value"]}}
    assert api.post("/api/form/validate", json={"data": data}).json()["ok"]
    evaluation = {**run_form.change_kind(data_of(), "eval"), "adapters": {"base": None, "a": str(folder)}}
    assert api.post("/api/form/validate", json={"data": evaluation}).json()["ok"]


def test_an_adapter_from_elsewhere_is_refused(
    api: TestClient, context: Context, workspace: Workspace, tmp_path: Path
) -> None:
    folder = finished_run(context)
    outside = tmp_path / "outside" / "checkpoints" / "rl@3"
    shutil.copytree(folder, outside)
    (folder.parent / "link@1").symlink_to(outside)
    nested = folder / "deeper"
    shutil.copytree(folder, nested)
    tried = [
        str(outside), str(folder.parent / "link@1"), str(folder.parent / ".." / ".." / ".." / ".." / "outside"),
        str(folder.relative_to(workspace.runs)), str(folder.parent), str(workspace.runs), "/etc", "", f"{folder}\0",
        str(folder.with_name("rl@4")), str(nested), "checkpoints/rl@3",
    ]  # fmt: skip
    for start in tried:
        assert adapter_refusal(start, workspace) is not None, start
        answer = api.post("/api/form/validate", json={"data": data_of() | {"lora": {"init_adapter": start}}}).json()
        assert [e["dotted"] for e in answer["errors"]] == ["lora.init_adapter"], start
        evaluation = {**run_form.change_kind(data_of(), "eval"), "adapters": {"base": None, "a": start}}
        answer = api.post("/api/form/launch", json={"yaml": yaml.safe_dump(evaluation)})
        assert "adapters.a" in error_of(answer, 400)["value"], start
    assert runs.page(context.db).total == 1


def test_a_path_is_refused_even_where_the_rest_is_wrong(api: TestClient) -> None:
    data = data_of() | {"lora": {"init_adapter": "/etc"}, "seed": -1}
    answer = api.post("/api/form/validate", json={"data": data}).json()
    assert {e["dotted"] for e in answer["errors"]} == {"lora.init_adapter", "seed"}


# -- launch ------------------------------------------------------------------------------------------------------------
def test_a_launched_run_has_the_resolved_yaml_of_the_form_byte_for_byte(api: TestClient, context: Context) -> None:
    checked = api.post("/api/form/validate", json={"yaml": QUICKSTART}).json()
    answer = api.post("/api/form/launch", json={"data": checked["data"]}).json()
    run = runs.get(context.db, answer["run"])
    assert answer["url"] == f"/run?run={run.id}" and run.status == "queued" and run.origin == "app"
    assert (context.workspace.folder(run.folder) / "config.yaml").read_text() == checked["resolved"] == run.config


def test_a_clone_knows_its_parent(api: TestClient, context: Context) -> None:
    first = api.post("/api/form/launch", json={"yaml": QUICKSTART}).json()["run"]
    second = api.post("/api/form/launch", json={"yaml": QUICKSTART, "parent": first}).json()["run"]
    assert runs.get(context.db, second).parent == first


def test_what_is_wrong_is_not_launched(api: TestClient, context: Context) -> None:
    error = error_of(api.post("/api/form/launch", json={"yaml": QUICKSTART.replace("steps: 60", "steps: 0")}), 400)
    assert "stages.0.steps" in error["value"]
    assert "line 1" in json.dumps(error_of(api.post("/api/form/launch", json={"yaml": "a: ["}), 400))
    assert runs.page(context.db).total == 0


def test_a_read_only_server_launches_nothing(context: Context, make_client: Callable[..., TestClient]) -> None:
    context.read_only = True
    client = make_client(context)
    for path in ("launch", "preflight", "preflight/1/abort"):
        assert "read-only" in error_of(client.post(f"/api/form/{path}", json={"yaml": QUICKSTART}), 409)["what"]
    body = {"yaml": QUICKSTART, "trigger": "cron", "when": "0 2 * * *"}
    assert "read-only" in error_of(client.post("/api/form/schedule", json=body), 409)["what"]
    assert client.post("/api/form/validate", json={"yaml": QUICKSTART}).json()["ok"]


# -- preflight ---------------------------------------------------------------------------------------------------------
def report(passed: bool = True) -> PreflightReport:
    """A report of 4 groups of 2: one all wrong, two mixed, one all right."""
    return PreflightReport(
        stage="rl",
        tasks=4,
        samples=2,
        turns=3,
        parsable=wilson(7, 8),
        solved_first=wilson(1, 8),
        solved=wilson(4, 8),
        outcomes={"groups/frac_mixed": 0.5, "groups/frac_all_correct": 0.25, "groups/frac_all_incorrect": 0.25},
        histogram=[1, 2, 1],
        expected_mixed_groups=2.0,
        attempt_tokens=5.0,
        max_attempt_tokens=8,
        cut_attempts=wilson(0, 12),
        hint_tokens=4.0,
        dialogue_tokens=40,
        max_seq_len=64,
        truncated=wilson(0, 8),
        failed=0,
        seconds_per_step=1.5,
        total_seconds=90.0,
        memory_gib=1.25,
        most_common_answer="7",
        passed=passed,
        reason="" if passed else "Too hard.",
        fix="" if passed else "Choose an easier level.",
    )


def test_a_preflight_is_a_run_of_its_own_kind(api: TestClient, context: Context) -> None:
    run_id = api.post("/api/form/preflight", json={"yaml": QUICKSTART}).json()["run"]
    run = runs.get(context.db, run_id)
    assert run.kind == "preflight" and run.name == "preflight quickstart" and run.status == "queued"
    shown = api.get(f"/api/form/preflight/{run_id}").json()
    assert shown["yaml"] == run.config and yaml.safe_load(run.config)["kind"] == "preflight"
    assert shown["verdict"] is None and shown["status"] == "queued" and not shown["ended"]
    assert api.post(f"/api/form/preflight/{run_id}/abort", json={}).status_code == 200
    assert api.get(f"/api/form/preflight/{run_id}").json()["ended"]


def test_a_run_that_is_no_preflight_is_not_shown_or_ended_as_one(api: TestClient, context: Context) -> None:
    run_id = api.post("/api/form/launch", json={"yaml": QUICKSTART}).json()["run"]
    error_of(api.get(f"/api/form/preflight/{run_id}"), 404)
    error_of(api.post(f"/api/form/preflight/{run_id}/abort", json={}), 404)
    assert runs.get(context.db, run_id).status == "queued"
    error_of(api.get("/api/form/preflight/999"), 404)


def test_only_training_runs_have_a_preflight(api: TestClient, context: Context) -> None:
    folder = finished_run(context)
    evaluation = {**run_form.change_kind(data_of(), "eval"), "adapters": {"a": str(folder)}}
    error_of(api.post("/api/form/preflight", json={"data": evaluation}), 400)


def test_while_it_runs_a_preflight_says_how_far_it_is(tmp_path: Path) -> None:
    run = Row(id=3, name="p", kind="preflight", folder="3-p", status="running", phase="old", done=1.0)
    (tmp_path / "progress.json").write_text('{"phase": "preflight", "done": 12, "total": 128, "note": "", "time": 1}')
    shown = preflight.view(run, tmp_path)
    assert (shown["phase"], shown["done"], shown["total"], shown["verdict"]) == ("preflight", 12.0, 128, None)
    (tmp_path / "progress.json").write_text("torn")
    assert preflight.view(run, tmp_path)["phase"] == "old"


def test_a_finished_preflight_has_a_verdict_numbers_and_a_histogram(tmp_path: Path) -> None:
    import plotly.graph_objects

    run = Row(id=3, name="p", kind="preflight", folder="3-p", status="succeeded")
    (tmp_path / "preflight.json").write_text(report().model_dump_json())
    (tmp_path / "preflight.txt").write_text(report().to_text())
    shown = preflight.view(run, tmp_path)
    assert shown["verdict"]["ok"] and shown["verdict"]["text"] == "Worth starting."
    facts = {fact["label"]: fact["value"] for fact in shown["facts"]}
    assert facts["parsable"].startswith("88% (") and facts["mixed groups"] == "50%" and facts["time"] == "≈ 2 min"
    bars = {bar["name"]: dict(zip(bar["x"], bar["y"], strict=True)) for bar in shown["figure"]["data"]}
    assert bars == {"all wrong": {0: 1}, "mixed": {1: 2}, "all right": {2: 1}}
    drawn = json.loads(re.sub(r"--rl-\w+", "#123456", json.dumps(shown["figure"])))
    assert len(plotly.graph_objects.Figure(drawn).data) == 3


def test_a_failed_preflight_says_why_and_what_to_do(tmp_path: Path) -> None:
    run = Row(id=3, name="p", kind="preflight", folder="3-p", status="failed", detail="PreflightError: …")
    (tmp_path / "preflight.json").write_text(report(passed=False).model_dump_json())
    verdict = preflight.view(run, tmp_path)["verdict"]
    assert not verdict["ok"] and "Too hard." in verdict["text"] and verdict["fix"] == "Choose an easier level."
    (tmp_path / "preflight.json").write_text("{}")
    shown = preflight.view(run, tmp_path)
    assert shown["verdict"] is None and shown["detail"] == "PreflightError: …"


# -- schedules ---------------------------------------------------------------------------------------------------------
def test_the_next_three_times_of_a_cron_are_told_in_its_time_zone() -> None:
    assert next_times("cron", "30 2 * * mon", "Europe/Berlin", NEW_YEAR) == [
        "2030-01-07T02:30:00+01:00",
        "2030-01-14T02:30:00+01:00",
        "2030-01-21T02:30:00+01:00",
    ]
    assert next_times("date", "2030-06-01T08:00", "Europe/Berlin", NEW_YEAR) == ["2030-06-01T08:00:00+02:00"]


@pytest.mark.parametrize(
    ("trigger", "when", "zone"),
    [
        ("cron", "0 2 * *", "UTC"),
        ("cron", "61 2 * * *", "UTC"),
        ("cron", "0 0 30 2 *", "UTC"),
        ("date", "2029-12-31T00:00", "UTC"),
        ("date", "tomorrow", "UTC"),
        ("cron", "0 2 * * *", "Mars/Olympus"),
        ("cron", "0 2 * * *", "../../etc/passwd"),
        ("cron", "0 2 * * *", ""),
    ],
)
def test_times_that_never_come_are_refused(trigger: str, when: str, zone: str) -> None:
    with pytest.raises(ConfigError):
        next_times(trigger, when, zone, NEW_YEAR)


def test_a_time_is_judged_while_it_is_typed(api: TestClient) -> None:
    asked = {"trigger": "cron", "when": "0 2 * * *", "timezone": "UTC"}
    good = api.post("/api/form/times", json=asked).json()
    assert len(good["times"]) == 3 and good["problem"] is None
    bad = api.post("/api/form/times", json={**asked, "when": "0 2"}).json()
    assert bad["times"] == [] and bad["problem"]["what"] and bad["problem"]["fix"]


def test_a_schedule_keeps_the_yaml_of_the_form(api: TestClient, context: Context) -> None:
    body = {"yaml": QUICKSTART, "trigger": "cron", "when": "0 2 * * *", "timezone": "Europe/Berlin", "name": "nightly"}
    answer = api.post("/api/form/schedule", json=body).json()
    row = scheduled_runs.get(context.db, answer["schedule"])
    assert (row.name, row.trigger, row.when, row.timezone) == ("nightly", "cron", "0 2 * * *", "Europe/Berlin")
    assert row.config == run_form.check_yaml(QUICKSTART, context.workspace).yaml and len(answer["times"]) == 3
    assert row.next_run is not None


def test_a_wrong_schedule_is_not_kept(api: TestClient, context: Context) -> None:
    good = {"yaml": QUICKSTART, "trigger": "cron", "when": "0 2 * * *"}
    for change in ({"when": "x"}, {"timezone": "nope"}, {"yaml": "a: ["}, {"trigger": "hourly"}):
        error_of(api.post("/api/form/schedule", json={**good, **change}), 400)
    assert scheduled_runs.all_schedules(context.db) == []


def test_time_zones_are_listed(api: TestClient) -> None:
    assert {"UTC", "Europe/Berlin", "America/New_York"} <= set(api.get("/api/form/timezones").json())


# -- the page ----------------------------------------------------------------------------------------------------------
def test_the_page_carries_the_place_of_the_widget_and_its_scripts(site: Any) -> None:
    html = site.page.get("/new?preset=quickstart").text
    for file in ("form.js", "new_run.js", "new_run.css", "charts.js"):
        assert f"/static/{file}" in html and site.page.get(f"/static/{file}").status_code == 200
    assert site.stranger.post("/api/form/launch", json={"yaml": QUICKSTART}).status_code == 403


def test_a_form_learns_from_a_stage_or_a_data_set_of_a_known_run_alone(
    api: TestClient, context: Context, workspace: Workspace, tmp_path: Path
) -> None:
    made = finished_run(context).parent.parent / "datasets" / "distil"
    made.mkdir(parents=True)
    (made / "dataset.json").write_text("{}")
    outside = shutil.copytree(made, tmp_path / "outside" / "datasets" / "distil")
    (made.parent / "link").symlink_to(outside)
    (choice,) = api.get("/api/form/start").json()["known"]["data"]
    assert choice["value"] == str(made) and choice["label"].endswith(":distil")

    def errors_of(name: str) -> list[str]:
        stages = [{"name": "sft", "method": {"type": "sft", "dataset": name}, "steps": 1, "group_size": 1}]
        answer = api.post("/api/form/validate", json={"data": data_of() | {"stages": stages}}).json()
        return [error["dotted"] for error in answer["errors"]]

    assert errors_of(str(made)) == [] and data_refusal("distil", workspace) is None
    link, rows = str(made.parent / "link"), str(made / "rows.jsonl")
    for name in (str(outside), link, rows, "/etc/passwd", "rows.jsonl", f"{made}\0"):
        assert data_refusal(name, workspace) is not None and errors_of(name) == ["stages.0.method.dataset"], name
