"""Hub ids: their notation, the hub's own cache without a network, and a hub on a local socket.

`huggingface_hub` reads its environment when it is imported, so each test locates in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aioinfer.models.hub import HubId
from tests.models.hub_server import COMMIT, FILES, running_hub

# Locates each argument; prints one JSON object a line: what was found, or the error.
PROGRAM = """
import json, sys
from aioinfer.errors import ModelError
from aioinfer.models import store

class Cancelled(Exception):
    pass

for model in sys.argv[2:]:
    reports = []
    def progress(description, done_bytes, total_bytes):
        reports.append([description, done_bytes, total_bytes])
        if sys.argv[1] == "cancel":
            raise Cancelled
    try:
        answer = {"path": str(store.locate(model, progress=progress)), "reports": reports}
    except (ModelError, Cancelled) as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(answer))
"""


def locate(cache: Path, *models: str, cancel: bool = False, **environment: str) -> list[dict[str, Any]]:
    """Call `store.locate` for each model in a fresh process."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    variables |= {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HF_HOME": str(cache),
        "NO_PROXY": "127.0.0.1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "cancel" if cancel else "go", *models],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    # No progress bar of the library's own.
    assert "Fetching" not in done.stderr
    assert "%|" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def add_to_cache(cache: Path, repo: str, files: dict[str, bytes], *, revision: str = "main") -> Path:
    """Build the hub's cache layout: blobs, a snapshot that links to them, and a reference to it."""
    root = cache / "hub" / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    for directory in (root / "blobs", root / "refs", snapshot):
        directory.mkdir(parents=True, exist_ok=True)
    (root / "refs" / revision).write_text(COMMIT)
    for number, (name, content) in enumerate(files.items()):
        blob = root / "blobs" / f"{number:040}"
        blob.write_bytes(content)
        path = snapshot / name
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(os.path.relpath(blob, path.parent))
    return snapshot


NOTATIONS = {
    "owner/name": HubId(repo="owner/name"),
    "Owner-1/Name_2.5-B": HubId(repo="Owner-1/Name_2.5-B"),
    "owner/name@v1.0": HubId(repo="owner/name", revision="v1.0"),
    "owner/name@refs/pr/3": HubId(repo="owner/name", revision="refs/pr/3"),
    "owner/name:q4.gguf": HubId(repo="owner/name", file="q4.gguf"),
    "owner/name@main:dir/q4-00001-of-00002.gguf": HubId(
        repo="owner/name", revision="main", file="dir/q4-00001-of-00002.gguf"
    ),
}


@pytest.mark.parametrize("text", NOTATIONS)
def test_notation(text: str) -> None:
    assert HubId.parse(text) == NOTATIONS[text]
    assert str(NOTATIONS[text]) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "/name",
        "owner/",
        "a/b/c",
        "owner/name:",
        "owner/name:x.bin",
        "owner/name@",
        "a b/c",
        "a/b\n",
    ],
)
def test_not_a_hub_id(text: str) -> None:
    assert HubId.parse(text) is None


def test_offline_from_the_hubs_cache(tmp_path: Path) -> None:
    snapshot = add_to_cache(tmp_path, "some-owner/model", FILES)
    add_to_cache(tmp_path, "some-owner/quantised", {"dir/q4.gguf": b"GGUF"}, revision="v1")
    found = locate(
        tmp_path,
        "some-owner/model",
        f"some-owner/model@{COMMIT}",
        "some-owner/quantised@v1:dir/q4.gguf",
        "some-owner/quantised@v1",
        "some-owner/quantised@v1:q8.gguf",
        "some-owner/quantised",
        "some-owner/unknown",
        HF_HUB_OFFLINE="1",
    )
    assert found[0]["path"] == found[1]["path"] == str(snapshot)
    assert Path(found[2]["path"]).read_bytes() == b"GGUF"
    assert found[3]["error"] == "ModelNotFound"
    assert "some-owner/quantised@v1:FILE.gguf" in found[3]["message"]
    assert found[4]["error"] == "ModelNotFound"
    assert "has no file q8.gguf" in found[4]["message"]
    for answer in found[5:]:
        assert answer["error"] == "DownloadFailed"
        assert "not in the hub's cache" in answer["message"]
        assert "HF_HUB_OFFLINE" in answer["message"]


def test_download_from_a_hub(tmp_path: Path) -> None:
    with running_hub() as hub:
        (answer,) = locate(tmp_path, "some-owner/model", HF_ENDPOINT=hub.url)
        snapshot = Path(answer["path"])
        wanted = {"config.json", "model.safetensors", "chat_template.jinja"}
        assert {path.name for path in snapshot.iterdir()} == wanted
        assert all((snapshot / name).read_bytes() == FILES[name] for name in wanted)
        assert sorted(hub.fetched) == sorted(wanted)
        total = sum(len(FILES[name]) for name in wanted)
        assert answer["reports"][-1] == ["Downloading some-owner/model", total, total]
        # The second time, and without the hub, it is in the cache.
        assert locate(tmp_path, "some-owner/model", HF_ENDPOINT=hub.url)[0]["path"] == answer["path"]
        assert len(hub.fetched) == len(wanted)
    assert locate(tmp_path, "some-owner/model", HF_HUB_OFFLINE="1")[0]["path"] == answer["path"]


def test_what_a_hub_refuses(tmp_path: Path) -> None:
    with running_hub() as hub:
        unknown, revision, gated, name = locate(
            tmp_path,
            "some-owner/unknown",
            "some-owner/model@no-such-branch",
            "some-owner/gated",
            "some--owner/model",
            HF_ENDPOINT=hub.url,
        )
    assert (unknown["error"], revision["error"]) == ("ModelNotFound", "ModelNotFound")
    assert "no model some-owner/unknown" in unknown["message"]
    assert "no revision no-such-branch" in revision["message"]
    assert gated["error"] == "DownloadFailed"
    assert "log in" in gated["message"]
    assert name["error"] == "ModelNotFound"
    assert "not a hub id" in name["message"]


def test_no_hub_to_be_reached(tmp_path: Path) -> None:
    (answer,) = locate(tmp_path, "some-owner/model", HF_ENDPOINT="http://127.0.0.1:1")
    assert answer["error"] == "DownloadFailed"
    assert "cannot be reached" in answer["message"]


def test_cancelling_reaches_the_caller_as_it_was_raised(tmp_path: Path) -> None:
    with running_hub() as hub:
        (answer,) = locate(tmp_path, "some-owner/model", cancel=True, HF_ENDPOINT=hub.url)
    assert answer["error"] == "Cancelled"


def test_extra_not_installed(tmp_path: Path) -> None:
    """A module that cannot be imported stands where the library would be."""
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError")
    root = str(Path(__file__).parents[2])
    (answer,) = locate(tmp_path, "some-owner/model", PYTHONPATH=os.pathsep.join([str(tmp_path), root]))
    assert answer["error"] == "DownloadFailed"
    assert 'pip install "aioinfer[hub]"' in answer["message"]
