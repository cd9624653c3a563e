"""A Jinja environment in which a template cannot run for ever or build without bound.

Templates come with models, so they are run like foreign code: in Jinja's immutable sandbox, and metered.
Every pass of a loop, every call, every joining of text and every operator that can make things grow is
counted against a limit of CPU time and of size, before it is done where it would be one uninterruptible
step of the interpreter. Filters that templates do not need and that would be costly to meter are left
out; a template that names one is refused when it is compiled.

Compiled once, used from any thread: the meter of a rendering is the thread's own.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.sandbox
import jinja2.utils
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.visitor import NodeTransformer

if TYPE_CHECKING:
    from jinja2.nodes import EvalContext
    from jinja2.parser import Parser
    from jinja2.runtime import Context

_GLOBALS = ("range", "dict")
_FILTERS_LEFT_OUT = (
    *("batch", "center", "filesizeformat", "pprint", "random"),
    *("slice", "urlize", "wordwrap", "xmlattr"),
)
_TEXT_METHODS_LEFT_OUT = ("expandtabs", "translate")
_TEXT = (str, bytes)
_LISTS = (list, tuple, set, frozenset)
# What a list entry, a number or a key counts for, in characters.
_ITEM_CHARS = 16
_MAX_INT_BITS = 4096
# Fields of `str.format` and of `%`, up to their type; and fields whose width is itself a value.
_FORMAT_FIELD = re.compile(r"\{[^{}]*|%(?:\([^)]*\))?[^A-Za-z%]*")
_WIDTH_FROM_VALUE = re.compile(r"\{[^{}]*\{|%(?:\([^)]*\))?[^A-Za-z%]*\*")
# Longer numbers than this do not need to be read to be too large.
_NUMBER = re.compile(r"\d{1,20}")
_TICKS_PER_LOOK_AT_THE_CLOCK = 64


class LimitExceeded(Exception):
    """A template has run for too long or built too much."""


class TemplateRefusal(jinja2.TemplateError):
    """A template called `raise_exception`; the message is its own."""


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment that chat templates expect, as transformers sets it up, with limits.

    Args:
        max_chars: longest text, and largest structure, that a template may build.
        max_cpu_s: CPU time that a rendering may take, in seconds of its thread.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, max_chars: int, max_cpu_s: float) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        self._max_chars = max_chars
        self._max_cpu_s = max_cpu_s
        self._meter = _Meter()
        self.finalize = self.check_size
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.globals |= {
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        for name in _FILTERS_LEFT_OUT:
            del self.filters[name]
        self.filters |= _FILTERS

    def compile_bounded(self, source: str) -> jinja2.Template:
        """Compile a template for `render_bounded`.

        Raises:
            jinja2.TemplateSyntaxError: it is not a template, or uses a filter or test that there is not.
        """
        tree = _Bounding().visit(self.parse(source))
        tree.set_environment(self)
        return self.from_string(tree)

    def render_bounded(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """Render within the limits.

        Raises:
            LimitExceeded: it took too long or became too large.
            Exception: anything that the template raised.
        """
        with self._meter.running(self._max_cpu_s):
            return self.concat(template.generate(variables))

    # What compiled templates call.

    def concat(self, parts: Iterable[str]) -> str:
        """`"".join` of what a template, macro or block has put out."""
        num_chars, checked = 0, []
        for part in parts:
            num_chars += len(part)
            self.require(num_chars)
            checked.append(part)
        return "".join(checked)

    def concat_values(self, *values: object) -> str:
        """The `~` operator."""
        return self.concat(str(self.check_size(value)) for value in values)

    def metered(self, values: Iterable[Any]) -> Iterable[Any]:
        """What a loop goes over."""
        return _Metered(values, self._meter)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._meter.tick()
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
        text = getattr(method, "__self__", None)
        if isinstance(text, _TEXT):
            args = self._check_text_method(method.__name__, text, args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._meter.tick()
        if operator == "+":
            self.require(_length(left) + _length(right))
        elif operator == "*":
            self._check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._require_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, _TEXT):
            self.check_format(left, right)
        return super().call_binop(context, operator, left, right)

    # Checks, each before the step that would be too large; the filters use them too.

    def require(self, num_chars: int) -> None:
        if num_chars > self._max_chars:
            raise LimitExceeded(f"built more than {self._max_chars} characters")

    def _require_bits(self, num_bits: int) -> None:
        if num_bits > _MAX_INT_BITS:
            raise LimitExceeded(f"built an integer of more than {_MAX_INT_BITS} bits")

    def check_size(self, value: Any) -> Any:
        """`value`, unless writing it out would be too large.  (A list may hold another many times over.)"""
        if not isinstance(value, str):
            num_chars, stack = 0, [value]
            while stack:
                item = stack.pop()
                num_chars += _length(item)
                self.require(num_chars)
                if isinstance(item, Mapping):
                    stack.extend(item.keys())
                    stack.extend(item.values())
                elif isinstance(item, _LISTS):
                    stack.extend(item)
        return value

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            self._require_bits(left.bit_length() + right.bit_length())
        elif isinstance(left, int) or isinstance(right, int):
            times, value = (left, right) if isinstance(left, int) else (right, left)
            self.require(times * _length(value))

    def check_replace(self, text: str | bytes, old: Any, new: Any) -> None:
        count = text.count(old) if old else len(text) + 1
        self.require(len(text) + count * len(new))

    def check_format(self, template: str | bytes, values: Any) -> None:
        """Every field of the template may show all the values, padded to every width that it names."""
        self.check_size(values)
        text = template if isinstance(template, str) else template.decode("latin-1")
        fields = _FORMAT_FIELD.findall(text)
        shown = values if isinstance(values, list | tuple) else [values]
        per_field = sum(_length(value) for value in shown)
        if _WIDTH_FROM_VALUE.search(text):
            per_field += sum(abs(value) for value in shown if isinstance(value, int))
        widths = sum(int(number) for field in fields for number in _NUMBER.findall(field))
        self.require(len(text) + widths + len(fields) * per_field)

    def _check_text_method(
        self, name: str, text: str | bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """The arguments, with an iterator made a list so that it could be measured."""
        if name in _TEXT_METHODS_LEFT_OUT:
            raise SecurityError(f"chat templates may not call {name} on a text")
        if name == "replace" and len(args) >= 2:
            self.check_replace(text, *args[:2])
        elif name == "join" and args:
            args = (self.check_join(text, args[0]),)
        elif name in ("format", "format_map"):
            self.check_format(text, [*args, *kwargs.values()])
        elif name in ("center", "ljust", "rjust", "zfill") and args and isinstance(args[0], int):
            self.require(args[0])
        return args

    def check_join(self, separator: Any, values: Iterable[Any]) -> list[Any]:
        items = list(self.metered(values))
        self.check_size(items)
        self.require(len(items) * _length(separator))
        return items


@jinja2.pass_eval_context
def _join(context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    items = _environment(context).check_join(d, value)
    return str(jinja2.filters.sync_do_join(context, items, d, attribute))


@jinja2.pass_eval_context
def _replace(context: EvalContext, s: str, old: str, new: str, count: int | None = None) -> str:
    _environment(context).check_replace(str(s), str(old), str(new))
    return jinja2.filters.do_replace(context, s, old, new, count)


@jinja2.pass_eval_context
def _format(context: EvalContext, value: str, *args: Any, **kwargs: Any) -> str:
    _environment(context).check_format(str(value), [*args, *kwargs.values()])
    return jinja2.filters.do_format(value, *args, **kwargs)


@jinja2.pass_eval_context
def _indent(
    context: EvalContext, s: str, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    per_line = width if isinstance(width, int) else len(width)
    _environment(context).require(len(s) + (s.count("\n") + 1) * per_line)
    return jinja2.filters.do_indent(s, width, first, blank)


@jinja2.pass_eval_context
def _string(context: EvalContext, value: Any) -> str:
    return str(_environment(context).check_size(value))


@jinja2.pass_eval_context
def _sum(
    context: EvalContext, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0
) -> Any:
    environment = _environment(context)
    items = environment.check_size(list(environment.metered(iterable)))
    return jinja2.filters.sync_do_sum(environment, items, attribute, start)


@jinja2.pass_eval_context
def _tojson(
    context: EvalContext,
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in transformers: no HTML escapes, since a prompt is not a web page."""
    environment = _environment(context)
    environment.check_size(x)
    if indent is not None:
        environment.require(_ITEM_CHARS * (indent if isinstance(indent, int) else len(indent)) ** 2)
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_FILTERS = {
    "join": _join,
    "replace": _replace,
    "format": _format,
    "indent": _indent,
    "string": _string,
    "sum": _sum,
    "tojson": _tojson,
}


