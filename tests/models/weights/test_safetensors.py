"""Hugging Face directories: whole, in shards, and in every way not whole."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from aioinfer.errors import CorruptWeights, ModelError, ModelNotFound, UnsupportedModel
from aioinfer.models.weights.checkpoint import check_shape, open_checkpoint
from tests.tiny_llama import CHAT_TEMPLATE, write_tiny_llama

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"
SAME_PATH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture
def sharded(tiny_llama_dir: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(tiny_llama_dir, tmp_path / "model")


@pytest.fixture(scope="module")
def single_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("single"), max_shard_size="1GB")


@pytest.fixture
def single(single_dir: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(single_dir, tmp_path / "model")


def truth(directory: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in directory.glob("*.safetensors"):
        tensors |= load_file(path)
    return tensors


def rewrite(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("layout", ["sharded", "single"])
def test_every_tensor(layout: str, request: pytest.FixtureRequest) -> None:
    directory = request.getfixturevalue(layout)
    expected = truth(directory)
    assert (len(list(directory.glob("*.safetensors"))) > 1) == (layout == "sharded")
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.names() == expected.keys()
        for name, tensor in expected.items():
            assert checkpoint.shape(name) == tuple(tensor.shape)
            torch.testing.assert_close(checkpoint.tensor(name), tensor, rtol=0, atol=0)


def test_config_text_and_name(sharded: Path) -> None:
    with open_checkpoint(sharded) as checkpoint:
        assert checkpoint.name == "model"
        assert checkpoint.path == sharded
        assert checkpoint.config.num_layers == 2
        assert checkpoint.text.tokenizer_json == (sharded / "tokenizer.json").read_bytes()
        assert checkpoint.text.chat_template == CHAT_TEMPLATE
        assert checkpoint.text.eos_token_ids == (2,)
        assert checkpoint.text.special_tokens["bos_token"] == "<|im_start|>"


def test_name_of_a_snapshot_in_a_hub_cache(tiny_llama_dir: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--some-owner--some--model" / "snapshots" / ("0" * 40)
    shutil.copytree(tiny_llama_dir, snapshot)
    with open_checkpoint(snapshot) as checkpoint:
        assert checkpoint.name == "some-owner/some--model"


def test_old_constants_are_not_weights_and_dtype_is_the_weights_own(single: Path) -> None:
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in truth(single).items()}
    expected = set(tensors)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, single / "model.safetensors")
    rewrite(single / "config.json", dtype=None)
    with open_checkpoint(single) as checkpoint:
        assert checkpoint.names() == expected
        assert checkpoint.config.dtype == "bfloat16"
        assert checkpoint.tensor("model.norm.weight").dtype == torch.bfloat16


def test_tensors_outlive_the_checkpoint_and_never_change_the_file(single: Path) -> None:
    before = (single / "model.safetensors").read_bytes()
    checkpoint = open_checkpoint(single)
    tensor = checkpoint.tensor("model.norm.weight")
    copy = tensor.clone()
    checkpoint.close()
    checkpoint.close()
    assert torch.equal(tensor, copy)
    tensor.zero_()
    assert (single / "model.safetensors").read_bytes() == before
    with pytest.raises(CorruptWeights, match=r"no tensor model\.norm\.weight"):
        checkpoint.tensor("model.norm.weight")


def test_types_that_are_not_floats_are_refused(single: Path) -> None:
    tensors = truth(single)
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    save_file(tensors, single / "model.safetensors")
    with (
        open_checkpoint(single) as checkpoint,
        pytest.raises(UnsupportedModel, match=r"stored as I8; .*BF16"),
    ):
        checkpoint.tensor("model.norm.weight")


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has no config\.json \(found: nothing\)"):
        open_checkpoint(tmp_path)
    (tmp_path / "some.gguf").touch()
    with pytest.raises(ModelNotFound, match=r"pass its own path: .*some\.gguf"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelNotFound, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UnsupportedModel, match=r"pass a \.gguf file, or a directory"):
        open_checkpoint(tmp_path / "model.safetensors")


def test_no_weights(single: Path) -> None:
    (single / "model.safetensors").rename(single / "adapter.safetensors")
    with pytest.raises(
        ModelNotFound, match=rf"neither model\.safetensors nor {INDEX} .*adapter\.safetensors"
    ):
        open_checkpoint(single)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickles_are_never_read(single: Path, name: str) -> None:
    (single / "model.safetensors").rename(single / name)
    with pytest.raises(UnsupportedModel, match=r"pickle files only, .* never read"):
        open_checkpoint(single)


def test_missing_shard(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CorruptWeights, match=f"{shard.name} is missing"):
        open_checkpoint(sharded)


def test_index_that_names_a_tensor_the_shard_has_not(sharded: Path) -> None:
    weight_map = json.loads((sharded / INDEX).read_text())["weight_map"]
    rewrite(sharded / INDEX, weight_map=weight_map | {"model.extra": weight_map["model.norm.weight"]})
    with pytest.raises(CorruptWeights, match=rf"has no tensor model\.extra, which {INDEX} looks for"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("elsewhere", ["../x.safetensors", "/etc/passwd", "a\\b", "..", "", 7, None])
def test_index_that_points_elsewhere(sharded: Path, elsewhere: object) -> None:
    rewrite(sharded / INDEX, weight_map={"model.norm.weight": elsewhere})
    with pytest.raises(CorruptWeights, match=r"model\.norm\.weight must (name a file beside it|be a string)"):
        open_checkpoint(sharded)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "JSON object"),
        ("{}", "no weight_map"),
        ('{"weight_map": 1}', "an object"),
    ],
)
def test_index_that_is_none(sharded: Path, content: str, message: str) -> None:
    (sharded / INDEX).write_text(content)
    with pytest.raises(CorruptWeights, match=message):
        open_checkpoint(sharded)


def test_layers_that_have_no_weights(single: Path) -> None:
    rewrite(single / "config.json", num_hidden_layers=3)
    with pytest.raises(CorruptWeights, match="asks for 3 layers, the weights have 2"):
        open_checkpoint(single)
    rewrite(single / "config.json", num_hidden_layers=2**31 - 1)
    with pytest.raises(CorruptWeights, match="layers"):
        open_checkpoint(single)


def test_weights_that_are_a_directory(single: Path) -> None:
    (single / "model.safetensors").unlink()
    (single / "model.safetensors").mkdir()
    with pytest.raises(ModelError, match=r"cannot read .*model\.safetensors"):
        open_checkpoint(single)


@SAME_PATH
@given(data=st.data())
def test_truncation_at_any_byte(single: Path, data: st.DataObject, single_dir: Path) -> None:
    whole = (single_dir / "model.safetensors").read_bytes()
    length = data.draw(st.integers(0, 3000) | st.integers(0, len(whole) - 1))
    (single / "model.safetensors").write_bytes(whole[:length])
    with pytest.raises(CorruptWeights, match=r"model\.safetensors is damaged or cut short"):
        open_checkpoint(single)


@SAME_PATH
@given(data=st.data())
def test_flipped_bits_in_the_header(single: Path, data: st.DataObject, single_dir: Path) -> None:
    damaged = bytearray((single_dir / "model.safetensors").read_bytes())
    header_bytes = 8 + int.from_bytes(damaged[:8], "little")
    for position, bit in data.draw(
        st.lists(st.tuples(st.integers(0, header_bytes - 1), st.integers(0, 7)), min_size=1, max_size=4)
    ):
        damaged[position] ^= 1 << bit
    (single / "model.safetensors").write_bytes(damaged)
    try:
        with open_checkpoint(single) as checkpoint:
            for name in checkpoint.names():
                assert tuple(checkpoint.tensor(name).shape) == checkpoint.shape(name)
    except ModelError as error:
        assert str(single) in str(error)


def test_check_shape_names_everything() -> None:
    check_shape("a.weight", (2, 3), torch.Size([2, 3]))
    with pytest.raises(CorruptWeights, match=r"a\.weight has shape \[3, 2\], .* asks for \[2, 3\]"):
        check_shape("a.weight", (2, 3), (3, 2))
