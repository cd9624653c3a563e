"""From a configuration to a model that is ready to run.  Runs on the submission thread; imports torch."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aioinfer.errors import ConfigError

if TYPE_CHECKING:
    import threading

    import torch

    from aioinfer.config import EngineConfig
    from aioinfer.device.base import Device
    from aioinfer.models.interface import ModelConfig
    from aioinfer.models.progress import Progress
    from aioinfer.models.weights.checkpoint import Checkpoint
    from aioinfer.runner.runner import ModelRunner

logger = logging.getLogger(__name__)

CPU_KV_SHARE = 0.25
"""Of the memory that is free once the weights are in; on the CPU other programs need some too."""
CPU_KV_MAX_BYTES = 2 << 30
ACCELERATOR_KV_SHARE = 0.9


class LoadingCancelled(Exception):
    """Nobody waits for the model any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model on its device.

    Attributes:
        runner: launches steps.
        dtype: of weights, activations and KV cache, by torch's name for it.
        max_model_len: longest prompt plus completion.
        num_blocks: KV blocks, the scratch block included.
    """

    runner: ModelRunner
    dtype: str
    max_model_len: int
    num_blocks: int


class Loader:
    """Args:
    config: of the engine.
    progress: told how downloading and loading go; called on the submission thread or one beneath it.
    cancelled: once set, the next report of progress ends the loading.
    """

    def __init__(self, config: EngineConfig, progress: Progress | None, cancelled: threading.Event) -> None:
        self._config = config
        self._progress = progress
        self._cancelled = cancelled

    def open_checkpoint(self) -> Checkpoint:
        """Find the model, fetching it if need be, and open it.

        Raises:
            ModelError: it cannot be found, fetched, or read.
        """
        from aioinfer.models.store import locate
        from aioinfer.models.weights.checkpoint import open_checkpoint

        return open_checkpoint(locate(self._config.model, progress=self._report))

    def load(self, checkpoint: Checkpoint, device: Device) -> LoadedModel:
        """Load the weights, size and allocate the KV cache, and close the checkpoint.

        Raises:
            ModelError: the weights do not fit their configuration.
            ConfigError: an option does not fit the model or the memory.
        """
        with checkpoint:
            return self._load(checkpoint, device)

    def _load(self, checkpoint: Checkpoint, device: Device) -> LoadedModel:
        from aioinfer.models.attention import create_backend
        from aioinfer.models.linear import FactoryArgs
        from aioinfer.models.loader import load_model, prepack
        from aioinfer.runner.batch import BatchLimits
        from aioinfer.runner.kv import KVCache, bytes_per_token
        from aioinfer.runner.runner import ModelRunner

        config, model_config = self._config, checkpoint.config
        dtype = _dtype(config, model_config, device)
        max_model_len = _max_model_len(config, model_config)
        model = load_model(
            checkpoint,
            max_position=max_model_len,
            factory=FactoryArgs(device.torch_device, dtype),
            progress=partial(self._report, "loading weights"),
        )
        if device.torch_device.type == "cpu":
            prepack(model, config.prepack, device.memory().free_bytes)
        num_tokens = _kv_tokens(config, max_model_len, bytes_per_token(model_config, dtype), device)
        num_blocks = -(-num_tokens // config.block_size) + 1
        max_model_len = min(max_model_len, (num_blocks - 1) * config.block_size)
        try:
            cache = KVCache.allocate(model_config, num_blocks, config.block_size, device.torch_device, dtype)
        except (MemoryError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"kv_cache_tokens: no memory for a KV cache of {num_tokens} tokens: {error}"
            ) from error
        limits = BatchLimits(
            max_num_seqs=config.max_num_seqs,
            token_budget=config.token_budget,
            max_blocks=-(-max_model_len // config.block_size),
            block_size=config.block_size,
            vocab_size=model_config.vocab_size,
            steps_in_flight=config.pipeline_depth,
        )
        attention = create_backend(device.torch_device.type, cache.keys, cache.values)
        return LoadedModel(
            runner=ModelRunner(model, attention, device, limits),
            dtype=str(dtype).removeprefix("torch."),
            max_model_len=max_model_len,
            num_blocks=num_blocks,
        )

    def _report(self, description: str, done_bytes: int, total_bytes: int | None) -> None:
        if self._cancelled.is_set():
            raise LoadingCancelled
        if self._progress is not None:
            self._progress(description, done_bytes, total_bytes)


def read_chat_template(path: str) -> str:
    """A template file that the configuration names.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(os.path.expanduser(path)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, a null byte in the name
        raise ConfigError(f"chat_template: cannot read {path}: {error}") from None


def _dtype(config: EngineConfig, model_config: ModelConfig, device: Device) -> torch.dtype:
    import torch

    if config.dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[config.dtype]
    dtype = device.preferred_dtype(model_config.dtype)
    logger.info("dtype auto: %s, the fastest on %s", dtype, device.name)
    return dtype


def _max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    if config.max_model_len is None:
        return model_config.max_position
    if config.max_model_len > model_config.max_position:
        raise ConfigError(
            f"max_model_len: the model's context is {model_config.max_position} tokens "
            f"(got {config.max_model_len})"
        )
    return config.max_model_len


def _kv_tokens(config: EngineConfig, max_model_len: int, token_bytes: int, device: Device) -> int:
    """Tokens of the KV cache: as configured, or what memory allows, and no more than can ever be used."""
    if config.kv_cache_tokens is not None:
        if config.max_model_len is not None and config.kv_cache_tokens < config.max_model_len:
            raise ConfigError(
                f"kv_cache_tokens: a request of max_model_len={config.max_model_len} tokens does not fit "
                f"(got {config.kv_cache_tokens})"
            )
        return config.kv_cache_tokens
    free_bytes = device.memory().free_bytes
    if device.torch_device.type == "cpu":
        budget = min(int(free_bytes * CPU_KV_SHARE), CPU_KV_MAX_BYTES)
    else:
        budget = int(free_bytes * ACCELERATOR_KV_SHARE)
    num_tokens = min(budget // token_bytes, config.max_num_seqs * max_model_len)
    if num_tokens < min(max_model_len, config.block_size):
        raise ConfigError(
            f"kv_cache_tokens: {free_bytes >> 20} MiB of free memory hold no KV cache "
            f"({token_bytes} bytes per token)"
        )
    return num_tokens
