"""Endpoints of new runs: form and YAML, validation, launch, preflight, schedules; nothing outside the allow-list."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from json_endpoints import JsonEndpoints
from preflight_report import report

from app.common.context import Context
from app.endpoints.endpoint import ArgumentError
from app.endpoints.launch import LaunchEndpoints
from app.forms import run_form
from app.forms.yaml_text import MAX_CHARACTERS
from jobs.db.errors import NotFoundError, StoreReadOnlyError
from jobs.db.models import Checkpoint, Metric, Run
from jobs.db.queries import runs, scheduled_runs
from jobs.workspace import Workspace
from rl2f_core.config.loading import dump_yaml, load_config, parse_config
from rl2f_core.config.presets import preset as find_preset
from rl2f_core.errors import ConfigError

QUICKSTART = run_form.preset_yaml("quickstart")


@pytest.fixture
def launch(context: Context) -> Any:
    return JsonEndpoints(LaunchEndpoints(context))


def data_of(text: str = QUICKSTART, **changes: Any) -> dict[str, Any]:
    """Return a YAML text as a mapping with other values."""
    return {**yaml.safe_load(text), **changes}


def fields(state: Any) -> list[str]:
    """Return the invalid fields of a check."""
    return [error["field"] for error in state["errors"]]


def trained_run(context: Context, name: str = "rl@3") -> Path:
    """Add a training run with a saved checkpoint; returns the checkpoint's directory."""
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


def evaluation_of(adapters: dict[str, str | None]) -> dict[str, Any]:
    """Return an evaluation of these adapters."""
    return {**run_form.change_kind(data_of(), "eval"), "adapters": adapters}


# -- presets and the form ----------------------------------------------------------------------------------------------
def test_presets_are_listed_with_the_first_look_and_the_default_first(launch: LaunchEndpoints) -> None:
    presets = launch.list_presets()
    assert [preset["name"] for preset in presets] == [preset.name for preset in run_form.presets()]
    assert [preset["name"] for preset in presets[:2]] == ["first_look", "quickstart"]
    assert presets[1]["runs_on_cpu"] and presets[1]["description"] and presets[1]["model"] == "smollm2-135m"
    assert presets[1]["estimate"]["dialogues"] == 2208 and 600 < presets[1]["estimate"]["seconds"] < 2000
    assert not all(preset["runs_on_cpu"] for preset in presets)


def test_a_preset_keeps_its_comments_and_fills_the_form(launch: LaunchEndpoints) -> None:
    path = find_preset("guess_number").path
    text = launch.get_preset("guess_number")
    assert text == path.read_text()
    state = launch.form_of_yaml(text)
    assert state["ok"] and state["data"] and state["data"]["environment"]["type"] == "guess_number"
    assert state["resolved"] == dump_yaml(load_config(path))
    assert yaml.safe_load(state["yaml"]) == yaml.safe_load(state["resolved"])
    assert state["yaml"].splitlines()[0] == text.splitlines()[0] != state["resolved"].splitlines()[0]
    assert state["command"] == "rl2f train guess-number.yaml" and state["file"] == "guess-number.yaml"


def test_the_form_describes_fields_with_type_limits_and_help(launch: LaunchEndpoints) -> None:
    form = launch.run_form()
    length = next(f for f in form["components"]["environment"]["secret_code"]["fields"] if f["key"] == "length")
    assert length["node"]["kind"] == "integer" and length["node"]["minimum"] > 0 and length["help"]
    assert form["kind"] == "train" and "eval" in form["kinds"] and form["max_characters"] == MAX_CHARACTERS
    assert "stages" in [field["key"] for field in form["root"]["fields"]]
    assert json.loads(json.dumps(form)) == form


def test_the_form_offers_known_models_and_checkpoints(launch: LaunchEndpoints, context: Context) -> None:
    folder = trained_run(context)
    choices = launch.form_choices()
    assert {"smollm2-135m", "tiny-random"} <= {choice["value"] for choice in choices["models"]}
    (checkpoint,) = choices["checkpoints"]
    assert checkpoint["value"] == str(folder) and checkpoint["label"].endswith(":rl@3")
    assert launch.yaml_of_form(data_of(lora={"init_adapter": checkpoint["value"]}))["ok"]
    assert launch.yaml_of_form(evaluation_of({"base": None, "a": checkpoint["value"]}))["ok"]


