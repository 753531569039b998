"""Copies and swaps of the KV cache's slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl2f_core.models.backends.hf.kv_cache import KVCache

CPU = torch.device("cpu")


@pytest.fixture(params=[False, True], ids=["head-major", "token-major"])
def kv(request: pytest.FixtureRequest) -> KVCache:
    """Six slots of 63 tokens; position p of slot s holds 100·s + p."""
    made = KVCache(CPU, token_major=request.param)
    made.reserve(6, 10)
    made.update(0, torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), torch.tensor([0]), torch.tensor([0]))
    for buffer in made._buffers[0]:
        values = 100.0 * torch.arange(6)[:, None] + torch.arange(buffer.shape[2])
        buffer.copy_(values[:, None, :, None].expand(buffer.shape))
    return made


def content(kv: KVCache, slot: int, width: int) -> list[float]:
    key, value = kv._buffers[0]
    assert torch.equal(key, value)
    return [float(x) for x in key[slot, 1, :width, 2]]


def test_prefixes_of_one_source_are_copied_together(kv: KVCache) -> None:
    for slot in (1, 3):
        kv.start_sequence(slot, [5, 6, 7], 1, 0, 2)
        assert int(kv.num_computed[slot]) == 0
    kv.finish_copies()
    assert content(kv, 1, 4) == [0, 1, 102, 103] and content(kv, 3, 4) == [0, 1, 302, 303]
    assert content(kv, 2, 2) == [200, 201] and content(kv, 0, 2) == [0, 1]
    assert kv.tokens[3, :3].tolist() == [5, 6, 7] and int(kv.num_computed[3]) == 2
    kv.finish_copies()
    assert content(kv, 1, 2) == [0, 1]


def test_a_copied_prefix_may_be_copied_again(kv: KVCache) -> None:
    """Slot 2 is a target, then a source; slot 0 is a source, then a target."""
    kv.start_sequence(2, [5, 6, 7], 1, 0, 2)
    kv.start_sequence(4, [5, 6, 8], 1, 2, 2)
    kv.start_sequence(0, [9, 9, 9], 1, 5, 2)
    kv.finish_copies()
    assert content(kv, 2, 2) == content(kv, 4, 2) == [0, 1] and content(kv, 0, 3) == [500, 501, 2]


def test_pairs_of_slots_are_swapped_with_their_tokens(kv: KVCache) -> None:
    for slot in range(6):
        kv.start_sequence(slot, [slot] * (slot + 1), 1, slot, 0)
    kv.swap([0, 1], [5, 3])
    assert [content(kv, slot, 1)[0] for slot in range(6)] == [500, 300, 200, 100, 400, 0]
    assert kv.num_tokens.tolist() == [6, 4, 3, 2, 5, 1] and np.all(kv.tokens[0, :6] == 5)
