"""Names that transformers 4 reads, added to the settings that transformers 5 writes."""

from __future__ import annotations

import json
from pathlib import Path

from rl2f_core.common.file_io import read_json, write_atomically

NEEDS_4 = "Needs transformers 4.57 or newer."
NEEDS_5 = "Needs transformers 5: version 4 reads other names of the rotary embeddings' settings."
_MOVED = ("rope_theta", "partial_rotary_factor")
"""Settings that transformers 5 has in `rope_parameters`."""


def add_settings(folder: Path) -> None:
    """Add the names to the model and tokenizer configuration of a folder.

    Without `rope_theta`, transformers 4 takes the default of the architecture, silently. Layers with different rotary
    embeddings have no common name in version 4 and stay as they are.
    """
    config, tokenizer = read_json(folder / "config.json"), read_json(folder / "tokenizer_config.json")
    rope = config.get("rope_parameters") or {}
    if not any(isinstance(value, dict) for value in rope.values()):
        config |= {name: rope[name] for name in _MOVED if name in rope}
        if rope.get("rope_type", "default") != "default":
            config["rope_scaling"] = {name: value for name, value in rope.items() if name not in _MOVED}
    if "dtype" in config:
        config["torch_dtype"] = config["dtype"]
    if tokenizer.get("tokenizer_class") == "TokenizersBackend":
        tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
        tokenizer.setdefault("clean_up_tokenization_spaces", False)
    if isinstance(tokenizer.get("extra_special_tokens"), list):
        tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens")
    for name, data in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        if data:
            write_atomically(folder / name, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def supported_versions(folder: Path) -> str:
    """Return which versions of transformers read the model of a folder."""
    config = read_json(folder / "config.json")
    return NEEDS_5 if config.get("rope_parameters") and "rope_theta" not in config else NEEDS_4