def test_a_run_is_cloned_with_its_configuration(launch: LaunchEndpoints, context: Context) -> None:
    run = context.queue.add(QUICKSTART.replace("seed: 0", "seed: 7", 1), start=False)
    assert run.id is not None
    text = launch.clone_run(run.id)
    assert text == run.config and yaml.safe_load(text)["seed"] == 7
    cloned = launch.launch_run(text, parent=run.id)
    assert runs.get(context.db, cloned["run"]).parent == run.id


def test_a_run_is_estimated_from_the_newest_finished_run_of_its_model(
    launch: LaunchEndpoints, context: Context
) -> None:
    recorded = launch.estimate_run(preset="quickstart")  # no run yet
    assert 600 < recorded["seconds"] < 2000 and recorded["like"] is None
    found = [(100.0, "succeeded", "app"), (200.0, "succeeded", "cli"), (900.0, "failed", "app")]
    for seconds, status, origin in (*found, (800.0, "succeeded", "example")):
        run = context.queue.add(QUICKSTART, start=False)
        with context.db.write() as session:
            row = session.get(Run, run.id)
            assert row is not None
            row.status, row.started, row.ended = status, 10.0, 10.0 + seconds  # type: ignore[assignment]
            row.origin = origin
            values = {"system/memory_gb": seconds / 100}
            session.add(Metric(run_id=run.id, number=0, stage="warmup", step=1, time=0.0, values=values))
    found = launch.estimate_run(preset="quickstart", overrides={"stages.1.steps": 93})
    assert (found["like"], found["memory_gb"]) == (2, 2.0)
    assert found["seconds"] == pytest.approx(200 * 2)  # 2,208 dialogues, and 69 · 32 more
    assert launch.estimate_run(preset="quickstart", overrides={"model.name": "tiny-random"})["like"] is None


@pytest.mark.parametrize("kind", [name for name in run_form.kinds() if name != "train"])
def test_other_kinds_of_runs_have_no_estimate(launch: LaunchEndpoints, kind: str) -> None:
    state = launch.yaml_of_form(data_of(), kind=kind)
    if state["ok"]:
        assert launch.estimate_run(yaml=state["yaml"]) is None


def test_an_export_has_no_estimate(launch: LaunchEndpoints) -> None:
    assert launch.estimate_run(yaml="kind: export\nruns: [1]\n") is None


def test_unknown_names_are_errors_with_the_known_ones(launch: LaunchEndpoints) -> None:
    with pytest.raises(NotFoundError, match="quickstart"):
        launch.get_preset("../../secret")
    with pytest.raises(NotFoundError, match="quickstart"):
        launch.launch_run(preset="../../secret")
    with pytest.raises(NotFoundError, match="train"):
        launch.run_form("nope")
    with pytest.raises(NotFoundError, match="999"):
        launch.clone_run(999)
    with pytest.raises(NotFoundError, match="999"):
        launch.launch_run(QUICKSTART, parent=999)
    with pytest.raises(ArgumentError, match="argument run"):
        launch.clone_run("x")  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_preset_is_valid_and_checked_within_a_second(launch: LaunchEndpoints) -> None:
    launch.check_config(preset="quickstart")
    for preset in launch.list_presets():
        start = time.monotonic()
        assert launch.form_of_yaml(launch.get_preset(preset["name"]))["ok"], preset["name"]
        assert time.monotonic() - start < 1


# -- validation --------------------------------------------------------------------------------------------------------
def test_form_and_yaml_give_the_same_result(launch: LaunchEndpoints) -> None:
    from_yaml = launch.form_of_yaml(QUICKSTART)
    assert from_yaml["ok"] and from_yaml["data"] is not None
    assert launch.yaml_of_form(from_yaml["data"], QUICKSTART) == from_yaml
    without_comments = launch.yaml_of_form(from_yaml["data"])
    assert without_comments == {**from_yaml, "yaml": from_yaml["resolved"]}


