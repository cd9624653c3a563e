"""GGUF checkpoints against the model they were made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from aioinfer.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from aioinfer.models.interface import RopeConfig
from aioinfer.models.weights.checkpoint import open_checkpoint
from tests.models.weights.gguf_files import TOKENS, llama_metadata, llama_tensors, write_gguf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import LlamaForCausalLM

# Types that numpy can also make, with the largest error it makes on weights of about this size.
QUANTISED = {Kind.Q8_0: 0.01, Kind.Q5_1: 0.03, Kind.Q5_0: 0.05, Kind.Q4_1: 0.06, Kind.Q4_0: 0.1}


def make_model(**config: Any) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": 16,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**(sizes | config)))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return make_model()


@pytest.fixture
def write(tmp_path: Path, model: LlamaForCausalLM) -> Callable[..., Path]:
    """Write the model with some metadata replaced (None removes), tensors added or removed."""

    def write(
        metadata: dict[str, Any] | None = None, *, without: tuple[str, ...] = (), **options: Any
    ) -> Path:
        values = llama_metadata(model) | (metadata or {})
        tensors = {name: data for name, data in llama_tensors(model).items() if name not in without}
        return write_gguf(
            tmp_path / "tiny.gguf",
            {key: value for key, value in values.items() if value is not None},
            tensors | options.pop("tensors", {}),
            **options,
        )

    return write


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Kind.F32, torch.float32), (Kind.F16, torch.float16), (Kind.BF16, torch.bfloat16)],
    ids=lambda value: getattr(value, "name", None),
)
def test_float_types_hold_the_same_values(
    model: LlamaForCausalLM, write: Callable[..., Path], kind: Kind, dtype: torch.dtype
) -> None:
    with open_checkpoint(write(kind=kind)) as checkpoint:
        truth = model.state_dict()
        assert checkpoint.names() == truth.keys()
        assert checkpoint.config.dtype == str(dtype).removeprefix("torch.")
        for name, expected in truth.items():
            found = checkpoint.tensor(name)
            assert found.dtype == (torch.float32 if expected.ndim == 1 else dtype), name
            assert checkpoint.shape(name) == tuple(found.shape)
            torch.testing.assert_close(found, expected.to(found.dtype), rtol=0, atol=0)


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantised_types_hold_nearly_the_same_values(
    model: LlamaForCausalLM, write: Callable[..., Path], kind: Kind
) -> None:
    with open_checkpoint(write(kind=kind)) as checkpoint:
        for name, expected in model.state_dict().items():
            found = checkpoint.tensor(name)
            assert found.dtype == torch.float32
            assert found.shape == expected.shape
            error = (found - expected).abs().max().item()
            assert error < QUANTISED[kind], name
            if expected.ndim == 2:
                assert error > 0


EXPANDABLE = [
    kind
    for kind in Kind
    if kind.name.startswith(("Q", "IQ", "TQ", "MXFP", "NVFP")) and kind.name not in ("Q8_1", "Q8_K", "Q1_0")
]


@pytest.mark.parametrize("kind", EXPANDABLE, ids=lambda kind: kind.name)
def test_every_type_the_package_expands_is_read(write: Callable[..., Path], kind: Kind) -> None:
    """On random blocks of a tensor large enough to be expanded in several parts."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, width = 701, block_size
    while width < 512:
        width += block_size
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (rows, width // block_size * block_bytes), dtype=np.uint8)
    path = write(without=("output.weight",), raw={"output.weight": (blocks, kind)})
    with open_checkpoint(path) as checkpoint, np.errstate(all="ignore"):
        found = checkpoint.tensor("lm_head.weight").numpy()
        expected = gguf.dequantize(blocks, kind)
    assert found.shape == (rows, width)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [Kind.I8, Kind.Q8_K, Kind.Q8_1], ids=lambda kind: kind.name)
