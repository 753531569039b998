"""Estimated memory and suggested settings, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from rl2f_core.config.presets import preset
from rl2f_core.learning.hardware.sizes import (
    GPU_PRESETS,
    SIZES,
    USABLE,
    ModelSize,
    memory_table,
    preset_for,
    smallest_fast,
    suggestions,
)

SMALL = ModelSize("small", hidden=4, intermediate=8, layers=2, kv=2, vocabulary=10, tied=True)


def test_weights_and_adapter_of_a_small_model() -> None:
    # per layer: q and o 16 + 16, k and v 8 + 8, gate, up and down 3 · 32; embeddings 40
    assert SMALL.weights == 2 * (48 + 96) + 40
    # r · (in + out): q and o 8 + 8, k and v 6 + 6, MLP 3 · 12
    assert SMALL.adapter_weights(rank=2) == 2 * 2 * (16 + 12 + 36)
    assert SMALL.kv_bytes(2) == 2 * 2 * 2 * 2


@pytest.mark.parametrize(
    ("name", "billions"), [("0.1B", 0.135), ("0.5B", 0.494), ("1.5B", 1.54), ("7B", 7.62), ("32B", 32.8)]
)
def test_sizes_have_the_published_number_of_weights(name: str, billions: float) -> None:
    (size,) = (size for size in SIZES if size.name == name)
    assert size.weights / 1e9 == pytest.approx(billions, rel=0.01)


def test_memory_of_an_adapter_and_of_all_weights() -> None:
    cache = 16 * 2048 * SMALL.kv_bytes(2)
    (row,) = memory_table(total=10**9, width=2, sizes=[SMALL])
    assert row["adapter_bytes"] == 4 * 328 + cache + 16 * SMALL.adapter_weights(16)
    assert row["full_bytes"] == 4 * 328 + cache + 16 * 328
    (tight,) = memory_table(total=int(row["full_bytes"] / 0.85) + 2, width=2, sizes=[SMALL])
    assert tight["full_fits"] and not tight["adapter_fits"]  # rank 16 on layers of width 4 has more weights


@pytest.mark.parametrize(
    ("gigabytes", "name"),
    [(6, None), (8, "gpu_8gb"), (7.6, "gpu_8gb"), (16, "gpu_8gb"), (25.3, "gpu_24gb"), (79, "gpu_80gb"),
     (150, "gpu_141gb")],
)  # fmt: skip
def test_the_preset_is_the_largest_that_the_memory_allows(gigabytes: float, name: str | None) -> None:
    assert preset_for(int(gigabytes * 1e9)) == name


def test_the_presets_of_gpus_exist_and_fit_their_memory() -> None:
    from rl2f_core.config.run import RunConfig

    known = {size.name: size for size in SIZES}
    for gigabytes, name in GPU_PRESETS.items():
        config = preset(name).config()
        assert isinstance(config, RunConfig) and config.model.dtype == "bfloat16" and config.model.device == "cuda"
        size = known[config.model.name.split("-")[1]]
        cache = config.rollout.max_concurrent * config.rollout.max_seq_len * size.kv_bytes(2)
        needed = 4 * size.weights + 16 * size.adapter_weights(config.lora.rank) + cache
        assert 0.25 * gigabytes < needed / 1e9 < USABLE * gigabytes


def test_the_smallest_batch_near_the_best_speed_is_suggested() -> None:
    rows = [{"batch": 1, "tokens_per_second": 10.0}, {"batch": 8, "tokens_per_second": 91.0},
            {"batch": 32, "tokens_per_second": 100.0}]  # fmt: skip
    assert smallest_fast(rows, "batch") == 8
    assert smallest_fast([], "batch") is None


def test_settings_follow_from_the_measurements() -> None:
    report = {
        "dtype": "bfloat16", "device": "cuda", "memory": {"total": 85e9},
        "rollout": [{"batch": 64, "tokens_per_second": 5.0}], "update": [],
    }  # fmt: skip
    assert [row["set"] for row in suggestions(report)] == [
        "model.dtype=bfloat16", "rollout.max_concurrent=64", "rl2f train gpu_80gb"
    ]  # fmt: skip
    assert len(suggestions({**report, "device": "cpu"})) == 2
