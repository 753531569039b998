"""Rows end to end, a group's opening read once: the numbers and gradients of reading every row whole, padded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from rl2f_core.learning.learner.micro_batch import micro_batches, shared_prefix_length
from rl2f_core.models.modeling import logprobs
from rl2f_core.models.modeling.loading import load_base_model
from rl2f_core.models.modeling.logprobs import compute_logprobs, right_padded, selected_logprobs
from rl2f_core.models.modeling.sequence_packing import (
    VARLEN_ATTENTION,
    build_layout,
    enable_varlen_attention,
    hidden_states,
    prefix_savings,
)
from rl2f_core.types import TrainingSample

CPU = torch.device("cpu")


def test_each_token_may_have_its_own_temperature(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logprobs, entropies and gradients are those of one temperature each, whatever the size of the chunks."""
    model: Any = load_base_model(str(tiny), torch.float32, CPU)
    hidden_NH = torch.randn(7, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    targets_N, temperature_N = torch.arange(50, 57), torch.tensor([1.0, 0.5, 0.5, 1.0, 1.0, 0.5, 1.0])

    def compute(temperature: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        leaf_NH = hidden_NH.clone().requires_grad_()
        logp_N, entropy_N = compute_logprobs(model, leaf_NH, targets_N, temperature=temperature, banned=None)
        logp_N.sum().backward()
        return logp_N.detach(), entropy_N, leaf_NH.grad  # type: ignore[return-value]

    one, half, both = compute(1.0), compute(0.5), compute(temperature_N)
    monkeypatch.setattr(logprobs, "LOGITS_CHUNK", 3)
    chunked, cold_N = compute(temperature_N), temperature_N == 0.5
    for value_one, value_half, value, value_chunked in zip(one, half, both, chunked, strict=True):
        torch.testing.assert_close(value[cold_N], value_half[cold_N])
        torch.testing.assert_close(value[~cold_N], value_one[~cold_N])
        torch.testing.assert_close(value_chunked, value)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    made = load_base_model(str(tiny), torch.float32, CPU)
    assert enable_varlen_attention(made)
    return made


def rows(seed: int = 0) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Three openings of 7, 9 and 4 tokens; the first begins four rows, the second two, the third one."""
    rng = random.Random(seed)
    sequences, prefixes = [], []
    for length, count in ((7, 4), (9, 2), (4, 1)):
        opening = [rng.randrange(300) for _ in range(length)]
        for _ in range(count):
            sequences.append((*opening, *(rng.randrange(300) for _ in range(rng.randint(3, 12)))))
            prefixes.append(length)
    return sequences, tuple(prefixes)


def wanted(attention_mask_BT: torch.Tensor, prefixes: tuple[int, ...]) -> torch.Tensor:
    """Every second token of each row from the one after its prefix's next."""
    wanted_BT = torch.zeros_like(attention_mask_BT)
    for row, prefix in enumerate(prefixes):
        wanted_BT[row, prefix + 1 :: 2] = True
    return wanted_BT & attention_mask_BT


def test_log_probabilities_and_gradients_are_those_of_whole_rows(model: Any):
    sequences, prefixes = rows()
    input_BT, attention_mask_BT = right_padded(sequences, 0, CPU)
    found = {}
    for name, shared in (("whole", None), ("shared", prefixes), ("alone", (0,) * len(prefixes))):
        model.zero_grad()
        layout = None if shared is None else build_layout(sequences, shared, CPU)
        targets = wanted(attention_mask_BT, prefixes)
        logp_N, entropy_N = selected_logprobs(model, input_BT, attention_mask_BT, targets, layout=layout)
        (logp_N * torch.linspace(-1, 1, len(logp_N))).sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found[name] = (logp_N.detach(), entropy_N, gradients)
    model.zero_grad()
    assert len(found["whole"][0]) > 10
    for name in ("shared", "alone"):
        for whole, packed in zip(found["whole"][:2], found[name][:2], strict=True):
            torch.testing.assert_close(packed, whole, atol=1e-5, rtol=1e-5)
        for whole, packed in zip(found["whole"][2], found[name][2], strict=True):
            torch.testing.assert_close(packed, whole, atol=1e-5, rtol=1e-4)


def test_bfloat16_rows_end_to_end_are_near_those_padded(tiny: Path):
    model = load_base_model(str(tiny), torch.bfloat16, CPU)
    assert enable_varlen_attention(model)
    sequences, prefixes = rows()
    input_BT, attention_mask_BT = right_padded(sequences, 0, CPU)
    asked = (model, input_BT, attention_mask_BT, wanted(attention_mask_BT, prefixes))
    layout = build_layout(sequences, prefixes, CPU)
    with torch.no_grad():
        (whole, _), (shared, _) = selected_logprobs(*asked), selected_logprobs(*asked, layout=layout)
    assert float((shared - whole).abs().max()) < 0.5  # rounding differs by shape and processor; float32 is exact above


def test_the_layout_by_hand():
    # two rows that begin with 5 6, one that begins with 9, one without an opening
    sequences, prefixes = [(5, 6, 1), (5, 6, 2, 3), (9, 4), (7, 8)], (2, 2, 1, 0)
    layout = build_layout(sequences, prefixes, CPU)
    assert layout.token_N.tolist() == [5, 6, 9, 1, 2, 3, 4, 7, 8]
    assert layout.position_N.tolist() == [0, 1, 0, 2, 2, 3, 1, 0, 1]
    assert layout.prefix_B.tolist()[:3] == [0, 0, 1] and layout.start_B.tolist() == [1, 2, 5, 7]
    assert layout.prefixes is not None and layout.prefixes.index_N.tolist() == [0, 1, 2]  # rows of two: 5 6 | 9 _
    assert layout.suffixes.index_N.tolist() == [0, 2, 3, 4, 6, 7]  # 1 _ | 2 3 | 4 _ | 7 8
    assert layout.attention_mask_BRS[1].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert layout.attention_mask_BRS[2].int().tolist() == [[1, 0, 1, 0], [1, 0, 1, 1]]
    assert layout.attention_mask_BRS[3].int().tolist() == [[0, 0, 1, 0], [0, 0, 1, 1]]
    assert len(build_layout(sequences, (0, 0, 0, 0), CPU).token_N) == 11


def test_a_row_without_a_prefix_stands_beside_rows_that_have_one(model: Any):
    sequences, prefixes = rows()
    prefixes = (*prefixes[:-1], 0)
    input_BT, attention_mask_BT = right_padded(sequences, 0, CPU)
    with torch.no_grad():
        layout = build_layout(sequences, prefixes, CPU)
        hidden_NH = hidden_states(model, layout)
        whole_BTH = model.get_decoder()(input_ids=input_BT, attention_mask=attention_mask_BT.long()).last_hidden_state
    for row, (sequence, prefix) in enumerate(zip(sequences, prefixes, strict=True)):
        start = int(layout.start_B[row])
        found = hidden_NH[start + prefix : start + len(sequence)]
        torch.testing.assert_close(found, whole_BTH[row, prefix : len(sequence)], atol=1e-5, rtol=1e-4)


def test_the_saving_counts_each_opening_once():
    # 3 rows of 5 tokens, 4 of them shared by two rows: 15 tokens, of which 4 need not be read.
    assert prefix_savings([(1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (9, 2, 3, 4, 5)], [4, 4, 4]) == pytest.approx(4 / 15)
    assert prefix_savings([(1, 2), (3, 4)], [1, 1]) == 0.0


def test_padded_rows_are_read_as_by_the_model_s_own_attention(tiny: Path):
    sequences, _ = rows()
    input_BT, attention_mask_BT = right_padded(sequences, 0, CPU)
    found = []
    for by_rows in (False, True):
        model = load_base_model(str(tiny), torch.float32, CPU)
        if by_rows:
            assert enable_varlen_attention(model) and model.config._attn_implementation == VARLEN_ATTENTION
        with torch.no_grad():
            found.append(model(input_ids=input_BT, attention_mask=attention_mask_BT.long()).logits)
    torch.testing.assert_close(*found)


def test_a_model_with_a_sliding_window_keeps_its_attention(tiny: Path):
    model = load_base_model(str(tiny), torch.float32, CPU)
    model.config.sliding_window = 4
    before = model.config._attn_implementation
    assert not enable_varlen_attention(model) and model.config._attn_implementation == before != VARLEN_ATTENTION


def test_rows_of_one_opening_stay_in_one_micro_batch():
    def sample(opening: int, length: int) -> TrainingSample:
        n = 3 + length
        rl = [0.0] * 3 + [1.0] * length
        zeros = [0.0] * n
        ids = [opening] * 3 + list(range(length))
        return TrainingSample(ids, [bool(x) for x in rl], zeros, zeros, rl, zeros, zeros)

    samples = [sample(1, 9), sample(2, 8), sample(1, 2), sample(2, 7), sample(1, 5), sample(2, 3)]
    assert [shared_prefix_length(s) for s in samples] == [2] * 6
    batches = micro_batches(samples, 36, 0, CPU)
    assert [[row.token_ids[0] for row in batch.samples] for batch in batches] == [[1, 1, 1], [2, 2, 2]]
    assert [batch.lengths for batch in batches] == [[12, 8, 5], [11, 10, 6]]
