"""Forms: everything registered appears by itself, form and YAML are the same thing, errors stand where they belong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, Field

from app.forms import run_form, schema, yaml_text
from app.forms.schema import Node, fields_of
from jobs import run_kinds
from jobs.workspace import Workspace
from rl2f_core import registry
from rl2f_core.common.paths import CONFIGS
from rl2f_core.config.components import Component
from rl2f_core.config.fields import BaseConfig
from rl2f_core.config.loading import dump_yaml, load_config
from rl2f_core.config.run import BaseRun

ROOT = Path(__file__).resolve().parents[3]
run_kinds.load()
PRESETS = [preset.name for preset in run_form.presets()]
COMPONENTS = [(kind, name) for kind in registry.PACKAGES if kind != "run_kind" for name in registry.names(kind)]
QUICKSTART = run_form.preset_yaml("quickstart")
LOADS = re.compile(r"\b(folder|path|weights|adapter|hub)\b|safetensors", re.IGNORECASE)


def quickstart() -> dict[str, Any]:
    """The quickstart as a mapping, to change."""
    return yaml.safe_load(QUICKSTART)


def changed(dotted: str, value: Any) -> dict[str, Any]:
    """The quickstart with one value changed."""
    data = quickstart()
    parts: list[Any] = [int(part) if part.isdigit() else part for part in dotted.split(".")]
    *above, last = parts
    node: Any = data
    for part in above:
        node = node[part] if isinstance(node, list) else node.setdefault(part, {})
    node[last] = value
    return data


def wrong(data: dict[str, Any], workspace: Workspace) -> dict[str, str]:
    """The errors of a form by their dotted paths."""
    checked = run_form.check_data(data, workspace)
    assert not checked.ok
    return {error.field: error.message for error in checked.errors}


# -- the schema --------------------------------------------------------------------------------------------------------
def assert_covers(cls: type[BaseModel], fields: list[dict[str, Any]]) -> None:
    """Every field of a class has its place, its help, its default and its bounds."""
    found = {field["key"]: field for field in fields}
    for name, info in cls.model_fields.items():
        if schema._is_constant(info.annotation):
            assert name not in found
            continue
        field = found.pop(name)
        assert field["help"] == " ".join((info.description or "").split()) != ""
        assert field["required"] == info.is_required() and ("default" in field) != info.is_required()
        bounds = {type(mark).__name__: mark for mark in info.metadata}
        if "Ge" in bounds and field["node"]["kind"] in ("integer", "number"):
            assert field["node"]["minimum"] == bounds["Ge"].ge
        if "Le" in bounds and field["node"]["kind"] in ("integer", "number"):
            assert field["node"]["maximum"] == bounds["Le"].le
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel) and not info.metadata:
            assert_covers(info.annotation, field["node"]["fields"])
    assert found == {}


@pytest.mark.parametrize(("kind", "name"), COMPONENTS, ids=[f"{kind}-{name}" for kind, name in COMPONENTS])
def test_every_registered_component_appears_with_every_field(kind: str, name: str) -> None:
    cls = registry.get(kind, name).Config  # type: ignore[attr-defined]
    assert_covers(cls, run_form.spec("train")["components"][kind][name]["fields"])


@pytest.mark.parametrize("kind", run_form.kinds())
def test_every_kind_of_run_has_a_form_with_every_field(kind: str) -> None:
    assert_covers(schema.config_class(kind), run_form.spec(kind)["root"]["fields"])


def walk(node: Node, inside: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """All fields of a form, those of every component included once."""
    if node["kind"] == "object":
        for field in node["fields"]:
            yield (*inside, field["key"]), field
            yield from walk(field["node"], (*inside, field["key"]))
    for below in [node.get("item"), node.get("value"), *node.get("options", []), *node.get("items", [])]:
        if isinstance(below, dict):
            yield from walk(below, inside)


def all_fields() -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every field of every kind of run and every component."""
    found = [pair for kind in run_form.kinds() for pair in walk(run_form.spec(kind)["root"], (kind,))]
    for kind, name in COMPONENTS:
        found += walk({**schema.options(kind)[name]}, (kind, name))
    return found