def test_a_type_nobody_can_expand_is_refused_on_opening(write: Callable[..., Path], kind: Kind) -> None:
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.zeros((4, block_bytes), np.uint8)
    path = write(raw={"output_norm.bias": (blocks.view(np.int8) if kind == Kind.I8 else blocks, kind)})
    with pytest.raises(UnsupportedModel, match=rf"{kind.name} is not supported; .*Q4_1.* are"):
        open_checkpoint(path)


def test_config_and_text_assets(write: Callable[..., Path]) -> None:
    with open_checkpoint(write()) as checkpoint:
        config, text = checkpoint.config, checkpoint.text
    assert checkpoint.name == "tiny"
    assert config.architecture == "LlamaForCausalLM"
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (16, 64, 96)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.head_dim, config.rotary_dim, config.max_position) == (16, 16, 128)
    assert config.rms_norm_eps == pytest.approx(1e-6)
    assert config.rope == RopeConfig(theta=10_000.0)
    assert not (config.tie_word_embeddings or config.attention_bias or config.mlp_bias)
    assert text.gguf_metadata is not None
    assert text.gguf_metadata["tokenizer.ggml.tokens"] == list(TOKENS)
    assert all(key.startswith("tokenizer.") for key in text.gguf_metadata)
    assert text.tokenizer_json is None
    assert text.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert text.eos_token_ids == (2, 4)
    assert text.add_bos is True
    assert text.chat_template == "{{ messages }}"


def test_defaults_of_absent_keys(tmp_path: Path) -> None:
    """As many key-value heads as query heads, a head of hidden size / heads, all of it rotated."""
    model = make_model(num_key_value_heads=4)
    metadata = llama_metadata(model)
    for key in (
        "llama.attention.head_count_kv",
        "llama.attention.key_length",
        "llama.attention.value_length",
        "llama.rope.dimension_count",
        "llama.rope.freq_base",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.chat_template",
    ):
        del metadata[key]
    with open_checkpoint(write_gguf(tmp_path / "plain.gguf", metadata, llama_tensors(model))) as checkpoint:
        config, text = checkpoint.config, checkpoint.text
        assert (config.num_kv_heads, config.head_dim, config.rotary_dim) == (4, 16, 16)
        assert config.rope == RopeConfig()
        assert (text.add_bos, text.chat_template) == (None, None)
        name = "model.layers.1.self_attn.k_proj.weight"
        torch.testing.assert_close(checkpoint.tensor(name), model.state_dict()[name], rtol=0, atol=0)


def test_tied_embeddings_have_no_head(write: Callable[..., Path]) -> None:
    with open_checkpoint(write(without=("output.weight",))) as checkpoint:
        assert checkpoint.config.tie_word_embeddings
        assert "lm_head.weight" not in checkpoint.names()


def test_biases_are_put_in_order_too(tmp_path: Path) -> None:
    model = make_model(attention_bias=True, mlp_bias=True)
    path = write_gguf(tmp_path / "bias.gguf", llama_metadata(model), llama_tensors(model))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config.attention_bias
        assert checkpoint.config.mlp_bias
        assert checkpoint.names() == model.state_dict().keys()
        for name, expected in model.state_dict().items():
            torch.testing.assert_close(checkpoint.tensor(name), expected, rtol=0, atol=0)


SCALINGS = {
    "none": ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, RopeConfig()),
    "linear": (
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        RopeConfig(type="linear", factor=4.0),
    ),
    "linear by default": ({"llama.rope.scaling.factor": 2.0}, RopeConfig(type="linear", factor=2.0)),
    "linear of old files": ({"llama.rope.scale_linear": 2.0}, RopeConfig(type="linear", factor=2.0)),
    "yarn": (
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 32,
        },
        RopeConfig(type="yarn", factor=4.0, original_max_position=32),
    ),
    "yarn with a magnitude": (
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 1.0,
            "llama.rope.scaling.attn_factor": 0.5,
            "llama.rope.scaling.yarn_beta_fast": 16.0,
        },
        RopeConfig(type="yarn", factor=1.0, attention_factor=0.5, beta_fast=16.0),
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_rope_scaling(write: Callable[..., Path], name: str) -> None:
    metadata, expected = SCALINGS[name]
    with open_checkpoint(write(metadata)) as checkpoint:
        assert checkpoint.config.rope == expected