def test_a_changed_value_keeps_the_comments_of_the_yaml(launch: LaunchEndpoints) -> None:
    state = launch.form_of_yaml(QUICKSTART)
    assert state["data"] is not None
    changed = launch.yaml_of_form({**state["data"], "seed": 77}, state["yaml"])
    assert changed["yaml"].splitlines()[0] == QUICKSTART.splitlines()[0]
    assert yaml.safe_load(changed["yaml"])["seed"] == 77


def test_an_invalid_field_has_path_message_and_line(launch: LaunchEndpoints) -> None:
    data = data_of()
    data["stages"][1]["steps"] = 0
    state = launch.yaml_of_form(data)
    (error,) = state["errors"]
    assert error["path"] == ["stages", 1, "steps"] and error["message"] == "must be at least 1, not 0"
    assert error["line"] is not None and state["yaml"].splitlines()[error["line"] - 1].strip() == "steps: 0"
    assert state["resolved"] is None and not state["ok"]


def test_text_that_is_not_yaml_is_returned_unchanged_with_the_line(launch: LaunchEndpoints) -> None:
    text = "name: a\n b: [\n"
    state = launch.form_of_yaml(text)
    assert state["yaml_error"] and state["yaml_error"]["line"] == 2
    assert state["yaml"] == text and state["data"] is None and not state["ok"]
    assert launch.check_config(text)["yaml_error"] == state["yaml_error"]


def test_the_run_kind_can_be_changed(launch: LaunchEndpoints) -> None:
    state = launch.yaml_of_form(data_of(), kind="eval")
    assert state["kind"] == "eval" and fields(state) == ["adapters"]
    with pytest.raises(KeyError, match="train"):
        launch.yaml_of_form(data_of(), kind="nope")


def test_a_preset_with_overrides_is_checked_like_a_file_with_set_options(launch: LaunchEndpoints) -> None:
    found = launch.check_config(preset="quickstart", overrides={"stages.0.steps": 5, "environment.length": 3})
    path = find_preset("quickstart").path
    assert found["resolved"] == dump_yaml(load_config(path, ["stages.0.steps=5", "environment.length=3"]))
    assert fields(launch.check_config(preset="quickstart", overrides={"stages.0.steps": 0})) == ["stages.0.steps"]
    with pytest.raises(ConfigError, match="no valid list index"):
        launch.check_config(preset="quickstart", overrides={"stages.9.steps": 5})


def test_a_configuration_is_given_once(launch: LaunchEndpoints) -> None:
    with pytest.raises(ConfigError, match=r"exactly one of `yaml` and `preset`.*neither"):
        launch.check_config()
    with pytest.raises(ConfigError, match=r"exactly one of `yaml` and `preset`.*both"):
        launch.launch_run(QUICKSTART, "quickstart")


@pytest.mark.parametrize("text", ["x" * 1_000_000, ["x"], 3, None])
def test_a_text_of_a_wrong_type_or_size_is_an_argument_error(launch: LaunchEndpoints, text: Any) -> None:
    with pytest.raises(ArgumentError, match="argument yaml"):
        launch.form_of_yaml(text)


def test_data_of_a_wrong_shape_is_an_error(launch: LaunchEndpoints) -> None:
    assert launch.yaml_of_form({})["errors"] and launch.yaml_of_form({"name": [[[[{}]]]]})["errors"]
    with pytest.raises(ArgumentError, match="argument data"):
        launch.yaml_of_form(3)  # type: ignore[arg-type]
    nested: dict[str, Any] = {}
    for _ in range(900):
        nested = {"a": nested}
    with pytest.raises(ConfigError, match="nested too deeply"):
        launch.yaml_of_form({"name": nested})
    large = launch.form_of_yaml("#" * (MAX_CHARACTERS + 1))
    assert large["yaml_error"] and "200,001 characters" in large["yaml_error"]["message"]


