"""The scripts for a GPU machine, run here on the CPU with the tiny model. `compile` is left out: it takes minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent


def script(name: str) -> ModuleType:
    """Import a script of this folder."""
    spec = spec_from_file_location(f"gpu_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prepare, run = script("prepare"), script("run")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Weights of 25 and 3 bytes in pieces of 10."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(bytes(range(25)))
    (model / "config.json").write_bytes(b"{ }")
    prepare.split_weights(model, tmp_path / "bundle", piece_bytes=10)
    return tmp_path / "bundle"


def test_weights_are_the_same_after_they_were_split_and_joined(bundle: Path, tmp_path: Path) -> None:
    pieces = sorted(path.name for path in (bundle / "weights").iterdir())
    assert pieces == ["config.json", *(f"model.safetensors.00{i}" for i in range(3))]
    joined = run.join_weights(bundle, tmp_path / "joined")
    assert {path.name: path.read_bytes() for path in joined.iterdir()} == {
        "config.json": b"{ }", "model.safetensors": bytes(range(25))
    }  # fmt: skip


def test_a_damaged_piece_is_an_error_that_names_the_file(bundle: Path, tmp_path: Path) -> None:
    (bundle / "weights" / "model.safetensors.001").write_bytes(b"0123456789")
    with pytest.raises(ValueError, match=r"model\.safetensors differs"):
        run.join_weights(bundle, tmp_path / "joined")


def test_a_part_that_fails_is_recorded_and_the_next_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = run.Results(tmp_path / "out" / "gpu.json", device="cpu")
    results.record("first", lambda: {}["missing"])
    results.record("second", lambda: {"value": 3})
    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert found["parts"]["first"]["error"] == "KeyError: 'missing'" and not found["parts"]["first"]["ok"]
    assert found["parts"]["second"]["ok"] and found["parts"]["second"]["value"] == 3
    assert "KeyError" in capsys.readouterr().err


def make_wheel(path: Path) -> None:
    """Write a wheel of a package with one module."""
    name = "rl2f_gpu_probe-1.0"
    with zipfile.ZipFile(path / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("rl2f_gpu_probe.py", "VALUE = 7\n")
        wheel.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: rl2f-gpu-probe\nVersion: 1.0\n")
        wheel.writestr(
            f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def execute(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script in another directory, without a path to the source tree."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "OUT": str(folder / "out")
    }
    command = [sys.executable, str(FOLDER / "run.py"), "--device", "cpu", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)


@pytest.mark.slow
def test_all_parts_but_compilation_succeed_on_the_cpu(tiny: Path, tmp_path: Path) -> None:
    prepare.split_weights(tiny, tmp_path / "bundle", piece_bytes=100_000)
    (tmp_path / "bundle" / "wheels").mkdir()
    make_wheel(tmp_path / "bundle" / "wheels")
    parts = ["machine", "bench", "step", "resume", "adapters"]
    done = execute(tmp_path, "--bundle", str(tmp_path / "bundle"), "--parts", *parts)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert found["wheels"] == ["rl2f_gpu_probe-1.0-py3-none-any.whl"]
    assert [name for name, part in found["parts"].items() if part["ok"]] == parts
    assert found["parts"]["resume"]["identical"] and found["parts"]["step"]["steps"] == 4
    assert found["parts"]["bench"]["rollout"][0]["tokens_per_second"] > 0


@pytest.mark.slow
def test_a_part_beyond_the_time_limit_ends_the_script_and_keeps_the_results(tmp_path: Path) -> None:
    done = execute(tmp_path, "--minutes", "0.005", "--model", "tiny-random", "--parts", "machine", "step")
    assert done.returncode == run.TIMED_OUT
    parts = json.loads((tmp_path / "out" / "gpu.json").read_text())["parts"]
    assert list(parts.values())[-1] == {"ok": False, "error": "The time was over."}
