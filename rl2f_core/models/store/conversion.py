"""Conversions of GGUF models: the rules of their tokenizers, and the names of earlier conversions.

A GGUF names the rule that splits text into words (`tokenizer.ggml.pre`) and omits the normalizer. Conversion 1 of the
built-in models lost both where transformers does not know the name. A run records the conversion it uses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl2f_core.common.file_io import write_atomically
from rl2f_core.errors import ModelError
from rl2f_core.types import JsonObject

CONVERSION = 2
"""The current conversion of the built-in models."""
CONVERTED = ("smollm2-135m", "qwen2.5-coder-1.5b")
"""Built-in models that are converted from a GGUF."""

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_DIGITS = {"type": "Digits", "individual_digits": True}
_NFC = {"type": "NFC"}


def _byte_level(use_regex: bool) -> JsonObject:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> list[JsonObject]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [split, _byte_level(False)]


PRE_TOKENIZERS: dict[str, list[JsonObject]] = {
    "gpt-2": [_byte_level(True)],
    "smollm": [_DIGITS, _byte_level(True)],
    "qwen2": _split(_QWEN),
    "llama-bpe": _split(_LLAMA3),
}
"""llama.cpp's name of a rule → the steps of `pre_tokenizer` in `tokenizer.json` (llama.cpp, `src/llama-vocab.cpp`)."""


def pre_tokenizer_name(tokenizer: JsonObject) -> str:
    """Return llama.cpp's name of the rules in a `tokenizer.json`. Raises `ModelError` if it has none."""
    rule = tokenizer.get("pre_tokenizer") or {}
    steps = [
        {**_byte_level(True), **s} if s.get("type") == "ByteLevel" else s for s in rule.get("pretokenizers", [rule])
    ]
    steps = [{**step, "trim_offsets": True} if "trim_offsets" in step else step for step in steps]
    normalizer = tokenizer.get("normalizer") or _NFC
    for name, known in PRE_TOKENIZERS.items():
        if tokenizer["model"]["type"] == "BPE" and steps == known and normalizer == _NFC:
            return name
    kinds = [tokenizer["model"]["type"], *(step.get("type") for step in steps), normalizer["type"]]
    raise ModelError("This tokenizer cannot be written as GGUF.", value=kinds, known=list(PRE_TOKENIZERS),
                     fix="Export safetensors, and convert them with llama.cpp.")  # fmt: skip


def restore_rules(tokenizer: Path, pre: str, conversion: int = CONVERSION) -> None:
    """Write the rules that a GGUF names into a `tokenizer.json`. Raises `ModelError` for an unknown name."""
    if pre not in PRE_TOKENIZERS:
        raise ModelError("The GGUF names an unknown pre-tokenizer.", value=pre, known=list(PRE_TOKENIZERS),
                         fix="Convert a GGUF with a known one, or take the safetensors of the hub.")  # fmt: skip
    steps = PRE_TOKENIZERS["gpt-2" if conversion == 1 and pre == "smollm" else pre]
    data = json.loads(tokenizer.read_text(encoding="utf-8"))
    data["normalizer"] = _NFC if conversion > 1 and pre == "qwen2" else None
    data["pre_tokenizer"] = steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
    write_atomically(tokenizer, json.dumps(data, indent=2, ensure_ascii=False))


# -- names -----------------------------------------------------------------------------------------------------------
def conversion_name(name: str, conversion: int) -> str:
    """Return the name of a model in a conversion; the current one has no suffix."""
    return name if conversion == CONVERSION or name not in CONVERTED else f"{name}-v{conversion}"


def plain_name(name: str) -> str:
    """Return the name of a model without its conversion."""
    return next((known for known in CONVERTED if name.startswith(f"{known}-v")), name)


def rename_models(config: Any, conversion: int) -> Any:
    """Replace the names of models in a configuration by those of a conversion."""
    if isinstance(config, list):
        return [rename_models(item, conversion) for item in config]
    if not isinstance(config, dict):
        return config
    renamed = {key: rename_models(value, conversion) for key, value in config.items()}
    model = renamed.get("model")
    if isinstance(model, dict) and isinstance(model.get("name"), str):
        renamed["model"] = {**model, "name": conversion_name(model["name"], conversion)}
    return renamed
