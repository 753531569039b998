"""The scripts for a GPU machine, run here on the CPU with the tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

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
WEIGHTS = bytes(range(25))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A model with 25 bytes of weights, in parts of 4,000 bytes."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(WEIGHTS)
    (model / "config.json").write_bytes(b"{ }")
    (model / "LICENSE").write_bytes(b"Apache")
    count = prepare.pack(model, [], tmp_path / "bundle", "0123abcd", piece_bytes=4_000)
    assert count > 2 and len(list((tmp_path / "bundle").iterdir())) == count
    return tmp_path / "bundle"


def test_a_model_is_the_same_after_its_parts_arrived_in_separate_folders(bundle: Path, tmp_path: Path) -> None:
    assert max(path.stat().st_size for path in bundle.glob("*/piece")) == 4_000
    folders = [tmp_path / f"transfer {number}" for number in range(2)]
    for number, part in enumerate(sorted(bundle.iterdir())):
        folders[number % 2].mkdir(exist_ok=True)
        part.rename(folders[number % 2] / part.name)
    (tmp_path / "joined").mkdir()
    assert run.assemble(folders, tmp_path / "joined") == "0123abcd"
    assert {path.name: path.read_bytes() for path in (tmp_path / "joined" / "model").iterdir()} == {
        "config.json": b"{ }", "model.safetensors": WEIGHTS, "LICENSE": b"Apache"
    }  # fmt: skip


def test_weights_of_an_even_number_of_bytes_and_of_many_chunks_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "CHUNK_BYTES", 100)
    (tmp_path / "model").mkdir()
    data = bytes(i * i % 251 for i in range(3_000))
    (tmp_path / "model" / "model.safetensors").write_bytes(data)
    prepare.pack(tmp_path / "model", [], tmp_path / "bundle", "")
    (tmp_path / "joined").mkdir()
    run.assemble([tmp_path / "bundle"], tmp_path / "joined")
    assert (tmp_path / "joined" / "model" / "model.safetensors").read_bytes() == data


def test_missing_damaged_and_foreign_parts_are_errors_that_name_them(bundle: Path, tmp_path: Path) -> None:
    piece = bundle / "part-2" / "piece"
    content = piece.read_bytes()
    piece.write_bytes(b"x" + content[1:])
    with pytest.raises(ValueError, match=r"part-2/piece differs"):
        run.assemble([bundle], tmp_path)
    piece.write_bytes(content)
    entry = json.loads((bundle / "part-2" / "part.json").read_text())
    (bundle / "part-2" / "part.json").write_text(json.dumps(entry | {"bundle": "other"}))
    with pytest.raises(ValueError, match="different bundles"):
        run.assemble([bundle], tmp_path)
    (bundle / "part-2" / "part.json").unlink()
    with pytest.raises(ValueError, match=r"parts \[2\] of \d are missing"):
        run.assemble([bundle], tmp_path)
    with pytest.raises(ValueError, match=r"no part\.json"):
        run.assemble([tmp_path / "model"], tmp_path)


def python(code: str, *arguments: object) -> list[str]:
    """Return a command that executes Python code."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def test_a_part_that_fails_or_is_too_slow_keeps_what_it_measured_and_the_next_one_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = run.Results(tmp_path / "out", "0123abcd99", device="cpu")
    write = "import sys, time; open(sys.argv[1], 'w').write(sys.argv[2]);"
    results.run("machine", python(write, tmp_path / "a", '{"name": "NVIDIA H100 80GB"}'), tmp_path / "a", 30)
    results.run("first", python(write + "raise SystemExit(3)", tmp_path / "b", '{"error": "E: x"}'), tmp_path / "b", 30)
    results.run("second", python("raise SystemExit(3)"), tmp_path / "none", 30)
    results.run("slow", python(write + "time.sleep(60)", tmp_path / "c", '{"rate": 2}'), tmp_path / "c", 3)
    results.run("last", python(write, tmp_path / "d", '{"value": 3}'), tmp_path / "d", 30)
    found = json.loads((tmp_path / "out" / "nvidia-h100-80gb" / "0123abc.json").read_text())["parts"]
    for part in found.values():
        assert part.pop("part_seconds") >= 0
    assert found == {
        "machine": {"ok": True, "name": "NVIDIA H100 80GB"},
        "first": {"ok": False, "error": "E: x"},
        "second": {"ok": False, "error": "The process ended with 3."},
        "slow": {"ok": False, "rate": 2, "error": "The part was ended after 3 s."},
        "last": {"ok": True, "value": 3},
    }


def test_a_second_call_with_other_parts_keeps_the_first_ones(tmp_path: Path) -> None:
    write = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    for part, value in (("first", 1), ("second", 2), ("first", 3)):
        results = run.Results(tmp_path / "out", "0123abcd99", device="cpu")
        for name, text in (("machine", '{"name": "GPU"}'), (part, json.dumps({"value": value}))):
            results.run(name, python(write, tmp_path / name, text), tmp_path / name, 30)
    found = json.loads((tmp_path / "out" / "gpu" / "0123abc.json").read_text())["parts"]
    assert {name: part.get("value") for name, part in found.items()} == {"machine": None, "first": 3, "second": 2}


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


def results_of(folder: Path) -> dict[str, Any]:
    """Read the only file of results."""
    (path,) = (folder / "out").rglob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.slow
def test_all_parts_succeed_on_the_cpu_from_a_bundle_in_separate_folders(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    make_wheel(tmp_path / "wheels")
    prepare.pack(tiny, sorted((tmp_path / "wheels").iterdir()), tmp_path / "bundle", "f" * 40, piece_bytes=100_000)
    parts = sorted((tmp_path / "bundle").iterdir())
    for part in parts[1:]:
        part.rename(tmp_path / f"moved-{part.name}")
    moved = [str(tmp_path / f"moved-{part.name}") for part in parts[1:]]
    done = execute(tmp_path, "--minutes", "30", "--bundle", str(tmp_path / "bundle"), *moved)
    found = results_of(tmp_path)
    failed = {name: part for name, part in found["parts"].items() if not part["ok"]}
    assert done.returncode == 0 and not failed, f"{failed}\n{done.stderr[-2000:]}"
    assert found["wheels"] == ["rl2f_gpu_probe-1.0-py3-none-any.whl"] and list(found["parts"]) == list(run.PARTS)
    assert found["parts"]["resume"]["identical"] and found["parts"]["resume"]["last_step"]["tokens/trained"] > 0
    assert found["parts"]["bench"]["rollout"][0]["tokens_per_second"] > 0
    assert found["parts"]["rollout"]["rollout"]["ratio"]["median"] > 0
    assert found["parts"]["quickstart"]["phases"]["rl2f/update"] > 0


@pytest.mark.slow
def test_parts_without_time_left_do_not_start(tmp_path: Path) -> None:
    done = execute(tmp_path, "--minutes", "0.02", "--model", "tiny-random", "--parts", "resume")
    assert done.returncode == 1 and "resume: no time is left" in done.stdout
    assert results_of(tmp_path)["parts"]["machine"]["error"].startswith("The part was ended after 1 s")
