"""Exported models: merged weights, adapters, GGUF, the model card, and the upload to a hub."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import yaml
from gguf import GGUFReader
from gguf.quants import dequantize
from hub_server import serve_hub
from model_runs import write_model_run
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen3Config

from jobs.export.model import exporter
from jobs.export.model.card import BaseModel, ModelExport, data_licenses, model_card
from jobs.export.model.exporter import export_model, merged_model
from jobs.export.model.formats import MODEL_FORMATS, ModelFormat
from jobs.export.model.gguf_file import QUANTIZATIONS, write_gguf
from jobs.export.model.hub import push
from jobs.export.model.ollama import CHATML, modelfile
from jobs.export.private_paths import machine_paths
from rl2f_core import registry
from rl2f_core.common.file_io import sha256
from rl2f_core.common.paths import EXAMPLE_RUNS, ROOT
from rl2f_core.errors import AdapterError, ConfigError, ModelError, RunError
from rl2f_core.run.directory import RunDir
from rl2f_core.types import JsonObject

IDS = torch.tensor([[1, 45, 300, 12, 200, 77, 2, 33]])


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the tiny model with the checkpoints `warm@9`, `rl@9` and `rl@18`; their adapters change all modules."""
    return write_model_run(tmp_path_factory.mktemp("runs") / "first", tiny, ["warm@9", "rl@9", "rl@18"])


@pytest.fixture(scope="module")
def reference(run: Path, tiny: Path) -> Any:
    """The tiny model with the adapter `rl@18`, added by PEFT."""
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), run / "checkpoints" / "rl@18").eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits.float()
    return found


def greedy(model: Any) -> list[int]:
    found: list[int] = model.generate(IDS, max_new_tokens=24, do_sample=False, eos_token_id=None)[0].tolist()
    return found


# -- weights ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_merged_safetensors_have_the_logits_of_base_and_adapter(
    run: Path, tiny: Path, reference: Any, tmp_path: Path, dtype: str, tolerance: float
) -> None:
    manifest = export_model(run, "18", tmp_path / "out", dtype=dtype)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert str(merged.dtype) == f"torch.{dtype}"
    expected = logits(reference)
    assert (logits(merged) - expected).abs().max() < tolerance
    assert (logits(AutoModelForCausalLM.from_pretrained(tiny)) - expected).abs().max() > 0.5  # the adapter matters
    assert manifest["model"]["checkpoint"] == "rl@18" and manifest["model"]["dtype"] == dtype
    files = manifest["formats"]["safetensors"]["files"]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(files)
    assert files["model.safetensors"]["sha256"] == sha256(tmp_path / "out" / "model.safetensors")


def test_the_exported_adapter_is_the_checkpoint_without_the_path_of_its_base(
    run: Path, tiny: Path, tmp_path: Path
) -> None:
    export_model(run, "rl@18", tmp_path / "out", format="peft")
    saved = tmp_path / "out" / "adapter_model.safetensors"
    assert saved.read_bytes() == (run / "checkpoints" / "rl@18" / "adapter_model.safetensors").read_bytes()
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"
    private = machine_paths(run)
    assert not [file.name for file in (tmp_path / "out").iterdir() if private.search(file.read_bytes())]


def test_a_checkpoint_with_all_weights_is_exported_as_it_is_and_not_as_an_adapter(
    run: Path, tiny: Path, tmp_path: Path
) -> None:
    full = shutil.copytree(run, tmp_path / "full")
    folder = full / "checkpoints" / "rl@18"
    model: Any = AutoModelForCausalLM.from_pretrained(tiny)
    weights = {name: weight.detach() + 0.5 for name, weight in model.named_parameters()}
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "FULL"}')
    export_model(full, "18", tmp_path / "out")
    loaded = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "out").named_parameters())
    assert all(torch.equal(loaded[name], weight) for name, weight in weights.items())
    with pytest.raises(AdapterError, match=r"no adapter.*safetensors"):
        export_model(full, "18", tmp_path / "peft", format="peft")


def test_a_failure_leaves_nothing_and_a_used_folder_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        export_model(run, "18", tmp_path / "used", format="peft")

    def fail(*args: object) -> str:
        raise ModelError("No card today.")

    monkeypatch.setattr(exporter, "model_card", fail)
    with pytest.raises(ModelError, match="No card today"):
        export_model(run, "18", tmp_path / "out", format="peft")
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


