"""Write a model as GGUF, which llama.cpp, Ollama and transformers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl2f_core.errors import ModelError
from rl2f_core.models.store.conversion import pre_tokenizer_name

if TYPE_CHECKING:
    from gguf import GGUFWriter
    from torch import Tensor
    from transformers import PreTrainedModel

QUANTIZATIONS = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""Types of the weight matrices that the package `gguf` can write; vectors are always float32."""
ARCHITECTURES = {"LlamaForCausalLM": "LLAMA", "Qwen2ForCausalLM": "QWEN2", "Qwen3ForCausalLM": "QWEN3"}
"""Class of transformers → member of `gguf.MODEL_ARCH`."""


def write_gguf(model: PreTrainedModel, tokenizer: Path, path: Path, quantization: str, name: str) -> None:
    """Write a GGUF file.

    Matrices whose rows are not a multiple of the block size (32 for q types) become float16. The q4 and q5 types store
    embeddings and output layer as q8_0.

    Args:
        model: Model with float32 weights.
        tokenizer: Folder with `tokenizer.json` and `tokenizer_config.json`.
        path: The file to write.
        quantization: One of `QUANTIZATIONS`.
        name: Name in the file's metadata.

    Raises `ModelError` for an architecture or a tokenizer that cannot be written, and for weights beyond the range of
    float16.
    """
    import gguf

    config: Any = model.config
    architecture = gguf.MODEL_ARCH[_architecture(config)]
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[architecture])
    file_type = "ALL_F32" if quantization == "f32" else f"MOSTLY_{quantization.upper()}"
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType[file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_hyperparameters(writer, config)
    _add_tokenizer(writer, tokenizer, config.vocab_size)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        target = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise ModelError("GGUF has no tensor for these weights.", value=key)
        data = _permuted(key, tensor, config) if architecture is gguf.MODEL_ARCH.LLAMA else tensor.numpy()
        array, stored_as = _quantized(target, np.ascontiguousarray(data, dtype=np.float32), quantization)
        writer.add_tensor(target, array, raw_dtype=stored_as)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _architecture(config: Any) -> str:
    found = (config.architectures or [""])[0]
    if found not in ARCHITECTURES:
        raise ModelError("This architecture cannot be written as GGUF.", value=found, known=list(ARCHITECTURES),
                         fix="Export safetensors, and convert them with llama.cpp.")  # fmt: skip
    rope = config.rope_parameters.get("rope_type", "default")
    if rope != "default":
        raise ModelError("Scaled rotary embeddings cannot be written as GGUF.", value=rope,
                         fix="Export safetensors, and convert them with llama.cpp.")  # fmt: skip
    return ARCHITECTURES[found]


def _add_hyperparameters(writer: GGUFWriter, config: Any) -> None:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _permuted(key: str, tensor: Tensor, config: Any) -> np.ndarray:
    """Reorder queries and keys of Llama from transformers' halves to GGUF's interleaved pairs of rotary dimensions."""
    data: np.ndarray = tensor.numpy()
    part = key.split(".")[-2]
    if part not in ("q_proj", "k_proj"):
        return data
    heads = config.num_attention_heads if part == "q_proj" else config.num_key_value_heads
    pairs = data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:])
    return pairs.swapaxes(1, 2).reshape(data.shape)


def _quantized(name: str, data: np.ndarray, quantization: str) -> tuple[np.ndarray, Any]:
    """Return a tensor in the type in which the file stores it, and this type."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import quantize

    if data.ndim == 1:
        return data, GGMLQuantizationType.F32
    if quantization[:2] in ("q4", "q5") and name in ("token_embd.weight", "output.weight"):
        quantization = "q8_0"
    stored_as = GGMLQuantizationType[quantization.upper()]
    if data.shape[-1] % GGML_QUANT_SIZES[stored_as][0]:
        stored_as = GGMLQuantizationType.F16
    if stored_as is GGMLQuantizationType.F16 and np.abs(data).max() > np.finfo(np.float16).max:
        raise ModelError("The weights exceed the range of float16.", value=name, fix="Export gguf-bf16.")
    return quantize(data, stored_as), stored_as


# -- tokenizer -------------------------------------------------------------------------------------------------------
def _add_tokenizer(writer: GGUFWriter, folder: Path, vocab_size: int) -> None:
    """Add vocabulary, merges, special tokens and chat template of a byte-level BPE tokenizer."""
    from gguf import SpecialVocab, TokenType

    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    writer.add_tokenizer_pre(pre_tokenizer_name(data))  # first, because it raises for other tokenizers
    writer.add_tokenizer_model("gpt2")
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [TokenType.UNUSED] * vocab_size
    for text, i in data["model"]["vocab"].items():
        tokens[i], types[i] = text, TokenType.NORMAL
    for added in data["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    special = SpecialVocab(folder, load_merges=True, n_vocab=vocab_size)
    special.add_special_token.setdefault("bos", False)
    special.add_to_gguf(writer, quiet=True)
