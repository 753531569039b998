"""Decode steps over static shapes and recorded graphs give the tokens and logprobs of packed steps."""

from __future__ import annotations

import inspect
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from chat_helpers import save_adapter
from recorded_graph import Captures, Recorder
from torch.nn.attention.varlen import varlen_attn

from rl2f_core.config.model import ModelConfig
from rl2f_core.errors import ModelError
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.hf import batched_lora, cpu_prepack, packed_forward, self_test, static_decoder
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.backends.hf.batched_lora import BatchedLora
from rl2f_core.models.backends.hf.decoder import MAX_ADMISSION_DELAY, RunningSequence
from rl2f_core.models.backends.hf.kv_cache import KVCache
from rl2f_core.models.backends.hf.lora import LoraWeights
from rl2f_core.models.backends.hf.self_test import compare_graphs
from rl2f_core.models.backends.hf.static_decoder import StaticDecoder, row_bucket, unsupported_by_static_shapes
from rl2f_core.models.backends.hf.token_scores import ScoredSampling
from rl2f_core.models.modeling.loading import load_base_model

TOLERANCE = 1e-5
SAMPLINGS = [
    SamplingParams(6), SamplingParams(8, 0.7), SamplingParams(5, 0.0), SamplingParams(4, 1.3, 0.8), SamplingParams(1),
    ScoredSampling(4, 1.0, 1.0, 2, True),
]  # fmt: skip


def build(tiny: Path, folder: Path, layers: int = 2) -> Path:
    """A model whose next token depends strongly on all tokens; 6 heads share 2, and the last layer has a window."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    plain = json.loads((tiny / "config.json").read_text())
    config = Qwen2Config(
        vocab_size=plain["vocab_size"], hidden_size=48, intermediate_size=64, num_attention_heads=6,
        num_key_value_heads=2, num_hidden_layers=layers, use_sliding_window=True, sliding_window=8,
        layer_types=["full_attention"] * (layers - 1) + ["sliding_attention"], max_position_embeddings=512,
        initializer_range=0.2, tie_word_embeddings=False,
    )  # fmt: skip
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tiny, tmp_path_factory.mktemp("models") / "sharp")


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters of the same rank."""
    return [save_adapter(model, tmp_path_factory.mktemp("adapters") / str(seed), seed) for seed in range(3)]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    """Captures on the CPU, which replay recorded operations."""
    recorded = Captures()
    monkeypatch.setattr(static_decoder, "capture", recorded)
    return recorded


def load(model: Path, *, captures: bool = False, unmerged: bool = False, **config: Any) -> HFBackend:
    settings = HFBackend.Config(**{"cuda_graphs": "on", **config})
    backend = HFBackend(settings, ModelConfig(name=str(model), dtype="float32", device="cpu"), unmerged=unmerged)
    if captures:
        assert backend._decoder.static is not None
        backend._decoder.static.captures = backend._decoder.static.falls_back = True
    return backend


@pytest.fixture(scope="module")
def packed(model: Path) -> HFBackend:
    """Packed decode steps, the reference."""
    return load(model, cuda_graphs="off")


def requests(count: int, seed: int = 0, key: str = "d") -> list[GenerationRequest]:
    """Prompts of different lengths, the first two with the same first 20 tokens; every fourth has choices."""
    rng = np.random.default_rng(seed)
    shared = tuple(rng.integers(10, 300, 20).tolist())
    out = []
    for i in range(count):
        tokens = tuple(rng.integers(10, 300, int(rng.integers(2, 60))).tolist())
        choices = ((40,), (41,), (50,)) if i % 8 == 3 else ((40, 41), (42, 43, 44)) if i % 8 == 7 else ()
        out.append(GenerationRequest(shared + tokens if i < 2 else tokens, 100 * seed + i, f"{key}{i}", choices))
    return out


def play(
    backend: HFBackend, prompts: Sequence[GenerationRequest], names: Sequence[str | None] = (None,)
) -> list[RunningSequence]:
    """Generate all prompts together, each with its own sampling and adapter; some join later."""
    sequences: list[RunningSequence] = []
    for i, prompt in enumerate(prompts):
        sampling = SAMPLINGS[i % len(SAMPLINGS)]
        sequences += backend.submit([prompt], sampling, names[i % len(names)])
        if i % 3 == 0:
            backend.step()
    while any(sequence.generation is None for sequence in sequences):
        backend.step()
    return sequences


