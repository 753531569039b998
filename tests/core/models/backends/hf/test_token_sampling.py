"""One token a row from logits and a uniform number."""

from __future__ import annotations

import pytest
import torch

from rl2f_core.models.backends.hf.token_sampling import sample_tokens


def test_tokens_follow_the_uniform_number() -> None:
    p = torch.tensor([[0.5, 0.2, 0.0, 0.3]]).repeat(6, 1)
    uniform = torch.tensor([0.0, 0.49, 0.51, 0.69, 0.71, 0.999])
    token, logp = sample_tokens(p.log(), uniform)
    assert token.tolist() == [0, 0, 1, 1, 3, 3]
    assert logp.exp().tolist() == pytest.approx([0.5, 0.5, 0.2, 0.2, 0.3, 0.3])


def test_block_sampling_equals_one_cumulative_sum_and_skips_banned_tokens() -> None:
    drawn = torch.Generator().manual_seed(0)
    for words in (300, 512, 700):  # the last block is a part of one, whole, and a part
        logits = torch.randn(200, words, generator=drawn) * 4
        logits[:, [0, 255, 256, words - 1]] = -1e30
        uniform = torch.rand(200, generator=drawn, dtype=torch.float64)
        uniform[:3] = torch.tensor([0.0, 1 - 2**-53, 1.0])
        token, logp = sample_tokens(logits, uniform)
        p = logits.double().softmax(1)
        below = torch.tensor([float(row[:t].sum()) for row, t in zip(p, token, strict=True)])
        mass = p.gather(1, token[:, None]).squeeze(1)
        assert bool((mass > 0).all()) and token[:3].tolist()[0] == 1
        assert bool((below <= uniform + 1e-6).all()) and bool((uniform <= below + mass + 1e-6).all())
        assert torch.allclose(logp.double(), mass.log(), atol=1e-4)


def test_the_nucleus_is_the_smallest_set_of_likeliest_tokens() -> None:
    p = torch.tensor([[0.5, 0.2, 0.0, 0.3]]).repeat(5, 1)
    uniform = torch.tensor([0.0, 0.6, 0.63, 0.99, 0.3])
    token, logp = sample_tokens(p.log(), uniform, 0.7)  # 0 and 3 are left, with 5/8 and 3/8
    assert token.tolist() == [0, 0, 3, 3, 0]
    assert logp.exp().tolist() == pytest.approx([0.5, 0.5, 0.3, 0.3, 0.5])  # under the full distribution
    assert sample_tokens(p.log(), uniform, 0.49)[0].tolist() == [0] * 5
    assert sample_tokens(p.log(), uniform, 0.01)[0].tolist() == [0] * 5
