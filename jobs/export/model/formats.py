"""Formats of exported models."""

from __future__ import annotations

from typing import Literal

from jobs.export.model.gguf_file import QUANTIZATIONS
from rl2f_core.errors import ConfigError

MODEL_FORMATS = {
    "safetensors": "Merged weights for transformers and vLLM",
    "peft": "The LoRA adapter alone, for PEFT",
    **{f"gguf-{name}": f"Merged weights in {name}, for llama.cpp and Ollama" for name in QUANTIZATIONS},
}
"""Format → description."""
ModelFormat = Literal[
    "safetensors", "peft",
    "gguf-f32", "gguf-f16", "gguf-bf16", "gguf-q8_0", "gguf-q5_1", "gguf-q5_0", "gguf-q4_1", "gguf-q4_0",
]  # fmt: skip
"""The keys of `MODEL_FORMATS`."""
DTYPES = ("float32", "bfloat16", "float16")
"""Types of merged safetensors."""


def check_format(format: str, dtype: str) -> None:
    """Raise `ConfigError` for an unknown format or dtype."""
    for value, known in ((format, tuple(MODEL_FORMATS)), (dtype, DTYPES)):
        if value not in known:
            raise ConfigError("Models cannot be exported in this format.", value=value, known=known)


def quantization(format: str) -> str | None:
    """Return the quantization of a GGUF format, or None."""
    return format.removeprefix("gguf-") if format.startswith("gguf-") else None
