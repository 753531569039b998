"""The `Modelfile` of a GGUF export: system message, chat template and sampling for Ollama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHATML = """{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
"""ChatML in the template language of Ollama."""


def modelfile(gguf: str, tokenizer: Path, system: str, temperature: float, top_p: float) -> str:
    """Return a Modelfile with the system message and the sampling of the evaluation.

    It contains a template for tokenizers with ChatML. For others Ollama reads the chat template of the GGUF file.

    Args:
        gguf: Name of the GGUF file in the same folder.
        tokenizer: Folder of the tokenizer.
        system: System message; empty for none.
        temperature: Sampling temperature.
        top_p: Nucleus sampling.
    """
    lines = [f"FROM ./{gguf}"]
    if _is_chatml(tokenizer):
        lines += [f'TEMPLATE """{CHATML}"""', 'PARAMETER stop "<|im_end|>"']
    if system:
        lines.append('SYSTEM """' + system.replace('"""', "'''") + '"""')
    return "\n".join([*lines, f"PARAMETER temperature {temperature:g}", f"PARAMETER top_p {top_p:g}"]) + "\n"


def _is_chatml(folder: Path) -> bool:
    """Whether the tokenizer's chat template renders ChatML."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": f"text {i}"} for i, role in enumerate(roles)]
    expected = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return bool(rendered == expected + "<|im_start|>assistant\n")