def test_frequency_factors_are_llama3s_scaling(write: Callable[..., Path]) -> None:
    """The frequencies that the factors give are transformers' own, by the formula of `RopeConfig`."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    hf = LlamaConfig(
        hidden_size=64,
        head_dim=16,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    expected, magnitude = ROPE_INIT_FUNCTIONS["llama3"](hf, "cpu")
    plain = 1.0 / 500000.0 ** (torch.arange(0, 16, 2).float() / 16)
    factors = (plain / expected).numpy()
    path = write({"llama.rope.freq_base": 500000.0}, tensors={"rope_freqs.weight": factors})
    with open_checkpoint(path) as checkpoint:
        rope = checkpoint.config.rope
        assert "rope_freqs.weight" not in checkpoint.names()
    assert (rope.type, rope.attention_factor) == ("longrope", magnitude)
    assert rope.short_factor == rope.long_factor
    found = 1.0 / (torch.tensor(rope.short_factor) * rope.theta ** (torch.arange(0, 16, 2).float() / 16))
    torch.testing.assert_close(found, expected)


def test_split_files_are_one_checkpoint(tmp_path: Path, model: LlamaForCausalLM) -> None:
    write_gguf(tmp_path / "split.gguf", llama_metadata(model), llama_tensors(model), split_max_tensors=5)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    with open_checkpoint(parts[0]) as checkpoint:
        for name, expected in model.state_dict().items():
            torch.testing.assert_close(checkpoint.tensor(name), expected, rtol=0, atol=0)
    with pytest.raises(UnsupportedModel, match=f"not the first part; pass {parts[0].name}"):
        open_checkpoint(parts[1])
    parts[2].unlink()
    with pytest.raises(CorruptWeights, match=f"{parts[2].name} is missing"):
        open_checkpoint(parts[0])
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(UnsupportedModel, match="-00001-of-"):
        open_checkpoint(renamed)


def test_tensors_outlive_the_checkpoint_and_never_change_the_file(write: Callable[..., Path]) -> None:
    path = write()
    before = path.read_bytes()
    checkpoint = open_checkpoint(path)
    tensor = checkpoint.tensor("model.norm.weight")
    copy = tensor.clone()
    checkpoint.close()
    checkpoint.close()
    assert torch.equal(tensor, copy)
    tensor.zero_()
    assert path.read_bytes() == before
    with pytest.raises(CorruptWeights, match=r"no tensor model\.norm\.weight"):
        checkpoint.tensor("model.norm.weight")


REFUSED = {
    "unknown architecture": ({}, {"arch": "gpt2"}, UnsupportedModel, "'gpt2' is not supported; llama is"),
    "experts": ({"llama.expert_count": 8}, {}, UnsupportedModel, "expert_count"),
    "sliding window": ({"llama.attention.sliding_window": 64}, {}, UnsupportedModel, "sliding-window"),
    "uneven heads": ({"llama.attention.value_length": 8}, {}, UnsupportedModel, "values of 8"),
    "rope scaling": ({"llama.rope.scaling.type": "su"}, {}, UnsupportedModel, "'su' is not supported; none"),
    "unknown tensor": (
        {},
        {"tensors": {"blk.0.ffn_gate_inp.weight": np.ones((2, 32), np.float32)}},
        UnsupportedModel,
        "ffn_gate_inp",
    ),
    "missing key": ({"llama.block_count": None}, {}, CorruptWeights, "has no block_count"),
    "wrong type": ({"llama.block_count": "two"}, {}, CorruptWeights, "block_count must be an integer"),
    "missing layers": ({"llama.block_count": 3}, {}, CorruptWeights, "asks for 3 layers, the weights have 2"),
    "huge": ({"llama.block_count": 2**32 - 1}, {}, CorruptWeights, "block_count must be an integer"),
    "no embedding": ({}, {"without": ("token_embd.weight",)}, CorruptWeights, "token_embd"),
    "hidden size": (
        {"llama.embedding_length": 32},
        {},
        CorruptWeights,
        r"token_embd.weight has shape \[16, 64\], but the configuration asks for \[16, 32\]",
    ),
    "head count": (
        {"llama.attention.head_count": 2},
        {},
        CorruptWeights,
        r"q_proj.weight has shape \[64, 64\], but the configuration asks for \[32, 64\]",
    ),
    "heads do not divide": ({"llama.attention.head_count": 3}, {}, CorruptWeights, "multiple"),
    "rotary": ({"llama.rope.dimension_count": 7}, {}, CorruptWeights, "rotated"),
    "number of factors": (
        {},
        {"tensors": {"rope_freqs.weight": np.ones(5, np.float32)}},
        CorruptWeights,
        "short_factor has 5 values for 8",
    ),
    "zero factor": (
        {},
        {"tensors": {"rope_freqs.weight": np.zeros(8, np.float32)}},
        CorruptWeights,
        r"rope_freqs.weight\[0\] must be",
    ),
    "token id": ({"tokenizer.ggml.bos_token_id": 99}, {}, CorruptWeights, "bos_token_id is 99"),
    "too many tokens": (
        {"tokenizer.ggml.tokens": ["a"] * 17},
        {},
        CorruptWeights,
        "has 17 tokens, but embeddings for 16",
    ),
    "tokens": ({"tokenizer.ggml.tokens": [1, 2]}, {}, CorruptWeights, "list of strings"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_why(write: Callable[..., Path], name: str) -> None:
    metadata, options, error, message = cast("tuple[Any, ...]", REFUSED[name])
    with pytest.raises(error, match=message):
        open_checkpoint(write(metadata, **options))


def test_no_tensors_at_all(tmp_path: Path, model: LlamaForCausalLM) -> None:
    path = write_gguf(tmp_path / "empty.gguf", llama_metadata(model), {})
    with pytest.raises(CorruptWeights, match=r"no tensor token_embd\.weight"):
        open_checkpoint(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="does not exist"):
        open_checkpoint(tmp_path / "nothing.gguf")


def test_the_default_model(default_model_path: Path) -> None:
    """Shapes and values of the real file against the package's own reader."""
    reader = gguf.GGUFReader(default_model_path)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    with open_checkpoint(default_model_path) as checkpoint:
        config = checkpoint.config
        assert (config.vocab_size, config.num_layers, config.hidden_size) == (49152, 30, 576)
        assert (config.num_heads, config.num_kv_heads, config.tie_word_embeddings) == (9, 3, True)
        assert len(checkpoint.names()) == len(reader.tensors)
        by_gguf_name = {names.get_name(name, try_suffixes=(".weight",)): name for name in checkpoint.names()}
        for stored in reader.tensors:
            name = by_gguf_name[stored.name]
            assert checkpoint.shape(name) == tuple(reversed(stored.shape.tolist()))
        for stored in reader.tensors[:10]:
            name = by_gguf_name[stored.name]
            expected = gguf.dequantize(stored.data, stored.tensor_type)
            found = checkpoint.tensor(name).numpy()
            if "attn_q" in stored.name or "attn_k" in stored.name:
                # Rows 0 and 32 of a head of 64 lie side by side in the file.
                np.testing.assert_array_equal(found[[0, 32, 1, 33, 64, 96]], expected[[0, 1, 2, 3, 64, 65]])
            else:
                np.testing.assert_array_equal(found, expected)
