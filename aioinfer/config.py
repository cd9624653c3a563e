"""Typed, frozen configuration: the one source of flags, TOML keys, environment variables and defaults.

`EngineConfig` is what an embedding program passes to `Engine`; `ServerConfig` is what the server adds.  The
command line (`aioinfer.cli.settings`) reads flags, environment and TOML into these same models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aioinfer.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m-instruct"

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Switch = Literal["auto", "on", "off"]
PositiveInt = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())

    @classmethod
    def create(cls, **options: Any) -> Self:
        """Build from keyword arguments.

        Raises:
            ConfigError: an option is unknown or has a value that cannot be used; all are named.
        """
        try:
            return cls(**options)
        except ValidationError as error:
            raise ConfigError(describe(error, known=tuple(cls.model_fields))) from None


def describe(error: ValidationError, known: tuple[str, ...]) -> str:
    """One line per wrong option, with what would have been accepted."""
    lines = []
    for item in error.errors(include_url=False):
        name = ".".join(str(part) for part in item["loc"]) or "configuration"
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown option {name!r}; known are: {', '.join(known)}")
        else:
            lines.append(f"{name}: {item['msg']} (got {item['input']!r})")
    return "\n".join(lines)


class EngineConfig(_Section):
    """How the engine runs a model."""

    model: str = Field(
        default=DEFAULT_MODEL,
        description="a local directory in Hugging Face layout, a .gguf file, a hub id, "
        f"or {DEFAULT_MODEL} (fetched on first use)",
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|(cuda|npu)(:\d+)?)$",
        description="auto, cpu, cuda[:N] or npu[:N]",
    )
    dtype: Dtype = Field(
        default="auto", description="type of weights and activations; auto takes the device's fastest"
    )
    max_model_len: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="longest prompt plus completion, in tokens; default: the model's own"
    )
    kv_cache_tokens: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="tokens the KV cache holds; default: sized from free memory"
    )
    block_size: Annotated[int, Field(ge=1, le=512)] = Field(default=16, description="tokens per KV block")
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=64, description="most sequences in one step"
    )
    token_budget: Annotated[int, Field(ge=1, le=2**20)] = Field(
        default=256, description="most tokens in one step, decode and prefill"
    )
    pipeline_depth: Annotated[int, Field(ge=1, le=2)] = Field(
        default=2, description="steps in flight; 1 runs serially"
    )
    max_waiting: PositiveInt = Field(
        default=1024, description="most requests waiting before new ones are refused"
    )
    max_waiting_tokens: PositiveInt = Field(
        default=1_000_000, description="most prompt tokens waiting before new requests are refused"
    )
    slow_consumer_s: Seconds = Field(
        default=60.0, description="end a request whose output nobody read for this long, in seconds"
    )
    drain_s: Seconds = Field(
        default=30.0, description="on shutdown, how long running requests may finish, in seconds"
    )
    torch_threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="threads torch computes with on cpu; default: all cores"
    )
    text_threads: PositiveInt = Field(default=2, description="threads for tokenisation and templates")
    prepack: Switch = Field(
        default="auto",
        description="on cpu, keep a second, packed copy of the weights that is faster in batches",
    )
    chat_template: str | None = Field(
        default=None, description="a file with a Jinja chat template, instead of the model's own"
    )
    switch_interval_s: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.0005,
        description="the interpreter's thread switch interval while an engine is open, in seconds",
    )


class ServerConfig(_Section):
    """How the engine is served over HTTP and WebSocket."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=8000, description="port; 0 takes a free one")
    served_model_name: str | None = Field(
        default=None, description="model name in the API; default: the model's"
    )
    max_body_bytes: PositiveInt = Field(default=8 * 1024 * 1024, description="largest request body")
    sse_keepalive_s: Seconds = Field(
        default=15.0, description="comment line after this much silence on a stream, in seconds; 0 is never"
    )
    write_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=60.0, description="drop a connection whose client takes no data for this long, in seconds"
    )
    ws_heartbeat_s: Seconds = Field(default=30.0, description="WebSocket ping period, in seconds; 0 is never")
    ws_max_generations: PositiveInt = Field(
        default=256, description="most generations at once on one WebSocket"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="log level")