def test_hostile_values_are_returned_as_data(launch: LaunchEndpoints) -> None:
    data = data_of()
    data["name"] = data["environment"]["alphabet"] = '<script>alert(1)</script>"\u2028\x00'
    data["stages"][0]["<img src=x>"] = {"a": None}
    state = launch.yaml_of_form(data)
    assert state["data"] and state["data"]["name"] == data["name"]
    assert state["data"]["stages"][0]["<img src=x>"] == {"a": None}
    assert {"name", "environment.alphabet", "stages.0.<img src=x>"} <= set(fields(state))


def test_the_command_line_equivalent_reads_the_saved_yaml(launch: LaunchEndpoints, tmp_path: Path) -> None:
    found = launch.yaml_of_form(data_of(name="my run", seed=5))
    assert found["file"] == "my-run.yaml" and found["command"] == "rl2f train my-run.yaml"
    (tmp_path / found["file"]).write_text(found["yaml"])
    assert load_config(tmp_path / found["file"]).seed == 5


# -- the allow-list ----------------------------------------------------------------------------------------------------
Act = Callable[[LaunchEndpoints, str], Any]
STARTS: list[Act] = [
    lambda launch, text: launch.launch_run(text),
    lambda launch, text: launch.preflight_config(text),
    lambda launch, text: launch.schedule_run("cron", "0 2 * * *", text),
    lambda launch, text: launch.estimate_run(text),
]
"""Everything that takes a configuration and requires it to be valid."""


def assert_refused(launch: LaunchEndpoints, context: Context, data: dict[str, Any], field: str) -> None:
    text = yaml.safe_dump(data)
    assert fields(launch.yaml_of_form(data)) == fields(launch.form_of_yaml(text)) == [field]
    assert fields(launch.check_config(text)) == [field]
    before = runs.page(context.db).total
    for start in STARTS:
        with pytest.raises(ConfigError, match=re.escape(field)):
            start(launch, text)
    assert runs.page(context.db).total == before and scheduled_runs.all_schedules(context.db) == []


@pytest.mark.parametrize(
    "name",
    [
        *("/etc", "a\x00b"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("../x", "", "~/model", "./x", "a/b/c", "org/../x", "C:\\x", "org/", "http://x/y")
        ),
        pytest.param("org/name\n", marks=pytest.mark.slow),
    ],
)
def test_a_model_outside_the_known_ones_is_refused(launch: LaunchEndpoints, context: Context, name: str) -> None:
    assert_refused(launch, context, data_of(model={"name": name}), "model.name")
    assert fields(launch.check_config(preset="quickstart", overrides={"model.name": name})) == ["model.name"]
    with pytest.raises(ConfigError, match=r"model\.name"):
        launch.launch_run(preset="quickstart", overrides={"model.name": name})


@pytest.mark.slow
def test_an_adapter_that_is_no_checkpoint_of_a_run_is_refused(
    launch: LaunchEndpoints, context: Context, workspace: Workspace, tmp_path: Path
) -> None:
    folder = trained_run(context)
    outside = tmp_path / "outside" / "checkpoints" / "rl@3"
    shutil.copytree(folder, outside)
    link, nested = folder.parent / "link@1", folder / "deeper"
    link.symlink_to(outside)
    shutil.copytree(folder, nested)
    paths = [outside, link, folder.parent / ".." / ".." / ".." / ".." / "outside", folder.relative_to(workspace.runs)]
    paths += [folder.parent, workspace.runs, Path("/etc"), folder.with_name("rl@4"), nested, Path("checkpoints/rl@3")]
    for name in [*map(str, paths), "", f"{folder}\0"]:
        assert_refused(launch, context, data_of(lora={"init_adapter": name}), "lora.init_adapter")
        with pytest.raises(ConfigError, match=r"adapters\.a"):
            launch.launch_run(yaml.safe_dump(evaluation_of({"base": None, "a": name})))


def test_a_path_is_refused_beside_other_errors(launch: LaunchEndpoints) -> None:
    state = launch.yaml_of_form(data_of(lora={"init_adapter": "/etc"}, seed=-1))
    assert set(fields(state)) == {"lora.init_adapter", "seed"}


