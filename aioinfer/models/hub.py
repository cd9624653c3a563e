"""Models from a hub, through `huggingface_hub` (an optional extra) and its own cache.

Blocking; runs in any thread.  Endpoint, token, cache directory and offline mode are the library's, set by its
own environment variables (``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HOME``, ``HF_HUB_OFFLINE``).
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from aioinfer.errors import DownloadFailed, ModelNotFound

if TYPE_CHECKING:
    from aioinfer.models.progress import Progress

# What a directory in Hugging Face layout consists of; nothing that would have to be unpickled.
LAYOUT_PATTERNS = ("*.json", "*.safetensors", "*.jinja")
_HUB_ID = re.compile(
    r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[\w.+/-]+\.gguf))?"
)
_SPLIT_FILE = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubId:
    """A model on a hub.

    Attributes:
        repo: ``owner/name``.
        revision: branch, tag or commit; None for the main branch.
        file: a .gguf file in the repository; None for the whole model in Hugging Face layout.
    """

    repo: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read ``owner/name[@revision][:file.gguf]``; None if it is not of that form."""
        match = _HUB_ID.fullmatch(text)
        return match and cls(**match.groupdict())

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        file = f":{self.file}" if self.file else ""
        return f"{self.repo}{revision}{file}"


def fetch(model: HubId, *, progress: Progress | None = None) -> Path:
    """Return a model's directory or file in the hub's cache, downloading what is missing.

    Raises:
        ModelNotFound: the hub has no such repository, revision or file.
        DownloadFailed: `huggingface_hub` is not installed, the hub refuses or cannot be reached, or it is in
            offline mode and the cache has no such model.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise DownloadFailed(
            f'{model} would come from a hub, which needs huggingface_hub: pip install "aioinfer[hub]"'
        ) from None
    reporter = _Reporter(f"Downloading {model}", progress)
    try:
        snapshot = snapshot_download(
            model.repo,
            revision=model.revision,
            allow_patterns=_patterns(model),
            tqdm_class=_bar_class(reporter),
        )
    except Exception as error:
        if error is reporter.raised:
            raise
        raise _translated(error, model) from error
    return _chosen(Path(snapshot), model)


def _patterns(model: HubId) -> list[str]:
    if model.file is None:
        return list(LAYOUT_PATTERNS)
    if match := _SPLIT_FILE.fullmatch(model.file):
        return [f"{match['stem']}-*-of-{match['count']}.gguf"]
    return [model.file]


def _chosen(snapshot: Path, model: HubId) -> Path:
    if model.file is not None:
        path = snapshot / model.file
        if not path.exists():
            raise ModelNotFound(f"{model.repo} has no file {model.file}")
        return path
    if not any(snapshot.glob("*.safetensors")):
        raise ModelNotFound(
            f"{model} holds no safetensors files; if it holds GGUF files, name one: {model}:FILE.gguf"
        )
    return snapshot


def _translated(error: Exception, model: HubId) -> ModelNotFound | DownloadFailed:
    """Our error for one of the library's, whose bases differ from version to version."""
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return DownloadFailed(
                f"{model} is gated: ask its owner for access, then log in (`hf auth login`) or set HF_TOKEN"
            )
        case errors.RepositoryNotFoundError():
            return ModelNotFound(
                f"the hub has no model {model.repo}, or it is private: "
                "log in (`hf auth login`) or set HF_TOKEN"
            )
        case errors.RevisionNotFoundError():
            return ModelNotFound(f"{model.repo} has no revision {model.revision}")
        case errors.HFValidationError():
            return ModelNotFound(f"{model} is not a hub id: {error}")
        case errors.LocalEntryNotFoundError():
            return DownloadFailed(
                f"{model} is not in the hub's cache, and the hub cannot be reached or HF_HUB_OFFLINE is set; "
                "connect, or pass a local directory or .gguf file"
            )
        case _:
            return DownloadFailed(f"cannot fetch {model} from the hub: {type(error).__name__}: {error}")


class _Reporter:
    """Hands the library's progress on, and remembers what the callback raised.

    The library downloads several files at once, in threads of its own.
    """

    def __init__(self, description: str, progress: Progress | None) -> None:
        self._description = description
        self._progress = progress
        self._lock = threading.Lock()
        self.raised: BaseException | None = None

    def report(self, done: int, total: int | None) -> None:
        if self._progress is None:
            return
        with self._lock:
            # Every file's thread has to end, with the same exception.
            if self.raised is not None:
                raise self.raised
            try:
                self._progress(self._description, done, total)
            except BaseException as error:
                self.raised = error
                raise


def _bar_class(reporter: _Reporter) -> Any:
    """A progress bar class that draws nothing and reports the bytes of the whole download."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            # One of several bars counts the bytes written; the others count files, or bytes received.
            self._counts = options.get("name") == "huggingface_hub.snapshot_download"
            super().__init__(*args, **(options | {"disable": True}))  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if self._counts:
                self.n += n or 0
                reporter.report(int(self.n), int(self.total) if self.total else None)

    return Bar
