"""Models that a form may name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from app.forms.allowlist import known_models, model_refusal


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
