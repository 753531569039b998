"""One token a row from logits and a uniform number."""

from __future__ import annotations

import math

import pytest
import torch

from rl2f_core.models.backends.hf.token_sampling import gumbel_noise, sample_tokens

P = torch.tensor([0.5, 0.2, 0.0, 0.3])


def _uniform(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _frequencies(p: torch.Tensor, top_p: float = 1.0, draws: int = 5_000) -> torch.Tensor:
    token, _ = sample_tokens(p.log().expand(draws, -1), _uniform(draws), top_p)
    return torch.bincount(token, minlength=len(p)) / draws


def _limit(p: torch.Tensor, draws: int = 5_000) -> torch.Tensor:
    """Return five standard errors of a frequency, and a little more for rare tokens."""
    return 5 * (p * (1 - p) / draws).sqrt() + 5 / draws


def test_the_noise_is_that_of_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # of seed 0
    noise = [-math.log(-math.log(((bits >> 11) + 0.5) / 2**53)) for bits in published]
    assert gumbel_noise(torch.zeros(1, dtype=torch.float64), 3)[0].tolist() == pytest.approx(noise, rel=1e-12)
    assert bool(gumbel_noise(torch.tensor([0.0, 1 - 2**-53, 1.0], dtype=torch.float64), 1000).isfinite().all())


def test_tokens_have_the_frequencies_of_their_probabilities() -> None:
    assert bool(((_frequencies(P) - P).abs() <= _limit(P)).all())
    token, logp = sample_tokens(P.log().expand(64, -1), _uniform(64))
    assert torch.allclose(logp.exp(), P[token], atol=1e-6)


@pytest.mark.parametrize("words", [300, 512, 700], ids=["a part", "whole", "a part of the third"])
def test_blocks_of_the_vocabulary_change_no_frequency(words: int) -> None:
    logits = torch.randn(words, generator=torch.Generator().manual_seed(words)) * 2
    logits[[0, 255, 256, words - 1]] = -1e30  # banned
    p = logits.softmax(0)
    frequency = _frequencies(p)
    assert bool(((frequency - p).abs() <= _limit(p)).all())
    assert float(frequency[[0, 255, 256, words - 1]].sum()) == 0
    blocks, drawn = (torch.nn.functional.pad(x, (0, -words % 256)).view(-1, 256).sum(1) for x in (p, frequency))
    assert bool(((drawn - blocks).abs() <= _limit(blocks)).all())


def test_the_nucleus_is_the_smallest_set_of_likeliest_tokens() -> None:
    nucleus = torch.tensor([5 / 8, 0, 0, 3 / 8])  # 0 and 3 are left
    assert bool(((_frequencies(P, 0.7) - nucleus).abs() <= _limit(nucleus)).all())
    token, logp = sample_tokens(P.log().expand(64, -1), _uniform(64), 0.7)
    assert torch.allclose(logp.exp(), P[token], atol=1e-6)  # under the full distribution
    for top_p in (0.49, 0.01):
        assert sample_tokens(P.log().expand(64, -1), _uniform(64), top_p)[0].tolist() == [0] * 64


def test_a_row_depends_on_no_other_row() -> None:
    logits, uniform = torch.randn(40, 700, generator=torch.Generator().manual_seed(1)), _uniform(40)
    together = sample_tokens(logits, uniform)[0]
    assert together.tolist() == [int(sample_tokens(logits[i : i + 1], uniform[i : i + 1])[0]) for i in range(40)]


def test_a_change_in_the_last_digits_of_flat_logits_changes_no_token() -> None:
    """The limits of an inverted cumulative distribution move: it changes 5 of these 500 tokens."""
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 16384, generator=drawn)
    changed = logits + 1e-4 * torch.randn(500, 16384, generator=drawn)
    uniform = _uniform(500)
    assert int((sample_tokens(logits, uniform)[0] != sample_tokens(changed, uniform)[0]).sum()) <= 1
