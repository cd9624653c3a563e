"""The flags of `SamplingParams`, for the commands that generate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioinfer.errors import ConfigError, InvalidRequest
from aioinfer.types import SamplingParams

if TYPE_CHECKING:
    import argparse


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each sampling parameter that makes sense at a prompt."""
    defaults = SamplingParams()
    group = parser.add_argument_group("sampling options")
    group.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="most new tokens (default: as many as the context has room for)",
    )
    group.add_argument(
        "--temperature",
        type=float,
        metavar="X",
        default=defaults.temperature,
        help=f"0 takes the most likely token (default: {defaults.temperature})",
    )
    group.add_argument(
        "--top-k",
        type=int,
        metavar="N",
        default=defaults.top_k,
        help="keep the N most likely tokens; 0 keeps all",
    )
    group.add_argument(
        "--top-p",
        type=float,
        metavar="X",
        default=defaults.top_p,
        help="keep the most likely tokens up to this mass",
    )
    group.add_argument(
        "--min-p",
        type=float,
        metavar="X",
        default=defaults.min_p,
        help="drop tokens less likely than this share of the best",
    )
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; can be given again"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on when the model says that it is done")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """What the flags ask for.

    Raises:
        ConfigError: a value is outside its range.
    """
    try:
        return SamplingParams(
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            min_p=args.min_p,
            seed=args.seed,
            stop=tuple(args.stop),
            ignore_eos=args.ignore_eos,
        )
    except InvalidRequest as error:
        option = f"--{(error.param or '').replace('_', '-')}"
        raise ConfigError(str(error).replace(error.param or "", option, 1)) from None
