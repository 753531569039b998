"""Selection of the layers that a LoRA adapter adapts."""

from __future__ import annotations

import re

from torch import nn

from rl2f_core.config.model import LoraConfig
from rl2f_core.errors import ConfigError
from rl2f_core.modeling.attention import CausalLM


def target_modules(base: CausalLM, lora: LoraConfig) -> list[str]:
    """Return the full names of the linear layers to adapt; raises `ConfigError` if none matches."""
    total = base.config.num_hidden_layers
    first = total - max(1, round(total * lora.top_layer_fraction))
    output = base.get_output_embeddings()
    names = []
    for name, module in base.named_modules():
        number = re.search(r"\.(\d+)\.", name)
        if not isinstance(module, nn.Linear) or module is output or number is None or int(number[1]) < first:
            continue
        if lora.target_modules == "all-linear" or name.rsplit(".", 1)[-1] in lora.target_modules:
            names.append(name)
    if not names:
        known = {n.rsplit(".", 1)[-1] for n, m in base.named_modules() if isinstance(m, nn.Linear)}
        raise ConfigError("No module matches lora.target_modules.", value=lora.target_modules, known=sorted(known))
    return names
