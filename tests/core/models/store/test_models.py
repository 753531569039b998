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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl2f_core.errors import DiskFullError, ModelError
from rl2f_core.models.store import store
from rl2f_core.models.store.files import MANIFEST, identity, read_manifest
from rl2f_core.models.store.tiny import build as build_tiny

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


def built_in(build: Build, name: str = "made", needed: int = 0) -> store.BuiltIn:
    return store.BuiltIn(name, "for a test", "none", build, needed)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def leftovers(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock"))


# -- the tiny model --------------------------------------------------------------------------------------------------
def test_equal_seeds_give_byte_identical_tiny_models(tiny: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    build_tiny(again)
    build_tiny(other, seed=1)
    files = sorted(path.name for path in tiny.iterdir())
    assert files == sorted(path.name for path in again.iterdir())
    assert all((tiny / name).read_bytes() == (again / name).read_bytes() for name in files)
    assert (tiny / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()
    assert (tiny / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_the_tiny_tokenizer_is_lossless_and_has_the_chat_tokens(tiny: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(tiny))
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

    found = store.get_model(str(tiny))
    assert found.path == tiny and len(found.checksum) == 64
    model = AutoModelForCausalLM.from_pretrained(str(found.path), use_safetensors=True)
    logits = model(torch.tensor([[1, 5, 9]])).logits
    assert logits.shape == (1, 3, 384) and bool(torch.isfinite(logits).all())


def test_tiny_random_is_a_built_in_name_with_the_checksum_of_the_local_copy(tiny: Path, home: Path) -> None:
    found = store.get_model("tiny-random")
    assert found.path == home / "models" / "tiny-random"
    assert found.checksum == store.get_model(str(tiny)).checksum
    entry = next(e for e in store.list_models() if e.name == "tiny-random")
    assert entry.path == found.path and entry.bytes > 100_000 and entry.checksum == found.checksum


# -- the cache -------------------------------------------------------------------------------------------------------
def test_a_model_is_built_only_once(tiny: Path, home: Path) -> None:
    calls = []

    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        calls.append(folder)
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        return {"source": "a copy", "version": "1"}

    first, second = store.ensure_model(built_in(build)), store.ensure_model(built_in(build))
    assert first == second and len(calls) == 1
    manifest = read_manifest(first.path)
    assert manifest is not None and (manifest["source"], manifest["version"]) == ("a copy", "1")
    weights = (first.path / "model.safetensors").read_bytes()
    assert manifest["files"]["model.safetensors"]["sha256"] == hashlib.sha256(weights).hexdigest()
    assert set(manifest["files"]) == {path.name for path in tiny.iterdir()}


def test_a_cache_below_a_hidden_folder_is_hashed_like_any_other(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RL2F_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    found = store.get_model("tiny-random")
    assert found.path == tmp_path / ".cache" / "rl2f" / "models" / "tiny-random"
    assert found.checksum == store.get_model(str(tiny)).checksum
    flip_last_byte(found.path / "model.safetensors")
    with pytest.raises(ModelError, match="checksum mismatch"):
        store.get_model("tiny-random")


def test_the_checksum_covers_weights_and_tokenizer_but_not_the_license() -> None:
    hashes = {"model.safetensors": "a", "tokenizer.json": "b", "LICENSE": "c"}
    assert identity(hashes) == identity(hashes | {"LICENSE": "x", "README.md": "y"})
    assert identity(hashes) != identity(hashes | {"model.safetensors": "x"})
    assert identity(hashes) != identity(hashes | {"tokenizer.json": "x"})


@pytest.mark.parametrize("error", [RuntimeError("torn"), KeyboardInterrupt(), ModelError("no such wheel")])
def test_an_interrupted_build_leaves_no_files(tiny: Path, home: Path, error: BaseException) -> None:
    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        raise error

    with pytest.raises(type(error)):
        store.ensure_model(built_in(build))
    assert leftovers(home) == []


def test_files_of_a_killed_build_are_ignored_and_removed_by_the_next(tiny: Path, home: Path) -> None:
    code = (
        "import os, shutil, sys; from rl2f_core.models.store import store\n"
        "def build(folder, on_message):\n"
        f"    shutil.copytree({str(tiny)!r}, folder, dirs_exist_ok=True); os.kill(os.getpid(), 9)\n"
        "store.ensure_model(store.BuiltIn('made', '', '', build))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).resolve().parents[4], check=False)
    assert done.returncode == -9
    assert len(leftovers(home)) == 1 and leftovers(home)[0].endswith(".part")
    assert read_manifest(home / "models" / "made") is None

    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        return {"source": "a copy", "version": "1"}

    store.ensure_model(built_in(build))
    assert leftovers(home) == ["made"]


def test_concurrent_calls_build_one_model(tiny: Path, home: Path) -> None:
    calls = []
    inside = threading.Event()

    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        calls.append(folder)
        inside.wait(1.0)  # long enough for the other to reach the lock
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        return {"source": "a copy", "version": "1"}

    found: list[store.ModelFolder] = []
    threads = [threading.Thread(target=lambda: found.append(store.ensure_model(built_in(build)))) for _ in range(2)]
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
        store.ensure_model(built_in(build))
    assert leftovers(home) == []


def test_too_little_disk_space_is_an_error_before_the_build(home: Path) -> None:
    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        raise AssertionError("must not be reached")

    with pytest.raises(DiskFullError, match=r"needs 1000000000\.0 GB"):
        store.ensure_model(built_in(build, needed=10**18))


def test_a_full_disk_during_the_build_leaves_no_files(tiny: Path, home: Path) -> None:
    def build(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        raise OSError(28, "No space left on device")

    with pytest.raises(DiskFullError):
        store.ensure_model(built_in(build))
    assert leftovers(home) == []


# -- checksums -------------------------------------------------------------------------------------------------------
def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def test_a_changed_file_is_detected_on_use_and_force_repairs_it(home: Path) -> None:
    found = store.get_model("tiny-random")
    flip_last_byte(found.path / "model.safetensors")
    with pytest.raises(ModelError, match=r"checksum mismatch in model\.safetensors"):
        store.get_model("tiny-random")
    assert store.get_model("tiny-random", force=True) == found


def test_verify_detects_a_change_with_equal_size_and_time(home: Path) -> None:
    found = store.get_model("tiny-random")
    weights = found.path / "model.safetensors"
    before = weights.stat()
    flip_last_byte(weights)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.get_model("tiny-random") == found  # the cheap check cannot see it
    with pytest.raises(ModelError, match="checksum mismatch"):
        store.get_model("tiny-random", verify=True)


def test_a_missing_file_is_detected(home: Path) -> None:
    found = store.get_model("tiny-random")
    (found.path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        store.get_model("tiny-random")


def test_a_copied_cache_with_new_times_is_valid(home: Path) -> None:
    found = store.get_model("tiny-random")
    for path in found.path.iterdir():
        os.utime(path, ns=(1, 1))
    assert store.get_model("tiny-random") == found


def test_an_edited_local_folder_has_another_checksum(copy: Path, home: Path) -> None:
    before = store.get_model(str(copy)).checksum
    flip_last_byte(copy / "model.safetensors")
    assert store.get_model(str(copy)).checksum != before
    assert not (copy / MANIFEST).exists()  # the user's folder stays as it is


# -- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["no-such-model", "./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "", "a/b/c"])
def test_the_error_for_a_missing_model_lists_the_known_ones(name: str, home: Path) -> None:
    with pytest.raises(ModelError, match="no such model") as caught:
        store.get_model(name)
    assert "smollm2-135m" in str(caught.value)


class Bomb:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_pickle_only_folder_is_refused_without_reading_it(copy: Path, home: Path, tmp_path: Path, file: str) -> None:
    (copy / "model.safetensors").unlink()
    (copy / file).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(ModelError, match="only as pickle"):
        store.get_model(str(copy))
    assert not (tmp_path / "exploded").exists()


def test_a_pickle_beside_safetensors_is_never_read(copy: Path, home: Path, tmp_path: Path) -> None:
    from rl2f_core.config.model import ModelConfig
    from rl2f_core.models.backends.hf.backend import HFBackend

    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    HFBackend(HFBackend.Config(), ModelConfig(name=str(copy), device="cpu", dtype="float32"))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("architectures", [["BertForMaskedLM"], ["T5ForConditionalGeneration"], [], None])
def test_a_model_that_is_not_causal_is_refused(copy: Path, home: Path, architectures: Any) -> None:
    edit(copy, architectures=architectures)
    with pytest.raises(ModelError, match="not a causal language model"):
        store.get_model(str(copy))


def test_a_model_without_chat_template_is_refused(copy: Path, home: Path) -> None:
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        store.get_model(str(copy))


def test_a_folder_without_config_and_an_adapter_have_different_errors(tmp_path: Path, home: Path) -> None:
    with pytest.raises(ModelError, match=r"no readable config\.json"):
        store.get_model(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="LoRA adapter"):
        store.get_model(str(tmp_path))


@pytest.mark.parametrize("keep", [0, 4, 100, -1, -1000])
def test_an_incomplete_safetensors_file_is_refused(copy: Path, home: Path, keep: int) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(ModelError, match="incomplete or invalid"):
        store.get_model(str(copy))


def test_a_missing_shard_is_named(copy: Path, home: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors missing"):
        store.get_model(str(copy))