@pytest.mark.slow
def test_a_dataset_is_one_of_a_stage_or_of_a_run(launch: LaunchEndpoints, context: Context, tmp_path: Path) -> None:
    dataset = trained_run(context).parent.parent / "datasets" / "distil"
    dataset.mkdir(parents=True)
    (dataset / "dataset.json").write_text("{}")
    outside = shutil.copytree(dataset, tmp_path / "outside" / "datasets" / "distil")
    (dataset.parent / "link").symlink_to(outside)
    (choice,) = launch.form_choices()["data"]
    assert choice["value"] == str(dataset) and choice["label"].endswith(":distil")

    def with_dataset(name: str) -> dict[str, Any]:
        return data_of(
            stages=[{"name": "sft", "method": {"type": "sft", "dataset": name}, "steps": 1, "group_size": 1}]
        )

    assert launch.yaml_of_form(with_dataset(str(dataset)))["ok"]
    for name in (str(outside), str(dataset.parent / "link"), str(dataset / "rows.jsonl"), "/etc/passwd", "rows.jsonl"):
        assert_refused(launch, context, with_dataset(name), "stages.0.method.dataset")


# -- launch ------------------------------------------------------------------------------------------------------------
def test_a_launched_run_has_the_resolved_yaml(launch: LaunchEndpoints, context: Context) -> None:
    state = launch.form_of_yaml(QUICKSTART)
    queued = launch.launch_run(state["yaml"])
    run = runs.get(context.db, queued["run"])
    assert queued["url"] == f"/run?run={run.id}" and queued["name"] == run.name == "quickstart"
    assert run.status == "queued" and run.origin == "app"
    assert (context.workspace.folder(run.folder) / "config.yaml").read_text() == state["resolved"] == run.config


def test_a_preset_is_launched_with_overrides(launch: LaunchEndpoints, context: Context) -> None:
    queued = launch.launch_run(preset="quickstart", overrides={"name": "short", "stages.0.steps": 2})
    config = parse_config(yaml.safe_load(runs.get(context.db, queued["run"]).config))
    assert queued["name"] == config.name == "short" and config.model_dump()["stages"][0]["steps"] == 2


def test_an_invalid_configuration_is_not_launched(launch: LaunchEndpoints, context: Context) -> None:
    with pytest.raises(ConfigError, match=r"1 error\(s\).*stages.0.steps: must be at least 1"):
        launch.launch_run(QUICKSTART.replace("steps: 60", "steps: 0"))
    with pytest.raises(ConfigError, match="line 1"):
        launch.launch_run("a: [")
    assert runs.page(context.db).total == 0


def test_a_read_only_server_validates_and_starts_nothing(launch: LaunchEndpoints, context: Context) -> None:
    run = context.queue.add(QUICKSTART, start=False).id or 0
    owner = "Another server has this workspace: http://127.0.0.1:7861."
    context.read_only, context.lock_owner = True, owner
    starts: list[Callable[[], object]] = [
        lambda: launch.launch_run(QUICKSTART),
        lambda: launch.preflight_config(QUICKSTART),
        lambda: launch.abort_preflight(run),
        lambda: launch.schedule_run("cron", "0 2 * * *", QUICKSTART),
    ]
    for start in starts:
        with pytest.raises(StoreReadOnlyError, match=f"^Read-only server: {re.escape(owner)} Fix:"):
            start()
    assert launch.check_config(QUICKSTART)["ok"] and runs.page(context.db).total == 1


# -- preflight ---------------------------------------------------------------------------------------------------------
def test_a_preflight_is_a_queued_run_that_can_be_aborted(launch: LaunchEndpoints, context: Context) -> None:
    queued = launch.preflight_config(QUICKSTART)
    run = runs.get(context.db, queued["run"])
    assert run.kind == "preflight" and queued["name"] == run.name == "preflight quickstart"
    state = launch.get_preflight(queued["run"])
    assert state["yaml"] == run.config and yaml.safe_load(run.config)["kind"] == "preflight"
    assert state["verdict"] is None and state["status"] == "queued" and not state["ended"]
    assert state["facts"] == [] and state["figure"] is None
    launch.abort_preflight(queued["run"])
    assert launch.get_preflight(queued["run"])["ended"]


