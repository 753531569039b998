"""Models that a form may name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from app.forms import run_form
from app.forms.allowlist import list_model_options, refusal
from jobs.workspace import Workspace


def check_model(name: str, workspace: Workspace = Workspace(Path("unused"))) -> str | None:
    """Return why a form may not name a model."""
    return refusal("models", name, workspace)


def test_a_folder_that_looks_like_a_hub_id_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert check_model("org/name") is None
    monkeypatch.chdir(tmp_path)
    assert check_model("org/name") is not None


def test_known_models_are_those_of_the_model_store(rl2f_home: Path, tiny: Path) -> None:
    assert {"smollm2-135m", "tiny-random"} <= {option.value for option in list_model_options()}
    assert all(check_model(option.value) is None for option in list_model_options())
    cached = rl2f_home / "models" / "mine"
    shutil.copytree(tiny, cached, dirs_exist_ok=True)
    assert check_model(str(cached)) is None
    assert check_model(str(rl2f_home / "models")) is not None and check_model(str(tiny)) is not None
    (rl2f_home / "models" / "link").symlink_to(tiny)
    assert check_model(str(rl2f_home / "models" / "link")) is not None


@pytest.mark.parametrize(
    ("alerts", "field"),
    [
        ({"command": ["true", "{text}"]}, "alerts.command.0"),
        ({"webhook": "https://example.org/x"}, "alerts.webhook"),
        ({"webhook": "$OPENAI_API_KEY"}, "alerts.webhook"),
    ],
)
def test_a_form_starts_no_program_and_posts_to_no_foreign_address(
    alerts: dict[str, object], field: str, tmp_path: Path
) -> None:
    data = yaml.safe_load(run_form.preset_yaml("quickstart"))
    workspace = Workspace(tmp_path).create()
    assert run_form.check_data({**data, "alerts": {"webhook": "http://127.0.0.1:9/x"}}, workspace).ok
    checked = run_form.check_data({**data, "alerts": alerts}, workspace)
    assert field in [error.field for error in checked.errors]


def test_the_prompt_of_a_dual_critique_is_a_shipped_one(tmp_path: Path) -> None:
    data = yaml.safe_load(run_form.preset_yaml("quickstart"))
    data["rollout"]["prompting"] = "reprompt"
    data["stages"][1]["method"] = {"type": "rltf_grpo", "dual_critique": {"prompt": "/etc/passwd"}}
    checked = run_form.check_data(data, Workspace(tmp_path).create())
    assert "stages.1.method.dual_critique.prompt" in [error.field for error in checked.errors]
