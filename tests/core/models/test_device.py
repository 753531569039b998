"""Device and dtype of a model."""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap

import pytest

from rl2f_core.errors import ConfigError


def test_auto_selects_the_best_device_and_its_native_dtype() -> None:
    import torch

    from rl2f_core.models.device import available_devices, has_native_bf16, resolve_device

    device, dtype = resolve_device()
    assert device.type == available_devices()[0]
    assert dtype == (torch.bfloat16 if has_native_bf16(device.type) else torch.float32)
    assert resolve_device("cpu", "float16") == (torch.device("cpu"), torch.float16)


def test_a_cpu_has_native_bfloat16_only_with_its_instructions() -> None:
    import torch

    from rl2f_core.models.device import has_native_bf16

    can = torch.cpu.get_capabilities()
    expected = any(can.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
    assert has_native_bf16("cpu") == expected
    assert not has_native_bf16("mps")


@pytest.mark.parametrize(("device", "dtype"), [("tpu", "auto"), ("cpu", "int4")])
def test_unknown_device_or_dtype_raises(device: str, dtype: str) -> None:
    from rl2f_core.models.device import resolve_device

    with pytest.raises(ConfigError, match="Unknown device or dtype"):
        resolve_device(device, dtype)


def test_unavailable_device_raises() -> None:
    from rl2f_core.models.device import DEVICES, available_devices, resolve_device

    absent = next(name for name in DEVICES if name not in ("auto", *available_devices()))
    with pytest.raises(ConfigError, match="not available"):
        resolve_device(absent)


def test_the_matrix_ceiling_is_a_plausible_speed() -> None:
    from rl2f_core.models.device import matmul_ceiling

    assert 0.1 < matmul_ceiling("float32", "cpu", seconds=0.05) < 1e6


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc keeps freed memory")
def test_fragmented_free_memory_is_returned_if_little_is_available() -> None:
    code = """if True:
        import psutil, torch
        from rl2f_core.models.device import trim_memory
        size = lambda: psutil.Process().memory_info().rss / 1e6
        torch.ones(7_000_000)  # after a free of this size, glibc takes smaller blocks from its heap
        before = size()
        pairs = [(torch.ones(256_000), torch.ones(100)) for _ in range(300)]  # 307 MB between small live tensors
        live = [small for _, small in pairs]
        del pairs
        print(size() - before, trim_memory(0.0), size() - before, trim_memory(1.0), size() - before)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    freed, skipped, untrimmed, trimmed, after = done.stdout.split()
    assert (skipped, trimmed) == ("False", "True")
    assert float(freed) > 250 and float(untrimmed) > 250 > 60 > float(after)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="arenas of glibc")
def test_threads_share_two_arenas_once_limited() -> None:
    code = """
        import ctypes, sys, threading
        if sys.argv[1] == "limited":
            from rl2f_core.models.device import limit_arenas
            limit_arenas()
        libc, all_started = ctypes.CDLL(None), threading.Barrier(9)
        threads = [threading.Thread(target=lambda: (bytearray(1000), all_started.wait())) for _ in range(8)]
        [thread.start() for thread in threads]
        all_started.wait()
        libc.fdopen.restype = ctypes.c_void_p
        out = libc.fdopen(1, b"w")
        libc.malloc_info(0, ctypes.c_void_p(out))
        libc.fflush(ctypes.c_void_p(out))
    """

    def arenas(how: str) -> int:
        command = [sys.executable, "-c", textwrap.dedent(code), how]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.count("<heap nr=")

    assert arenas("limited") <= 2 < arenas("as it is")
