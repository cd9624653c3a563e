"""Flags, environment variables and a TOML file, read into the typed configuration.

Owns where an option's value comes from; what the options are is said once, by the models of
`aioinfer.config`.  A field ``max_num_seqs`` of `EngineConfig` is the flag ``--max-num-seqs``, the
environment variable ``AIOINFER_MAX_NUM_SEQS`` and the key ``max_num_seqs`` of the table ``[engine]`` in the
file that ``--config`` or ``AIOINFER_CONFIG`` names.  A flag goes before a variable, a variable before the
file, the file before the default; a value that another one overrides is not looked at.  Empty environment
variables count as not set.  Runs before there is an event loop; reads one file and nothing else.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from aioinfer.config import EngineConfig, ServerConfig
from aioinfer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENV_PREFIX = "AIOINFER_"
CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"
SECTIONS: Mapping[str, type[BaseModel]] = {"engine": EngineConfig, "server": ServerConfig}
CLIENT_LOG_LEVEL = "warning"

_LOG_LEVEL = "log_level"
_MODEL_ARGUMENT = "model_argument"
_CONFIG = "config"
_Section = TypeVar("_Section", bound=BaseModel)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The configuration of one run of a command."""

    engine: EngineConfig
    server: ServerConfig


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as it was given, and where."""

    value: object
    origin: str


def add_options(parser: argparse.ArgumentParser, section: str, *, model_argument: bool = False) -> None:
    """Add a flag for each field of a section.

    Args:
        model_argument: accept the model as an argument without a flag, too.
    """
    group = parser.add_argument_group(f"{section} options")
    if model_argument:
        parser.add_argument(
            _MODEL_ARGUMENT,
            metavar="MODEL",
            nargs="?",
            default=argparse.SUPPRESS,
            help="the same as --model",
        )
    for name, field in SECTIONS[section].model_fields.items():
        help_text = field.description or ""
        if field.default is not None:
            help_text += f" (default: {field.default})"
        group.add_argument(
            flag(name),
            dest=name,
            metavar=_metavar(name, field.annotation),
            default=argparse.SUPPRESS,
            help=help_text.replace("%", "%%"),
        )


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``."""
    tables = " and ".join(f"[{name}]" for name in SECTIONS)
    parser.add_argument(
        f"--{_CONFIG}",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help=f"TOML file with the tables {tables} (or ${CONFIG_VARIABLE})",
    )


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and ``--log-level`` for a command that serves nobody, and logs less unless told to."""
    add_config_option(parser)
    parser.add_argument(
        flag(_LOG_LEVEL),
        metavar=_metavar(_LOG_LEVEL, ServerConfig.model_fields[_LOG_LEVEL].annotation),
        default=argparse.SUPPRESS,
        help=f"log level (default: {CLIENT_LOG_LEVEL})",
    )
    parser.set_defaults(client=True)


def log_level(flags: Mapping[str, object], server: ServerConfig) -> str:
    """The log level of a command: the configured one, or a client's own default."""
    if flags.get("client") and _LOG_LEVEL not in server.model_fields_set:
        return CLIENT_LOG_LEVEL
    return server.log_level


def resolve(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """The configuration that flags, environment and file give together.

    Args:
        flags: the parsed flags that were given, by field name; others are ignored.

    Raises:
        ConfigError: a value cannot be used or a key of the file is unknown; the message names the flag,
            variable or key at fault and says what is accepted.
    """
    flags = _with_model_argument(flags)
    path = flags.get(_CONFIG) or environ.get(CONFIG_VARIABLE)
    tables = _read_toml(Path(str(path))) if path else {}
    _warn_of_unknown_variables(environ)
    given = {
        section: _given(model.model_fields, tables.get(section, {}), environ, flags)
        for section, model in SECTIONS.items()
    }
    return Settings(
        engine=_validate(EngineConfig, given["engine"]),
        server=_validate(ServerConfig, given["server"]),
    )


def flag(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """The environment variable of a field."""
    return ENV_PREFIX + name.upper()


def _given(
    names: Iterable[str],
    table: Mapping[str, _Given],
    environ: Mapping[str, str],
    flags: Mapping[str, object],
) -> dict[str, _Given]:
    given = {}
    for name in names:
        if name in flags:
            given[name] = _Given(flags[name], flag(name))
        elif value := environ.get(variable(name)):
            given[name] = _Given(value, f"environment variable {variable(name)}")
        elif name in table:
            given[name] = table[name]
    return given


def _with_model_argument(flags: Mapping[str, object]) -> Mapping[str, object]:
    if _MODEL_ARGUMENT not in flags:
        return flags
    model = flags[_MODEL_ARGUMENT]
    if flags.get("model", model) != model:
        raise ConfigError(f"MODEL {model} and --model {flags['model']} differ; give one of them")
    return {**flags, "model": model}


def _validate(model: type[_Section], given: Mapping[str, _Given]) -> _Section:
    try:
        return model.model_validate({name: item.value for name, item in given.items()})
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False):
            name = str(item["loc"][0]) if item["loc"] else ""
            if name in given:
                accepted = model.model_fields[name].description
                lines.append(f"{given[name].origin}: {item['msg']}, got {item['input']!r} ({accepted})")
            else:
                lines.append(item["msg"])
        raise ConfigError("\n".join(lines)) from None


def _read_toml(path: Path) -> dict[str, dict[str, _Given]]:
    """Section name to the values of its table."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, not UTF-8, a number too long
        raise ConfigError(f"configuration file {path} is not TOML: {error}") from None
    tables: dict[str, dict[str, _Given]] = {}
    for section, table in content.items():
        if section not in SECTIONS:
            raise ConfigError(_unknown(section, f"top level of {path}", SECTIONS))
        if not isinstance(table, dict):
            raise ConfigError(f"{section} in {path} must be a table, written as [{section}]; got {table!r}")
        fields = SECTIONS[section].model_fields
        for key in table:
            if key not in fields:
                raise ConfigError(_unknown(key, f"[{section}] of {path}", fields))
        tables[section] = {key: _Given(value, f"{section}.{key} in {path}") for key, value in table.items()}
    return tables


def _unknown(key: str, place: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown key {key!r} at {place}; {hint}known are: {', '.join(known)}"


def _warn_of_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {CONFIG_VARIABLE, *(variable(name) for model in SECTIONS.values() for name in model.model_fields)}
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            log.warning(
                "unknown environment variable %s%s", name, f"; did you mean {close[0]}?" if close else ""
            )


def _metavar(name: str, annotation: Any) -> str:
    kinds = _kinds(annotation)
    if kinds and all(isinstance(kind, str) for kind in kinds):
        return "{" + ",".join(kinds) + "}"
    if name.endswith("_s"):
        return "SECONDS"
    return "N" if int in kinds or float in kinds else name.split("_")[-1].upper()


def _kinds(annotation: Any) -> list[Any]:
    """The plain types and literal values that an annotation is made of, None left out."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if hasattr(annotation, "__metadata__"):
        return _kinds(get_args(annotation)[0])
    if args := get_args(annotation):
        return [kind for arg in args for kind in _kinds(arg)]
    return [] if annotation in (None, NoneType) else [annotation]