def test_an_adapter_of_another_base_a_wrong_format_and_an_evaluation_are_refused(run: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(run, tmp_path / "broken")
    config = json.loads((broken / "checkpoints" / "rl@18" / "adapter_config.json").read_text())
    (broken / "checkpoints" / "rl@18" / "adapter_config.json").write_text(json.dumps({**config, "r": 8}))
    with pytest.raises(AdapterError, match=r"rank of .* is not the 8"):
        export_model(broken, "18", tmp_path / "out")
    with pytest.raises(ConfigError, match=r"'gguf'.*gguf-q8_0"):
        export_model(run, "18", tmp_path / "out", format="gguf")
    with pytest.raises(ConfigError, match=r"'int8'.*bfloat16"):
        export_model(run, "18", tmp_path / "out", dtype="int8")
    assert not (tmp_path / "out").exists()


def test_a_step_names_a_checkpoint_unless_two_stages_have_it(run: Path) -> None:
    assert RunDir.open(run).find_checkpoint("18") == RunDir.open(run).find_checkpoint("rl@18") == "rl@18"
    with pytest.raises(ConfigError, match=r"Several stages.*Known: warm@9, rl@9|Several stages.*Known: rl@9, warm@9"):
        RunDir.open(run).find_checkpoint("9")
    with pytest.raises(ConfigError, match=r"no such checkpoint.*rl@18"):
        RunDir.open(run).find_checkpoint("8")


# -- GGUF ------------------------------------------------------------------------------------------------------------
def test_an_f16_gguf_loads_in_transformers_with_the_same_greedy_tokens(
    run: Path, reference: Any, tmp_path: Path
) -> None:
    export_model(run, "18", tmp_path / "out", format="gguf-f16")
    (file,) = (tmp_path / "out").glob("*.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file=file.name, dtype=torch.float32)
    tokens = greedy(loaded)
    assert tokens == greedy(reference) and len(set(tokens)) > 8
    assert (logits(loaded) - logits(reference)).abs().max() < 0.05


@pytest.mark.parametrize(("config_class", "sizes"), [(Qwen2Config, {}), (Qwen3Config, {"head_dim": 128})])
def test_a_gguf_of_qwen_loads_in_transformers_with_the_same_logits(
    config_class: Any, sizes: dict[str, int], tiny: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = config_class(
        vocab_size=384, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, **sizes, tie_word_embeddings=False, initializer_range=0.3, max_position_embeddings=512,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    config.architectures = [type(model).__name__]
    write_gguf(model, tiny, tmp_path / "m.gguf", "f32", "m")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-4, rtol=1e-4)


def test_q8_0_values_are_within_half_a_step_of_the_merged_weights(run: Path, tiny: Path, tmp_path: Path) -> None:
    merged = merged_model(tiny, run / "checkpoints" / "rl@18").state_dict()
    export_model(run, "18", tmp_path / "out", format="gguf-q8_0")
    (file,) = (tmp_path / "out").glob("*.gguf")
    tensors = {tensor.name: tensor for tensor in GGUFReader(file).tensors}
    down = tensors["blk.1.ffn_down.weight"]  # rows of 96: three blocks of 32
    expected = merged["model.layers.1.mlp.down_proj.weight"].numpy()
    step = np.abs(expected.reshape(48, 3, 32)).max(axis=2, keepdims=True) / 127
    error = np.abs(dequantize(down.data, down.tensor_type) - expected).reshape(48, 3, 32)
    # half a step, and 127 times the rounding of the step to float16 (2⁻¹¹)
    assert down.tensor_type.name == "Q8_0" and (error <= 0.57 * step).all() and error.max() > 0
    # 4 heads of 12: row 1 of a head's first half comes third, because GGUF interleaves the halves
    query = merged["model.layers.0.self_attn.q_proj.weight"].numpy()
    stored = dequantize(tensors["blk.0.attn_q.weight"].data, tensors["blk.0.attn_q.weight"].tensor_type)
    np.testing.assert_allclose(stored[[0, 1, 2, 12]], query[[0, 6, 1, 12]], atol=2e-3)
    assert tensors["blk.0.attn_norm.weight"].tensor_type.name == "F32"
    assert "output.weight" not in tensors  # tied


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_every_offered_quantization_can_be_written(kind: str, run: Path, tiny: Path, tmp_path: Path) -> None:
    write_gguf(merged_model(tiny, run / "checkpoints" / "rl@18"), tiny, tmp_path / "m.gguf", kind, "m")
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    assert types["blk.0.ffn_down.weight"] == kind.upper()
    is_block = kind.startswith("q")  # rows of 48 are no multiple of 32
    assert types["token_embd.weight"] == types["blk.0.ffn_up.weight"] == ("F16" if is_block else kind.upper())


def test_a_gguf_has_the_vocabulary_the_special_tokens_and_the_chat_template(run: Path, tmp_path: Path) -> None:
    export_model(run, "18", tmp_path / "out", format="gguf-q8_0")
    (file,) = (tmp_path / "out").glob("*.gguf")
    fields = GGUFReader(file).fields

    def value(name: str) -> Any:
        return fields[name].contents()

    tokens = value("tokenizer.ggml.tokens")
    assert len(tokens) == 384 and tokens[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert value("tokenizer.ggml.token_type")[:4] == [3, 3, 3, 1]
    assert (value("tokenizer.ggml.bos_token_id"), value("tokenizer.ggml.eos_token_id")) == (1, 2)
    assert value("tokenizer.ggml.pre") == "smollm" and value("tokenizer.ggml.add_bos_token") is False
    assert "<|im_start|>" in value("tokenizer.chat_template")
    assert (value("llama.attention.head_count"), value("llama.attention.head_count_kv")) == (4, 2)


def test_what_gguf_cannot_store_is_refused_with_another_format(run: Path, tiny: Path, tmp_path: Path) -> None:
    model: Any = merged_model(tiny, run / "checkpoints" / "rl@18")
    spoiled = shutil.copytree(tiny, tmp_path / "tokenizer")
    data = json.loads((tiny / "tokenizer.json").read_text())
    (spoiled / "tokenizer.json").write_text(json.dumps({**data, "pre_tokenizer": {"type": "Whitespace"}}))
    with pytest.raises(ModelError, match=r"tokenizer cannot be written.*Whitespace.*safetensors"):
        write_gguf(model, spoiled, tmp_path / "m.gguf", "f16", "m")
    model.model.embed_tokens.weight.data[0, 0] = 70_000
    with pytest.raises(ModelError, match=r"range of float16.*gguf-bf16"):
        write_gguf(model, tiny, tmp_path / "m.gguf", "f16", "m")
    model.config.rope_parameters["rope_type"] = "llama3"
    with pytest.raises(ModelError, match="Scaled rotary"):
        write_gguf(model, tiny, tmp_path / "m.gguf", "f16", "m")
    model.config.architectures = ["GPT2LMHeadModel"]
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel.*Qwen3ForCausalLM"):
        write_gguf(model, tiny, tmp_path / "m.gguf", "f16", "m")
    assert not (tmp_path / "m.gguf").exists()


def test_the_modelfile_names_the_file_the_template_the_system_message_and_the_sampling(
    tiny: Path, tmp_path: Path
) -> None:
    lines = ['SYSTEM """Reply in "quotes"."""', "PARAMETER temperature 0.7", "PARAMETER top_p 1"]
    chatml = [f'TEMPLATE """{CHATML}"""', 'PARAMETER stop "<|im_end|>"']
    assert modelfile("m.gguf", tiny, 'Reply in "quotes".', 0.7, 1.0) == "\n".join(
        ["FROM ./m.gguf", *chatml, *lines, ""]
    )
    other = shutil.copytree(tiny, tmp_path / "other")
    (other / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert modelfile("m.gguf", other, 'Reply in "quotes".', 0.7, 1.0) == "\n".join(["FROM ./m.gguf", *lines, ""])


# -- model card ------------------------------------------------------------------------------------------------------
def card_of(run: Path, checkpoint: str = "rl2f@24", format: str = "gguf-q8_0", **changes: Any) -> str:
    run_dir = RunDir.open(run)
    config: Any = run_dir.config()
    base = BaseModel("smollm2-135m", "Lab/Base", "Apache-2.0", "hub Lab/Base", "Modified here.")
    return model_card(
        ModelExport(run_dir, config.model_copy(update=changes), checkpoint, format, "float32", base, "q", "Reply.")
    )


def test_the_card_shows_the_checkpoint_and_its_base_under_all_controls_with_intervals() -> None:
    text = card_of(EXAMPLE_RUNS / "quickstart")
    header = yaml.safe_load(text.split("---")[1])
    assert header["base_model"] == "Lab/Base" and header["license"] == "apache-2.0"
    assert header["base_model_relation"] == "quantized" and header["library_name"] == "gguf"
    table = text.split("### Checkpoints under all conditions")[1].split("###")[0].strip().splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    conditions = ["hints", "contentless", "resample", "shuffled", "misleading"]
    assert [row[:2] for row in rows] == [[name, each] for name in ("base", "rl2f@24") for each in conditions]
    assert rows[5][3] == ".41 [.29, .55]" and rows[5][-1] == "+.29 [.12, .45]"
    assert "| warmup@60 |" not in text and "warmup@60 − base" not in text and "rl2f@24 − warmup@60" not in text


def test_the_card_states_what_was_not_tested() -> None:
    limits = card_of(EXAMPLE_RUNS / "quickstart").split("## What was not tested")[1].split("##")[0]
    assert "Conditions without results: no_oracle, leaking." in limits
    other = card_of(EXAMPLE_RUNS / "quickstart", teacher=registry.get("teacher", "contentless").Config())
    assert "Conditions without results: no_oracle, scripted, leaking." in other
    assert "gguf-q8_0 was not evaluated" in limits and "(seed 0)" in limits and "256 tokens" in limits
    assert "shipped in bfloat16" in limits  # of the example
    assert "was not evaluated" not in card_of(EXAMPLE_RUNS / "quickstart", format="peft")
    assert "LoRA of rank 16 with α = 32; seed 0." in card_of(EXAMPLE_RUNS / "quickstart")
    unknown = card_of(EXAMPLE_RUNS / "quickstart", checkpoint="rl2f@10")
    assert "The run has not evaluated rl2f@10" in unknown and "Checkpoints under all conditions" not in unknown


def test_the_card_has_the_configuration_without_paths_and_the_licenses_of_all_data(tmp_path: Path) -> None:
    run = shutil.copytree(EXAMPLE_RUNS / "quickstart", tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["name"] = str(tmp_path / "secret" / "weights")
    math = {"type": "math", "source": str(tmp_path / "secret" / "own.jsonl")}
    config["environment"] = {"type": "mixture", "environments": [{"environment": "arithmetic"}, {"environment": math}]}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    text = card_of(run)
    assert str(tmp_path) not in text
    stored = yaml.safe_load(text.split("```yaml")[1].split("```")[0])
    assert (
        stored["model"]["name"] == "weights"
        and stored["environment"]["environments"][1]["environment"]["source"] == "own.jsonl"
    )
    assert "| data | tasks of arithmetic | generated by RL2F Studio, Apache-2.0 |" in text
    assert "| data | own.jsonl | not recorded by RL2F Studio |" in text
    assert "| base model | Lab/Base, hub Lab/Base | Apache-2.0 |" in text and "Modified here." in text


@pytest.mark.parametrize(
    ("environment", "rows"),
    [
        ({"type": "math", "source": "gsm8k", "test_source": "sample"},
         [("openai/gsm8k", "see https://huggingface.co/datasets/openai/gsm8k"),
          ("math sample of RL2F Studio, generated with reasoning-gym", "Apache-2.0")]),
        ({"type": "reasoning_gym", "name": "gcd"}, [("tasks of reasoning-gym, gcd", "Apache-2.0")]),
        ({"type": "verifiers", "taskset": "sums"}, [("taskset sums of verifiers", "not recorded by RL2F Studio")]),
        ({"type": "household"}, [("tasks of household", "generated by RL2F Studio, Apache-2.0")]),
        ({"type": "auto_explore"}, [("functions of Python's standard library", "PSF License Version 2")]),
        ({"type": "dataset", "path": "sample"}, [("questions of RL2F Studio", "generated by RL2F Studio, Apache-2.0")]),
        ({"type": "dataset", "path": "/home/me/own.csv"}, [("own.csv", "not recorded by RL2F Studio")]),
        ({"type": "code", "source": "generated", "test_source": "human_eval", "path": None},
         [("tasks of code", "generated by RL2F Studio, Apache-2.0"), ("HumanEval", "MIT")]),
        ({"type": "code", "source": "file", "test_source": "same", "path": "/home/me/own.jsonl"},
         [("own.jsonl", "not recorded by RL2F Studio")]),
        ({"type": "foreign"}, [("tasks of foreign", "not recorded by RL2F Studio")]),
    ],
)  # fmt: skip
def test_the_license_of_data_is_that_of_its_source(environment: JsonObject, rows: list[tuple[str, str]]) -> None:
    assert data_licenses(environment) == rows


# -- command and hub -------------------------------------------------------------------------------------------------
def command(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    code = "from app.cli import main; main()"
    words = [sys.executable, "-c", code, "models", "export", *map(str, args)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=env)


@pytest.mark.slow
def test_the_command_pushes_all_files_in_one_commit(run: Path, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "RL2F_HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "PATH": "/usr/bin:/bin"}
    with serve_hub("hf_secret") as hub:
        env = {**home, "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        done = command(f"{run}@18", "--format", "peft", "--push", "lab/model", "--out", tmp_path / "out", **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / "out"), f"{hub.url}/lab/model"]
    assert [(each["organization"], each["name"], each["visibility"]) for each in hub.repositories] == [
        ("lab", "model", "private")
    ]
    (commit,) = hub.commits
    local = {file.name: file for file in (tmp_path / "out").iterdir()}
    weights = local.pop("adapter_model.safetensors")
    assert commit["files"].pop(weights.name) == sha256(weights)
    assert hub.stored_bytes > 15_000
    assert commit["files"] == {name: file.read_bytes() for name, file in local.items()}
    assert commit["summary"] == f"Upload {json.loads(local['manifest.json'].read_text())['name']}"


def test_a_dry_run_lists_the_files_and_writes_and_uploads_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from app.cli import app

    monkeypatch.delenv("HF_TOKEN", raising=False)
    words = ["models", "export", f"{run}@rl@18", "--format", "gguf-q8_0", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, "--push", "lab/model", "--dry-run"])
    assert done.exit_code == 0 and done.stdout == ""
    assert (
        ".q8_0.gguf" in done.stderr and "Modelfile" in done.stderr and "Nothing was written or uploaded" in done.stderr
    )
    assert list(tmp_path.iterdir()) == []
    target = ["--out", str(tmp_path / "out")]
    for words, said in (
        (["models", "export", f"{run}@18"], "--out FOLDER or --push"),
        (["models", "export", f"{run}@18", *target, "--push", "lab/model"], "Set the environment variable HF_TOKEN"),
        (["models", "export", str(run), "--dry-run"], "Write RUN@STEP"),
    ):
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 2 and said in refused.output
    assert list(tmp_path.iterdir()) == []


def test_an_upload_without_a_token_or_with_a_wrong_one_fails_without_showing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text("# model")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="HF_TOKEN"):
        push(tmp_path, "lab/model")
    with serve_hub("hf_right") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
        with pytest.raises(ModelError, match=r"upload failed: .*401") as caught:
            push(tmp_path, "lab/model")
        assert "hf_wrong" not in str(caught.value) and hub.commits == []
        with pytest.raises(ConfigError, match="ORG/NAME"):
            push(tmp_path, "a/b/c")


# -- the real model --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def quickstart(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped example run, on the model in the user's cache."""
    run = shutil.copytree(EXAMPLE_RUNS / "quickstart", tmp_path_factory.mktemp("runs") / "quickstart")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["name"] = str(smollm2)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


PROMPT = (
    "<|im_start|>system\nReply as <answer>? ? ? ?</answer>.<|im_end|>\n"
    "<|im_start|>user\nFind 4 letters of A and B.<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.slow
def test_the_shipped_adapter_gives_equal_greedy_tokens_merged_and_as_f16(
    quickstart: Path, smollm2: Path, tmp_path: Path
) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    base = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    with torch.no_grad():
        plain = base(ids).logits
    adapted = PeftModel.from_pretrained(base, quickstart / "checkpoints" / "rl2f@24").eval()
    export_model(quickstart, "24", tmp_path / "merged")
    export_model(quickstart, "24", tmp_path / "gguf", format="gguf-f16")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    (file,) = (tmp_path / "gguf").glob("*.gguf")
    gguf = AutoModelForCausalLM.from_pretrained(tmp_path / "gguf", gguf_file=file.name, dtype=torch.float32)
    texts = []
    with torch.no_grad():
        expected = adapted(ids).logits
        assert (merged(ids).logits - expected).abs().max() < 1e-3 < (plain - expected).abs().max()
        for model in (adapted, merged, gguf):
            tokens = model.generate(input_ids=ids, max_new_tokens=14, do_sample=False)[0, ids.shape[1] :]
            texts.append(tokenizer.decode(tokens))
    assert texts[0] == texts[1] == texts[2]
    assert re.fullmatch(r"<answer>[AB]( [AB]){3}</answer><\|im_end\|>", texts[0])


@pytest.mark.slow
def test_llama_cpp_reads_the_q8_0_export_and_answers_in_the_trained_format(quickstart: Path, tmp_path: Path) -> None:
    llama = pytest.importorskip("xllamacpp", reason="llama.cpp is not installed: pip install xllamacpp")
    export_model(quickstart, "24", tmp_path / "gguf", format="gguf-q8_0")
    (file,) = (tmp_path / "gguf").glob("*.gguf")
    parameters = llama.CommonParams()
    parameters.model.path, parameters.n_ctx, parameters.n_parallel = str(file), 512, 1
    server = llama.Server(parameters)
    answer = server.handle_completions({"prompt": PROMPT, "temperature": 0, "max_tokens": 14})
    assert re.fullmatch(r"<answer>[AB]( [AB]){3}</answer>", answer["choices"][0]["text"])


def test_every_described_format_can_be_named_in_a_run() -> None:
    assert get_args(ModelFormat) == tuple(MODEL_FORMATS)