def assert_equal(one: Sequence[RunningSequence], other: Sequence[RunningSequence]) -> None:
    for a, b in zip(one, other, strict=True):
        x, y = a.generation, b.generation
        assert x is not None and y is not None
        assert (x.token_ids, x.stop) == (y.token_ids, y.stop)
        assert x.logprobs == pytest.approx(y.logprobs, abs=TOLERANCE)
        assert x.choice_logprobs == pytest.approx(y.choice_logprobs, abs=TOLERANCE)
        for scores, expected in ((a.scores, b.scores), (a.prompt_scores, b.prompt_scores)):
            assert [s.logprob for s in scores] == pytest.approx([s.logprob for s in expected], abs=TOLERANCE)
            assert [[t for t, _ in s.top] for s in scores] == [[t for t, _ in s.top] for s in expected]


def next_turns(sequences: Sequence[RunningSequence]) -> list[GenerationRequest]:
    return [
        GenerationRequest(s.prompt.token_ids + tuple(s.token_ids) + (7, 8), s.prompt.seed + 1, s.prompt.cache_key)
        for s in sequences
    ]


# -- equality ------------------------------------------------------------------------------------------------------
SLOW = [(1, False), (5, True), (18, False)]


@pytest.mark.parametrize(
    ("count", "captured"),
    [(1, True), (5, False), (18, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_steps_over_static_shapes_equal_packed_steps(
    model: Path, packed: HFBackend, captures: Captures, captured: bool, count: int
) -> None:
    backend = load(model, captures=captured)
    packed.reset_prefix_cache()
    prompts = requests(count, 1)
    for _ in range(2):
        static = play(backend, prompts)
        assert_equal(static, play(packed, prompts))
        prompts = next_turns(static)
    assert (captures.captured > 0) == captured and captures.replayed >= captures.captured
    assert len({t for s in static for t in s.token_ids}) > 3 or count == 1


def test_a_result_does_not_depend_on_the_batch(model: Path) -> None:
    backend = load(model)
    prompts = requests(12, 2)
    together = play(backend, prompts)
    for sequence in together[::4]:
        backend.reset_prefix_cache()
        (alone,) = backend.submit([sequence.prompt], sequence.sampling, None)
        while alone.generation is None:
            backend.step()
        assert_equal([alone], [sequence])


@pytest.mark.parametrize(
    "mode", ["merged", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("auto", "batched"))]
)
def test_graphs_use_the_current_weights_of_each_adapter(
    model: Path, adapters: list[Path], captures: Captures, mode: Any
) -> None:
    backend, packed = load(model, captures=True, multi_lora=mode), load(model, cuda_graphs="off", multi_lora=mode)
    weights = [module.weight.data_ptr() for module in backend._merger.modules.values()]
    base = [module.weight.clone() for module in backend._merger.modules.values()]
    texts, together = set(), [["a"], ["a", "b", None], [None]]
    if mode == "auto":  # merged first, then batched
        together.insert(1, ["a", None])
    for i in range(3):
        for one in (backend, packed):
            one.load_adapter("a", adapters[i])
            one.load_adapter("b", adapters[(i + 1) % 3])
            one.reset_prefix_cache()
        for names in together:
            prompts = requests(6, 0, str(names))
            static = play(backend, prompts, names)
            assert_equal(static, play(packed, prompts, names))
            texts.add(tuple(tuple(s.token_ids) for s in static))
        if i == 1:  # the buffers grow no longer
            captured = captures.captured
    assert captures.captured == captured  # adapters of the same ranks are copied into the same tensors
    assert len(texts) == 3 * (len(together) - 1) + 1  # those of the base are equal
    backend._merger.activate(None, {})
    assert weights == [module.weight.data_ptr() for module in backend._merger.modules.values()]
    assert all(bool((m.weight == w).all()) for m, w in zip(backend._merger.modules.values(), base, strict=True))


def test_adapters_that_shared_a_step_stay_batched_until_the_next_reset(model: Path, adapters: list[Path]) -> None:
    backend = load(model)
    backend.load_adapter("a", adapters[0])
    assert [backend._uses_batched_lora(names) for names in ({"a"}, {"a", None}, {"a"}, {None})] == [
        False, True, True, True,
    ]  # fmt: skip
    backend.reset_prefix_cache()
    assert not backend._uses_batched_lora({"a"})


@pytest.mark.parametrize("mode", ["merged", "batched"])
def test_prepacked_weights_are_never_written_in_place(
    model: Path, adapters: list[Path], monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """A packed copy of a weight is found by the address of the weight; here it is the weight itself."""
    monkeypatch.setattr(cpu_prepack, "prepack", lambda weight: weight.clone())
    monkeypatch.setattr(batched_lora, "prepack", lambda weight: weight.clone())
    for module in (cpu_prepack, batched_lora):
        monkeypatch.setattr(module, "prepacked_linear", torch.nn.functional.linear)
    with monkeypatch.context() as patch:
        patch.setattr(cpu_prepack, "prepack_model", lambda model, *args: cpu_prepack.Prepacked(model))
        backend = load(model, multi_lora=mode)
    packed = load(model, cuda_graphs="off", multi_lora=mode)
    for i in range(2):
        for one in (backend, packed):
            one.load_adapter("a", adapters[i])
            one.reset_prefix_cache()
        assert_equal(play(backend, requests(6), ["a", None]), play(packed, requests(6), ["a", None]))


def test_an_adapter_more_or_of_another_rank_is_captured_again(
    model: Path, adapters: list[Path], captures: Captures, tmp_path: Path
) -> None:
    backend = load(model, captures=True, unmerged=True)
    packed = load(model, cuda_graphs="off", unmerged=True)
    captured = []
    for names in (["a"], ["a", "b"]):
        for one in (backend, packed):
            one.load_adapter(names[-1], adapters[len(names)])
        assert_equal(play(backend, requests(6, 3, str(names)), names), play(packed, requests(6, 3, str(names)), names))
        captured.append(captures.captured)
    assert captured[1] > captured[0]


# -- bookkeeping ---------------------------------------------------------------------------------------------------
def test_graphs_are_captured_per_bucket_of_rows_and_dropped_when_buffers_move(model: Path, captures: Captures) -> None:
    backend = load(model, captures=True)
    static = backend._decoder.static
    assert static is not None
    backend.generate(requests(20), SamplingParams(3))
    assert {rows for rows, _, _ in static._graphs} == {8, 20}  # the bucket of 32 ends at the last slot
    backend.reset_prefix_cache()
    before, count = dict(static._graphs), captures.captured
    backend.generate(requests(20), SamplingParams(3))
    backend.generate(requests(14, key="e"), SamplingParams(3))
    assert captures.captured == count + 1 and before.items() <= static._graphs.items()
    backend.generate([GenerationRequest((5,) * 400, 1, "long")], SamplingParams(3))  # the buffers grow
    assert {key[1] for key in static._graphs} == {backend._decoder.kv.capacity + 1, 512} & {512, 513}
    assert not set(before.values()) & set(static._graphs.values())
    backend._decoder.release()
    assert not static._graphs and backend._decoder.kv.num_slots == 0
    assert len(backend.generate(requests(2), SamplingParams(3))) == 2


def test_buckets() -> None:
    assert [row_bucket(n) for n in (1, 8, 9, 33, 128, 129, 256, 257, 600)] == [8, 8, 16, 64, 128, 256, 256, 512, 768]


@pytest.mark.parametrize("fails_at", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_failing_capture_falls_back_to_packed_steps_with_one_log_line(
    model: Path, packed: HFBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails_at: int
) -> None:
    recorded = Captures()

    def capture(*args: Any) -> Callable[[], object]:
        if recorded.captured + 1 >= fails_at:
            raise RuntimeError("operation not permitted when stream is capturing")
        return recorded(*args)

    monkeypatch.setattr(static_decoder, "capture", capture)
    backend = load(model, captures=True)
    packed.reset_prefix_cache()
    with caplog.at_level(logging.WARNING):
        for count in (12, 4, 20):
            prompts = requests(count, 4, str(count))
            assert_equal(play(backend, prompts), play(packed, prompts))
    assert [r.getMessage() for r in caplog.records if "CUDA graphs" in r.getMessage()] == [
        "Decode steps run without CUDA graphs, which failed: operation not permitted when stream is capturing"
    ]
    assert backend.decode_path == "packed forward, no CUDA graphs"
    backend.reset_prefix_cache()
    assert_equal(play(backend, prompts), play(packed, prompts))


def test_prompts_join_together_and_wait_for_a_limited_number_of_steps(model: Path) -> None:
    backend = load(model)
    running = backend.submit(requests(32, 5), SamplingParams(60, 1.0), None)
    while backend._decoder.waiting:
        backend.step()
    (late,) = backend.submit([GenerationRequest((5, 6, 7), 1)], SamplingParams(2), None)
    steps = 0
    while not late.token_ids:
        backend.step()
        steps += 1
    assert steps == MAX_ADMISSION_DELAY + 1
    many = backend.submit([GenerationRequest((5, 6, 7 + i), 1) for i in range(8)], SamplingParams(2), None)
    backend.step()
    assert all(sequence.token_ids for sequence in many)
    backend.cancel(running)
    backend.cancel(many)


# -- the self-test -------------------------------------------------------------------------------------------------
def check(backend: HFBackend) -> str:
    return compare_graphs(backend.model, backend.device, backend._decoder.banned)


def test_the_self_test_accepts_graphs_that_work(packed: HFBackend, captures: Captures) -> None:
    assert check(packed) == ""
    assert captures.captured == 1 and captures.replayed == max(self_test.NEW_TOKENS) - 1


def test_the_self_test_finds_stale_graphs_failing_captures_and_wrong_logprobs(
    packed: HFBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(static_decoder, "capture", lambda run, *args: (run(), lambda: None)[1])
        assert check(packed) == "replayed graphs sample other tokens"
    with monkeypatch.context() as patch:
        patch.setattr(static_decoder, "capture", lambda *args: 1 / 0)
        assert check(packed) == "ZeroDivisionError: division by zero"
        patch.setattr(static_decoder, "capture", lambda *args: torch.zeros(2) @ torch.zeros(3))
        assert check(packed).startswith("RuntimeError: ")
        assert not caplog.records  # the backend logs the reason
    with monkeypatch.context() as patch:
        patch.setattr(static_decoder, "capture", lambda run, *args: run)
        plain: Any = static_decoder.AttentionBatch
        patch.setattr(
            static_decoder, "AttentionBatch", lambda *args: plain(*args[:4], (args[4] - 1).clamp(min=0), args[5])
        )
        assert check(packed).startswith("logprobs differ by")


@pytest.mark.parametrize("setting", ["auto", "on", "off"])
@pytest.mark.parametrize("difference", ["", "logprobs differ by 3 on average"])
def test_auto_uses_graphs_on_cuda_only_after_the_self_test(
    packed: HFBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, setting: Any, difference: str
) -> None:
    monkeypatch.setattr(self_test, "compare_graphs", lambda *args: difference)
    monkeypatch.setattr(packed, "config", HFBackend.Config(cuda_graphs=setting))
    banned = packed._decoder.banned
    cpu = packed._static_decoder(banned)
    assert (cpu is not None) == (setting == "on") and (cpu is None or not cpu.captures)
    monkeypatch.setattr(packed, "device", torch.device("cuda", 0))
    monkeypatch.setattr(static_decoder, "find_varlen_kernel", lambda *args: None)
    with caplog.at_level(logging.WARNING):
        static = packed._static_decoder(banned)
    assert (static is not None) == (setting == "on" or (setting == "auto" and not difference))
    assert static is None or static.captures
    lines = [record.getMessage() for record in caplog.records]
    assert lines == (
        [f"Decode steps run without CUDA graphs: {difference}"] if setting == "auto" and difference else []
    )


def test_models_whose_positions_need_the_host_use_packed_steps(packed: HFBackend) -> None:
    decoder = packed.model.get_decoder()
    assert unsupported_by_static_shapes(packed.model) == ""
    before = decoder.config.rope_parameters
    for parameters in ({"rope_type": "dynamic"}, {"full_attention": {"rope_type": "longrope"}}):
        decoder.config.rope_parameters = parameters
        assert unsupported_by_static_shapes(packed.model).startswith("RoPE type ")
    decoder.config.rope_parameters = before


# -- operations ----------------------------------------------------------------------------------------------------
def operations(folder: Path, kernel: Any, monkeypatch: pytest.MonkeyPatch, rank: int = 0) -> int:
    """Operations that a step launches, on tensors without data; raises an error if it waits for the device."""
    monkeypatch.setattr(static_decoder, "find_varlen_kernel", lambda *args: kernel)
    meta = torch.device("meta")
    model = load_base_model(str(folder), torch.bfloat16, torch.device("cpu")).to(meta)
    modules = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    shapes = {name: module.weight.shape for name, module in modules.items() if name != "lm_head"}
    pairs = {
        name: (torch.zeros(rank, i, device=meta), torch.zeros(o, rank, device=meta)) for name, (o, i) in shapes.items()
    }
    lora = BatchedLora(modules, stack_all=True, fixed=True)
    static = StaticDecoder(model, meta, torch.tensor([1, 2], device=meta), captures=False)
    recorder, cache = Recorder(), KVCache(meta, token_major=True)
    with torch.inference_mode(), lora.active({"a": LoraWeights(pairs, 1.0)}):
        cache.reserve(8, 100)
        static._allocate(cache)
        lora.select(["a"] * 8)
        run = partial(static._run, cache, 8, 128, lora if rank else None)
        run()
        with recorder:
            run()
    return len(recorder.operations)


@pytest.fixture(scope="module")
def deeper(model: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Models of 2, 3 and 4 layers."""
    return [model, *(build(tiny, tmp_path_factory.mktemp("models") / str(layers), layers) for layers in (3, 4))]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [None, varlen_attn], ids=["masked", "varlen"])
def test_a_step_waits_for_nothing_and_launches_few_operations(
    deeper: list[Path], kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [operations(folder, kernel, monkeypatch) for folder in deeper]
    batched = operations(deeper[0], kernel, monkeypatch, rank=4)
    per_layer = counts[1] - counts[0]
    assert counts[2] - counts[1] == per_layer
    assert per_layer <= (43 if kernel else 60) and counts[0] - 2 * per_layer <= 95
    assert counts[0] < batched <= counts[0] + 2 * 7 * 5 + 3


def test_a_step_that_waits_for_the_device_is_found(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = static_decoder.sample_rows
    for waits in (lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.nonzero(), lambda x: x.tolist()):

        def sample(logits: torch.Tensor, *args: Any, waits: Any = waits) -> Any:
            waits(logits[0])
            return plain(logits, *args)

        monkeypatch.setattr(static_decoder, "sample_rows", sample)
        with pytest.raises((RuntimeError, NotImplementedError)):
            operations(model, None, monkeypatch)


# -- the variable-length kernel ------------------------------------------------------------------------------------
def reference_varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor,
    max_q: int, max_k: int, *, scale: float, window_size: tuple[int, int], enable_gqa: bool, seqused_k: torch.Tensor,
    num_splits: int,
) -> torch.Tensor:  # fmt: skip
    """`torch.nn.attention.varlen.varlen_attn` as its documentation and flash attention's source describe it."""
    assert {x.dtype for x in (cu_seq_q, cu_seq_k, seqused_k)} == {torch.int32} and num_splits == 1
    assert len(cu_seq_q) == len(cu_seq_k) == len(seqused_k) + 1 and cu_seq_q[-1] == len(query)
    assert key.is_contiguous() and value.is_contiguous() and query.stride(-1) == 1
    assert int((cu_seq_q[1:] - cu_seq_q[:-1]).max()) == max_q and int(seqused_k.max()) <= max_k
    assert enable_gqa and window_size[1] in (-1, 0)
    shared, out = query.shape[1] // key.shape[1], torch.empty_like(query)
    for i, used in enumerate(seqused_k.tolist()):
        first, last, start = int(cu_seq_q[i]), int(cu_seq_q[i + 1]), int(cu_seq_k[i])
        k, v = (x[start : start + used].repeat_interleave(shared, 1) for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[first:last], k) * scale
        position = torch.arange(used - (last - first), used)[:, None]
        index, (left, right) = torch.arange(used), window_size
        allowed = torch.ones(last - first, used, dtype=torch.bool)
        if right >= 0:
            allowed &= index <= position + right
        if left >= 0:
            allowed &= index >= position - left
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.masked_fill(~allowed, -torch.inf).softmax(-1), v)
    return out


def test_the_variable_length_kernel_gets_the_right_arguments(
    model: Path, packed: HFBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_decoder, "find_varlen_kernel", lambda *args: reference_varlen)
    backend = load(model)
    packed.reset_prefix_cache()
    prompts = requests(10, 6)
    for _ in range(2):
        static = play(backend, prompts)
        assert_equal(static, play(packed, prompts))
        prompts = next_turns(static)
    assert "variable-length attention" in backend.decode_path


def test_the_kernel_of_torch_has_these_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    names = inspect.signature(reference_varlen).parameters
    assert set(names) <= set(inspect.signature(varlen_attn).parameters)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    find, cuda = packed_forward.find_varlen_kernel, torch.device("cuda")

    def config(head_dim: int, softcap: float | None = None) -> Any:
        return SimpleNamespace(head_dim=head_dim, attn_logit_softcapping=softcap)

    assert find(cuda, torch.bfloat16, config(64)) is varlen_attn
    assert find(cuda, torch.float32, config(64)) is find(cuda, torch.bfloat16, config(512)) is None
    assert find(torch.device("cpu"), torch.bfloat16, config(64)) is None
    assert find(cuda, torch.bfloat16, config(64, 50.0)) is None


def test_attention_sinks_are_refused() -> None:
    state = torch.zeros(1, 1, 1, 1)
    packed: Any = object()
    with pytest.raises(ModelError, match="attention sinks"):
        packed_forward.packed_attention(
            torch.nn.Linear(1, 1), state, state, state, None, packed=packed, s_aux=torch.zeros(1)
        )