def test_no_field_is_edited_as_raw_yaml_where_a_control_would_do() -> None:
    assert [path for path, field in all_fields() if field["node"]["kind"] == "any"] == []


def test_every_text_field_that_names_weights_takes_only_what_is_known() -> None:
    """A new component whose text field names a folder or a model must carry the mark `known`, or reword its help."""
    suspects = {
        path[-2:] for path, field in all_fields()
        if field["node"]["kind"] == "string" and not field["node"].get("known") and LOADS.search(field["help"])
    }  # fmt: skip
    assert suspects == {("stages", "init_from")}  # the configuration itself takes only names of stages
    marked = {path[-2:]: field["node"]["known"] for path, field in all_fields() if field["node"].get("known")}
    assert marked == {
        ("model", "name"): "models", ("lora", "init_adapter"): "checkpoints", ("local", "adapter"): "checkpoints",
        ("openai_api", "base_url"): "endpoints", ("llm", "prompt"): "prompts", ("self_critique", "prompt"): "prompts",
        ("train", "start_from"): "runs", ("preflight", "start_from"): "runs",
        ("rescore", "run"): "runs", ("fork", "source"): "runs", ("hint_value", "source"): "runs",
        ("llm_judge", "prompt"): "files", ("rollout", "reprompt_template"): "prompts",
        ("rltf_fm", "critique_prompt"): "prompts", ("rl2f_self", "critique_prompt"): "prompts",
        ("dual_critique", "prompt"): "prompts",
        ("vllm", "url"): "endpoints", ("vllm", "adapter_folder"): "files", ("knights_knaves", "source"): "files",
        ("sft", "dataset"): "data", ("math", "source"): "problems", ("math", "test_source"): "problems",
        ("mentions", "path"): "detectors", ("dataset", "path"): "questions",
            ("code", "path"): "files",
        ("alerts", "webhook"): "endpoints", ("mlflow", "uri"): "endpoints",
            ("verifiers", "settings_file"): "files",
            ("reflector", "checkpoint"): "checkpoints",
    }  # fmt: skip
    for place in (("eval", "adapters"), ("fork", "checkpoints"), ("hint_value", "checkpoints")):
        adapters = next(field for path, field in all_fields() if path == place)
        assert adapters["node"]["value"]["known"] == "checkpoints"


@pytest.mark.parametrize(
    ("teacher", "field", "told"),
    [
        ({"llm": {"type": "local", "adapter": "/tmp/adapter"}}, "llm.adapter", "not a checkpoint of a known run"),
        ({"llm": {"type": "local", "model": {"name": "/tmp/model"}}}, "llm.model.name", "not a known model"),
        ({"llm": {"type": "openai_api", "base_url": "http://169.254.169.254/v1"}}, "llm.base_url", "on this machine"),
        ({"llm": {"type": "openai_api", "base_url": "https://api.openai.com/v1"}}, "llm.base_url", "RL2F_ENDPOINTS"),
        ({"llm": {"type": "openai_api", "base_url": "http://localhost.evil.example/v1"}}, "llm.base_url", "nor listed"),
        ({"llm": {"type": "openai_api", "api_key_env": "AWS_SECRET_ACCESS_KEY"}}, "llm.api_key_env", "pattern"),
        ({"prompt": "/etc/secret.txt"}, "prompt", "not a shipped prompt"),
    ],
)
def test_what_a_teacher_inside_a_form_loads_or_asks_is_known_too(
    teacher: dict[str, Any], field: str, told: str, workspace: Workspace
) -> None:
    stages = [{"name": "s", "method": "sft", "steps": 1}]
    inner = {"type": "llm", **teacher}
    for where, config in (
        ("teacher", {"teacher": inner}),
        ("stages.0.teacher", {"stages": [{**stages[0], "teacher": inner}]}),
    ):
        checked = run_form.check_data({"environment": "arithmetic", "stages": stages, **config}, workspace)
        assert not checked.ok
        (error,) = [error for error in checked.errors if error.field == f"{where}.{field}"]
        assert told in error.message


