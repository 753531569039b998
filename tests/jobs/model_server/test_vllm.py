"""Serving with vLLM: its options and its process, with a stand-in for the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_runs import write_model_run
from model_server_helpers import served

from jobs.model_server import vllm
from rl2f_core.errors import AdapterError, ConfigError

STAND_IN = """
import json, os, sys

def main():
    seen = {"arguments": sys.argv[1:], "key": os.environ.get("VLLM_API_KEY")}
    open(os.environ["SEEN"], "w").write(json.dumps(seen))
    sys.exit(3)
"""


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_run(tmp_path_factory.mktemp("runs") / "trained", tiny, ["rl@2"])


def test_vllm_gets_the_adapters_by_name_and_the_key_in_its_environment(
    run: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vllm" / "entrypoints" / "launchers" / "api_server"
    package.mkdir(parents=True)
    (package / "entry.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.json"))
    options = vllm.serve_options(served(run, ["2"]), "0.0.0.0", 8001, 4096, 16)
    assert vllm.run(options, "secret") == 3
    seen = json.loads((tmp_path / "seen.json").read_text())
    given = seen["arguments"]
    values = {flag: given[given.index(flag) + 1] for flag in given if flag.startswith("--")}
    assert seen["key"] == "secret" and "secret" not in given
    assert values["--model"] == str(tiny) and values["--served-model-name"] == "tiny"
    assert values["--lora-modules"] == f"trained@rl@2={run / 'checkpoints' / 'rl@2'}"
    assert (values["--max-lora-rank"], values["--max-model-len"]) == ("8", "2048")
    targets = given[given.index("--lora-target-modules") + 1 :]
    assert targets[:7] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert "--enforce-eager" in given and values["--kv-cache-memory-bytes"] == str(2**31)
    assert (values["--host"], values["--port"], values["--max-num-seqs"]) == ("0.0.0.0", "8001", "16")


def test_a_checkpoint_with_all_weights_is_not_served_by_vllm(run: Path, tiny: Path, tmp_path: Path) -> None:
    full = write_model_run(tmp_path / "full", tiny, ["rl@2"])
    (full / "checkpoints" / "rl@2" / "adapter_config.json").write_text('{"peft_type": "FULL"}')
    with pytest.raises(AdapterError, match="--backend hf"):
        vllm.serve_options(served(full, ["2"]), "127.0.0.1", 8001, 4096, 16)


def test_without_vllm_the_error_names_the_other_backend() -> None:
    with pytest.raises(ConfigError, match="Known: hf"):
        vllm.run({}, None)
