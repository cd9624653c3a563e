"""Flags go before environment before file before defaults, and a wrong value is named with its source."""

from __future__ import annotations

import argparse
import contextlib
import io
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioinfer.cli import settings
from aioinfer.config import EngineConfig, ServerConfig
from aioinfer.errors import ConfigError

VALUES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "model": ("engine", st.text("abc/.", min_size=1)),
    "device": ("engine", st.sampled_from(["auto", "cpu", "cuda", "cuda:1", "npu:0"])),
    "dtype": ("engine", st.sampled_from(["auto", "float32", "bfloat16"])),
    "max_num_seqs": ("engine", st.integers(1, 4096)),
    "max_model_len": ("engine", st.integers(1, 10**6)),
    "drain_s": ("engine", st.floats(0, 1000)),
    "port": ("server", st.integers(0, 65535)),
    "served_model_name": ("server", st.text("abc", min_size=1)),
}
SOURCES = ("flag", "environment", "file")


def parse(argv: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    settings.add_config_option(parser)
    settings.add_options(parser, "engine", model_argument=True)
    settings.add_options(parser, "server")
    return vars(parser.parse_args(argv))


def write_toml(directory: str, values: dict[str, object]) -> Path:
    path = Path(directory) / "aioinfer.toml"
    lines = []
    for section in settings.SECTIONS:
        lines.append(f"[{section}]")
        lines += [
            f"{name} = {value!r}" if not isinstance(value, str) else f'{name} = "{value}"'
            for name, value in values.items()
            if VALUES[name][0] == section
        ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@given(st.data())
def test_precedence(data: st.DataObject) -> None:
    given_by: dict[str, dict[str, Any]] = {source: {} for source in SOURCES}
    for name, (_, values) in VALUES.items():
        for source in SOURCES:
            if data.draw(st.booleans(), label=f"{name} by {source}"):
                given_by[source][name] = data.draw(values)
    argv = [f"{settings.flag(name)}={value}" for name, value in given_by["flag"].items()]
    environ = {settings.variable(name): str(value) for name, value in given_by["environment"].items()}
    with TemporaryDirectory() as directory:
        argv.append(f"--config={write_toml(directory, given_by['file'])}")
        resolved = settings.resolve(parse(argv), environ)
    for name, (section, _) in VALUES.items():
        default = settings.SECTIONS[section].model_fields[name].default
        expected = next((given_by[source][name] for source in SOURCES if name in given_by[source]), default)
        assert getattr(getattr(resolved, section), name) == expected


def test_defaults_are_those_of_the_models() -> None:
    resolved = settings.resolve(parse([]), {})
    assert resolved.engine == EngineConfig()
    assert resolved.server == ServerConfig()


def test_field_names_are_unique_so_that_flags_are() -> None:
    names = [name for model in settings.SECTIONS.values() for name in model.model_fields]
    assert all(first != second for first, second in pairwise(sorted(names)))
    assert "config" not in names


def test_empty_variables_are_not_set() -> None:
    assert settings.resolve({}, {"AIOINFER_PORT": ""}).server.port == ServerConfig().port


def test_model_without_a_flag() -> None:
    assert settings.resolve(parse(["here.gguf"]), {"AIOINFER_MODEL": "there"}).engine.model == "here.gguf"
    assert settings.resolve(parse(["same", "--model", "same"]), {}).engine.model == "same"
    with pytest.raises(ConfigError, match=r"MODEL one and --model two differ"):
        settings.resolve(parse(["one", "--model", "two"]), {})


def test_file_named_by_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[server]\nport = 1234\n", encoding="utf-8")
    assert settings.resolve({}, {"AIOINFER_CONFIG": str(path)}).server.port == 1234


@pytest.mark.parametrize(
    ("argv", "environ", "toml", "message"),
    [
        (["--max-num-seqs", "many"], {}, "", r"--max-num-seqs: .*integer.*'many' \(most sequences"),
        (["--max-num-seqs", "0"], {}, "", r"--max-num-seqs: .*greater than or equal to 1"),
        (["--port", "70000"], {}, "", r"--port: .*less than or equal to 65535"),
        (["--device", "gpu"], {}, "", r"--device: .*'gpu' \(auto, cpu, cuda\[:N\] or npu\[:N\]\)"),
        (["--dtype", "int8"], {}, "", r"--dtype: .*'auto', 'float32'"),
        ([], {"AIOINFER_DRAIN_S": "nan"}, "", r"environment variable AIOINFER_DRAIN_S: .*finite"),
        (
            [],
            {},
            "[engine]\nblock_size = 0",
            r"engine\.block_size in .*bad\.toml: .*greater than or equal to 1",
        ),
        ([], {}, "[engine]\nmax_num_seq = 1", r"'max_num_seq' at \[engine\] .*did you mean 'max_num_seqs'"),
        (
            [],
            {},
            "[engines]\nmodel = 'x'",
            r"'engines' at top level .*did you mean 'engine'.*known are: engine",
        ),
        ([], {}, "port = 1", r"'port' at top level"),
        ([], {}, "engine = 1", r"engine in .* must be a table"),
        ([], {}, "[engine", r"bad\.toml is not TOML"),
    ],
)
def test_wrong_values_are_named_with_their_source(
    tmp_path: Path, argv: list[str], environ: dict[str, str], toml: str, message: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(toml, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        settings.resolve(parse([*argv, "--config", str(path)]), environ)


def test_all_wrong_values_are_named() -> None:
    with pytest.raises(ConfigError) as error:
        settings.resolve(parse(["--block-size", "0", "--token-budget", "x"]), {})
    assert "--block-size" in str(error.value)
    assert "--token-budget" in str(error.value)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read configuration file .*none\.toml: No such file"):
        settings.resolve(parse(["--config", str(tmp_path / "none.toml")]), {})
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        settings.resolve(parse(["--config", str(binary)]), {})


def test_unknown_variable_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    settings.resolve({}, {"AIOINFER_MAX_NUM_SEQ": "1", "OTHER": "2"})
    assert [record.getMessage() for record in caplog.records] == [
        "unknown environment variable AIOINFER_MAX_NUM_SEQ; did you mean AIOINFER_MAX_NUM_SEQS?"
    ]


def test_every_field_has_a_flag_with_help() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        parse(["--help"])
    for model in settings.SECTIONS.values():
        for name, field in model.model_fields.items():
            assert f"{settings.flag(name)} " in out.getvalue()
            assert field.description


def test_clients_log_less_unless_told_to() -> None:
    parser = argparse.ArgumentParser()
    settings.add_client_options(parser)

    def level(argv: list[str], environ: dict[str, str]) -> str:
        flags = vars(parser.parse_args(argv))
        return settings.log_level(flags, settings.resolve(flags, environ).server)

    assert level([], {}) == "warning"
    assert level([], {"AIOINFER_LOG_LEVEL": "info"}) == "info"
    assert level(["--log-level", "debug"], {"AIOINFER_LOG_LEVEL": "info"}) == "debug"
    assert settings.log_level({}, ServerConfig()) == "info"
