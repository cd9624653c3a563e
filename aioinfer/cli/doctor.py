"""``aioinfer doctor``: what this installation finds on this machine, and why something is not usable.

Looks into layers that the other commands reach only through the engine: saying what is wrong with them is
its task.
"""

from __future__ import annotations

import platform
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

import aioinfer
from aioinfer.cli import settings
from aioinfer.cli.startup import new_event_loop

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from aioinfer.cli.settings import Settings

_PACKAGES = (
    "torch",
    "torch-npu",
    "uvloop",
    "aiohttp",
    "tokenizers",
    "safetensors",
    "gguf",
    "huggingface-hub",
)

Line = tuple[str, str]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="show versions, devices and what is missing",
        description="Show versions, devices and why a device is not usable.",
        allow_abbrev=False,
    )
    settings.add_client_options(parser)
    parser.set_defaults(run=run)


def run(_args: argparse.Namespace, _resolved: Settings) -> int:
    """Run the command."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, title="aioinfer doctor", title_justify="left")
    for name, finding in findings():
        table.add_row(name, Text(finding))
    Console().print(table)
    return 0


def findings() -> Iterator[Line]:
    """(what, what was found), in the order of the report."""
    yield "aioinfer", aioinfer.__version__
    yield (
        "python",
        f"{platform.python_version()} ({platform.python_implementation()}) on {platform.platform()}",
    )
    for package in _PACKAGES:
        yield package, _version(package)
    yield "event loop", _event_loop()
    yield from _cpu()
    yield "device cuda", _cuda()
    yield "device npu", _npu()
    yield "default model", _default_model()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _event_loop() -> str:
    loop = new_event_loop()
    loop.close()
    return f"{type(loop).__module__}.{type(loop).__name__}"


def _cpu() -> Iterator[Line]:
    import torch

    bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    yield "device cpu", f"usable, {torch.get_num_threads()} threads"
    yield "cpu instructions", torch.backends.cpu.get_cpu_capability()
    yield "cpu bfloat16", "multiplied by oneDNN" if bfloat16 else "no fast multiplication; float32 is used"


def _cuda() -> str:
    import torch

    if torch.version.cuda is None:
        return f"not usable: torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "not usable: no NVIDIA device, or no driver for it"
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return f"found ({names}), not used by this version of aioinfer"


def _npu() -> str:
    if find_spec("torch_npu") is None:
        return "not usable: torch_npu is not installed (pip install 'aioinfer[npu]')"
    return "torch_npu is installed; not used by this version of aioinfer"


def _default_model() -> str:
    from aioinfer.models.packaged import SMOLLM2_135M_INSTRUCT as model
    from aioinfer.models.packaged import cache_dir

    path = cache_dir() / model.file_name
    if path.is_file() and path.stat().st_size == model.file_bytes:
        return f"{model.name}, cached at {path}"
    return f"{model.name}, not cached; fetched on first use to {path.parent}"
