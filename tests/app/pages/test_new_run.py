"""The form of a new run: values of new parts, folds, alternatives, limits."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import gradio as gr
import pytest
from page_nodes import elements

from app.common.context import Context
from app.endpoints.launch import FormState, PresetInfo
from app.endpoints.studio import Studio
from app.forms import run_form
from app.forms.allowlist import Option
from app.forms.errors import FieldError
from app.forms.estimate import Estimate, Pace, estimate, estimate_study, size
from app.forms.preflight import PreflightState, PreflightVerdict
from app.forms.yaml_text import read
from app.pages.new_run.draft import (
    NO_SOLUTIONS,
    Draft,
    bounds,
    option_of,
    parse_number,
    renamed,
)
from app.pages.new_run.form import draw_form
from app.pages.new_run.page import _Page
from app.pages.new_run.view import command, preset_choices, summary
from jobs.workspace import Workspace


@pytest.fixture
def draft() -> Draft:
    """The preset quickstart with all defaults."""
    spec = {**run_form.spec("train"), "kind": "train"}
    data = run_form.parse_config(read(run_form.preset_yaml("quickstart")).value).model_dump(mode="json")
    return Draft(spec=spec, data=data, choices=defaultdict(list))


def found(form: Any, **attributes: str) -> list[list[Any]]:
    """Return the elements with these attributes."""
    wanted = {key.replace("_", "-"): value for key, value in attributes.items()}
    return [each for each in elements(form) if wanted.items() <= each[1].items()]


def names(draft: Draft) -> list[str]:
    return [stage["name"] for stage in draft.data["stages"]]


def test_stages_are_added_duplicated_moved_and_removed_with_unique_names(draft: Draft) -> None:
    node = draft.node_at(("stages",))
    draft.edit_list(("stages",), node, "duplicate", 1)
    assert names(draft) == ["warmup", "rl2f", "rl2f-2"]
    draft.edit_list(("stages",), node, "up", 2)
    draft.edit_list(("stages",), node, "remove", 0)
    assert names(draft) == ["rl2f-2", "rl2f"]
    draft.edit_list(("stages",), node, "add", -1)
    assert names(draft) == ["rl2f-2", "rl2f", "rl2f-3"]


def test_an_open_fold_moves_with_its_stage(draft: Draft) -> None:
    draft.opened = {"stages.0", "stages.0.method", "lora"}
    draft.edit_list(("stages",), draft.node_at(("stages",)), "down", 0)
    assert draft.opened == {"stages.1", "stages.1.method", "lora"}


def test_a_type_that_was_left_comes_back_with_its_values(draft: Draft) -> None:
    path = ("environment",)
    node = next(each["node"] for each in draft.spec["root"]["fields"] if each["key"] == "environment")
    draft.data["environment"]["length"] = 7
    draft.choose_type(path, node, "guess_number")
    assert draft.data["environment"]["type"] == "guess_number" and draft.data["environment"]["size"] == 16
    draft.choose_type(path, node, "secret_code")
    assert draft.data["environment"]["length"] == 7


def test_an_error_in_a_folded_section_opens_the_folds_around_it(draft: Draft) -> None:
    draft.reveal(("lora", "rank"))
    draft.reveal(("stages", 0, "save_steps"))
    draft.reveal(("model", "name"))
    assert draft.opened == {"*", "stages.0"}


def test_changed_fields_are_those_that_differ_from_their_default(draft: Draft) -> None:
    draft.data["seed"] = 5
    assert (("seed",), 0) in list(draft.changed())


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"minimum": 1, "maximum": 64}, "1 … 64"),
        ({"minimum": 1}, "≥ 1"),
        ({"exclusiveMinimum": 0}, "> 0"),
        ({"minimum": 2, "maximum": 2}, "only 2"),
        ({"maximum": 2**53}, ""),
        ({}, ""),
    ],
)
def test_limits_are_short(node: dict[str, Any], text: str) -> None:
    assert bounds(node) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), (" -3 ", -3), ("1e-5", 1e-5), ("many", "many"), ("9" * 19, "9" * 19), ("1e999", "1e999"), ("", "")],
)
def test_numbers_that_a_browser_keeps_are_numbers(text: str, value: Any) -> None:
    assert parse_number(text) == value


def test_the_alternative_of_a_value_is_found_by_its_shape() -> None:
    options = [{"kind": "number"}, {"kind": "object"}, {"kind": "choice", "values": ["auto"]}]
    assert [option_of(options, value) for value in (0.5, {}, "auto", [], None)] == [0, 1, 2, None, None]


def test_a_name_that_is_taken_gets_a_number() -> None:
    assert renamed({"name": "rl-2"}, [{"name": "rl-2"}, {"name": "rl-3"}]) == {"name": "rl-4"}


@pytest.mark.parametrize("kind", run_form.kinds())
def test_every_field_of_every_kind_is_drawn_once(kind: str) -> None:
    spec = run_form.spec(kind)
    form = draw_form(Draft(spec={**spec, "kind": kind}, choices=defaultdict(list), opened={"*"}))
    for field in spec["root"]["fields"]:
        assert len(found(form, id=f"field-{field['key']}")) == 1


def test_an_edit_of_an_input_changes_the_draft(draft: Draft) -> None:
    draw_form(draft)
    draft.controls["seed"]("7")
    draft.controls["stages.0.learning_rate"]("1e-5")
    draft.controls["environment.type"]("guess_number")
    assert draft.data["seed"] == 7 and draft.data["stages"][0]["learning_rate"] == 1e-5
    draw_form(draft)
    assert "environment.size" in draft.controls and "environment.length" not in draft.controls


def test_a_text_stays_as_typed_until_its_value_changes(draft: Draft) -> None:
    draw_form(draft)
    draft.controls["stages.0.learning_rate"]("1e-5")
    draft.typed["stages.0.learning_rate"] = ("1e-5", None)
    for _ in range(2):
        (shown,) = found(draw_form(draft), data_field="stages.0.learning_rate")
        assert shown[1]["data-value"] == "1e-5"
    draft.data["stages"][0]["learning_rate"] = 0.5
    (shown,) = found(draw_form(draft), data_field="stages.0.learning_rate")
    assert shown[1]["data-value"] == "0.5"


def test_an_error_is_shown_at_its_field_or_the_nearest_section(draft: Draft) -> None:
    paths = (("seed",), ("stages", 0, "weight_decay"))
    errors = tuple(FieldError(path, "is wrong") for path in paths)
    draft.checked = FormState(kind="train", errors=errors, data=None, yaml="")
    form = draw_form(draft)
    (seed,), (stage,) = found(form, id="field-seed"), found(form, id="field-stages.0")
    assert seed[-2][2:] == ["is wrong"] or seed[-1][2:] == ["is wrong"]
    assert found(seed, aria_invalid="true") and not found(stage, aria_invalid="true")
    assert stage[-1][2:] == ["stages.0.weight_decay: is wrong"]


def test_a_field_that_differs_from_its_default_has_a_button_to_reset_it(draft: Draft) -> None:
    assert not found(draw_form(draft), data_action="reset", data_at='["seed"]')
    draft.data["seed"] = 5
    (button,) = found(draw_form(draft), data_action="reset", data_at='["seed"]')
    assert button[1]["title"] == "seed: back to the default, 0"
    draft.change("reset", "", button[1]["data-at"])
    assert draft.data["seed"] == 0


def test_presets_are_listed_by_file_with_size_duration_and_hardware_those_for_a_cpu_first() -> None:
    size = Estimate(dialogues=2208, tokens=9, seconds=130.0)
    presets = [
        PresetInfo(name=name, description="", model=model, runs_on_cpu=model == "tiny", estimate=found)
        for name, model, found in (("paper:a", "large", None), ("quick", "tiny", size), ("paper:b", "large", None))
    ]
    assert preset_choices(presets, "paper:b") == [
        ("quick · tiny · 2,208 dialogues · ≈ 2 min 10 s · CPU", "quick"),
        ("paper · 2 variants · large · paper scale, GPU", "paper:b"),
    ]


def test_the_summary_counts_errors_and_leads_to_their_fields() -> None:
    error = FieldError(("seed",), "must be at least 0, not -1", line=2)
    shown = str(summary(FormState(kind="train", errors=(error,), data=None, yaml="")))
    assert "1 error" in shown and "'data-at': '[\"seed\"]'" in shown and "(line 2)" in shown


def test_an_estimate_says_that_it_excludes_a_model_teacher_that_of_a_study_too(draft: Draft) -> None:
    scripted = run_form.parse_config(draft.data)
    asking = run_form.parse_config({**draft.data, "teacher": {"type": "leaky", "base": {"type": "llm"}}})
    sizes = [estimate_study(arms, 2, lambda model: None) for arms in ([scripted], [scripted, asking])]
    assert [size is not None and size.model_teacher for size in sizes] == [False, True]
    shown = str(summary(checked(draft), sizes[1], {}, []))
    assert "without the time and tokens of the model that writes the hints" in shown


def test_another_task_drops_name_comments_teacher_and_token_limits_of_the_preset(draft: Draft) -> None:
    draft.text, draft.data["teacher"] = "# Does RL teach …", {"type": "llm"}
    draft.choose_type(("environment",), draft.node_at(("environment",)), "guess_number")
    assert draft.data["environment"]["type"] == draft.data["name"] == "guess_number"
    assert draft.text == "" and "teacher" not in draft.data and draft.data["rollout"]["max_turns"] == 3
    assert not {"max_new_tokens", "max_seq_len"} & set(draft.data["rollout"])


def test_another_task_keeps_a_teacher_that_differs_from_the_one_of_the_preset(draft: Draft) -> None:
    draft.start = checked(draft)
    draft.data = {**draft.data, "teacher": {"type": "contentless"}}
    draft.choose_type(("environment",), draft.node_at(("environment",)), "guess_number")
    assert draft.data["teacher"] == {"type": "contentless"}


def checked(draft: Draft) -> FormState:
    """Return the valid state of a draft."""
    config = run_form.parse_config(draft.data)
    return FormState(kind="train", data=draft.data, yaml="", config=config)


def test_a_draft_names_what_differs_from_where_it_started(draft: Draft) -> None:
    draft.start = checked(draft)
    draft.data = {**draft.data, "seed": 7}
    assert draft.changes() == {"seed": 7}
    shown = str(summary(checked(draft), None, draft.changes()))
    assert "Changed: " in shown and "seed: 7" in shown


def test_warnings_size_and_a_failed_preflight_stand_beside_the_start(draft: Draft) -> None:
    pace = Pace(run=4, seconds_per_token=0.01, memory_gb=1.87)
    size = estimate(run_form.parse_config(draft.data), lambda model: pace)
    shown = str(summary(checked(draft), size, {}, ["No solutions."]))
    assert "ready" in shown and "No solutions." in shown
    assert "About 15 min, 1.9 GB of memory, as in " in shown and "run=4" in shown
    recorded = estimate(run_form.parse_config(draft.data), lambda model: Pace(seconds_per_token=0.01))
    assert "About 15 min on two cores, as in recorded runs. " in str(summary(checked(draft), recorded, {}, []))
    verdict = PreflightVerdict(ok=False, text="not worth starting", fix="", note="")
    judged = PreflightState(
        run=9, status="succeeded", ended=True, detail=None, yaml="", phase=None, done=1, total=1, verdict=verdict
    )
    shown = str(summary(checked(draft), judged=judged))
    assert "not worth starting" in shown and "ready" not in shown


@pytest.mark.parametrize(("teacher", "warned"), [(None, True), ("scripted", True), ({"type": "leaky"}, True),
                                                 ("llm", False), ({"type": "llm"}, False)])  # fmt: skip
def test_the_warning_about_hints_without_solutions_goes_with_a_model_teacher(
    draft: Draft, teacher: object, warned: bool
) -> None:
    draft.warnings = ["3 bad rows are left out.", NO_SOLUTIONS]
    draft.data = {**draft.data, "teacher": teacher}
    assert (NO_SOLUTIONS in draft.open_warnings()) == warned
    assert "3 bad rows are left out." in draft.open_warnings()


def test_an_evaluation_without_checkpoints_offers_the_last_ones_of_the_newest_runs(draft: Draft) -> None:
    labels = ("7:rl@6", "7:rl@3", *(f"{run}:rl@1" for run in (5, 4, 3, 2, 1)))
    draft.choices["checkpoints"] = [Option(value=f"/{label}", label=label, note="words") for label in labels]
    draft.spec = {**run_form.spec("eval"), "kind": "eval"}

    def addresses() -> list[Any]:
        return [link[1]["href"] for link in elements(draw_form(draft), "a")]

    draft.data = run_form.change_kind(draft.data, "eval")
    assert addresses() == [f"/new?evaluate={label}" for label in ("7:rl@6", "5:rl@1", "4:rl@1", "3:rl@1", "2:rl@1")]
    draft.data["adapters"] = {"base": None}
    assert addresses() == []


@pytest.mark.parametrize(("kind", "explained"), [("train", False), ("study", False), ("eval", True)])
def test_the_command_of_other_kinds_than_train_is_explained(kind: str, explained: bool) -> None:
    shown = str(command(FormState(kind=kind, data={"kind": kind}, yaml="")))
    assert ("rl2f train starts runs of every kind" in shown) == explained


@pytest.mark.slow
def test_own_data_and_a_file_replace_the_notice_of_restored_changes(context: Context) -> None:
    with gr.Blocks():
        page = _Page(Studio(context))
    stored = {"preset:quickstart": {"yaml": run_form.preset_yaml("guess_number"), "time": 1.0}}
    for replace in (
        lambda draft: page._use_environment(draft, {"type": "guess_number"}, "mine.csv", []),
        lambda draft: page.load_file(draft, b"kind: train"),
    ):
        draft = Draft()
        assert "Restored unsaved changes" in str(page.open_page(draft, {}, stored)[page.notice])
        assert replace(draft)[page.notice] is None


def test_the_size_counts_dialogues_of_steps_and_evaluations(draft: Draft) -> None:
    config = run_form.parse_config(draft.data)
    # 60 · 8 · 1 + 24 · 4 · 8 of training; (base + 2 stages) · 5 conditions · 64 tasks of evaluation
    assert size(config).dialogues == 480 + 768 + 960
    assert size(config).tokens == 2208 * 3 * 14
    assert estimate(config, lambda model: None) == size(config)


def test_the_form_of_a_study_is_replaced_by_its_arms_and_hypotheses(draft: Draft, workspace: Workspace) -> None:
    draft.checked = run_form.check_yaml(run_form.preset_yaml("tiny"), workspace)
    shown = str(draw_form(draft))
    assert "rl2f, contentless" in shown and "The content of hints teaches" in shown
    assert not found(draw_form(draft), aria_invalid="true") and "data-field" not in shown
    assert "2 arms × 2 seeds = 4 runs and 2 shared warm-ups" in str(summary(draft.checked))
    draft.checked = run_form.check_yaml(run_form.preset_yaml("tiny").replace("seeds: [0, 1]", "seeds: []"), workspace)
    assert "1 error" in str(summary(draft.checked)) and "The content of hints" not in str(draw_form(draft))
