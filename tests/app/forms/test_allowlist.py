"""Models that a form may name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from app.forms.allowlist import check_model, list_model_options


def test_a_folder_that_looks_like_a_hub_id_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert check_model("org/name") is None
    monkeypatch.chdir(tmp_path)
    assert check_model("org/name") is not None


def test_known_models_are_those_of_the_model_store(rl2f_home: Path, tiny: Path) -> None:
    assert {"smollm2-135m", "tiny-random"} <= {option["value"] for option in list_model_options()}
    assert all(check_model(option["value"]) is None for option in list_model_options())
    cached = rl2f_home / "models" / "mine"
    shutil.copytree(tiny, cached, dirs_exist_ok=True)
    assert check_model(str(cached)) is None
    assert check_model(str(rl2f_home / "models")) is not None and check_model(str(tiny)) is not None
    (rl2f_home / "models" / "link").symlink_to(tiny)
    assert check_model(str(rl2f_home / "models" / "link")) is not None
