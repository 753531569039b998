"""Names that transformers 4 reads, added to the settings that transformers 5 wrote."""

from __future__ import annotations

import json
from pathlib import Path

from rl2f_core.file_io import read_json, write_atomically

READS_BOTH = "Tested with transformers 4.57.1 and 5.19.0."
NEEDS_5 = "Needs transformers 5: version 4 has other names for the rotary embeddings of these layers."
_MOVED = ("rope_theta", "partial_rotary_factor")
"""Settings that transformers 5 has in `rope_parameters`."""


def add_settings(folder: Path) -> str:
    """Add the names to the model and tokenizer configuration, and return the versions that read the model.

    Without `rope_theta`, transformers 4 takes the default of the architecture, silently.
    """
    config, tokenizer = read_json(folder / "config.json"), read_json(folder / "tokenizer_config.json")
    rope = config.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in rope.values()):  # several kinds of layers
        return NEEDS_5
    config |= {name: rope[name] for name in _MOVED if name in rope}
    if rope.get("rope_type", "default") != "default":
        config["rope_scaling"] = {name: value for name, value in rope.items() if name not in _MOVED}
    config["torch_dtype"] = config.get("dtype")
    if tokenizer.get("tokenizer_class") == "TokenizersBackend":
        tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
        tokenizer.setdefault("clean_up_tokenization_spaces", False)
    if isinstance(tokenizer.get("extra_special_tokens"), list):
        tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens")
    for name, data in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        if data:
            write_atomically(folder / name, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    return READS_BOTH
