"""What a user can type as a model, and in which order it is looked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aioinfer.config import DEFAULT_MODEL
from aioinfer.errors import ModelNotFound, UnsupportedModel
from aioinfer.models import store


def test_a_directory_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "some.GGUF"
    file.touch()
    assert store.locate(str(tmp_path)) == tmp_path
    assert store.locate(str(file)) == file


def test_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert store.locate("~/model") == tmp_path / "model"


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "owner/name"])
def test_a_path_that_exists_wins_over_every_other_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir(parents=True)
    assert store.locate(name) == Path(name)


def test_another_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UnsupportedModel, match=r"a local directory in Hugging Face layout, a \.gguf file"):
        store.locate(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    "model",
    [
        "",
        "no-such-model",
        "./no/model",
        "../model",
        "/no/such/model",
        "~/no-such-model",
        "~no-such-user/model",
        "no/such.gguf",
        "a/b/c",
        "nul\0/byte",
        "x" * 5000,
    ],
)
def test_nothing_of_that_name(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        store.locate(model)
    message = str(caught.value)
    assert DEFAULT_MODEL in message
    assert "owner/name@revision" in message


def test_locating_imports_no_torch(tmp_path: Path) -> None:
    program = f"""
import sys
from aioinfer.models import store
store.locate({str(tmp_path)!r})
assert not sys.modules.keys() & {{"torch", "numpy", "gguf", "safetensors", "huggingface_hub"}}
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)