def test_a_form_reads_problems_by_name_and_no_file(workspace: Workspace) -> None:
    stages = [{"name": "s", "method": "sft", "steps": 1}]
    for path, source in (("source", "/etc/x.jsonl"), ("test_source", "../x.parquet"), ("source", "gsm8k")):
        checked = run_form.check_data({"environment": {"type": "math", path: source}, "stages": stages}, workspace)
        told = [(error.field, "not a known set of problems" in error.message) for error in checked.errors]
        assert told == ([] if source == "gsm8k" else [(f"environment.{path}", True)])


def test_a_form_takes_an_endpoint_of_this_machine_and_those_that_the_server_lists(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ok(url: str) -> bool:
        llm = {"type": "openai_api", "base_url": url, "api_key_env": "OPENAI_API_KEY"}
        stages = [{"name": "s", "method": "sft", "steps": 1}]
        data = {"environment": "arithmetic", "teacher": {"type": "llm", "llm": llm}, "stages": stages}
        return run_form.check_data(data, workspace).ok

    assert [ok(f"http://{host}/v1") for host in ("127.0.0.1:8000", "localhost", "[::1]:1", "10.0.0.1")] == [1, 1, 1, 0]
    monkeypatch.setenv("RL2F_ENDPOINTS", "https://api.openai.com/v1, http://10.0.0.1/v1/")
    assert [ok(u) for u in ("https://api.openai.com/v1/", "http://10.0.0.1/v1", "http://10.0.0.1/v2")] == [1, 1, 0]


def test_a_rescoring_in_a_form_reads_a_run_of_the_workspace_and_no_other_folder(workspace: Workspace) -> None:
    (workspace.folder("1-mine")).mkdir()
    (workspace.folder("1-mine") / "config.yaml").write_text("kind: train")
    for name, ok in (("1-mine", True), ("2-none", False), ("..", False), ("/etc", False), ("../runs/1-mine", False)):
        checked = run_form.check_data({"kind": "rescore", "run": name}, workspace)
        assert checked.ok is ok and (ok or "not a run of this workspace" in checked.errors[0].message)
    judge = {"type": "llm_judge", "prompt": "/etc/passwd.txt"}
    (error,) = run_form.check_data({"kind": "rescore", "run": "1-mine", "detectors": [judge]}, workspace).errors
    assert error.field == "detectors.0.prompt" and "a form cannot name" in error.message


def test_basic_fields_come_from_marks_in_the_schema_and_are_few() -> None:
    fields = {".".join(path): field for path, field in walk(run_form.spec("train")["root"])}
    basic = {name for name, field in fields.items() if field["basic"]}
    assert {"name", "environment", "model.name", "stages", "stages.steps", "stages.method"} <= basic
    assert not basic & {"backend", "lora", "leak_detection", "rollout.top_p", "stages.weight_decay"}
    assert len(basic) < len(fields) / 2


def test_a_recursive_component_refuses_what_its_field_refuses() -> None:
    parts = next(f for f in schema.options("environment")["mixture"]["fields"] if f["key"] == "environments")
    inner = next(f for f in parts["node"]["item"]["fields"] if f["key"] == "environment")
    assert "arithmetic" in inner["node"]["types"] and "mixture" not in inner["node"]["types"]


class Inner(BaseConfig):
    """Inside."""

    depth: int = Field(2, gt=0)
    """How deep."""


class Odd(BaseConfig):
    """All the shapes that a plugin may declare."""

    inner: Inner = Field(default_factory=Inner)
    """A section."""
    pairs: dict[str, float] = Field(default_factory=dict, min_length=1)
    """Names and numbers."""
    either: int | str | None = None
    """One or the other."""
    couple: tuple[int, str] = (1, "a")
    """Exactly two."""
    words: list[str] = Field(default_factory=list, max_length=3)
    """At most three."""
    code: str = Field("x", pattern="^x", max_length=9)
    """A pattern."""
    whatever: Any = None
    """No shape at all."""
    me: Odd | None = None
    """Itself."""


def test_every_shape_that_a_plugin_may_declare_has_a_node() -> None:
    nodes = {field["key"]: field["node"] for field in schema.object_node(Odd)["fields"]}
    assert nodes["inner"]["fields"][0]["node"] == {"kind": "integer", "exclusiveMinimum": 0}
    assert nodes["pairs"] == {"kind": "map", "value": {"kind": "number"}, "min": 1}
    assert [option["kind"] for option in nodes["either"]["options"]] == ["integer", "string"]
    assert nodes["either"]["nullable"] is True
    assert [item["kind"] for item in nodes["couple"]["items"]] == ["integer", "string"]
    assert nodes["words"] == {"kind": "list", "item": {"kind": "string"}, "min": 0, "max": 3}
    assert nodes["code"] == {"kind": "string", "pattern": "^x", "maxLength": 9}
    assert nodes["whatever"] == {"kind": "any"}
    assert nodes["me"] == {"kind": "any", "nullable": True}


@pytest.mark.slow
def test_the_environment_of_the_readme_appears_with_its_fields_and_runs_from_the_form(tmp_path: Path) -> None:
    """In a process of its own, because what is registered stays registered."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "class Backward" in block)
    plugin = tmp_path / "backward.py"
    plugin.write_text(code)
    script = (
        "import json, sys\nfrom app.forms import run_form as forms\nfrom jobs.workspace import Workspace\n"
        "found = forms.spec('train')['components']['environment']['backward']\n"
        "data = {'environment': 'backward', 'teacher': 'contentless', "
        "'stages': [{'name': 'a', 'method': 'rlvr', 'steps': 1}]}\n"
        "checked = forms.check_data(data, Workspace(sys.argv[1]))\n"
        "print(json.dumps([found, checked.data['environment'], checked.ok, forms.check_data({**data, 'environment': "
        "{'type': 'backward', 'letters': 'x'}}, Workspace(sys.argv[1])).errors[0].field]))"
    )
    env = {**os.environ, "RL2F_PLUGINS": str(plugin), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, data, ok, place = yaml.safe_load(done.stdout)
    field = next(field for field in found["fields"] if field["key"] == "letters")
    assert (field["default"], field["help"], field["node"]["kind"]) == (4, "Letters of a word.", "integer")
    assert data["type"] == "backward" and data["letters"] == 4 and ok and place == "environment.letters"


# -- form and YAML -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (i % 12 > 0)) for i, n in enumerate(PRESETS)]
)
def test_a_preset_goes_through_form_and_yaml_byte_for_byte(name: str, workspace: Workspace, tmp_path: Path) -> None:
    file, _, cell = name.partition(":")
    path = next(preset.path for preset in run_form.presets() if preset.name == name)
    assert path.stem == file
    wanted = dump_yaml(load_config(f"{path}:{cell}" if cell else path))
    from_yaml = run_form.check_yaml(run_form.preset_yaml(name), workspace)
    assert from_yaml.ok and yaml.safe_load(from_yaml.yaml) == yaml.safe_load(wanted)
    from_form = run_form.check_data(yaml_text.for_browser(from_yaml.data), workspace)
    assert from_form.ok and from_form.yaml == wanted
    file = tmp_path / "run.yaml"
    file.write_text(from_form.yaml)
    assert load_config(file) == from_form.config and dump_yaml(load_config(file)) == wanted
    assert run_form.check_yaml(wanted, workspace).yaml == wanted


def test_a_wrong_form_keeps_every_value_and_writes_out_the_defaults(workspace: Workspace) -> None:
    data = changed("stages.1.steps", "many")
    data["environment"]["surprise"] = {"deep": [1, 2]}
    data["teacher"] = "contentless"
    checked = run_form.check_data(data, workspace)
    assert checked.config is None and checked.data is not None
    assert checked.data["stages"][1]["steps"] == "many"
    assert checked.data["environment"]["surprise"] == {"deep": [1, 2]} and checked.data["environment"]["pool"] == 6
    assert checked.data["teacher"]["type"] == "contentless" and checked.data["teacher"]["text"]
    assert checked.data["rollout"]["top_p"] == 1.0
    assert yaml.safe_load(checked.yaml) == checked.data


def test_whole_numbers_beyond_a_browsers_precision_survive_the_round_trip(workspace: Workspace) -> None:
    large = 2**60 + 1
    checked = run_form.check_data(changed("environment.seed", large), workspace)
    sent = yaml_text.for_browser(checked.data)
    assert sent["environment"]["seed"] == str(large)
    assert run_form.check_data(sent, workspace).yaml == checked.yaml


@pytest.mark.parametrize("kind", ["preflight", "eval"])
def test_another_kind_of_run_keeps_what_both_have(kind: str, workspace: Workspace) -> None:
    data = run_form.change_kind(quickstart(), kind)
    checked = run_form.check_data(data, workspace)
    assert checked.kind == kind and checked.data is not None and checked.data["environment"]["letters"] == 2
    assert [error.field for error in checked.errors] == ([] if kind == "preflight" else ["adapters"])


# -- errors ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dotted", "value", "words"),
    [
        ("stages.1.steps", 0, "must be at least 1, not 0"),
        ("stages.0.method.hint_follow_rate", 2, "must be at most 1, not 2"),
        ("stages.1.method", "nope", "unknown method 'nope'"),
        ("environment.length", "x", "must be a whole number"),
        ("environment.lenght", 3, "did you mean length?"),
        ("environment", "nope", "unknown environment"),
        ("teacher", {"type": "contentless", "text": ""}, ""),
        ("leak_detection", {"detectors": ["exact", "zz"]}, "unknown leak_detector 'zz'"),
        ("lora.target_modules", 7, "must be"),
        ("lora.target_modules", [1], "valid string"),
        ("evaluation.conditions", ["hints", "x"], "must be 'hints'"),
        ("rollout.temperature", None, "must be a number"),
        ("surprise", 1, "unknown key"),
        ("stages", [], "needs at least 1"),
        ("name", "../x", "match pattern"),
    ],
)
def test_an_error_stands_at_the_field_that_caused_it(dotted: str, value: Any, words: str, workspace: Workspace) -> None:
    inner = {
        "teacher": "teacher.text",
        "leak_detection": "leak_detection.detectors.1",
        "evaluation.conditions": "evaluation.conditions.1",
    }
    place = "lora.target_modules.0" if value == [1] else inner.get(dotted, dotted)
    found = wrong(changed(dotted, value), workspace)
    assert list(found) == [place] and words in found[place]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (("stages.1.name", "warmup"), "stages.1.name"),
        (("stages.1.init_from", "later"), "stages.1.init_from"),
        (("stages.1.group_size", 1), "stages.1.group_size"),
        (("rollout.max_turns", 1), "rollout.max_turns"),
        (("rollout.max_seq_len", 16), "rollout.max_seq_len"),
        (("evaluation.checkpoints", ["zz@3"]), "evaluation.checkpoints"),
        (("environment.pool", 2), "environment"),
        (("stages.0.trainer", "trl"), "stages.0.trainer"),
        (("stages.0.method", {"type": "sft", "dataset": "nowhere"}), "stages.0.method.dataset"),
        (
            ("stages.1.method", {"type": "sdpo", "feedback": "never", "peer_solutions": "none"}),
            "stages.1.method.feedback",
        ),
        (("stages.1.max_group_resamples", 2), "stages.1.max_group_resamples"),
        (("stages.1.curriculum", {"levels": [{"steps": 1}, {}]}), "stages.1.curriculum"),
        (("stages.1.curriculum", {"levels": [{"steps": 1}, {"steps": 2}]}), "stages.1.curriculum.levels.1.steps"),
        (("stages.1.learning_rate", {"points": [{"step": 3, "value": 0.1}]}), "stages.1.learning_rate.points"),
        (("stages.1.teacher", {"type": "llm", "style": "without_answer", "sees": {}}), "stages.1.teacher.style"),
    ],
)
def test_an_error_between_fields_stands_at_one_of_them(
    change: tuple[str, Any], place: str, workspace: Workspace
) -> None:
    data = changed(*change)
    if change[0] == "rollout.max_seq_len":
        data["rollout"]["max_new_tokens"] = 20
    if change[0] == "stages.1.max_group_resamples":
        data["stages"][1]["method"] = "reinforce_pp"
    if place == "environment":
        data["environment"]["letters"], place = 3, "environment.letters"
    assert list(wrong(data, workspace)) == [place]


def test_several_errors_are_all_named_with_their_lines(workspace: Workspace) -> None:
    text = (
        QUICKSTART.replace("steps: 60", "steps: 0")
        .replace("alpha: 32", "alpha: 32, top_layer_fraction: 5")
        .replace("seed: 0", "seed: -1", 1)
    )
    checked = run_form.check_yaml(text, workspace)
    rows = text.splitlines()
    assert {error.field for error in checked.errors} == {"seed", "lora.top_layer_fraction", "stages.0.steps"}
    for error in checked.errors:
        assert error.line is not None and str(error.path[-1]) in rows[error.line - 1]


def test_a_missing_key_is_reported_where_it_should_stand(workspace: Workspace) -> None:
    found = wrong({"environment": "guess_number", "stages": [{"steps": 1}]}, workspace)
    assert found == {"stages.0.name": "is required", "stages.0.method": "is required"}


def test_a_component_that_is_unknown_has_no_fields() -> None:
    node = {"kind": "component", "component": "environment", "types": []}
    assert fields_of(node, {"type": "nope"}) == [] == fields_of(node, {"type": ["x"]}) == fields_of(node, 3)


def test_an_unknown_kind_is_an_error_at_the_kind(workspace: Workspace) -> None:
    for kind in ("nope", ["x"], 3):
        assert list(wrong({**quickstart(), "kind": kind}, workspace)) == ["kind"]


def test_a_schedule_is_a_number_or_settings_and_its_errors_stand_at_the_point_that_caused_them(
    workspace: Workspace,
) -> None:
    stages = next(f for f in run_form.spec("train")["root"]["fields"] if f["key"] == "stages")["node"]["item"]["fields"]
    nodes = {f["key"]: f["node"] for f in stages}
    for key, kind in (("group_size", "integer"), ("learning_rate", "number"), ("temperature", "number")):
        plain, points = nodes[key]["options"]
        assert nodes[key]["kind"] == "union" and plain["kind"] == kind and points["kind"] == "object"
        (held,) = [f["node"] for f in points["fields"] if f["key"] == "points"]
        assert [f["key"] for f in held["item"]["fields"]] == ["step", "value"] and held["min"] == 1
    assert nodes["temperature"]["nullable"] and nodes["curriculum"]["nullable"]
    data = quickstart()
    data["stages"][1]["group_size"] = {"points": [{"step": 0, "value": 4}, {"step": 5, "value": 0}]}
    assert list(wrong(data, workspace)) == ["stages.1.group_size.points.1.value"]


# -- presets and names -------------------------------------------------------------------------------------------------
def test_presets_start_with_the_first_look_and_the_default_and_say_what_they_are_for() -> None:
    found = run_form.presets()
    assert [preset.name for preset in found[:2]] == [run_form.FIRST_PRESET, run_form.DEFAULT_PRESET]
    assert {preset.path.parents[1] for preset in found} == {CONFIGS}
    assert all(preset.about for preset in found)


def test_file_and_command_are_made_of_the_name_and_of_nothing_else() -> None:
    def named(name: str | None) -> run_form.FormState:
        return run_form.FormState(kind="train", data={"name": name}, yaml="")

    assert named("my run/../x; rm -rf").command == "rl2f train my-run-..-x-rm-rf.yaml"
    assert (
        named("..").file == named(None).file == run_form.FormState(kind="train", data=None, yaml="").file == "run.yaml"
    )
    assert named("quickstart").file == "quickstart.yaml"


def test_what_the_form_resolves_is_a_run(workspace: Workspace) -> None:
    config = run_form.check_yaml(QUICKSTART, workspace).config
    assert isinstance(config, BaseRun) and isinstance(Component("environment").validate("guess_number"), BaseConfig)
