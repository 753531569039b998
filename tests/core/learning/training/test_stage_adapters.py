"""Weights in training: the rank of each stage, initial weights, and full fine-tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from learner_rows import CPU, row, rows, stage
from preflight_report import report
from run_helpers import adapter, assert_same_run, config_of, go
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rl2f_core.config.loading import parse_config
from rl2f_core.config.model import LoraConfig, ModelConfig
from rl2f_core.errors import AdapterError, ConfigError
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.learner.memory import training_memory
from rl2f_core.learning.methods.loss_spec import KLConfig
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import LogEvent, read_events


def learner(tiny: Path, dtype: torch.dtype = torch.float32, **lora: Any) -> Learner:
    return Learner(tiny, LoraConfig(**lora), dtype=dtype, device=CPU, banned=[0, 1, 9], pad=2, seed=0)


def staged(model: Path, *stages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    data = config_of(model, steps=(1, 1)).model_dump(mode="json")
    warm, rl = data["stages"]
    data["stages"] = [{**(warm if i == 0 else rl), **changes} for i, changes in enumerate(stages)]
    return data | {"evaluation": {"num_tasks": 2, "conditions": ["hints"], "checkpoints": []}} | fields


# -- optimizer ---------------------------------------------------------------------------------------------------
def test_adam_uses_the_betas_of_the_stage(tiny: Path) -> None:
    trained = learner(tiny, rank=4)
    trained.update(rows(), LossConfig(), stage(adam_beta1=0.5, adam_beta2=0.95).resolve(0, 1.0))
    assert {group["betas"] for group in trained.optimizer.param_groups} == {(0.5, 0.95)}
    state = next(iter(trained.optimizer.state.values()))
    gradient = next(iter(trained.parameters.values())).grad
    assert gradient is not None  # after one step: m = (1 − β₁)·g, v = (1 − β₂)·g²
    assert torch.allclose(state["exp_avg"], 0.5 * gradient) and torch.allclose(state["exp_avg_sq"], 0.05 * gradient**2)


def test_gradient_is_clipped_only_with_a_maximum_norm(tiny: Path) -> None:
    for limit in (None, 0.05):
        trained = learner(tiny, rank=4)
        reported = trained.update(rows(), LossConfig(), stage(max_grad_norm=limit).resolve(0, 1.0))["grad_norm"]
        norm = torch.stack([p.grad.norm() for p in trained.parameters.values() if p.grad is not None]).norm()
        assert reported > 0.06
        assert float(norm) == pytest.approx(reported if limit is None else limit, rel=1e-4)


# -- the adapter of a stage --------------------------------------------------------------------------------------
@pytest.mark.slow
def test_stages_from_the_base_train_adapters_of_their_own_rank(speaker: Path, tmp_path: Path) -> None:
    small, large = {"rank": 2, "alpha": 4}, {"rank": 6, "alpha": 12}
    data = staged(speaker, {"lora": large}, {"init_from": "base"}, {"name": "more"}, lora=small)
    data["evaluation"] |= {"checkpoints": ["stages"]}
    run_dir = RunDir.create(tmp_path / "run", parse_config(data))
    assert go(run_dir) == "succeeded"
    ranks = {}
    for name in run_dir.checkpoint_names():
        settings = json.loads((run_dir.checkpoint(name) / "adapter_config.json").read_text())
        ranks[name] = settings["r"], settings["lora_alpha"]
    assert ranks == {"warm@1": (6, 12), "rl@1": (2, 4), "more@1": (2, 4)}
    logs = " ".join(e.text for e in read_events(run_dir.events_path) if isinstance(e, LogEvent))
    assert "training an adapter of rank 2: ≈ 0.0 GiB for weights, gradients, optimizer" in logs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lora": {"rank": 3}}, "another shape"),
        ({"lora": {"rank": 3}, "init_from": "warm"}, "starts from the weights of 'warm'"),
        ({"lora": {"full_finetuning": True}}, "another shape"),
        ({"lora": {"init_adapter": "/x"}, "init_from": "base"}, "conflicts with init_from"),
        ({"lora": {"full_finetuning": True, "rank": 3}, "init_from": "base"}, "leave out rank"),
        ({"lora": {"full_finetuning": True}, "init_from": "base", "trainer": "trl"}, "trains adapters alone"),
    ],
)
def test_initial_weights_of_another_shape_are_refused(tiny: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(staged(tiny, {}, changes))
    parse_config(staged(tiny, {}, {"lora": {"rank": 3}, "init_from": "base"}))


@pytest.mark.slow
def test_stage_starts_from_its_own_initial_adapter(speaker: Path, tmp_path: Path) -> None:
    start, trained = tmp_path / "start", learner(speaker, rank=2)
    start.mkdir()
    trained.update([row(60)], LossConfig(), stage(learning_rate=0.01).resolve(0, 1.0))
    trained.save_adapter(start)
    still = {"lora": {"rank": 2, "init_adapter": str(start)}, "learning_rate": 1e-12}
    run_dir = RunDir.create(tmp_path / "run", parse_config(staged(speaker, {}, still)))
    assert go(run_dir) == "succeeded"
    given, kept = (load_file(f / "adapter_model.safetensors") for f in (start, run_dir.checkpoint("rl@1")))
    assert all(torch.allclose(given[name], kept[name], atol=1e-9) for name in given)


@pytest.mark.parametrize("changes", [{}, {"init_lora_weights": "gaussian"}, {"lora_dropout": 0.1}], ids=str)
def test_a_plain_adapter_of_peft_is_the_function_that_peft_loads(
    tiny: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj"], task_type="CAUSAL_LM", **changes)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), config)
    for parameter in model.parameters():
        parameter.data += 0.1 * parameter.requires_grad
    model.save_pretrained(tmp_path)
    trained = learner(tiny, rank=2, alpha=8, target_modules=("q_proj",))
    trained.load_adapter(tmp_path)
    tokens = torch.arange(40, 60)[None]
    with torch.no_grad():
        loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), tmp_path).eval()
        torch.testing.assert_close(trained.model(tokens).logits, loaded(tokens).logits)


# -- full fine-tuning --------------------------------------------------------------------------------------------
def test_full_finetuning_changes_all_weights_and_the_sampler_uses_them(tiny: Path, tmp_path: Path) -> None:
    trained = learner(tiny, full_finetuning=True)
    before = trained.snapshot()
    trained.begin_stage(LossConfig(), stage())
    trained.update([row(60), row(90)], LossConfig(), stage(learning_rate=0.01).resolve(0, 1.0))
    changed = [name for name, p in trained.parameters.items() if not torch.equal(p, before[name])]
    assert changed == list(before) and any("embed" in name for name in changed)
    folder = tmp_path / "full"
    folder.mkdir()
    trained.save_adapter(folder)
    backend = HFBackend(HFBackend.Config(), ModelConfig(name=str(tiny), device="cpu", dtype="float32"))
    tokens = [row(60).token_ids]
    base = backend.score(tokens)
    backend.load_adapter("full", folder)
    full = backend.score(tokens, "full")
    assert full != base and backend.score(tokens) == base
    logits = trained.policy_model.model.get_base_model()(torch.tensor(tokens)).logits[0].log_softmax(-1)
    expected = [float(logits[i - 1, token]) for i, token in enumerate(tokens[0]) if i]
    assert full[0][1:] == pytest.approx(expected, abs=1e-4)
    requests = [GenerationRequest((40, 41, 42), seed) for seed in range(3)]
    drawn = backend.generate(requests, SamplingParams(4), "full")
    assert drawn != backend.generate(requests, SamplingParams(4))


@pytest.mark.slow
def test_full_finetuning_resumes_exactly(speaker: Path, tmp_path: Path) -> None:
    data = config_of(speaker).model_dump(mode="json") | {"lora": {"full_finetuning": True}}
    data["stages"][1]["method"] |= {"kl_coef": 0.1}
    config = parse_config(data)
    whole = RunDir.create(tmp_path / "whole", config)
    assert go(whole) == "succeeded"
    stopped = RunDir.create(tmp_path / "stopped", config)
    count = iter(range(1000))
    assert go(stopped, lambda: next(count) == 3) == "stopped"
    assert go(stopped) == "succeeded"
    assert adapter(stopped.path) == adapter(whole.path)
    assert_same_run(stopped.path, whole.path)


@pytest.mark.parametrize("reference", ["base", "stage_start"])
def test_reference_of_full_finetuning_keeps_its_weights(tiny: Path, reference: str) -> None:
    trained = learner(tiny, full_finetuning=True)
    options, settings = LossConfig(kl_coef=0.1, epsilon_high=100), stage(learning_rate=0.01, ref_model=reference)
    base = trained.snapshot()
    trained.update([row(60)], LossConfig(), settings.resolve(0, 1.0))
    start = trained.snapshot()
    trained.begin_stage(options, settings)
    trained.update([row(60, kl=1.0)], options, settings.resolve(0, 1.0))
    expected, now = base if reference == "base" else start, trained.snapshot()
    with trained.reference_weights(reference):
        assert all(torch.equal(p, expected[name]) for name, p in trained.parameters.items())
    assert all(torch.equal(p, now[name]) for name, p in trained.parameters.items())
    assert not torch.equal(now["base.model.norm.weight"], expected["base.model.norm.weight"])


def test_bfloat16_base_has_float32_master_weights_and_bfloat16_checkpoints(tiny: Path, tmp_path: Path) -> None:
    trained = learner(tiny, torch.bfloat16, full_finetuning=True)
    assert {p.dtype for p in trained.parameters.values()} == {torch.float32}
    assert trained.policy_model.compute_dtype == torch.bfloat16
    for name, dtype in (("checkpoint", torch.bfloat16), ("commit", torch.float32)):
        (tmp_path / name).mkdir()
        (trained.save if name == "commit" else trained.save_adapter)(tmp_path / name)
        assert {t.dtype for t in load_file(tmp_path / name / "adapter_model.safetensors").values()} == {dtype}
    before = trained.snapshot()
    trained.update([row(60)], LossConfig(), stage(learning_rate=1e-6).resolve(0, 1.0))
    assert any(not torch.equal(p, before[name]) for name, p in trained.parameters.items())


def test_full_checkpoint_of_another_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    learner(tiny, full_finetuning=True).save_adapter(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    save_file({name: t for name, t in load_file(file).items() if "norm" not in name}, file)
    backend = HFBackend(HFBackend.Config(), ModelConfig(name=str(tiny), device="cpu", dtype="float32"))
    with pytest.raises(AdapterError, match="not those of this base model"):
        backend.load_adapter("full", tmp_path)


# -- memory ------------------------------------------------------------------------------------------------------
def test_memory_estimate_counts_weights_gradients_moments_and_reference(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = learner(tiny, full_finetuning=True)
    n = sum(p.numel() for p in full.parameters.values())
    plain, kl = LossConfig(), LossConfig(kl_coef=0.1)
    # the sampler has two copies (base and current); float32 weights, gradients and two moments: 16 bytes a weight
    assert training_memory(tiny, LoraConfig(full_finetuning=True), 2, plain) == n * (2 + 2 + 16)
    assert training_memory(tiny, LoraConfig(full_finetuning=True), 2, kl) == n * (2 + 2 + 16 + 4)
    # on a CPU, the copy of the training state that a thread writes: weights, moments and reference; two packed copies
    assert training_memory(tiny, LoraConfig(full_finetuning=True), 2, kl, on_cpu=True) == n * (24 + 12 + 4 + 2 * 2)
    monkeypatch.setattr("rl2f_core.learning.learner.memory.MAX_BYTES", 1000)  # packed in place
    assert training_memory(tiny, LoraConfig(full_finetuning=True), 2, kl, on_cpu=True) == n * (24 + 12 + 4)
    lora = LoraConfig(rank=4, alpha=8)
    a = sum(p.numel() for p in learner(tiny, rank=4, alpha=8).parameters.values())
    assert training_memory(tiny, lora, 2, plain) == n * (2 + 2) + a * 16
    top = LoraConfig(rank=4, target_modules=("q_proj",), top_layer_fraction=0.5)
    b = sum(p.numel() for p in learner(tiny, **top.model_dump()).parameters.values())
    assert training_memory(tiny, top, 4, LossConfig(kl_coef=1.0, kl=KLConfig(reference="ema"))) == n * 8 + b * 20


def test_preflight_warns_if_training_needs_more_memory_than_there_is() -> None:
    text = report().model_copy(update={"trained_weights": "all weights", "training_memory_gib": 137.0}).to_text()
    assert "GiB for weights" not in text  # an earlier report without the total
    found = [
        report().model_copy(
            update={"trained_weights": "all weights", "training_memory_gib": 137.0, "total_memory_gib": total}
        )
        for total in (80.0, 141.0)
    ]
    assert "≈ 137.0 GiB for weights, gradients, optimizer, reference and other models, of 80.0 GiB" in (
        found[0].to_text()
    )
    assert ["more than there is" in each.to_text() for each in found] == [True, False]