@pytest.mark.parametrize("passed", [True, False])
def test_a_finished_preflight_has_a_verdict_facts_and_a_histogram(
    launch: LaunchEndpoints, context: Context, passed: bool
) -> None:
    number = launch.preflight_config(QUICKSTART)["run"]
    folder = context.workspace.folder(runs.get(context.db, number).folder)
    (folder / "preflight.json").write_text(report(passed).model_dump_json())
    state = launch.get_preflight(number)
    assert state["verdict"] and state["verdict"]["ok"] is passed and ("Too hard." in state["verdict"]["text"]) != passed
    facts = {fact["label"]: fact["value"] for fact in state["facts"]}
    assert facts["parsable"].startswith("88% (") and facts["mixed groups"] == "50%"
    assert state["figure"] and sum(sum(bar["y"]) for bar in state["figure"]["data"]) == 4


def test_another_run_is_not_shown_or_aborted_as_a_preflight(launch: LaunchEndpoints, context: Context) -> None:
    run = launch.launch_run(QUICKSTART)["run"]
    for number in (run, 999):
        with pytest.raises(NotFoundError, match=str(number)):
            launch.get_preflight(number)
        with pytest.raises(NotFoundError, match=str(number)):
            launch.abort_preflight(number)
    assert runs.get(context.db, run).status == "queued"


def test_only_training_runs_have_a_preflight(launch: LaunchEndpoints, context: Context) -> None:
    evaluation = evaluation_of({"a": str(trained_run(context))})
    with pytest.raises(ConfigError, match="Only a training run has a preflight"):
        launch.preflight_config(yaml.safe_dump(evaluation))


# -- schedules ---------------------------------------------------------------------------------------------------------
def test_the_next_times_of_a_schedule_or_its_error_are_shown(launch: LaunchEndpoints) -> None:
    assert len(launch.preview_schedule("cron", "0 2 * * *")["times"]) == 3
    (at,) = launch.preview_schedule("date", "2090-06-01T08:00", "Europe/Berlin")["times"]
    assert at == "2090-06-01T08:00:00+02:00"
    for when, timezone in (("0 2", "UTC"), ("0 0 30 2 *", "UTC"), ("0 2 * * *", "../../etc/passwd")):
        preview = launch.preview_schedule("cron", when, timezone)
        assert preview["times"] == [] and preview["error"] and preview["fix"]
    assert {"UTC", "Europe/Berlin", "America/New_York"} <= set(launch.list_timezones())


def test_a_schedule_stores_the_yaml_with_its_comments(launch: LaunchEndpoints, context: Context) -> None:
    made = launch.schedule_run("cron", "0 2 * * *", QUICKSTART, timezone="Europe/Berlin", name="nightly")
    row = scheduled_runs.get(context.db, made["schedule"])
    assert (row.name, row.trigger, row.when, row.timezone) == ("nightly", "cron", "0 2 * * *", "Europe/Berlin")
    assert row.config == run_form.check_yaml(QUICKSTART, context.workspace).yaml and row.next_run is not None
    assert len(made["times"]) == 3 and made["name"] == "nightly"
    assert launch.schedule_run("date", "2090-06-01T08:00", preset="quickstart")["name"] == "quickstart"


def test_an_invalid_schedule_is_not_stored(launch: LaunchEndpoints, context: Context) -> None:
    valid = {"yaml": QUICKSTART, "trigger": "cron", "when": "0 2 * * *"}
    for change in ({"when": "x"}, {"timezone": "nope"}, {"yaml": "a: ["}, {"trigger": "hourly"}, {"name": "x" * 101}):
        with pytest.raises(ConfigError):
            launch.schedule_run(**{**valid, **change})  # type: ignore[arg-type]
    assert scheduled_runs.all_schedules(context.db) == []
