"""Which layers of a model a LoRA adapter changes."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from rl2f_core.config import LoraConfig
from rl2f_core.errors import ConfigError


def target_modules(base: Any, lora: LoraConfig) -> list[str]:
    """Full names of the linear layers to adapt; raises `ConfigError` where the model has none of that name."""
    total = base.config.num_hidden_layers
    first = total - max(1, round(total * lora.layers))
    output = base.get_output_embeddings()
    names = []
    for name, module in base.named_modules():
        number = re.search(r"\.(\d+)\.", name)
        if not isinstance(module, nn.Linear) or module is output or number is None or int(number[1]) < first:
            continue
        if lora.targets == "all-linear" or name.rsplit(".", 1)[-1] in lora.targets:
            names.append(name)
    if not names:
        known = {n.rsplit(".", 1)[-1] for n, m in base.named_modules() if isinstance(m, nn.Linear)}
        raise ConfigError("lora.targets names no layer of this model.", value=lora.targets, known=sorted(known))
    return names
