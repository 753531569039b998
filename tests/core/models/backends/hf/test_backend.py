"""The transformers backend on a tiny random model in float32: the same tokens however they are computed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_helpers import with_context

from rl2f_core.config.model import ModelConfig
from rl2f_core.errors import AdapterError, RunError
from rl2f_core.models.backends.base import Generation, GenerationRequest, SamplingParams
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.backends.hf.decoder import ContinuousBatchingDecoder
from rl2f_core.types import FinishReason

SYSTEM, USER = "Reply as <answer>number</answer>.", "What is 12 + 34?"
SAMPLING = SamplingParams(max_new_tokens=6)


@pytest.fixture(scope="module")
def make(tiny: Path) -> Any:
    def build(**config: Any) -> HFBackend:
        model = ModelConfig(name=str(tiny), dtype="float32", device="cpu")
        return HFBackend(HFBackend.Config(**config), model)

    return build


@pytest.fixture(scope="module", params=["off", "on"], ids=["packed", "static"])
def shared(make: Any, request: pytest.FixtureRequest) -> HFBackend:
    """One backend for the tests that leave nothing behind: with packed decode steps, and over static shapes."""
    return make(cuda_graphs=request.param)


@pytest.fixture(scope="module")
def scorer(make: Any) -> HFBackend:
    """A backend for scores, which do not depend on the decode steps."""
    return make()


@pytest.fixture
def backend(shared: HFBackend) -> HFBackend:
    shared.reset_prefix_cache()
    shared.adapters.clear()
    shared._merger.activate(None, {})
    return shared


def opening(backend: HFBackend, user: str = USER) -> tuple[int, ...]:
    messages: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
    return tuple(backend.tokenizer.encode(backend.tokenizer.apply_chat_template(messages, add_generation_prompt=True)))


def prompts(backend: HFBackend, count: int, seed: int = 0) -> list[GenerationRequest]:
    """Openings of different lengths, some of them shared."""
    users = [USER, "Hi.", "What is 1 + 1? " * 5]
    return [GenerationRequest(opening(backend, users[i % 3]), seed * 1000 + i, f"d{i}") for i in range(count)]


def play(
    backend: HFBackend, count: int, turns: int = 3, batch: int = 99, sampling: SamplingParams = SAMPLING
) -> list[Any]:
    """Dialogues of several turns, `batch` at a time: prompts and generations of each, in order."""
    hint = tuple(backend.tokenizer.encode("\n<|im_start|>user\nToo low.<|im_end|>\n<|im_start|>assistant\n"))
    out: list[Any] = []
    starts = prompts(backend, count)
    for first in range(0, count, batch):
        live = starts[first : first + batch]
        rows: list[list[Any]] = [[] for _ in live]
        for turn in range(turns):
            said = backend.generate(live, sampling)
            follow = []
            for row, prompt, generation in zip(rows, live, said, strict=True):
                row.append(generation)
                closing = () if generation.stop is FinishReason.EOS else (backend.tokenizer.eos_token_id,)
                tokens = prompt.token_ids + generation.token_ids + closing + hint * (1 + prompt.seed % 2)
                follow.append(GenerationRequest(tokens, prompt.seed + 100 * (turn + 1), prompt.cache_key))
            live = follow
        out += rows
        backend.reset_prefix_cache()
    return out


def ids(generations: Sequence[Generation]) -> list[tuple[int, ...]]:
    return [g.token_ids for g in generations]


def assert_same(one: Sequence[Sequence[Generation]], two: Sequence[Sequence[Generation]], tolerance: float) -> None:
    for row, other in zip(one, two, strict=True):
        assert [(g.token_ids, g.stop) for g in row] == [(g.token_ids, g.stop) for g in other]
        for a, b in zip(row, other, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=tolerance)


# -- the same tokens -----------------------------------------------------------------------------------------------
def test_equal_seeds_give_bit_identical_results(backend: HFBackend) -> None:
    first, second = play(backend, 5, turns=2), play(backend, 5, turns=2)
    assert first == second
    other = backend.generate(
        [GenerationRequest(p.token_ids, p.seed + 1, p.cache_key) for p in prompts(backend, 5)], SAMPLING
    )
    assert ids(other) != ids([row[0] for row in first])


def test_a_temperature_near_zero_is_greedy_for_any_seed(backend: HFBackend) -> None:
    cold = SamplingParams(max_new_tokens=8, temperature=1e-4)
    start = opening(backend)
    said = backend.generate([GenerationRequest(start, seed) for seed in range(4)], cold)
    assert len(set(ids(said))) == 1
    assert all(p == pytest.approx(0, abs=1e-3) for p in said[0].logprobs)
    tokens = start
    for token in said[0].token_ids:
        assert token == likeliest(backend, tokens)
        tokens += (token,)


def logits(backend: HFBackend, tokens: Sequence[int]) -> Any:
    import torch

    with torch.inference_mode():
        out = backend.model(input_ids=torch.tensor([list(tokens)])).logits[0, -1]
        out[list(backend.tokenizer.banned_token_ids)] = float("-inf")
    return out


def likeliest(backend: HFBackend, tokens: Sequence[int]) -> int:
    return int(logits(backend, tokens).argmax())


def test_tokens_do_not_depend_on_the_cache_between_turns(backend: HFBackend, make: Any) -> None:
    fresh = make(reuse_kv_cache=False)
    before = backend._decoder.num_forward_tokens
    assert_same(play(backend, 4), play(fresh, 4), 1e-4)
    assert fresh._decoder.num_forward_tokens > backend._decoder.num_forward_tokens - before and not any(
        fresh._decoder.keys
    )


def test_tokens_do_not_depend_on_the_batch(backend: HFBackend) -> None:
    together = play(backend, 5, turns=2)
    for batch in (1, 3):
        assert_same(together, play(backend, 5, turns=2, batch=batch), 1e-4)


def test_tokens_do_not_depend_on_chunked_prefill(backend: HFBackend, make: Any) -> None:
    assert_same(play(backend, 4, turns=2), play(make(max_prefill_tokens=16), 4, turns=2), 1e-4)


def test_slots_may_be_released_and_compacted_between_turns(backend: HFBackend) -> None:
    everyone = prompts(backend, 5)
    first = backend.generate(everyone, SAMPLING)
    after = [
        GenerationRequest(
            p.token_ids + g.token_ids + tuple(backend.tokenizer.encode("<|im_end|>\nx")), p.seed + 50, p.cache_key
        )
        for p, g in zip(everyone, first, strict=True)
    ]
    chosen = [after[4], after[1], after[2]]
    kept = backend.generate(chosen, SAMPLING)
    backend.reset_prefix_cache()
    assert_same([kept], [backend.generate(chosen, SAMPLING)], 1e-4)


# -- log-probabilities ---------------------------------------------------------------------------------------------
def test_logprobs_are_those_of_score_over_the_allowed_tokens(backend: HFBackend) -> None:
    import math

    start = opening(backend)
    (said,) = backend.generate([GenerationRequest(start, 3, "d")], SAMPLING)
    scored = backend.score([start + said.token_ids])[0]
    assert scored[0] == 0 and len(scored) == len(start) + len(said.token_ids)
    for i, (token, logp) in enumerate(zip(said.token_ids, said.logprobs, strict=True)):
        before = start + said.token_ids[:i]
        forbidden = [backend.score([(*before, t)])[0][-1] for t in backend.tokenizer.banned_token_ids]
        allowed = 1 - sum(map(math.exp, forbidden))
        assert token not in backend.tokenizer.banned_token_ids
        assert logp == pytest.approx(scored[len(before)] - math.log(allowed), abs=1e-4)


@pytest.mark.parametrize("temperature", [pytest.param(0.5, marks=pytest.mark.slow), 1.0, 1.7])
def test_logprobs_are_those_of_the_learner(backend: HFBackend, temperature: float) -> None:
    import torch

    from rl2f_core.models.modeling.logprobs import right_padded, selected_logprobs

    asked = prompts(backend, 6)
    said = backend.generate(asked, SamplingParams(10, temperature))
    rows = [p.token_ids + g.token_ids for p, g in zip(asked, said, strict=True)]
    ids_BT, attention_mask_BT = right_padded(rows, backend.pad_id, backend.device)
    wanted_BT = torch.zeros_like(attention_mask_BT)
    for i, (p, row) in enumerate(zip(asked, rows, strict=True)):
        wanted_BT[i, len(p.token_ids) : len(row)] = True
    with torch.inference_mode():
        logp_N, entropy_N = selected_logprobs(
            backend.model, ids_BT, attention_mask_BT, wanted_BT, temperature=temperature, banned=backend._decoder.banned
        )
    assert logp_N.tolist() == pytest.approx([p for g in said for p in g.logprobs], abs=1e-4)
    assert bool((entropy_N > 0).all())


@pytest.mark.parametrize("limit", [16, 100, 8192])
def test_scores_do_not_depend_on_how_they_are_batched(make: Any, scorer: HFBackend, limit: int) -> None:
    rows = [opening(scorer, "x" * n) for n in (1, 40, 3, 17)] + [(5,), ()]
    wanted = [scorer.score([row])[0] for row in rows]
    got = make(max_scoring_tokens=limit).score(rows)
    assert [len(s) for s in got] == [len(r) for r in rows] and got[-2:] == [[0.0], []]
    for a, b in zip(got, wanted, strict=True):
        assert a == pytest.approx(b, abs=1e-4)
    assert scorer.score([]) == []


# -- what may be drawn ---------------------------------------------------------------------------------------------
def test_banned_tokens_are_never_sampled(backend: HFBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl2f_core.models.modeling import logprobs

    plain, banned = logprobs.compute_logits, list(backend.tokenizer.banned_token_ids)

    def favouring(model: Any, hidden: Any) -> Any:
        out = plain(model, hidden)
        out[:, banned] += 50
        return out

    monkeypatch.setattr(logprobs, "compute_logits", favouring)
    said = backend.generate([GenerationRequest(opening(backend), seed) for seed in range(40)], SAMPLING)
    drawn = {t for g in said for t in g.token_ids}
    assert len(drawn) > 50 and drawn.isdisjoint(banned)
    assert all(p > -20 for g in said for p in g.logprobs)


def test_a_turn_ends_at_its_end_token_or_at_its_length(backend: HFBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl2f_core.models.modeling import logprobs

    plain, end = logprobs.compute_logits, backend.tokenizer.eos_token_id

    def ending(model: Any, hidden: Any) -> Any:
        out = plain(model, hidden)
        out[:, end] += 4
        return out

    monkeypatch.setattr(logprobs, "compute_logits", ending)
    said = backend.generate([GenerationRequest(opening(backend), seed) for seed in range(60)], SamplingParams(6))
    stops = {g.stop for g in said}
    assert stops == {FinishReason.EOS, FinishReason.LENGTH}
    for g in said:
        assert end not in g.token_ids[:-1] and len(g.logprobs) == len(g.token_ids) <= 6
        assert (g.token_ids[-1] == end) == (g.stop is FinishReason.EOS)
        assert g.stop is FinishReason.EOS or len(g.token_ids) == 6
    assert len({len(g.token_ids) for g in said}) > 3


def test_max_new_tokens_may_be_one(backend: HFBackend) -> None:
    said = backend.generate(prompts(backend, 3), SamplingParams(1))
    assert [len(g.token_ids) for g in said] == [1, 1, 1]
    assert backend.generate([], SAMPLING) == []


def test_a_small_nucleus_is_greedy(backend: HFBackend) -> None:
    said = backend.generate(
        [GenerationRequest(opening(backend), seed) for seed in range(3)], SamplingParams(5, top_p=1e-6)
    )
    cold = backend.generate([GenerationRequest(opening(backend), 9)], SamplingParams(5, temperature=1e-4))
    assert set(ids(said)) == set(ids(cold))


def test_continued_dialogues_need_no_new_slots(make: Any) -> None:
    backend = make()
    starts = prompts(backend, 8)
    said = backend.generate(starts, SamplingParams(4))
    slots = backend._decoder.kv.num_slots
    hint = tuple(backend.tokenizer.encode("\n<|im_start|>user\nToo low.<|im_end|>\n<|im_start|>assistant\n"))
    following = [
        GenerationRequest(p.token_ids + g.token_ids + hint, p.seed, p.cache_key)
        for p, g in zip(starts, said, strict=True)
    ]
    backend.generate(following, SamplingParams(4))
    assert backend._decoder.kv.num_slots == slots == 8


# -- limits --------------------------------------------------------------------------------------------------------
def test_only_prompts_beyond_the_context_are_refused(shared: HFBackend, tiny: Path, tmp_path: Path) -> None:
    model = ModelConfig(name=str(with_context(tiny, tmp_path / "short", 300)), dtype="float32", device="cpu")
    backend = HFBackend(shared.config, model)
    word = backend.tokenizer.encode("x")[0]
    fits = (word,) * (backend.max_model_len - 2)
    with pytest.raises(RunError, match="do not fit the model's context"):
        backend.generate([GenerationRequest((*fits, word), 0)], SamplingParams(2))
    assert (backend.max_model_len, shared.max_model_len) == (300, 2048)
    assert len(backend.generate([GenerationRequest(fits, 0)], SamplingParams(2))[0].token_ids) in (1, 2)


# -- the cache -----------------------------------------------------------------------------------------------------
def grown(backend: HFBackend, prompt: GenerationRequest, said: Generation) -> GenerationRequest:
    more = tuple(backend.tokenizer.encode("<|im_end|>\nmore"))
    return GenerationRequest(prompt.token_ids + said.token_ids + more, prompt.seed + 7, prompt.cache_key)


def cached_tokens(backend: HFBackend, prompt: GenerationRequest) -> list[int]:
    """The tokens of a dialogue in the KV cache."""
    kv, slot = backend._decoder.kv, backend._decoder.keys.index(prompt.cache_key)
    return list(kv.tokens[slot, : kv.num_computed[slot]])


def reads(backend: HFBackend, *asked: GenerationRequest, adapter: str | None = None) -> int:
    """Tokens that the model reads in order to answer with one token each."""
    before = backend._decoder.num_forward_tokens
    backend.generate(asked, SamplingParams(1), adapter)
    return backend._decoder.num_forward_tokens - before


def test_only_uncached_tokens_are_computed(backend: HFBackend, adapters: dict[str, Path]) -> None:
    first = prompts(backend, 2)
    said = backend.generate(first, SAMPLING)
    longer = [grown(backend, p, g) for p, g in zip(first, said, strict=True)]
    new = [len(p.token_ids) - len(cached_tokens(backend, p)) for p in longer]
    assert all(n < len(p.token_ids) / 2 for n, p in zip(new, longer, strict=True))
    assert reads(backend, *longer[::-1]) == sum(new)
    assert reads(backend, *longer) == 2  # the last token is read again, for what comes after it
    backend.load_adapter("wide", adapters["wide"])
    assert reads(backend, *longer[:1], adapter="wide") == len(longer[0].token_ids)  # other weights
    changed = GenerationRequest((longer[0].token_ids[0] + 1, *longer[0].token_ids[1:]), 1, "d0")
    assert reads(backend, changed) == len(changed.token_ids)
    backend.reset_prefix_cache()
    assert reads(backend, *longer) == len(longer[0].token_ids) + len(longer[1].token_ids) - alike(longer)


def alike(asked: Sequence[GenerationRequest]) -> int:
    """Tokens that two prompts begin with."""
    return next(i for i, (a, b) in enumerate(zip(*(p.token_ids for p in asked), strict=False)) if a != b)


def test_the_initial_prompt_of_a_group_is_computed_once(backend: HFBackend) -> None:
    one, other = opening(backend), opening(backend, "What is 5 + 5?")
    group = [GenerationRequest(one, seed, f"d{seed}") for seed in range(8)]
    assert reads(backend, *group) == len(one) + 7  # and by each of the others its last token
    backend._decoder.release_cache(p.cache_key for p in group)
    assert reads(backend, GenerationRequest(one, 9, "later")) == 1  # from a row that a dialogue has left
    again = [GenerationRequest(other, 0, "e"), GenerationRequest(one, 1, "f")]
    assert reads(backend, *again) == len(other) - alike(again) + 1


def test_prompts_without_cache_key_leave_the_students_cache_unchanged(backend: HFBackend) -> None:
    first = prompts(backend, 3)
    said = backend.generate(first, SAMPLING)
    held = [cached_tokens(backend, p) for p in first]
    asked = GenerationRequest(opening(backend, "Hint?"), 9)
    alone = backend.generate([asked, asked], SAMPLING)
    assert [cached_tokens(backend, p) for p in first] == held and all(held)
    longer = [grown(backend, p, g) for p, g in zip(first, said, strict=True)]
    went_on = backend.generate(longer, SAMPLING)
    backend.reset_prefix_cache()
    assert [g.token_ids for g in backend.generate(longer, SAMPLING)] == [g.token_ids for g in went_on]
    backend.reset_prefix_cache()
    assert ids(backend.generate([asked, asked], SAMPLING)) == ids(alone) and not any(backend._decoder.keys)


def test_a_cache_key_with_other_tokens_does_not_continue_the_cached_prompt(backend: HFBackend) -> None:
    (first,) = prompts(backend, 1)
    backend.generate([first], SAMPLING)
    other = GenerationRequest(
        opening(backend, "Something else, and longer than before, so that it could be an extension."), 4, "d0"
    )
    got = backend.generate([other], SAMPLING)
    backend.reset_prefix_cache()
    assert_same([got], [backend.generate([other], SAMPLING)], 1e-5)


def test_the_cache_is_consistent_after_an_error(backend: HFBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prompts(backend, 2)
    said = backend.generate(first, SAMPLING)
    longer = [grown(backend, p, g) for p, g in zip(first, said, strict=True)]
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(ContinuousBatchingDecoder, "_sample", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
        backend.generate(longer[::-1], SAMPLING)
    assert not backend._decoder.pending
    got = backend.generate(longer, SAMPLING)
    backend.reset_prefix_cache()
    assert_same([got], [backend.generate(longer, SAMPLING)], 1e-4)


# -- adapters ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> dict[str, Path]:
    """Two LoRA adapters of different reach, saved by PEFT with weights that matter."""
    import peft
    import torch

    from rl2f_core.models.modeling.loading import load_base_model

    folders = {}
    for seed, (name, targets) in enumerate({"wide": "all-linear", "narrow": ["q_proj", "v_proj"]}.items(), 1):
        base = load_base_model(str(tiny), torch.float32, torch.device("cpu"))
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM")
        model = peft.get_peft_model(base, config)
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "lora_B" in key:
                    parameter.normal_(0, 0.2)
        folders[name] = tmp_path_factory.mktemp("adapters") / name
        model.save_pretrained(folders[name])
        rows = torch.tensor([list(range(10, 40))])
        with torch.inference_mode():
            logp = model(input_ids=rows).logits.float().log_softmax(-1)[0]
        scores = [0.0] + [float(logp[i, i + 11]) for i in range(29)]
        (folders[name] / "scores.json").write_text(json.dumps(scores))
    return folders


def test_a_merged_adapter_equals_peft_and_the_base_is_restored_exactly(
    backend: HFBackend, adapters: dict[str, Path]
) -> None:
    row = tuple(range(10, 40))
    before = backend.score([row])
    weights = {n: m.weight.clone() for n, m in backend._merger.modules.items()}
    for name, folder in adapters.items():
        backend.load_adapter(name, folder)
    scored = {}
    for name in ("wide", "narrow", "wide"):
        (scored[name],) = backend.score([row], adapter=name)
        wanted = json.loads((adapters[name] / "scores.json").read_text())
        assert scored[name] == pytest.approx(wanted, abs=1e-4)
    assert max(abs(a - b) for a, b in zip(scored["wide"], before[0], strict=True)) > 0.1
    assert scored["wide"] != pytest.approx(scored["narrow"], abs=1e-2)
    assert backend.score([row]) == before
    assert all(bool((m.weight == weights[n]).all()) for n, m in backend._merger.modules.items())


def test_a_reloaded_adapter_is_used_at_once(backend: HFBackend, adapters: dict[str, Path]) -> None:
    row = tuple(range(10, 40))
    said = []
    for folder in (adapters["wide"], adapters["narrow"]):
        backend.load_adapter("policy", folder)
        assert backend.score([row], adapter="policy")[0] == pytest.approx(
            json.loads((folder / "scores.json").read_text()), abs=1e-4
        )
        said.append(backend.generate(prompts(backend, 3), SAMPLING, adapter="policy"))
    assert ids(said[0]) != ids(said[1])


def test_the_cache_of_one_adapter_is_not_used_by_another(backend: HFBackend, adapters: dict[str, Path]) -> None:
    backend.load_adapter("wide", adapters["wide"])
    first = prompts(backend, 2)
    said = backend.generate(first, SAMPLING)
    longer = [grown(backend, p, g) for p, g in zip(first, said, strict=True)]
    got = backend.generate(longer, SAMPLING, adapter="wide")
    backend.reset_prefix_cache()
    assert_same([got], [backend.generate(longer, SAMPLING, adapter="wide")], 1e-5)


def test_the_error_for_an_unknown_adapter_lists_the_loaded_ones(backend: HFBackend, adapters: dict[str, Path]) -> None:
    backend.load_adapter("wide", adapters["wide"])
    with pytest.raises(AdapterError, match="Known: wide"):
        backend.score([(5, 6)], adapter="other")


def test_an_unreadable_adapter_leaves_the_previous_one_loaded(
    backend: HFBackend, adapters: dict[str, Path], tmp_path: Path
) -> None:
    backend.load_adapter("policy", adapters["wide"])
    (wanted,) = backend.score([tuple(range(10, 40))], adapter="policy")
    with pytest.raises(AdapterError, match="no readable LoRA adapter"):
        backend.load_adapter("policy", tmp_path)
    assert backend.score([tuple(range(10, 40))], adapter="policy") == [wanted]
