"""Which device and number format a model runs with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rl2f_core.errors import ConfigError


def test_auto_takes_the_best_device_and_a_dtype_that_it_computes_natively() -> None:
    import torch

    from rl2f_core.device import available, native_bfloat16, resolve

    device, dtype = resolve()
    assert device.type == available()[0]
    assert dtype == (torch.bfloat16 if native_bfloat16(device.type) else torch.float32)
    assert resolve("cpu", "float16") == (torch.device("cpu"), torch.float16)


def test_a_cpu_is_native_in_bfloat16_only_with_the_instructions_for_it() -> None:
    import torch

    from rl2f_core.device import native_bfloat16

    can = torch.cpu.get_capabilities()
    expected = any(can.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
    assert native_bfloat16("cpu") == expected
    assert not native_bfloat16("mps")


@pytest.mark.parametrize(("device", "dtype"), [("tpu", "auto"), ("cpu", "int4")])
def test_an_unknown_device_or_dtype_is_a_clear_error(device: str, dtype: str) -> None:
    from rl2f_core.device import resolve

    with pytest.raises(ConfigError, match="Unknown device or dtype"):
        resolve(device, dtype)


def test_a_device_that_is_not_there_is_a_clear_error() -> None:
    from rl2f_core.device import DEVICES, available, resolve

    absent = next(name for name in DEVICES if name not in ("auto", *available()))
    with pytest.raises(ConfigError, match="not available"):
        resolve(absent)


def test_the_matrix_ceiling_is_a_speed() -> None:
    from rl2f_core.device import matmul_ceiling

    assert 0.1 < matmul_ceiling("float32", "cpu", seconds=0.05) < 1e6


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone keeps what is freed")
def test_freed_memory_between_blocks_that_live_on_is_given_back_where_little_is_left() -> None:
    code = """if True:
        import psutil, torch
        from rl2f_core.device import give_back
        size = lambda: psutil.Process().memory_info().rss / 1e6
        torch.ones(7_000_000)  # once so large a block was freed, glibc takes smaller ones from its own heap
        before = size()
        held = [(torch.ones(256_000), torch.ones(100)) for _ in range(300)]  # 307 MB, each beside one that lives on
        kept = [small for _, small in held]
        del held
        print(size() - before, give_back(share=0.0), size() - before, give_back(share=1.0), size() - before)
    """
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    held, no, roomy, yes, after = asked.stdout.split()
    assert (no, yes) == ("False", "True")
    assert float(held) > 250 and float(roomy) > 250 > 60 > float(after)
