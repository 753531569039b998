"""Scores of prompt and sampled tokens agree with `Backend.score` and with a plain forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from chat_helpers import save_adapter

from rl2f_core.config.model import ModelConfig
from rl2f_core.models.backends.base import GenerationRequest, SamplingParams
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.backends.hf.decoder import RunningSequence
from rl2f_core.models.backends.hf.token_scores import ScoredSampling, score_tokens

PROMPT = "What is 12 + 34? The answer is 46. Try again. " * 3


@pytest.fixture(scope="module", params=["off", "on"], ids=["packed", "static"])
def backend(tiny: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> HFBackend:
    """The tiny model with the adapter `tuned`; prefills at most 16 tokens at a time."""
    settings = HFBackend.Config(cuda_graphs=request.param)
    built = HFBackend(settings, ModelConfig(name=str(tiny), dtype="float32", device="cpu"), unmerged=True)
    built._decoder.max_prefill_tokens = 16
    built.load_adapter("tuned", save_adapter(tiny, tmp_path_factory.mktemp("adapters") / "tuned", 1))
    return built


def run(backend: HFBackend, *requests: tuple[str, SamplingParams, str | None]) -> list[RunningSequence]:
    """Generate several prompts together."""
    sequences = [
        backend.submit([GenerationRequest(tuple(backend.tokenizer.encode(text)), 7)], sampling, adapter)[0]
        for text, sampling, adapter in requests
    ]
    while any(sequence.generation is None for sequence in sequences):
        backend.step()
    return sequences


@pytest.mark.parametrize("adapter", [None, "tuned"])
def test_scores_of_prompt_and_completion_are_those_of_backend_score(backend: HFBackend, adapter: str | None) -> None:
    sampling = ScoredSampling(5, temperature=0.7, top_logprobs=2, score_prompt=True)
    plain = SamplingParams(14)
    (scored, *_) = run(backend, (PROMPT, sampling, adapter), (PROMPT, plain, None), ("Hi.", plain, "tuned"))
    prompt = scored.prompt.token_ids
    expected = backend.score([prompt + tuple(scored.token_ids)], adapter)[0][1:]
    assert [score.logprob for score in scored.prompt_scores + scored.scores] == pytest.approx(expected, abs=1e-4)
    assert len(scored.prompt_scores) == len(prompt) - 1 > 2 * 16


def test_a_scored_prompt_does_not_change_the_sampled_tokens(backend: HFBackend) -> None:
    (scored,) = run(backend, (PROMPT, ScoredSampling(8, top_logprobs=1, score_prompt=True), "tuned"))
    (plain,) = run(backend, (PROMPT, SamplingParams(8), "tuned"))
    assert scored.token_ids == plain.token_ids
    assert scored.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
    assert plain.scores == [] and plain.prompt_scores == []


def test_without_new_tokens_only_the_prompt_is_scored(backend: HFBackend) -> None:
    scored, other = run(backend, (PROMPT, ScoredSampling(0, score_prompt=True), None), ("Hi.", SamplingParams(3), None))
    assert scored.token_ids == [] and scored.generation is not None and scored.generation.stop == "length"
    assert len(scored.prompt_scores) == len(scored.prompt.token_ids) - 1
    assert len(other.token_ids) == 3


def test_the_most_likely_tokens_are_sorted_and_each_row_has_its_own_number() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.0]])
    first, second = score_tokens(logits, [0, 1], [ScoredSampling(1, top_logprobs=2), SamplingParams(1)])
    total = torch.tensor([0.0, 2.0, 1.0]).exp().sum().log().item()
    assert first.logprob == pytest.approx(-total)
    assert [token for token, _ in first.top] == [1, 2]
    assert [logprob for _, logprob in first.top] == pytest.approx([2 - total, 1 - total])
    assert second.logprob == pytest.approx(2 - total) and second.top == ()
