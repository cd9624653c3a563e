"""From a checkpoint to a module on a device.  Called on the submission thread, before anything is served."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from aioinfer.errors import CorruptWeights
from aioinfer.models.linear import FactoryArgs, Linear, can_pack
from aioinfer.models.registry import model_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioinfer.config import Switch
    from aioinfer.models.weights.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

MAX_PREPACK_SHARE = 0.25  # of the free memory, for the second copy that `prepack=auto` may keep


def load_model(
    checkpoint: Checkpoint,
    *,
    max_position: int,
    factory: FactoryArgs,
    progress: Callable[[int, int], None] | None = None,
) -> nn.Module:
    """Build the model and fill it from the checkpoint.

    Args:
        progress: called with bytes loaded and bytes in all.

    Raises:
        UnsupportedModel: the architecture is not known.
        CorruptWeights: a tensor is missing or has another shape than the configuration says.
    """
    cls: Any = model_class(checkpoint.config)
    model: nn.Module = cls(checkpoint.config, max_position, factory)
    parameters = dict(model.named_parameters())
    done_bytes, total_bytes = 0, sum(parameter.nbytes for parameter in parameters.values())
    for name, parameter in parameters.items():
        _fill(parameter, _sources(name, cls.packed), checkpoint)
        done_bytes += parameter.nbytes
        if progress is not None:
            progress(done_bytes, total_bytes)
    return model.eval()


def prepack(model: nn.Module, switch: Switch, free_bytes: int) -> None:
    """Pack the weights of every linear layer for the CPU, as far as `switch` and memory allow."""
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    dtype = linears[0].weight.dtype
    extra_bytes = sum(linear.weight.nbytes for linear in linears)
    if switch == "off" or not can_pack(dtype):
        logger.info("weights are not packed (prepack=%s, %s)", switch, dtype)
        return
    if switch == "auto" and dtype == torch.float32 and extra_bytes > MAX_PREPACK_SHARE * free_bytes:
        logger.info("weights are not packed: a second copy of %d MiB is too large", extra_bytes >> 20)
        return
    shared = {
        id(p) for m in model.modules() if not isinstance(m, Linear) for p in m.parameters(recurse=False)
    }
    for linear in linears:
        linear.prepare()
        if id(linear.weight) not in shared:
            linear.drop_dense()


def _sources(name: str, packed: dict[str, tuple[str, ...]]) -> list[str]:
    """Names in the checkpoint of the tensors that make up a parameter."""
    for module, parts in packed.items():
        if f".{module}." in name:
            return [name.replace(f".{module}.", f".{part}.") for part in parts]
    return [name]


def _fill(parameter: nn.Parameter, sources: list[str], checkpoint: Checkpoint) -> None:
    offset = 0
    for source in sources:
        tensor = checkpoint.tensor(source)
        rows = len(tensor) if tensor.dim() else 0
        target = parameter.data[offset : offset + rows]
        if tensor.shape != target.shape:
            raise CorruptWeights(
                f"{checkpoint.path}: {source} has shape {list(tensor.shape)}, which does not fit the model's "
                f"{list(parameter.shape)}"
            )
        target.copy_(tensor)
        offset += rows
    if offset != len(parameter):
        raise CorruptWeights(
            f"{checkpoint.path}: {' + '.join(sources)} have {offset} rows, the model needs {len(parameter)}"
        )
