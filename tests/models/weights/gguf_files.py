"""Makes .gguf files the way llama.cpp's conversion does, with the `gguf` package's own writer and names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt
    from transformers import LlamaForCausalLM

TOKENS = ("<unk>", "<s>", "</s>", "a", "b", "größe")


def interleave(weights: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """What the conversion does to the rows of query and key projections, row by row."""
    half = len(weights) // num_heads // 2
    result = np.empty_like(weights)
    for head in range(num_heads):
        start = head * 2 * half
        for i in range(half):
            result[start + 2 * i] = weights[start + i]
            result[start + 2 * i + 1] = weights[start + i + half]
    return result


def llama_tensors(model: LlamaForCausalLM) -> dict[str, npt.NDArray[np.float32]]:
    """A model's tensors by their GGUF names, in the conversion's layout."""
    config: Any = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors: dict[str, Any] = {}
    for name, parameter in model.state_dict().items():
        values = parameter.float().numpy()
        if ".q_proj." in name:
            values = interleave(values, config.num_attention_heads)
        if ".k_proj." in name:
            values = interleave(values, config.num_key_value_heads)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None
        tensors[gguf_name] = values
    if config.tie_word_embeddings:
        del tensors["output.weight"]
    return tensors


def llama_metadata(model: LlamaForCausalLM) -> dict[str, Any]:
    """A model's metadata, with a small vocabulary."""
    config: Any = model.config
    return {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "llama.rope.dimension_count": config.head_dim,
        "llama.attention.key_length": config.head_dim,
        "llama.attention.value_length": config.head_dim,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.scores": [0.0] * len(TOKENS),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 4,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ messages }}",
    }


def stored(values: npt.NDArray[np.float32], kind: Kind) -> tuple[npt.NDArray[Any], Kind]:
    """Values as the conversion stores them: vectors always in float32."""
    kind = Kind.F32 if values.ndim == 1 else kind
    return gguf.quantize(values, kind), kind


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[np.float32]],
    *,
    kind: Kind = Kind.F32,
    raw: Mapping[str, tuple[npt.NDArray[np.uint8], Kind]] | None = None,
    arch: str = "llama",
    split_max_tensors: int = 0,
) -> Path:
    """Write a file.

    Args:
        kind: how matrices are stored.
        raw: more tensors, already stored: bytes and their type.
        split_max_tensors: most tensors in one file; 0 does not split.
    """
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split_max_tensors)
    add: dict[type, Any] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        add[type(value)](key, value)
    for name, values in tensors.items():
        data, used = stored(values, kind)
        writer.add_tensor(name, data, raw_dtype=used)
    for name, (data, used) in (raw or {}).items():
        writer.add_tensor(name, data, raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