def _environment(context: EvalContext) -> BoundedEnvironment:
    environment = context.environment
    assert isinstance(environment, BoundedEnvironment)
    return environment


class _Meter(threading.local):
    """CPU time of the rendering that this thread is at; without a limit between renderings."""

    def __init__(self) -> None:
        self._deadline_s = self._max_cpu_s = float("inf")
        self._ticks = 0

    @contextmanager
    def running(self, max_cpu_s: float) -> Iterator[None]:
        self._max_cpu_s = max_cpu_s
        self._deadline_s = time.thread_time() + max_cpu_s
        try:
            yield
        finally:
            self._deadline_s = float("inf")

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % _TICKS_PER_LOOK_AT_THE_CLOCK == 0 and time.thread_time() > self._deadline_s:
            raise LimitExceeded(f"took more than {self._max_cpu_s} s of CPU time")


class _Metered:
    """An iterable that ticks; it has a length if the iterable has."""

    def __init__(self, values: Iterable[Any], meter: _Meter) -> None:
        self._values = values
        self._meter = meter

    def __iter__(self) -> Iterator[Any]:
        tick = self._meter.tick
        for value in self._values:
            tick()
            yield value

    def __len__(self) -> int:
        return len(self._values)  # type: ignore[arg-type]


class _Bounding(NodeTransformer):
    """Puts the environment's checks into a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _call_environment("metered", [node.iter], node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call_environment("concat_values", node.nodes, node.lineno)


def _call_environment(method: str, args: list[Any], lineno: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method, lineno=lineno)
    return nodes.Call(function, args, [], None, None, lineno=lineno)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; a rendering shows what is inside."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace, without names that reach into Python's objects."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = dict(*args, **kwargs)
        for name in values:
            _check_name(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have an attribute {name!r}")


def _length(value: object) -> int:
    """Size of a value in characters, of what it holds directly."""
    if isinstance(value, _TEXT):
        return len(value)
    if isinstance(value, (_LISTS, Mapping)):
        return _ITEM_CHARS * (len(value) + 1)
    return _ITEM_CHARS


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
